// Values of mask files and the classes that they stand for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "lockstep/parallel/data/image.h"

namespace lockstep::internal {

/// Values of up to four channels in one number that sorts as they do, channel by channel.
using PackedValue = std::uint32_t;

PackedValue packed_value(std::span<const std::uint8_t> channels);
std::vector<std::uint8_t> unpacked_value(PackedValue value, int channels);
/// "7", "(255, 0, 0)"
std::string value_text(PackedValue value, int channels);

/// All values of a mask. Stops when there are more than `most`.
std::set<PackedValue> values_of(const HostImage& mask, std::size_t most);

/// Maps values to classes.
class MaskClasses {
public:
    MaskClasses() = default;
    /// A value of pixels without a class, and what is written for them.
    struct Ignored {
        PackedValue value;
        std::int64_t written;
    };
    /// values[i] is that of class i, packed from `channels`.
    MaskClasses(std::vector<PackedValue> values, int channels, std::optional<Ignored> ignored = std::nullopt);

    const std::vector<PackedValue>& values() const { return values_; }
    int channels() const { return channels_; }
    bool contains(PackedValue value) const { return find(value).has_value(); }
    /// Writes the class of every pixel. Returns the first value that has none, after which nothing is written.
    std::optional<PackedValue> write(const HostImage& mask, std::span<std::int64_t> to) const;

private:
    std::optional<std::int64_t> find(PackedValue value) const;

    std::vector<PackedValue> values_;
    std::vector<std::pair<PackedValue, std::int64_t>> sorted_;  // value, class
    int channels_ = 1;
};

}  // namespace lockstep::internal
