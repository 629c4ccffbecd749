#include "lockstep/tests/ptx/program.h"

#include <fmt/format.h>

#include <cstring>
#include <iterator>
#include <stdexcept>

namespace lockstep::ptx {

std::string_view name_of(Issue issue) {
    static constexpr std::string_view names[] = {"move",       "integer", "integer64", "division", "division64",
                                                 "f32",        "f64",     "half",      "special",  "precise",
                                                 "conversion", "branch",  "global",    "shared",   "local",
                                                 "param",      "atomic",  "exchange",  "barrier"};
    static_assert(std::size(names) == static_cast<std::size_t>(Issue::count));
    return names[static_cast<std::size_t>(issue)];
}

const Kernel& Module::kernel(std::string_view name) const {
    if (const auto exact = kernels.find(name); exact != kernels.end()) return exact->second;
    const Kernel* found = nullptr;
    for (const auto& [mangled, each] : kernels) {
        if (mangled.find(name) == std::string::npos) continue;
        if (found != nullptr)
            throw std::runtime_error(fmt::format("PTX: several kernels contain \"{}\" in their names", name));
        found = &each;
    }
    if (found == nullptr) throw std::runtime_error(fmt::format("PTX: kernel not found: {}", name));
    return *found;
}

std::string Module::where(int line) const {
    const auto at = static_cast<std::size_t>(line);
    return at < locations.size() ? locations[at] : std::string();
}

std::vector<std::byte> parameters_from(const Kernel& kernel, const std::vector<const void*>& arguments,
                                       const std::vector<std::size_t>& sizes) {
    if (arguments.size() != kernel.parameters.size())
        throw std::invalid_argument(
            fmt::format("{}: {} arguments; expected {}", kernel.name, arguments.size(), kernel.parameters.size()));
    std::vector<std::byte> result(kernel.parameter_bytes);
    for (std::size_t i = 0; i < arguments.size(); ++i) {
        const Parameter& each = kernel.parameters[i];
        if (sizes[i] != each.bytes)
            throw std::invalid_argument(
                fmt::format("{}: argument {} has {} bytes; expected {}", kernel.name, i, sizes[i], each.bytes));
        std::memcpy(result.data() + each.offset, arguments[i], each.bytes);
    }
    return result;
}

}  // namespace lockstep::ptx
