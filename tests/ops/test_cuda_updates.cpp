// CUDA kernels that update parameters, on the stand-in and on GPUs: rules, norms of parameters, rows of options.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "lockstep/ops/adam.h"
#include "lockstep/ops/internal/optimizer_operations.h"
#include "lockstep/ops/lamb.h"
#include "lockstep/ops/sgd.h"
#include "lockstep/runtime/internal/core_operations.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/ops/cuda_kernel_call.h"
#include "lockstep/tests/ops/sgd_rows.h"
#include "lockstep/tests/reference/optimizers.h"

using namespace lockstep;
using namespace lockstep::test;

TEST_CASE("updates change only their parameters and range, and only if the step is good") {
    const NoMistakes end;
    // Parameters [0, 3), [4, 9) and [9, 12): element 3 is a gap, the third is frozen.
    std::vector<SgdRow> table{sgd_row(0, 3, 7, {.lr = 0.5, .momentum = 0.9}),
                              sgd_row(4, 9, 0, {.lr = 0.25, .momentum = 0.9, .weight_decay = 0.1}),
                              sgd_row(9, 12, 7, {.lr = 0.5})};
    table[2].row.trainable = 0;
    const std::vector<float> g{2, 3, 99, 4, 5, 6, 7, 8, 9, 9}, p(10, 10), m(10, 2);  // elements [1, 11)
    const OnDevice<StatusWord> good({StatusWord{}}), refused({bad});
    const OnDevice<SgdRow> rows(table);
    const OnDevice<float> gradients(g), parameters(p), momentum(m);
    Call call;
    call.in_metas = {floats(10), bytes(3 * sizeof(SgdRow))};
    call.out_metas = {floats(10), floats(10)};
    call.in = {gradients.data(), rows.data()};
    call.out = {parameters.data(), momentum.data()};
    call.agreed = refused.data();
    const FusedUpdate<SgdRule> update{{1, 11, 0, 3}, 1};
    call.run(update);
    CHECK(parameters.fetch() == p);
    call.agreed = good.data();
    call.run(update);
    const auto found = parameters.fetch();
    const auto buffers = momentum.fetch();
    for (std::size_t i = 0; i < 10; ++i) {
        double value = 10, buffer = 2;
        if (i < 2) {  // has momentum
            buffer = 0.9 * 2 + g[i];
            value = 10 - 0.5 * buffer;
        } else if (i >= 3 && i < 8) {  // its first update
            buffer = g[i] + 0.1 * 10;
            value = 10 - 0.25 * buffer;
        }
        CHECK(found[i] == Approx(value));
        CHECK(buffers[i] == Approx(buffer));
    }
}

