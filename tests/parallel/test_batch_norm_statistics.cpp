// Running statistics of BatchNorm2d after training on several devices, against the rule computed in double.
#include <cmath>

#include "lockstep/ops/sgd.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/error.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/eight_devices.h"
#include "lockstep/tests/fixtures/messages.h"
#include "lockstep/tests/fixtures/nets.h"

using namespace lockstep;

namespace {

constexpr std::int64_t channels = 3;
constexpr double momentum = 0.2;

/// Calls one layer twice, on known inputs: x and its squares.
struct Twice {
    explicit Twice(BatchNormStatistics statistics, std::int64_t side = 2)
        : norm(channels, {.momentum = momentum, .statistics = statistics}), fc(channels * side * side, 4) {}
    BatchNorm2d norm;
    Linear fc;
    LOCKSTEP_MEMBERS(norm, fc)
    Tensor forward(const Tensor& x) {
        const Tensor y = norm(x);
        const Tensor z = norm(mul(x, x));
        return log_softmax(fc(add(y, z).flatten(1)), 1);
    }
};

/// Rows that drift: the shards' means are far apart.
Tensor drifting(std::int64_t rows, std::int64_t side = 2) {
    const Tensor x = Tensor::randn({rows, channels, side, side});
    auto* values = x.data<float>();
    const std::int64_t row_size = channels * side * side;
    for (std::int64_t i = 0; i < x.numel(); ++i)
        values[i] += 0.1f * static_cast<float>(i / row_size) + static_cast<float>(i / (side * side) % channels);
    return x;
}

Tensor targets(std::int64_t rows) {
    std::vector<std::int64_t> labels;
    for (std::int64_t row = 0; row < rows; ++row) labels.push_back(row % 4);
    return Tensor::from(labels, {rows});
}

/// The rule: every call moves mean and unbiased variance towards those of the included rows.
struct Running {
    std::vector<double> mean = std::vector<double>(channels, 0), variance = std::vector<double>(channels, 1);
    std::int64_t calls = 0;

    void call(const std::vector<float>& x, std::int64_t plane, bool squares) {
        const double count = static_cast<double>(x.size()) / channels;
        for (std::size_t c = 0; c < channels; ++c) {
            double sum = 0, squared = 0;
            const auto each = [&](auto visit) {
                for (std::size_t i = 0; i < x.size(); ++i) {
                    if (i / static_cast<std::size_t>(plane) % channels != c) continue;
                    const double value = static_cast<double>(x[i]);
                    visit(squares ? value * value : value);
                }
            };
            each([&](double value) { sum += value; });
            each([&](double value) { squared += (value - sum / count) * (value - sum / count); });
            mean[c] = (1 - momentum) * mean[c] + momentum * sum / count;
            variance[c] = (1 - momentum) * variance[c] + momentum * squared / (count - 1);
        }
        ++calls;
    }
    /// A forward of `Twice` that includes rows [0, rows).
    void forward(const Tensor& x, std::int64_t rows) {
        const std::vector<float> counted = x.slice(0, 0, rows).to_vector<float>();
        const std::int64_t plane = x.size(2) * x.size(3);
        call(counted, plane, false);
        call(counted, plane, true);
    }
};

void check_statistics(Twice& model, const Running& expected) {
    const auto mean = model.norm.running_mean->tensor().to_vector<float>();
    const auto variance = model.norm.running_var->tensor().to_vector<float>();
    for (std::size_t c = 0; c < channels; ++c) {
        CHECK(mean[c] == Approx(expected.mean[c]).epsilon(1e-5).margin(1e-6));
        CHECK(variance[c] == Approx(expected.variance[c]).epsilon(1e-5));
    }
    CHECK(model.norm.num_batches_tracked->tensor().to_vector<std::int64_t>()[0] == expected.calls);
}

EngineOptions with_shards(int shards) {
    EngineOptions options;
    options.shards = shards;
    return options;
}

std::vector<char> state_of(Twice& model) {
    std::vector<char> bytes;
    for (const NamedTensor& named : named_tensors(model)) {
        const Tensor& tensor = named.member->tensor();
        const auto append = [&](const auto& values) {
            const auto* first = reinterpret_cast<const char*>(values.data());
            bytes.insert(bytes.end(), first, first + values.size() * sizeof(values[0]));
        };
        if (tensor.dtype() == DType::i64)
            append(tensor.to_vector<std::int64_t>());
        else
            append(tensor.to_vector<float>());
    }
    return bytes;
}

}  // namespace

