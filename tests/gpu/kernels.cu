#include "lockstep/tests/gpu/kernels.h"

#include "lockstep/runtime/cuda/launch.h"

namespace lockstep::test {
namespace {

struct AddOne {
    int* to;
    const int* from;
    LOCKSTEP_HD void operator()(std::int64_t i) const { to[i] = from[i] + 1; }
};

struct AddOneMemory final : cuda::Declaration {
    cuda::Touched to, from;
    AddOneMemory(cuda::Touched written, cuda::Touched read) : to(written), from(read) {}
    void list(std::vector<cuda::Touched>& all) const override { all.insert(all.end(), {to, from}); }
};

struct Write {
    int* to;
    LOCKSTEP_HD void operator()(std::int64_t i) const { to[i] = 1; }
};

}  // namespace

void launch_add_one(cudaStream_t stream, int* to, const int* from, std::int64_t n, std::int64_t declared) {
    const auto bytes = [](std::int64_t elements) { return static_cast<std::size_t>(elements) * sizeof(int); };
    const AddOneMemory memory({to, bytes(n), true}, {from, bytes(declared), false});
    cuda::launch({stream, &memory}, "add_one", n, AddOne{to, from});
}

void launch_write_nowhere(cudaStream_t stream) {
    constexpr std::uintptr_t address = 4096;
    cuda::launch({stream, {}}, nowhere, 1, Write{reinterpret_cast<int*>(address)});
}

}  // namespace lockstep::test
