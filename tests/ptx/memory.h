// The interpreter's knowledge of memory: allocations, which bytes are set, and which thread touched them last.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace lockstep::ptx {

/// `undefined` bytes were written, but with a value that was computed from unset ones.
enum class Fill : std::uint8_t { unset, undefined, set };

enum class AccessKind : std::uint8_t { read, write, atomic };

/// A thread at a point of its execution. Accesses of one block are in order if a block barrier is between them, those
/// of one warp also if a warp barrier is. Accesses of different blocks are in order only by Publications.
struct Point {
    std::uint32_t launch = 0;  ///< from 1
    std::uint32_t block = 0;
    std::uint16_t thread = 0;
    std::uint16_t block_epoch = 0, warp_epoch = 0;  ///< barriers so far
    std::uint16_t fences = 0;                       ///< fences of the thread so far

    unsigned warp() const { return thread / 32u; }
};

enum class Race : std::uint8_t { none, read_write, write_write };

/// The latest of several accesses.
struct Stamp {
    Point last;
    bool several_threads : 1 = false, several_warps : 1 = false, several_blocks : 1 = false;
    bool atomic : 1 = false;

    void add(const Point& now);
};

/// Accesses that threads of different blocks or warps have made visible to each other. A thread publishes those before
/// its last fence with every atomic operation on global memory. A later atomic operation at the same address receives
/// them, and the accesses after the next fence of its thread are in order with them.
class Publications {
public:
    void start_block() { received_.clear(); }
    /// Number of publications at an address so far, in the order of the atomic operations.
    std::size_t count(std::uintptr_t address) const;
    void publish(std::uintptr_t address, const Point& fence);
    /// The running block has received the first `count` publications at an address, as of its fence.
    void receive(std::uintptr_t address, std::size_t count, const Point& fence);
    /// Whether earlier accesses are in order with one of the running block.
    bool are_in_order(const Stamp& accesses, const Point& now) const;

private:
    struct Published {
        std::size_t number;
        Point fence;
    };
    struct Received {
        std::uintptr_t address;
        std::size_t count;
        Point fence;
    };
    std::unordered_map<std::uintptr_t, std::unordered_multimap<std::uint32_t, Published>> published_;  // by block
    std::vector<Received> received_;
};

/// The history of a range of memory, in pages that are made when they are touched. A page has cells as large as the
/// smallest access to it so far.
class Shadow {
public:
    Shadow(std::size_t bytes, Fill fill) : pages_((bytes + page_bytes - 1) / page_bytes), fill_(fill) {}

    /// Forgets everything; every byte becomes `fill`.
    void reset(Fill fill);
    void set_fill(std::size_t offset, std::size_t bytes, Fill fill);

    struct Outcome {
        Fill fill = Fill::set;   ///< lowest state among the bytes that were read
        Race race = Race::none;  ///< with an access of `other` that may happen at the same time
        Point other;
    };
    /// Notes an aligned access of 1 to 16 bytes. A write leaves the bytes in the state `stored`.
    /// `publications` of the launch; null if the memory is that of a block.
    Outcome access(std::size_t offset, std::size_t bytes, AccessKind kind, const Point& now, Fill stored,
                   const Publications* publications);

private:
    struct Cell {
        Stamp reads, writes;  ///< the accesses that a later one must be in order with
        Fill fill = Fill::unset;
    };

    struct Page {
        unsigned shift = 4;  // a cell has 2^shift bytes
        std::vector<Cell> cells;
        void refine(std::size_t bytes);
    };
    static constexpr std::size_t page_bytes = 4096;
    Page& page(std::size_t offset);

    std::vector<std::unique_ptr<Page>> pages_;
    Fill fill_;  // content of untouched pages
};

inline constexpr std::size_t sector_bytes = 32;

struct Allocation {
    std::uintptr_t begin, end;
    std::uintptr_t base;  ///< begin rounded down to a sector; offsets in shadow and sectors count from here
    bool writable;
    Shadow shadow;
    std::vector<std::uint32_t> sectors_read, sectors_written;  ///< launch that touched each sector last
    std::unique_ptr<std::byte[]> owned;
};

/// Global memory: the allocations that kernels may touch.
class Memory {
public:
    /// Zeroed bytes, aligned to 256, which the interpreter takes for unset unless `fill` is set.
    void* allocate(std::size_t bytes, Fill fill = Fill::set);
    /// Makes memory of the caller known.
    void add(const void* begin, std::size_t bytes, bool writable = true, Fill fill = Fill::set);
    /// Forgets an allocation by its first byte.
    void remove(const void* begin);
    void set_fill(const void* begin, std::size_t bytes, Fill fill);

    /// The allocation that holds all of the range; null if none does.
    Allocation* find(std::uintptr_t begin, std::size_t bytes);
    /// Numbers launches, for Point.
    std::uint32_t next_launch() { return ++launches_; }

private:
    Allocation& insert(std::uintptr_t begin, std::size_t bytes, bool writable, Fill fill);

    std::map<std::uintptr_t, Allocation> allocations_;  // by end
    std::uint32_t launches_ = 0;
};

}  // namespace lockstep::ptx
