// Training that ends before its end, by a signal or by the callback; and asking for a loss without waiting.
#include <sys/wait.h>

#include <csignal>
#include <functional>
#include <limits>
#include <stdexcept>
#include <thread>

#include "lockstep/ops/sgd.h"
#include "lockstep/parallel/checkpoint.h"
#include "lockstep/parallel/training_loop.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/signal_record.h"
#include "lockstep/runtime/random.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/parallel/file_fixture.h"
#include "lockstep/tests/parallel/stopped_training.h"
#include "lockstep/tests/patience.h"
#include "lockstep/tests/runtime/gate.h"

using namespace lockstep;
using namespace lockstep::testing;
using namespace stopped_training;

namespace {

/// In a process of its own: how it ended, as a shell has it.
int status_of(const std::function<void()>& body) {
    const pid_t child = ::fork();
    if (child < 0) throw std::runtime_error("fork failed");
    if (child == 0) {
        for (const int signal : {SIGINT, SIGTERM}) std::signal(signal, SIG_DFL);
        body();
        ::_exit(0);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/// Longer than signals count as one.
void wait_for_next_wish() { std::this_thread::sleep_for(StopSignals::one_wish + std::chrono::milliseconds(50)); }

}  // namespace

TEST_CASE("signals that come within one_wish are one; a later one ends the process; advance warnings do not count") {
    constexpr std::chrono::milliseconds begin(7), wish = StopSignals::one_wish, tick(1);
    for (const int signal : {SIGINT, SIGTERM}) {
        SignalRecord record;
        CHECK(record.first() == 0);
        CHECK_FALSE(record.add(SIGINT, begin));
        CHECK(record.first() == SIGINT);
        CHECK_FALSE(record.add(SIGTERM, begin + wish - tick));  // process and group, terminal and launcher
        CHECK_FALSE(record.add(signal, begin + wish - tick));
        CHECK(record.add(signal, begin + wish));
        CHECK(record.add(signal, begin + 10 * wish));
        CHECK(record.first() == SIGINT);
        record.clear();
        CHECK(record.first() == 0);
        CHECK_FALSE(record.add(signal, begin + 20 * wish));
    }
    for (const int warning : {SIGUSR1, SIGUSR2, SIGXCPU}) {
        SignalRecord record;
        CHECK_FALSE(record.add(warning, begin));
        CHECK_FALSE(record.add(warning, begin + 5 * wish));
        CHECK_FALSE(record.add(SIGTERM, begin + 9 * wish));
        CHECK_FALSE(record.add(warning, begin + 12 * wish));
        CHECK(record.first() == warning);
        CHECK(record.add(SIGTERM, begin + 12 * wish));
        record.clear();
        CHECK_FALSE(record.add(SIGTERM, begin));
        CHECK_FALSE(record.add(warning, begin + 2 * wish));
        CHECK(record.first() == SIGTERM);
    }
}

TEST_CASE("advance warnings are repeated, and the first SIGTERM after them does not end the process") {
    for (const int signal : {SIGUSR1, SIGUSR2, SIGXCPU}) {
        CHECK(status_of([&] {
                  const StopSignals stop({SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGXCPU});
                  for (int i = 0; i < 2; ++i) {
                      ::raise(signal);
                      wait_for_next_wish();
                  }
                  ::raise(SIGTERM);
                  if (stop.signal() != signal) ::_exit(1);
              }) == 0);
        CHECK(status_of([&] {
                  const StopSignals stop({SIGTERM, signal});
                  ::raise(signal);
                  ::raise(SIGTERM);
                  wait_for_next_wish();
                  ::raise(SIGTERM);
                  ::_exit(3);
              }) == 128 + SIGTERM);
        CHECK(status_of([&] {
                  const StopSignals stop({SIGTERM, signal});
                  ::raise(SIGTERM);
                  wait_for_next_wish();
                  ::raise(signal);
                  if (stop.signal() != SIGTERM) ::_exit(1);
              }) == 0);
    }
}

TEST_CASE("the first signal is kept, one that comes later ends the process as if nobody had kept any") {
    for (const int signal : {SIGINT, SIGTERM}) {
        CHECK(status_of([&] {
                  const StopSignals stop;
                  if (stop.signal()) ::_exit(1);
                  ::raise(signal);
                  if (stop.signal() != signal) ::_exit(2);
              }) == 0);
        CHECK(status_of([&] {
                  const StopSignals stop;
                  ::raise(SIGINT);
                  wait_for_next_wish();
                  ::raise(signal);
                  ::_exit(4);
              }) == 128 + signal);
    }
}

TEST_CASE("after StopSignals signals do what they did; ignored ones stay ignored; there is one at a time") {
    CHECK(status_of([] {
              { const StopSignals stop; }
              ::raise(SIGINT);
          }) == 128 + SIGINT);
    CHECK(status_of([] {
              std::signal(SIGINT, SIG_IGN);
              const StopSignals stop;
              ::raise(SIGINT);
              if (stop.signal()) ::_exit(1);
              ::raise(SIGTERM);
              if (stop.signal() != SIGTERM) ::_exit(2);
          }) == 0);
    CHECK(status_of([] {
              const StopSignals stop({SIGUSR1});
              ::raise(SIGUSR1);
              if (stop.signal() != SIGUSR1) ::_exit(1);
              ::raise(SIGTERM);
          }) == 128 + SIGTERM);
    CHECK(status_of([] {
              try {
                  const StopSignals impossible({SIGUSR1, SIGKILL});
              } catch (const InvalidArgument&) {
                  ::raise(SIGUSR1);
              }
          }) == 128 + SIGUSR1);  // nothing remains of it
    const StopSignals stop({SIGUSR2});
    CHECK_THROWS_AS(StopSignals(), InvalidArgument);
}

TEST_CASE("a callback that returns false ends the training; one that returns nothing doesn't") {
    DataParallel model(Net{}, {Device::cpu(0)});
    SGD sgd(model, {.lr = 0.01});
    Loader loader(model, rows(200), {.batch_size = 4});
    std::int64_t heard = 0;
    Trainer trainer(model, sgd, loader, mse_loss, [&](const StepReport& step) {
        heard = step.step + 1;
        return step.step < 9;
    });
    const std::int64_t next = trainer.run(0);
    CHECK(trainer.stopped() == 0);
    CHECK(next == trainer.steps());
    CHECK(next >= 10);
    CHECK(next <= 14);  // a few were under way
    CHECK(heard == next);
    CHECK(trainer.run(1, 0, next + 1) == 1);  // the callback is asked anew
    CHECK(trainer.stopped() == 0);

    Trainer other(model, sgd, loader, mse_loss, [&](const StepReport&) { ++heard; });
    CHECK(other.run(0) == 50);
    CHECK_FALSE(other.stopped());
    Trainer silent(model, sgd, loader, mse_loss);
    CHECK(silent.run(0) == 50);
    using Function = std::function<void(const StepReport&)>;
    for (const Function& function : {Function(), Function([&](const StepReport&) { ++heard; })}) {
        Trainer by_function(model, sgd, loader, mse_loss, function);
        CHECK(by_function.run(0) == 50);
    }
    Trainer at_the_end(model, sgd, loader, mse_loss, [](const StepReport& step) { return step.step < 49; });
    CHECK(at_the_end.run(0) == 50);
    CHECK(at_the_end.stopped() == 0);
}

TEST_CASE("a signal ends the training of one process before its next step") {
    DataParallel model(Net{}, {Device::cpu(0)});
    SGD sgd(model, {.lr = 0.01});
    Loader loader(model, rows(200), {.batch_size = 4});
    const StopSignals stop;
    Trainer trainer(model, sgd, loader, mse_loss, [&](const StepReport& step) {
        if (step.step == 5) ::raise(SIGTERM);
    });
    trainer.stop_on(stop);
    const std::int64_t next = trainer.run(0);
    CHECK(trainer.stopped() == SIGTERM);
    CHECK(next >= 6);
    CHECK(next <= 10);
    int steps = 0;
    for (auto& [x, y] : loader.epoch(1)) {
        if (model.stops(stop)) break;
        model.step(sgd, x, y, mse_loss);
        ++steps;
    }
    CHECK(steps == 0);
}

TEST_CASE("the run of docs/checkpoints.md goes on where it was stopped, with the same bits") {
    const test::TemporaryDirectory directory;
    const auto run_to_the_end = [](const std::filesystem::path& file, std::uint64_t epochs, std::int64_t stop_at) {
        manual_seed(1);
        DataParallel model(Net{}, {Device::cpu(0)}, {.shards = 2, .seed = 1});
        SGD sgd(model, {.lr = 0.01, .momentum = 0.9});
        Loader train(model, rows(40), {.batch_size = 4, .shuffle = true, .seed = 1});
        RunState run{.batch_size = 4, .seed = 1};
        if (std::filesystem::exists(file)) run = load_checkpoint(model, sgd, file).value_or(run);
        const StopSignals signals;
        Trainer trainer(model, sgd, train, mse_loss, [&](const StepReport& step) {
            if (step.step == stop_at) ::raise(SIGINT);
        });
        trainer.set_steps(static_cast<std::int64_t>(run.steps));
        trainer.stop_on(signals);
        while (run.epoch < epochs && !trainer.stopped()) {
            run.batch = trainer.run(run.epoch, run.batch);
            if (run.batch == train.batches()) {
                ++run.epoch;
                run.batch = 0;
            }
            run.steps = static_cast<std::uint64_t>(trainer.steps());
            run.fields["best accuracy"] = std::to_string(run.epoch);
            save_checkpoint(model, sgd, run, file);
        }
        return run.steps;
    };
    CHECK(run_to_the_end(directory / "whole", 5, -1) == 50);
    const std::uint64_t stopped = run_to_the_end(directory / "part", 5, 23);
    CHECK(stopped >= 24);
    CHECK(stopped <= 28);
    CHECK(run_to_the_end(directory / "part", 5, -1) == 50);
    CHECK(test::get_bytes(directory / "part") == test::get_bytes(directory / "whole"));
    CHECK(test::get_bytes(directory / "part.resume") == test::get_bytes(directory / "whole.resume"));
}

TEST_CASE("a loss says whether it is there") {
    if (serial()) return;  // every step is done when the call returns
    DataParallel model(Net{}, {Device::cpu(0)});
    SGD sgd(model, {.lr = 0.01});
    const Tensor x = Tensor::full({4, 3}, 1), y = Tensor::zeros({4, 2});
    static_cast<void>(model.step(sgd, x, y, mse_loss).item());
    test_operations::Gate gate;
    test_operations::hook().forward = [&](int) { gate.pass(); };
    const StepLoss held = model.step(sgd, x, y, mse_loss);
    for (int i = 0; i < 20; ++i) {
        CHECK_FALSE(held.ready());
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    gate.open();
    CHECK(test::comes_true([&] { return held.ready(); }));
    test_operations::hook().forward = [](int) {};
    CHECK(held.item() > 0);
    CHECK(held.ready());

    const Tensor bad = Tensor::full({4, 3}, std::numeric_limits<float>::quiet_NaN());
    const StepLoss refused = model.step(sgd, bad, y, mse_loss);
    CHECK(test::comes_true([&] { return refused.ready(); }));
    CHECK_THROWS_AS(refused.item(), StepError);
    CHECK(refused.ready());
}
