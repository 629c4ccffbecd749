// A whole run of a sample: load, train, evaluate, save, report.
#pragma once

#include <fmt/format.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "lockstep/ops/sgd.h"
#include "lockstep/parallel/checkpoint.h"
#include "lockstep/parallel/run_hooks.h"
#include "lockstep/parallel/runner.h"
#include "lockstep/runtime/stop_signals.h"
#include "lockstep/samples/program/options.h"
#include "lockstep/samples/program/report.h"
#include "lockstep/samples/program/run_report.h"
#include "lockstep/samples/program/same_on_ranks.h"

namespace program {

inline std::string rates_of(const lockstep::SGD& sgd) {
    return fmt::format("lr {}, momentum {}", sgd.options().lr, sgd.options().momentum);
}

/// Loads what --load names into model and optimizer. The state of the run that goes on, or of one that begins.
template <class Model>
lockstep::RunState begin_run(const Options& options, Model& model, lockstep::SGD& sgd, std::int64_t batch_size) {
    lockstep::RunState state;
    state.seed = options.seed;
    if (options.load.empty()) return state;
    if (const auto saved = lockstep::load_checkpoint(model, sgd, options.load)) {
        state = *saved;
        if (state.seed != options.seed)
            throw UsageError(fmt::format("--seed {}: the run of {} has seed {}; give that", options.seed,
                                         options.load.string(), state.seed));
        if (state.batch > 0 && state.batch_size != batch_size)
            throw UsageError(
                fmt::format("{} rows a step: the run of {} stopped within an epoch of {} rows a step; "
                            "go on with --batch-size {}",
                            batch_size, options.load.string(), state.batch_size, state.batch_size));
        lockstep::SgdOptions settings = sgd.options();  // the run's; what is asked for now wins
        settings.lr = options.lr.value_or(settings.lr);
        settings.momentum = options.momentum.value_or(settings.momentum);
        sgd.set_options(settings);
    }
    if (options.group) {
        require_same_on_ranks(*options.group,
                              {fmt::format("a run of {} steps in --load", state.steps),
                               fmt::format("one in epoch {} before batch {}", state.epoch + 1, state.batch + 1),
                               "the rates " + rates_of(sgd)});
        model.engine().verify_replicas();
    }
    return state;
}

/// Trains on the rows of `loader` as the options say, until a signal stops it at the latest: then that is returned.
/// `evaluate`, called after every epoch and at the end, returns the test accuracy; it may be empty. `began`: when the
/// program did.
template <class Model, class Data, class LossFunction>
std::optional<Stop> train(const std::string& name, const Options& options, Model& model, lockstep::Loader<Data>& loader,
                          const LossFunction& loss, const std::function<double()>& evaluate,
                          std::chrono::steady_clock::time_point began) {
    std::optional<lockstep::CheckpointLock> lock;
    if (!options.save.empty() && options.leads()) lock.emplace(options.save);
    require_writable(options.json);
    lockstep::SGD sgd(model, {.lr = options.lr.value_or(Options::default_lr),
                              .momentum = options.momentum.value_or(Options::default_momentum)});
    const lockstep::RunState state = begin_run(options, model, sgd, loader.options().batch_size);
    lockstep::Runner runner(model, sgd, loader, loss,
                            {.epochs = static_cast<std::uint64_t>(options.epochs),
                             .steps = options.steps,
                             .step = {.accumulation_steps = options.accumulation_steps}});
    runner.go_on_from(state);
    const lockstep::StopSignals signals;
    runner.stop_on(signals);

    const auto what = fmt::format("{} rows a step in {} {}, {} an epoch", loader.options().batch_size, model.shards(),
                                  model.shards() == 1 ? "shard" : "shards", loader.rows());
    RunReport* report = nullptr;
    if (evaluate)
        runner.add(lockstep::Evaluation(test_accuracy, [&] {
            report->pause();
            return evaluate();
        }));
    report = &runner.add(RunReport(name, options, model.devices(), {what, rates_of(sgd), loader.rows()}, state.steps));
    if (!options.save.empty())
        runner
            .add(lockstep::SaveCheckpoints({.file = options.save,
                                            .every_steps = options.save_every.steps,
                                            .every_epochs = options.save_every.epochs}))
            .on_save = [&](const auto& file) { report->line(fmt::format("saved {}", file.string())); };
    runner.run();

    Figures& figures = report->figures();
    figures.samples_per_second = runner.rows_per_second();
    figures.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    program::report(options, figures, model.devices());
    const int signal = runner.stopped().value_or(0);
    if (signal == 0) return std::nullopt;
    return Stop{signal,
                options.leads() ? how_to_go_on(options, signal, static_cast<std::int64_t>(runner.state().steps)) : ""};
}

}  // namespace program
