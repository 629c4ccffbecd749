// Random numbers for the generated datasets: the same on every machine.
#pragma once

#include <cstddef>
#include <cstdint>

namespace samples {

/// SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014), keyed by seed and index.
/// The standard library's distributions differ between implementations, so the few needed here are its members.
class SplitMix {
public:
    SplitMix(std::uint64_t seed, std::uint64_t index, std::uint64_t purpose)
        : state_(mix(mix(mix(seed + step) ^ index) + purpose * step)) {}

    std::uint64_t bits() {
        state_ += step;
        return mix(state_);
    }
    /// Uniform in [low, high).
    double uniform(double low, double high) {
        return low + (high - low) * (static_cast<double>(bits() >> 11) * 0x1p-53);
    }
    /// Bell-shaped around 0, standard deviation 1, absolute value at most 3: four uniform numbers summed.
    double bell() {
        double sum = 0;
        for (int i = 0; i < 4; ++i) sum += uniform(-1, 1);
        return sum * 0.75 * 1.1547005383792515;  // each has variance 1/3, so the sum has 4/3
    }
    std::size_t below(std::size_t count) { return static_cast<std::size_t>((bits() >> 32) * count >> 32); }

private:
    static constexpr std::uint64_t step = 0x9e3779b97f4a7c15u;
    static std::uint64_t mix(std::uint64_t z) {
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        return z ^ (z >> 31);
    }
    std::uint64_t state_;
};

}  // namespace samples
