#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/backend_library.h"

namespace lockstep {

namespace {

constexpr std::array<std::string_view, 4> optional_backends{"cuda", "gloo", "mpi", "nccl"};

/// The backends that LOCKSTEP_BACKENDS permits; all if it is unset.
std::vector<std::string_view> permitted_backends() {
    const char* const text = std::getenv("LOCKSTEP_BACKENDS");
    if (!text || !*text) return {optional_backends.begin(), optional_backends.end()};
    std::vector<std::string_view> permitted;
    if (std::string_view(text) == "none") return permitted;
    for (std::string_view rest = text;;) {
        const std::size_t comma = std::min(rest.find(','), rest.size());
        const auto* const known = std::find(optional_backends.begin(), optional_backends.end(), rest.substr(0, comma));
        if (known == optional_backends.end())
            throw InvalidEnvironment(fmt::format(
                "environment variable LOCKSTEP_BACKENDS={} is invalid; expected none, or some of {}, with commas", text,
                fmt::join(optional_backends, ", ")));
        permitted.push_back(*known);
        if (comma == rest.size()) return permitted;
        rest.remove_prefix(comma + 1);
    }
}

}  // namespace

std::string excluded_backend_reason(std::string_view name) {
    static const std::vector<std::string_view> permitted = permitted_backends();
    if (std::find(permitted.begin(), permitted.end(), name) != permitted.end()) return {};
    return fmt::format("LOCKSTEP_BACKENDS does not list {}; add it", name);
}

}  // namespace lockstep
