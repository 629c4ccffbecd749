// Several threads of the host program: a wrapper reports its use by another thread; several wrappers and copies are
// independent.
#include <atomic>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "lockstep/ops/sgd.h"
#include "lockstep/parallel/loader.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/eight_devices.h"
#include "lockstep/tests/fixtures/messages.h"
#include "lockstep/tests/fixtures/nets.h"
#include "lockstep/tests/fixtures/waiting.h"

namespace ls = lockstep;
using namespace lockstep::test;
using ls::Device;
using ls::InvalidArgument;

namespace {

using Floats = std::vector<float>;

const std::string advice =
    " is used by another thread; expected one thread at a time, or a separate instance for each thread (or a copy of "
    "the module, made between two calls)";

/// While it is traced, forward waits at a gate: the wrapper is inside a call until the gate opens.
struct Held {
    ConvNet net;
    Gate* entered = nullptr;
    Gate* leave = nullptr;
    LOCKSTEP_MEMBERS(net)
    ls::Tensor forward(const ls::Tensor& x) {
        if (entered) entered->open();
        if (leave) leave->pass();
        return net.forward(x);
    }
};

struct Rows {
    std::int64_t size() const { return 6; }
    std::tuple<ls::Tensor> get(std::int64_t row) const { return {ls::Tensor::full({1}, static_cast<double>(row))}; }
};

/// Losses of `steps` steps and the parameters after them, of a separate model and data.
struct Training {
    std::vector<double> losses;
    std::vector<Array> parameters;
    bool operator==(const Training& other) const {
        return losses == other.losses && relative_error(parameters, other.parameters) == 0;
    }
};

struct Start {
    ConvNet net;
    ConvNetBatch batch;
};

Training train(const Start& start, int steps, bool longer) {
    ls::DataParallel<ConvNet> model(start.net, cpu_devices(3), {.shards = 3});
    ls::SGD sgd(model, {.lr = 0.05, .momentum = 0.9});
    Training result;
    for (int i = 0; i < steps; ++i) {
        if (longer) {
            sgd.zero_grad();
            const ls::Loss loss = ls::nll_loss(model(start.batch.images), start.batch.labels.to(Device::cpu(0)));
            loss.backward();
            sgd.step();
            result.losses.push_back(loss.item());
        } else {
            result.losses.push_back(model.step(sgd, start.batch.images, start.batch.labels, ls::nll_loss).item());
        }
    }
    result.parameters = parameters_of(*model);
    return result;
}

void in_threads(const std::vector<std::function<void()>>& bodies) {
    std::vector<std::thread> threads;
    for (const auto& body : bodies) threads.emplace_back(body);
    for (std::thread& thread : threads) thread.join();
}

}  // namespace

TEST_CASE("calls to a wrapper that another thread is using throw and do not disturb it") {
    ls::manual_seed(31);
    Gate entered, leave;
    Held net;
    const ConvNetBatch batch = make_batch(6);
    ls::DataParallel<Held> twin(net, cpu_devices(2));
    ls::SGD twin_sgd(twin, {.lr = 0.1});
    net.entered = &entered;
    net.leave = &leave;
    ls::DataParallel<Held> model(net, cpu_devices(2));
    ls::SGD sgd(model, {.lr = 0.1});
    double loss = 0;
    std::thread user([&] { loss = model.step(sgd, batch.images, batch.labels, ls::nll_loss).item(); });
    entered.pass();
    const auto refused = [&](const char* call, const std::function<void()>& use) {
        CHECK(message_of<InvalidArgument>(use) == std::string(call) + ": this model" + advice);
    };
    refused("step", [&] { model.step(sgd, batch.images, batch.labels, ls::nll_loss); });
    refused("forward", [&] { (void)model(batch.images); });
    refused("synchronize", [&] { model.synchronize(); });
    refused("train", [&] { model.eval(); });
    refused("a member of the model", [&] { (void)model->net; });
    refused("a member of the model", [&] { (void)*model; });
    refused("optimizer step", [&] { sgd.step(); });
    refused("zero_grad", [&] { sgd.zero_grad(); });
    refused("optimizer settings", [&] { sgd.set_lr(0.5); });
    refused("optimizer constructor", [&] { ls::SGD other(model, {.lr = 0.1}); });
    refused("steps_done", [&] { (void)model.engine().steps_done(); });
    refused("verify_replicas", [&] { model.engine().verify_replicas(); });
    refused("traces", [&] { (void)model.engine().traces(); });
    CHECK(model.devices().size() == 2);  // constant properties may be read
    CHECK(model.shards() == 2);
    leave.open();
    user.join();
    CHECK(loss == twin.step(twin_sgd, batch.images, batch.labels, ls::nll_loss).item());
    // One thread after another is allowed.
    CHECK(model.step(sgd, batch.images, batch.labels, ls::nll_loss).item() ==
          twin.step(twin_sgd, batch.images, batch.labels, ls::nll_loss).item());
    CHECK(relative_error(parameters_of(*model), parameters_of(*twin)) == 0);
}

