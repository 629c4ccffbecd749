// PyTorch's manual step: forward with gathered outputs, backward(), sgd.step(), on several devices.
#include <map>
#include <string>

#include "lockstep/ops/sgd.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/eight_devices.h"
#include "lockstep/tests/fixtures/messages.h"
#include "lockstep/tests/fixtures/nets.h"

namespace ls = lockstep;
using namespace lockstep::test;
namespace reference = ls::reference;

namespace {

/// Gradients of the mean negative log likelihood, then that of the images, in double precision.
reference::Parameters expected_gradients(ConvNet& net, const ConvNetBatch& batch) {
    const auto run = reference::run_conv_net(parameters_of(net), array_of(batch.images));
    Array dy;
    reference::conv_net_loss({}, run.log_probabilities, batch.classes, dy);
    return reference::conv_net_gradients(parameters_of(net), run, dy);
}

ls::Loss loss_of(const ls::Tensor& output, const ConvNetBatch& batch) {
    return ls::nll_loss(output, batch.labels.to(output.device()));
}

std::vector<Array> scaled(std::vector<Array> arrays, double factor) {
    for (Array& array : arrays)
        for (double& value : array.v) value *= factor;
    return arrays;
}

std::vector<Array> without_last(std::vector<Array> arrays) {
    arrays.pop_back();
    return arrays;
}

}  // namespace

TEST_CASE("gradients flow through gather and scatter to the inputs") {
    ls::manual_seed(1);
    ConvNet net;
    for (const std::int64_t rows : {8, 7, 2}) {
        const ConvNetBatch batch = make_batch(rows);
        const auto expected = expected_gradients(net, batch);
        ls::DataParallel<ConvNet> model(net, cpu_devices(3));
        const ls::Tensor images = batch.images.clone().requires_grad_();
        const ls::Tensor output = model(images);
        CHECK(output.shape() == ls::Shape{rows, 5});
        CHECK(output.device() == ls::Device::cpu(0));
        loss_of(output, batch).backward();
        REQUIRE(images.grad().defined());
        CHECK(images.grad().device().is_host());
        CHECK(relative_error({array_of(images.grad())}, {expected.back()}) < 1e-6);
        CHECK(relative_error(gradients_of(*model), without_last(expected)) < 1e-6);

        // Through an operation before the wrapper as well, from a device.
        const ls::Tensor leaf = batch.images.clone().to(ls::Device::cpu(1)).detach().requires_grad_();
        loss_of(model(leaf * 1.0), batch).backward();
        CHECK(relative_error({array_of(leaf.grad())}, {expected.back()}) < 1e-6);
    }
}

TEST_CASE("gradients of several backwards add up until zero_grad") {
    ls::manual_seed(2);
    ConvNet net;
    const ConvNetBatch batch = make_batch(10);
    const auto expected = without_last(expected_gradients(net, batch));
    ls::DataParallel<ConvNet> model(net, cpu_devices(3));
    ls::SGD sgd(model, {.lr = 0.1});
    for (int i = 1; i <= 3; ++i) {
        loss_of(model(batch.images), batch).backward();
        CHECK(relative_error(gradients_of(*model), scaled(expected, i)) < 1e-6);
    }
    sgd.zero_grad();
    for (const Array& gradient : gradients_of(*model)) CHECK(gradient.v.empty());
    loss_of(model(batch.images), batch).backward();
    CHECK(relative_error(gradients_of(*model), expected) < 1e-6);
}

TEST_CASE("two forwards before one backward") {
    ls::manual_seed(3);
    ConvNet net;
    const ConvNetBatch a = make_batch(10), b = make_batch(10), c = make_batch(5);
    ls::DataParallel<ConvNet> model(net, cpu_devices(3));
    const ls::Tensor first = model(a.images), second = model(b.images), third = model(c.images);
    (loss_of(second, b).value() + loss_of(first, a).value() + loss_of(third, c).value()).backward();
    auto expected = without_last(expected_gradients(net, a));
    for (const ConvNetBatch* batch : {&b, &c})
        expected = difference(expected, scaled(without_last(expected_gradients(net, *batch)), -1));
    CHECK(relative_error(gradients_of(*model), expected) < 1e-6);
}