TEST_CASE("norms of parameters are measured for a range, and rules use them") {
    const NoMistakes end;
    using Row = RowWith<LambOptions>;
    // Parameters [0, 70), [128, 300) and [320, 330): the first two have gaps after them, the third is frozen.
    const LambOptions options{.lr = 0.1, .weight_decay = 0.5, .always_adapt = true};
    const std::vector<std::pair<int, int>> parts{{0, 70}, {128, 300}, {320, 330}};
    std::vector<Row> table(3);
    for (std::size_t k = 0; k < 3; ++k) {
        table[k].row.begin = parts[k].first;
        table[k].row.end = parts[k].second;
        table[k].row.updates = static_cast<std::int64_t>(k);
        table[k].options = options;
    }
    table[2].row.trainable = 0;
    std::vector<double> g(330), p(330), m(330), v(330);
    for (std::size_t i = 0; i < 330; ++i) {
        const auto x = static_cast<double>(i);
        g[i] = std::cos(x);
        p[i] = std::sin(2 * x);
        if (i >= 128) {
            m[i] = std::sin(x) / 4;
            v[i] = 0.25 + x / 1000;
        }
    }
    const auto f64s = [](std::int64_t count) { return TensorMeta::contiguous(DType::f64, {count}); };
    const OnDevice<StatusWord> good({StatusWord{}});
    const OnDevice<Row> rows(table);
    const OnDevice<double> gradients(g), parameters(p), mean(m), square(v);
    const OnDevice<double> sums(std::vector<double>(12, -1)), norms(std::vector<double>(6, -1));
    for (const std::int64_t cut : {64, 192, 256}) {  // two ranges measure like one
        CAPTURE(cut);
        for (const auto& [first, last] : {std::pair<std::int64_t, std::int64_t>{0, cut}, {cut, 330}}) {
            Call measure;
            const std::int64_t grains = (last - first + 63) / 64;
            measure.in_metas = {f64s(last - first), f64s(last - first), bytes(3 * sizeof(Row)), f64s(last - first),
                                f64s(last - first)};
            measure.out_metas = {f64s(2 * grains)};
            measure.in = {gradients.data() + first, parameters.data() + first, rows.data(), mean.data() + first,
                          square.data() + first};
            measure.out = {sums.data() + 2 * (first / 64)};
            const int from = first < 128 ? 0 : 1, to = last <= 128 ? 1 : last <= 320 ? 2 : 3;
            measure.run(MeasureUpdate<LambRule>{{first, last, from, to}, 3});
        }
        Call combine;
        combine.in_metas = {f64s(12), bytes(3 * sizeof(Row))};
        combine.out_metas = {f64s(6)};
        combine.in = {sums.data(), rows.data()};
        combine.out = {norms.data()};
        combine.run(CombineNorms{{0, 330, 0, 3}, sizeof(Row)});
        const auto found = norms.fetch();
        for (std::size_t k = 0; k < 2; ++k) {
            double of_parameter = 0, of_direction = 0;
            for (int at = parts[k].first; at < parts[k].second; ++at) {
                const auto i = static_cast<std::size_t>(at);
                const auto t = static_cast<double>(k + 1);
                const double first = (0.9 * m[i] + 0.1 * g[i]) / (1 - std::pow(0.9, t));
                const double second = (0.999 * v[i] + 0.001 * g[i] * g[i]) / (1 - std::pow(0.999, t));
                of_parameter += p[i] * p[i];
                of_direction += std::pow(first / (std::sqrt(second) + 1e-6) + 0.5 * p[i], 2);
            }
            CHECK(found[2 * k] == Approx(std::sqrt(of_parameter)).epsilon(1e-12));
            CHECK(found[2 * k + 1] == Approx(std::sqrt(of_direction)).epsilon(1e-12));
        }
        CHECK(found[4] == 0);
        CHECK(found[5] == 0);
    }
    std::vector<reference::Optimized> expected;
    for (std::size_t i = 128; i < 300; ++i) expected.push_back({p[i], m[i], v[i], 0, 1});
    reference::lamb({.lr = 0.1, .weight_decay = 0.5, .eps = 1e-6}, expected, {g.begin() + 128, g.begin() + 300});
    Call update;
    update.in_metas = {f64s(330), bytes(3 * sizeof(Row)), f64s(6)};
    update.out_metas.assign(3, f64s(330));
    update.in = {gradients.data(), rows.data(), norms.data()};
    update.out = {parameters.data(), mean.data(), square.data()};
    update.agreed = good.data();
    update.run(FusedUpdate<LambRule>{{0, 330, 0, 3}, 3});
    const auto values = parameters.fetch();
    for (std::size_t i = 128; i < 300; ++i) CHECK(values[i] == Approx(expected[i - 128].value).epsilon(1e-12));
    for (std::size_t i = 300; i < 330; ++i) CHECK(values[i] == p[i]);
}

