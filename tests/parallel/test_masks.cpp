// Dropout masks are a function of seed, step, microbatch, call and global row: the cut of a batch does not matter.
#include <set>

#include "lockstep/parallel/data_parallel.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/eight_devices.h"
#include "lockstep/tests/fixtures/nets.h"

using namespace lockstep;

namespace {

using Values = std::vector<float>;

/// Three masks of the batch, and one of a parameter, which has no batch dimension.
struct Masks {
    Linear fc{16, 1};
    Dropout first{0.5}, second{0.5};
    Dropout2d channels{0.25};
    LOCKSTEP_MEMBERS(fc, first, second, channels)
    std::vector<Tensor> forward(const Tensor& x) {
        return {first(x).flatten(1), second(x).flatten(1), channels(x).flatten(1), first(fc.weight)};
    }
};
constexpr std::int64_t channel_count = 6, plane = 5, row_size = channel_count * plane;

Tensor ones(std::int64_t rows) { return Tensor::full({rows, channel_count, plane}, 1); }

Masks all_ones() {
    Masks model;
    const NoGrad no_grad;
    model.fc.weight->fill_(1);
    return model;
}

std::vector<Values> values_of(const std::vector<Tensor>& tensors) {
    std::vector<Values> result;
    for (const Tensor& tensor : tensors) result.push_back(tensor.to_vector<float>());
    return result;
}

DataParallel<Masks> wrapped(int devices, int shards, std::uint64_t seed = 3) {
    EngineOptions options;
    options.shards = shards;
    options.seed = seed;
    return DataParallel<Masks>(all_ones(), test::cpu_devices(devices), options);
}

/// The masks of `forwards` training forwards, one after another.
std::vector<std::vector<Values>> masks(int devices, int shards, std::int64_t rows, int forwards = 1,
                                       std::uint64_t seed = 3) {
    const NoGrad no_grad;
    DataParallel<Masks> model = wrapped(devices, shards, seed);
    std::vector<std::vector<Values>> result;
    for (int i = 0; i < forwards; ++i) result.push_back(values_of(model.forward(ones(rows))));
    return result;
}

/// Element `index` of the mask of call `ordinal`.
float element(const StepCounters& state, std::uint32_t ordinal, std::uint64_t index, double p) {
    const double uniform = static_cast<double>(random_bits(state, ordinal, index) >> 8) / 16777216.0;
    return uniform < p ? 0.0f : static_cast<float>(1 / (1 - p));
}

}  // namespace

TEST_CASE("Philox 4x32-10 gives the numbers of its authors' known-answer test") {
    CHECK(philox({}, 0, 0) == std::array<std::uint32_t, 4>{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u});
    StepCounters ones_state;
    ones_state.seed = ones_state.step = ~std::uint64_t{0};
    CHECK(philox(ones_state, 0, ~std::uint64_t{0}) ==
          std::array<std::uint32_t, 4>{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu});
}

TEST_CASE("concatenated masks of eight shards are those of one shard") {
    for (const std::int64_t rows : {1, 5, 20, 64}) {
        const auto one = masks(1, 1, rows, 3);
        for (const int devices : {1, 3, 8}) {
            const auto eight = masks(devices, 8, rows, 3);
            for (std::size_t i = 0; i < one.size(); ++i)
                for (std::size_t mask = 0; mask < 3; ++mask) CHECK(eight[i][mask] == one[i][mask]);
        }
    }
}

TEST_CASE("masks are those of the documented counters") {
    constexpr std::int64_t rows = 20;
    const auto found = masks(3, 8, rows, 2);
    for (std::uint64_t micro = 0; micro < 2; ++micro) {
        StepCounters state;
        state.seed = 3;
        state.micro = micro;
        for (std::uint64_t i = 0; i < rows * row_size; ++i) {
            CHECK(found[micro][0][i] == element(state, 0, i, 0.5));
            CHECK(found[micro][1][i] == element(state, 1, i, 0.5));
            CHECK(found[micro][2][i] == element(state, 2, i / plane, 0.25));
        }
        for (std::uint64_t shard = 0; shard < 7; ++shard)  // 20 rows in 8 shards: 7 have rows
            for (std::uint64_t i = 0; i < 16; ++i)
                CHECK(found[micro][3][shard * 16 + i] == element(state, 3, (shard << 40) + i, 0.5));
    }
}

TEST_CASE("layers, rows, forwards, steps and seeds all have different masks") {
    constexpr std::int64_t rows = 64;
    const auto found = masks(3, 8, rows, 4);
    std::set<Values> all;
    std::size_t count = 0;
    for (const auto& forward : found) {
        for (std::size_t mask = 0; mask < 2; ++mask)
            for (std::int64_t row = 0; row < rows; ++row, ++count)
                all.emplace(forward[mask].begin() + row * row_size, forward[mask].begin() + (row + 1) * row_size);
        for (std::int64_t shard = 0; shard < 8; ++shard, ++count)
            all.emplace(forward[3].begin() + shard * 16, forward[3].begin() + (shard + 1) * 16);
    }
    // 512 rows of 30 bits and 32 of 16: an equal pair by chance once in 4,000 runs of other seeds.
    CHECK(all.size() == count);
    CHECK(masks(1, 1, rows, 1, 4)[0][0] != found[0][0]);

    double kept = 0;
    for (const auto& forward : found)
        for (const float value : forward[2]) kept += value != 0;
    CHECK(kept / (4.0 * rows * row_size) == Approx(0.75).margin(0.05));

    DataParallel<Masks> model = wrapped(2, 8);
    model.engine().set_steps_done(1);
    const NoGrad no_grad;
    CHECK(values_of(model.forward(ones(rows)))[0] != found[0][0]);
}

TEST_CASE("evaluation has no masks and does not advance those of training") {
    const NoGrad no_grad;
    const auto expected = masks(1, 1, 20, 2);
    DataParallel<Masks> model = wrapped(2, 8);
    CHECK(values_of(model.forward(ones(20)))[0] == expected[0][0]);
    model.eval();
    CHECK(values_of(model.forward(ones(20)))[0] == Values(20 * row_size, 1.0f));
    model.train();
    CHECK(values_of(model.forward(ones(20)))[0] == expected[1][0]);
}

TEST_CASE("eager use agrees with one shard") {
    const NoGrad no_grad;
    const auto expected = masks(1, 1, 20, 1, 9);
    for (const Device device : {Device::host(), Device::cpu(0), Device::cpu(3)}) {
        Masks model = all_ones();
        model.fc.weight.rebind(model.fc.weight->to(device));
        manual_seed(9);
        CHECK(values_of(model.forward(ones(20).to(device).tag_batch())) == expected[0]);
    }
}

TEST_CASE("a wrapper without a seed uses that of manual_seed") {
    const NoGrad no_grad;
    for (const std::uint64_t seed : {11u, 12u}) {
        manual_seed(seed);
        DataParallel<Masks> model(all_ones(), test::cpu_devices(2), {.shards = 8});
        CHECK(values_of(model.forward(ones(20))) == masks(2, 8, 20, 1, seed)[0]);
    }
}
