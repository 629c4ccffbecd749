// CUDA kernels of the state that layers commit, on the stand-in and on GPUs.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "lockstep/ops/internal/nn_operations.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/ops/cuda_kernel_call.h"

using namespace lockstep;
using namespace lockstep::test;

TEST_CASE("the state of many layers is that of each of them") {
    const NoMistakes end;
    constexpr std::size_t layers = 70;  // more than one launch takes
    const OnDevice<StatusWord> good({StatusWord{}}), refused({bad});
    const auto channels = [](std::size_t layer) { return 1 + layer % 7; };
    for (const int shards : {1, 3, 70}) {
        std::vector<OnDevice<float>> stats;  // all layers of a shard, then those of the next shard
        for (int s = 0; s < shards; ++s)
            for (std::size_t l = 0; l < layers; ++l) {
                std::vector<float> values(2 * channels(l) + 1);
                for (std::size_t i = 0; i < values.size(); ++i)
                    values[i] = static_cast<float>((i * 7 + l * 3 + static_cast<std::size_t>(s)) % 11) + 0.5f;
                values.back() = static_cast<float>(2 + s % 3);
                stats.emplace_back(values);
            }
        std::vector<OnDevice<float>> pooled, alone;
        Call all;
        all.shards = shards;
        for (std::size_t l = 0; l < layers; ++l) {
            const std::size_t size = 2 * channels(l) + 1;
            pooled.emplace_back(std::vector<float>(size));
            alone.emplace_back(std::vector<float>(size));
            all.in_metas.push_back(floats(static_cast<std::int64_t>(size)));
            all.out.push_back(pooled.back().data());
            Call one;
            one.shards = shards;
            one.in_metas = one.out_metas = {all.in_metas.back()};
            for (int s = 0; s < shards; ++s) one.in.push_back(stats[static_cast<std::size_t>(s) * layers + l].data());
            one.out = {alone.back().data()};
            one.run(BatchNormPoolStats{});
        }
        all.out_metas = all.in_metas;
        for (const auto& each : stats) all.in.push_back(each.data());
        all.run(BatchNormPoolStats{});
        for (std::size_t l = 0; l < layers; ++l) REQUIRE(pooled[l].fetch() == alone[l].fetch());
    }
    std::vector<OnDevice<float>> stats, mean, variance;
    std::vector<OnDevice<std::int64_t>> counters;
    Call update, count;
    for (std::size_t l = 0; l < layers; ++l) {
        const auto size = static_cast<std::int64_t>(channels(l));
        std::vector<float> values(2 * channels(l) + 1, static_cast<float>(l));
        values.back() = 5;
        stats.emplace_back(values);
        mean.emplace_back(std::vector<float>(channels(l), 10));
        variance.emplace_back(std::vector<float>(channels(l), 20));
        counters.emplace_back(std::vector<std::int64_t>{static_cast<std::int64_t>(l)});
        update.in_metas.push_back(floats(2 * size + 1));
        update.in.push_back(stats.back().data());
        for (auto* each : {&mean, &variance}) {
            update.out_metas.push_back(floats(size));
            update.out.push_back(each->back().data());
        }
        count.out_metas.push_back(TensorMeta::contiguous(DType::i64, {}));
        count.out.push_back(counters.back().data());
    }
    for (const bool is_good : {false, true}) {
        update.agreed = count.agreed = is_good ? good.data() : refused.data();
        update.run(BatchNormUpdateRunning{0.25});
        count.run(IncrementCounter{});
        for (std::size_t l = 0; l < layers; ++l) {
            const double value = static_cast<double>(l);
            CHECK(counters[l].fetch()[0] == static_cast<std::int64_t>(l) + (is_good ? 1 : 0));
            CHECK(mean[l].fetch().back() == Approx(is_good ? 0.75 * 10 + 0.25 * value : 10));
            CHECK(variance[l].fetch().back() == Approx(is_good ? 0.75 * 20 + 0.25 * value / 4 : 20));
        }
    }
}
