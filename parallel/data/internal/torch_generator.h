// The numbers of PyTorch's CPU generator, and the values that PyTorch derives from them.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

namespace lockstep {

/// torch.Generator().manual_seed(seed): the same calls in the same order return PyTorch's numbers.
class TorchGenerator {
public:
    explicit TorchGenerator(std::uint64_t seed) : random_(static_cast<std::uint32_t>(seed)) {}  // the lower 32 bits

    /// A double from torch's uniform distribution over [0, 1).
    double uniform();
    /// An element of torch.randint(high): 0 to high - 1.
    std::int64_t below(std::int64_t high);
    /// torch.randperm(length). Throws as require_permutable.
    std::vector<std::int64_t> permutation(const char* who, std::int64_t length);
    /// Throws InvalidArgument, naming `who`, for a negative length, and from 2^32 / 20 on, for which PyTorch uses
    /// another algorithm.
    static void require_permutable(const char* who, std::int64_t length);

private:
    std::uint64_t bits64();
    std::mt19937 random_;
};

/// An empty list with memory for `count` rows. Throws InvalidArgument, naming `who`, for a negative count and for more
/// rows than this machine's memory can hold; OutOfMemory if the memory is in use.
std::vector<std::int64_t> room_for_rows(const char* who, std::int64_t count);
/// 0 to length - 1. Throws as room_for_rows.
std::vector<std::int64_t> rows_in_order(const char* who, std::int64_t length);

}  // namespace lockstep
