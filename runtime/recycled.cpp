#include "lockstep/runtime/recycled.h"

#include <array>

#include "lockstep/runtime/internal/threads.h"

namespace lockstep::recycled {

namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::size_t most_kept = 0;
#else
constexpr std::size_t most_kept = 256;  // blocks of one size
#endif

constexpr std::size_t granule = 64;  // sizes of blocks are multiples of this
constexpr std::size_t sizes = 16;    // larger blocks are not kept

constexpr std::size_t granules(std::size_t bytes) { return bytes == 0 ? 1 : (bytes + granule - 1) / granule; }

/// The free blocks of one thread, as a list for each size. A free block holds the address of the next one.
class FreeBlocks {
public:
    FreeBlocks() = default;
    ~FreeBlocks() {
        for (Size& size : sizes_)
            while (void* block = pop(size)) ::operator delete(block);
    }
    FreeBlocks(const FreeBlocks&) = delete;
    FreeBlocks& operator=(const FreeBlocks&) = delete;

    /// A free block, or null.
    void* take(std::size_t granules_of_block) { return pop(sizes_[granules_of_block - 1]); }

    /// False if there are enough.
    bool keep(void* block, std::size_t granules_of_block) {
        Size& size = sizes_[granules_of_block - 1];
        if (size.count >= most_kept) return false;
        size.first = new (block) Link{size.first};
        ++size.count;
        return true;
    }

private:
    struct Link {
        Link* next;
    };
    struct Size {
        Link* first = nullptr;
        std::size_t count = 0;
    };

    static void* pop(Size& size) {
        Link* const block = size.first;
        if (block == nullptr) return nullptr;
        size.first = block->next;
        --size.count;
        return block;
    }

    std::array<Size, sizes> sizes_{};
};

}  // namespace

void* take(std::size_t bytes) {
    const std::size_t count = granules(bytes);
    if (count <= sizes)
        if (void* const block = per_thread<FreeBlocks>().take(count)) return block;
    return ::operator new(count* granule);
}

void give_back(void* memory, std::size_t bytes) noexcept {
    const std::size_t count = granules(bytes);
    if (count <= sizes && per_thread<FreeBlocks>().keep(memory, count)) return;
    ::operator delete(memory);
}

}  // namespace lockstep::recycled
