// Accesses of warps to memory: where they are, whether they may be there, what they move.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "lockstep/tests/ptx/warp.h"

namespace lockstep::ptx {

namespace {

AccessKind access_kind(const Instruction& instruction) {
    if (instruction.kind == Kind::load) return AccessKind::read;
    return instruction.kind == Kind::store ? AccessKind::write : AccessKind::atomic;
}

const char* verb(const Instruction& instruction) { return instruction.kind == Kind::load ? "read" : "write"; }

std::size_t size_of(const Instruction& instruction) { return std::size_t{instruction.bytes} * instruction.elements; }

Slot load_value(const std::byte* from, std::size_t bytes, bool extends_sign) {
    Slot value = 0;
    std::memcpy(&value, from, bytes);
    if (!extends_sign) return value;
    const auto unused = static_cast<int>(64 - 8 * bytes);
    return static_cast<Slot>(static_cast<std::int64_t>(value << unused) >> unused);
}

}  // namespace

void Warp::access(const Instruction& instruction, LaneMask lanes, int place) {
    if (const LaneMask undefined = lanes & ~defined(instruction.in[0]); undefined != 0)
        launch_.stop(FaultKind::unset, instruction, thread(std::countr_zero(undefined)),
                     "an address depends on an unset value");
    const bool stores = instruction.kind == Kind::store;
    const std::size_t elements = instruction.elements;
    LaneMask stored = all_lanes;
    for (std::size_t i = 1; i < instruction.in.size() && instruction.in[i] >= 0; ++i)
        stored &= defined(instruction.in[i]);
    LaneMask loaded = 0;
    sectors_.clear();
    for_each_lane(lanes, [&](int lane) {
        const bool known = (stored >> lane & 1) != 0;
        const Located at = locate(instruction, lane, place, known ? Fill::set : Fill::undefined);
        if (at.fill == Fill::set) loaded |= LaneMask{1} << lane;
        if (instruction.kind == Kind::atomic) {
            Slot* const old = lanes_of(instruction.out[0]);
            old[lane] = load_value(at.memory, instruction.bytes, false);
            // Separate slots for the operation's first input and its result.
            std::array<Slot, warp_size> before{}, after{};
            before[static_cast<std::size_t>(lane)] = old[lane];
            const Slot* in[3] = {before.data(), lanes_of(instruction.in[1]), nullptr};
            if (instruction.in[2] >= 0) in[2] = lanes_of(instruction.in[2]);
            instruction.operation->run(after.data(), in, LaneMask{1} << lane);
            std::memcpy(at.memory, &after[static_cast<std::size_t>(lane)], instruction.bytes);
            return;
        }
        for (std::size_t i = 0; i < elements; ++i) {
            std::byte* const element = at.memory + i * instruction.bytes;
            if (stores) {
                std::memcpy(element, lanes_of(instruction.in[i + 1]) + lane, instruction.bytes);
            } else {
                lanes_of(instruction.out[i])[lane] = load_value(element, instruction.bytes, instruction.extends_sign);
            }
        }
    });
    if (!sectors_.empty()) {
        std::sort(sectors_.begin(), sectors_.end());
        ++launch_.counters.requests;
        launch_.counters.sectors +=
            static_cast<std::uint64_t>(std::unique(sectors_.begin(), sectors_.end()) - sectors_.begin());
    }
    if (stores) return;
    for (std::size_t i = 0; i < elements; ++i) define(instruction.out[i], lanes, loaded);
}

Warp::Located Warp::locate(const Instruction& instruction, int lane, int place, Fill stored) {
    Slot address = lanes_of(instruction.in[0])[lane] + static_cast<Slot>(instruction.offset);
    Space space = instruction.space;
    if (space == Space::generic) {
        space = Space::global;
        for (const Space each : {Space::shared, Space::local, Space::param})
            if (address >> window_bits == static_cast<Slot>(each)) space = each;
        address -= window(space);
    }
    switch (space) {
        case Space::shared: return locate_shared(instruction, lane, address & 0xffffffffu, stored);
        case Space::local: return locate_local(instruction, lane, address, stored);
        case Space::param:
            require_inside(instruction, lane, address, launch_.parameters.size(), "the parameters");
            if (instruction.kind != Kind::load)
                launch_.stop(FaultKind::out_of_bounds, instruction, thread(lane), "write to a parameter");
            return {const_cast<std::byte*>(launch_.parameters.data()) + address, Fill::set};
        default: return locate_global(instruction, lane, place, address, stored);
    }
}

Warp::Located Warp::locate_global(const Instruction& instruction, int lane, int place, std::uintptr_t address,
                                  Fill stored) {
    const std::size_t bytes = size_of(instruction);
    if (address % bytes != 0)
        launch_.stop(FaultKind::misaligned, instruction, thread(lane),
                     fmt::format("{} of {} bytes at {:#x} in global memory", verb(instruction), bytes, address));
    LaunchState::Window& window = launch_.windows[static_cast<std::size_t>(place)];
    if (address < window.begin || address + bytes > window.end) find_window(instruction, lane, window, address);
    Allocation& allocation = *window.allocation;
    if (stored != Fill::set)
        launch_.report(FaultKind::unset, instruction, thread(lane),
                       "global memory is given a value that depends on an unset one");
    const Fill fill = note(instruction, lane, allocation.shadow, address - allocation.base, stored, "global");
    if (instruction.kind == Kind::atomic) publish(lane, address);
    count_sector(instruction, allocation, address);
    return {reinterpret_cast<std::byte*>(address), fill};
}

void Warp::find_window(const Instruction& instruction, int lane, LaunchState::Window& window, std::uintptr_t address) {
    const std::size_t bytes = size_of(instruction);
    const bool writes = instruction.kind != Kind::load;
    Allocation* const found = launch_.memory.find(address, bytes);
    if (found == nullptr)
        launch_.stop(
            FaultKind::out_of_bounds, instruction, thread(lane),
            fmt::format("{} of {} bytes at {:#x}, which no allocation holds", verb(instruction), bytes, address));
    if (writes && !found->writable)
        launch_.stop(FaultKind::out_of_bounds, instruction, thread(lane), "write to memory that is read-only");
    window = {found, found->begin, found->end};
    if (!launch_.options.declared || !found->writable) return;
    std::string nearest;
    for (const Declared& each : *launch_.options.declared) {
        const auto begin = reinterpret_cast<std::uintptr_t>(each.begin), end = begin + each.bytes;
        if (address >= begin && address + bytes <= end && (each.written || !writes)) {
            window = {found, std::max(begin, found->begin), std::min(end, found->end)};
            return;
        }
        if (begin >= found->begin && begin < found->end)
            nearest += fmt::format("; {} bytes from {:+} are declared as {}", each.bytes,
                                   static_cast<std::int64_t>(begin - address), each.written ? "written" : "read");
    }
    // The rest of the allocation is not declared either way: the next access looks again.
    window.begin = window.end = 0;
    launch_.report(FaultKind::undeclared, instruction, thread(lane),
                   fmt::format("{} of {} bytes that the launch has not declared{}", verb(instruction), bytes, nearest));
}

Warp::Located Warp::locate_shared(const Instruction& instruction, int lane, std::size_t offset, Fill stored) {
    require_inside(instruction, lane, offset, launch_.shared.size(), "shared memory");
    const Fill fill = note(instruction, lane, launch_.shared_shadow, offset, stored, "shared");
    return {launch_.shared.data() + offset, fill};
}

Warp::Located Warp::locate_local(const Instruction& instruction, int lane, std::size_t offset, Fill stored) {
    require_inside(instruction, lane, offset, kernel_.local_bytes, "local memory");
    const std::size_t first = static_cast<std::size_t>(lane) * kernel_.local_bytes + offset,
                      bytes = size_of(instruction);
    Fill fill = Fill::set;
    if (instruction.kind != Kind::store) {
        for (std::size_t i = 0; i < bytes; ++i) fill = std::min(fill, local_fill_[first + i]);
        if (fill == Fill::unset) fill = report_unset(instruction, lane, "local");
    }
    if (instruction.kind != Kind::load)
        std::fill_n(local_fill_.begin() + static_cast<std::ptrdiff_t>(first), bytes, stored);
    return {local_.data() + first, fill};
}

/// The value counts as set from here on: one fault is one report.
Fill Warp::report_unset(const Instruction& instruction, int lane, const char* space) {
    launch_.report(FaultKind::unset, instruction, thread(lane),
                   fmt::format("read of {} memory that nothing was written to", space));
    return Fill::set;
}

void Warp::require_inside(const Instruction& instruction, int lane, std::size_t offset, std::size_t size,
                          const char* space) {
    const std::size_t bytes = size_of(instruction);
    const auto what = [&] {
        return fmt::format("{} of {} bytes at {} of {} in {}", verb(instruction), bytes, offset, size, space);
    };
    if (offset > size || bytes > size - offset)
        launch_.stop(FaultKind::out_of_bounds, instruction, thread(lane), what());
    if (offset % bytes != 0) launch_.stop(FaultKind::misaligned, instruction, thread(lane), what());
}

/// Notes an access in the history of its memory and reports what is wrong with it.
Fill Warp::note(const Instruction& instruction, int lane, Shadow& shadow, std::size_t offset, Fill stored,
                const char* space) {
    const bool is_shared = &shadow == &launch_.shared_shadow;
    const Shadow::Outcome outcome = shadow.access(offset, size_of(instruction), access_kind(instruction), point(lane),
                                                  stored, is_shared ? nullptr : &launch_.publications);
    if (outcome.race != Race::none) {
        const char* const how = outcome.race == Race::write_write ? "written while another thread writes it"
                                : instruction.kind == Kind::load  ? "read while another thread writes it"
                                                                  : "written while another thread reads it";
        launch_.report(FaultKind::race, instruction, thread(lane),
                       fmt::format("{} memory is {} (block {}, thread {})", space, how, outcome.other.block,
                                   outcome.other.thread));
    }
    return outcome.fill == Fill::unset ? report_unset(instruction, lane, space) : outcome.fill;
}

/// Makes the accesses before the lane's last fence visible to later atomic operations at the address.
void Warp::publish(int lane, std::uintptr_t address) {
    LaneFences& own = fences_[static_cast<std::size_t>(lane)];
    own.address = address;
    own.received = launch_.publications.count(address);
    if (own.count > 0) launch_.publications.publish(address, own.last);
}

void Warp::fence(LaneMask lanes) {
    for_each_lane(lanes, [&](int lane) {
        LaneFences& own = fences_[static_cast<std::size_t>(lane)];
        ++own.count;
        own.last = point(lane);
        launch_.publications.receive(own.address, std::exchange(own.received, 0), own.last);
    });
}

void Warp::count_sector(const Instruction& instruction, Allocation& allocation, std::uintptr_t address) {
    // Aligned accesses of at most 16 bytes are in one sector.
    const std::uintptr_t sector = address / sector_bytes;
    if (sectors_.empty() || sectors_.back() != sector) sectors_.push_back(sector);
    auto& touched = instruction.kind == Kind::load ? allocation.sectors_read : allocation.sectors_written;
    std::uint32_t& last_launch = touched[sector - allocation.base / sector_bytes];
    if (last_launch == launch_.number) return;
    last_launch = launch_.number;
    ++launch_.counters.compulsory_sectors;
}

}  // namespace lockstep::ptx
