// Random tensors on the stand-in and on GPUs: the bits of CPU devices, from any row on, and reports of bad parameters.
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/internal/random_operations.h"
#include "lockstep/runtime/random.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/ops/cuda_kernel_call.h"

using namespace lockstep;
using namespace lockstep::test;

namespace {

using Numbers = std::vector<double>;

Numbers values_of(const Tensor& x) { return x.to(Device::host()).to(DType::f64).to_vector<double>(); }

constexpr DType dtypes[] = {DType::f32, DType::f64, DType::f16, DType::bf16};

/// All random tensors of one shape, one after another.
Numbers drawn(std::int64_t count, DType dtype, Device device) {
    std::vector<float> ramp;
    for (std::int64_t i = 0; i < count; ++i) ramp.push_back(static_cast<float>(i % 9) / 8);
    const Tensor x = Tensor::from(ramp, {count}).to(dtype).to(device);
    manual_seed(31);
    Numbers all;
    for (const Tensor& y :
         {rand_like(x), randn_like(x), bernoulli(x), bernoulli(x, 0.25), normal(x, x), normal(x, 2), normal(2, x)}) {
        CHECK(y.dtype() == dtype);
        CHECK(y.device() == device);
        const Numbers part = values_of(y);
        all.insert(all.end(), part.begin(), part.end());
    }
    return all;
}

}  // namespace

TEST_CASE("GPUs draw the bits of CPU devices") {
    const NoMistakes end;
    for (const DType dtype : dtypes)
        for (const std::int64_t count : {1, 2, 3, 4, 5, 8, 33, 257, 2051}) {
            INFO(name_of(dtype) << ", " << count);
            CHECK(drawn(count, dtype, gpu) == drawn(count, dtype, Device::cpu(0)));
        }
    CHECK(drawn(70000, DType::f32, gpu) == drawn(70000, DType::f32, Device::cpu(0)));
    manual_seed(0);
}

TEST_CASE("random tensors of shards are those of the batch") {
    const NoMistakes end;
    const OnDevice<StepCounters> step({{42, 3, 1}});
    const std::int64_t row_size = 7, rows = 9;
    // first_row, rows
    const std::vector<std::pair<std::int64_t, std::int64_t>> cuts[] = {{{0, 9}}, {{0, 3}, {3, 5}, {8, 1}}};
    for (const Distribution distribution :
         {Distribution::uniform, Distribution::normal, Distribution::bernoulli, Distribution::dropout})
        for (const bool wide : {false, true}) {
            std::vector<Numbers> found;
            for (const auto& cut : cuts) {
                Numbers joined;
                for (const auto& [first, count] : cut) {
                    const auto elements = static_cast<std::size_t>(count * row_size);
                    const OnDevice<double> numbers(Numbers(elements, -1));
                    const DType dtype = wide ? DType::f64 : DType::f32;
                    Call call;
                    call.out_metas = {TensorMeta::contiguous(dtype, {count, row_size}, true)};
                    call.out = {numbers.data()};
                    call.step = step.data();
                    call.ordinal = 5;
                    call.first_row = first;
                    call.run(RandomValues{distribution, 0.25, DrawBy::row});
                    const Numbers bytes = numbers.fetch();
                    for (std::size_t e = 0; e < elements; ++e)
                        joined.push_back(wide ? bytes[e]
                                              : static_cast<double>(reinterpret_cast<const float*>(bytes.data())[e]));
                }
                found.push_back(joined);
            }
            CHECK(found[0].size() == static_cast<std::size_t>(rows * row_size));
            CHECK(found[0] == found[1]);
            for (std::size_t e = 0; e < found[0].size() && !wide; ++e) {
                const float u = to_uniform(random_bits({42, 3, 1}, 5, e));
                if (distribution == Distribution::uniform) CHECK(found[0][e] == static_cast<double>(u));
                if (distribution == Distribution::bernoulli) CHECK(found[0][e] == (u < 0.25F ? 1 : 0));
                if (distribution == Distribution::dropout) CHECK(found[0][e] == Approx(u < 0.25F ? 0 : 1 / 0.75));
            }
        }
}

