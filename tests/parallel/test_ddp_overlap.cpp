// Backward hides communication: with times that are known (backward and the sums of buckets sleep), what is left
// to wait for is no more than the last bucket, or what communication takes longer than backward.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "lockstep/ops/internal/step_operations.h"
#include "lockstep/ops/layers.h"
#include "lockstep/ops/sgd.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "lockstep/runtime/step_log.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/cpu_devices.h"
#include "lockstep/tests/parallel/comm/forked_ranks.h"
#include "lockstep/tests/parallel/file_fixture.h"
#include "lockstep/tests/parallel/test_operations.h"

namespace ls = lockstep;
using std::chrono::milliseconds;

namespace {

const bool one_device = lockstep::test::set_cpu_devices(1);

constexpr int layers = 6;
constexpr std::size_t layer_bytes = (64 * 64 + 64) * sizeof(float);

struct Layer {
    ls::Linear fc{64, 64};
    LOCKSTEP_MEMBERS(fc)
    ls::Tensor operator()(const ls::Tensor& x) const { return test_operations::touch(fc(x)); }
};
struct Net {
    Layer a, b, c, d, e, f;
    LOCKSTEP_MEMBERS(a, b, c, d, e, f)
    ls::Tensor forward(const ls::Tensor& x) const { return f(e(d(c(b(a(x)))))); }
};

struct Times {
    milliseconds first_backward, backward;  ///< of the layer that goes back first, and of each other one
    milliseconds bucket;
    std::size_t bucket_bytes = layer_bytes;
};

milliseconds& bucket_time() {
    static milliseconds instance{0};
    return instance;
}

/// What sums a bucket over the ranks, as slowly as a link would bring it.
std::unique_ptr<ls::Kernel> make_slow_sum(const ls::TreeSum&, ls::KernelRequest& request) {
    request.want_all_contiguous();
    return ls::make_kernel([inputs = request.in.size(), count = request.in[0].numel()](const ls::KernelArgs& run) {
        std::this_thread::sleep_for(bucket_time());
        for (std::int64_t i = 0; i < count; ++i) {
            float sum = 0;
            for (std::size_t k = 0; k < inputs; ++k) sum += run.input<float>(static_cast<int>(k))[i];
            run.output<float>(0)[i] = sum;
        }
    });
}

/// What the log says of one step.
struct Measured {
    double backward = 0, communication = 0, exposed = 0, overlap = 0;
    double last_bucket = 0;
    int buckets = 0, begun_in_backward = 0;

