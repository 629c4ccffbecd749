#include "lockstep/tests/ptx/warp.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <climits>

namespace lockstep::ptx {

namespace {

/// Number of lanes. A full warp is the usual case, and counting bits is a call without the popcnt instruction.
unsigned count_of(LaneMask lanes) {
    if (lanes == all_lanes) return warp_size;
    return (lanes & (lanes - 1)) == 0 ? (lanes != 0 ? 1u : 0u) : static_cast<unsigned>(std::popcount(lanes));
}

}  // namespace

Warp::Warp(LaunchState& launch, unsigned number) : launch_(launch), kernel_(launch.kernel), number_(number) {
    const Dim3& block = launch.options.block;
    const Dim3& grid = launch.options.grid;
    registers_.resize(static_cast<std::size_t>(kernel_.registers) * warp_size);
    defined_at_start_.resize(static_cast<std::size_t>(kernel_.registers));
    std::fill_n(defined_at_start_.begin(), special_registers, all_lanes);
    for (const auto& [holder, value] : kernel_.constants) {
        std::fill_n(lanes_of(holder), warp_size, value);
        defined_at_start_[static_cast<std::size_t>(holder)] = all_lanes;
    }
    for (int lane = 0; lane < warp_size; ++lane) {
        const std::uint64_t index = thread(lane);
        if (index < block.count()) existing_ |= LaneMask{1} << lane;
        const auto set = [&](int number_of, Slot value) { lanes_of(number_of)[lane] = value; };
        set(tid_x, index % block.x);
        set(tid_y, index / block.x % block.y);
        set(tid_z, index / block.x / block.y);
        set(ntid_x, block.x);
        set(ntid_y, block.y);
        set(ntid_z, block.z);
        set(nctaid_x, grid.x);
        set(nctaid_y, grid.y);
        set(nctaid_z, grid.z);
        set(laneid, static_cast<Slot>(lane));
        set(warpid, number);
        const LaneMask own = LaneMask{1} << lane;
        set(lanemask_eq, own);
        set(lanemask_lt, own - 1);
        set(lanemask_le, own | (own - 1));
        set(lanemask_gt, ~(own | (own - 1)));
        set(lanemask_ge, ~(own - 1));
    }
    local_.resize(kernel_.local_bytes * warp_size);
    local_fill_.resize(local_.size());
}

void Warp::start_block() {
    const Dim3& grid = launch_.options.grid;
    std::fill_n(lanes_of(ctaid_x), warp_size, launch_.block % grid.x);
    std::fill_n(lanes_of(ctaid_y), warp_size, launch_.block / grid.x % grid.y);
    std::fill_n(lanes_of(ctaid_z), warp_size, launch_.block / grid.x / grid.y);
    defined_ = defined_at_start_;
    low_half_only_.assign(defined_.size(), 0);
    std::fill(local_fill_.begin(), local_fill_.end(), Fill::unset);
    places_.fill(0);
    alive_ = existing_;
    at_exchange_ = at_barrier_ = 0;
    warp_epoch_ = 0;
    fences_.fill({});
    issued_ = 0;
}

void Warp::pass_barrier() {
    for_each_lane(at_barrier_, [&](int lane) { ++places_[static_cast<std::size_t>(lane)]; });
    at_barrier_ = 0;
}

Point Warp::point(int lane) const {
    return {launch_.number,
            static_cast<std::uint32_t>(launch_.block),
            static_cast<std::uint16_t>(thread(lane)),
            launch_.block_epoch,
            warp_epoch_,
            fences_[static_cast<std::size_t>(lane)].count};
}

LaneMask Warp::bits_of(int number, LaneMask lanes) {
    const Slot* const slots = lanes_of(number);
    LaneMask bits = 0;
    if (lanes != all_lanes) {
        for_each_lane(lanes, [&](int lane) { bits |= static_cast<LaneMask>(slots[lane] & 1) << lane; });
        return bits;
    }
    for (unsigned lane = 0; lane < warp_size; ++lane) bits |= static_cast<LaneMask>(slots[lane] & 1) << lane;
    return bits;
}

// ---- control flow ----

void Warp::run() {
    const unsigned quantum = launch_.options.schedule.quantum;
    const std::uint64_t turn = quantum == 0 ? std::uint64_t{100'000} : quantum;
    turn_ends_ = issued_ + turn;
    while (ready() != 0 && issued_ < turn_ends_) {
        LaneMask group = 0;
        int place = 0, others = INT_MAX;
        choose(group, place, others);
        run_group(group, place, others);
        if (issued_ > launch_.options.most_instructions) {
            const int lane = std::countr_zero(existing_);
            launch_.stop(FaultKind::endless, kernel_.code[static_cast<std::size_t>(place)], thread(lane),
                         fmt::format("a warp does not end within {} instructions", issued_));
        }
    }
}

// Lanes that are behind run first, so that lanes that took different branches meet again where the branches do.
void Warp::choose(LaneMask& group, int& place, int& others) {
    const Schedule& schedule = launch_.options.schedule;
    const LaneMask lanes = ready();
    if (schedule.lanes == Schedule::Lanes::one_by_one) {
        int lane = std::countr_zero(lanes);
        if (schedule.order == Schedule::Order::descending) lane = warp_size - 1 - std::countl_zero(lanes);
        if (schedule.order == Schedule::Order::shuffled) {
            auto skipped = static_cast<int>(launch_.random() % static_cast<unsigned>(std::popcount(lanes)));
            LaneMask rest = lanes;
            for (; skipped > 0; --skipped) rest &= rest - 1;
            lane = std::countr_zero(rest);
        }
        group = LaneMask{1} << lane;
        place = this->place(lane);
        return;
    }
    place = INT_MAX;
    for_each_lane(lanes, [&](int lane) {
        const int at = this->place(lane);
        if (at < place) {
            others = place;
            place = at;
            group = 0;
        } else if (at > place) {
            others = std::min(others, at);
        }
        if (at == place) group |= LaneMask{1} << lane;
    });
}

void Warp::move_to(LaneMask lanes, int place) {
    for_each_lane(lanes, [&](int lane) { places_[static_cast<std::size_t>(lane)] = place; });
}

LaneMask Warp::guarded(const Instruction& instruction, LaneMask group) {
    if (const LaneMask undefined = group & ~defined(instruction.guard); undefined != 0)
        launch_.report(FaultKind::unset, instruction, thread(std::countr_zero(undefined)),
                       "a condition depends on an unset value");
    const LaneMask bits = bits_of(instruction.guard, group);
    return instruction.guard_negated ? group & ~bits : bits;
}

/// Runs lanes that are at `place` until they wait, part, end, reach `others` or have used their turn.
void Warp::run_group(LaneMask group, int place, int others) {
    Counters& counters = launch_.counters;
    while (place < others && issued_ < turn_ends_) {
        const Instruction& instruction = kernel_.code[static_cast<std::size_t>(place)];
        const LaneMask lanes = instruction.guard < 0 ? group : guarded(instruction, group);
        ++issued_;
        ++counters.issued[static_cast<std::size_t>(instruction.issue)];
        counters.thread_instructions += count_of(lanes);
        counters.executed[static_cast<std::size_t>(place)] = 1;
        if (instruction.kind == Kind::branch) {
            const auto target = static_cast<int>(instruction.offset);
            if (lanes != 0 && lanes != group) {
                ++counters.divergent_branches;
                move_to(lanes, target);
                move_to(group & ~lanes, place + 1);
                return;
            }
            place = lanes != 0 ? target : place + 1;
            continue;
        }
        if (lanes != 0) {
            switch (instruction.kind) {
                case Kind::compute: compute(instruction, lanes); break;
                case Kind::load:
                case Kind::store:
                case Kind::atomic: access(instruction, lanes, place); break;
                case Kind::fence: fence(lanes); break;
                case Kind::active_mask:
                    for_each_lane(lanes, [&](int lane) { lanes_of(instruction.out[0])[lane] = lanes; });
                    defined(instruction.out[0]) |= lanes;
                    break;
                case Kind::shuffle:
                case Kind::vote:
                case Kind::warp_barrier:
                    if (exchange(instruction, lanes, place)) break;
                    move_to(group & ~lanes, place + 1);
                    return;
                case Kind::block_barrier:
                    move_to(lanes, place);
                    at_barrier_ |= lanes;
                    group &= ~lanes;
                    break;
                case Kind::exit:
                    alive_ &= ~lanes;
                    group &= ~lanes;
                    break;
                case Kind::trap: launch_.stop(FaultKind::trap, instruction, thread(std::countr_zero(lanes)), "trap");
                case Kind::branch: break;
            }
        }
        if (group == 0) return;
        ++place;
    }
    move_to(group, place);
}

// ---- arithmetic ----

void Warp::compute(const Instruction& instruction, LaneMask lanes) {
    const Slot* in[5] = {};
    LaneMask known = all_lanes;
    for (int i = 0; i < instruction.operation->inputs; ++i) {
        const int number = instruction.in[static_cast<std::size_t>(i)];
        in[i] = lanes_of(number);
        known &= defined(number);
    }
    if (instruction.selects) {
        const LaneMask first = bits_of(instruction.in[2], lanes);
        known =
            defined(instruction.in[2]) & ((first & defined(instruction.in[0])) | (~first & defined(instruction.in[1])));
    }
    if (instruction.reads_low_half) known = low_half_defined(instruction.in[0]);
    const LaneMask low_half = instruction.keeps_low_half ? low_half_defined(instruction.in[0]) : known;
    if (instruction.divides)
        for_each_lane(lanes & known, [&](int lane) {
            if (in[1][lane] == 0)
                launch_.report(FaultKind::division, instruction, thread(lane), "an integer is divided by zero");
        });
    instruction.operation->run(lanes_of(instruction.out[0]), in, lanes);
    define(instruction.out[0], lanes, known, low_half);
}

// ---- exchange between lanes ----

/// Whether all lanes of the group have exchanged and continue together; if not, places and waiting lanes are up to
/// date.
bool Warp::exchange(const Instruction& instruction, LaneMask group, int place) {
    const Slot* const masks = lanes_of(instruction.in[3]);
    const auto run = [&](LaneMask lanes) {
        if (instruction.kind == Kind::shuffle) shuffle(instruction, lanes);
        if (instruction.kind == Kind::vote) vote(instruction, lanes);
        if (instruction.kind == Kind::warp_barrier) ++warp_epoch_;
    };
    bool together = true;
    for (LaneMask rest = group; rest != 0;) {
        const int first = std::countr_zero(rest);
        const auto members = static_cast<LaneMask>(masks[first]);
        LaneMask same = 0;
        for_each_lane(
            rest, [&](int lane) { same |= static_cast<LaneMask>(masks[lane]) == members ? LaneMask{1} << lane : 0; });
        rest &= ~same;
        if ((same & ~members) != 0)
            launch_.stop(FaultKind::lanes, instruction, thread(std::countr_zero(same & ~members)),
                         "the membermask leaves out its own lane");
        if ((members & ~alive_) != 0)
            launch_.stop(FaultKind::lanes, instruction, thread(first),
                         fmt::format("the membermask {:#x} names lane {}, which has ended or does not exist", members,
                                     std::countr_zero(members & ~alive_)));
        if (same == members && same == group) {
            run(members);
            return true;
        }
        together = false;
        move_to(same, place);
        at_exchange_ |= same;
        LaneMask arrived = 0;
        for_each_lane(at_exchange_ & members, [&](int lane) {
            if (this->place(lane) == place && static_cast<LaneMask>(masks[lane]) == members)
                arrived |= LaneMask{1} << lane;
        });
        if (arrived != members) continue;
        run(members);
        at_exchange_ &= ~members;
        move_to(members, place + 1);
    }
    return together;
}

void Warp::shuffle(const Instruction& instruction, LaneMask lanes) {
    std::array<Slot, warp_size> values;
    std::copy_n(lanes_of(instruction.in[0]), warp_size, values.begin());
    const LaneMask known = defined(instruction.in[0]);
    LaneMask inside = 0, result_known = 0;
    for_each_lane(lanes, [&](int lane) {
        const auto by = static_cast<int>(lanes_of(instruction.in[1])[lane] & 31);
        const auto clamp_and_segments = static_cast<int>(lanes_of(instruction.in[2])[lane]);
        const int clamp = clamp_and_segments & 31, segments = clamp_and_segments >> 8 & 31;
        const int last = (lane & segments) | (clamp & ~segments);
        int from = 0;
        switch (instruction.exchange) {
            case Exchange::up: from = lane - by; break;
            case Exchange::down: from = lane + by; break;
            case Exchange::butterfly: from = lane ^ by; break;
            default: from = (lane & segments) | (by & ~segments); break;
        }
        const bool in_segment = instruction.exchange == Exchange::up ? from >= last : from <= last;
        if (!in_segment) from = lane;
        const bool takes_part = (lanes >> from & 1) != 0;
        if (!takes_part)
            launch_.report(FaultKind::lanes, instruction, thread(lane),
                           fmt::format("a shuffle reads lane {}, which takes no part", from));
        lanes_of(instruction.out[0])[lane] = values[static_cast<std::size_t>(from)];
        result_known |= (takes_part ? known >> from & 1 : 1) << lane;
        inside |= static_cast<LaneMask>(in_segment) << lane;
    });
    define(instruction.out[0], lanes, result_known);
    if (instruction.out[1] < 0) return;
    for_each_lane(lanes, [&](int lane) { lanes_of(instruction.out[1])[lane] = inside >> lane & 1; });
    defined(instruction.out[1]) |= lanes;
}

void Warp::vote(const Instruction& instruction, LaneMask lanes) {
    if (const LaneMask undefined = lanes & ~defined(instruction.in[0]); undefined != 0)
        launch_.report(FaultKind::unset, instruction, thread(std::countr_zero(undefined)),
                       "a vote depends on an unset value");
    const LaneMask yes = bits_of(instruction.in[0], lanes);
    Slot result = yes;  // ballot
    if (instruction.exchange == Exchange::all) result = yes == lanes;
    if (instruction.exchange == Exchange::any) result = yes != 0;
    if (instruction.exchange == Exchange::uniform) result = yes == 0 || yes == lanes;
    for_each_lane(lanes, [&](int lane) { lanes_of(instruction.out[0])[lane] = result; });
    defined(instruction.out[0]) |= lanes;
}

}  // namespace lockstep::ptx
