// CUDA kernels between the last gradient and the next step, except updates, on the stand-in and on GPUs: norms of
// gradients, clipping, the loss scale, counters and commits.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "lockstep/ops/internal/control_operations.h"
#include "lockstep/ops/internal/nn_operations.h"
#include "lockstep/ops/internal/optimizer_operations.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/recorded_scales.h"
#include "lockstep/tests/ops/cuda_kernel_call.h"
#include "lockstep/tests/ops/sgd_rows.h"

using namespace lockstep;
using namespace lockstep::test;

TEST_CASE("measures of grains have the bits of the function for a grain") {
    const NoMistakes end;
    const std::size_t count = 64 * 37 + 13;
    std::vector<float> g(count);
    for (std::size_t i = 0; i < count; ++i)
        g[i] = std::sin(static_cast<float>(i * 7 + 1)) * std::pow(10.0f, static_cast<float>(i % 5));
    const OnDevice<float> gradients(g);
    for (const double order : {2.0, 1.0, static_cast<double>(INFINITY)}) {
        const std::size_t grains = (count + 63) / 64;
        const OnDevice<double> measures(std::vector<double>(grains, -1));
        Call call;
        call.in_metas = {floats(static_cast<std::int64_t>(count)), {}};
        call.in = {gradients.data(), nullptr};
        call.out_metas = {TensorMeta::contiguous(DType::f64, {static_cast<std::int64_t>(grains)})};
        call.out = {measures.data()};
        call.run(MeasureGradients{{{0, static_cast<std::int64_t>(count), 0, 1}}, order});
        const auto found = measures.fetch();
        for (std::size_t grain = 0; grain < grains; ++grain) {
            const std::size_t first = grain * 64, number = std::min<std::size_t>(64, count - first);
            double expected = 0, sums[8] = {};
            for (std::size_t i = 0; i < number; ++i) {
                const auto value = static_cast<double>(std::abs(g[first + i]));
                sums[i % 8] += value * value;
                expected = order == 1 ? expected + value : std::max(expected, value);
            }
            if (order == 2)
                expected = ((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7]));
            REQUIRE(found[grain] == expected);
        }
    }
}

TEST_CASE("any number of bytes is committed wherever it begins") {
    const NoMistakes end;
    const OnDevice<StatusWord> good({StatusWord{}});
    for (const std::size_t begin : {0, 1, 16})
        for (const std::size_t count : {1, 15, 16, 17, 1000}) {
            std::vector<std::uint8_t> values(begin + count + 1);
            for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::uint8_t>(i * 5 + 1);
            const OnDevice<std::uint8_t> prepared(values), lasting(std::vector<std::uint8_t>(values.size()));
            Call call;
            call.in_metas = call.out_metas = {bytes(count)};
            call.in = {prepared.data() + begin};
            call.out = {lasting.data() + begin};
            call.agreed = good.data();
            call.run(CommitIfOk{});
            const auto found = lasting.fetch();
            for (std::size_t i = 0; i < values.size(); ++i)
                REQUIRE(found[i] == (i >= begin && i < begin + count ? values[i] : 0));
        }
}

