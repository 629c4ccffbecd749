#include "lockstep/tests/ptx/machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <numeric>
#include <stdexcept>

#include "lockstep/tests/ptx/warp.h"

namespace lockstep::ptx {

std::string_view name_of(FaultKind kind) {
    static constexpr std::string_view names[] = {
        "out of bounds",    "misaligned", "undeclared access", "unset value", "race", "barrier", "lanes",
        "division by zero", "trap",       "endless",           "launch"};
    return names[static_cast<std::size_t>(kind)];
}

std::uint64_t Counters::instructions() const { return std::accumulate(issued.begin(), issued.end(), std::uint64_t{0}); }

void Counters::add(const Counters& other) {
    launches += other.launches;
    blocks += other.blocks;
    threads += other.threads;
    for (std::size_t i = 0; i < issued.size(); ++i) issued[i] += other.issued[i];
    thread_instructions += other.thread_instructions;
    requests += other.requests;
    sectors += other.sectors;
    compulsory_sectors += other.compulsory_sectors;
    divergent_branches += other.divergent_branches;
    executed.resize(std::max(executed.size(), other.executed.size()));
    for (std::size_t i = 0; i < other.executed.size(); ++i)
        if (other.executed[i] != 0) executed[i] = 1;
}

// ---- state of a launch ----

LaunchState::LaunchState(const Module& its_module, const Kernel& its_kernel,
                         const std::vector<std::byte>& its_parameters, const LaunchOptions& its_options,
                         Memory& its_memory)
    : module(its_module),
      kernel(its_kernel),
      parameters(its_parameters),
      options(its_options),
      memory(its_memory),
      number(its_memory.next_launch()),
      random(its_options.seed),
      shared(its_kernel.shared_bytes + its_options.dynamic_shared),
      shared_shadow(shared.size(), Fill::unset),
      windows(its_kernel.code.size()) {
    counters.executed.resize(kernel.code.size());
}

void LaunchState::report(FaultKind kind, const Instruction& instruction, std::uint64_t thread,
                         const std::string& what) {
    if (!reported.insert({kind, instruction.line}).second) return;
    faults.push_back({kind, fmt::format("{}: {}; {} (PTX line {}), block {}, thread {}, {} schedule, kernel {}",
                                        name_of(kind), what, module.where(instruction.line), instruction.line, block,
                                        thread, options.schedule.name, kernel.name)});
}

void LaunchState::stop(FaultKind kind, const Instruction& instruction, std::uint64_t thread, const std::string& what) {
    report(kind, instruction, thread, what);
    throw Stop();
}

// ---- blocks ----

namespace {

class Block {
public:
    explicit Block(LaunchState& launch) : launch_(launch) {
        const std::uint64_t threads = launch.options.block.count();
        for (unsigned i = 0; std::uint64_t{i} * warp_size < threads; ++i) warps_.emplace_back(launch, i);
        order_.resize(warps_.size());
        std::iota(order_.begin(), order_.end(), std::size_t{0});
        if (launch.options.schedule.order == Schedule::Order::descending) std::reverse(order_.begin(), order_.end());
    }

    void run(std::uint64_t number) {
        launch_.block = number;
        launch_.block_epoch = 0;
        launch_.shared_shadow.reset(Fill::unset);
        launch_.publications.start_block();
        for (Warp& each : warps_) each.start_block();
        do {
            while (run_ready_warps()) continue;
        } while (pass_barrier());
    }

private:
    bool run_ready_warps() {
        if (launch_.options.schedule.order == Schedule::Order::shuffled)
            std::shuffle(order_.begin(), order_.end(), launch_.random);
        bool progress = false;
        for (const std::size_t i : order_) {
            if (warps_[i].ready() == 0) continue;
            warps_[i].run();
            progress = true;
        }
        return progress;
    }

    const Instruction& instruction_of(const Warp& warp, int lane) const {
        return launch_.kernel.code[static_cast<std::size_t>(warp.place(lane))];
    }

    /// Called when no lane can run; false if all have ended.
    bool pass_barrier() {
        const Instruction* barrier = nullptr;
        std::uint64_t thread = 0, ended = 0;
        for (const Warp& each : warps_) {
            ended += static_cast<unsigned>(std::popcount(each.ended()));
            if (each.at_exchange() != 0) {
                const int lane = std::countr_zero(each.at_exchange());
                launch_.stop(FaultKind::lanes, instruction_of(each, lane), each.thread(lane),
                             "waits for lanes that do not arrive");
            }
            for (LaneMask rest = each.at_barrier(); rest != 0; rest &= rest - 1) {
                const int lane = std::countr_zero(rest);
                const Instruction* const here = &instruction_of(each, lane);
                if (barrier != nullptr && here != barrier)
                    launch_.report(
                        FaultKind::barrier, *here, each.thread(lane),
                        fmt::format("waits here while thread {} waits at PTX line {}", thread, barrier->line));
                barrier = here;
                thread = each.thread(lane);
            }
        }
        if (barrier == nullptr) return false;
        if (ended != 0)
            launch_.report(FaultKind::barrier, *barrier, thread,
                           fmt::format("{} threads have ended without this barrier", ended));
        ++launch_.block_epoch;
        for (Warp& each : warps_) each.pass_barrier();
        return true;
    }

    LaunchState& launch_;
    std::vector<Warp> warps_;
    std::vector<std::size_t> order_;
};

}  // namespace

// ---- launches ----

Machine::Machine(Module& module, Memory& memory) : module_(module), memory_(memory) {
    for (const auto& [name, bytes] : module_.globals)
        memory_.add(bytes.data(), bytes.size(), false);  // tables of the compiler
}

Machine::~Machine() {
    for (const auto& [name, bytes] : module_.globals) memory_.remove(bytes.data());
}

Report Machine::launch(const Kernel& kernel, const std::vector<std::byte>& parameters, const LaunchOptions& options) {
    if (!kernel.unknown.empty()) throw std::runtime_error("ptx: " + kernel.unknown.front());
    LaunchState launch(module_, kernel, parameters, options, memory_);
    const std::uint64_t blocks = options.grid.count(), threads = options.block.count();
    launch.counters.launches = 1;
    try {
        if (blocks == 0 || threads == 0 || threads > kernel.max_threads || parameters.size() != kernel.parameter_bytes)
            launch.stop(
                FaultKind::launch, kernel.code.front(), 0,
                fmt::format(
                    "{} blocks of {} threads with {} bytes of parameters; the kernel takes {} threads and {} bytes",
                    blocks, threads, parameters.size(), kernel.max_threads, kernel.parameter_bytes));
        const std::uint64_t interpreted = std::min(blocks, options.most_interpreted);
        std::vector<std::uint64_t> order(interpreted);
        std::iota(order.begin(), order.end(), (blocks - interpreted) / 2);
        if (options.schedule.order == Schedule::Order::descending) std::reverse(order.begin(), order.end());
        if (options.schedule.order == Schedule::Order::shuffled)
            std::shuffle(order.begin(), order.end(), launch.random);
        Block block(launch);
        for (const std::uint64_t each : order) block.run(each);
        launch.counters.blocks = interpreted;
        launch.counters.threads = interpreted * threads;
    } catch (const Stop&) {  // its fault is in the list
    }
    return {std::move(launch.faults), std::move(launch.counters)};
}

}  // namespace lockstep::ptx
