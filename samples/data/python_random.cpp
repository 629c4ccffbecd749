#include "lockstep/samples/data/python_random.h"

#include <bit>
#include <utility>

namespace samples {

PythonRandom::PythonRandom(std::uint64_t seed) {
    const std::array<std::uint32_t, 2> key{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)};
    const std::size_t words = key[1] == 0 ? 1 : 2;  // Python's integers have no leading zeros
    state_[0] = 19650218U;
    for (std::uint32_t i = 1; i < size; ++i) state_[i] = 1812433253U * (state_[i - 1] ^ (state_[i - 1] >> 30)) + i;
    std::size_t i = 1;
    const auto advance = [&] {
        if (++i < size) return;
        state_[0] = state_[size - 1];
        i = 1;
    };
    for (std::size_t k = 0; k < size; ++k) {
        const std::size_t j = k % words;
        state_[i] =
            (state_[i] ^ ((state_[i - 1] ^ (state_[i - 1] >> 30)) * 1664525U)) + key[j] + static_cast<std::uint32_t>(j);
        advance();
    }
    for (std::size_t k = 0; k + 1 < size; ++k) {
        state_[i] =
            (state_[i] ^ ((state_[i - 1] ^ (state_[i - 1] >> 30)) * 1566083941U)) - static_cast<std::uint32_t>(i);
        advance();
    }
    state_[0] = 0x80000000U;
}

void PythonRandom::twist() {
    constexpr std::size_t middle = 397;
    for (std::size_t i = 0; i < size; ++i) {
        const std::uint32_t word = (state_[i] & 0x80000000U) | (state_[(i + 1) % size] & 0x7fffffffU);
        state_[i] = state_[(i + middle) % size] ^ (word >> 1) ^ ((word & 1U) != 0 ? 0x9908b0dfU : 0U);
    }
    next_ = 0;
}

std::uint32_t PythonRandom::bits(int bits) {
    if (next_ == size) twist();
    std::uint32_t word = state_[next_++];
    word ^= word >> 11;
    word ^= (word << 7) & 0x9d2c5680U;
    word ^= (word << 15) & 0xefc60000U;
    return (word ^ (word >> 18)) >> (32 - bits);
}

void PythonRandom::shuffle(std::vector<std::int64_t>& rows) {
    for (std::size_t i = rows.size(); i > 1; --i) {  // Fisher and Yates from the end, numbers below i by rejection
        const auto width = static_cast<int>(std::bit_width(i));
        std::size_t j = bits(width);
        while (j >= i) j = bits(width);
        std::swap(rows[i - 1], rows[j]);
    }
}

}  // namespace samples
