// A step in microbatches: gradients, weights and statistics are those of the whole batch, on any devices.
#include <array>
#include <cstring>

#include "lockstep/ops/sgd.h"
#include "lockstep/parallel/loader.h"
#include "lockstep/runtime/memory.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/double_precision.h"
#include "lockstep/tests/fixtures/eight_devices.h"
#include "lockstep/tests/fixtures/messages.h"

namespace ls = lockstep;
using namespace lockstep::test;
using ls::StepOptions;

namespace {

/// Rows sorted by class: weights and ignored rows are in few of the microbatches.
ConvNetBatch sorted_batch(std::int64_t rows) {
    ConvNetBatch batch = make_batch(rows);
    for (std::int64_t i = 0; i < rows; ++i) batch.classes[static_cast<std::size_t>(i)] = i * 5 / rows;
    batch.labels = ls::Tensor::from(batch.classes, {rows});
    return batch;
}

void compare(const LossCase& c, std::int64_t rows) {
    ls::manual_seed(17);
    const ConvNet net;
    const ConvNetBatch batch = sorted_batch(rows);
    const ls::Tensor dense = ls::Tensor::randn({rows, 5});
    ConvNet copy = net;
    const LossAndGradients right = expected(c, parameters_of(copy), batch, dense);
    for (const int accumulation_steps : {1, 2, 3, 4})
        for (const int k : {1, 3, 8})
            for (const auto mode : {ls::ReductionMode::root, ls::ReductionMode::slice_wise}) {
                INFO(c.name << ", " << rows << " rows, " << accumulation_steps << " microbatches, " << k
                            << " devices, slice-wise " << (mode == ls::ReductionMode::slice_wise));
                const LossAndGradients found =
                    per_replica(net, k, c, batch, dense, mode, {.accumulation_steps = accumulation_steps});
                CHECK(relative_error(found.gradients, right.gradients) < 1e-6);
                CHECK(found.loss == Approx(right.loss).epsilon(1e-5));
            }
}

std::vector<float> floats(const ls::Tensor& tensor) { return tensor.detach().to(ls::DType::f32).to_vector<float>(); }

/// Parameters and buffers.
template <class Model>
std::vector<std::vector<float>> state_of(Model& model) {
    std::vector<std::vector<float>> state;
    for (const ls::NamedTensor& named : ls::named_tensors(model)) state.push_back(floats(named.member->tensor()));
    return state;
}

/// Sums of the rows that a mask of the batch selects: a weight's gradient depends only on its own row and column.
struct Diagonal {
    explicit Diagonal(double weights) {
        const ls::NoGrad no_grad;
        fc.weight->fill_(weights);
    }
    ls::Linear fc{256, 1, false};
    ls::Dropout drop{0.5};
    LOCKSTEP_MEMBERS(fc, drop)
    ls::Tensor forward(const ls::Tensor& x) { return fc(drop(x)); }
};

struct SumLoss {
    ls::Loss operator()(const ls::Tensor& output, const ls::Tensor&) const {
        return ls::Loss({ls::sum(output), {}, 1});
    }
};

}  // namespace

TEST_CASE("rows of a shard are cut like torch.chunk, and absent shards remain the last ones") {
    for (std::int64_t rows = 1; rows < 70; ++rows)
        for (const int shards : {1, 3, 8})
            for (const int accumulation_steps : {1, 2, 3, 4, 7}) {
                const ls::BatchCut whole = ls::cut_batch(rows, shards);
                const auto cuts = ls::cut_microbatches(whole, accumulation_steps);
                std::vector<int> taken(static_cast<std::size_t>(rows), 0);
                const std::int64_t piece = (whole.chunk + accumulation_steps - 1) / accumulation_steps;
                CHECK(static_cast<std::int64_t>(cuts.size()) == (whole.chunk + piece - 1) / piece);
                for (const ls::BatchCut& cut : cuts)
                    for (int shard = 0; shard < shards; ++shard) {
                        const std::int64_t first = cut.first_row(shard), count = cut.rows_of(shard);
                        CHECK((count > 0) == (shard < cut.present));
                        CHECK(count <= cut.rows_of(0));
                        CHECK((count == 0 || first == whole.first_row(shard) + piece * (&cut - cuts.data())));
                        for (std::int64_t row = first; row < first + count; ++row) {
                            CHECK((whole.first_row(shard) <= row && row < whole.first_row(shard) + whole.chunk));
                            ++taken[static_cast<std::size_t>(row)];
                        }
                    }
                CHECK(taken == std::vector<int>(static_cast<std::size_t>(rows), 1));
            }
}

