// Makes the CUDA stand-in of this program run the library's kernels as nvcc compiled them. Environment:
//   LOCKSTEP_PTX_SCHEDULE   name of a schedule (machine.h), by default "lockstep"
//   LOCKSTEP_PTX_BLOCKS     most blocks of a launch
//   LOCKSTEP_PTX_COUNTS     file for a table of what ran
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <stdexcept>

#include "lockstep/runtime/cuda/launch.h"
#include "lockstep/tests/cuda_standin/standin.h"
#include "lockstep/tests/ptx/emulate.h"
#include "lockstep/tests/ptx/library_kernels.h"

namespace lockstep::ptx {

namespace {

LibraryKernels& library_kernels() {
    static auto* const all = new LibraryKernels(PTX_FILES);  // streams may still use it when the program ends
    return *all;
}

Emulation from_environment() {
    Emulation result;
    if (const char* const blocks = std::getenv("LOCKSTEP_PTX_BLOCKS")) {
        result.most_blocks = static_cast<unsigned>(std::strtoul(blocks, nullptr, 10));
        if (result.most_blocks == 0)
            throw std::runtime_error(fmt::format("LOCKSTEP_PTX_BLOCKS is \"{}\"; expected a positive number", blocks));
    }
    const char* const wanted = std::getenv("LOCKSTEP_PTX_SCHEDULE");
    if (wanted == nullptr) return result;
    for (const Schedule& each : schedules) {
        if (std::string_view(wanted) != each.name) continue;
        result.schedule = each;
        return result;
    }
    throw std::runtime_error(fmt::format("LOCKSTEP_PTX_SCHEDULE is \"{}\"; expected the name of a schedule", wanted));
}

std::vector<std::byte> parameters_of(const Kernel& kernel, void** arguments) {
    std::vector<std::byte> result(kernel.parameter_bytes);
    for (std::size_t i = 0; i < kernel.parameters.size(); ++i)
        std::memcpy(result.data() + kernel.parameters[i].offset, arguments[i], kernel.parameters[i].bytes);
    return result;
}

struct Work {
    std::string name;
    LibraryKernels::Found found;
    std::vector<std::byte> parameters;
    LaunchOptions options;
    LibraryKernels::Allocations allocations;
};

void run(const Work& work) {
    try {
        const Report report = library_kernels().launch(work.found, work.parameters, work.options, work.allocations);
        for (const Fault& each : report.faults) {
            const bool fatal = each.kind == FaultKind::out_of_bounds || each.kind == FaultKind::misaligned;
            standin::kernel_fault(work.name + ": " + each.message, fatal);
        }
        if (emulation().observer)
            emulation().observer({work.name, *work.found.kernel, work.options.grid.count(), report.counters});
    } catch (const std::exception& error) {  // an unknown instruction
        std::fprintf(stderr, "%s\n", error.what());
        standin::kernel_fault(error.what(), true);
    }
}

LaunchOptions options_of(const standin::CompiledLaunch& launch) {
    LaunchOptions options;
    options.grid = {std::min(launch.grid.x, emulation().most_blocks), launch.grid.y, launch.grid.z};
    options.block = {launch.block.x, launch.block.y, launch.block.z};
    options.dynamic_shared = launch.shared;
    options.schedule = emulation().schedule;
    options.most_interpreted = emulation().most_interpreted;
    if (!launch.declared) return options;
    options.declared.emplace();
    for (const standin::Access& each : *launch.declared)
        options.declared->push_back({each.data, each.bytes, each.write});
    return options;
}

/// One list for all launches between two changes of the memory. The stand-in makes one launch after the other.
LibraryKernels::Allocations allocations_of(const standin::CompiledLaunch& launch) {
    static std::shared_ptr<const std::vector<standin::Access>> last;
    static LibraryKernels::Allocations listed;
    if (launch.memory == last) return listed;
    std::vector<LibraryKernels::Allocation> all;
    for (const standin::Access& each : *launch.memory) all.push_back({each.data, each.bytes});
    last = launch.memory;
    listed = std::make_shared<const std::vector<LibraryKernels::Allocation>>(std::move(all));
    return listed;
}

std::function<void()> make_work(const standin::CompiledLaunch& launch) {
    try {
        const LibraryKernels::Found found = library_kernels().find(launch.kernel);
        Work work{launch.name, found, parameters_of(*found.kernel, launch.arguments), options_of(launch),
                  allocations_of(launch)};
        return [work = std::move(work)] { run(work); };
    } catch (const std::exception& error) {  // no such kernel
        return [message = std::string(error.what())] { standin::kernel_fault(message, true); };
    }
}

void declare(const cuda::Queue& queue, const char* name) {
    std::vector<cuda::Touched> touched;
    if (queue.declaration != nullptr) queue.declaration->list(touched);
    std::vector<standin::Access> accesses;
    for (const cuda::Touched& each : touched) accesses.push_back({each.address, each.bytes, each.written});
    standin::declare_launch(name, std::move(accesses));
}

void write_counts() {
    const char* const path = std::getenv("LOCKSTEP_PTX_COUNTS");
    std::FILE* const file = std::fopen(path, "w");
    if (file == nullptr) return fmt::print(stderr, "LOCKSTEP_PTX_COUNTS: cannot write {}\n", path);
    fmt::print(file, "launches\tthreads\tinstructions\tsectors\tcompulsory sectors\texecuted");
    constexpr auto classes = static_cast<std::size_t>(Issue::count);
    for (std::size_t i = 0; i < classes; ++i) fmt::print(file, "\t{}", name_of(static_cast<Issue>(i)));
    fmt::print(file, "\tkernel\n");
    for (const auto& [kernel, counters] : library_kernels().totals()) {
        const auto executed = std::count(counters.executed.begin(), counters.executed.end(), 1);
        fmt::print(file, "{}\t{}\t{}\t{}\t{}\t{}/{}", counters.launches, counters.threads, counters.instructions(),
                   counters.sectors, counters.compulsory_sectors, executed, counters.executed.size());
        for (std::size_t i = 0; i < classes; ++i) fmt::print(file, "\t{}", counters.issued[i]);
        fmt::print(file, "\t{}\n", kernel);
    }
    std::fclose(file);
}

[[maybe_unused]] const bool emulating = [] {
    standin::run_compiled_kernels(make_work);
    cuda::before_launch = declare;
    if (std::getenv("LOCKSTEP_PTX_COUNTS") != nullptr) std::atexit(write_counts);
    return true;
}();

}  // namespace

Emulation& emulation() {
    static Emulation current = from_environment();
    return current;
}

std::map<std::string, std::uint64_t> launches_by_kernel() { return library_kernels().launches(); }

}  // namespace lockstep::ptx