TEST_CASE("norms of parameters with many grains") {
    const NoMistakes end;
    for (const std::int64_t grains : {1, 40, 3000, 20000}) {
        // The first parameter has all grains but one, the second the last of them, with 3 elements.
        std::vector<SgdRow> table{sgd_row(0, 64 * (grains - 1), 0, {}),
                                  sgd_row(64 * (grains - 1), 64 * grains - 61, 0, {})};
        std::vector<double> sums;
        double expected[4] = {};
        for (std::int64_t i = 0; i < 2 * grains; ++i) {
            sums.push_back(1 + static_cast<double>(i % 7) / 8);
            expected[(i < 2 * (grains - 1) ? 0 : 2) + i % 2] += sums.back();
        }
        const OnDevice<double> measured(sums), norms(std::vector<double>(4, -1));
        const OnDevice<SgdRow> rows(table);
        Call call;
        call.in_metas = {TensorMeta::contiguous(DType::f64, {2 * grains}), bytes(2 * sizeof(SgdRow))};
        call.out_metas = {TensorMeta::contiguous(DType::f64, {4})};
        call.in = {measured.data(), rows.data()};
        call.out = {norms.data()};
        call.run(CombineNorms{{0, 64 * grains - 61, 0, 2}, sizeof(SgdRow)});
        const auto found = norms.fetch();
        for (std::size_t i = 0; i < 4; ++i) CHECK(found[i] == std::sqrt(expected[i]));  // the sums are exact
    }
}

TEST_CASE("rules with several states agree with loops in double") {
    const NoMistakes end;
    using Row = RowWith<AdamOptions>;
    const AdamOptions options{.lr = 0.1, .weight_decay = 0.5, .amsgrad = true};
    std::vector<Row> table(2);
    table[0].row.end = 64;
    table[1].row.begin = 64;
    table[1].row.end = 100;
    table[1].row.updates = 3;
    for (Row& row : table) row.options = options;
    std::vector<float> g(100), p(100), m(100), v(100), most(100);
    std::vector<reference::Optimized> expected(100);
    for (std::size_t i = 0; i < 100; ++i) {
        g[i] = static_cast<float>(i) / 50 - 1;
        p[i] = 1 - static_cast<float>(i) / 100;
        expected[i].value = p[i];
        if (i >= 64) {
            m[i] = 0.25f;
            v[i] = 0.5f;
            most[i] = static_cast<float>(i % 2);
            expected[i] = {p[i], m[i], v[i], most[i], 3};
        }
        reference::adam({.lr = 0.1, .weight_decay = 0.5, .amsgrad = true}, expected[i], g[i], false);
    }
    const OnDevice<StatusWord> good({StatusWord{}});
    const OnDevice<Row> rows(table);
    const OnDevice<float> gradients(g), parameters(p), mean(m), square(v), largest(most);
    Call call;
    call.in_metas = {floats(100), bytes(2 * sizeof(Row))};
    call.out_metas.assign(4, floats(100));
    call.in = {gradients.data(), rows.data()};
    call.out = {parameters.data(), mean.data(), square.data(), largest.data()};
    call.agreed = good.data();
    call.run(FusedUpdate<AdamRule>{{0, 100, 0, 2}, 7});
    const auto values = parameters.fetch(), means = mean.fetch(), squares = square.fetch(), mosts = largest.fetch();
    for (std::size_t i = 0; i < 100; ++i) {
        CHECK(values[i] == Approx(expected[i].value).epsilon(1e-5));
        CHECK(means[i] == Approx(expected[i].first).margin(1e-6));
        CHECK(squares[i] == Approx(expected[i].second).margin(1e-6));
        CHECK(mosts[i] == Approx(expected[i].third).margin(1e-6));
    }
}

