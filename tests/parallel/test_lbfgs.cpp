// LBFGS: losses and parameters of PyTorch 2.6 in f64, equal bits on any number of devices, parts, errors and its state.
#include <cmath>
#include <functional>
#include <limits>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/layers.h"
#include "lockstep/ops/lbfgs.h"
#include "lockstep/ops/loss.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/error.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/eight_devices.h"
#include "lockstep/tests/fixtures/messages.h"
#include "lockstep/tests/fixtures/waiting.h"

using namespace lockstep;

namespace {

using Doubles = std::vector<double>;

struct Point {
    Parameter x{Tensor::from(Doubles{-1.2, 1.0}, {2})};
    LOCKSTEP_MEMBERS(x)
};

struct TwoPoints {
    Point a, b;
    LOCKSTEP_MEMBERS(a, b)
};

struct Classifier {
    Linear fc{3, 3};
    LOCKSTEP_MEMBERS(fc)
    Tensor forward(const Tensor& x) { return fc(x); }
};

void check_close(const Doubles& found, const Doubles& expected) {
    REQUIRE(found.size() == expected.size());
    for (std::size_t i = 0; i < found.size(); ++i) {
        CAPTURE(i, found[i], expected[i]);
        CHECK(std::abs(found[i] - expected[i]) <= 1e-9 * (1 + std::abs(expected[i])));
    }
}

/// Rosenbrock's function, whose minimum is at (1, 1).
Tensor valley(const Tensor& x) {
    const Tensor a = x.select(0, 0), b = x.select(0, 1);
    return 100 * square(b - square(a)) + square(1 - a);
}

struct Run {
    Doubles losses, x;
    std::int64_t evaluations;
};

Run descend(int steps, const LbfgsOptions& options) {
    Point point;
    LBFGS lbfgs(point, options);
    Run run;
    for (int i = 0; i < steps; ++i)
        run.losses.push_back(lbfgs.step([&] {
            lbfgs.zero_grad();
            Tensor loss = valley(point.x);
            loss.backward();
            return loss;
        }));
    run.x = point.x->to_vector<double>();
    run.evaluations = lbfgs.evaluations();
    return run;
}

Tensor samples(DType dtype) {
    std::vector<float> x;
    for (int i = 0; i < 8; ++i)
        for (int j = 0; j < 3; ++j) x.push_back(static_cast<float>((i * 7 + j * 3) % 11 - 5));
    return Tensor::from(x, {8, 3}).to(dtype) / 5;
}

Tensor classes() { return Tensor::from(std::vector<std::int64_t>{0, 2, 1, 0, 2, 1, 0, 2}, {8}); }

/// With PyTorch's start of the weights.
Classifier start(DType dtype) {
    Classifier net;
    Doubles weight;
    for (int i = 0; i < 9; ++i) weight.push_back(0.1 * (i % 4) - 0.15);
    net.fc.weight.rebind(Tensor::from(weight, {3, 3}).to(dtype).requires_grad_());
    net.fc.bias->rebind(Tensor::zeros({3}, dtype).requires_grad_());
    return net;
}

template <class Model>
double step(Model& model, LBFGS& lbfgs, const Parameter& weight, const Tensor& x) {
    return lbfgs.step([&] {
        lbfgs.zero_grad();
        Tensor loss = cross_entropy(model.forward(x), classes()) + 0.01 * sum(square(weight));
        loss.backward();
        return loss;
    });
}

}  // namespace

TEST_CASE("LBFGS takes PyTorch's steps, with and without line search") {
    Run run = descend(3, {.lr = 0.01});
    check_close(run.losses, {24.199999999999996, 17.036327391853511, 12.976608241451359});
    check_close(run.x, {-1.1425248427964307, 1.0687512536315302});
    CHECK(run.evaluations == 60);
    run = descend(4, {.max_iter = 5, .line_search = LineSearch::strong_wolfe});
    check_close(run.losses, {24.199999999999996, 4.1118164517577513, 3.423165462292753, 1.6579626408971875});
    check_close(run.x, {0.34184236067537654, 0.099258273738500519});
    CHECK(run.evaluations == 27);
    run = descend(6, {.max_iter = 4, .history_size = 2, .line_search = LineSearch::strong_wolfe});
    check_close(run.losses, {24.199999999999996, 4.1211267757656378, 3.7930742512723468, 2.4806405496741535,
                             1.595630705764671, 0.93824044069916579});
    check_close(run.x, {0.32519956810023187, 0.073951681263725325});
    CHECK(run.evaluations == 30);
    run = descend(2, {.max_iter = 40, .line_search = LineSearch::strong_wolfe});
    check_close(run.x, {0.99998142107913657, 0.99996196518109892});
    CHECK(run.evaluations == 44);
    run = descend(3, {.lr = 0.5, .max_iter = 3, .max_eval = 2});
    check_close(run.losses, {24.199999999999996, 21.982012223784402, 11.011191599950664});
    CHECK(run.evaluations == 6);
}

