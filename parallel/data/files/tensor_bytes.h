// Bytes of tensors in files: their number, and their validity.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "lockstep/parallel/data/files/file.h"
#include "lockstep/runtime/error.h"

namespace lockstep::internal {

// Length of a tensor in a file, whose shape may have any values.

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

// Validity of bools, which files store as one byte each.

/// Throws DataError if a byte of tensor `name`, which begins at `offset` of `file`, is neither 0 nor 1: reading it as a
/// bool would be undefined behaviour.
inline void require_bools(std::span<const std::byte> bytes, const std::string& file, std::uint64_t offset,
                          std::string_view name) {
    const auto bad = std::find_if(bytes.begin(), bytes.end(), [](std::byte b) { return b > std::byte{1}; });
    if (bad == bytes.end()) return;
    throw DataError(file + ": offset " + std::to_string(offset + static_cast<std::uint64_t>(bad - bytes.begin())) +
                    ": tensor " + quote(name) + " has a bool that is neither 0 nor 1");
}

}  // namespace lockstep::internal
