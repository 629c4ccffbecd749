#include "lockstep/parallel/events/wire.h"

#include <array>
#include <bit>
#include <cstring>

namespace lockstep::internal {

namespace {

// The processor's own instruction would be faster, but the thread that does this has time, and a library for it
// (libcrc32c) would be one more to install for twenty lines.
constexpr std::array<std::uint32_t, 256> crc32c_table = [] {
    std::array<std::uint32_t, 256> table{};
    for (std::uint32_t byte = 0; byte < 256; ++byte) {
        std::uint32_t crc = byte;
        for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78U : 0U);
        table[byte] = crc;
    }
    return table;
}();

template <class T>
void append(std::string& text, T value) {
    static_assert(std::endian::native == std::endian::little, "event files are little-endian");
    char raw[sizeof(T)];
    std::memcpy(raw, &value, sizeof(T));
    text.append(raw, sizeof(T));
}

}  // namespace

void WireMessage::varint(std::uint64_t value) {
    for (; value >= 128; value >>= 7) text_ += static_cast<char>(value % 128 + 128);
    text_ += static_cast<char>(value);
}

WireMessage& WireMessage::number(unsigned field, std::int64_t value) {
    key(field, 0);
    varint(static_cast<std::uint64_t>(value));
    return *this;
}

WireMessage& WireMessage::real(unsigned field, double value) {
    key(field, 1);
    append(text_, value);
    return *this;
}

WireMessage& WireMessage::real32(unsigned field, float value) {
    key(field, 5);
    append(text_, value);
    return *this;
}

WireMessage& WireMessage::bytes(unsigned field, std::string_view value) {
    key(field, 2);
    varint(value.size());
    text_ += value;
    return *this;
}

WireMessage& WireMessage::reals(unsigned field, const std::vector<double>& values) {
    key(field, 2);
    varint(values.size() * sizeof(double));
    for (const double value : values) append(text_, value);
    return *this;
}

std::uint32_t masked_crc32c(std::string_view bytes) {
    std::uint32_t crc = ~0U;
    for (const char byte : bytes) crc = crc32c_table[(crc ^ static_cast<unsigned char>(byte)) & 255] ^ crc >> 8;
    return std::rotr(~crc, 15) + 0xa282ead8U;
}

std::string framed(std::string_view data) {
    std::string record;
    record.reserve(data.size() + 16);
    append(record, static_cast<std::uint64_t>(data.size()));
    append(record, masked_crc32c(record));
    record += data;
    append(record, masked_crc32c(data));
    return record;
}

}  // namespace lockstep::internal
