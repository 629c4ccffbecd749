// Host state that tracing would freeze silently: options of layers, and numbers that forward and the loss read.
#include <array>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/layers.h"
#include "lockstep/ops/loss.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/random.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/eight_devices.h"
#include "lockstep/tests/fixtures/messages.h"
#include "lockstep/tests/fixtures/one_batch.h"

namespace ls = lockstep;
using namespace lockstep::test;

namespace {

constexpr const char* advice =
    "; numbers and flags that they read are frozen when they are traced: use a tensor, an argument or a by-value "
    "capture of the loss";

template <class Action>
std::string refused(const Action& action) {
    const std::string text = message_of<ls::InvalidArgument>(action);
    CHECK(text.find(advice) != std::string::npos);
    return text;
}

}  // namespace

TEST_CASE("a captured reference that changes is rejected by the first repeat, with the record and both values") {
    OneBatch run(Plain{});
    double beta = 1;
    const auto loss = [&beta](const ls::Tensor& output, const ls::Tensor& target) {
        return ls::mean_loss(ls::square(output - target) * beta);
    };
    run.step(loss);
    beta = 0.5;
    const std::string text = refused([&] { run.step(loss); });
    INFO(text);
    CHECK(contains(text, "forward or loss changed for shards of input shape (3, 4): record "));
    CHECK(contains(text, "had the attributes (1, 0) and has (0.5, 0)"));
    CHECK(run.model.engine().steps_done() == 1);
    refused([&] { run.step(loss); });  // until it is restored
    beta = 1;
    for (int i = 0; i < 20; ++i) run.step(loss);
    CHECK(run.model.engine().steps_done() == 21);
    run.model.engine().verify_replicas();
}

TEST_CASE("a captured value that changes is another loss") {
    OneBatch run(Plain{}, 1);
    const auto with = [](double beta) {
        return [beta](const ls::Tensor& output, const ls::Tensor& target) {
            return ls::mean_loss(ls::square(output - target) * beta);
        };
    };
    const double one = run.model.step(run.sgd, run.x, run.y, with(1)).item();
    CHECK(run.model.engine().traces() == 1);
    run.sgd.set_lr(0);
    const double all = run.model.step(run.sgd, run.x, run.y, with(1)).item();
    const double half = run.model.step(run.sgd, run.x, run.y, with(0.5)).item();
    CHECK(half == all * 0.5);
    CHECK(one != all);
    CHECK(run.model.engine().traces() == 2);
}

TEST_CASE("a loss whose captures own memory is another loss when their contents change") {
    const auto check = [](const auto& with) {
        OneBatch run(Plain{}, 3);
        run.sgd.set_lr(0);
        const double one = run.model.step(run.sgd, run.x, run.y, with(1.0)).item();
        CHECK(one > 0);
        // The memory of one closure is free for the next one.
        for (int i = 0; i < 30; ++i) {
            const double beta = i % 5 == 4 ? 4 : i % 2 == 0 ? 2 : 1;
            CHECK(run.model.step(run.sgd, run.x, run.y, with(beta)).item() == one * beta);
        }
        CHECK(run.model.engine().traces() == 6);  // for shards of 3 and of 2 rows
    };
    const auto weighted = [](const ls::Tensor& output, const ls::Tensor& target, double beta) {
        return beta * ls::mse_loss(output, target);
    };
    check([&](double beta) {
        return [weighted, list = std::vector<double>{0, beta}](const ls::Tensor& output, const ls::Tensor& target) {
            return weighted(output, target, list[1]);
        };
    });
    check([&](double beta) {
        return [weighted, text = std::string(100, ' ') + std::to_string(beta)](
                   const ls::Tensor& a, const ls::Tensor& b) { return weighted(a, b, std::stod(text)); };
    });
    check([&](double beta) {
        return std::function<ls::Loss(const ls::Tensor&, const ls::Tensor&)>(
            [=, unused = std::array<double, 4>{}](const ls::Tensor& a, const ls::Tensor& b) {
                return weighted(a, b, beta + unused[0]);
            });
    });
    check([&](double beta) {
        return [weighted, p = std::make_unique<double>(beta)](const ls::Tensor& a, const ls::Tensor& b) {
            return weighted(a, b, *p);
        };
    });
    check([&](double beta) {
        return [weighted, map = std::map<int, double>{{3, beta}}](const ls::Tensor& a, const ls::Tensor& b) {
            return weighted(a, b, map.at(3));
        };
    });
}

