#include "lockstep/parallel/data/internal/mersenne_twister.h"

#include <algorithm>

namespace lockstep {

MersenneTwister::MersenneTwister(std::uint32_t seed) {
    state_[0] = seed;
    for (std::uint32_t i = 1; i < size; ++i) state_[i] = 1812433253U * (state_[i - 1] ^ (state_[i - 1] >> 30)) + i;
}

MersenneTwister::MersenneTwister(std::span<const std::uint32_t> key) : MersenneTwister(19650218U) {
    std::size_t i = 1;
    const auto advance = [&] {
        if (++i < size) return;
        state_[0] = state_[size - 1];
        i = 1;
    };
    for (std::size_t k = 0; k < std::max(size, key.size()); ++k) {
        const auto j = static_cast<std::uint32_t>(k % key.size());
        state_[i] = (state_[i] ^ ((state_[i - 1] ^ (state_[i - 1] >> 30)) * 1664525U)) + key[j] + j;
        advance();
    }
    for (std::size_t k = 0; k + 1 < size; ++k) {
        state_[i] =
            (state_[i] ^ ((state_[i - 1] ^ (state_[i - 1] >> 30)) * 1566083941U)) - static_cast<std::uint32_t>(i);
        advance();
    }
    state_[0] = 0x80000000U;
}

void MersenneTwister::twist() {
    constexpr std::size_t middle = 397;
    for (std::size_t i = 0; i < size; ++i) {
        const std::uint32_t word = (state_[i] & 0x80000000U) | (state_[(i + 1) % size] & 0x7fffffffU);
        state_[i] = state_[(i + middle) % size] ^ (word >> 1) ^ ((word & 1U) != 0 ? 0x9908b0dfU : 0U);
    }
    next_ = 0;
}

std::uint32_t MersenneTwister::operator()() {
    if (next_ == size) twist();
    std::uint32_t word = state_[next_++];
    word ^= word >> 11;
    word ^= (word << 7) & 0x9d2c5680U;
    word ^= (word << 15) & 0xefc60000U;
    return word ^ (word >> 18);
}

}  // namespace lockstep
