// CUDA kernels that the op table cannot reach, on the stand-in and on cards: what spans shards, what commits, what
// reports.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <numeric>

#include "lockstep/ops/adam.h"
#include "lockstep/ops/internal/dropout_operations.h"
#include "lockstep/ops/internal/gradient_operations.h"
#include "lockstep/ops/internal/loss_operations.h"
#include "lockstep/ops/internal/normalization_operations.h"
#include "lockstep/ops/internal/shard_operations.h"
#include "lockstep/ops/internal/step_operations.h"
#include "lockstep/ops/internal/update_operations.h"
#include "lockstep/ops/sgd.h"
#include "lockstep/runtime/memory.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/gpu/machine.h"
#include "lockstep/tests/reference/optimizers.h"

using namespace lockstep;

namespace {

const Device gpu = Device::cuda(0);

/// Values in device memory, fetched when they are read.
template <class T>
class OnDevice {
public:
    explicit OnDevice(const std::vector<T>& values) : count_(values.size()) {
        Stream& stream = Stream::of(gpu);
        buffer_ = Buffer::allocate(stream, count_ * sizeof(T), "test");
        stream.copy(buffer_->data(), gpu, values.data(), Device::host(), count_ * sizeof(T));
    }
    T* data() const { return static_cast<T*>(buffer_->data()); }
    std::vector<T> fetch() const {
        std::vector<T> values(count_);
        Stream& stream = Stream::of(gpu);
        stream.copy(values.data(), Device::host(), data(), gpu, count_ * sizeof(T));
        stream.synchronize();
        return values;
    }

private:
    std::size_t count_;
    std::shared_ptr<Buffer> buffer_;
};

/// One call of a kernel: set what matters, then `run`.
struct Call {
    std::vector<TensorMeta> in_metas, out_metas;
    std::vector<void*> in, out;
    const StepState* step = nullptr;
    StatusWord* status = nullptr;
    const StatusWord* agreed = nullptr;
    std::uint32_t ordinal = 0;
    int shard = 0;
    std::int64_t first_row = 0;
    int shards = 1;

    template <class Op>
    void run(const Op& operation) const {
        KernelRequest request;
        request.device = gpu;
        request.shards = shards;
        request.in = in_metas;
        request.out = out_metas;
        const auto kernel = KernelTable::of(DeviceKind::cuda).make(*make_operation(operation), request);
        Stream& stream = Stream::of(gpu);
        std::shared_ptr<Buffer> scratch;
        if (kernel->scratch_bytes() > 0) scratch = Buffer::allocate(stream, kernel->scratch_bytes(), "scratch");
        stream.run(Op::name, {}, [&](const Launch& launch) {
            kernel->run({launch, in.data(), out.data(), scratch ? scratch->data() : nullptr, step, status, agreed,
                         ordinal, shard, first_row, shards});
        });
        stream.synchronize();
    }
};

TensorMeta floats(std::int64_t count) { return TensorMeta::contiguous(DType::f32, {count}); }
TensorMeta bytes(std::size_t count) { return TensorMeta::contiguous(DType::u8, {static_cast<std::int64_t>(count)}); }

/// Numbers whose sums depend on the order.
std::vector<float> uneven(std::size_t count, int salt) {
    std::vector<float> values(count);
    for (std::size_t i = 0; i < count; ++i)
        values[i] = std::sin(static_cast<float>(i * 37 + static_cast<std::size_t>(salt) * 101)) *
                    std::pow(10.0f, static_cast<float>((i + static_cast<std::size_t>(salt)) % 7));
    return values;
}

/// The tree as design has it: [lo, hi) splits at the largest power of two below its length.
float tree(const std::vector<std::vector<float>>& shards, std::size_t element, std::size_t lo, std::size_t hi) {
    if (hi - lo == 1) return shards[lo][element];
    std::size_t half = 1;
    while (half * 2 < hi - lo) half *= 2;
    return tree(shards, element, lo, lo + half) + tree(shards, element, lo + half, hi);
}

struct NoMistakes {
    ~NoMistakes() { test::check_no_mistakes(); }
};

const StatusWord bad{static_cast<std::int32_t>(StatusCode::loss_not_finite), 3, 7, 0, 0};

}  // namespace

