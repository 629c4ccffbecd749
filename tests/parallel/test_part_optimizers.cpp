// Optimizers of parts of a model update only their parts, in steps and manual steps, compared with plain loops.
#include <cmath>
#include <vector>

#include "lockstep/lockstep.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/files.h"
#include "lockstep/tests/fixtures/messages.h"

using namespace lockstep;
using namespace lockstep::test;

namespace {

struct EightDevices {
    EightDevices() { setenv("LOCKSTEP_CPU_DEVICES", "8", 1); }
};
const EightDevices eight_devices;

struct Net {
    Linear body{2, 2, false}, head{2, 1, false};
    LOCKSTEP_MEMBERS(body, head)
    Tensor forward(const Tensor& x) const { return head(body(x)); }
};

using Values = std::vector<double>;

Values values(const Linear& layer) {
    const std::vector<float> all = layer.weight->to_vector<float>();
    return {all.begin(), all.end()};
}

const Values inputs{1, 2, -1, 0.5, 0.25, -2, 3, 1}, targets{1, -1, 0.5, 2};

Tensor tensor_of(const Values& all, Shape shape) {
    const std::vector<float> short_ones(all.begin(), all.end());
    return Tensor::from(short_ones, shape);
}
Tensor x() { return tensor_of(inputs, {4, 2}); }
Tensor y() { return tensor_of(targets, {4, 1}); }
Loss loss_of(const Tensor& output, const Tensor& target) { return mse_loss(output, target); }

Tensor squares_of(const Tensor& output) {
    const Tensor difference = output - y().to(output.device());
    return sum(difference * difference) * 0.25;
}

/// The mean squared error of 4 rows and its gradients, in double.
struct Reference {
    Values body, head;
    explicit Reference(const Net& net) : body(values(net.body)), head(values(net.head)) {}
    std::pair<Values, Values> gradients() const {
        Values of_body(4, 0), of_head(2, 0);
        for (std::size_t row = 0; row < 4; ++row) {
            const double* in = &inputs[2 * row];
            const double hidden[2] = {body[0] * in[0] + body[1] * in[1], body[2] * in[0] + body[3] * in[1]};
            const double slope = 2 * (head[0] * hidden[0] + head[1] * hidden[1] - targets[row]) / 4;
            for (std::size_t k = 0; k < 2; ++k) {
                of_head[k] += slope * hidden[k];
                for (std::size_t i = 0; i < 2; ++i) of_body[2 * k + i] += slope * head[k] * in[i];
            }
        }
        return {of_body, of_head};
    }
};

/// SGD with momentum.
struct Momentum {
    double lr, momentum;
    Values velocity = {};
    void step(Values& parameters, const Values& gradient, double scale = 1) {
        velocity.resize(parameters.size());
        for (std::size_t i = 0; i < parameters.size(); ++i) {
            velocity[i] = momentum * velocity[i] + scale * gradient[i];
            parameters[i] -= lr * velocity[i];
        }
    }
};

void check_close(const Values& found, const Values& expected) {
    REQUIRE(found.size() == expected.size());
    for (std::size_t i = 0; i < found.size(); ++i) CHECK(found[i] == Approx(expected[i]).epsilon(1e-4));
}

Devices cpus(int count) {
    std::vector<Device> all;
    for (int i = 0; i < count; ++i) all.push_back(Device::cpu(i));
    return Devices(all);
}

double norm(const Values& a, const Values& b = {}) {
    double sum = 0;
    for (const auto* all : {&a, &b})
        for (const double value : *all) sum += value * value;
    return std::sqrt(sum);
}

struct Tied {
    Linear a{2, 2, false}, b{2, 2, false};
    Tied() { tie(a.weight, b.weight); }
    LOCKSTEP_MEMBERS(a, b)
};

struct Deep {
    Net net;
    Linear last{1, 1, false};
    LOCKSTEP_MEMBERS(net, last)
    Tensor forward(const Tensor& input) const { return last(net.forward(input)); }
};

struct Options {
    double lr = 0.1;
    LOCKSTEP_MEMBERS(lr)
};

class Descent final : public CustomOptimizer<Options> {
public:
    using CustomOptimizer::CustomOptimizer;
    const char* name() const override { return "Descent"; }
    std::vector<std::string> states() const override { return {"last"}; }
    void update(UpdateRange& range) const override {
        range.set_parameter(range.parameter() - range.setting("lr") * range.gradient());
        range.set_state("last", range.gradient());
    }
};

}  // namespace

