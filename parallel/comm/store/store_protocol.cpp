#include "lockstep/parallel/comm/store/store_protocol.h"

namespace lockstep::store_protocol {

namespace {

void put(std::string& bytes, std::uint64_t value, int size) {
    for (int i = 0; i < size; ++i) bytes.push_back(static_cast<char>(value >> (8 * i) & 0xff));
}

std::uint64_t take(std::string_view bytes) {
    std::uint64_t value = 0;
    for (std::size_t i = bytes.size(); i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[i]);
    return value;
}

}  // namespace

std::string encode(std::uint8_t kind, const std::vector<std::string_view>& fields) {
    std::size_t size = 1;
    for (const std::string_view field : fields) size += 4 + field.size();
    std::string bytes;
    bytes.reserve(4 + size);
    put(bytes, size, 4);
    put(bytes, kind, 1);
    for (const std::string_view field : fields) {
        put(bytes, field.size(), 4);
        bytes += field;
    }
    return bytes;
}

std::string head_of(std::uint8_t kind, std::size_t size) {
    std::string bytes;
    put(bytes, 1 + 4 + size, 4);
    put(bytes, kind, 1);
    put(bytes, size, 4);
    return bytes;
}

std::optional<Frame> decode(std::string_view bytes) {
    if (bytes.empty()) return std::nullopt;
    Frame frame{static_cast<std::uint8_t>(bytes[0]), {}};
    bytes.remove_prefix(1);
    while (!bytes.empty()) {
        if (bytes.size() < 4 || frame.fields.size() == most_fields) return std::nullopt;
        const std::size_t size = length_of(bytes);
        bytes.remove_prefix(4);
        if (size > bytes.size()) return std::nullopt;
        frame.fields.emplace_back(bytes.substr(0, size));
        bytes.remove_prefix(size);
    }
    return frame;
}

std::uint32_t length_of(std::string_view bytes) { return static_cast<std::uint32_t>(take(bytes.substr(0, 4))); }

std::string number(std::int64_t value) {
    std::string bytes;
    put(bytes, static_cast<std::uint64_t>(value), 8);
    return bytes;
}

std::optional<std::int64_t> number(std::string_view field) {
    if (field.size() != 8) return std::nullopt;
    return static_cast<std::int64_t>(take(field));
}

}  // namespace lockstep::store_protocol