TEST_CASE("a second backward is an error that explains it") {
    ConvNet net;
    const ConvNetBatch batch = make_batch(6);
    ls::DataParallel<ConvNet> model(net, cpu_devices(2));
    const ls::Tensor loss = loss_of(model(batch.images), batch).value();
    loss.backward();
    const auto once = gradients_of(*model);
    const std::string text = message_of<ls::InvalidArgument>([&] { loss.backward(); });
    CHECK(text.find("was freed by an earlier backward; expected retain_graph = true") != std::string::npos);
    CHECK(relative_error(gradients_of(*model), once) == 0);

    // The wrapper's activations are freed even if the graph is retained.
    const ls::Tensor kept = loss_of(model(batch.images), batch).value();
    kept.backward({}, true);
    const auto twice = gradients_of(*model);
    const std::string freed = message_of<ls::InvalidArgument>([&] { kept.backward(); });
    CHECK(freed ==
          "backward: a wrapper's activations are freed by the first backward, even with retain_graph; call forward "
          "again, or add the losses and call backward once");
    CHECK(relative_error(gradients_of(*model), twice) == 0);
    CHECK(relative_error(twice, scaled(once, 2)) < 1e-6);
}

TEST_CASE("grad for a parameter of a wrapper says how to get its gradient") {
    ConvNet net;
    const ConvNetBatch batch = make_batch(4);
    ls::DataParallel<ConvNet> model(net, cpu_devices(2));
    const ls::Tensor loss = loss_of(model(batch.images), batch).value();
    CHECK_THAT(message_of<ls::InvalidArgument>([&] { ls::grad({loss}, {model->fc1.weight.tensor()}); }),
               contains("for a parameter of a wrapper, backward() of its outputs and grad()"));
    const ls::Tensor other = ls::Tensor::zeros({2}).requires_grad_(), sum = ls::sum(other);
    CHECK_THAT(message_of<ls::InvalidArgument>([&] { ls::grad({sum}, {model->fc1.weight.tensor()}); }),
               !contains("wrapper"));
}

TEST_CASE("outputs may outlive the wrapper, and their backward then throws") {
    ConvNet net;
    const ConvNetBatch batch = make_batch(6);
    ls::Tensor output, dropped;
    {
        ls::DataParallel<ConvNet> model(net, cpu_devices(2));
        output = model(batch.images);
        dropped = model(batch.images);
    }
    dropped = ls::Tensor();
    const auto run = reference::run_conv_net(parameters_of(net), array_of(batch.images));
    CHECK(relative_error({array_of(output)}, {run.log_probabilities}) < 1e-6);
    CHECK(message_of<ls::InvalidArgument>([&] { loss_of(output, batch).backward(); }) ==
          "backward: the wrapper that created this tensor was destroyed; it must live until after backward");
}

TEST_CASE("a step discards gradients left by backward, and backward does not add to an undefined gradient") {
    ls::manual_seed(9);
    ConvNet net;
    const ConvNetBatch batch = make_batch(6);
    ls::DataParallel<ConvNet> model(net, cpu_devices(2));
    ls::SGD sgd(model, {.lr = 0});
    const auto expected = without_last(expected_gradients(net, batch));
    loss_of(model(batch.images), batch).backward();
    model.step(sgd, batch.images, batch.labels, ls::nll_loss);
    for (const Array& gradient : gradients_of(*model)) CHECK(gradient.v.empty());
    CHECK(message_of<ls::InvalidArgument>([&] { sgd.step(); }) ==
          "optimizer step: no parameter has a gradient; call backward() on a loss first");
    loss_of(model(batch.images), batch).backward();
    CHECK(relative_error(gradients_of(*model), expected) < 1e-6);
    for (const ls::NamedTensor& named : ls::named_tensors(*model)) named.member->tensor().set_grad(ls::Tensor());
    loss_of(model(batch.images), batch).backward();
    CHECK(relative_error(gradients_of(*model), expected) < 1e-6);
}

TEST_CASE("without autograd outputs have no history") {
    ConvNet net;
    const ConvNetBatch batch = make_batch(6);
    ls::DataParallel<ConvNet> model(net, cpu_devices(2));
    ls::Tensor output;
    {
        const ls::NoGrad no_grad;
        output = model(batch.images);
    }
    CHECK_FALSE(output.requires_grad());
    CHECK(output.is_leaf());
    const auto run = reference::run_conv_net(parameters_of(net), array_of(batch.images));
    CHECK(relative_error({array_of(output)}, {run.log_probabilities}) < 1e-6);
    CHECK_THROWS_AS(loss_of(output, batch).backward(), ls::InvalidArgument);
}

