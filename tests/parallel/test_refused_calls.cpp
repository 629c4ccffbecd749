// Every call of a step to a device is refused in turn: a call that throws has changed nothing, and later steps are
// bit-identical to a run without failures, on all replicas.
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "lockstep/ops/sgd.h"
#include "lockstep/parallel/checkpoint.h"
#include "lockstep/runtime/memory.h"
#include "lockstep/runtime/order_checker.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/eight_devices.h"
#include "lockstep/tests/fixtures/files.h"
#include "lockstep/tests/fixtures/nets.h"

namespace ls = lockstep;
using namespace lockstep::test;

namespace {

/// Parameters, momentum (through later steps), running statistics, masks, a constant.
struct Stateful {
    ls::Linear in{4, 6}, out{6, 3};
    ls::BatchNorm2d norm{6};
    ls::Dropout drop{0.3};
    ls::Tensor factor = ls::Tensor::full({3}, 1);
    LOCKSTEP_MEMBERS(in, out, norm, drop)
    ls::Tensor forward(const ls::Tensor& x) {
        return out(drop(norm(in(x).reshape({-1, 6, 1, 1})).flatten(1))) * factor;
    }
};

/// Refuses a call while it exists.
struct Refusal {
    explicit Refusal(std::uint64_t number) : nth(number) { ls::order_check::arm_failure(nth); }
    ~Refusal() { ls::order_check::arm_failure(0); }
    bool reached() const { return ls::order_check::calls_since_armed() >= nth; }
    std::uint64_t nth;
};

/// Whether a refused call made `act` throw. `reached`: whether that call was reached.
bool throws(const std::function<void()>& act, std::uint64_t nth, bool& reached) {
    const Refusal refusal(nth);
    bool thrown = false;
    try {
        act();
    } catch (const ls::DeviceError& error) {
        thrown = true;
        CHECK(std::string(error.what()).find("was refused at a test's request") != std::string::npos);
    }
    reached = refusal.reached();
    return thrown;
}

using State = std::map<std::string, std::vector<double>>;

struct Trained {
    ls::DataParallel<Stateful> model;
    ls::SGD sgd{model, {.lr = 0.05, .momentum = 0.9}};
    ls::Tensor output, loss;

    Trained(const Stateful& net, const ls::DataParallelOptions& options) : model(net, cpu_devices(3), options) {
        // An unlisted member is copied with its memory, so each model gets a separate constant.
        model->factor = net.factor.clone();
    }
    State state() {
        State all;
        for (const ls::NamedTensor& named : ls::named_tensors(*model))
            all[named.name] = named.member->tensor().detach().to(ls::DType::f64).to_vector<double>();
        all["steps"] = {static_cast<double>(model.engine().steps_done())};
        return all;
    }
};

/// Two runs, of which one has the refused calls.
struct Pair {
    Stateful net;
    Trained tried, spared;
    ls::Tensor x = ls::Tensor::randn({11, 4}), y = ls::Tensor::randn({11, 3});
    int thrown = 0, taken = 0;

    explicit Pair(const ls::DataParallelOptions& options = {}) : tried(net, options), spared(net, options) {}

    void step(Trained& on) const { on.model.step(on.sgd, x, y, ls::mse_loss); }
    void both(const std::function<void(Trained&)>& act) {
        act(tried);
        act(spared);
    }
    void require_equal() {
        both([this](Trained& on) { step(on); });  // makes stale values visible
        REQUIRE((tried.state() == spared.state()));
        tried.model.engine().verify_replicas();
    }
    /// `before` runs before `act` without refusals; `act` is retried until it succeeds.
    void refuse_each(const std::function<void(Trained&)>& before, const std::function<void(Trained&)>& act) {
        for (std::uint64_t nth = 1;; ++nth) {
            INFO("call " << nth);
            both(before);
            const State then = tried.state();
            bool reached = false;
            const bool refused = throws([&] { act(tried); }, nth, reached);
            ++(refused ? thrown : taken);
            if (refused) {
                REQUIRE((tried.state() == then));
                act(tried);
            }
            act(spared);
            require_equal();
            if (!reached) break;
        }
    }
};

void fill_weights(Trained& on) {
    const ls::NoGrad no_grad;
    on.model->in.weight->copy_(on.model->in.weight->detach() * 0.5);
}

void nothing(Trained&) {}

}  // namespace

TEST_CASE("a replayed step: each call fails in turn") {
    for (const auto mode : {ls::ReductionMode::root, ls::ReductionMode::slice_wise}) {
        ls::manual_seed(51);
        Pair pair({.reduction = mode});
        pair.both([&](Trained& on) { pair.step(on); });
        pair.refuse_each(nothing, [&](Trained& on) { pair.step(on); });
        CHECK(pair.thrown > 10);
        CHECK(pair.taken > 10);
    }
}

