// Python's random.Random, as far as DataPartitioner needs it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace samples {

/// random.Random(seed): the same numbers and shuffles. MT19937 (Matsumoto and Nishimura, 1998), seeded by
/// init_by_array of mt19937ar.c, which std::mt19937 lacks.
class PythonRandom {
public:
    explicit PythonRandom(std::uint64_t seed);

    /// getrandbits(bits), 1 to 32.
    std::uint32_t bits(int bits);
    /// shuffle(rows).
    void shuffle(std::vector<std::int64_t>& rows);

private:
    static constexpr std::size_t size = 624;
    void twist();
    std::array<std::uint32_t, size> state_{};
    std::size_t next_ = size;
};

}  // namespace samples