TEST_CASE("the manual step trains like step") {
    ls::manual_seed(4);
    ConvNet net;
    const ls::SgdOptions options{.lr = 0.2, .momentum = 0.9, .weight_decay = 0.01};
    for (const auto mode : {ls::ReductionMode::root, ls::ReductionMode::slice_wise}) {
        ls::DataParallel<ConvNet> a(net, cpu_devices(3), {.reduction = mode}),
            b(net, cpu_devices(3), {.reduction = mode});
        ls::SGD sgd_a(a, options), sgd_b(b, options);
        for (const std::int64_t rows : {12, 7, 12, 2}) {
            const ConvNetBatch batch = make_batch(rows);
            const double loss_a = a.step(sgd_a, batch.images, batch.labels, ls::nll_loss).item();
            sgd_b.zero_grad();
            const ls::Tensor loss_b = loss_of(b(batch.images), batch).value();
            loss_b.backward();
            sgd_b.step();
            CHECK(loss_b.item() == Approx(loss_a).epsilon(1e-5));
            CHECK(relative_error(parameters_of(*b), parameters_of(*a)) < 1e-6);
        }
        a.engine().verify_replicas();
        b.engine().verify_replicas();
        CHECK(b.engine().steps_done() == a.engine().steps_done());
    }
}

TEST_CASE("momentum that is set while updates are in flight applies to the next one") {
    ls::manual_seed(8);
    ConvNet net;
    const ConvNetBatch batch = make_batch(9);
    std::vector<Array> weights = parameters_of(net), moved;
    ls::DataParallel<ConvNet> model(net, cpu_devices(3));
    ls::SGD sgd(model, {.lr = 0.1});
    for (int step = 0; step < 6; ++step) {
        if (step == 2) sgd.set_options({.lr = 0.1, .momentum = 0.5});
        const auto run = reference::run_conv_net(weights, array_of(batch.images));
        Array dy;
        reference::conv_net_loss({}, run.log_probabilities, batch.classes, dy);
        const auto gradients = without_last(reference::conv_net_gradients(weights, run, dy));
        if (step <= 2) moved = difference(gradients, gradients, 0);
        for (std::size_t p = 0; p < weights.size(); ++p)
            for (std::ptrdiff_t i = 0; i < weights[p].size(); ++i) {
                moved[p][i] = 0.5 * moved[p][i] + gradients[p][i];
                weights[p][i] -= 0.1 * moved[p][i];
            }
        sgd.zero_grad();
        loss_of(model(batch.images), batch).backward();
        sgd.step();
    }
    CHECK(relative_error(parameters_of(*model), weights) < 1e-6);
}

TEST_CASE("changes to gradients outside the wrapper count") {
    ls::manual_seed(5);
    ConvNet net;
    const ConvNetBatch batch = make_batch(9);
    ls::DataParallel<ConvNet> model(net, cpu_devices(3));
    ls::SGD sgd(model, {.lr = 0.5});
    auto expected = without_last(expected_gradients(net, batch));
    const auto before = parameters_of(*model);
    for (std::ptrdiff_t i = 0; i < expected[2].size(); ++i) expected[2][i] += 0.6 * before[2][i];

    // A penalty on a weight, by eager operations on replica 0: d(0.3 w^2) = 0.6 w.
    (loss_of(model(batch.images), batch).value() + ls::sum(ls::square(model->fc1.weight)) * 0.3).backward();
    CHECK(relative_error(gradients_of(*model), expected) < 1e-6);
    sgd.step();
    CHECK(relative_error(difference(before, parameters_of(*model), 2), expected) < 1e-5);
    model.engine().verify_replicas();

    // Penalty first, then the wrapper's backward; then gradients set and scaled by hand.
    sgd.zero_grad();
    const auto middle = parameters_of(*model);
    ConvNet copy = *model;
    auto then = without_last(expected_gradients(copy, batch));
    for (std::ptrdiff_t i = 0; i < then[2].size(); ++i) then[2][i] += 0.6 * middle[2][i];
    (ls::sum(ls::square(model->fc1.weight)) * 0.3).backward();
    loss_of(model(batch.images), batch).backward();
    CHECK(relative_error(gradients_of(*model), then) < 1e-6);
    model->fc2.weight->grad().fill_(0.25);
    for (double& value : then[4].v) value = 0.25;
    model->fc2.bias->tensor().set_grad(ls::Tensor::full({5}, 2, ls::DType::f32, ls::Device::cpu(0)));
    for (double& value : then[5].v) value = 2;
    sgd.step();
    CHECK(relative_error(difference(middle, parameters_of(*model), 2), then) < 1e-5);
}

