// CUDA kernels outside of the op table, on the stand-in and on GPUs: operations across shards, commits and status
// reports.
#include <cmath>
#include <cstddef>
#include <numeric>
#include <vector>

#include "lockstep/ops/internal/control_operations.h"
#include "lockstep/ops/internal/nn_operations.h"
#include "lockstep/ops/internal/random_operations.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/ops/cuda_kernel_call.h"

using namespace lockstep;
using namespace lockstep::test;

namespace {

/// Numbers whose sums depend on the order.
std::vector<float> uneven(std::size_t count, int salt) {
    std::vector<float> values(count);
    for (std::size_t i = 0; i < count; ++i)
        values[i] = std::sin(static_cast<float>(i * 37 + static_cast<std::size_t>(salt) * 101)) *
                    std::pow(10.0f, static_cast<float>((i + static_cast<std::size_t>(salt)) % 7));
    return values;
}

/// The tree of shards: [lo, hi) splits at the largest power of two below its length.
float tree(const std::vector<std::vector<float>>& shards, std::size_t element, std::size_t lo, std::size_t hi) {
    if (hi - lo == 1) return shards[lo][element];
    std::size_t half = 1;
    while (half * 2 < hi - lo) half *= 2;
    return tree(shards, element, lo, lo + half) + tree(shards, element, lo + half, hi);
}

}  // namespace

TEST_CASE("sums over shards follow the tree bit for bit, also beyond one group of pointers") {
    const NoMistakes end;
    for (const int shards : {1, 2, 3, 5, 7, 8, 64, 65, 130, 200}) {
        std::vector<std::vector<float>> values;
        std::vector<OnDevice<float>> memory;
        Call call;
        for (int s = 0; s < shards; ++s) {
            values.push_back(uneven(33, s));
            memory.emplace_back(values.back());
            call.in.push_back(memory.back().data());
        }
        const OnDevice<float> sum(std::vector<float>(33));
        call.in_metas = call.out_metas = {floats(33)};
        call.out = {sum.data()};
        call.shards = shards;
        call.run(SumOverShards{});
        const auto found = sum.fetch();
        for (std::size_t e = 0; e < 33; ++e) REQUIRE(found[e] == tree(values, e, 0, values.size()));
    }
}

TEST_CASE("partial sums give the tree's bits, and accumulate") {
    const NoMistakes end;
    std::vector<std::vector<float>> values;
    for (int s = 0; s < 7; ++s) values.push_back(uneven(20, s));
    // Partial sums of two devices, one with shards 3 to 6 and one with shards 0 to 2.
    const std::vector<std::pair<int, int>> ranges{{0, 2}, {2, 3}, {3, 4}, {4, 6}, {6, 7}};
    std::vector<OnDevice<float>> memory;
    Call call;
    for (const auto& [lo, hi] : ranges) {
        std::vector<float> part(20);
        for (std::size_t e = 0; e < 20; ++e)
            part[e] = tree(values, e, static_cast<std::size_t>(lo), static_cast<std::size_t>(hi));
        memory.emplace_back(part);
        call.in.push_back(memory.back().data());
        call.in_metas.push_back(floats(20));
    }
    const OnDevice<float> out(std::vector<float>(20, 2.5f));
    call.out_metas = {floats(20)};
    call.out = {out.data()};
    call.run(TreeSum{ranges, false});
    auto found = out.fetch();
    for (std::size_t e = 0; e < 20; ++e) REQUIRE(found[e] == tree(values, e, 0, 7));
    call.run(TreeSum{ranges, true});
    found = out.fetch();
    for (std::size_t e = 0; e < 20; ++e) REQUIRE(found[e] == tree(values, e, 0, 7) + tree(values, e, 0, 7));
    const OnDevice<StatusWord> refused({bad});
    call.agreed = refused.data();
    call.run(TreeSum{ranges, true});
    REQUIRE(out.fetch() == found);
    call.run(TreeSum{ranges, true, true});  // to memory that does not outlive the step
    for (std::size_t e = 0; e < 20; ++e) REQUIRE(out.fetch()[e] == found[e] + tree(values, e, 0, 7));
}

