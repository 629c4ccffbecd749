// Encoding of log entries: records of TensorBoard, images, histograms, text.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/parallel/data/image.h"

namespace lockstep::internal {

// TensorBoard's event files: records with checksums, each a protobuf message.
//
// Five kinds of message are written and none is read. The protobuf library would be the largest dependency for that,
// with a code generator in the build and a version that must match all other libraries of the process. Writing the wire
// format takes fewer lines than using the library.

/// Builds a protobuf message field by field.
class WireMessage {
public:
    /// int32, int64 and enums.
    WireMessage& number(unsigned field, std::int64_t value);
    WireMessage& real(unsigned field, double value);
    WireMessage& real32(unsigned field, float value);
    WireMessage& bytes(unsigned field, std::string_view value);
    WireMessage& message(unsigned field, const WireMessage& value) { return bytes(field, value.text_); }
    /// repeated double, packed.
    WireMessage& reals(unsigned field, const std::vector<double>& values);

    const std::string& text() const { return text_; }

private:
    void key(unsigned field, unsigned type) { varint(field << 3 | type); }
    void varint(std::uint64_t value);

    std::string text_;
};

/// CRC-32C of `bytes`, masked as in records: an unmasked checksum of data that contains checksums would be weak.
std::uint32_t masked_crc32c(std::string_view bytes);

/// Length, its checksum, data, their checksum.
std::string framed(std::string_view data);

// Histogram of a tensor's values.

/// As in TensorBoard's HistogramProto: `counts[i]` values are below `limits[i]` and not below the previous limit.
struct Histogram {
    double min = 0, max = 0, sum = 0, sum_of_squares = 0;
    std::int64_t count = 0;  ///< number of finite values, on which all other members are based
    std::vector<double> limits, counts;
    std::int64_t nans = 0, infinities = 0;
};

template <class T>
Histogram histogram_of(std::span<const T> values);
extern template Histogram histogram_of(std::span<const float>);
extern template Histogram histogram_of(std::span<const double>);

// Pictures of a log, and their bytes.

/// `classes` from 0 to 255, or negative: an RGB picture in the colours of PASCAL VOC, with white for negative ones.
HostImage coloured(std::int64_t height, std::int64_t width, const std::vector<std::int64_t>& classes);

/// The bytes of a PNG file. Throws DataError if libpng fails, InvalidArgument in a build without it.
std::string png_of(const HostImage& picture);

// User text in formats that must be UTF-8.

/// The text with U+FFFD for each byte that is not valid UTF-8 (which excludes overlong forms and surrogates).
std::string as_utf8(std::string_view text);
/// Throws InvalidArgument, "WHAT: 'text' is not UTF-8; expected UTF-8", unless it is.
void require_utf8(std::string_view text, std::string_view what);

}  // namespace lockstep::internal
