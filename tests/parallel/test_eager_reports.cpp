// PyTorch's manual step with a target that is out of range: the loss outside of the wrapper detects it, and everything
// that depends on it throws the error, once.
#include <functional>
#include <string>

#include "lockstep/ops/sgd.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/eight_devices.h"
#include "lockstep/tests/fixtures/messages.h"
#include "lockstep/tests/fixtures/nets.h"

namespace ls = lockstep;
using namespace lockstep::test;
using ls::Device;
using ls::InvalidArgument;

namespace {

const std::string found =
    "cross_entropy: target 9 in row 2 is out of range; expected a class from 0 to the number of outputs - 1";
const std::string nothing;

struct Run {
    ls::DataParallel<ConvNet> model{ConvNet{}, cpu_devices(2)};
    ls::SGD sgd{model, {.lr = 0.1}};
    ConvNetBatch batch = make_batch(5);
    ls::Tensor loss;

    /// One update with labels of which row 2 has an invalid class.
    void bad_update() {
        std::vector<std::int64_t> classes = batch.classes;
        classes[2] = 9;
        sgd.zero_grad();
        loss = ls::cross_entropy(model(batch.images), ls::Tensor::from(classes, {5})).value();
        loss.backward();
        sgd.step();
    }
};

}  // namespace

TEST_CASE("the first read of a result of a bad loss throws it, and no other read does") {
    ls::manual_seed(61);
    const std::vector<std::pair<const char*, std::function<void(Run&)>>> reads{
        {"the loss", [](Run& run) { (void)run.loss.item(); }},
        {"synchronize of the wrapper", [](Run& run) { run.model.synchronize(); }},
        {"synchronize_all", [](Run&) { ls::synchronize_all(); }},
        {"a parameter", [](Run& run) { (void)run.model->fc1.weight->detach().to_vector<float>(); }},
        {"a gradient",
         [](Run& run) {
             const ls::Tensor gradient = run.model->fc2.bias->tensor().grad();
             if (gradient.defined()) (void)gradient.to_vector<float>();  // a step leaves no gradients
         }},
        {"a copy of the model",
         [](Run& run) {
             const ConvNet copy = *run.model;
             (void)copy.fc1.weight->detach().to_vector<float>();
         }},
        {"a later output", [](Run& run) { (void)run.model(run.batch.images).to_vector<float>(); }},
        {"the loss of a later step",
         [](Run& run) { (void)run.model.step(run.sgd, run.batch.images, run.batch.labels, ls::nll_loss).item(); }},
    };
    for (const auto& [name, read] : reads) {
        INFO(name);
        Run run, other;
        run.bad_update();
        CHECK(message_of<InvalidArgument>([&] {
                  (void)other.model.step(other.sgd, other.batch.images, other.batch.labels, ls::nll_loss).item();
                  (void)other.model->fc1.weight->detach().to_vector<float>();
                  (void)other.model(other.batch.images).to_vector<float>();
              }) == nothing);
        CHECK(message_of<InvalidArgument>([&, &first = read] { first(run); }) == found);
        for (const auto& [again, later] : reads) {
            INFO("then " << again);
            CHECK(message_of<InvalidArgument>([&, &second = later] { second(run); }) == nothing);
        }
    }
}

TEST_CASE("a constant or input that depends on a bad call is reported on use or with its results") {
    ls::manual_seed(62);
    Run run;
    const ls::Tensor logits = ls::Tensor::randn({3, 4}).to(Device::cpu(0));
    const auto bad = [&] {
        return ls::cross_entropy(logits, ls::Tensor::from(std::vector<std::int64_t>{0, 1, 9}, {3})).value();
    };
    const ls::Tensor factor = bad();
    CHECK(message_of<InvalidArgument>([&] {
              run.model.step(run.sgd, run.batch.images, run.batch.labels,
                             [&](const ls::Tensor& output, const ls::Tensor& target) {
                                 return ls::nll_loss(output * factor, target);
                             });
          }) == found);
    const ls::Tensor images = run.batch.images.to(Device::cpu(0)) + bad();
    const ls::Tensor output = run.model(images);
    CHECK(message_of<InvalidArgument>([&] { (void)output.to_vector<float>(); }) == found);
    CHECK(message_of<InvalidArgument>([&] { run.model.synchronize(); }) == nothing);
}
