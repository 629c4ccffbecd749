// The interpreter's knowledge of memory: allocations, which bytes are set, and which thread touched them last.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string_view>
#include <vector>

namespace lockstep::ptx {

/// `undefined` bytes were written, but with a value that was computed from unset ones.
enum class Fill : std::uint8_t { unset, undefined, set };

enum class AccessKind : std::uint8_t { read, write, atomic };

/// A thread at a point of its execution. Accesses of one block are in order if a block barrier is between them, those
/// of one warp also if a warp barrier is. Accesses of different blocks are never in order.
struct Point {
    std::uint32_t launch = 0;  ///< from 1
    std::uint32_t block = 0;
    std::uint16_t thread = 0;
    std::uint16_t block_epoch = 0, warp_epoch = 0;  ///< barriers so far

    unsigned warp() const { return thread / 32u; }
};

enum class Race : std::uint8_t { none, read_write, write_write };

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
    Outcome access(std::size_t offset, std::size_t bytes, AccessKind kind, const Point& now, Fill stored);

private:
    /// The accesses of one kind that a later one must be in order with.
    struct Stamp {
        Point last;
        bool several_threads : 1 = false, several_warps : 1 = false, several_blocks : 1 = false;
        bool atomic : 1 = false;

        bool races_with(const Point& now) const;
        void add(const Point& now);
    };
    struct Cell {
        Stamp reads, writes;
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
