// Counts of CUDA kernels in the PTX interpreter, and the times that follow from them on an H100.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "lockstep/bench/emulated.h"
#include "lockstep/bench/json_file.h"
#include "lockstep/bench/kernel_cases.h"
#include "lockstep/runtime/cuda/stream_counters.h"
#include "lockstep/runtime/stream.h"
#include "lockstep/tests/cuda_standin/standin.h"
#include "lockstep/tests/ptx/emulate.h"

namespace emulated {

namespace {

namespace ptx = lockstep::ptx;

constexpr double issue_per_second = 132 * 4 * 1.6e9, bytes_per_second = 3e12;

/// Issue slots of one instruction of a warp: what ptxas makes of it, and the throughput of its unit.
double weight(ptx::Issue issue) {
    using enum ptx::Issue;
    switch (issue) {
        case move: return 0.3;
        case integer64:
        case f64:
        case conversion: return 2;
        case division: return 18;
        case division64: return 90;
        case precise: return 12;
        case special:
        case global:
        case atomic: return 4;
        case param: return 0.5;
        default: return 1;
    }
}

/// Counts of one kernel of a case, for the whole grid.
struct Row {
    double launches = 0, instructions = 0, slots = 0, sectors = 0, compulsory = 0;
    bool sampled = false;

    double issue_us() const { return slots / issue_per_second * 1e6; }
    double memory_us() const { return compulsory * ptx::sector_bytes / bytes_per_second * 1e6; }
    void add(const ptx::Ran& ran) {
        const ptx::Counters& counted = ran.counters;
        const double whole =
            static_cast<double>(ran.blocks) / static_cast<double>(std::max<std::uint64_t>(1, counted.blocks));
        launches += 1;
        instructions += whole * static_cast<double>(counted.instructions());
        for (std::size_t i = 0; i < counted.issued.size(); ++i)
            slots += whole * weight(static_cast<ptx::Issue>(i)) * static_cast<double>(counted.issued[i]);
        sectors += whole * static_cast<double>(counted.sectors);
        compulsory += whole * static_cast<double>(counted.compulsory_sectors);
        sampled = sampled || counted.blocks < ran.blocks;
    }
};

/// The counters of the stream that runs the kernels.
unsigned* counters() {
    unsigned* found = nullptr;
    lockstep::Stream::of(lockstep::Device::cuda(0)).run("counters", {}, [&](const lockstep::ExecContext& context) {
        found = lockstep::cuda::counters_of(static_cast<cudaStream_t>(context.native));
    });
    return found;
}

std::map<std::string, Row> count_rows(const kernels::Case& each, std::uint64_t most_blocks) {
    ptx::Emulation& emulation = ptx::emulation();
    emulation.most_interpreted = most_blocks > 0 ? most_blocks : std::numeric_limits<std::uint64_t>::max();
    const std::function<void()> work = each.make();
    unsigned* const counted = counters();
    lockstep::synchronize_all();
    std::map<std::string, Row> rows;
    emulation.observer = [&](const ptx::Ran& ran) {
        rows[ran.name].add(ran);
        // Blocks that are not interpreted do not count themselves.
        std::fill_n(counted, lockstep::cuda::stream_counters, 0u);
    };
    work();
    lockstep::synchronize_all();
    emulation.observer = nullptr;
    return rows;
}

double ratio(double part, double whole) { return whole > 0 ? part / whole : 0; }

void print_row(const std::string& what, const std::string& kernel, const Row& row, double elements, double memory_us) {
    fmt::print("| {} | {} | {:.0f}{} | {:.1f} | {:.2f} | {:.2f} | {:.2f} | {:.1f} |\n", what, kernel, row.launches,
               row.sampled ? " *" : "", 32 * row.instructions / elements, ratio(row.sectors, row.compulsory),
               row.issue_us(), memory_us, ratio(row.issue_us(), memory_us));
}

nlohmann::json to_json(const Row& row, double memory_us) {
    return {{"launches", row.launches},
            {"warp_instructions", row.instructions},
            {"issue_slots", row.slots},
            {"sectors", row.sectors},
            {"compulsory_sectors", row.compulsory},
            {"sampled", row.sampled},
            {"issue_us", row.issue_us()},
            {"memory_us", memory_us}};
}

}  // namespace

void count_kernels(const CountOptions& options) {
    const auto begin = std::chrono::steady_clock::now();
    fmt::print(
        "Counted in the PTX interpreter, not measured. An H100 is assumed to issue 132 x 4 instructions of warps at\n"
        "1.6 GHz and to move 3 TB/s. Weights: division 18 (64 bits 90), root and f32 division 12, approximation and\n"
        "global access 4, 64-bit integer, f64 and conversion 2, parameter 0.5, move 0.3, others 1. Kernels: memory\n"
        "time of the sectors that the kernel touches, each once. \"all\": of the operation's inputs and results, each\n"
        "once.\n*: the middle {} blocks of each grid were interpreted, and counts are scaled to the whole grid.\n\n",
        options.most_blocks);
    fmt::print(
        "| operation | kernel | launches | instructions per element | sectors / compulsory | issue us | memory us | "
        "issue / memory |\n|---|---|---|---|---|---|---|---|\n");
    nlohmann::json all = nlohmann::json::array();
    for (const kernels::Case& each : kernels::all_cases(1)) {
        const std::string name = fmt::format("{}, {}", each.name, lockstep::name_of(each.dtype));
        if (name.find(options.only) == std::string::npos) continue;
        const auto rows = count_rows(each, options.most_blocks);
        const auto elements = static_cast<double>(each.elements);
        Row sum;
        nlohmann::json by_kernel = nlohmann::json::object();
        for (const auto& [kernel, row] : rows) {
            sum.launches += row.launches;
            sum.instructions += row.instructions;
            sum.slots += row.slots;
            sum.sectors += row.sectors;
            sum.compulsory += row.compulsory;
            sum.sampled = sum.sampled || row.sampled;
            by_kernel[kernel] = to_json(row, row.memory_us());
        }
        const double memory_us = each.bytes / bytes_per_second * 1e6;
        print_row(name, "all", sum, elements, memory_us);
        for (const auto& [kernel, row] : rows) print_row("", kernel, row, elements, row.memory_us());
        std::fflush(stdout);
        all.push_back({{"operation", each.name},
                       {"dtype", std::string(lockstep::name_of(each.dtype))},
                       {"elements", each.elements},
                       {"all", to_json(sum, memory_us)},
                       {"kernels", std::move(by_kernel)}});
    }
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    fmt::print("\n{} operations in {:.0f} s\n", all.size(), seconds.count());
    // Interpreting a part of the blocks leaves NaN, which the interpreter accepts.
    for (const standin::Mistake& each : standin::mistakes()) throw std::runtime_error(each.message);
    if (options.json.empty()) return;
    lockstep::write_json(
        options.json, nlohmann::json{{"assumptions",
                                      {{"issue_per_second", issue_per_second}, {"bytes_per_second", bytes_per_second}}},
                                     {"interpreted_blocks", options.most_blocks},
                                     {"operations", std::move(all)}});
}

}  // namespace emulated
