#include "lockstep/parallel/events/encoding.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>

#include "lockstep/parallel/data/images/codecs.h"
#include "lockstep/runtime/error.h"

namespace lockstep::internal {

namespace {

// The processor's own instruction would be faster, but this thread has time, and a library for it (libcrc32c) would be
// another dependency in place of twenty lines.
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

namespace {

/// torch's bins="tensorflow": from -1e20 to 1e20, each a tenth wider than the next one towards 0.
const std::vector<double>& all_limits() {
    static const std::vector<double> limits = [] {
        std::vector<double> positive;
        for (double limit = 1e-12; limit < 1e20; limit *= 1.1) positive.push_back(limit);
        std::vector<double> all;
        for (auto limit = positive.rbegin(); limit != positive.rend(); ++limit) all.push_back(-*limit);
        all.push_back(0);
        all.insert(all.end(), positive.begin(), positive.end());
        return all;
    }();
    return limits;
}

/// Bucket i is between limits i and i + 1.
std::size_t bucket_of(double value) {
    const std::vector<double>& limits = all_limits();
    const auto above = std::upper_bound(limits.begin(), limits.end(), value) - limits.begin();
    return static_cast<std::size_t>(std::clamp<std::ptrdiff_t>(above - 1, 0, std::ssize(limits) - 2));
}

/// Removes empty buckets at both ends, except one at the low end, whose limit is the start of the first bucket, as in
/// torch.
void keep_used(const std::vector<std::int64_t>& counts, Histogram& histogram) {
    const auto is_used = [](std::int64_t count) { return count > 0; };
    const auto first = std::find_if(counts.begin(), counts.end(), is_used);
    const auto last = std::find_if(counts.rbegin(), counts.rend(), is_used).base();
    const std::vector<double>& limits = all_limits();
    const auto begin = first - counts.begin(), end = last - counts.begin();
    histogram.limits.assign(limits.begin() + begin, limits.begin() + end + 1);
    histogram.counts.push_back(0);
    histogram.counts.insert(histogram.counts.end(), first, last);
}

}  // namespace

template <class T>
Histogram histogram_of(std::span<const T> values) {
    Histogram histogram;
    histogram.min = std::numeric_limits<double>::infinity();
    histogram.max = -histogram.min;
    std::vector<std::int64_t> counts(all_limits().size() - 1);
    for (const T element : values) {
        const auto value = static_cast<double>(element);
        if (!std::isfinite(value)) {
            ++(std::isnan(value) ? histogram.nans : histogram.infinities);
            continue;
        }
        ++histogram.count;
        histogram.min = std::min(histogram.min, value);
        histogram.max = std::max(histogram.max, value);
        histogram.sum += value;
        histogram.sum_of_squares += value * value;
        ++counts[bucket_of(value)];
    }
    if (histogram.count > 0) keep_used(counts, histogram);
    return histogram;
}

template Histogram histogram_of(std::span<const float>);
template Histogram histogram_of(std::span<const double>);

namespace {

/// The bits of the class, lowest first, become the highest bits of red, green, blue, red, green, blue, and so on.
std::array<std::uint8_t, 3> colour_of(std::int64_t class_index) {
    if (class_index < 0) return {255, 255, 255};
    std::array<std::uint8_t, 3> colour{};
    for (int bit = 0; bit < 8; ++bit)
        if (class_index >> bit & 1)
            colour[static_cast<std::size_t>(bit % 3)] |= static_cast<std::uint8_t>(128 >> bit / 3);
    return colour;
}

}  // namespace

HostImage coloured(std::int64_t height, std::int64_t width, const std::vector<std::int64_t>& classes) {
    HostImage picture{height, width, ImageMode::rgb, {}, {}};
    picture.pixels.reserve(classes.size() * 3);
    for (const std::int64_t index : classes) {
        const auto colour = colour_of(index);
        picture.pixels.insert(picture.pixels.end(), colour.begin(), colour.end());
    }
    return picture;
}

std::string png_of(const HostImage& picture) {
    const std::string name = fmt::format("a picture of {} x {} pixels", picture.width, picture.height);
    const std::vector<std::byte> bytes = require_codec(name, "PNG").write(name, picture, 0);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

namespace {

/// Number of bytes of the text's first character; 0 if it is invalid. Table 3-7 of the Unicode standard.
std::size_t length_of_first(std::string_view text) {
    const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
    const unsigned char first = byte(0);
    if (first < 0x80) return 1;
    const std::size_t length = first >= 0xc2 && first <= 0xdf   ? 2
                               : first >= 0xe0 && first <= 0xef ? 3
                               : first >= 0xf0 && first <= 0xf4 ? 4
                                                                : 0;
    if (length == 0 || length > text.size()) return 0;
    const unsigned char lowest = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
    const unsigned char highest = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
    if (byte(1) < lowest || byte(1) > highest) return 0;
    for (std::size_t i = 2; i < length; ++i)
        if (byte(i) < 0x80 || byte(i) > 0xbf) return 0;
    return length;
}

}  // namespace

std::string as_utf8(std::string_view text) {
    std::string result;
    result.reserve(text.size());
    while (!text.empty()) {
        const std::size_t length = length_of_first(text);
        result += length > 0 ? text.substr(0, length) : std::string_view("\xef\xbf\xbd");
        text.remove_prefix(std::max<std::size_t>(length, 1));
    }
    return result;
}

void require_utf8(std::string_view text, std::string_view what) {
    if (const std::string valid = as_utf8(text); valid != text)
        throw InvalidArgument(fmt::format("{}: '{}' is not UTF-8; expected UTF-8", what, valid));
}

}  // namespace lockstep::internal