TEST_CASE("an optimizer of a part updates only that part, in step and manually, on 1 to 3 devices") {
    for (const int count : {1, 2, 3})
        for (const bool long_form : {false, true}) {
            INFO(count << " devices, long form " << long_form);
            manual_seed(1);
            DataParallel model(Net{}, cpus(count), {.shards = 2});
            Reference reference(*model);
            SGD sgd(model->head, {.lr = 0.1, .momentum = 0.5});
            Momentum rule{0.1, 0.5};
            for (int step = 0; step < 3; ++step) {
                rule.step(reference.head, reference.gradients().second);
                if (long_form) {
                    squares_of(model.forward(x())).backward();
                    sgd.step();
                    model->body.weight->set_grad(Tensor());
                    sgd.zero_grad();
                } else {
                    model.step(sgd, x(), y(), loss_of);
                }
            }
            check_close(values(model->head), reference.head);
            check_close(values(model->body), reference.body);
            model.engine().verify_replicas();
        }
}

TEST_CASE("two optimizers of disjoint parts, or of the whole and a part, each update their own parameters") {
    for (const bool wrapped : {false, true}) {
        INFO("wrapped " << wrapped);
        manual_seed(2);
        Net net;
        Reference reference(net);
        Momentum of_body{0.05, 0}, of_head{0.2, 0.5};
        const auto train = [&](auto& forward, Linear& body, Linear& head) {
            SGD first(body, {.lr = 0.05}), second(head, {.lr = 0.2, .momentum = 0.5});
            for (int step = 0; step < 3; ++step) {
                const auto [g_body, g_head] = reference.gradients();
                const Tensor output = forward(x());
                squares_of(output).backward();
                first.step();
                second.step();
                of_body.step(reference.body, g_body);
                of_head.step(reference.head, g_head);
                first.zero_grad();
                CHECK(!body.weight->grad().defined());
                CHECK(head.weight->grad().defined());
                second.zero_grad();
            }
            CHECK(first.parameters().size() == 1);
        };
        if (wrapped) {
            DataParallel model(net, cpus(2));
            train(model, model->body, model->head);
            check_close(values(model->body), reference.body);
            check_close(values(model->head), reference.head);
        } else {
            const auto forward = [&](const Tensor& input) { return net.forward(input); };
            train(forward, net.body, net.head);
            check_close(values(net.body), reference.body);
            check_close(values(net.head), reference.head);
        }
    }
}

TEST_CASE("a parameter in two optimizers is updated by both, as in PyTorch") {
    manual_seed(3);
    Net net;
    Reference reference(net);
    SGD whole(net, {.lr = 0.1}), part(net.head, {.lr = 0.2});
    const auto [g_body, g_head] = reference.gradients();
    squares_of(net.forward(x())).backward();
    whole.step();
    part.step();
    for (std::size_t i = 0; i < 4; ++i) reference.body[i] -= 0.1 * g_body[i];
    for (std::size_t i = 0; i < 2; ++i) reference.head[i] -= 0.3 * g_head[i];
    check_close(values(net.body), reference.body);
    check_close(values(net.head), reference.head);
}

TEST_CASE("a wrapped model with an optimizer of the whole and one of a part is updated by both") {
    for (const int count : {1, 2, 3}) {
        INFO(count << " devices");
        manual_seed(7);
        DataParallel model(Net{}, cpus(count), {.shards = 3});
        SGD whole(model, {.lr = 0.05, .momentum = 0.5}), part(model->head, {.lr = 0.1});
        Reference reference(*model);
        Momentum of_body{0.05, 0.5}, of_head{0.05, 0.5}, of_part{0.1, 0};
        const auto update = [&](bool by_whole, bool by_part) {
            const auto [g_body, g_head] = reference.gradients();
            if (by_whole) of_body.step(reference.body, g_body), of_head.step(reference.head, g_head);
            if (by_part) of_part.step(reference.head, g_head);
        };
        for (int step = 0; step < 3; ++step) {
            // In steps, each optimizer has the gradients of its step.
            model.step(whole, x(), y(), loss_of);
            update(true, false);
            model.step(part, x(), y(), loss_of);
            update(false, true);
            check_close(values(model->body), reference.body);
            check_close(values(model->head), reference.head);
            // In the manual step, both have those of one backward.
            squares_of(model.forward(x())).backward();
            whole.step();
            part.step();
            update(true, true);
            check_close(values(model->body), reference.body);
            check_close(values(model->head), reference.head);
            whole.zero_grad();
            CHECK(!model->head.weight->grad().defined());
        }
        model.engine().verify_replicas();
    }
}