TEST_CASE("two threads that compete for one wrapper get errors and do not crash") {
    ls::manual_seed(32);
    const ConvNetBatch batch = make_batch(6);
    ls::DataParallel<ConvNet> model(ConvNet{}, cpu_devices(2));
    ls::SGD sgd(model, {.lr = 0.01});
    std::atomic<int> done{0}, refused{0}, steps{0};
    const auto fight = [&](const std::function<void()>& call) {
        while (done < 200) {
            try {
                call();
                ++done;
            } catch (const InvalidArgument& error) {
                if (std::string(error.what()).find("is used by another thread") == std::string::npos) throw;
                ++refused;
            }
        }
    };
    in_threads({[&] {
                    fight([&] {
                        model.step(sgd, batch.images, batch.labels, ls::nll_loss);
                        ++steps;
                    });
                },
                [&] {
                    fight([&] {
                        const ls::NoGrad no_grad;
                        (void)model(batch.images);
                    });
                },
                [&] { fight([&] { model.synchronize(); }); }});
    CHECK(model.engine().steps_done() == static_cast<std::uint64_t>(steps.load()));
    model.engine().verify_replicas();
}

TEST_CASE("a wrapper called inside its own forward, or another's, throws") {
    ls::manual_seed(33);
    const ConvNetBatch batch = make_batch(4);
    ls::DataParallel<ConvNet> model(ConvNet{}, cpu_devices(2)), other(ConvNet{}, cpu_devices(2));
    ls::SGD sgd(model, {.lr = 0.1});
    const auto within = [&](const std::function<void()>& call) {
        return message_of<InvalidArgument>([&] {
            model.step(sgd, batch.images, batch.labels, [&](const ls::Tensor& output, const ls::Tensor& target) {
                call();
                return ls::nll_loss(output, target);
            });
        });
    };
    CHECK(within([&] { (void)model(batch.images); }) ==
          "forward: called inside a forward or loss of this model itself; expected a computation with its members");
    CHECK(within([&] { model.eval(); }) ==
          "train: called inside a forward or loss of this model itself; expected a computation with its members");
    CHECK(within([&] { (void)other(batch.images); }) ==
          "forward: called inside a forward or loss of another model; expected a call of the module that it wraps");
    CHECK(within([&] { (void)model->fc1; }) == "");  // members are accessible
    model.step(sgd, batch.images, batch.labels, ls::nll_loss).item();
}

TEST_CASE("wrappers that share devices, each used by its own thread, are bit-identical to separate runs") {
    ls::manual_seed(34);
    constexpr int steps = 12;
    std::vector<Start> starts;
    for (int i = 0; i < 4; ++i) starts.push_back({ConvNet{}, make_batch(5 + i)});
    std::vector<Training> alone, together(starts.size());
    for (std::size_t i = 0; i < starts.size(); ++i) alone.push_back(train(starts[i], steps, i % 2 == 1));
    std::vector<std::function<void()>> bodies;
    for (std::size_t i = 0; i < starts.size(); ++i)
        bodies.emplace_back([&, i] { together[i] = train(starts[i], steps, i % 2 == 1); });
    in_threads(bodies);
    for (std::size_t i = 0; i < starts.size(); ++i) CHECK(together[i] == alone[i]);
}

