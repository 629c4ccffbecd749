#include "lockstep/runtime/internal/environment.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <string_view>

#include "lockstep/runtime/error.h"

namespace lockstep::environment {

bool flag(const char* name) { return integer(name, 0, 1).value_or(0) == 1; }

std::optional<std::int64_t> integer(const char* name, std::int64_t low, std::int64_t high) {
    const char* text = std::getenv(name);
    if (!text || !*text) return std::nullopt;
    const std::string_view view(text);
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(view.data(), view.data() + view.size(), value);
    if (error != std::errc() || end != view.data() + view.size() || value < low || value > high)
        throw InvalidArgument(fmt::format("environment variable {}={} is invalid; expected an integer from {} to {}",
                                          name, view, low, high));
    return value;
}

std::optional<std::size_t> one_of(const char* name, std::initializer_list<std::string_view> words) {
    const char* text = std::getenv(name);
    if (!text || !*text) return std::nullopt;
    const auto* const found = std::find(words.begin(), words.end(), std::string_view(text));
    if (found == words.end())
        throw InvalidArgument(fmt::format("environment variable {}={} is invalid; expected one of {}", name, text,
                                          fmt::join(words, ", ")));
    return static_cast<std::size_t>(found - words.begin());
}

}  // namespace lockstep::environment
