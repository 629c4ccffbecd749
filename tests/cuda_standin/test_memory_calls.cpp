// The cache of device memory, observed from below: its allocations from CUDA, on the stand-in.
#include "lockstep/runtime/memory.h"
#include "lockstep/runtime/stream.h"
#include "lockstep/tests/cuda_standin/standin.h"
#include "lockstep/tests/cuda_standin/training.h"

using namespace lockstep;

namespace {

const Device gpu0 = Device::cuda(0), gpu1 = Device::cuda(1);

}  // namespace

TEST_CASE("memory in the cache is reused without another allocation") {
    const auto allocations = [] { return standin::counters().calls["cudaMalloc"]; };
    Stream& stream = Stream::of(gpu1);
    { const auto first = Buffer::allocate(stream, 1 << 20, "weights"); }
    const auto taken = allocations();
    { const auto again = Buffer::allocate(stream, 1 << 20, "weights"); }
    CHECK(allocations() == taken);
    CHECK(taken > 0);
    test::check_no_mistakes();
}

TEST_CASE("the cache is released when the GPU is full") {
    Stream& stream = Stream::of(gpu0);
    release_cached_memory(gpu0);
    const std::size_t used = standin::counters().devices[0].bytes_in_use;
    standin::set_memory_limit(0, used + (1 << 20));
    { const auto a = Buffer::allocate(stream, 900000, "a"); }
    { const auto b = Buffer::allocate(stream, 600000, "b"); }  // only after a's block was returned
    standin::set_memory_limit(0, std::size_t{8} << 30);
    release_cached_memory(gpu0);
    CHECK(standin::counters().devices[0].bytes_in_use == used);
    test::check_no_mistakes();
}
