// Runs kernels block by block, with every access checked, and counts what a card would do.
#pragma once

#include <array>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/tests/ptx/memory.h"
#include "lockstep/tests/ptx/program.h"

namespace lockstep::ptx {

enum class FaultKind : std::uint8_t {
    out_of_bounds,
    misaligned,
    undeclared,
    unset,
    race,
    barrier,
    lanes,
    division,
    trap,
    endless,
    launch,
};
std::string_view name_of(FaultKind kind);

/// One message per kind and instruction.
struct Fault {
    FaultKind kind;
    std::string message;  ///< with kernel, source line, block and thread
};

/// An order in which threads may run on a card. A right kernel computes the same in all of them.
struct Schedule {
    enum class Order : std::uint8_t { ascending, descending, shuffled };
    /// All lanes of a warp that are at the same instruction, or one lane until it waits for others.
    enum class Lanes : std::uint8_t { together, one_by_one };

    const char* name;
    Order order;
    Lanes lanes;
    unsigned quantum;  ///< instructions after which another warp runs; 0: when the warp waits
};
/// All lanes together, as on a card. Counts are taken from this schedule.
inline constexpr Schedule lockstep_schedule{"lockstep", Schedule::Order::ascending, Schedule::Lanes::together, 0};
inline constexpr std::array<Schedule, 4> schedules{
    lockstep_schedule, Schedule{"reversed", Schedule::Order::descending, Schedule::Lanes::together, 40},
    Schedule{"lane by lane", Schedule::Order::descending, Schedule::Lanes::one_by_one, 0},
    Schedule{"shuffled", Schedule::Order::shuffled, Schedule::Lanes::one_by_one, 25}};

/// Global memory that a launch declares to access.
struct Declared {
    const void* begin;
    std::size_t bytes;
    bool written;
};

struct Dim3 {
    unsigned x = 1, y = 1, z = 1;
    std::uint64_t count() const { return std::uint64_t{x} * y * z; }
};

struct LaunchOptions {
    Dim3 grid, block;
    std::size_t dynamic_shared = 0;
    std::optional<std::vector<Declared>> declared;       ///< null: all memory may be accessed
    std::uint64_t most_interpreted = ~std::uint64_t{0};  ///< blocks, in the middle of the grid; others do nothing
    Schedule schedule = lockstep_schedule;
    std::uint64_t seed = 1;                         ///< for a shuffled schedule
    std::uint64_t most_instructions = 100'000'000;  ///< limit per warp, beyond which it counts as endless
};

struct Counters {
    std::uint64_t launches = 0, blocks = 0, threads = 0;
    std::array<std::uint64_t, static_cast<std::size_t>(Issue::count)> issued{};  ///< instructions of warps, by class
    std::uint64_t thread_instructions = 0;
    std::uint64_t requests = 0;            ///< accesses of warps to global memory
    std::uint64_t sectors = 0;             ///< sectors of 32 bytes that the requests took
    std::uint64_t compulsory_sectors = 0;  ///< different sectors that a launch read, and that it wrote
    std::uint64_t divergent_branches = 0;
    std::vector<char> executed;  ///< by instruction of the kernel

    std::uint64_t of(Issue issue) const { return issued[static_cast<std::size_t>(issue)]; }
    std::uint64_t instructions() const;
    void add(const Counters& other);
};

struct Report {
    std::vector<Fault> faults;
    Counters counters;
};

class Machine {
public:
    /// Both must outlive the machine. The module's global variables become part of the memory.
    Machine(Module& module, Memory& memory);
    ~Machine();
    Machine(const Machine&) = delete;
    Machine& operator=(const Machine&) = delete;

    /// Runs a kernel until it ends, or until a fault that would end it on a card. Throws std::runtime_error if the
    /// kernel has an unknown instruction.
    Report launch(const Kernel& kernel, const std::vector<std::byte>& parameters, const LaunchOptions& options);

private:
    Module& module_;
    Memory& memory_;
};

}  // namespace lockstep::ptx