TEST_CASE("norms and clipping by group, across gaps and partial grains") {
    const NoMistakes end;
    // Parameters [0, 100) of group 0 and [128, 200) of group 1: elements 100 to 127 are a gap with non-finite values.
    std::vector<SgdRow> table{sgd_row(0, 100, 0, {}), sgd_row(128, 200, 0, {})};
    table[1].row.group = 1;
    std::vector<float> g(200, NAN);
    double squares = 0, largest = 0, cubes = 0;
    for (std::size_t i = 0; i < 200; ++i) {
        if (i >= 100 && i < 128) continue;
        g[i] = static_cast<float>(std::sin(static_cast<double>(i)));
        squares += double(g[i]) * g[i];
        largest = std::max(largest, double(std::abs(g[i])));
        if (i >= 128) cubes += std::pow(std::abs(double(g[i])), 3);
    }
    const OnDevice<SgdRow> rows(table);
    const OnDevice<float> gradients(g);
    const auto doubles = [](std::int64_t count) { return TensorMeta::contiguous(DType::f64, {count}); };
    const TensorMeta scalar = TensorMeta::contiguous(DType::f64, {});
    const OnDevice<double> measures(std::vector<double>(4, -1)), norm({-1}), factor({-1});
    const auto norm_of = [&](double order, int group) {
        Call measure;
        measure.in_metas = {floats(200), bytes(2 * sizeof(SgdRow))};
        measure.out_metas = {doubles(4)};
        measure.in = {gradients.data(), rows.data()};
        measure.out = {measures.data()};
        measure.run(MeasureGradients{{{0, 200, 0, 2}, sizeof(SgdRow), group}, order});
        Call combine;
        combine.in_metas = {doubles(4)};
        combine.out_metas = {scalar};
        combine.in = {measures.data()};
        combine.out = {norm.data()};
        combine.run(CombineMeasures{order});
        return norm.fetch()[0];
    };
    CHECK(norm_of(INFINITY, GradientRange::all_groups) == Approx(largest));
    CHECK(norm_of(3, 1) == Approx(std::cbrt(cubes)));
    CHECK(norm_of(2, GradientRange::all_groups) == Approx(std::sqrt(squares)));
    Call clip;
    clip.in_metas = clip.out_metas = {scalar};
    clip.in = {norm.data()};
    clip.out = {factor.data()};
    clip.run(ClipCoefficient{2});
    CHECK(factor.fetch()[0] == Approx(2 / (std::sqrt(squares) + 1e-6)));
    Call scale;
    scale.in_metas = {scalar, bytes(2 * sizeof(SgdRow))};
    scale.out_metas = {floats(200)};
    scale.in = {factor.data(), rows.data()};
    scale.out = {gradients.data()};
    scale.run(ScaleGradients{{{0, 200, 0, 2}, sizeof(SgdRow), 1}});
    Call clamp;
    clamp.in_metas = {bytes(2 * sizeof(SgdRow))};
    clamp.out_metas = {floats(200)};
    clamp.in = {rows.data()};
    clamp.out = {gradients.data()};
    clamp.run(ClampGradients{{{0, 200, 0, 2}, sizeof(SgdRow), 0}, 0.5});
    const auto found = gradients.fetch();
    for (std::size_t i = 0; i < 200; ++i) {
        const double before = std::sin(static_cast<double>(i));
        if (i < 100) CHECK(found[i] == Approx(std::clamp(before, -0.5, 0.5)));
        if (i >= 128) CHECK(found[i] == Approx(before * factor.fetch()[0]));
    }
    CHECK(std::isnan(found[110]));

    const OnDevice<StepCounters> step({{1, 9, 0}});
    const OnDevice<double> broken({NAN});
    for (const bool refuses : {false, true}) {
        const OnDevice<StatusWord> agreed({StatusWord{}});
        Call judge;
        judge.step = step.data();
        judge.in_metas = {scalar};
        judge.out_metas = {bytes(sizeof(StatusWord))};
        judge.in = {norm.data()};
        judge.out = {agreed.data()};
        judge.run(CheckGradNorm{refuses});
        CHECK(agreed.fetch()[0].code == 0);
        judge.in = {broken.data()};
        judge.run(CheckGradNorm{refuses});
        const auto code = refuses ? StatusCode::gradients_not_finite : StatusCode::skipped;
        CHECK(agreed.fetch()[0].code == static_cast<std::int32_t>(code));
        CHECK(agreed.fetch()[0].step == 9);
        // The next step clears the skip status of this one, but not a refusal.
        Call forget;
        forget.out_metas = {bytes(sizeof(StatusWord))};
        forget.out = {agreed.data()};
        forget.run(ClearSkipFlag{});
        CHECK((agreed.fetch()[0].code == 0) == !refuses);
    }
}

TEST_CASE("the loss scale follows PyTorch, and a refused step changes nothing") {
    const NoMistakes end;
    const OnDevice<double> factor({0});
    for (const RecordedScales& recorded : recorded_scales()) {
        const GradScalerOptions& rule = recorded.options;
        const OnDevice<LossScale> state({{static_cast<double>(static_cast<float>(rule.init_scale)), 0}});
        const UpdateLossScale update{rule.growth_factor, rule.backoff_factor, rule.growth_interval};
        const OnDevice<StatusWord> good({StatusWord{}}), refused({bad}),
            skipped({StatusWord{.code = static_cast<std::int32_t>(StatusCode::skipped)}});
        Call call;
        call.out_metas = {bytes(sizeof(LossScale))};
        call.out = {state.data()};
        for (int i = 0; i < static_cast<int>(recorded.after.size()); ++i) {
            call.agreed = refused.data();
            call.run(update);
            call.agreed = recorded.bad.contains(i) ? skipped.data() : good.data();
            call.run(update);
            const LossScale found = state.fetch()[0];
            CHECK(found.scale == recorded.after[static_cast<std::size_t>(i)].first);
            CHECK(found.good_steps == recorded.after[static_cast<std::size_t>(i)].second);
            Call unscale;
            unscale.in_metas = {bytes(sizeof(LossScale))};
            unscale.out_metas = {TensorMeta::contiguous(DType::f64, {})};
            unscale.in = {state.data()};
            unscale.out = {factor.data()};
            unscale.run(UnscaleFactor{});
            CHECK(factor.fetch()[0] == static_cast<double>(static_cast<float>(1 / found.scale)));
        }
    }
}