TEST_CASE("the first step after a write, a load, another rate, another constant") {
    const lockstep::test::TemporaryDirectory folder;
    const std::string file = (folder / "weights.safetensors").string();
    {
        ls::manual_seed(50);
        Trained other(Stateful{}, {});
        ls::save(other.model, file);
    }
    const std::function<void(Trained&)> writes[] = {
        fill_weights,
        [&file](Trained& on) { ls::load(on.model, file); },
        [](Trained& on) {
            const ls::NoGrad no_grad;
            on.model->norm.running_mean->tensor().fill_(0.25);
        },
        [](Trained& on) { on.sgd.set_lr(on.sgd.lr() * 0.99); },
        [](Trained& on) { on.model->factor.fill_(on.model->factor.to_vector<float>()[0] + 0.01); },
    };
    for (const auto& write : writes) {
        ls::manual_seed(52);
        Pair pair;
        pair.both([&](Trained& on) { pair.step(on); });
        pair.refuse_each(write, [&](Trained& on) { pair.step(on); });
        CHECK(pair.thrown > 10);
    }
}

TEST_CASE("a step that traces and schedules: each call fails in turn") {
    bool reached = true;
    for (std::uint64_t nth = 1; reached; ++nth) {
        INFO("call " << nth);
        ls::manual_seed(53);
        Pair pair;
        if (throws([&] { pair.step(pair.tried); }, nth, reached)) pair.step(pair.tried);
        pair.step(pair.spared);
        pair.require_equal();
    }
}

TEST_CASE("microbatches") {
    ls::manual_seed(54);
    Pair pair;
    const ls::Tensor x = ls::Tensor::randn({12, 4}), y = ls::Tensor::randn({12, 3});
    const auto step = [&](Trained& on) { on.model.step(on.sgd, x, y, ls::mse_loss, {.accumulation_steps = 2}); };
    pair.both(step);
    pair.refuse_each(fill_weights, step);
    CHECK(pair.thrown > 10);
}

TEST_CASE("the manual step: forward, backward, the optimizer's step") {
    ls::manual_seed(55);
    Pair pair;
    const auto forward = [&](Trained& on) { on.output = on.model(pair.x); };
    const auto judge = [&](Trained& on) { on.loss = ls::mean(ls::square(on.output - pair.y.to(ls::Device::cpu(0)))); };
    const auto backward = [](Trained& on) { on.loss.backward(); };
    const auto update = [](Trained& on) { on.sgd.step(); };
    pair.both(forward);
    pair.both(judge);
    pair.both(backward);
    pair.both(update);
    pair.refuse_each(fill_weights, forward);
    pair.refuse_each(fill_weights, [&](Trained& on) {
        const ls::NoGrad no_grad;
        on.output = on.model(pair.x);
    });
    pair.refuse_each(
        [&](Trained& on) {
            forward(on);
            judge(on);
            backward(on);
        },
        update);
    CHECK(pair.thrown > 10);

    int thrown = 0;
    bool reached = true;
    for (std::uint64_t nth = 1; reached; ++nth) {
        INFO("call " << nth);
        pair.both([](Trained& on) { on.sgd.zero_grad(); });
        pair.both(forward);
        pair.both(judge);
        const bool refused = throws([&] { backward(pair.tried); }, nth, reached);
        if (!refused) backward(pair.spared);
        thrown += refused ? 1 : 0;
        pair.both(forward);
        pair.both(judge);
        pair.both(backward);
        pair.both(update);
        REQUIRE((pair.tried.state() == pair.spared.state()));
        pair.tried.model.engine().verify_replicas();
    }
    CHECK(thrown > 10);
}

TEST_CASE("out of memory at any point of a step") {
    ls::manual_seed(56);
    for (const int device : {0, 1, 2}) {
        Pair pair;
        pair.both([&](Trained& on) { pair.step(on); });
        fill_weights(pair.tried);
        fill_weights(pair.spared);
        const ls::Tensor x = ls::Tensor::randn({300, 4}), y = ls::Tensor::randn({300, 3});
        const auto large = [&](Trained& on) {
            on.model.step(on.sgd, x, y, ls::mse_loss);
            on.model.synchronize();
        };
        const ls::Device limited = ls::Device::cpu(device);
        int thrown = 0;
        for (std::size_t spare = 0;; spare += 2048) {
            ls::set_memory_limit(limited, ls::memory_stats(limited).current + spare);
            try {
                large(pair.tried);
                ls::set_memory_limit(limited, 0);
                break;
            } catch (const ls::OutOfMemory&) {
                ++thrown;
            }
        }
        CHECK(thrown > 0);
        large(pair.spared);
        pair.require_equal();
    }
}