TEST_CASE("gradients in microbatches are those of the whole batch: even and uneven batches, few rows, one row") {
    for (const std::int64_t rows : {48, 47, 33, 5, 3, 1}) compare(loss_cases[0], rows);
}

TEST_CASE("gradients in microbatches of weighted, masked, summed and combined losses are those of the whole batch") {
    for (std::size_t i = 1; i < loss_cases.size(); ++i)
        for (const std::int64_t rows : {48, 29}) compare(loss_cases[i], rows);
    const LossCase everything{"class weights, ignored rows, sum of losses", {0.3, 1.7, 0.05, 2.5, 1}, 2, {}, 0.1};
    for (const std::int64_t rows : {48, 29, 5}) compare(everything, rows);
}

TEST_CASE("the mean of the microbatches' means would be far off, so the comparison can fail") {
    ls::manual_seed(17);
    ConvNet net;
    const LossCase c{"class weights and ignored rows", {0.3, 1.7, 0.05, 2.5, 1}, 2};
    const ConvNetBatch batch = sorted_batch(48);
    const ls::Tensor dense = ls::Tensor::randn({48, 5});
    const LossAndGradients right = expected(c, parameters_of(net), batch, dense);
    std::vector<Array> mean;
    for (const std::int64_t first : {0, 24}) {
        const ConvNetBatch half{batch.images.slice(0, first, first + 24),
                                batch.labels.slice(0, first, first + 24).contiguous(),
                                {batch.classes.begin() + first, batch.classes.begin() + first + 24}};
        const auto part = expected(c, parameters_of(net), half, dense.slice(0, first, first + 24)).gradients;
        mean = mean.empty() ? difference(part, part, 0) : mean;
        mean = difference(mean, part, 1);
    }
    CHECK(relative_error(difference(mean, difference(mean, mean), -0.5), right.gradients) > 0.05);
}

TEST_CASE("several steps with momentum follow the rule in double precision") {
    constexpr double lr = 0.1, momentum = 0.9;
    const LossCase c{"class weights and ignored rows", {0.3, 1.7, 0.05, 2.5, 1}, 4};
    for (const auto mode : {ls::ReductionMode::root, ls::ReductionMode::slice_wise})
        for (const int accumulation_steps : {2, 3, 4}) {
            ls::manual_seed(18);
            ConvNet net;
            std::vector<Array> weights = parameters_of(net), buffers;
            ls::DataParallel<ConvNet> model(net, cpu_devices(3), {.reduction = mode});
            ls::SGD sgd(model, {.lr = lr, .momentum = momentum});
            for (const std::int64_t rows : {24, 24, 17, 24, 6, 24}) {
                const ConvNetBatch batch = sorted_batch(rows);
                const ls::Tensor dense = ls::Tensor::randn({rows, 5});
                model.step(sgd, batch.images, LossTarget{batch.labels, dense}, loss_of(c),
                           {.accumulation_steps = accumulation_steps});
                const auto gradients = expected(c, weights, batch, dense).gradients;
                if (buffers.empty()) buffers = difference(gradients, gradients, 0);
                for (std::size_t p = 0; p < weights.size(); ++p)
                    for (std::ptrdiff_t i = 0; i < weights[p].size(); ++i) {
                        buffers[p][i] = momentum * buffers[p][i] + gradients[p][i];
                        weights[p][i] -= lr * buffers[p][i];
                    }
            }
            CHECK(relative_error(parameters_of(*model), weights) < 1e-6);
            CHECK(model.engine().steps_done() == 6);
            model.engine().verify_replicas();
        }
}

TEST_CASE("eight shards in two and three microbatches: the same bits on all devices with both reductions") {
    const ls::test::Images images(200);
    for (const int accumulation_steps : {2, 3}) {
        const auto train = [&](int k, ls::ReductionMode mode, std::size_t bucket_bytes) {
            ls::manual_seed(1);
            ls::DataParallel<ls::test::Normed> model(
                ls::test::Normed{}, cpu_devices(k),
                {.shards = 8, .reduction = mode, .seed = 5, .bucket_bytes = bucket_bytes});
            ls::SGD sgd(model, {.lr = 0.01, .momentum = 0.5});
            std::vector<double> losses;
            std::int64_t first = 0;
            // 26 rows: seven shards have 4 and one has none; 29: the last one has 1.
            for (const std::int64_t rows : {64, 26, 29, 5, 64}) {
                const auto loss =
                    model.step(sgd, images.batch(first, first + rows), images.targets(first, first + rows),
                               ls::nll_loss, {.accumulation_steps = accumulation_steps});
                losses.push_back(loss.item());
                first += rows;
            }
            model.engine().verify_replicas();
            return std::pair(losses, state_of(*model));
        };
        const auto one = train(1, ls::ReductionMode::root, 1 << 20);
        for (const int k : {1, 2, 3, 8})
            for (const auto mode : {ls::ReductionMode::root, ls::ReductionMode::slice_wise})
                for (const std::size_t bucket_bytes : {std::size_t{1} << 20, std::size_t{4096}}) {
                    INFO(k << " devices, " << accumulation_steps << " microbatches");
                    CHECK((train(k, mode, bucket_bytes) == one));
                }
    }
}