TEST_CASE("gradients from before wrapping, or before the optimizer, are part of the next update") {
    const ConvNetBatch batch = make_batch(9);
    const auto with_gradients = [&batch] {
        ls::manual_seed(6);
        ConvNet net;
        loss_of(net.forward(batch.images), batch).value().backward();
        return net;
    };
    ConvNet plain = with_gradients();
    const auto start = parameters_of(plain);
    const auto expected = without_last(expected_gradients(plain, batch));
    ls::SGD own(plain, {.lr = 0.5});
    CHECK(relative_error(gradients_of(plain), expected) < 1e-6);
    own.step();
    CHECK(relative_error(difference(start, parameters_of(plain), 2), expected) < 1e-5);

    for (const int devices : {1, 3}) {
        CAPTURE(devices);
        ls::DataParallel<ConvNet> model(with_gradients(), cpu_devices(devices));
        ls::SGD sgd(model, {.lr = 0.25});
        CHECK(relative_error(gradients_of(*model), expected) < 1e-6);
        loss_of(model(batch.images), batch).backward();  // adds the same gradients
        sgd.step();
        CHECK(relative_error(difference(start, parameters_of(*model), 2), expected) < 1e-5);
        model.engine().verify_replicas();

        // A whole step has only its own gradients.
        ls::DataParallel<ConvNet> other(with_gradients(), cpu_devices(devices));
        ls::SGD whole(other, {.lr = 0.5});
        other.step(whole, batch.images, batch.labels, ls::nll_loss);
        other.synchronize();
        CHECK(relative_error(difference(start, parameters_of(*other), 2), expected) < 1e-5);
        CHECK_FALSE(other->fc1.weight->grad().defined());
    }
}

TEST_CASE("hooks receive a parameter's gradient while the program is traced") {
    ConvNet net;
    const ConvNetBatch batch = make_batch(8);
    ls::DataParallel<ConvNet> model(net, cpu_devices(2));
    ls::SGD sgd(model, {.lr = 0.1});
    std::vector<ls::Shape> seen;
    model->fc1.weight->register_hook([&](const ls::Tensor& gradient) {
        CHECK(gradient.is_symbolic());
        seen.push_back(gradient.shape());
    });
    for (int i = 0; i < 3; ++i) model.step(sgd, batch.images, batch.labels, ls::nll_loss);
    model.synchronize();
    CHECK(seen == std::vector<ls::Shape>{{10, 36}});
    loss_of(model(batch.images), batch).backward();
    CHECK(seen == std::vector<ls::Shape>{{10, 36}, {10, 36}});

    int late = 0;  // hooks of a program that exists are not ignored
    model->fc2.weight->register_hook([&](const ls::Tensor&) { ++late; });
    for (int i = 0; i < 5; ++i) model.step(sgd, batch.images, batch.labels, ls::nll_loss);
    CHECK(late == 1);
    loss_of(model(batch.images), batch).backward();
    CHECK(late == 2);

    ls::DataParallel<ConvNet> reader(net, cpu_devices(2));
    reader->fc2.weight->register_hook([](const ls::Tensor& gradient) { (void)gradient.to_vector<float>(); });
    const std::string text = message_of<ls::InvalidArgument>([&] { (void)reader(batch.images); });
    CHECK(text.find("a value is read inside forward") != std::string::npos);
}

