// Bools as files hold them: a byte each.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "lockstep/parallel/data/files/in_quotes.h"
#include "lockstep/runtime/error.h"

namespace lockstep::internal {

/// Throws DataError where one of the bytes of tensor `name`, which begins at `offset` of `file`, is neither 0 nor 1: it
/// would be undefined behaviour once it is read as a bool.
inline void require_bools(std::span<const std::byte> bytes, const std::string& file, std::uint64_t offset,
                          std::string_view name) {
    const auto bad = std::find_if(bytes.begin(), bytes.end(), [](std::byte b) { return b > std::byte{1}; });
    if (bad == bytes.end()) return;
    throw DataError(file + ": offset " + std::to_string(offset + static_cast<std::uint64_t>(bad - bytes.begin())) +
                    ": tensor " + in_quotes(name) + " has a bool that is neither 0 nor 1");
}

}  // namespace lockstep::internal