TEST_CASE("sums over shards follow the tree, bit for bit, above one group of pointers too") {
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

TEST_CASE("partial sums add up to the tree's bits, and accumulate") {
    const NoMistakes end;
    std::vector<std::vector<float>> values;
    for (int s = 0; s < 7; ++s) values.push_back(uneven(20, s));
    // As a device that holds shards 3 to 6 and one that holds 0 to 2 would have them.
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
    call.run(TreeSum{ranges, true, true});  // to what does not outlive the step
    for (std::size_t e = 0; e < 20; ++e) REQUIRE(out.fetch()[e] == found[e] + tree(values, e, 0, 7));
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

TEST_CASE("masks of shards put together are the mask of the whole") {
    const NoMistakes end;
    const OnDevice<StepState> step({{42, 3, 1}});
    const std::int64_t row_size = 7, rows = 9;
    std::vector<float> expected;
    for (std::int64_t e = 0; e < rows * row_size; ++e) {
        const std::uint32_t bits = random_bits({42, 3, 1}, 5, static_cast<std::uint64_t>(e));
        expected.push_back(to_uniform(bits) < 0.25f ? 0.0f : 1.0f / 0.75f);
    }
    std::vector<float> joined;
    for (const auto& [first, count] : {std::pair<std::int64_t, std::int64_t>{0, 3}, {3, 5}, {8, 1}}) {
        const OnDevice<float> mask(std::vector<float>(static_cast<std::size_t>(count * row_size), -1));
        Call call;
        call.out_metas = {TensorMeta::contiguous(DType::f32, {count, row_size}, true)};
        call.out = {mask.data()};
        call.step = step.data();
        call.ordinal = 5;
        call.first_row = first;
        call.run(DropoutMask{0.25, true});
        for (const float value : mask.fetch()) joined.push_back(value);
    }
    REQUIRE(joined.size() == expected.size());
    for (std::size_t e = 0; e < joined.size(); ++e) REQUIRE(joined[e] == Approx(expected[e]));
}

TEST_CASE("a target out of range is reported with its global row, once") {
    const NoMistakes end;
    const OnDevice<StepState> step({{0, 11, 0}});
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
    CHECK(numerator.fetch()[0] == 2);  // the good row alone
    CHECK(weight.fetch()[0] == 1);
    call.first_row = 500;
    call.run(NllForward{-100});
    CHECK(status.fetch()[0].row == 101);
    call.in[0] = nullptr;  // the weight alone
    call.run(NllForward{1});
    CHECK(numerator.fetch()[0] == 0);
    CHECK(weight.fetch()[0] == 0);
    call.run(NllForward{2});
    CHECK(weight.fetch()[0] == 1);
}

TEST_CASE("statuses agree on the lowest shard, and what is agreed stays") {
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

using SgdRow = RowWith<SgdOptions>;

SgdRow sgd_row(std::int64_t begin, std::int64_t end, std::int64_t updates, const SgdOptions& options) {
    SgdRow row;
    row.row.begin = begin;
    row.row.end = end;
    row.row.updates = updates;
    row.options = options;
    return row;
}

TEST_CASE("updates run when the step is good, in their parameters and their range only") {
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

TEST_CASE("rules with several states update as loops in double do") {
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

TEST_CASE("rows are read for every element, and ranges stored in trainable parameters") {
    const NoMistakes end;
    std::vector<SgdRow> table{sgd_row(0, 2, 4, {.lr = 0.5, .nesterov = true}), sgd_row(3, 5, 0, {.lr = 0.25})};
    table[1].row.trainable = 0;
    const OnDevice<StatusWord> good({StatusWord{}}), refused({bad});
    const OnDevice<SgdRow> rows(table);
    const OnDevice<float> numbers(std::vector<float>(4, 9)), scalar(std::vector<float>(1, 9));
    const ArenaRange range{1, 5, 0, 2};
    const auto read = [&](RowNumber number, std::size_t offset) {
        Call call;
        call.in_metas = {bytes(2 * sizeof(SgdRow))};
        call.out_metas = {floats(4)};
        call.in = {rows.data()};
        call.out = {numbers.data()};
        call.run(ReadRows{range, sizeof(SgdRow), sizeof(ParameterRow) + offset, number});
        return numbers.fetch();
    };
    CHECK(read(RowNumber::real, offsetof(SgdOptions, lr)) == std::vector<float>{0.5f, 0, 0.25f, 0.25f});
    CHECK(read(RowNumber::flag, offsetof(SgdOptions, nesterov)) == std::vector<float>{1, 0, 0, 0});
    CHECK(read(RowNumber::updates, 0) == std::vector<float>{5, 0, 1, 1});
    Call one;
    one.in_metas = {bytes(2 * sizeof(SgdRow))};
    one.out_metas = {TensorMeta::contiguous(DType::f32, {})};
    one.in = {rows.data()};
    one.out = {scalar.data()};
    one.run(ReadRows{{1, 2, 0, 1}, sizeof(SgdRow), sizeof(ParameterRow) + offsetof(SgdOptions, lr), RowNumber::real});
    CHECK(scalar.fetch()[0] == 0.5f);

    const OnDevice<float> values({6, 7, 8, 9}), arena({1, 2, 3, 4});
    Call store;
    store.in_metas = {bytes(2 * sizeof(SgdRow)), floats(4)};
    store.out_metas = {floats(4)};
    store.in = {rows.data(), values.data()};
    store.out = {arena.data()};
    store.agreed = refused.data();
    store.run(StoreRange{range, sizeof(SgdRow)});
    CHECK(arena.fetch() == std::vector<float>{1, 2, 3, 4});
    store.agreed = good.data();
    store.run(StoreRange{range, sizeof(SgdRow)});
    CHECK(arena.fetch() == std::vector<float>{6, 2, 3, 4});
}

TEST_CASE("norms and clipping of what is meant, by groups, over gaps and cut grains") {
    const NoMistakes end;
    // Parameters [0, 100) of group 0 and [128, 200) of group 1: elements 100 to 127 are a gap, which is not finite.
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

    const OnDevice<StepState> step({{1, 9, 0}});
    const OnDevice<double> broken({NAN});
    for (const bool refuses : {false, true}) {
        const OnDevice<StatusWord> agreed({StatusWord{}});
        Call judge;
        judge.step = step.data();
        judge.in_metas = {scalar};
        judge.out_metas = {bytes(sizeof(StatusWord))};
        judge.in = {norm.data()};
        judge.out = {agreed.data()};
        judge.run(JudgeNorm{refuses});
        CHECK(agreed.fetch()[0].code == 0);
        judge.in = {broken.data()};
        judge.run(JudgeNorm{refuses});
        const auto code = refuses ? StatusCode::gradients_not_finite : StatusCode::skipped;
        CHECK(agreed.fetch()[0].code == static_cast<std::int32_t>(code));
        CHECK(agreed.fetch()[0].step == 9);
        // The next step forgets that this one was skipped, not that it was refused.
        Call forget;
        forget.out_metas = {bytes(sizeof(StatusWord))};
        forget.out = {agreed.data()};
        forget.run(ForgetSkip{});
        CHECK((agreed.fetch()[0].code == 0) == !refuses);
    }
}

TEST_CASE("step counters, counts of updates and fresh rows") {
    const NoMistakes end;
    const OnDevice<StatusWord> good({StatusWord{}}), refused({bad});
    const OnDevice<StepState> state({{1, 4, 2}});
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
        call.out_metas = {bytes(sizeof(StepState))};
        call.out = {state.data()};
        call.run(AdvanceStep{false});
        CHECK(state.fetch()[0].micro == (is_good ? 3 : 2));
        call.run(AdvanceStep{true});
        CHECK(state.fetch()[0].step == (is_good ? 5 : 4));
        CHECK(state.fetch()[0].micro == (is_good ? 0 : 2));
        call.out_metas = {TensorMeta::contiguous(DType::i64, {})};
        call.out = {counter.data()};
        call.run(IncrementCounter{});
        CHECK(counter.fetch()[0] == (is_good ? 42 : 41));
        call.out_metas = {bytes(3 * sizeof(SgdRow))};
        call.out = {rows.data()};
        call.run(CountUpdates{sizeof(SgdRow), {0, 2}});
        CHECK(rows.fetch()[0].row.updates == 0);  // does not count
        CHECK(rows.fetch()[2].row.updates == (is_good ? 1 : 0));
        call.in_metas = call.out_metas = {bytes(3)};
        call.in = {prepared.data()};
        call.out = {lasting.data()};
        call.run(TakeOver{});
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