TEST_CASE("a copy of the model is used by another thread while training continues") {
    ls::manual_seed(35);
    const Start start{ConvNet{}, make_batch(9)};
    const Training alone = train(start, 20, false);

    ls::DataParallel<ConvNet> model(start.net, cpu_devices(3), {.shards = 3});
    ls::SGD sgd(model, {.lr = 0.05, .momentum = 0.9});
    Training training;
    for (int i = 0; i < 5; ++i)
        training.losses.push_back(model.step(sgd, start.batch.images, start.batch.labels, ls::nll_loss).item());
    ConvNet copy = *model;
    const ConvNetBatch own = make_batch(4);
    const Floats expected = [&] {
        ConvNet twin = copy;
        return twin.forward(own.images.to(Device::cpu(0))).detach().to_vector<float>();
    }();
    CHECK(copy.fc1.weight->device() == Device::cpu(0));  // device of replica 0
    bool same = true, trained = false;
    std::thread reader([&] {
        for (int i = 0; i < 30; ++i) {
            const ls::NoGrad no_grad;
            same = same && copy.forward(own.images.to(Device::cpu(0))).to_vector<float>() == expected;
        }
        ls::SGD eager(copy, {.lr = 0.1});  // it may even be trained
        ls::nll_loss(copy.forward(own.images.to(Device::cpu(0))), own.labels).backward();
        eager.step();
        trained = copy.fc1.weight->detach().to_vector<float>() != Floats(360, 0.f);
    });
    for (int i = 5; i < 20; ++i)
        training.losses.push_back(model.step(sgd, start.batch.images, start.batch.labels, ls::nll_loss).item());
    reader.join();
    training.parameters = parameters_of(*model);
    CHECK(same);
    CHECK(trained);
    CHECK(training == alone);
}

TEST_CASE("a second thread that iterates a loader gets an error") {
    ls::DataParallel<ConvNet> model(ConvNet{}, cpu_devices(2));
    struct Slow : Rows {
        Gate* entered;
        Gate* leave;
        bool* held;
        Slow(Gate& e, Gate& l, bool& h) : entered(&e), leave(&l), held(&h) {}
        std::tuple<ls::Tensor> get(std::int64_t row) const {
            if (*held) {
                entered->open();
                leave->pass();
            }
            return Rows::get(row);
        }
    };
    Gate entered, leave;
    bool held = false;
    ls::Loader loader(model, Slow(entered, leave, held), {.batch_size = 3, .workers = 0});
    held = true;
    std::thread user([&] {
        for ([[maybe_unused]] auto& batch : loader.epoch(0)) break;
    });
    entered.pass();
    CHECK(message_of<InvalidArgument>([&] { (void)loader.epoch(1); }) == "Loader: this loader" + advice);
    leave.open();
    user.join();
    int batches = 0;
    for ([[maybe_unused]] auto& batch : loader.epoch(1)) ++batches;
    CHECK(batches == 2);
}

TEST_CASE("tensors move between devices from several threads at once") {
    // Streams created by two threads wait for each other, in both directions: none may wait for itself.
    const auto travel = [](int first, int second) {
        return [first, second] {
            for (int i = 0; i < 300; ++i) {
                const ls::Tensor there = ls::Tensor::full({4}, i).to(Device::cpu(first)).to(Device::cpu(second));
                if (there.to(Device::cpu(first)).to_vector<float>() != Floats(4, static_cast<float>(i)))
                    throw std::runtime_error("the returned values differ");
            }
        };
    };
    in_threads({travel(0, 1), travel(1, 0), travel(0, 1), travel(2, 0)});
}
