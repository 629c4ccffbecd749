// Training that is stopped early, by a signal or by the callback; and polling a loss without waiting.
#include <sys/wait.h>

#include <csignal>
#include <functional>
#include <limits>
#include <stdexcept>
#include <thread>

#include "lockstep/ops/sgd.h"
#include "lockstep/parallel/checkpoint.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/runner.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/signal_record.h"
#include "lockstep/runtime/random.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/checkpoints.h"
#include "lockstep/tests/fixtures/datasets.h"
#include "lockstep/tests/fixtures/environment.h"
#include "lockstep/tests/fixtures/files.h"
#include "lockstep/tests/fixtures/nets.h"
#include "lockstep/tests/fixtures/waiting.h"

using namespace lockstep;
using namespace lockstep::test;

namespace {

/// Exit status of `body` in a separate process, in the shell's form.
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

/// Sleeps for longer than the window in which signals count as one.
void wait_for_next_wish() { std::this_thread::sleep_for(StopSignals::coalesce_window + std::chrono::milliseconds(50)); }

}  // namespace

TEST_CASE(
    "signals within coalesce_window count as one, later ones end the process, and advance warnings do not count") {
    constexpr std::chrono::milliseconds begin(7), wish = StopSignals::coalesce_window, tick(1);
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

TEST_CASE("the first signal is recorded, and a later one ends the process as without a handler") {
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

TEST_CASE("StopSignals restores handlers, leaves ignored signals ignored, and exists once at a time") {
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
          }) == 128 + SIGUSR1);  // its file is removed
    const StopSignals stop({SIGUSR2});
    CHECK_THROWS_AS(StopSignals(), InvalidArgument);
}

TEST_CASE("a hook ends training some steps later") {
    DataParallel model(HookedInput{}, {Device::cpu(0)});
    SGD sgd(model, {.lr = 0.01});
    Loader loader(model, fixed_rows(200), {.batch_size = 4});
    std::int64_t heard = 0;
    const auto train = [&](std::int64_t last) {
        Runner runner(model, sgd, loader, mse_loss, {.epochs = 1});
        runner.add(AfterStep([&, last](Runner& run, const StepReport& step) {
            heard = step.step + 1;
            if (step.step >= last) run.end();
        }));
        runner.run();
        CHECK(heard == static_cast<std::int64_t>(runner.state().steps));
        return runner.stopped();
    };
    CHECK(train(9) == 0);
    CHECK(heard >= 10);
    CHECK(heard <= 14);  // a few were in flight
    CHECK_FALSE(train(1000));
    CHECK(heard == 50);
    CHECK(train(49) == 0);  // the last step
    CHECK(heard == 50);
}

TEST_CASE("a signal ends training of one process before its next step") {
    DataParallel model(HookedInput{}, {Device::cpu(0)});
    SGD sgd(model, {.lr = 0.01});
    Loader loader(model, fixed_rows(200), {.batch_size = 4});
    const StopSignals stop;
    Runner runner(model, sgd, loader, mse_loss, {.epochs = 1});
    runner.add(AfterStep([](Runner&, const StepReport& step) {
        if (step.step == 5) ::raise(SIGTERM);
    }));
    runner.stop_on(stop);
    runner.run();
    CHECK(runner.stopped() == SIGTERM);
    CHECK(runner.state().batch >= 6);
    CHECK(runner.state().batch <= 10);
    int steps = 0;
    for (auto& [x, y] : loader.epoch(1)) {
        if (model.should_stop(stop)) break;
        model.step(sgd, x, y, mse_loss);
        ++steps;
    }
    CHECK(steps == 0);
}

TEST_CASE("the run of docs/checkpoints.md resumes with the same bits") {
    const test::TemporaryDirectory directory;
    const auto run_to_the_end = [](const std::filesystem::path& file, std::uint64_t epochs, std::int64_t stop_at) {
        manual_seed(1);
        DataParallel model(HookedInput{}, {Device::cpu(0)}, {.shards = 2, .seed = 1});
        SGD sgd(model, {.lr = 0.01, .momentum = 0.9});
        Loader train(model, fixed_rows(40), {.batch_size = 4, .shuffle = true, .seed = 1});
        RunState run{.batch_size = 4, .seed = 1};
        if (std::filesystem::exists(file)) run = load_checkpoint(model, sgd, file).value_or(run);
        const StopSignals signals;
        for (; run.epoch < epochs; ++run.epoch, run.batch = 0) {
            for (auto& [x, y] : train.epoch(run.epoch, run.batch)) {
                if (static_cast<std::int64_t>(run.steps) == stop_at) ::raise(SIGINT);
                if (model.should_stop(signals)) break;
                model.step(sgd, x, y, mse_loss);
                ++run.steps;
                ++run.batch;
            }
            if (run.batch < train.batches()) break;
        }
        run.fields["best accuracy"] = std::to_string(run.epoch);
        save_checkpoint(model, sgd, run, file);
        return run.steps;
    };
    CHECK(run_to_the_end(directory / "whole", 5, -1) == 50);
    const std::uint64_t stopped = run_to_the_end(directory / "part", 5, 23);
    CHECK(stopped == 23);
    CHECK(run_to_the_end(directory / "part", 5, -1) == 50);
    CHECK(test::get_bytes(directory / "part") == test::get_bytes(directory / "whole"));
    CHECK(test::get_bytes(directory / "part.resume") == test::get_bytes(directory / "whole.resume"));
}

TEST_CASE("a loss reports whether it is ready") {
    if (serial()) return;  // every step is complete when the call returns
    DataParallel model(HookedInput{}, {Device::cpu(0)});
    SGD sgd(model, {.lr = 0.01});
    const Tensor x = Tensor::full({4, 3}, 1), y = Tensor::zeros({4, 2});
    static_cast<void>(model.step(sgd, x, y, mse_loss).item());
    Gate gate;
    kernel_hook().forward = [&](int) { gate.pass(); };
    const StepLoss held = model.step(sgd, x, y, mse_loss);
    for (int i = 0; i < 20; ++i) {
        CHECK_FALSE(held.ready());
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    gate.open();
    CHECK(test::comes_true([&] { return held.ready(); }));
    kernel_hook().forward = [](int) {};
    CHECK(held.item() > 0);
    CHECK(held.ready());

    const Tensor bad = Tensor::full({4, 3}, std::numeric_limits<float>::quiet_NaN());
    const StepLoss refused = model.step(sgd, bad, y, mse_loss);
    CHECK(test::comes_true([&] { return refused.ready(); }));
    CHECK_THROWS_AS(refused.item(), StepError);
    CHECK(refused.ready());
}