TEST_CASE("sums of any length, of tensors that begin anywhere, have the tree's bits") {
    const NoMistakes end;
    for (const std::size_t parts : {1, 2, 3, 4, 8, 9})
        for (const std::size_t count : {1, 3, 4, 37})
            for (const std::size_t begin : {0, 1, 4}) {
                INFO(parts << " parts of " << count << " elements from " << begin);
                std::vector<std::vector<float>> values;
                std::vector<OnDevice<float>> memory;
                std::vector<std::pair<int, int>> ranges;
                Call sum, shards;
                for (std::size_t i = 0; i < parts; ++i) {
                    values.push_back(uneven(begin + count, static_cast<int>(i)));
                    memory.emplace_back(values.back());
                    sum.in.push_back(memory.back().data() + begin);
                    sum.in_metas.push_back(floats(static_cast<std::int64_t>(count)));
                    ranges.emplace_back(static_cast<int>(i), static_cast<int>(i) + 1);
                }
                const OnDevice<float> out(std::vector<float>(begin + count + 1, 3)),
                    all(std::vector<float>(begin + count + 1, 3));
                sum.out_metas = {floats(static_cast<std::int64_t>(count))};
                sum.out = {out.data() + begin};
                sum.run(TreeSum{ranges, true, true});
                shards.in = sum.in;
                shards.in_metas = shards.out_metas = sum.out_metas;
                shards.out = {all.data() + begin};
                shards.shards = static_cast<int>(parts);
                shards.run(SumOverShards{});
                const auto found = out.fetch(), found_all = all.fetch();
                for (std::size_t e = begin; e < begin + count; ++e) {
                    REQUIRE(found_all[e] == tree(values, e, 0, parts));
                    REQUIRE(found[e] == 3 + tree(values, e, 0, parts));
                }
                CHECK(found.back() == 3);
                CHECK(found_all.back() == 3);
                CHECK((begin == 0 || found[begin - 1] == 3));
            }
}

TEST_CASE("pooled statistics are those of all values") {
    const NoMistakes end;
    const int shards = 70;
    const std::size_t channels = 3;
    std::vector<OnDevice<float>> memory;
    std::vector<std::vector<double>> all(channels);
    std::vector<float> first;
    Call call;
    for (int s = 0; s < shards; ++s) {
        const std::size_t count = 2 + static_cast<std::size_t>(s % 3);
        std::vector<float> stats(2 * channels + 1);
        for (std::size_t c = 0; c < channels; ++c) {
            double mean = 0, m2 = 0;
            for (std::size_t k = 0; k < count; ++k) {
                all[c].push_back(std::sin(static_cast<double>(s * 13) + static_cast<double>(k + c)));
                mean += all[c].back() / static_cast<double>(count);
            }
            for (std::size_t k = all[c].size() - count; k < all[c].size(); ++k)
                m2 += (all[c][k] - mean) * (all[c][k] - mean);
            stats[c] = static_cast<float>(mean);
            stats[channels + c] = static_cast<float>(m2);
        }
        stats[2 * channels] = static_cast<float>(count);
        if (s == 0) first = stats;
        memory.emplace_back(stats);
        call.in.push_back(memory.back().data());
    }
    const OnDevice<float> pooled(std::vector<float>(2 * channels + 1));
    call.in_metas = call.out_metas = {floats(2 * channels + 1)};
    call.out = {pooled.data()};
    call.shards = shards;
    call.run(BatchNormPoolStats{});
    const auto found = pooled.fetch();
    for (std::size_t c = 0; c < channels; ++c) {
        const auto n = static_cast<double>(all[c].size());
        const double mean = std::accumulate(all[c].begin(), all[c].end(), 0.0) / n;
        double m2 = 0;
        for (const double x : all[c]) m2 += (x - mean) * (x - mean);
        CHECK(std::abs(found[c] - mean) < 1e-6);
        CHECK(std::abs(found[channels + c] - m2) < 1e-5 * m2);
        CHECK(found[2 * channels] == static_cast<float>(n));
    }
    call.run(BatchNormPoolStats{true});
    CHECK(pooled.fetch() == first);
}