TEST_CASE("microbatches of a loss whose captures own memory") {
    OneBatch run(Plain{}, 3);
    run.sgd.set_lr(0);
    const auto step = [&](double beta, int parts) {
        return run.model
            .step(run.sgd, run.x, run.y,
                  [list = std::vector<double>{beta}](const ls::Tensor& a, const ls::Tensor& b) {
                      return list[0] * ls::mse_loss(a, b);
                  },
                  {.accumulation_steps = parts})
            .item();
    };
    const double whole = step(1, 1), parts = step(1, 2);
    for (int i = 0; i < 10; ++i) {
        CHECK(step(i % 2 == 0 ? 2 : 1, 1) == (i % 2 == 0 ? 2 * whole : whole));
        CHECK(step(i % 2 == 0 ? 1 : 2, 2) == (i % 2 == 0 ? parts : 2 * parts));
    }
}

TEST_CASE("captured tensors and small functions identify a loss") {
    OneBatch run(Plain{}, 1);
    const ls::Tensor weight = ls::Tensor::full({4}, 2);
    const std::function<ls::Loss(const ls::Tensor&, const ls::Tensor&)> small = ls::mse_loss;
    for (int i = 0; i < 5; ++i) {
        run.step(
            [weight](const ls::Tensor& a, const ls::Tensor& b) { return ls::mean_loss(ls::square(a - b) * weight); });
        run.step(small);
    }
    CHECK(run.model.engine().traces() == 2);
}

namespace {
struct Counted {
    ls::Linear a{4, 4};
    int* calls = nullptr;
    LOCKSTEP_MEMBERS(a)
    ls::Tensor forward(const ls::Tensor& x) {
        ++*calls;
        return a(x);
    }
};
}  // namespace

TEST_CASE("only repeats 1, 2, 3, 10 and 100 call forward again") {
    int calls = 0;
    Counted net;
    net.calls = &calls;
    OneBatch run(net, 2);
    std::vector<int> at;
    for (int repeat = 0; repeat <= 101; ++repeat) {
        const int before = calls;
        run.step();
        if (calls != before) at.push_back(repeat);
    }
    CHECK(at == std::vector<int>{0, 1, 2, 3, 10, 100});
    CHECK(run.model.engine().traces() == 1);
}

namespace {
struct Cut {
    ls::Linear a{4, 4};
    bool cut = false;
    LOCKSTEP_MEMBERS(a)
    ls::Tensor forward(const ls::Tensor& x) { return (cut ? a(x).detach() : a(x)) + a(x); }
};
}  // namespace

TEST_CASE("members that forward reads: a number, a flag that only gradients show, later repeats, other programs") {
    OneBatch run(Plain{});
    const auto train = [&] { run.step(); };
    const auto in_parts = [&] { run.model.step(run.sgd, run.x, run.y, ls::mse_loss, {.accumulation_steps = 2}); };
    const auto forward = [&] { (void)run.model(run.x); };
    const auto evaluate = [&] {
        const ls::NoGrad no_grad;
        (void)run.model(run.x);
    };
    for (const std::function<void()>& call : {std::function<void()>(train), std::function<void()>(in_parts),
                                              std::function<void()>(forward), std::function<void()>(evaluate)}) {
        for (int i = 0; i < 10; ++i) call();
        run.model->scale = 2;  // repeat 10 is checked
        CHECK(contains(refused(call), "had the attributes (1, 0) and has (2, 0)"));
        run.model->scale = 1;
        call();
    }
    const auto steps = run.model.engine().steps_done();
    OneBatch other(Cut{});
    other.step();
    other.model->cut = true;
    CHECK(contains(refused([&] { other.step(); }), "gradients are propagated differently"));
    CHECK(run.model.engine().steps_done() == steps);
}

namespace {
struct Columns {
    ls::Linear a{4, 4};
    int first = 0;
    LOCKSTEP_MEMBERS(a)
    ls::Tensor forward(const ls::Tensor& x) {
        const ls::Tensor part = a(x).slice(1, first, first + 2);
        return ls::cat({part, part}, 1);
    }
};
}  // namespace

TEST_CASE("another view of the same result is named with both views") {
    OneBatch run(Columns{});
    run.step();
    run.model->first = 1;
    const std::string text = refused([&] { run.step(); });
    CHECK(contains(text, "reads another part of result "));
    CHECK(contains(text, "strides (4, 1) and offset 1 instead of shape ("));
    CHECK(contains(text, "strides (4, 1) and offset 0;"));
}

namespace {
struct Building {  // draws the initial values of a layer that it does not use
    ls::Linear a{4, 4};
    LOCKSTEP_MEMBERS(a)
    ls::Tensor forward(const ls::Tensor& x) {
        const ls::Linear unused(2, 2);
        return a(x);
    }
};
struct Skipping {  // stochastic depth
    ls::Linear a{4, 4};
    std::minstd_rand dice{7};
    LOCKSTEP_MEMBERS(a)
    ls::Tensor forward(const ls::Tensor& x) { return dice() % 2 == 0 ? a(x) : ls::relu(a(x)); }
};
}  // namespace

