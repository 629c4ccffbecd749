#include "lockstep/parallel/data/internal/mask_classes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

namespace lockstep::internal {

PackedValue packed_value(std::span<const std::uint8_t> channels) {
    PackedValue value = 0;
    for (const std::uint8_t channel : channels) value = value << 8 | channel;
    return value;
}

std::vector<std::uint8_t> unpacked_value(PackedValue value, int channels) {
    std::vector<std::uint8_t> unpacked(static_cast<std::size_t>(channels));
    for (auto channel = unpacked.rbegin(); channel != unpacked.rend(); ++channel, value >>= 8)
        *channel = static_cast<std::uint8_t>(value & 0xff);
    return unpacked;
}

std::string value_text(PackedValue value, int channels) {
    return channels == 1 ? fmt::format("{}", value)
                         : fmt::format("({})", fmt::join(unpacked_value(value, channels), ", "));
}

std::set<PackedValue> values_of(const HostImage& mask, std::size_t most) {
    std::set<PackedValue> values;
    const auto channels = static_cast<std::size_t>(mask.channels());
    PackedValue last = 0;
    for (std::size_t p = 0; p < mask.pixels.size() && values.size() <= most; p += channels) {
        const PackedValue value = packed_value(std::span(mask.pixels).subspan(p, channels));
        if (value == last && !values.empty()) continue;
        values.insert(value);
        last = value;
    }
    return values;
}

MaskClasses::MaskClasses(std::vector<PackedValue> values, int channels, std::optional<Ignored> ignored)
    : values_(std::move(values)), channels_(channels) {
    for (const PackedValue value : values_) sorted_.emplace_back(value, std::ssize(sorted_));
    if (ignored) sorted_.emplace_back(ignored->value, ignored->written);
    std::sort(sorted_.begin(), sorted_.end());
}

std::optional<std::int64_t> MaskClasses::find(PackedValue value) const {
    const auto found = std::lower_bound(sorted_.begin(), sorted_.end(), value,
                                        [](const auto& e, PackedValue v) { return e.first < v; });
    if (found == sorted_.end() || found->first != value) return std::nullopt;
    return found->second;
}

std::optional<PackedValue> MaskClasses::write(const HostImage& mask, std::span<std::int64_t> to) const {
    const auto channels = static_cast<std::size_t>(channels_);
    PackedValue last = 0;
    std::optional<std::int64_t> its_class = find(last);
    for (std::size_t i = 0; i < to.size(); ++i) {
        const PackedValue value = packed_value(std::span(mask.pixels).subspan(i * channels, channels));
        if (value != last) {
            last = value;
            its_class = find(value);
        }
        if (!its_class) return value;
        to[i] = *its_class;
    }
    return std::nullopt;
}

}  // namespace lockstep::internal
