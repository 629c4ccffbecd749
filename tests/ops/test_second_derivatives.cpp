// grad() with create_graph: every entry of the op table has second derivatives, which agree with differences of its
// gradients.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/loss.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/random.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/messages.h"
#include "lockstep/tests/fixtures/once_differentiable.h"
#include "lockstep/tests/ops/op_table.h"

using namespace lockstep;
using test::contains;

namespace {

using Tensors = std::vector<Tensor>;

template <class Call>
std::string message_of(Call call) {
    return test::message_of<InvalidArgument>(call);
}

/// A tensor of fixed numbers in (-1, 1), f64.
Tensor weights_like(const Tensor& x, int salt) {
    std::vector<double> values;
    for (std::int64_t i = 0; i < x.numel(); ++i) values.push_back(std::sin(1.7 * static_cast<double>(i) + salt));
    return Tensor::from(values, x.shape());
}

/// An entry of the op table with its inputs, and a weighted sum of its gradients.
class Entry {
public:
    explicit Entry(const test::Op& op) : op_(op) {
        const std::vector<test::Input> inputs = op.inputs();
        for (std::size_t i = 0; i < inputs.size(); ++i) {
            const auto values = test::make_values(inputs[i], static_cast<std::uint32_t>(i));
            inputs_.push_back(test::to_tensor(values, inputs[i], DType::f64, Device::host()));
            if (inputs[i].gradient && inputs[i].values != test::Values::classes) differentiated_.push_back(i);
        }
    }

    /// Moves a differentiated input, or the upstream gradient after the last of them, along a direction.
    double sum_of_gradients(std::size_t moved, double distance) const {
        const Tensors in = leaves(moved, distance);
        const Tensor y = run(in);
        const Tensor upstream = upstream_of(y, moved, distance);
        return weighted(grad({y}, chosen(in), {upstream}, {.allow_unused = true})).item();
    }

    /// Derivatives of that sum along the directions, in the same order. Throws if a function has no second derivative.
    std::vector<double> derivatives() const {
        const Tensors in = leaves(differentiated_.size() + 1, 0);
        const Tensor y = run(in);
        const Tensor upstream = upstream_of(y, 0, 0).requires_grad_();
        Tensors arguments = chosen(in);
        const Tensor s = weighted(grad({y}, arguments, {upstream}, {.create_graph = true, .allow_unused = true}));
        arguments.push_back(upstream);
        std::vector<double> along(arguments.size(), 0.0);
        if (!s.requires_grad()) return along;
        const Tensors second = grad({s}, arguments, {}, {.allow_unused = true});
        for (std::size_t i = 0; i < second.size(); ++i)
            if (second[i].defined()) along[i] = sum(second[i] * direction(arguments[i], i)).item();
        return along;
    }

    bool usable() const { return !differentiated_.empty() && op_.has_gradient() && !op_.is_special(); }

private:
    static Tensor direction(const Tensor& x, std::size_t i) { return weights_like(x, static_cast<int>(i) + 5); }

    Tensor run(const Tensors& in) const {
        manual_seed(test::seed);
        return op_.run(in);
    }
    Tensors leaves(std::size_t moved, double distance) const {
        Tensors in = inputs_;
        for (std::size_t i = 0; i < differentiated_.size(); ++i) {
            Tensor& x = in[differentiated_[i]];
            x = i == moved ? x + direction(x, i) * distance : x.clone();
            x.requires_grad_();
        }
        return in;
    }
    Tensors chosen(const Tensors& in) const {
        Tensors found;
        for (const std::size_t i : differentiated_) found.push_back(in[i]);
        return found;
    }
    Tensor upstream_of(const Tensor& y, std::size_t moved, double distance) const {
        const Tensor upstream = weights_like(y, 1);
        return moved == differentiated_.size() ? upstream + direction(y, moved) * distance : upstream;
    }
    static Tensor weighted(const Tensors& gradients) {
        Tensor s = Tensor::zeros({}, DType::f64);
        for (std::size_t i = 0; i < gradients.size(); ++i)
            if (gradients[i].defined()) s = s + sum(gradients[i] * weights_like(gradients[i], static_cast<int>(i) + 2));
        return s;
    }

    const test::Op& op_;
    Tensors inputs_;
    std::vector<std::size_t> differentiated_;
};

/// One entry in this many is compared with differences: under sanitizers, these take most of the time.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int compared_entries = 8;
#else
constexpr int compared_entries = 1;
#endif

/// Whether the gradient has a jump: its difference does not become smaller with the step.
bool jumps(const Entry& entry, std::size_t argument, double step, double difference) {
    const double half = entry.sum_of_gradients(argument, step / 2) - entry.sum_of_gradients(argument, -step / 2);
    return std::abs(half) > 0.9 * std::abs(difference);
}

}  // namespace

