// Layers and tensors with gradients that the model does not list, and steps with nothing to train, are errors.
#include <functional>
#include <string>
#include <vector>

#include "lockstep/ops/layers.h"
#include "lockstep/ops/loss.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/error.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/eight_devices.h"
#include "lockstep/tests/fixtures/messages.h"
#include "lockstep/tests/fixtures/one_batch.h"

namespace ls = lockstep;
using namespace lockstep::test;

namespace {

ls::Linear& forgotten_layer() {
    static ls::Linear layer{4, 4};
    return layer;
}

struct Lacking {
    ls::Linear a{4, 4}, b{4, 4};
    LOCKSTEP_MEMBERS(a)
    ls::Tensor forward(const ls::Tensor& x) { return b(a(x)); }
};
struct Block {
    ls::Conv2d conv{1, 4, {1, 4}}, listed{4, 4, 1};
    LOCKSTEP_MEMBERS(listed)
    ls::Tensor forward(const ls::Tensor& x) { return listed(conv(x)); }
};
struct Nested {
    Block block;
    ls::Linear a{4, 4};
    LOCKSTEP_MEMBERS(block, a)
    ls::Tensor forward(const ls::Tensor& x) { return a(block.forward(x.reshape({-1, 1, 1, 4})).flatten(1)); }
};
struct WithGlobal {
    ls::Linear a{4, 4};
    LOCKSTEP_MEMBERS(a)
    ls::Tensor forward(const ls::Tensor& x) { return forgotten_layer()(a(x)); }
};

}  // namespace

TEST_CASE("a layer that the model does not list is rejected by step and forward") {
    constexpr const char* said =
        " requires a gradient and is not a parameter of the model; list its layer in LOCKSTEP_MEMBERS, or detach() it";
    const auto check = [&](auto net, const std::string& call, const std::string& shape) {
        for (const int count : {1, 2}) {
            OneBatch run(net, count);
            const std::string text = message_of<ls::InvalidArgument>([&] { run.step(); });
            INFO(text);
            CHECK((text == call + ": a tensor of shape (4,)" + said ||
                   text == call + ": a tensor of shape " + shape + said));
            CHECK(message_of<ls::InvalidArgument>([&] { (void)run.model(run.x); }) == text);
            CHECK(run.model.engine().steps_done() == 0);
            const ls::NoGrad no_grad;
            CHECK(run.model(run.x).shape() == ls::Shape{8, 4});
        }
    };
    check(Lacking{}, "linear", "(4, 4)");
    check(Nested{}, "conv2d", "(4, 1, 1, 4)");
    check(WithGlobal{}, "linear", "(4, 4)");
}

namespace {

struct UnlistedNorm {
    ls::Linear a{4, 4};
    ls::BatchNorm2d norm{4, {.affine = false}};
    LOCKSTEP_MEMBERS(a)
    ls::Tensor forward(const ls::Tensor& x) { return norm(a(x).reshape({-1, 4, 1, 1})).flatten(1); }
};
template <class Drop>
struct UnlistedDropout {
    ls::Linear a{4, 4};
    Drop drop{0.5};
    LOCKSTEP_MEMBERS(a)
    ls::Tensor forward(const ls::Tensor& x) { return drop(a(x)); }
};
struct HalfListed {
    ls::Linear a{4, 4};
    ls::Dropout listed{0.5}, drop{0.5};
    LOCKSTEP_MEMBERS(a, listed)
    ls::Tensor forward(const ls::Tensor& x) { return drop(listed(a(x))); }
};
struct Copying {
    ls::Linear a{4, 4};
    std::vector<ls::Dropout> drops{ls::Dropout(0.5), ls::Dropout(0.5)};
    LOCKSTEP_MEMBERS(a, drops)
    ls::Tensor forward(const ls::Tensor& x) {
        ls::Tensor y = a(x);
        for (const auto drop : drops) y = drop(y);  // NOLINT(performance-for-range-copy)
        return y;
    }
};

}  // namespace

TEST_CASE("running statistics of a layer that the model does not list are rejected, in every mode") {
    OneBatch run(UnlistedNorm{}, 2);
    const std::string said = "batch_norm_update_running: a tensor of shape (4,)";
    const std::string advised =
        " is updated and is not a buffer of the model; list its layer in LOCKSTEP_MEMBERS, or put the layer in "
        "evaluation mode";
    const auto check = [&](const std::function<void()>& call) {
        const std::string text = message_of<ls::InvalidArgument>(call);
        INFO(text);
        CHECK(contains(text, said));
        CHECK(contains(text, advised));
    };
    for (const bool training : {true, false}) {
        run.model.train(training);
        check([&] { run.step(); });
        check([&] { (void)run.model(run.x); });
        check([&] {
            const ls::NoGrad no_grad;
            (void)run.model(run.x);
        });
    }
    CHECK(run.model.engine().steps_done() == 0);
    CHECK(run.model->norm.running_mean->tensor().to_vector<float>() == std::vector<float>(4, 0));
    ls::set_training(run.model->norm, false);
    run.step();
    CHECK(run.model.engine().steps_done() == 1);
}

