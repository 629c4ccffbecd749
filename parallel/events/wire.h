// TensorBoard's event files: records with checksums, each a protobuf message.
//
// Five kinds of message are written and none is read. The protobuf library would be the heaviest dependency of all for
// that, with a code generator in the build and a version that has to fit every other library of the process; the wire
// format of what is needed here takes fewer lines than its use.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::internal {

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

/// CRC-32C of `bytes`, masked as records want it: the checksum of data that holds checksums would be a weak one.
std::uint32_t masked_crc32c(std::string_view bytes);

/// Length, its checksum, data, their checksum.
std::string framed(std::string_view data);

}  // namespace lockstep::internal