TEST_CASE("random masks are those of step, microbatch and global row") {
    constexpr std::int64_t rows = 32, own = 8, columns = rows * own;
    ls::Tensor x = ls::Tensor::zeros({rows, columns});
    for (std::int64_t i = 0; i < columns; ++i) x.data<float>()[i / own * columns + i] = 1;
    const ls::Tensor y = ls::Tensor::zeros({rows, 1});
    for (const int accumulation_steps : {1, 2, 4})
        for (const int k : {1, 3}) {
            const Diagonal net(0);
            ls::DataParallel<Diagonal> model(net, cpu_devices(k), {.shards = 4, .seed = 3});
            ls::SGD sgd(model, {.lr = 1});
            std::vector<float> before(columns, 0);
            for (std::uint64_t step = 0; step < 3; ++step) {
                model.step(sgd, x, y, SumLoss(), {.accumulation_steps = accumulation_steps});
                model.synchronize();
                const std::vector<float> after = floats(model->fc.weight.tensor());
                std::array<int, 2> found{};
                for (std::int64_t i = 0; i < columns; ++i) {
                    const std::int64_t row = i / own, in_shard = row % 8;
                    const ls::StepCounters state{3, step,
                                                 static_cast<std::uint64_t>(in_shard / (8 / accumulation_steps))};
                    const auto index = static_cast<std::uint64_t>(row * columns + i);
                    const bool kept = ls::to_uniform(ls::random_bits(state, 0, index)) >= 0.5f;
                    CHECK(before[static_cast<std::size_t>(i)] - after[static_cast<std::size_t>(i)] == (kept ? 2 : 0));
                    ++found[kept];
                }
                CHECK(found[0] > 64);
                CHECK(found[1] > 64);
                before = after;
            }
        }
}

TEST_CASE("a weight that depends on activations is also pooled, with the masks of its microbatch") {
    ls::manual_seed(19);
    const Diagonal net(0.5);
    const ls::Tensor x = ls::Tensor::rand({24, 256}), y = ls::Tensor::zeros({24, 1});
    const auto loss = [](const ls::Tensor& output, const ls::Tensor&) {
        return ls::Loss({ls::sum(output), ls::sum(ls::mul(output, output)).detach(), 1});
    };
    ls::DataParallel<Diagonal> model(net, cpu_devices(2), {.seed = 3});
    ls::SGD sgd(model, {.lr = 0});
    const double found = model.step(sgd, x, y, loss, {.accumulation_steps = 3}).item();
    double numerator = 0, weight = 0;
    for (std::uint64_t row = 0; row < 24; ++row) {
        const ls::StepCounters state{3, 0, row % 12 / 4};
        double output = 0;
        for (std::uint64_t i = 0; i < 256; ++i)
            if (ls::to_uniform(ls::random_bits(state, 0, row * 256 + i)) >= 0.5f)
                output += 0.5 * 2 * static_cast<double>(x.data<const float>()[row * 256 + i]);
        numerator += output;
        weight += output * output;
    }
    CHECK(found == Approx(numerator / weight).epsilon(1e-5));
}

TEST_CASE("sharded tensors of a loader and whole tensors give the same bits") {
    ls::manual_seed(20);
    const ConvNet net;
    const ConvNetBatch batch = sorted_batch(23);
    const ls::TensorDataset data(batch.images, batch.labels);
    const auto train = [&](bool loaded) {
        ls::DataParallel<ConvNet> model(net, cpu_devices(3));
        ls::SGD sgd(model, {.lr = 0.1, .momentum = 0.5});
        ls::Loader loader(model, data, {.batch_size = 23});
        for (int epoch = 0; epoch < 2; ++epoch) {
            if (!loaded) model.step(sgd, batch.images, batch.labels, ls::nll_loss, {.accumulation_steps = 3});
            for (auto& [images, labels] : loader.epoch(0))
                if (loaded) model.step(sgd, images, labels, ls::nll_loss, {.accumulation_steps = 3});
        }
        model.synchronize();
        return state_of(*model);
    };
    CHECK(train(true) == train(false));
}