TEST_CASE("second derivatives agree with differences of gradients") {
    int checked = 0, kinks = 0;
    for (const auto& op : test::make_table()) {
        const Entry entry(*op);
        if (!entry.usable()) continue;
        INFO(op->name());
        const std::vector<double> found = entry.derivatives();
        if (checked++ % compared_entries != 0) continue;
        constexpr double step = 1e-5;
        for (std::size_t i = 0; i < found.size(); ++i) {
            const double ahead = entry.sum_of_gradients(i, step), behind = entry.sum_of_gradients(i, -step);
            const double difference = (ahead - behind) / (2 * step);
            if (std::abs(ahead - behind) > 1e-3 && jumps(entry, i, step, ahead - behind)) {
                ++kinks;
                continue;
            }
            INFO("argument " << i << ": " << found[i] << ", by differences " << difference);
            CHECK(std::abs(found[i] - difference) <= 1e-5 * std::max({1.0, std::abs(difference), std::abs(ahead)}));
        }
    }
    CHECK(checked > 500);
    if (compared_entries == 1) CHECK(kinks == 4);  // equal elements of maximum and minimum
}

TEST_CASE("third derivatives, and a function that is differentiated where it meets itself") {
    const Tensor x = Tensor::from(std::vector<double>{0.3, -0.7, 1.1}, {3}).requires_grad_();
    const Tensor y = sum(sin(x) * x);
    const GradOptions again{.create_graph = true};
    const Tensor first = grad({y}, {x}, {}, again)[0];
    const Tensor second = grad({sum(first)}, {x}, {}, again)[0];
    const Tensor third = grad({sum(second)}, {x})[0];
    for (int i = 0; i < 3; ++i) {
        const double at = x.select(0, i).item();
        CHECK(first.select(0, i).item() == Approx(std::sin(at) + at * std::cos(at)));
        CHECK(second.select(0, i).item() == Approx(2 * std::cos(at) - at * std::sin(at)));
        CHECK(third.select(0, i).item() == Approx(-3 * std::sin(at) - at * std::cos(at)));
    }
}

TEST_CASE("a gradient penalty and a Hessian times a vector, of a network with weights") {
    manual_seed(3);
    const Tensor w1 = Tensor::randn({4, 3}).to(DType::f64).requires_grad_(), b1 = Tensor::randn({4}).to(DType::f64);
    const Tensor w2 = Tensor::randn({1, 4}).to(DType::f64).requires_grad_();
    const Tensor rows = Tensor::randn({5, 3}).to(DType::f64);
    const auto penalty = [&](const Tensor& w, bool create_graph) {
        const Tensor x = rows.clone().requires_grad_();
        const Tensor score = linear(tanh(linear(x, w, b1)), w2);
        const Tensor slope = grad({sum(score)}, {x}, {}, {.create_graph = create_graph})[0];
        return mean(square(norm(slope, 2, 1) - 1));
    };
    const Tensor made = penalty(w1, true);
    made.backward();
    REQUIRE(w1.grad().defined());
    for (int i = 0; i < 12; ++i) {
        std::vector<double> moved(12, 0.0);
        moved[static_cast<std::size_t>(i)] = 1e-6;
        const Tensor step = Tensor::from(moved, {4, 3});
        const double difference =
            (penalty(w1.detach() + step, false).item() - penalty(w1.detach() - step, false).item()) / 2e-6;
        CHECK(w1.grad().reshape({12}).select(0, i).item() == Approx(difference).margin(1e-7));
    }
}