TEST_CASE("a tensor without a batch has the same numbers on every shard, or different ones") {
    const NoMistakes end;
    const OnDevice<StepCounters> step({{42, 3, 1}});
    const auto on_shard = [&](DrawBy by, int shard) {
        const OnDevice<float> numbers(std::vector<float>(11, -1));
        Call call;
        call.out_metas = {floats(11)};
        call.out = {numbers.data()};
        call.step = step.data();
        call.shard = shard;
        call.first_row = 100;
        call.run(RandomValues{Distribution::uniform, 0, by});
        return numbers.fetch();
    };
    CHECK(on_shard(DrawBy::element, 0) == on_shard(DrawBy::element, 3));
    CHECK(on_shard(DrawBy::shard, 0) == on_shard(DrawBy::element, 0));
    for (std::uint64_t e = 0; e < 11; ++e)
        CHECK(on_shard(DrawBy::shard, 3)[e] == to_uniform(random_bits({42, 3, 1}, 0, (std::uint64_t{3} << 40) + e)));
}

TEST_CASE("numbers of inference depend on its own count") {
    StepCounters state{42, 3, 1};
    const auto first = random_bits(state, inference_ordinals, 0);
    state.micro = 2;
    CHECK(random_bits(state, inference_ordinals, 0) == first);
    state.inference = 1;
    CHECK(random_bits(state, inference_ordinals, 0) != first);
}

TEST_CASE("a parameter out of range is reported with its row and value") {
    const NoMistakes end;
    const double infinity = std::numeric_limits<double>::infinity();
    const OnDevice<StepCounters> step({{0, 11, 0}});
    const auto reported = [&](Distribution distribution, DrawBy by, DType dtype, std::int64_t count, std::int64_t bad,
                              double value) {
        std::vector<double> parameters(static_cast<std::size_t>(count), 1);
        if (bad >= 0) parameters[static_cast<std::size_t>(bad)] = parameters.back() = value;
        const Tensor p = Tensor::from(parameters, {count}).to(dtype).to(gpu);
        const Tensor out = Tensor::zeros({count}, dtype, gpu);
        const OnDevice<StatusWord> status({StatusWord{}});
        Call call;
        call.in_metas = call.out_metas = {TensorMeta::contiguous(dtype, {count})};
        call.in = {p.impl()->storage->buffer->data()};
        call.out = {out.impl()->storage->buffer->data()};
        call.step = step.data();
        call.status = status.data();
        call.shard = 2;
        call.first_row = 100;
        call.run(RandomValuesOf{distribution, 2, by});
        return status.fetch()[0];
    };
    for (const DType dtype : dtypes)
        for (const auto& [count, bad] : {std::pair<std::int64_t, std::int64_t>{1, 0}, {9, 4}, {300, 7}, {5000, 4000}}) {
            INFO(name_of(dtype) << ", " << count);
            const StatusWord p = reported(Distribution::bernoulli, DrawBy::row, dtype, count, bad, 1.5);
            CHECK(p.code == static_cast<std::int32_t>(StatusCode::probability_out_of_range));
            CHECK(p.shard == 2);
            CHECK(p.step == 11);
            CHECK(p.row == 100 + bad / 2);
            CHECK(std::bit_cast<double>(p.value) == 1.5);
            const StatusWord std = reported(Distribution::normal, DrawBy::element, dtype, count, bad, -0.5);
            CHECK(std.code == static_cast<std::int32_t>(StatusCode::deviation_negative));
            CHECK(std.row == bad / 2);
            CHECK(std::bit_cast<double>(std.value) == -0.5);
            CHECK(reported(Distribution::normal, DrawBy::row, dtype, count, bad, infinity).code == 0);
            CHECK(reported(Distribution::bernoulli, DrawBy::row, dtype, count, -1, 0).code == 0);
        }
    CHECK(reported(Distribution::bernoulli, DrawBy::row, DType::f32, 70000, 69000, -1).row == 100 + 34500);
    CHECK(std::isnan(
        std::bit_cast<double>(reported(Distribution::bernoulli, DrawBy::row, DType::f16, 9, 3, std::nan("")).value)));
}