TEST_CASE("random numbers of the host are frozen, and rejected when they lead to other records") {
    std::vector<std::vector<float>> next;
    for (const int steps : {1, 4}) {
        ls::manual_seed(5);
        OneBatch built(Building{});
        for (int i = 0; i < steps; ++i) built.step();
        next.push_back(ls::Tensor::randn({4}).to_vector<float>());
    }
    CHECK(next[0] == next[1]);

    OneBatch skipping(Skipping{}, 1);
    const std::string skipped = message_of<ls::InvalidArgument>([&] {
        for (int i = 0; i < 200; ++i) skipping.step();
    });
    CHECK(contains(skipped, "record 1 was "));
}

namespace {
struct FrozenNorm {
    ls::Linear a{4, 4};
    ls::BatchNorm2d norm{4};
    ls::Dropout drop{0.5};
    LOCKSTEP_MEMBERS(a, norm, drop)
    ls::Tensor forward(const ls::Tensor& x) { return drop(norm(a(x).reshape({-1, 4, 1, 1})).flatten(1)); }
};
}  // namespace

TEST_CASE("tracing again does not change masks, running statistics, hooks or replicas") {
    ls::manual_seed(6);
    const FrozenNorm net;
    OneBatch often(net), once(net);
    once.x = often.x;
    once.y = often.y;
    int hooks = 0;
    often.model->a.weight->register_hook([&](const ls::Tensor&) { ++hooks; });
    for (int i = 0; i < 12; ++i) {
        often.step();
        // Another loss each time: a new program, which is not traced again.
        once.step([i](const ls::Tensor& a, const ls::Tensor& b) { return i < 0 ? ls::Loss() : ls::mse_loss(a, b); });
    }
    CHECK(once.model.engine().traces() == 24);
    CHECK(often.model.engine().traces() == 2);
    CHECK(hooks == 2);  // for shards of 3 and of 2 rows
    for (const auto& [a, b] : {std::pair(&often, &once)}) {
        const auto mine = ls::named_tensors(*a->model), theirs = ls::named_tensors(*b->model);
        for (std::size_t i = 0; i < mine.size(); ++i)
            CHECK(mine[i].member->tensor().detach().to(ls::DType::f64).to_vector<double>() ==
                  theirs[i].member->tensor().detach().to(ls::DType::f64).to_vector<double>());
        a->model.engine().verify_replicas();
    }
}

namespace {
struct Own {
    ls::Linear fc{4, 4};
    double slope = 1;
    LOCKSTEP_MEMBERS(fc)
    ls::Tensor forward(const ls::Tensor& x) const { return fc(x) * slope; }
    void describe(ls::Signature& key) const { key.add(slope); }
};
struct Options {
    ls::Conv2d conv{1, 2, 3, {.padding = 1}};
    ls::BatchNorm2d norm{2};
    ls::LayerNorm layer_norm{4};
    ls::MaxPool2d pool{2};
    ls::Sequential<ls::LeakyReLU, ls::GELU> list{ls::LeakyReLU(0.1), ls::GELU()};
    std::vector<ls::Dropout> drops{ls::Dropout(0.0), ls::Dropout(0.0)};
    Own own;
    LOCKSTEP_MEMBERS(conv, norm, layer_norm, pool, list, drops, own)
    ls::Tensor forward(const ls::Tensor& x) {
        const ls::Tensor y = norm(conv(x.reshape({-1, 1, 2, 2})));
        return own.forward(layer_norm(list(drops[1](ls::flatten(ls::mean(y, {1}, true), 1)))));
    }
};
}  // namespace

TEST_CASE("options of layers are part of the key, also in lists and custom structs") {
    ls::manual_seed(8);
    ls::DataParallel<Options> model(Options{}, cpu_devices(1));
    ls::SGD sgd(model, {.lr = 0});
    const ls::Tensor x = ls::Tensor::randn({6, 4}), y = ls::Tensor::randn({6, 4});
    const auto loss = [&] { return model.step(sgd, x, y, ls::mse_loss).item(); };
    const double first = loss();
    std::uint64_t traces = model.engine().traces();
    const auto another = [&](const std::function<void()>& change, bool shows = true) {
        change();
        const double now = loss();
        CHECK(model.engine().traces() == ++traces);
        if (shows) CHECK(now != first);
        loss();
        CHECK(model.engine().traces() == traces);
    };
    another([&] { model->norm.options.eps = 0.5; });
    another([&] { model->norm.options.momentum = 0.9; }, false);
    another([&] { model->norm.options.statistics = ls::BatchNormStatistics::synchronized; }, false);
    another([&] { model->layer_norm.eps = 0.5; });
    another([&] { std::get<0>(model->list.layers).negative_slope = 0.5; });
    another([&] { std::get<1>(model->list.layers).form = ls::GeluForm::tanh; });
    another([&] { model->drops[1].p = 0.5; });
    another([&] { model->pool.stride = 1; }, false);
    another([&] { model->own.slope = 2; });
}
