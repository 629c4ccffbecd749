// The creation of a stream fails at each of its allocations in turn: streams that are created have unique numbers.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <set>

#include "lockstep/runtime/stream.h"

namespace ls = lockstep;

namespace {

thread_local long until_failure = -1;  // negative: none fails

void* allocate(std::size_t bytes) {
    if (until_failure >= 0 && until_failure-- == 0) throw std::bad_alloc();
    if (void* memory = std::malloc(bytes)) return memory;
    throw std::bad_alloc();
}

}  // namespace

void* operator new(std::size_t bytes) { return allocate(bytes); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

int main() {
    std::set<int> ids;
    std::size_t made = 0;
    int failures = 0;
    const auto make = [&](int index, long allocations) {
        until_failure = allocations;
        const ls::Stream* stream = nullptr;
        try {
            stream = &ls::Stream::of(ls::Device::cpu(1), ls::StreamRole::input, index);
        } catch (const std::bad_alloc&) {
        }
        until_failure = -1;
        if (!stream) {
            ++failures;
            return false;
        }
        ids.insert(stream->id());
        ++made;
        return true;
    };
    make(0, -1);
    for (int index = 1; index < 1000; ++index) {
        if (make(index, index - 1)) break;  // no failure: there are fewer allocations than that
        make(1000 + index, -1);             // another one first
        make(index, -1);                    // a retry succeeds
    }
    std::printf("%zu streams created, %d failures, %zu numbers\n", made, failures, ids.size());
    return ids.size() == made && failures > 0 && static_cast<int>(made) == 2 * failures + 2 ? 0 : 1;
}
