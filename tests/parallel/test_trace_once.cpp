// `forward` is traced once for every program of a run, however long the run is, and called again at the repeats that
// check for changed host state: 1, 2, 3, 10, 100, ... (test_frozen_state.cpp).
#include <atomic>

#include "lockstep/ops/sgd.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/eight_devices.h"
#include "lockstep/tests/fixtures/nets.h"

using namespace lockstep;

namespace {

std::atomic<int> forwards{0};

struct Counted {
    test::Small net;
    LOCKSTEP_MEMBERS(net)
    Tensor forward(const Tensor& x) {
        ++forwards;
        return net.forward(x);
    }
};

struct CountedTraining {
    explicit CountedTraining(const EngineOptions& options = {})
        : images(404), model(Counted{}, test::cpu_devices(4), options), sgd(model, {.lr = 0.01, .momentum = 0.5}) {
        forwards = 0;
    }
    void epoch(const NllLoss& loss = nll_loss) {
        for (std::int64_t first = 0; first < 404; first += 64) {
            const std::int64_t last = std::min<std::int64_t>(first + 64, 404);
            model.step(sgd, images.batch(first, last), images.targets(first, last), loss);
        }
    }
    void evaluate() {
        model.eval();
        const NoGrad no_grad;
        for (std::int64_t first = 0; first < 404; first += 100)
            model.forward(images.batch(first, std::min<std::int64_t>(first + 100, 404)));
        model.train();
    }
    /// Number of traces of `forward`. With few repeats each of those programs may have been checked three more times.
    int traces() {
        const auto traces = static_cast<int>(model.engine().traces());
        CHECK(forwards >= traces);
        CHECK(forwards <= 4 * traces);
        return traces;
    }
    test::Images images;
    DataParallel<Counted> model;
    SGD sgd;
};

}  // namespace

TEST_CASE("several epochs with evaluation: one trace of forward per shape and mode") {
    EngineOptions fixed;
    fixed.shards = 8;
    for (const EngineOptions& options : {EngineOptions{}, fixed}) {
        CountedTraining training(options);
        for (int epoch = 0; epoch < 3; ++epoch) {
            training.epoch();
            training.evaluate();
            training.sgd.set_lr(0.01 / (epoch + 2));  // in device memory: no new program
        }
        // 4 shards: 64 rows in 16s, 20 in 5s, evaluation of 100 in 25s and of 4 in ones. 8 shards: 8s, 3s and a 2; 13s
        // and a 9, ones.
        const int programs = options.shards == 8 ? 6 : 4;
        CHECK(training.traces() == programs);
        training.model.synchronize();
    }
}

TEST_CASE("a change in a program's key traces forward again, once") {
    CountedTraining training;
    const auto expect = [&](int calls) {
        training.epoch();
        training.epoch();
        CHECK(training.traces() == calls);
    };
    expect(2);
    training.model->net.conv1.weight->requires_grad_(false);  // frozen
    expect(4);
    training.model->net.conv1.weight->requires_grad_(true);
    expect(4);
    set_training(training.model->net.drop, false);  // another mode of one layer
    expect(6);
    set_training(training.model->net.drop, true);
    training.epoch(NllLoss{{.ignore_index = 3}});  // another loss
    training.epoch(NllLoss{{.ignore_index = 3}});
    CHECK(training.traces() == 8);
    {
        const NoGrad no_grad;  // a training forward without gradients
        training.model.forward(training.images.batch(0, 64));
        training.model.forward(training.images.batch(64, 128));
    }
    CHECK(training.traces() == 9);
    training.model.forward(training.images.batch(0, 64));  // and one with gradients
    CHECK(training.traces() == 10);
    expect(10);
    training.model.synchronize();
}

TEST_CASE("new values of captured tensors and parameters do not trace forward again") {
    CountedTraining training;
    const Tensor weights = Tensor::full({10}, 1);
    const NllLoss loss{{.weight = weights}};
    training.epoch(loss);
    CHECK(training.traces() == 2);
    weights.fill_(2);
    {
        const NoGrad no_grad;
        training.model->net.fc2.bias->tensor().fill_(0.5);
    }
    training.epoch(loss);
    CHECK(training.traces() == 2);
    training.model.synchronize();
}
