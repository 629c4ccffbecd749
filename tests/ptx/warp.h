// One warp: its registers, its lanes' places in the code, and what it shares with its block.
#pragma once

#include <bit>
#include <random>
#include <set>

#include "lockstep/tests/ptx/machine.h"

namespace lockstep::ptx {

template <class F>
inline void for_each_lane(LaneMask lanes, F f) {
    for (; lanes != 0; lanes &= lanes - 1) f(std::countr_zero(lanes));
}

/// Ends a launch after a fault that would have ended it on a card.
struct Stop {};

/// State of a launch that its warps share.
struct LaunchState {
    LaunchState(const Module& its_module, const Kernel& its_kernel, const std::vector<std::byte>& its_parameters,
                const LaunchOptions& its_options, Memory& its_memory);

    const Module& module;
    const Kernel& kernel;
    const std::vector<std::byte>& parameters;
    const LaunchOptions& options;
    Memory& memory;
    std::uint32_t number;
    std::mt19937_64 random;
    std::vector<std::byte> shared;
    Shadow shared_shadow;
    Publications publications;
    Counters counters;
    std::vector<Fault> faults;
    std::set<std::pair<FaultKind, int>> reported;

    std::uint64_t block = 0;
    std::uint16_t block_epoch = 0;

    /// Memory that an instruction found last: the part that the launch declared.
    struct Window {
        Allocation* allocation = nullptr;
        std::uintptr_t begin = 0, end = 0;
    };
    std::vector<Window> windows;  // by instruction

    void report(FaultKind kind, const Instruction& instruction, std::uint64_t thread, const std::string& what);
    [[noreturn]] void stop(FaultKind kind, const Instruction& instruction, std::uint64_t thread,
                           const std::string& what);
};

class Warp {
public:
    Warp(LaunchState& launch, unsigned number);

    void start_block();
    /// Runs until all lanes wait or have ended, or the turn is over.
    void run();
    bool has_ended() const { return alive_ == 0; }
    LaneMask ready() const { return alive_ & ~at_exchange_ & ~at_barrier_; }
    LaneMask alive() const { return alive_; }
    LaneMask ended() const { return existing_ & ~alive_; }
    LaneMask at_barrier() const { return at_barrier_; }
    LaneMask at_exchange() const { return at_exchange_; }
    int place(int lane) const { return places_[static_cast<std::size_t>(lane)]; }
    std::uint64_t thread(int lane) const { return std::uint64_t{number_} * warp_size + static_cast<unsigned>(lane); }
    void pass_barrier();

private:
    Slot* lanes_of(int number) { return registers_.data() + static_cast<std::size_t>(number) * warp_size; }
    LaneMask& defined(int number) { return defined_[static_cast<std::size_t>(number)]; }
    /// Lanes that have at least the low half of the register.
    LaneMask low_half_defined(int number) const {
        return defined_[static_cast<std::size_t>(number)] | low_half_only_[static_cast<std::size_t>(number)];
    }
    /// The result of an instruction in `lanes` is set in those of `known`.
    void define(int number, LaneMask lanes, LaneMask known) { define(number, lanes, known, known); }
    void define(int number, LaneMask lanes, LaneMask known, LaneMask low_half) {
        LaneMask& result = defined(number);
        result = (result & ~lanes) | (known & lanes);
        LaneMask& only = low_half_only_[static_cast<std::size_t>(number)];
        only = (only & ~lanes) | (low_half & ~known & lanes);
    }
    LaneMask bits_of(int number, LaneMask lanes);
    Point point(int lane) const;

    void choose(LaneMask& group, int& place, int& others);
    void run_group(LaneMask group, int place, int others);
    void move_to(LaneMask lanes, int place);
    LaneMask guarded(const Instruction& instruction, LaneMask group);

    void compute(const Instruction& instruction, LaneMask lanes);

    /// Memory of one lane's access. `fill` is what a load reads.
    struct Located {
        std::byte* memory;
        Fill fill;
    };
    void access(const Instruction& instruction, LaneMask lanes, int place);
    Located locate(const Instruction& instruction, int lane, int place, Fill stored);
    Located locate_global(const Instruction& instruction, int lane, int place, std::uintptr_t address, Fill stored);
    Located locate_shared(const Instruction& instruction, int lane, std::size_t offset, Fill stored);
    Located locate_local(const Instruction& instruction, int lane, std::size_t offset, Fill stored);
    Fill report_unset(const Instruction& instruction, int lane, const char* space);
    void require_inside(const Instruction& instruction, int lane, std::size_t offset, std::size_t size,
                        const char* space);
    void find_window(const Instruction& instruction, int lane, LaunchState::Window& window, std::uintptr_t address);
    Fill note(const Instruction& instruction, int lane, Shadow& shadow, std::size_t offset, Fill stored,
              const char* space);
    void count_sector(const Instruction& instruction, Allocation& allocation, std::uintptr_t address);

    void publish(int lane, std::uintptr_t address);
    void fence(LaneMask lanes);

    bool exchange(const Instruction& instruction, LaneMask group, int place);
    void shuffle(const Instruction& instruction, LaneMask lanes);
    void vote(const Instruction& instruction, LaneMask lanes);

    LaunchState& launch_;
    const Kernel& kernel_;
    unsigned number_;
    LaneMask existing_ = 0, alive_ = 0, at_exchange_ = 0, at_barrier_ = 0;
    std::array<int, warp_size> places_{};
    std::vector<Slot> registers_;
    std::vector<LaneMask> defined_, defined_at_start_;
    std::vector<LaneMask> low_half_only_;  ///< lanes in which the high half of a packed register is not set
    std::vector<std::byte> local_;
    std::vector<Fill> local_fill_;
    std::uint16_t warp_epoch_ = 0;
    struct LaneFences {
        std::uint16_t count = 0;
        Point last;
        std::uintptr_t address = 0;  ///< address of the last atomic operation
        std::size_t received = 0;    ///< publications that it received, until the next fence
    };
    std::array<LaneFences, warp_size> fences_;
    std::uint64_t issued_ = 0;
    std::uint64_t turn_ends_ = 0;
    std::vector<std::uintptr_t> sectors_;  // touched by the access that is being executed
};

}  // namespace lockstep::ptx
