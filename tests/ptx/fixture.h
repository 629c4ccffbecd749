// Modules and launches for the tests of the interpreter.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "lockstep/tests/catch.h"
#include "lockstep/tests/ptx/machine.h"

namespace lockstep::ptx {

/// Text of the compiled file NAME.ptx in a list of paths that are separated by commas.
inline std::string compiled_text(std::string_view paths, std::string_view name) {
    while (!paths.empty()) {
        const std::string path(paths.substr(0, paths.find(',')));
        paths.remove_prefix(std::min(paths.size(), path.size() + 1));
        if (path.find(fmt::format("/{}.", name)) == std::string::npos) continue;
        std::ifstream file(path, std::ios::binary);
        if (!file) throw std::runtime_error("cannot read " + path);
        return std::string(std::istreambuf_iterator<char>(file), {});
    }
    throw std::runtime_error(fmt::format("no compiled file of the name {}", name));
}

/// A module with memory and a machine.
class Program {
public:
    explicit Program(std::string_view text) : module(parse_module(text)), machine(module, memory) {}

    template <class T>
    T* copy(const std::vector<T>& values) {
        T* const to = array<T>(values.size());
        std::copy(values.begin(), values.end(), to);
        return to;
    }
    template <class T>
    T* array(std::size_t count, Fill fill = Fill::set) {
        return static_cast<T*>(memory.allocate(count * sizeof(T), fill));
    }

    template <class... Arguments>
    Report run(std::string_view name, const LaunchOptions& options, const Arguments&... arguments) {
        const Kernel& kernel = module.kernel(name);
        return machine.launch(kernel, parameters(kernel, arguments...), options);
    }
    /// The same without faults.
    template <class... Arguments>
    Counters run_right(std::string_view name, const LaunchOptions& options, const Arguments&... arguments) {
        Report report = run(name, options, arguments...);
        for (const Fault& each : report.faults) FAIL_CHECK(each.message);
        return std::move(report.counters);
    }

    Module module;
    Memory memory;
    Machine machine;
};

inline LaunchOptions sized(unsigned blocks, unsigned threads, const Schedule& schedule = lockstep_schedule) {
    LaunchOptions options;
    options.grid.x = blocks;
    options.block.x = threads;
    options.schedule = schedule;
    return options;
}

}  // namespace lockstep::ptx
