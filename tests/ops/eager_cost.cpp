// Cost of an eager operation after the first ones of its kind: no file is read, nothing is allocated on the host, and
// few mutexes are locked; a virtual device's queue needs memory. Prints the microseconds without a limit on them.
#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/ops/functional.h"
#include "lockstep/runtime/stream.h"
#include "lockstep/runtime/tensor.h"

namespace ls = lockstep;

namespace {

std::atomic<long> allocations{0};
thread_local long locks = 0;  // mutexes that this thread has locked

void* allocate(std::size_t bytes, std::size_t alignment) {
    allocations.fetch_add(1, std::memory_order_relaxed);
    void* memory = alignment <= alignof(std::max_align_t)
                       ? std::malloc(bytes)
                       : std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
    if (memory == nullptr) throw std::bad_alloc();
    return memory;
}

/// Number of read system calls of this process so far; negative if the system does not count them.
long reads() {
    std::ifstream in("/proc/self/io");
    std::string name;
    for (long value = 0; in >> name >> value;)
        if (name == "syscr:") return value;
    return -1;
}

/// Reads made by the query itself.
long reads_to_ask() {
    const long before = reads();
    return reads() - before;
}

bool system_counts_reads() {
    if (reads() < 0) return false;
    const long before = reads(), without = reads_to_ask();
    std::ifstream("/proc/self/stat").get();
    return reads() - before > 3 * without;
}

constexpr int repeats = 2000, at_once = 50;

struct Cost {
    double allocations, locks, microseconds;
    long reads;
};

Cost cost_of(const std::function<void()>& operation, ls::Device device) {
    const auto repeat = [&](int times) {
        for (int i = 0; i < times; ++i) {
            operation();
            if (i % at_once == at_once - 1) ls::Stream::of(device).synchronize();
        }
    };
    repeat(repeats);
    const long reads_before = reads(), allocations_before = allocations, locks_before = locks;
    const auto begin = std::chrono::steady_clock::now();
    repeat(repeats);
    const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - begin;
    const long allocated = allocations - allocations_before, locked = locks - locks_before;
    return {static_cast<double>(allocated) / repeats, static_cast<double>(locked) / repeats, time.count() / repeats,
            reads() - reads_before - reads_to_ask()};
}

}  // namespace

/// Counts the locks of std::mutex in the library.
extern "C" int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept {
    static const auto lock = reinterpret_cast<int (*)(pthread_mutex_t*)>(dlsym(RTLD_NEXT, "pthread_mutex_lock"));
    ++locks;
    return lock(mutex);
}
void* operator new(std::size_t bytes) { return allocate(bytes, 0); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
    return allocate(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

int main() {
    setenv("LOCKSTEP_CPU_DEVICES", "2", 1);
    const bool counts_reads = system_counts_reads();
    if (!counts_reads) std::puts("skipped: counting reads, which /proc/self/io does not report");
    int failures = 0;
    for (const ls::Device device : {ls::Device::host(), ls::Device::cpu(0), ls::Device::cpu(1)}) {
        const ls::Tensor x = ls::Tensor::full({64}, 2, ls::DType::f32, device);
        const ls::Tensor matrix = ls::Tensor::full({8, 8}, 2, ls::DType::f32, device);
        const std::vector<ls::Tensor> two{matrix, matrix};
        const ls::Tensor leaf = x.clone().requires_grad_();
        const ls::Tensor rows = ls::Tensor::full({8}, 1, ls::DType::i64, device);
        struct Case {
            const char* name;
            std::function<void()> operation;
            int items = 1;  ///< in the queue of a device
        };
        const Case cases[] = {
            {"relu of 64 numbers", [&] { ls::relu(x); }},
            {"relu of a leaf, recorded for backward", [&] { ls::relu(leaf); }},
            {"sum of two", [&] { x + x; }},
            {"product with a number", [&] { x * 2.0; }},
            {"sum of all", [&] { ls::sum(x); }},
            {"matmul of 8 x 8", [&] { ls::matmul(matrix, matrix); }},
            {"softmax of rows", [&] { ls::softmax(matrix, 1); }},
            {"row of a matrix", [&] { matrix.select(0, 3); }},
            {"copy of a transposed matrix", [&] { matrix.transpose(0, 1).contiguous(); }},
            {"cat of two", [&] { ls::cat(two, 0); }},
            {"conversion to f64", [&] { x.to(ls::DType::f64); }},
            {"comparison", [&] { static_cast<void>(x > x); }},
            {"embedding, which reports its errors", [&] { ls::embedding(rows, matrix); }, 4},
        };
        for (const auto& [name, operation, items] : cases) {
            const Cost cost = cost_of(operation, device);
            std::printf("%s on %s: %.2f allocations, %.2f locks, %.2f us, %ld reads of files in %d operations\n", name,
                        device.str().c_str(), cost.allocations, cost.locks, cost.microseconds, cost.reads, repeats);
            const double most = device.is_host() ? 0 : 4 * items;
            if (cost.allocations > most) {
                std::printf("  at most %.0f allocations expected\n", most);
                ++failures;
            }
            // The queue of a virtual device locks more often if its thread sleeps and has to be woken.
            const double most_locks = (device.is_host() ? 4 : 16) * items;
            if (cost.locks > most_locks) {
                std::printf("  at most %.0f locks expected\n", most_locks);
                ++failures;
            }
            if (counts_reads && cost.reads != 0) {
                std::puts("  no reads expected");
                ++failures;
            }
        }
    }
    return failures == 0 ? 0 : 1;
}