TEST_CASE(
    "dropout multiplies by the mask of the batch, in every dtype, layout and alignment, and so does its gradient") {
    const NoMistakes end;
    const StepCounters counters{42, 3, 1};
    const OnDevice<StepCounters> step({counters});
    constexpr double p = 0.25;
    const auto check = [&](DType dtype, const Shape& shape, const Shape& strides, std::int64_t first_row,
                           std::int64_t offset) {
        INFO(name_of(dtype) << ", " << shape.str() << ", from row " << first_row << ", offset " << offset);
        const std::int64_t count = shape.numel();
        std::vector<float> x_values, dx_values(static_cast<std::size_t>(offset + count), 0);
        for (std::int64_t i = 0; i < offset + count; ++i) x_values.push_back(static_cast<float>(i % 7 - 3) / 2);
        const auto room = [&](const std::vector<float>& values) {
            return Tensor::from(values, {static_cast<std::int64_t>(values.size())}).to(dtype).to(gpu);
        };
        const Tensor x = room(x_values), y = room(dx_values), dx = room(dx_values);
        const OnDevice<std::uint8_t> kept(std::vector<std::uint8_t>(static_cast<std::size_t>(count), 9));
        const auto at = [&](const Tensor& tensor) -> void* {
            return static_cast<char*>(tensor.impl()->storage->buffer->data()) +
                   static_cast<std::size_t>(offset) * size_of(dtype);
        };
        TensorMeta image = TensorMeta::contiguous(dtype, shape, true);
        image.strides = strides;
        const TensorMeta mask = TensorMeta::contiguous(DType::u8, shape, true);
        Call call;
        call.in_metas = {image};
        call.out_metas = {image, mask};
        call.in = {at(x)};
        call.out = {at(y), kept.data()};
        call.step = step.data();
        call.ordinal = 5;
        call.first_row = first_row;
        call.run(DropoutForward{p, DrawBy::row});
        Call backward;
        backward.in_metas = {image, mask};
        backward.out_metas = {image};
        backward.in = {at(x), kept.data()};
        backward.out = {at(dx)};
        backward.run(DropoutBackward{p});
        const auto values = [](const Tensor& tensor) { return tensor.to(DType::f32).to_vector<float>(); };
        const std::vector<float> found = values(y), found_dx = values(dx);
        const std::vector<std::uint8_t> found_mask = kept.fetch();
        const std::int64_t row = count / shape[0];
        for (std::int64_t e = 0; e < count; ++e) {
            std::int64_t place = offset, rest = e;
            for (int d = shape.dims(); d-- > 0; rest /= shape[d]) place += rest % shape[d] * strides[d];
            const std::uint32_t bits = random_bits(counters, 5, static_cast<std::uint64_t>(first_row * row + e));
            const bool keeps = !(to_uniform(bits) < 0.25f);
            const auto i = static_cast<std::size_t>(place);
            const float expected = x_values[i] * (keeps ? 1 / 0.75f : 0);
            REQUIRE(found_mask[static_cast<std::size_t>(e)] == (keeps ? 1 : 0));
            REQUIRE(found[i] == Approx(expected).epsilon(0x1p-8));
            REQUIRE(found_dx[i] == found[i]);
        }
    };
    for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16})
        for (const std::int64_t offset : {0, 1}) {
            for (const std::int64_t columns : {7, 8, 300})
                for (const std::int64_t first_row : {0, 3}) check(dtype, {3, columns}, {columns, 1}, first_row, offset);
            check(dtype, {2, 3, 4, 5}, {60, 1, 15, 3}, 1, offset);  // channels last
        }
}

TEST_CASE("a target out of range is reported once, with its global row") {
    const NoMistakes end;
    const OnDevice<StepCounters> step({{0, 11, 0}});
    const OnDevice<StatusWord> status({StatusWord{}});
    const OnDevice<float> x({-1, -2, -3, -4, -5, -6});
    const OnDevice<std::int64_t> target({1, 2, -5});
    const OnDevice<float> numerator({0}), weight({0});
    Call call;
    call.in_metas = {TensorMeta::contiguous(DType::f32, {3, 2}), TensorMeta::contiguous(DType::i64, {3}), {}};
    call.out_metas = {TensorMeta::contiguous(DType::f32, {}), TensorMeta::contiguous(DType::f32, {})};
    call.in = {x.data(), target.data(), nullptr};
    call.out = {numerator.data(), weight.data()};
    call.step = step.data();
    call.status = status.data();
    call.shard = 2;
    call.first_row = 100;
    call.run(NllForward{-100});
    StatusWord found = status.fetch()[0];
    CHECK(found.code == static_cast<std::int32_t>(StatusCode::target_out_of_range));
    CHECK(found.shard == 2);
    CHECK(found.step == 11);
    CHECK(found.row == 101);
    CHECK(found.value == 2);
    CHECK(numerator.fetch()[0] == 2);  // only the good row
    CHECK(weight.fetch()[0] == 1);
    call.first_row = 500;
    call.run(NllForward{-100});
    CHECK(status.fetch()[0].row == 101);
    call.in[0] = nullptr;  // only the weight
    call.run(NllForward{1});
    CHECK(numerator.fetch()[0] == 0);
    CHECK(weight.fetch()[0] == 0);
    call.run(NllForward{2});
    CHECK(weight.fetch()[0] == 1);
}

TEST_CASE("ranks agree on the status of the lowest shard, which is then final") {
    const NoMistakes end;
    const OnDevice<StatusWord> good({StatusWord{}}), other({StatusWord{1, 5, 7, 40, 12}}), late({bad}),
        agreed({StatusWord{}});
    Call call;
    call.in_metas.assign(3, bytes(sizeof(StatusWord)));
    call.out_metas = {bytes(sizeof(StatusWord))};
    call.in = {good.data(), other.data(), late.data()};
    call.out = {agreed.data()};
    call.run(AgreeStatus{});
    CHECK(agreed.fetch()[0].row == 40);
    call.in = {late.data(), good.data(), good.data()};
    call.run(AgreeStatus{});
    CHECK(agreed.fetch()[0].row == 40);
}
