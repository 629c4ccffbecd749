// Custom losses by mean_loss and sum_loss: on shards of unequal length their value and gradients are those of the whole
// batch, computed here in double precision.
#include <cmath>
#include <vector>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/layers.h"
#include "lockstep/ops/sgd.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/random.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/eight_devices.h"
#include "lockstep/tests/fixtures/messages.h"

using namespace lockstep;
using lockstep::test::message_of;

namespace {

constexpr std::int64_t in = 3, out = 2;

struct Net {
    Linear fc{in, out, false};
    LOCKSTEP_MEMBERS(fc)
    Tensor forward(const Tensor& x) { return fc(x); }
};

/// The square root of (difference^2 + 1), element by element.
Tensor rounded_corner(const Tensor& output, const Tensor& target) { return sqrt(square(output - target) + 1.0); }

struct Expected {
    double loss = 0;
    std::vector<double> gradient = std::vector<double>(in * out, 0);  // gradient of weight (out, in)
};

/// Sum of the output of `rounded_corner` over rows and outputs, divided by `over`.
Expected expected(const std::vector<float>& x, const std::vector<float>& t, const std::vector<float>& w, double over) {
    Expected result;
    const std::size_t rows = x.size() / in;
    for (std::size_t r = 0; r < rows; ++r)
        for (std::size_t o = 0; o < out; ++o) {
            double y = 0;
            for (std::size_t i = 0; i < in; ++i)
                y += static_cast<double>(w[o * in + i]) * static_cast<double>(x[r * in + i]);
            const double difference = y - static_cast<double>(t[r * out + o]);
            const double root = std::sqrt(difference * difference + 1);
            result.loss += root / over;
            for (std::size_t i = 0; i < in; ++i)
                result.gradient[o * in + i] += difference / root * static_cast<double>(x[r * in + i]) / over;
        }
    return result;
}

void check(const Expected& found, const Expected& wanted) {
    CHECK(found.loss == Approx(wanted.loss).epsilon(1e-6));
    for (std::size_t i = 0; i < wanted.gradient.size(); ++i)
        CHECK(found.gradient[i] == Approx(wanted.gradient[i]).epsilon(2e-5).margin(1e-6));
}

/// Loss and gradient of one step, derived from the weights: the rate is so large that their own digits do not matter.
template <class Loss>
Expected one_step(const Net& net, int k, const Tensor& x, const Tensor& t, const Loss& loss,
                  const StepOptions& how = {}) {
    constexpr double rate = 1 << 20;
    DataParallel<Net> model(net, test::cpu_devices(k));
    SGD sgd(model, {.lr = rate});
    const std::vector<float> before = model->fc.weight->detach().to_vector<float>();
    Expected found;
    found.loss = model.step(sgd, x, t, loss, how).item();
    const std::vector<float> after = model->fc.weight->detach().to_vector<float>();
    for (std::size_t i = 0; i < before.size(); ++i)
        found.gradient[i] = (static_cast<double>(before[i]) - static_cast<double>(after[i])) / rate;
    return found;
}

struct Data {
    Tensor x, t;
    std::vector<float> xs, ts;
    explicit Data(std::int64_t rows)
        : x(Tensor::randn({rows, in})),
          t(Tensor::randn({rows, out})),
          xs(x.to_vector<float>()),
          ts(t.to_vector<float>()) {}
};

}  // namespace

TEST_CASE("mean_loss and sum_loss on shards of unequal length") {
    manual_seed(51);
    const Net net;
    const std::vector<float> w = net.fc.weight->detach().to_vector<float>();
    const auto mean = [](const Tensor& y, const Tensor& t) { return mean_loss(rounded_corner(y, t)); };
    const auto total = [](const Tensor& y, const Tensor& t) { return sum_loss(rounded_corner(y, t)); };
    const auto of_rows = [](const Tensor& y, const Tensor& t) { return mean_loss(sum(rounded_corner(y, t), 1)); };
    for (const std::int64_t rows : {7, 5, 12})
        for (const int k : {1, 3, 8}) {
            const Data data(rows);
            const auto elements = static_cast<double>(rows * out);
            check(one_step(net, k, data.x, data.t, mean), expected(data.xs, data.ts, w, elements));
            check(one_step(net, k, data.x, data.t, total), expected(data.xs, data.ts, w, 1));
            check(one_step(net, k, data.x, data.t, of_rows), expected(data.xs, data.ts, w, static_cast<double>(rows)));
            check(one_step(net, k, data.x, data.t, mean, {.accumulation_steps = 2}),
                  expected(data.xs, data.ts, w, elements));
        }
}

