#include "lockstep/tests/gpu/kernels.h"

#include "lockstep/runtime/cuda/launch.h"

namespace lockstep::test {
namespace {

struct AddOne {
    int* to;
    const int* from;
    LOCKSTEP_HOST_DEVICE void operator()(std::int64_t i) const { to[i] = from[i] + 1; }
};

struct Write {
    int* to;
    LOCKSTEP_HOST_DEVICE void operator()(std::int64_t i) const { to[i] = 1; }
};

}  // namespace

void launch_add_one(cudaStream_t stream, int* to, const int* from, std::int64_t n) {
    const std::size_t bytes = static_cast<std::size_t>(n) * sizeof(int);
    const cuda::Touched touched[] = {{to, bytes, true}, {from, bytes, false}};
    cuda::launch({stream, touched}, "add_one", n, AddOne{to, from});
}

void launch_write_nowhere(cudaStream_t stream) {
    constexpr std::uintptr_t address = 4096;
    cuda::launch({stream, {}}, nowhere, 1, Write{reinterpret_cast<int*>(address)});
}

}  // namespace lockstep::test
