// Runs that a signal stops at any step and that go on elsewhere: on other devices, under another strategy.
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <random>
#include <string>

#include "lockstep/ops/lr_schedules.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "lockstep/parallel/run_hooks.h"
#include "lockstep/runtime/stop_signals.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/cpu_devices.h"
#include "lockstep/tests/parallel/ddp_ranks.h"
#include "lockstep/tests/parallel/run_training.h"

using namespace lockstep;
using namespace run_training;

namespace {

const bool eight_devices = lockstep::test::set_cpu_devices(8);

/// Trains what is there, or from the beginning, until a signal comes or four epochs are over.
template <class Trained>
void go_on(Trained& training, const std::filesystem::path& file, std::optional<std::int64_t> stop_at) {
    CosineAnnealingLR schedule(training.sgd, 4, 0.001);
    auto runner = training.runner({.epochs = 4});
    if (std::filesystem::exists(file)) runner.go_on_from(load_checkpoint(training.model, training.sgd, file).value());
    const StopSignals signals;
    runner.stop_on(signals);
    runner.add(Evaluation(
        "score", [&] { return static_cast<double>(7 * runner.state().steps % 9); }, 2));
    runner.add(FollowSchedule(schedule));
    if (stop_at) runner.add(RaiseAt(*stop_at));
    runner.add(SaveCheckpoints({.file = file, .every_steps = 3, .best = file.string() + ".best", .score = "score"}));
    runner.run();
}

/// In a process of its own: one in which devices were used is not forked for ranks under ThreadSanitizer.
template <class Body>
void apart(const Body& body) {
    CHECK(lockstep::testing::on_ranks(1, [&](ProcessGroup&) { body(); }) == "");
}

}  // namespace

TEST_CASE("stopped at any step, and gone on with elsewhere, a run leaves the same files") {
    const test::TemporaryDirectory place;
    apart([&] {
        Alone whole;
        go_on(whole, place / "whole", std::nullopt);
    });
    std::mt19937 random(static_cast<unsigned>(test::number_from("LOCKSTEP_STOP_SEED", 1)));
    int stopped = 0;
    for (int trial = 0; trial < test::number_from("LOCKSTEP_STOP_TRIALS", 20); ++trial) {
        const auto file = place / ("net" + std::to_string(trial));
        const auto under = [&](int strategy, std::optional<std::int64_t> stop_at) {
            if (strategy == 0) {
                apart([&] {
                    Alone training;
                    go_on(training, file, stop_at);
                });
            } else if (strategy == 1) {
                apart([&] {
                    Training<DataParallel<Net>> training(Devices({Device::cpu(0), Device::cpu(1)}));
                    go_on(training, file, stop_at);
                });
            } else {
                CHECK(lockstep::testing::on_ranks(2, [&](ProcessGroup& group) {
                          Training<DistributedDataParallel<Net>> training(group);
                          // Whichever rank it comes to.
                          go_on(training, file, group.rank() == trial % 2 ? stop_at : std::nullopt);
                      }) == "");
            }
        };
        const auto step = static_cast<std::int64_t>(random() % 20);
        const int first = static_cast<int>(random() % 3), second = (first + 1 + static_cast<int>(random() % 2)) % 3;
        CAPTURE(trial, step, first, second);
        under(first, step);
        if (test::get_bytes(file) != test::get_bytes(place / "whole")) ++stopped;
        under(second, std::nullopt);
        CHECK((test::get_bytes(file) == test::get_bytes(place / "whole")));
        CHECK((test::get_bytes(file.string() + ".resume") == test::get_bytes(place / "whole.resume")));
    }
    CHECK(stopped > 10);  // of those in the last steps all are under way when the signal comes
}