TEST_CASE("the summary of a part, plain or wrapped, describes only the part") {
    const auto check = [](auto& net) {
        const ModelSummary whole = summary(net, Shape{4, 2}), head = summary(net.head, Shape{4, 2});
        CHECK(whole.parameters == 6);
        REQUIRE(head.rows.size() == 1);
        CHECK(head.rows[0].call == "linear");
        CHECK(head.rows[0].output == Shape{4, 1});
        CHECK(head.rows[0].parameters == 2);
        CHECK(head.parameters == 2);
        CHECK(head.trainable == 2);
        CHECK(head.parameter_bytes == 8);
        CHECK(head.input_bytes == 4 * 2 * 4);
        CHECK(head.result_bytes == 4 * 4);
        CHECK(head.unused.empty());
    };
    Net net;
    check(net);
    SGD sgd(net.head);  // moves the parameters of the part to an arena
    check(net);
    DataParallel model(Net{}, cpus(2));
    check(model.module());
    SGD part(model->head);
    model.step(part, x(), y(), loss_of);
    check(model.module());
    model.module().head.weight->requires_grad_(false);
    CHECK(summary(model->head, Shape{4, 2}).trainable == 0);
}

TEST_CASE("an optimizer that would update only some of its parameters is rejected") {
    Net net;
    const SGD part(net.head);
    CHECK(message_of<InvalidArgument>([&] { SGD whole(net); }) ==
          "optimizer: an optimizer of another part has head.weight, but not body.weight; expected an optimizer of the "
          "whole model first, which lives as long as those of parts");
    const SGD other(net.body);
    CHECK_THROWS_AS(SGD(net), InvalidArgument);
}

TEST_CASE("an optimizer created before wrapping is rejected") {
    Net net;
    SGD sgd(net);
    CHECK(message_of<InvalidArgument>([&] { DataParallel model(std::move(net), cpus(1)); }) ==
          "the parameter body.weight already belongs to another wrapper or optimizer; expected a copy of the model");
    Net another;
    SGD early(another);
    DataParallel model(another, cpus(2));
    CHECK_THROWS_AS(model.step(early, x(), y(), loss_of), InvalidArgument);
    squares_of(model.forward(x())).backward();
    CHECK(message_of<InvalidArgument>([&] { early.step(); }) ==
          "optimizer step: no parameter has a gradient; expected backward() on a loss (a wrapper trains a copy, so the "
          "optimizer must be created for the wrapper)");
}

TEST_CASE("clipping, scaling and counts apply to the part only") {
    manual_seed(4);
    for (const int count : {1, 2}) {
        DataParallel model(Net{}, cpus(count), {.shards = 2});
        Reference reference(*model);
        const auto [g_body, g_head] = reference.gradients();
        Adam adam(model->head, {.lr = 0.1});
        // In a step.
        const StepLoss loss = model.step(adam, x(), y(), loss_of, {.clip = {ClipGradNorm{.max_norm = 0.01}}});
        CHECK(loss.grad_norm() == Approx(norm(g_head)).epsilon(1e-4));
        check_close(values(model->body), reference.body);
        // In the manual step.
        const Reference now(*model);
        const auto [body_now, head_now] = now.gradients();
        squares_of(model.forward(x())).backward();
        CHECK(clip_grad_norm_(*model, {.max_norm = 1e9}).item() == Approx(norm(body_now, head_now)).epsilon(1e-4));
        CHECK(clip_grad_norm_(model->head, {.max_norm = 1e9}).item() == Approx(norm(head_now)).epsilon(1e-4));
        CHECK(clip_grad_norm_(adam, {.max_norm = 1e9}).item() == Approx(norm(head_now)).epsilon(1e-4));
        GradScaler scaler({.init_scale = 4});
        scaler.unscale_(adam);
        const std::vector<float> body_gradient = model->body.weight->grad().to_vector<float>();
        const std::vector<float> head_gradient = model->head.weight->grad().to_vector<float>();
        check_close({body_gradient.begin(), body_gradient.end()}, body_now);
        Values quarter = head_now;
        for (double& value : quarter) value /= 4;
        check_close({head_gradient.begin(), head_gradient.end()}, quarter);
        clip_grad_value_(model->head, {.clip_value = 1e-3});
        for (const float value : model->head.weight->grad().to_vector<float>()) CHECK(std::abs(value) <= 1e-3F);
        const std::vector<float> untouched = model->body.weight->grad().to_vector<float>();
        CHECK(untouched == body_gradient);
    }
}

