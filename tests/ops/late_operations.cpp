// Operations in destructors of static and of thread_local objects, after a thread's objects may have been destroyed.
// Memory that is freed after the end of main is filled and kept: no operation may write to it or use its contents.
#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <thread>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/layers.h"
#include "lockstep/runtime/tensor.h"

namespace ls = lockstep;

namespace {

constexpr int filling = 0xDD;
constexpr std::size_t max_blocks = 1 << 16;

struct GivenBack {
    unsigned char* begin;
    std::size_t bytes;
};
GivenBack given_back[max_blocks];
std::atomic<std::size_t> blocks{0};
std::atomic<bool> keeping{false};

void give_back(void* memory) noexcept {
    if (memory == nullptr) return;
    const std::size_t place = keeping ? blocks.fetch_add(1) : max_blocks;
    if (place >= max_blocks) {
        std::free(memory);
        return;
    }
    const std::size_t bytes = malloc_usable_size(memory);
    std::memset(memory, filling, bytes);
    given_back[place] = {static_cast<unsigned char*>(memory), bytes};
}

[[noreturn]] void fail(const char* where, const std::string& what) {
    std::fprintf(stderr, "%s: %s\n", where, what.c_str());
    std::_Exit(1);
}

void require_untouched(const char* where) {
    for (std::size_t i = 0; i < std::min(blocks.load(), max_blocks); ++i)
        for (std::size_t b = 0; b < given_back[i].bytes; ++b)
            if (given_back[i].begin[b] != filling)
                fail(where, "byte " + std::to_string(b) + " of a block of " + std::to_string(given_back[i].bytes) +
                                " was written after it had been freed");
}

void require(const char* where, const char* what, const ls::Tensor& value, float wanted) {
    for (const float number : value.to(ls::DType::f32).to(ls::Device::host()).to_vector<float>())
        if (number != wanted)
            fail(where, std::string(what) + " is " + std::to_string(number) + ", expected " + std::to_string(wanted));
}

/// On the host and on a virtual device, whose worker executes them.
void operate(const char* where) {
    for (const ls::Device device : {ls::Device::host(), ls::Device::cpu(0)}) {
        const ls::Tensor three = ls::Tensor::full({4, 8}, 3, ls::DType::f32, device);
        require(where, "relu(3 + 3)", ls::relu(three + three), 6);
        const ls::Tensor shorter = three.to(ls::DType::bf16);  // computed in f32 between conversions
        require(where, "relu(3) in bf16", ls::relu(shorter), 3);
        require(where, "sum of 8 threes in bf16", ls::sum(shorter, 1), 24);
        require(where, "a transposed copy", three.transpose(0, 1).contiguous(), 3);
    }
}

struct Late {
    const char* where;
    ~Late() {
        operate(where);
        require_untouched(where);
    }
};

const Late first_static{"a static object created before all others"};
thread_local const Late of_a_thread{"a thread-local object"};

}  // namespace

void* operator new(std::size_t bytes) {
    if (void* memory = std::malloc(bytes)) return memory;
    throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { give_back(memory); }
void operator delete(void* memory, std::size_t) noexcept { give_back(memory); }

int main() {
    keeping = true;
    std::thread([] {
        static_cast<void>(of_a_thread.where);  // created before the operations' objects, so destroyed after them
        operate("a thread");
    }).join();
    static_cast<void>(of_a_thread.where);
    operate("main");
    static const Late last_static{"a static object created after the first operations"};
}
