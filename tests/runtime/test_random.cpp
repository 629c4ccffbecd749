// Random numbers: the published vectors of Philox, and the effect of seeds, steps and ordinals.
#include "lockstep/runtime/random.h"

#include <cmath>
#include <set>
#include <vector>

#include "lockstep/ops/functional.h"
#include "lockstep/runtime/tensor.h"
#include "lockstep/tests/catch.h"

using namespace lockstep;

using Block = std::array<std::uint32_t, 4>;

TEST_CASE("Philox 4x32-10 gives the vectors published with Random123") {
    // With ordinal 0 and microbatch 0 seed is the key, and index and step are the counter.
    CHECK(philox({0, 0, 0}, 0, 0) == Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
    CHECK(philox({~0ull, ~0ull, 0}, 0, ~0ull) == Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
    CHECK(philox({0x299f31d0a4093822, 0x0370734413198a2e, 0}, 0, 0x85a308d3243f6a88) ==
          Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("four neighbours share a block") {
    const StepCounters state{5, 6, 7};
    for (std::uint64_t index = 0; index < 64; ++index)
        CHECK(random_bits(state, 3, index) == philox(state, 3, index / 4)[index % 4]);
}

TEST_CASE("seeds, steps, microbatches, ordinals and elements all draw different numbers") {
    std::set<Block> seen;
    std::size_t drawn = 0;
    for (const std::uint64_t seed : {0ull, 1ull, 2ull, 1ull << 32, ~0ull})
        for (const std::uint64_t step : {0ull, 1ull, 2ull, 1000000ull, 1ull << 32})
            for (std::uint64_t micro = 0; micro < 4; ++micro)
                for (std::uint32_t ordinal = 0; ordinal < 8; ++ordinal)
                    for (const std::uint64_t index : {0ull, 1ull, 2ull, 1ull << 31, 1ull << 32}) {
                        seen.insert(philox({seed, step, micro}, ordinal, index));
                        ++drawn;
                    }
    CHECK(seen.size() == drawn);
}

TEST_CASE("uniform numbers are in [0, 1), with both ends as close as 24 bits allow") {
    CHECK(to_uniform(0) == 0);
    CHECK(to_uniform(0xFFFFFFFF) < 1);
    CHECK(to_uniform(0xFFFFFFFF) == 1 - std::ldexp(1.0f, -24));
    CHECK(to_uniform(0x80000000) == 0.5f);
}

TEST_CASE("manual_seed makes all later draws reproducible") {
    const auto draw = [](std::uint64_t seed) {
        manual_seed(seed);
        std::vector<float> values = Tensor::rand({7}).to_vector<float>();
        for (const Tensor& more :
             {Tensor::randn({3, 3}), Tensor::rand({5}), dropout(Tensor::full({50}, 1, DType::f32, Device::cpu(0))),
              dropout(Tensor::full({50}, 1, DType::f32, Device::cpu(1))), dropout(Tensor::full({50}, 1))}) {
            const std::vector<float> part = more.to_vector<float>();
            values.insert(values.end(), part.begin(), part.end());
        }
        return values;
    };
    const std::vector<float> first = draw(12);
    CHECK(current_seed() == 12);
    CHECK(draw(13) != first);
    CHECK(draw(12) == first);
    CHECK(draw(12ull << 32) != first);
    manual_seed(0);
    CHECK(current_seed() == 0);
}

TEST_CASE("consecutive calls draw different numbers") {
    manual_seed(3);
    const std::vector<float> a = Tensor::rand({8}).to_vector<float>();
    const std::vector<float> b = Tensor::rand({8}).to_vector<float>();
    CHECK(a != b);
    const Tensor ones = Tensor::full({64}, 1, DType::f32, Device::cpu(0));
    CHECK(dropout(ones).to_vector<float>() != dropout(ones).to_vector<float>());
    // The same numbers in one call as at the start of a longer one.
    manual_seed(3);
    const std::vector<float> longer = Tensor::rand({16}).to_vector<float>();
    CHECK(std::vector<float>(longer.begin(), longer.begin() + 8) == a);
    CHECK(Tensor::rand({0}).numel() == 0);
}

TEST_CASE("moments of uniform and normal numbers") {
    manual_seed(1);
    constexpr int count = 400000;
    const std::vector<float> uniform = Tensor::rand({count}).to_vector<float>();
    const std::vector<float> normal = Tensor::randn({count}).to_vector<float>();
    double mean = 0, square = 0, neighbours = 0;
    for (int i = 0; i < count; ++i) {
        const double u = static_cast<double>(uniform[static_cast<std::size_t>(i)]);
        if (u < 0 || u >= 1) FAIL("uniform number " << u);
        mean += u / count;
        square += (u - 0.5) * (u - 0.5) / count;
        if (i) neighbours += (u - 0.5) * (static_cast<double>(uniform[static_cast<std::size_t>(i - 1)]) - 0.5) / count;
    }
    // Bounds are five standard deviations of the sample's own error.
    CHECK(std::abs(mean - 0.5) < 5 * std::sqrt(1.0 / 12 / count));
    CHECK(std::abs(square - 1.0 / 12) < 5 * std::sqrt(1.0 / 180 / count));
    CHECK(std::abs(neighbours) < 5 / 12.0 / std::sqrt(count));
    double moments[5] = {};
    for (const float value : normal) {
        if (!std::isfinite(value)) FAIL("normal number " << value);
        double power = 1;
        for (double& moment : moments) {
            moment += power / count;
            power *= static_cast<double>(value);
        }
    }
    CHECK(std::abs(moments[1]) < 5 * std::sqrt(1.0 / count));
    CHECK(std::abs(moments[2] - 1) < 5 * std::sqrt(2.0 / count));
    CHECK(std::abs(moments[3]) < 5 * std::sqrt(15.0 / count));
    CHECK(std::abs(moments[4] - 3) < 5 * std::sqrt(96.0 / count));
    manual_seed(0);
}
