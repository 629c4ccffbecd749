#include "lockstep/parallel/comm/group/pinned_cache.h"

#include <algorithm>
#include <bit>
#include <map>
#include <mutex>
#include <new>
#include <vector>

namespace lockstep {

namespace {

struct Cache {
    std::mutex mutex;
    std::map<std::size_t, std::vector<std::shared_ptr<Buffer>>> free;  ///< by size
};

Cache& cache() {
    static auto* instance = new Cache;  // tensors may come back until the very end
    return *instance;
}

}  // namespace

std::shared_ptr<Buffer> take_pinned(std::size_t bytes) {
    const std::size_t size = std::bit_ceil(std::max<std::size_t>(bytes, 4096));
    std::shared_ptr<Buffer> memory;
    {
        const std::scoped_lock lock(cache().mutex);
        auto& free = cache().free[size];
        if (!free.empty()) {
            memory = std::move(free.back());
            free.pop_back();
        }
    }
    if (!memory) memory = Buffer::allocate_pinned(size);
    Buffer* const block = memory.get();
    return {block, [size, memory = std::move(memory)](Buffer*) mutable {
                try {
                    const std::scoped_lock lock(cache().mutex);
                    cache().free[size].push_back(std::move(memory));
                } catch (const std::bad_alloc&) {  // then it is not kept
                }
            }};
}

}  // namespace lockstep