TEST_CASE("a non-finite gradient outside the part does not skip its step") {
    manual_seed(5);
    DataParallel model(Net{}, cpus(2), {.shards = 2});
    SGD sgd(model->body, {.lr = 1e-3});
    // The head's gradient overflows: hidden values are 1e38, and the slope is several times larger.
    {
        const NoGrad no_grad;
        model->body.weight->fill_(1e25);
        model->head.weight->fill_(1e-10);
    }
    const StepLoss loss = model.step(sgd, x(), y(), loss_of, {.skip_nonfinite = true});
    CHECK(!loss.skipped());
}

TEST_CASE("clipping a model with tied parameters counts them once") {
    Tied net;
    sum(net.b(net.a(x()))).backward();
    double squares = 0;
    for (const float value : net.a.weight->grad().to_vector<float>()) squares += double{value} * double{value};
    const double before = std::sqrt(squares);
    CHECK(clip_grad_norm_(net, {.max_norm = before / 2}).item() == Approx(before).epsilon(1e-5));
    squares = 0;
    for (const float value : net.a.weight->grad().to_vector<float>()) squares += double{value} * double{value};
    CHECK(std::sqrt(squares) == Approx(before / 2).epsilon(1e-4));
}

TEST_CASE("groups of a part accept names relative to the part or to the model") {
    DataParallel model(Deep{}, cpus(2));
    SGD sgd(model->net, {.lr = 0.1});
    CHECK(sgd.parameters().size() == 2);
    CHECK(sgd.add_group({"head"}, {.lr = 0.2}) == 1);
    CHECK(sgd.parameters(0).size() == 1);
    CHECK(sgd.parameters(1).size() == 1);
    CHECK(sgd.add_group({"net.head.weight"}, {.lr = 0.3}) == 2);  // moved: it is in one group only
    CHECK(sgd.parameters(1).empty());
    CHECK(sgd.parameters(2).size() == 1);
    CHECK_THROWS_AS(sgd.add_group({"last"}, {.lr = 1}), InvalidArgument);
}

TEST_CASE("custom optimizers and saved runs of a part") {
    manual_seed(6);
    DataParallel model(Net{}, cpus(2), {.shards = 2});
    Reference reference(*model);
    Descent descent(model->body);
    Momentum rule{0.1, 0};
    for (int step = 0; step < 2; ++step) {
        rule.step(reference.body, reference.gradients().first);
        model.step(descent, x(), y(), loss_of);
    }
    check_close(values(model->body), reference.body);
    check_close(values(model->head), reference.head);

    const TemporaryDirectory folder;
    const auto train = [&](auto& trained, auto& optimizer) { trained.step(optimizer, x(), y(), loss_of); };
    Adam adam(model->head, {.lr = 0.1});
    train(model, adam);
    RunState run;
    run.steps = 3;
    save_checkpoint(model, adam, run, folder / "net");
    train(model, adam);
    DataParallel resumed(Net{}, cpus(1), {.shards = 2});
    Adam same(resumed->head, {.lr = 0.5});
    REQUIRE(load_checkpoint(resumed, same, folder / "net").has_value());
    train(resumed, same);
    CHECK(values(resumed->head) == values(model->head));
    CHECK(values(resumed->body) == values(model->body));
    DataParallel other(Net{}, cpus(1));
    Adam of_body(other->body);
    const Values before = values(other->body);
    CHECK_THROWS_WITH(load_checkpoint(other, of_body, folder / "net"),
                      contains("holds the state of head.weight, which the optimizer does not update"));
    CHECK(values(other->body) == before);
    // A part is saved and loaded separately.
    save(resumed->head, folder / "head");
    load(other->head, folder / "head");
    CHECK(values(other->head) == values(resumed->head));
    CHECK(values(other->body) == before);
}