    std::string str() const {
        return fmt::format(
            "backward {:.1f} ms, communication {:.1f} ms (last bucket {:.1f} ms), exposed {:.1f} ms, overlap {:.1f} "
            "ms, {} of {} buckets begun in backward",
            backward, communication, last_bucket, exposed, overlap, begun_in_backward, buckets);
    }
};

Measured measure(const ls::LoggedStep& step, const ls::StepSplit& split) {
    Measured result{.backward = split.backward,
                    .communication = split.communication,
                    .exposed = split.exposed,
                    .overlap = split.overlap};
    double backward_end = 0;
    for (const ls::StepSpan& span : step.spans)
        if (span.kind == ls::SpanKind::backward) backward_end = std::max(backward_end, span.end);
    double begin = 0;
    for (const ls::StepSpan& span : step.spans) {
        if (span.name == "all_to_all") {  // with which every bucket begins
            ++result.buckets;
            result.begun_in_backward += span.begin < backward_end ? 1 : 0;
            begin = span.begin;
        }
        if (span.kind == ls::SpanKind::communication && result.buckets > 0) result.last_bucket = span.end - begin;
    }
    return result;
}

/// The steps of a rank.
std::vector<Measured> train(int rank, const std::string& store, const Times& times) {
    ls::ProcessGroup group({.backend = "shm",
                            .rendezvous = {.init_method = "file://" + store, .rank = rank, .world_size = 2},
                            .time_limit = std::chrono::seconds(60)});
    ls::KernelTable::of(ls::DeviceKind::cpu).add<ls::TreeSum, make_slow_sum>();
    ls::DistributedDataParallel model(Net{}, group, {.bucket_bytes = times.bucket_bytes});
    ls::SGD sgd(model, {.lr = 0.01});
    const ls::Tensor x = ls::Tensor::randn({8, 64}), y = ls::Tensor::randn({8, 64});
    static_cast<void>(model.step(sgd, x, y, ls::mse_loss).item());
    bucket_time() = times.bucket;
    int gone_back = 0;
    test_operations::hook().backward = [&](int) {
        std::this_thread::sleep_for(gone_back++ % layers == 0 ? times.first_backward : times.backward);
    };
    constexpr int steps = 8;
    model.engine().log_steps(steps);
    for (int step = 0; step < steps; ++step) static_cast<void>(model.step(sgd, x, y, ls::mse_loss).item());
    const std::vector<ls::LoggedStep> log = model.engine().step_log();
    const std::vector<ls::StepSplit> splits = ls::split_steps(log);
    if (splits.size() != steps - 1) throw std::runtime_error(fmt::format("{} steps were split", splits.size()));
    std::vector<Measured> result;
    for (std::size_t i = 0; i < splits.size(); ++i) result.push_back(measure(log[i], splits[i]));
    return result;
}

/// What is wrong with a step where `all_but_last` buckets must begin while backward goes on; empty for nothing.
std::string wrong(const Measured& step, bool all_but_last) {
    const double bound = std::max(step.last_bucket, step.communication - step.backward);
    if (step.buckets != layers) return fmt::format("{} buckets", step.buckets);
    if (all_but_last && step.begun_in_backward != layers - 1)
        return "all buckets but the last should begin in backward";
    if (step.exposed > 1.1 * bound) return fmt::format("more than {:.1f} ms are exposed", 1.1 * bound);
    return {};
}

/// At most two steps of seven may have something wrong: a busy machine may hold any of them up.
template <class Complaint>
void check(const Times& times, const Complaint& complaint) {
    const ls::test::TemporaryDirectory place;
    ls::testing::ForkedRanks ranks(2, [&](int rank) {
        std::vector<Measured> steps = train(rank, (place / "store").string(), times);
        std::vector<std::string> lines;
        for (const Measured& step : steps)
            if (const std::string text = complaint(step); !text.empty()) lines.push_back(text + ": " + step.str());
        const auto middle = steps.begin() + std::ssize(steps) / 2;
        std::nth_element(steps.begin(), middle, steps.end(),
                         [](const Measured& a, const Measured& b) { return a.exposed < b.exposed; });
        if (rank == 0) fmt::print("median step: {}\n", middle->str());
        return lines;
    });
    const auto said = ranks.finish(std::chrono::seconds(60));
    INFO(ls::testing::joined(said));
    for (const auto& lines : said) CHECK(lines.size() <= 2);
}

}  // namespace

TEST_CASE("overlap: where backward takes longer, the last bucket alone is waited for") {
    check({.first_backward = milliseconds(25), .backward = milliseconds(25), .bucket = milliseconds(15)},
          [](const Measured& step) { return wrong(step, true); });
}

TEST_CASE("overlap: where communication takes longer, what it takes longer is waited for") {
    // Buckets go one after another: some must begin after backward.
    check({.first_backward = milliseconds(1), .backward = milliseconds(20), .bucket = milliseconds(35)},
          [](const Measured& step) { return wrong(step, false); });
}

TEST_CASE("overlap: with one bucket all communication is waited for") {
    check({.first_backward = milliseconds(20),
           .backward = milliseconds(20),
           .bucket = milliseconds(60),
           .bucket_bytes = layers * layer_bytes},
          [](const Measured& step) -> std::string {
              if (step.buckets != 1 || step.begun_in_backward != 0) return "not one bucket after backward";
              if (step.overlap > 0.1 * step.communication) return "communication while backward goes on";
              if (step.exposed < 0.9 * step.communication) return "not all is exposed";
              return {};
          });
}
