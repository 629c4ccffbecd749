// How long a tensor of a file is, when its shape may be anything.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>

namespace lockstep::internal {

/// product(shape) * element in bytes, or nullopt if it does not fit in 63 bits. No dimension may be negative.
inline std::optional<std::uint64_t> shape_bytes(std::span<const std::int64_t> shape, std::size_t element) {
    if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
    std::uint64_t bytes = element;
    for (const std::int64_t dimension : shape) {
        const auto factor = static_cast<std::uint64_t>(dimension);
        if (bytes > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()) / factor) return std::nullopt;
        bytes *= factor;
    }
    return bytes;
}

}  // namespace lockstep::internal