TEST_CASE("a hook of a parameter remains when the model is moved, wrapped or given to an optimizer") {
    const ConvNetBatch batch = make_batch(8);
    int calls = 0;
    const auto hooked = [&calls] {
        calls = 0;
        ConvNet net;
        net.fc1.weight->register_hook([&calls](const ls::Tensor&) { ++calls; });
        return net;  // a copy would have no hooks, as a deep copy in PyTorch
    };
    ConvNet converted = hooked();
    ls::to(converted, ls::DType::f64);
    ls::sum(ls::square(converted.fc1.weight.tensor())).backward();
    CHECK(calls == 1);
    ConvNet moved = hooked();
    ls::to(moved, ls::Device::cpu(0));
    ls::sum(ls::square(moved.fc1.weight.tensor())).backward();
    CHECK(calls == 1);
    ConvNet plain = hooked();
    ls::SGD optimizer(plain, {.lr = 0.1});
    ls::sum(ls::square(plain.fc1.weight.tensor())).backward();
    CHECK(calls == 1);
    ls::DataParallel<ConvNet> model(hooked(), cpu_devices(2));
    ls::SGD sgd(model, {.lr = 0.1});
    for (int i = 0; i < 3; ++i) model.step(sgd, batch.images, batch.labels, ls::nll_loss);
    model.synchronize();
    CHECK(calls >= 1);
}

namespace {
struct Mixed {
    ls::Linear a{4, 3}, b{3, 2};
    ls::BatchNorm2d norm{3};
    ls::Dropout drop{0.5};
    LOCKSTEP_MEMBERS(a, b, norm, drop)

    ls::Tensor forward(const ls::Tensor& x) {
        const ls::Tensor hidden = norm(a(x).reshape({-1, 3, 1, 1})).flatten(1);
        return b(drop(hidden));
    }
};
}  // namespace

TEST_CASE("evaluation uses running statistics, draws no masks and changes nothing") {
    ls::manual_seed(6);
    ls::DataParallel<Mixed> model(Mixed{}, cpu_devices(3));
    const ls::Tensor x = ls::Tensor::randn({10, 4});
    (void)model(x);  // training mode: statistics change
    model.synchronize();
    const auto mean = model->norm.running_mean->tensor().to_vector<float>();
    CHECK(mean != std::vector<float>(3, 0));
    CHECK(model->norm.num_batches_tracked->tensor().to_vector<std::int64_t>() == std::vector<std::int64_t>{1});

    model.eval();
    const ls::Tensor output = model(x);
    Mixed alone = *model;  // the same on the host, eagerly
    const ls::Tensor expected = alone.forward(x.to(ls::Device::cpu(0)));
    CHECK(relative_error({array_of(output)}, {array_of(expected)}) < 1e-6);
    CHECK(relative_error({array_of(model(x))}, {array_of(output)}) == 0);
    CHECK(model->norm.running_mean->tensor().to_vector<float>() == mean);
    model.train();
    CHECK(relative_error({array_of(model(x))}, {array_of(output)}) > 0.1);
    model.synchronize();
    CHECK(model->norm.num_batches_tracked->tensor().to_vector<std::int64_t>() == std::vector<std::int64_t>{2});
    model.engine().verify_replicas();
}

TEST_CASE("a write through the wrapper reaches all replicas") {
    ls::manual_seed(7);
    ConvNet net;
    const ConvNetBatch batch = make_batch(9);
    ls::DataParallel<ConvNet> model(net, cpu_devices(3));
    (void)model(batch.images);
    const ls::Tensor weight = ls::Tensor::randn({10, 36});
    {
        const ls::NoGrad no_grad;
        model->fc1.weight->copy_(weight);
        net.fc1.weight->copy_(weight);
    }
    const auto run = reference::run_conv_net(parameters_of(net), array_of(batch.images));
    CHECK(relative_error({array_of(model(batch.images))}, {run.log_probabilities}) < 1e-6);
    model.engine().verify_replicas();
}

TEST_CASE("outputs are gathered on the requested device") {
    ConvNet net;
    const ConvNetBatch batch = make_batch(9);
    for (const ls::Device device : {ls::Device::cpu(0), ls::Device::cpu(2), ls::Device::cpu(5), ls::Device::host()}) {
        ls::DataParallel<ConvNet> model(net, cpu_devices(3), {.output_device = device});
        const ls::Tensor output = model(batch.images);
        CHECK(output.device() == device);
        const auto run = reference::run_conv_net(parameters_of(net), array_of(batch.images));
        CHECK(relative_error({array_of(output)}, {run.log_probabilities}) < 1e-6);
        loss_of(output, batch).backward();
        CHECK(relative_error(gradients_of(*model), without_last(expected_gradients(net, batch))) < 1e-6);
    }
}