namespace {

template <class T>
void check_rows(DType dtype) {
    const NoMistakes end;
    const TensorMeta four = TensorMeta::contiguous(dtype, {4});
    std::vector<SgdRow> table{sgd_row(0, 2, 4, {.lr = 0.5, .nesterov = true}), sgd_row(3, 5, 0, {.lr = 0.25})};
    table[1].row.trainable = 0;
    const OnDevice<StatusWord> good({StatusWord{}}), refused({bad});
    const OnDevice<SgdRow> rows(table);
    const OnDevice<T> numbers(std::vector<T>(4, 9)), scalar(std::vector<T>(1, 9));
    const ArenaRange range{1, 5, 0, 2};
    const auto read = [&](RowNumber number, std::size_t offset) {
        Call call;
        call.in_metas = {bytes(2 * sizeof(SgdRow))};
        call.out_metas = {four};
        call.in = {rows.data()};
        call.out = {numbers.data()};
        call.run(ReadRows{range, sizeof(SgdRow), sizeof(ParameterRow) + offset, number});
        return numbers.fetch();
    };
    CHECK(read(RowNumber::real, offsetof(SgdOptions, lr)) == std::vector<T>{0.5, 0, 0.25, 0.25});
    CHECK(read(RowNumber::flag, offsetof(SgdOptions, nesterov)) == std::vector<T>{1, 0, 0, 0});
    CHECK(read(RowNumber::updates, 0) == std::vector<T>{5, 0, 1, 1});
    Call one;
    one.in_metas = {bytes(2 * sizeof(SgdRow))};
    one.out_metas = {TensorMeta::contiguous(dtype, {})};
    one.in = {rows.data()};
    one.out = {scalar.data()};
    one.run(ReadRows{{1, 2, 0, 1}, sizeof(SgdRow), sizeof(ParameterRow) + offsetof(SgdOptions, lr), RowNumber::real});
    CHECK(scalar.fetch()[0] == T{0.5});

    const OnDevice<T> values({6, 7, 8, 9}), arena({1, 2, 3, 4});
    Call store;
    store.in_metas = {bytes(2 * sizeof(SgdRow)), four};
    store.out_metas = {four};
    store.in = {rows.data(), values.data()};
    store.out = {arena.data()};
    store.agreed = refused.data();
    store.run(StoreRange{range, sizeof(SgdRow)});
    CHECK(arena.fetch() == std::vector<T>{1, 2, 3, 4});
    store.agreed = good.data();
    store.run(StoreRange{range, sizeof(SgdRow)});
    CHECK(arena.fetch() == std::vector<T>{6, 2, 3, 4});
}

}  // namespace

TEST_CASE("rows are read for every element, and ranges are stored in trainable parameters only") {
    check_rows<float>(DType::f32);
    check_rows<double>(DType::f64);
}

TEST_CASE("long parameters are updated and stored wherever memory begins, and gaps are unchanged") {
    const NoMistakes end;
    // Parameters [0, 70), [128, 301) and [320, 480): the second is frozen.
    std::vector<SgdRow> table{sgd_row(0, 70, 0, {.lr = 0.5}), sgd_row(128, 301, 0, {.lr = 0.5}),
                              sgd_row(320, 480, 0, {.lr = 0.25})};
    table[1].row.trainable = 0;
    const OnDevice<SgdRow> rows(table);
    const OnDevice<StatusWord> good({StatusWord{}});
    for (const std::int64_t last : {480, 447, 67})
        for (const std::size_t begin : {0, 1}) {
            INFO(last << " elements from " << begin);
            std::vector<float> g(begin + 480), p(begin + 480, 10);
            for (std::size_t i = 0; i < g.size(); ++i) g[i] = static_cast<float>(i % 17);
            const OnDevice<float> gradients(g), parameters(p), copies(p);
            Call call;
            call.in_metas = {floats(last), bytes(3 * sizeof(SgdRow))};
            call.out_metas = {floats(last)};
            call.in = {gradients.data() + begin, rows.data()};
            call.out = {parameters.data() + begin};
            call.agreed = good.data();
            call.run(FusedUpdate<SgdRule>{{0, last, 0, 3}, 0});
            Call store;
            store.in_metas = {bytes(3 * sizeof(SgdRow)), floats(last)};
            store.out_metas = {floats(last)};
            store.in = {rows.data(), gradients.data() + begin};
            store.out = {copies.data() + begin};
            store.agreed = good.data();
            store.run(StoreRange{{0, last, 0, 3}, sizeof(SgdRow)});
            const auto found = parameters.fetch(), stored = copies.fetch();
            for (std::size_t i = 0; i < 480; ++i) {
                const bool changes = i < static_cast<std::size_t>(last) && (i < 70 || i >= 320);
                const double lr = i < 70 ? 0.5 : 0.25;
                INFO("element " << i);
                REQUIRE(found[begin + i] == Approx(changes ? 10 - lr * g[begin + i] : 10));
                REQUIRE(stored[begin + i] == (changes ? g[begin + i] : 10));
            }
        }
}