TEST_CASE("custom losses add to others, and a penalty on weights counts once") {
    manual_seed(52);
    const Net net;
    const std::vector<float> w = net.fc.weight->detach().to_vector<float>();
    const Data data(7);
    Expected wanted = expected(data.xs, data.ts, w, 7.0 * out);
    for (std::size_t i = 0; i < w.size(); ++i) {
        const double weight = static_cast<double>(w[i]);
        wanted.loss += 0.5 * weight * weight / static_cast<double>(in * out);
        wanted.gradient[i] += 0.5 * 2 * weight / static_cast<double>(in * out);
    }
    for (const int k : {1, 2, 3}) {
        constexpr double rate = 1 << 20;
        DataParallel<Net> model(net, test::cpu_devices(k));
        SGD sgd(model, {.lr = rate});
        Expected found;
        found.loss = model
                         .step(sgd, data.x, data.t,
                               [&model](const Tensor& y, const Tensor& t) {
                                   return mean_loss(rounded_corner(y, t)) + 0.5 * mean_loss(square(model->fc.weight));
                               })
                         .item();
        const std::vector<float> after = model->fc.weight->detach().to_vector<float>();
        for (std::size_t i = 0; i < w.size(); ++i)
            found.gradient[i] = (static_cast<double>(w[i]) - static_cast<double>(after[i])) / rate;
        check(found, wanted);
    }
}

TEST_CASE("eager custom losses are those of the whole batch") {
    manual_seed(53);
    Net net;
    const Data data(5);
    const std::vector<float> w = net.fc.weight->detach().to_vector<float>();
    const Loss loss = mean_loss(rounded_corner(net.forward(data.x), data.t));
    const Expected wanted = expected(data.xs, data.ts, w, 5.0 * out);
    CHECK(loss.item() == Approx(wanted.loss).epsilon(1e-6));
    loss.backward();
    const std::vector<float> gradient = net.fc.weight->grad().to_vector<float>();
    for (std::size_t i = 0; i < gradient.size(); ++i)
        CHECK(gradient[i] == Approx(wanted.gradient[i]).epsilon(2e-5).margin(1e-6));
}

TEST_CASE("losses that cannot be divided or summed over shards are rejected") {
    DataParallel<Net> model(Net{}, test::cpu_devices(2));
    SGD sgd(model, {.lr = 0.1});
    const Data data(4);
    const auto refused = [&](auto loss) {
        return message_of<InvalidArgument>([&] { model.step(sgd, data.x, data.t, loss); });
    };
    CHECK(refused([](const Tensor& y, const Tensor& t) { return mean_loss(mean(y - t)); }) ==
          "mean_loss: a scalar has an unknown number of elements; expected the loss of every element");
    CHECK(refused([&](const Tensor&, const Tensor&) { return sum_loss(square(model->fc.weight)); }) ==
          "sum_loss: dimension 0 of (2, 3) is not the batch, so every shard would add the sum again; expected the loss "
          "of every row, tagged with tag_batch() if a view lost the tag");
    CHECK(message_of<InvalidArgument>([] {
              (void)mean_loss(Tensor::zeros({2}, DType::i64));
          }).starts_with("mean_loss: the tensor (2,) has dtype i64"));
    CHECK(message_of<InvalidArgument>([] { (void)sum_loss(Tensor()); }) ==
          "sum_loss: the tensor is undefined; expected a tensor");
}