TEST_CASE("step counters, update counts and fresh rows") {
    const NoMistakes end;
    const OnDevice<StatusWord> good({StatusWord{}}), refused({bad});
    const OnDevice<StepCounters> state({{1, 4, 2}});
    const OnDevice<std::int64_t> counter({41});
    std::vector<SgdRow> held(3), wanted(3);
    held[1].row.updates = 1;
    held[0].row.counts = 0;
    for (auto& row : wanted) row.options.lr = 0.75;
    const OnDevice<SgdRow> rows(held), fresh(wanted);
    const OnDevice<std::uint8_t> prepared({7, 8, 9}), lasting({1, 2, 3});
    for (const bool is_good : {false, true}) {
        Call call;
        call.agreed = is_good ? good.data() : refused.data();
        call.out_metas = {bytes(sizeof(StepCounters))};
        call.out = {state.data()};
        call.run(AdvanceStep{Counted::inference});
        CHECK(state.fetch()[0].inference == (is_good ? 1 : 0));
        call.run(AdvanceStep{Counted::microbatch});
        CHECK(state.fetch()[0].inference == (is_good ? 1 : 0));
        CHECK(state.fetch()[0].micro == (is_good ? 3 : 2));
        call.run(AdvanceStep{Counted::step});
        CHECK(state.fetch()[0].step == (is_good ? 5 : 4));
        CHECK(state.fetch()[0].micro == (is_good ? 0 : 2));
        CHECK(state.fetch()[0].inference == 0);
        call.out_metas = {TensorMeta::contiguous(DType::i64, {})};
        call.out = {counter.data()};
        call.run(IncrementCounter{});
        CHECK(counter.fetch()[0] == (is_good ? 42 : 41));
        call.out_metas = {bytes(3 * sizeof(SgdRow))};
        call.out = {rows.data()};
        call.run(CountUpdates{sizeof(SgdRow), {0, 2}});
        CHECK(rows.fetch()[0].row.updates == 0);  // is not counted
        CHECK(rows.fetch()[2].row.updates == (is_good ? 1 : 0));
        call.in_metas = call.out_metas = {bytes(3)};
        call.in = {prepared.data()};
        call.out = {lasting.data()};
        call.run(CommitIfOk{});
        CHECK(lasting.fetch()[2] == (is_good ? 9 : 3));
    }
    Call call;
    call.in_metas = call.out_metas = {bytes(3 * sizeof(SgdRow))};
    call.in = {fresh.data()};
    call.out = {rows.data()};
    call.run(StoreRows{sizeof(SgdRow)});
    const auto stored = rows.fetch();
    CHECK(stored[0].options.lr == 0.75);
    CHECK(stored[0].row.counts == 1);
    CHECK(stored[0].row.updates == 0);
    CHECK(stored[1].row.updates == 1);
}

TEST_CASE("16-bit gradients are scaled and clipped in place") {
    const NoMistakes end;
    const auto check = [](auto stored) {
        using T = decltype(stored);
        const OnDevice<double> half({0.5});
        const OnDevice<T> gradients({T(3.0f), T(-4.0f), T(12.0f)});
        Call scale;
        scale.in_metas = {TensorMeta::contiguous(DType::f64, {}), TensorMeta()};
        scale.out_metas = {TensorMeta::contiguous(dtype_of<T>, {3})};
        scale.in = {half.data(), nullptr};
        scale.out = {gradients.data()};
        scale.run(ScaleGradients{{{.end = 3, .last = 1}}});
        Call clamp;
        clamp.in_metas = {TensorMeta()};
        clamp.out_metas = scale.out_metas;
        clamp.in = {nullptr};
        clamp.out = {gradients.data()};
        clamp.run(ClampGradients{{{.end = 3, .last = 1}}, 1.75});
        const std::vector<T> found = gradients.fetch();
        CHECK(static_cast<float>(found[0]) == 1.5f);
        CHECK(static_cast<float>(found[1]) == -1.75f);
        CHECK(static_cast<float>(found[2]) == 1.75f);
    };
    check(Half());
    check(BFloat16());
}
