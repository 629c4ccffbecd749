#include "lockstep/tests/ptx/memory.h"

#include <algorithm>
#include <bit>
#include <stdexcept>

namespace lockstep::ptx {

// ---- publications ----

namespace {

/// Whether all of the accesses are before a fence of the same block.
bool precede(const Stamp& accesses, const Point& fence) {
    const Point& last = accesses.last;
    if (last.block_epoch != fence.block_epoch) return last.block_epoch < fence.block_epoch;
    if (accesses.several_warps || last.warp() != fence.warp()) return false;
    if (last.warp_epoch != fence.warp_epoch) return last.warp_epoch < fence.warp_epoch;
    return !accesses.several_threads && last.thread == fence.thread && last.fences < fence.fences;
}

/// Whether an access is after a fence of the same block.
bool follows(const Point& access, const Point& fence) {
    if (access.block_epoch != fence.block_epoch) return access.block_epoch > fence.block_epoch;
    if (access.warp() != fence.warp()) return false;
    if (access.warp_epoch != fence.warp_epoch) return access.warp_epoch > fence.warp_epoch;
    return access.thread == fence.thread && access.fences >= fence.fences;
}

}  // namespace

std::size_t Publications::count(std::uintptr_t address) const {
    const auto found = published_.find(address);
    return found == published_.end() ? 0 : found->second.size();
}

void Publications::publish(std::uintptr_t address, const Point& fence) {
    auto& all = published_[address];
    all.emplace(fence.block, Published{all.size(), fence});
}

void Publications::receive(std::uintptr_t address, std::size_t count, const Point& fence) {
    if (count > 0) received_.push_back({address, count, fence});
}

bool Publications::are_in_order(const Stamp& accesses, const Point& now) const {
    return std::any_of(received_.rbegin(), received_.rend(), [&](const Received& received) {
        if (!follows(now, received.fence)) return false;
        const auto [begin, end] = published_.at(received.address).equal_range(accesses.last.block);
        return std::any_of(begin, end, [&](const auto& of_block) {
            return of_block.second.number < received.count && precede(accesses, of_block.second.fence);
        });
    });
}

// ---- history ----

namespace {

/// Whether an access is after earlier ones of its thread, or a barrier of its warp or block is between them.
bool follows_in_block(const Stamp& earlier, const Point& now) {
    const Point& last = earlier.last;
    if (last.block_epoch != now.block_epoch) return true;
    if (earlier.several_warps || last.warp() != now.warp()) return false;
    return last.warp_epoch != now.warp_epoch || (!earlier.several_threads && last.thread == now.thread);
}

bool races(const Stamp& earlier, const Point& now, const Publications* publications) {
    if (earlier.last.launch != now.launch) return false;
    if (earlier.several_blocks) return true;
    if (earlier.last.block == now.block && follows_in_block(earlier, now)) return false;
    return publications == nullptr || !publications->are_in_order(earlier, now);
}

}  // namespace

// Accesses that are in order with `now` need not be remembered: a later access in order with `now` is also with them.
inline void Stamp::add(const Point& now) {
    const bool same_launch = last.launch == now.launch;
    const bool same_block = same_launch && last.block == now.block;
    const bool same_epoch = same_block && last.block_epoch == now.block_epoch;
    const bool same_warp = same_epoch && last.warp() == now.warp();
    several_blocks = same_launch && (several_blocks || !same_block);
    several_warps = same_epoch && (several_warps || !same_warp);
    several_threads = same_warp && last.warp_epoch == now.warp_epoch && (several_threads || last.thread != now.thread);
    last = now;
}

void Shadow::reset(Fill fill) {
    fill_ = fill;
    Cell blank;
    blank.fill = fill;
    for (const auto& each : pages_)
        if (each != nullptr) std::fill(each->cells.begin(), each->cells.end(), blank);
}

inline Shadow::Page& Shadow::page(std::size_t offset) {
    std::unique_ptr<Page>& found = pages_[offset / page_bytes];
    if (found == nullptr) {
        found = std::make_unique<Page>();
        Cell blank;
        blank.fill = fill_;
        found->cells.assign(page_bytes >> found->shift, blank);
    }
    return *found;
}

// Accesses so far were multiples of the larger cells, so every new cell has the history of the old one.
void Shadow::Page::refine(std::size_t bytes) {
    if (bytes >> shift != 0) return;
    const unsigned by = shift - static_cast<unsigned>(std::bit_width(bytes) - 1);
    std::vector<Cell> finer(cells.size() << by);
    for (std::size_t i = 0; i < finer.size(); ++i) finer[i] = cells[i >> by];
    cells = std::move(finer);
    shift -= by;
}

void Shadow::set_fill(std::size_t offset, std::size_t bytes, Fill fill) {
    for (const std::size_t end = offset + bytes; offset < end;) {
        const std::size_t in_page = offset % page_bytes, length = std::min(end - offset, page_bytes - in_page);
        Page& of = page(offset);
        if (((in_page | length) & ((std::size_t{1} << of.shift) - 1)) != 0) of.refine(1);
        for (std::size_t i = in_page >> of.shift; i < (in_page + length) >> of.shift; ++i) of.cells[i].fill = fill;
        offset += length;
    }
}

Shadow::Outcome Shadow::access(std::size_t offset, std::size_t bytes, AccessKind kind, const Point& now, Fill stored,
                               const Publications* publications) {
    Page& of = page(offset);
    of.refine(bytes);
    Outcome outcome;
    const std::size_t first = (offset % page_bytes) >> of.shift, end = first + (bytes >> of.shift);
    for (std::size_t i = first; i < end; ++i) {
        Cell& cell = of.cells[i];
        const bool both_atomic = kind == AccessKind::atomic && cell.writes.atomic;
        if (!both_atomic && races(cell.writes, now, publications)) {
            outcome.race = kind == AccessKind::read ? Race::read_write : Race::write_write;
            outcome.other = cell.writes.last;
        }
        if (kind != AccessKind::write) outcome.fill = std::min(outcome.fill, cell.fill);
        if (kind == AccessKind::read) {
            cell.reads.add(now);
            continue;
        }
        if (races(cell.reads, now, publications)) {
            outcome.race = Race::read_write;
            outcome.other = cell.reads.last;
        }
        if (!both_atomic) cell.writes = Stamp();
        cell.writes.add(now);
        cell.writes.atomic = kind == AccessKind::atomic;
        cell.fill = stored;
    }
    return outcome;
}

// ---- allocations ----

Allocation& Memory::insert(std::uintptr_t begin, std::size_t bytes, bool writable, Fill fill) {
    const std::uintptr_t end = begin + std::max<std::size_t>(bytes, 1);
    const auto above = allocations_.upper_bound(begin);
    if (above != allocations_.end() && above->second.begin < end)
        throw std::logic_error("ptx memory: an allocation overlaps another one");
    const std::uintptr_t base = begin / sector_bytes * sector_bytes;
    Allocation allocation{begin, end, base, writable, Shadow(end - base, fill), {}, {}, nullptr};
    allocation.sectors_read.resize((end - base + sector_bytes - 1) / sector_bytes);
    allocation.sectors_written.resize(allocation.sectors_read.size());
    return allocations_.emplace(end, std::move(allocation)).first->second;
}

void* Memory::allocate(std::size_t bytes, Fill fill) {
    constexpr std::size_t alignment = 256;
    auto owned = std::make_unique<std::byte[]>(bytes + alignment);
    const auto address = reinterpret_cast<std::uintptr_t>(owned.get());
    std::byte* const begin = owned.get() + (alignment - address % alignment) % alignment;
    insert(reinterpret_cast<std::uintptr_t>(begin), bytes, true, fill).owned = std::move(owned);
    return begin;
}

void Memory::add(const void* begin, std::size_t bytes, bool writable, Fill fill) {
    insert(reinterpret_cast<std::uintptr_t>(begin), bytes, writable, fill);
}

void Memory::remove(const void* begin) {
    const auto address = reinterpret_cast<std::uintptr_t>(begin);
    const auto found = allocations_.upper_bound(address);
    if (found == allocations_.end() || found->second.begin != address)
        throw std::logic_error("ptx memory: no allocation begins at this address");
    allocations_.erase(found);
}

void Memory::set_fill(const void* begin, std::size_t bytes, Fill fill) {
    const auto address = reinterpret_cast<std::uintptr_t>(begin);
    Allocation* const found = find(address, bytes);
    if (found == nullptr) throw std::logic_error("ptx memory: no allocation holds this range");
    found->shadow.set_fill(address - found->base, bytes, fill);
}

Allocation* Memory::find(std::uintptr_t begin, std::size_t bytes) {
    const auto found = allocations_.upper_bound(begin);
    if (found == allocations_.end() || begin < found->second.begin || bytes > found->second.end - begin) return nullptr;
    return &found->second;
}

}  // namespace lockstep::ptx
