// Counter-based random numbers (Philox 4x32-10, Salmon et al., SC'11). Any element of any mask can be computed by
// itself. Results do not depend on how a batch is split or on which device computes a shard.
#pragma once

#include <array>
#include <cstdint>

#include "lockstep/runtime/language.h"

#if defined(__CUDACC__)
#define LOCKSTEP_HD __host__ __device__
#else
#define LOCKSTEP_HD
#endif

namespace lockstep {

/// Counters that change from step to step, in device memory so that programs stay constant.
struct StepCounters {
    std::uint64_t seed = 0;
    std::uint64_t step = 0;       ///< committed steps so far
    std::uint64_t micro = 0;      ///< microbatches (training forwards) since the last committed step
    std::uint64_t inference = 0;  ///< inference forwards with random numbers since the last committed step
};

/// Set in the ordinals of inference, whose forwards are counted separately: they do not change those of training.
constexpr std::uint32_t inference_ordinals = 0x80000000u;

/// 128 random bits for key (seed, step, micro or inference, ordinal) and counter `index`.
LOCKSTEP_HD inline std::array<std::uint32_t, 4> philox(const StepCounters& state, std::uint32_t ordinal,
                                                       std::uint64_t index) {
    // The 64-bit key holds the seed and the identity of the call; the counter holds the element and the step.
    std::uint32_t key0 = static_cast<std::uint32_t>(state.seed) ^ (ordinal * 0x9E3779B9u);
    const std::uint64_t forward = (ordinal & inference_ordinals) != 0 ? state.inference : state.micro;
    std::uint32_t key1 =
        static_cast<std::uint32_t>(state.seed >> 32) ^ static_cast<std::uint32_t>(forward) * 0x85EBCA6Bu;
    std::uint32_t c0 = static_cast<std::uint32_t>(index);
    std::uint32_t c1 = static_cast<std::uint32_t>(index >> 32);
    std::uint32_t c2 = static_cast<std::uint32_t>(state.step);
    std::uint32_t c3 = static_cast<std::uint32_t>(state.step >> 32) ^ ordinal;
    for (int round = 0; round < 10; ++round) {
        const std::uint64_t a = static_cast<std::uint64_t>(0xD2511F53u) * c0;
        const std::uint64_t b = static_cast<std::uint64_t>(0xCD9E8D57u) * c2;
        const std::uint32_t n0 = static_cast<std::uint32_t>(b >> 32) ^ c1 ^ key0;
        const std::uint32_t n2 = static_cast<std::uint32_t>(a >> 32) ^ c3 ^ key1;
        c1 = static_cast<std::uint32_t>(b);
        c3 = static_cast<std::uint32_t>(a);
        c0 = n0;
        c2 = n2;
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    return {c0, c1, c2, c3};
}

/// One 32-bit number for element `index` (4 neighbours share a Philox block).
LOCKSTEP_HD inline std::uint32_t random_bits(const StepCounters& state, std::uint32_t ordinal, std::uint64_t index) {
    return philox(state, ordinal, index >> 2)[index & 3];
}

/// Uniform in [0, 1) with 24 bits.
LOCKSTEP_HD inline float to_uniform(std::uint32_t bits) { return static_cast<float>(bits >> 8) * (1.0f / 16777216.0f); }

/// Seeds everything drawn outside a wrapper from now on (initial weights, rand, randn, eager dropout), and wrappers
/// created from now on without a seed. The default seed is 0. Seeds do not reproduce the random numbers of
/// torch.manual_seed: to compare with PyTorch, load its initial weights.
void manual_seed(std::uint64_t seed);
std::uint64_t current_seed();

/// `count` numbers drawn on the host from `manual_seed`'s generator, in order of the calls. Inside a
/// trace they are drawn once, and the program repeats them in every step.
void host_uniform(float* out, std::int64_t count, float low, float high);
void host_normal(float* out, std::int64_t count);
/// Whole numbers below `end`, which is 1 or more.
void host_integers(std::int64_t* out, std::int64_t count, std::uint64_t end);

}  // namespace lockstep