TEST_CASE("LBFGS of a plain module and of a wrapper: PyTorch's values, in f64") {
    const LbfgsOptions plain{.lr = 0.3, .max_iter = 4}, wolfe{.max_iter = 6, .line_search = LineSearch::strong_wolfe};
    const Doubles weights{0.05176515031332643,  -2.2013264760267655, -0.42582294792026709,
                          -0.34293668258240356, 0.68895070710416539, 1.9440589728936257,
                          0.29357132039545991,  1.5099759807962192,  -1.5254353893525054};
    const Doubles searched{0.05492233966308107,  -2.2200052025374433, -0.42861772106759127,
                           -0.35564337363947257, 0.69722259502965878, 1.971286545237263,
                           0.30071139066119562,  1.5227922508229805,  -1.5426398942240831};
    for (const LbfgsOptions& options : {plain, wolfe}) {
        Classifier net = start(DType::f64);
        LBFGS lbfgs(net, options);
        Doubles losses;
        for (int i = 0; i < 4; ++i) losses.push_back(step(net, lbfgs, net.fc.weight, samples(DType::f64)));
        if (options.line_search == LineSearch::none)
            check_close(losses, {1.0570898583887327, 0.44691260468551963, 0.32264020025694734, 0.30786903908230967});
        check_close(net.fc.weight->to_vector<double>(), options.line_search == LineSearch::none ? weights : searched);
    }
}

TEST_CASE("LBFGS has the same bits on any number of devices") {
    std::vector<std::vector<float>> results;
    for (const int count : {1, 2, 3}) {
        std::vector<Device> devices;
        for (int d = 0; d < count; ++d) devices.push_back(Device::cpu(d));
        DataParallel<Classifier> model(start(DType::f32), devices, {.shards = 3});
        LBFGS lbfgs(model, {.max_iter = 5, .line_search = LineSearch::strong_wolfe});
        for (int i = 0; i < 3; ++i) (void)step(model, lbfgs, model->fc.weight, samples(DType::f32));
        results.push_back(model->fc.weight->to(Device::host()).to_vector<float>());
        // The other replicas follow.
        CHECK(model.forward(samples(DType::f32)).to(Device::host()).to_vector<float>().size() == 24);
    }
    CHECK(results[0] == results[1]);
    CHECK(results[0] == results[2]);
}

TEST_CASE("LBFGS continues a run from its state, and refuses other states") {
    const LbfgsOptions options{.lr = 0.3, .max_iter = 4};
    Classifier first = start(DType::f64), second = start(DType::f64);
    LBFGS whole(first, options), interrupted(second, options);
    for (int i = 0; i < 2; ++i) {
        (void)step(first, whole, first.fc.weight, samples(DType::f64));
        (void)step(second, interrupted, second.fc.weight, samples(DType::f64));
    }
    LBFGS resumed(second, options);
    resumed.load_state(interrupted.state());
    CHECK(resumed.evaluations() == interrupted.evaluations());
    for (int i = 0; i < 2; ++i) {
        (void)step(first, whole, first.fc.weight, samples(DType::f64));
        (void)step(second, resumed, second.fc.weight, samples(DType::f64));
    }
    CHECK(first.fc.weight->to_vector<double>() == second.fc.weight->to_vector<double>());

    auto state = resumed.state();
    state.erase("gradient_changes.0");
    CHECK(test::contains(test::message_of<InvalidArgument>([&] { resumed.load_state(state); }),
                         "LBFGS: load_state: gradient_changes.0 is missing or not f64 of shape (12,)"));
    state = resumed.state();
    state["numbers"] = Tensor::from(Doubles{-1, 0, 1, 1, 1}, {5});
    CHECK_THROWS_AS(resumed.load_state(state), InvalidArgument);
    state["numbers"] = Tensor::from(Doubles{std::numeric_limits<double>::quiet_NaN(), 0, 1, 1, 1}, {5});
    CHECK_THROWS_AS(resumed.load_state(state), InvalidArgument);
    CHECK_THROWS_AS(resumed.load_state({}), InvalidArgument);
    Point other;
    LBFGS of_other(other);
    CHECK_THROWS_AS(of_other.load_state(resumed.state()), InvalidArgument);
}

TEST_CASE("LBFGS of a part changes no other parameters") {
    TwoPoints net;
    LBFGS lbfgs(net.b, {.max_iter = 3, .line_search = LineSearch::strong_wolfe});
    (void)lbfgs.step([&] {
        lbfgs.zero_grad();
        Tensor loss = valley(net.b.x) + valley(net.a.x);
        loss.backward();
        return loss;
    });
    CHECK(net.a.x->to_vector<double>() == Doubles{-1.2, 1.0});
    CHECK(net.b.x->to_vector<double>() != Doubles{-1.2, 1.0});
}