TEST_CASE("grad: results, unchanged leaves, and refused arguments") {
    const Tensor x = Tensor::from(std::vector<float>{1, 2, 3}, {3}).requires_grad_();
    const Tensor other = Tensor::ones({3}).requires_grad_();
    const Tensor middle = x * 2, y = middle * middle;
    SECTION("leaves and results of functions, without a change of grad()") {
        const Tensors found = grad({y}, {x, middle, y}, {Tensor::ones({3})}, {.retain_graph = true});
        CHECK(found[0].to_vector<float>() == std::vector<float>{8, 16, 24});
        CHECK(found[1].to_vector<float>() == std::vector<float>{4, 8, 12});
        CHECK(found[2].to_vector<float>() == std::vector<float>{1, 1, 1});
        CHECK_FALSE(x.grad().defined());
        CHECK_FALSE(found[0].requires_grad());
        sum(y).backward();
        CHECK(x.grad().to_vector<float>() == std::vector<float>{8, 16, 24});
    }
    SECTION("several outputs that share a part of the graph") {
        const Tensors found = grad({sum(y), sum(middle)}, {x});
        CHECK(found[0].to_vector<float>() == std::vector<float>{10, 18, 26});
    }
    SECTION("an unused input") {
        CHECK(contains(message_of([&] { grad({sum(y)}, {x, other}); }), "no output depends on input 1"));
        const Tensor again = sum(x * 3);
        CHECK_FALSE(grad({again}, {x, other}, {}, {.allow_unused = true})[1].defined());
    }
    SECTION("a graph is freed, unless it is retained") {
        const Tensor total = sum(y);
        grad({total}, {x});
        CHECK(contains(message_of([&] { grad({total}, {x}); }), "was freed"));
    }
    SECTION("arguments") {
        CHECK(contains(message_of([&] { grad({}, {x}); }), "no outputs"));
        CHECK(contains(message_of([&] { grad({sum(y)}, {}); }), "no inputs"));
        CHECK(contains(message_of([&] { grad({y}, {x}); }), "expected an explicit gradient"));
        CHECK(contains(message_of([&] { grad({y}, {x}, {Tensor::ones({2})}); }), "expected the same"));
        CHECK(contains(message_of([&] { grad({y}, {x}, {Tensor::ones({3}), Tensor::ones({3})}); }), "one for each"));
        CHECK(contains(message_of([&] { grad({sum(y)}, {x.detach()}); }), "does not require a gradient"));
        CHECK(contains(message_of([&] { grad({sum(y)}, {Tensor()}); }), "is undefined"));
    }
    SECTION("hooks of other leaves do not run") {
        int calls = 0;
        other.register_hook([&](const Tensor&) { ++calls; });
        x.register_hook([&](const Tensor&) { calls += 10; });
        grad({sum(x * other)}, {x});
        CHECK(calls == 10);
    }
    SECTION("create_graph inside NoGrad") {
        const NoGrad no_grad;
        const Tensor slope = grad({y}, {x}, {Tensor::ones({3})}, {.create_graph = true})[0];
        REQUIRE(slope.requires_grad());
        CHECK_FALSE(grad_enabled());
        CHECK(grad({slope}, {x}, {Tensor::ones({3})})[0].to_vector<float>() == std::vector<float>{8, 8, 8});
    }
    SECTION("a saved tensor that was modified") {
        const Tensor leaf = Tensor::ones({3}).requires_grad_();
        const Tensor result = sum(exp(leaf) * leaf);
        {
            const NoGrad no_grad;
            leaf.fill_(2);
        }
        CHECK(contains(message_of([&] { grad({result}, {leaf}, {}, {.create_graph = true}); }), "was modified"));
    }
    SECTION("a function without second derivatives between other tensors") {
        const Tensor images = Tensor::ones({1, 1, 2, 2}).requires_grad_();
        const Tensor mixed = sum(x * x) + sum(test::once_differentiable(images));
        CHECK(grad({mixed}, {x}, {}, {.create_graph = true})[0].to_vector<float>() == std::vector<float>{2, 4, 6});
        CHECK(contains(
            message_of([&] { grad({sum(test::once_differentiable(images))}, {images}, {}, {.create_graph = true}); }),
            "once_differentiable has no second derivative"));
    }
}

TEST_CASE("a gradient is not copied to a leaf if nothing else has it, and is separate otherwise") {
    const Tensor a = Tensor::ones({4}).requires_grad_(), b = Tensor::ones({4}).requires_grad_();
    const Tensor upstream = Tensor::full({4}, 3);
    (a + b).backward(upstream);
    a.grad().fill_(7);
    CHECK(b.grad().to_vector<float>() == std::vector<float>(4, 3.0f));
    CHECK(upstream.to_vector<float>() == std::vector<float>(4, 3.0f));

    const Tensor c = Tensor::ones({4}).requires_grad_();
    Tensor kept;
    c.register_hook([&](const Tensor& gradient) { kept = gradient; });
    (c * 2).backward(upstream);
    c.grad().fill_(7);
    CHECK(kept.to_vector<float>() == std::vector<float>(4, 6.0f));

    const Tensor d = Tensor::ones({2, 3}).requires_grad_();
    sum(d.transpose(0, 1).slice(0, 0, 2) * 2).backward();
    CHECK(d.grad().is_contiguous());
    CHECK(d.grad().to_vector<float>() == std::vector<float>{2, 2, 0, 2, 2, 0});
}