namespace {
using Many = std::map<std::string, std::vector<ls::Tensor>>;
enum class Sign { plus, minus };

/// Takes and returns nested containers and values of several types.
struct Nested {
    ls::Linear fc{3, 2};
    LOCKSTEP_MEMBERS(fc)

    std::tuple<ls::Tensor, Many, std::optional<ls::Tensor>> forward(const std::vector<ls::Tensor>& list,
                                                                    const std::pair<ls::Tensor, double>& scaled,
                                                                    const std::string& name, Sign sign) {
        const ls::Tensor y = fc(list[0] + list[1]) * (sign == Sign::plus ? 1.0 : -1.0);
        Many many;
        many[name] = {y * scaled.second, scaled.first};
        many["sum"] = {ls::sum(y)};
        std::optional<ls::Tensor> maybe;
        if (name == "both") maybe = list[0];
        return {y, many, maybe};
    }
};
}  // namespace

TEST_CASE("nested containers and values are inputs and results") {
    ls::manual_seed(8);
    Nested net;
    const std::vector<ls::Tensor> list{ls::Tensor::randn({7, 3}), ls::Tensor::randn({7, 3})};
    const ls::Tensor other = ls::Tensor::arange(7, ls::DType::i64);
    const auto w = array_of(net.fc.weight), b = array_of(*net.fc.bias);
    const auto x = reference::combine(array_of(list[0]), array_of(list[1]), [](double p, double q) { return p + q; });
    const Array y = reference::linear(x, w, b);

    ls::DataParallel<Nested> model(net, cpu_devices(3));
    auto [first, many, maybe] = model(list, std::pair(other, 2.5), std::string("one"), Sign::plus);
    CHECK(relative_error({array_of(first)}, {y}) < 1e-6);
    REQUIRE(many.size() == 2);
    REQUIRE(many.at("one").size() == 2);
    CHECK(relative_error({array_of(many.at("one")[0])}, {scaled({y}, 2.5)[0]}) < 1e-6);
    CHECK(many.at("one")[1].to_vector<std::int64_t>() == other.to_vector<std::int64_t>());
    CHECK_FALSE(maybe.has_value());
    // Scalars become a vector with one element per shard: 3, 3 and 1 rows.
    CHECK(many.at("sum")[0].shape() == ls::Shape{3});
    Array sums({3});
    for (std::ptrdiff_t i = 0; i < y.size(); ++i) sums[i / 2 / 3] += y[i];
    CHECK(relative_error({array_of(many.at("sum")[0])}, {sums}) < 1e-6);
    CHECK(model.engine().traces() == 2);

    // The gradient of a part of the output: d sum(shard sums * (1, 2, 3)).
    const ls::Tensor factors = ls::Tensor::from(std::vector<float>{1, 2, 3}, {3}, ls::Device::cpu(0));
    ls::sum(many.at("sum")[0] * factors).backward();
    Array dy({7, 2});
    for (std::ptrdiff_t i = 0; i < dy.size(); ++i) dy[i] = static_cast<double>(i / 2 / 3 + 1);
    const auto expected = reference::linear_gradients(x, w, dy);
    CHECK(relative_error(gradients_of(*model), {expected[1], expected[2]}) < 1e-6);

    // Different values give another program, equal ones reuse it.
    auto [minus, more, both] = model(list, std::pair(other, 2.5), std::string("both"), Sign::minus);
    CHECK(relative_error({array_of(minus)}, {scaled({y}, -1)[0]}) < 1e-6);
    REQUIRE(both.has_value());
    CHECK(relative_error({array_of(*both)}, {array_of(list[0])}) == 0);
    CHECK(model.engine().traces() == 4);
    (void)model(list, std::pair(other, 2.5), std::string("one"), Sign::plus);
    CHECK(model.engine().traces() == 4);
    (void)model(list, std::pair(other, 3.5), std::string("one"), Sign::plus);
    CHECK(model.engine().traces() == 6);
}