TEST_CASE("one microbatch, or a batch with too few rows for more, is an ordinary step") {
    ls::manual_seed(21);
    const ConvNet net;
    for (const std::int64_t rows : {1, 3}) {
        const ConvNetBatch batch = sorted_batch(rows);
        const auto train = [&](int accumulation_steps) {
            ls::DataParallel<ConvNet> model(net, cpu_devices(3));
            ls::SGD sgd(model, {.lr = 0.1});
            model.step(sgd, batch.images, batch.labels, ls::nll_loss, {.accumulation_steps = accumulation_steps})
                .item();
            CHECK(model.engine().traces() == 1);
            return state_of(*model);
        };
        CHECK(train(4) == train(1));
    }
}

TEST_CASE("activations use the memory of one microbatch, and forward is traced once per length") {
    ls::manual_seed(22);
    const ls::test::Images images(128);
    const auto peak = [&](int accumulation_steps, std::uint64_t traces) {
        ls::reset_peak_memory(ls::Device::cpu(0));
        ls::DataParallel<ls::test::Cnn> model(ls::test::Cnn{}, cpu_devices(1));
        ls::SGD sgd(model, {.lr = 0.01});
        for (int i = 0; i < 3; ++i)
            model.step(sgd, images.pixels, images.targets(0, 128), ls::nll_loss,
                       {.accumulation_steps = accumulation_steps});
        model.synchronize();
        CHECK(model.engine().traces() == traces);
        // In addition to activations: parameters and gradients.
        const std::size_t arena = model.parameter_store()->parameters()[0].bytes();
        return ls::memory_stats(ls::Device::cpu(0)).peak - 2 * arena;
    };
    const std::size_t whole = peak(1, 1);
    CHECK(static_cast<double>(peak(8, 1)) < 0.3 * static_cast<double>(whole));
    CHECK(static_cast<double>(peak(6, 2)) < 0.35 * static_cast<double>(whole));  // 22 rows each, the last 18
}

TEST_CASE("momentum set later applies, and so do other numbers of microbatches") {
    ls::manual_seed(23);
    const ConvNet net;
    const ConvNetBatch batch = sorted_batch(24);
    const auto train = [&](const std::vector<int>& accumulation_steps) {
        ls::DataParallel<ConvNet> model(net, cpu_devices(2));
        ls::SGD sgd(model, {.lr = 0.1});
        for (std::size_t i = 0; i < accumulation_steps.size(); ++i) {
            if (i == 2) sgd.set_options({.lr = 0.1, .momentum = 0.9});
            model.step(sgd, batch.images, batch.labels, ls::nll_loss, {.accumulation_steps = accumulation_steps[i]});
        }
        model.synchronize();
        return parameters_of(*model);
    };
    const auto expected = train({1, 1, 1, 1, 1, 1});
    CHECK(relative_error(train({2, 2, 2, 3, 1, 2}), expected) < 1e-6);
}

TEST_CASE("unsupported microbatches are rejected in one line") {
    const ConvNet net;
    const ConvNetBatch batch = make_batch(12);
    ls::DataParallel<ConvNet> model(net, cpu_devices(2));
    ls::SGD sgd(model, {.lr = 0.1});
    for (const int accumulation_steps : {0, -2})
        CHECK(message_of<ls::InvalidArgument>([&] {
                  model.step(sgd, batch.images, batch.labels, ls::nll_loss, {.accumulation_steps = accumulation_steps});
              }) == "invalid number of accumulation steps (" + std::to_string(accumulation_steps) +
                        "); expected a positive number, 1 for the whole batch at once");
    const auto weighted_when_full = [](const ls::Tensor& output, const ls::Tensor& target) {
        ls::Loss::Term term = ls::nll_loss(output, target).terms()[0];
        if (output.size(0) < 2) term.denominator = {};
        return ls::Loss(term);
    };
    const ConvNetBatch uneven = make_batch(10);  // 5 rows per shard: 2, 2 and 1
    CHECK(message_of<ls::InvalidArgument>(
              [&] { model.step(sgd, uneven.images, uneven.labels, weighted_when_full, {.accumulation_steps = 3}); }) ==
          "shards of input shapes (2, 2, 7, 7) and (1, 2, 7, 7), of two microbatches, have losses of different "
          "denominators; forward and loss must not depend on the length of the shard");
    CHECK(model.engine().steps_done() == 0);
}
