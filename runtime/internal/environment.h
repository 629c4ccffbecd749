// Environment variables, read strictly: a malformed value is an error, never a default.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string_view>

namespace lockstep::environment {

/// True for "1", false when unset, empty or "0". Throws InvalidArgument for anything else.
bool flag(const char* name);
/// The integer, or nothing when unset or empty. Throws InvalidArgument when it is no integer in [low, high].
std::optional<std::int64_t> integer(const char* name, std::int64_t low, std::int64_t high);
/// The position in `words` of what is set, or nothing when unset or empty. Throws InvalidArgument for anything else.
std::optional<std::size_t> one_of(const char* name, std::initializer_list<std::string_view> words);

}  // namespace lockstep::environment