TEST_CASE("statistics of all shards are those of the batch, or of shard 0 on request") {
    for (const BatchNormStatistics statistics : {BatchNormStatistics::all_shards, BatchNormStatistics::shard0})
        for (const int shards : {0, 8})
            for (const ReductionMode reduction : {ReductionMode::root, ReductionMode::slice_wise}) {
                EngineOptions options = with_shards(shards);
                options.reduction = reduction;
                manual_seed(2);
                DataParallel<Twice> model(Twice(statistics), test::cpu_devices(4), options);
                SGD sgd(model, {.lr = 0.01, .momentum = 0.5});
                Running expected;
                for (const std::int64_t rows : {10, 64, 20, 5, 3}) {  // 10 rows on 4 devices: 3, 3, 3 and 1
                    const Tensor x = drifting(rows);
                    model.step(sgd, x, targets(rows), nll_loss);
                    const std::int64_t of_shard0 = cut_batch(rows, model.shards()).rows_of(0);
                    expected.forward(x, statistics == BatchNormStatistics::shard0 ? of_shard0 : rows);
                    INFO(rows << " rows, " << shards << " shards");
                    check_statistics(model.module(), expected);
                }
                model.engine().verify_replicas();
            }
}

TEST_CASE("every microbatch updates the statistics once per call, in order") {
    for (const BatchNormStatistics statistics : {BatchNormStatistics::all_shards, BatchNormStatistics::shard0})
        for (const int shards : {0, 8})
            for (const ReductionMode reduction : {ReductionMode::root, ReductionMode::slice_wise}) {
                EngineOptions options = with_shards(shards);
                options.reduction = reduction;
                manual_seed(2);
                DataParallel<Twice> model(Twice(statistics), test::cpu_devices(3), options);
                SGD sgd(model, {.lr = 0.01, .momentum = 0.5});
                Running expected;
                for (const std::int64_t rows : {26, 64, 29, 5}) {
                    const Tensor x = drifting(rows);
                    model.step(sgd, x, targets(rows), nll_loss, {.accumulation_steps = 3});
                    const std::int64_t of_shard = (rows + model.shards() - 1) / model.shards();
                    const std::int64_t piece = (of_shard + 2) / 3;
                    for (std::int64_t begin = 0; begin < of_shard; begin += piece) {
                        std::vector<Tensor> parts;
                        for (std::int64_t first = 0; first < rows; first += of_shard) {
                            const std::int64_t end = std::min({first + of_shard, first + begin + piece, rows});
                            if (first + begin < end) parts.push_back(x.slice(0, first + begin, end));
                        }
                        if (statistics == BatchNormStatistics::shard0) parts.resize(1);
                        const Tensor counted = cat(parts);
                        expected.forward(counted, counted.size(0));
                    }
                    INFO(rows << " rows, " << shards << " shards");
                    check_statistics(model.module(), expected);
                }
                model.engine().verify_replicas();
            }
}

TEST_CASE("every training forward of the manual step updates the statistics, and evaluation does not") {
    manual_seed(2);
    DataParallel<Twice> model(Twice(BatchNormStatistics::all_shards), test::cpu_devices(4));
    SGD sgd(model, {.lr = 0.01});
    Running expected;
    for (const std::int64_t rows : {10, 12}) {
        const Tensor x = drifting(rows);
        nll_loss(model.forward(x), targets(rows).to(Device::cpu(0))).backward();
        expected.forward(x, rows);
        check_statistics(model.module(), expected);
    }
    sgd.step();
    model.eval();
    {
        const NoGrad no_grad;
        model.forward(drifting(10));
    }
    check_statistics(model.module(), expected);
    model.train();
    {
        const NoGrad no_grad;
        const Tensor x = drifting(8);
        model.forward(x);
        expected.forward(x, 8);
    }
    check_statistics(model.module(), expected);
    model.engine().verify_replicas();
}

TEST_CASE("a shard with one value per channel is rejected before anything changes") {
    manual_seed(2);
    DataParallel<Twice> model(Twice(BatchNormStatistics::all_shards, 1), test::cpu_devices(4));
    SGD sgd(model, {.lr = 0.01, .momentum = 0.5});
    model.step(sgd, drifting(8, 1), targets(8), nll_loss);
    const std::vector<char> before = state_of(model.module());
    const std::uint64_t steps = model.engine().steps_done();
    for (const std::int64_t rows : {7, 3, 1})  // shards of 2, 2, 2, 1; of 1 each
        CHECK_THROWS_WITH(model.step(sgd, drifting(rows, 1), targets(rows), nll_loss),
                          test::contains("has at most one value per channel"));
    CHECK_THROWS_AS(model.step(sgd, drifting(7, 1), targets(7), nll_loss), InvalidArgument);
    CHECK(state_of(model.module()) == before);
    CHECK(model.engine().steps_done() == steps);
    model.engine().verify_replicas();

    model.step(sgd, drifting(8, 1), targets(8), nll_loss).item();
    CHECK(model.engine().steps_done() == steps + 1);
    CHECK(state_of(model.module()) != before);
}
