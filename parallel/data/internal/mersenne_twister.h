// MT19937 with the two ways to seed it that PyTorch and Python use; std::mt19937 has the first one only.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace lockstep {

/// Matsumoto and Nishimura, "Mersenne Twister" (1998), and their mt19937ar.c of 2002.
class MersenneTwister {
public:
    /// init_genrand: as torch.Generator.manual_seed and std::mt19937 do it.
    explicit MersenneTwister(std::uint32_t seed);
    /// init_by_array: as Python's random.seed does it. `key` has at least one word.
    explicit MersenneTwister(std::span<const std::uint32_t> key);

    /// 32 random bits.
    std::uint32_t operator()();
    /// The upper `bits` (1 to 32) of them: Python's getrandbits.
    std::uint32_t upper_bits(int bits) { return (*this)() >> (32 - bits); }

private:
    static constexpr std::size_t size = 624;
    void twist();
    std::array<std::uint32_t, size> state_{};
    std::size_t next_ = size;
};

}  // namespace lockstep
