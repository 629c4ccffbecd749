// Backward hides communication, shown by handshakes: backward waits for the sums of buckets that were ready before, or
// the sums wait for backward. If one delayed the other, the step would never end.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <functional>

#include "lockstep/ops/internal/control_operations.h"
#include "lockstep/ops/layers.h"
#include "lockstep/ops/sgd.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "lockstep/runtime/step_log.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/environment.h"
#include "lockstep/tests/fixtures/nets.h"
#include "lockstep/tests/fixtures/ranks.h"
#include "lockstep/tests/fixtures/waiting.h"

namespace ls = lockstep;
using lockstep::test::expect;

namespace {

const bool one_device = lockstep::test::set_cpu_devices(1);

constexpr int layers = 6;
constexpr std::size_t layer_bytes = (64 * 64 + 64) * sizeof(float);

struct Layer {
    ls::Linear fc{64, 64};
    LOCKSTEP_MEMBERS(fc)
    ls::Tensor operator()(const ls::Tensor& x) const { return lockstep::test::call_hook(fc(x)); }
};
struct Net {
    Layer a, b, c, d, e, f;
    LOCKSTEP_MEMBERS(a, b, c, d, e, f)
    ls::Tensor forward(const ls::Tensor& x) const { return f(e(d(c(b(a(x)))))); }
};

/// Progress of this rank's step.
struct Progress {
    std::atomic<int> layers_begun{0}, sums_begun{0}, sums_done{0};
};
Progress& progress() {
    static Progress instance;
    return instance;
}

std::function<void()>& in_sum() {
    static std::function<void()> instance = [] {};
    return instance;
}

/// The sum of a bucket over the ranks.
std::unique_ptr<ls::Kernel> make_sum(const ls::TreeSum&, ls::KernelRequest& request) {
    request.want_all_contiguous();
    return ls::make_kernel([inputs = request.in.size(), count = request.in[0].numel()](const ls::KernelArgs& run) {
        ++progress().sums_begun;
        in_sum()();
        for (std::int64_t i = 0; i < count; ++i) {
            float sum = 0;
            for (std::size_t k = 0; k < inputs; ++k) sum += run.input<float>(static_cast<int>(k))[i];
            run.output<float>(0)[i] = sum;
        }
        ++progress().sums_done;
    });
}

void wait_until(const std::function<bool()>& condition, const char* what) {
    if (!ls::test::comes_true(condition)) throw ls::Error(fmt::format("{} did not happen", what));
}

/// Log entries of one step.
struct Logged {
    int buckets = 0, begun_in_backward = 0;
};

Logged logged(const ls::LoggedStep& step) {
    Logged result;
    double backward_end = 0;
    for (const ls::StepSpan& span : step.spans)
        if (span.kind == ls::SpanKind::backward) backward_end = std::max(backward_end, span.end);
    for (const ls::StepSpan& span : step.spans)
        if (span.name == "all_to_all") {  // every bucket begins with it
            ++result.buckets;
            result.begun_in_backward += span.begin < backward_end ? 1 : 0;
        }
    return result;
}

/// Trains a few steps on two ranks. `in_backward` is called with the number of layers whose backward has ended.
void check(std::size_t bucket_bytes, const std::function<void(int)>& in_backward,
           const std::function<void()>& inside_sum,
           const std::function<void(const Logged&, const ls::StepSplit&)>& check_step) {
    CHECK(ls::test::on_ranks(2, [&](ls::ProcessGroup& group) {
              ls::KernelTable::of(ls::DeviceKind::cpu).add<ls::TreeSum, make_sum>();
              ls::DistributedDataParallel model(Net{}, group, {.bucket_bytes = bucket_bytes});
              ls::SGD sgd(model, {.lr = 0.01});
              const ls::Tensor x = ls::Tensor::randn({8, 64}), y = ls::Tensor::randn({8, 64});
              static_cast<void>(model.step(sgd, x, y, ls::mse_loss).item());
              model.synchronize();
              lockstep::test::kernel_hook().backward = [&](int) { in_backward(progress().layers_begun++); };
              in_sum() = inside_sum;
              constexpr int steps = 4;
              model.engine().log_steps(steps);
              for (int step = 0; step < steps; ++step) {
                  progress().layers_begun = progress().sums_begun = progress().sums_done = 0;
                  static_cast<void>(model.step(sgd, x, y, ls::mse_loss).item());
                  model.synchronize();
                  expect(progress().layers_begun == layers, "not every layer was reached");
              }
              const std::vector<ls::LoggedStep> log = model.engine().step_log();
              const std::vector<ls::StepSplit> splits = ls::split_steps(log);
              expect(splits.size() == steps - 1, fmt::format("{} steps were split", splits.size()));
              for (std::size_t i = 0; i < splits.size(); ++i) check_step(logged(log[i]), splits[i]);
          }) == "");
}

}  // namespace

TEST_CASE("overlap: a bucket is summed during the backward of earlier layers") {
    check(
        layer_bytes,
        [](int layers_done) {
            wait_until([=] { return progress().sums_done >= layers_done; }, "the sum of ready buckets");
        },
        // Otherwise a sum could run between two operations of backward, while the compute thread is suspended.
        [] {
            const int next_layer = std::min(progress().sums_begun + 1, layers);
            wait_until([=] { return progress().layers_begun >= next_layer; }, "backward of the layer after the bucket");
        },
        [](const Logged& log, const ls::StepSplit& split) {
            expect(log.buckets == layers, fmt::format("{} buckets", log.buckets));
            expect(log.begun_in_backward == layers - 1,
                   fmt::format("{} buckets began in backward", log.begun_in_backward));
            expect(split.overlap > 0, "the log shows no overlap");
            expect(split.exposed < split.communication, "the log shows all communication as exposed");
        });
}

TEST_CASE("overlap: backward does not wait for communication") {
    check(
        layer_bytes,
        [](int layers_done) {
            if (layers_done < layers - 1) return;
            wait_until([] { return progress().sums_begun > 0; }, "a sum during the last layer's backward");
        },
        [] { wait_until([] { return progress().layers_begun == layers; }, "backward during the sum of a bucket"); },
        [](const Logged& log, const ls::StepSplit& split) {
            expect(log.buckets == layers, fmt::format("{} buckets", log.buckets));
            expect(log.begun_in_backward >= 1, "no bucket began in backward");
            expect(split.overlap > 0, "the log shows no overlap");
        });
}

TEST_CASE("overlap: a single bucket of all gradients is summed after backward") {
    check(
        layers * layer_bytes, [](int) { expect(progress().sums_begun == 0, "a sum began in backward"); }, [] {},
        [](const Logged& log, const ls::StepSplit& split) {
            expect(log.buckets == 1 && log.begun_in_backward == 0, "the number of buckets after backward is not one");
            expect(split.exposed > 0, "the log shows no communication as exposed");
        });
}