TEST_CASE("a closure that throws leaves parameters and state as they were") {
    Point point;
    LBFGS lbfgs(point, {.max_iter = 5, .line_search = LineSearch::strong_wolfe});
    int calls = 0, fails_at = 0;
    const auto closure = [&] {
        if (++calls == fails_at) throw std::runtime_error("no data");
        lbfgs.zero_grad();
        Tensor loss = valley(point.x);
        loss.backward();
        return loss;
    };
    (void)lbfgs.step(closure);
    const Doubles before = point.x->to_vector<double>();
    const std::int64_t evaluations = lbfgs.evaluations();
    for (const int later : {1, 2, 4}) {
        fails_at = calls + later;
        CHECK_THROWS_AS(lbfgs.step(closure), std::runtime_error);
        CHECK(point.x->to_vector<double>() == before);
        CHECK(lbfgs.evaluations() == evaluations);
    }
    fails_at = 0;
    Point reference;
    LBFGS undisturbed(reference, lbfgs.options());
    for (int i = 0; i < 2; ++i)
        (void)undisturbed.step([&] {
            undisturbed.zero_grad();
            Tensor loss = valley(reference.x);
            loss.backward();
            return loss;
        });
    (void)lbfgs.step(closure);
    CHECK(point.x->to_vector<double>() == reference.x->to_vector<double>());
}

TEST_CASE("options and parameters that LBFGS does not allow are refused by name") {
    Point point;
    CHECK(test::message_of<InvalidArgument>([&] { const LBFGS lbfgs(point, {.max_iter = 0}); }) ==
          "LBFGS: invalid max_iter (0); expected 1 or more");
    CHECK_THROWS_AS(LBFGS(point, {.lr = -1}), InvalidArgument);
    CHECK_THROWS_AS(LBFGS(point, {.max_eval = 0}), InvalidArgument);
    CHECK_THROWS_AS(LBFGS(point, {.tolerance_grad = -1}), InvalidArgument);
    CHECK_THROWS_AS(LBFGS(point, {.history_size = 0}), InvalidArgument);
    Classifier mixed = start(DType::f32);
    mixed.fc.bias->rebind(Tensor::zeros({3}, DType::f64).requires_grad_());
    CHECK(test::contains(test::message_of<InvalidArgument>([&] { const LBFGS lbfgs(mixed); }),
                         "expected one dtype and one device"));
    // At a minimum nothing changes.
    Point minimum;
    minimum.x.rebind(Tensor::from(Doubles{1, 1}, {2}).requires_grad_());
    LBFGS lbfgs(minimum);
    CHECK(lbfgs.step([&] {
        lbfgs.zero_grad();
        Tensor loss = valley(minimum.x);
        loss.backward();
        return loss;
    }) == 0);
    CHECK(minimum.x->to_vector<double>() == Doubles{1, 1});
}

TEST_CASE("LBFGS throws in one thread while another is inside its step, of a wrapper and of a plain module") {
    const auto check = [](auto& model, const Parameter& weight) {
        LBFGS lbfgs(model, {.max_iter = 2});
        const auto state = lbfgs.state();
        test::Gate entered, leave;
        std::thread user([&] {
            (void)lbfgs.step([&] {
                entered.open();
                leave.pass();
                lbfgs.zero_grad();  // calls of this thread are allowed
                Tensor loss = cross_entropy(model.forward(samples(DType::f32)), classes());
                loss.backward();
                return loss;
            });
        });
        entered.pass();
        const std::pair<const char*, std::function<void()>> calls[] = {
            {"LBFGS: step", [&] { (void)lbfgs.step([]() -> Tensor { throw std::runtime_error("called"); }); }},
            {"LBFGS: zero_grad", [&] { lbfgs.zero_grad(); }},
            {"LBFGS: set_options", [&] { lbfgs.set_options({}); }},
            {"LBFGS: evaluations", [&] { (void)lbfgs.evaluations(); }},
            {"LBFGS: state", [&] { (void)lbfgs.state(); }},
            {"LBFGS: load_state", [&] { lbfgs.load_state(state); }},
            {"LBFGS constructor", [&] { const LBFGS other(model); }},
        };
        for (const auto& [name, call] : calls)
            CHECK(test::message_of<InvalidArgument>(call).starts_with(std::string(name) +
                                                                      ": this model is used by another thread"));
        leave.open();
        user.join();
        CHECK(lbfgs.evaluations() == 2);
        CHECK(lbfgs.options().max_iter == 2);
        CHECK(weight->to_vector<float>() != start(DType::f32).fc.weight->to_vector<float>());
    };
    Classifier net = start(DType::f32);
    check(net, net.fc.weight);
    DataParallel<Classifier> model(start(DType::f32), {Device::cpu(0), Device::cpu(1)});
    check(model, model->fc.weight);
}