TEST_CASE("a dropout layer that eval() does not reach is rejected") {
    const std::string advised =
        ": the layer is in training mode, but no module that the model lists is; list it in LOCKSTEP_MEMBERS, so that "
        "train() and eval() set its mode";
    const auto rejected = [&](auto& run, const std::string& layer) {
        CHECK(message_of<ls::InvalidArgument>([&] { (void)run.model(run.x); }) == layer + advised);
        CHECK(message_of<ls::InvalidArgument>([&] {
                  const ls::NoGrad no_grad;
                  (void)run.model(run.x);
              }) == layer + advised);
    };
    OneBatch one(UnlistedDropout<ls::Dropout>{}, 2);
    rejected(one, "Dropout");
    CHECK(message_of<ls::InvalidArgument>([&] { one.step(); }) == "Dropout" + advised);
    OneBatch maps(UnlistedDropout<ls::Dropout2d>{}, 2);
    rejected(maps, "Dropout2d");

    OneBatch half(HalfListed{}, 2);
    half.step();
    half.model.eval();
    rejected(half, "Dropout");
    half.model->listed.training = true;  // Monte Carlo dropout
    (void)half.model(half.x);

    OneBatch copying(Copying{}, 2);
    copying.step();
    copying.model.eval();
    copying.step();
    // A teacher decides on its own mode.
    ls::Dropout teacher{0.5};
    OneBatch student(Plain{}, 2);
    student.step([&](const ls::Tensor& a, const ls::Tensor& b) { return ls::mse_loss(teacher(a), b); });
    CHECK(student.model.engine().steps_done() == 1);
}

TEST_CASE("a loss may capture members of the model, but no other tensor that requires a gradient") {
    OneBatch run(Plain{}, 2);
    const ls::Tensor weight = ls::Tensor::full({4}, 2).requires_grad_();
    const auto weighted = [&weight](const ls::Tensor& a, const ls::Tensor& b) {
        return ls::mean_loss(ls::square(a - b) * weight);
    };
    CHECK(
        contains(message_of<ls::InvalidArgument>([&] { run.step(weighted); }), "mul: a tensor of shape (4,) requires"));
    const ls::Tensor own = run.model->a.weight;
    run.step([own](const ls::Tensor& a, const ls::Tensor& b) {
        return ls::mse_loss(a, b) + 0.1 * ls::mean_loss(ls::square(own));
    });
    CHECK(run.model.engine().steps_done() == 1);
}

TEST_CASE("teachers: under NoGrad, detached, frozen") {
    ls::Linear teacher{4, 4};
    const auto steps_with = [](const auto& teach) {
        OneBatch run(Plain{}, 2);
        run.model.step(run.sgd, run.x, run.x,
                       [&](const ls::Tensor& a, const ls::Tensor& x) { return ls::mse_loss(a, teach(x)); });
        return run.model.engine().steps_done();
    };
    CHECK(steps_with([&](const ls::Tensor& x) {
              const ls::NoGrad no_grad;
              return teacher(x);
          }) == 1);
    CHECK(steps_with([&](const ls::Tensor& x) { return teacher(x).detach(); }) == 1);
    teacher.weight->requires_grad_(false);
    teacher.bias->tensor().requires_grad_(false);
    CHECK(steps_with([&](const ls::Tensor& x) { return teacher(x); }) == 1);
}

TEST_CASE("a step with nothing to train is an error") {
    OneBatch run(Plain{}, 2);
    run.step();
    CHECK(contains(message_of<ls::InvalidArgument>([&] {
                       const ls::NoGrad no_grad;
                       run.step();
                   }),
                   "step: called inside NoGrad"));
    for (const ls::NamedTensor& named : ls::named_tensors(*run.model)) named.member->tensor().requires_grad_(false);
    CHECK(message_of<ls::InvalidArgument>([&] { run.step(); }) ==
          "step: the loss does not depend on a parameter that requires a gradient (all are frozen); unfreeze one with "
          "requires_grad_(), or call forward for evaluation");
    run.model->a.weight->requires_grad_();
    CHECK(contains(message_of<ls::InvalidArgument>([&] {
                       run.step([](const ls::Tensor& a, const ls::Tensor& b) { return ls::mse_loss(a.detach(), b); });
                   }),
                   "step: the loss does not depend on a parameter that requires a gradient;"));
    run.step();
    CHECK(run.model.engine().steps_done() == 2);
}
