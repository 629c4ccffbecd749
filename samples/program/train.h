// A whole run of a sample: load, train, evaluate, save, report.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <numeric>
#include <optional>
#include <span>
#include <string>

#include "lockstep/ops/sgd.h"
#include "lockstep/parallel/checkpoint.h"
#include "lockstep/runtime/stop_signals.h"
#include "lockstep/samples/program/options.h"
#include "lockstep/samples/program/progress.h"
#include "lockstep/samples/program/report.h"
#include "lockstep/samples/program/same_on_ranks.h"

namespace program {

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
                               fmt::format("the rates lr {}, momentum {}", sgd.options().lr, sgd.options().momentum)});
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
    if (!options.save.empty()) lock.emplace(options.save);
    require_writable(options.json);
    lockstep::SGD sgd(model, {.lr = options.lr.value_or(Options::default_lr),
                              .momentum = options.momentum.value_or(Options::default_momentum)});
    lockstep::RunState state = begin_run(options, model, sgd, loader.options().batch_size);
    RunLog log(options, name, model.devices(), state.steps);

    const auto epochs = static_cast<std::uint64_t>(options.epochs);
    const std::int64_t per_epoch = loader.batches();
    const std::int64_t all =
        state.epoch >= epochs ? 0 : static_cast<std::int64_t>(epochs - state.epoch) * per_epoch - state.batch;
    const auto before = static_cast<std::int64_t>(state.steps);
    const std::int64_t total =
        options.steps ? std::clamp<std::int64_t>(*options.steps - before, 0, std::max<std::int64_t>(all, 0)) : all;
    Progress progress(options.quiet, epochs, total);
    progress.line(fmt::format("{}: {}, {} rows a step in {} {}, {} an epoch", name, describe(options, model.devices()),
                              loader.options().batch_size, model.shards(), model.shards() == 1 ? "shard" : "shards",
                              loader.rows()));
    if (before > 0)
        progress.line(fmt::format("continues {}: {} steps done, lr {}, momentum {}", options.load.string(), before,
                                  sgd.options().lr, sgd.options().momentum));
    Figures figures;
    lockstep::Trainer trainer(model, sgd, loader, loss,
                              [&](const lockstep::StepReport& step) {
                                  figures.losses.push_back(step.loss);
                                  log.step(step);
                                  progress.step(step.epoch, step.rows, step.loss);
                              },
                              {.accumulation_steps = options.accumulation_steps});
    trainer.set_steps(before);
    const lockstep::StopSignals signals;
    trainer.stop_on(signals);
    std::size_t reported = 0;  // losses that a line has told of
    bool evaluated = false;
    const auto tell = [&](std::string line) {
        const std::span news = std::span(figures.losses).subspan(reported);
        reported = figures.losses.size();
        if (!news.empty())
            line += fmt::format("loss {:.4f}, ",
                                std::accumulate(news.begin(), news.end(), 0.0) / static_cast<double>(news.size()));
        if (trainer.rows_per_second() > 0) line += fmt::format("{:.0f} samples/s, ", trainer.rows_per_second());
        if (evaluate) {
            progress.pause();
            figures.test_accuracy = evaluate();
            log.epoch(state.epoch, *figures.test_accuracy);
            line += fmt::format("test accuracy {:.2f} %, ", 100 * *figures.test_accuracy);
        }
        line.resize(line.size() - 2);
        progress.line(line);
        evaluated = true;
    };
    const auto save = [&] {
        log.flush();
        if (options.save.empty()) return;
        state.batch_size = loader.options().batch_size;
        state.steps = static_cast<std::uint64_t>(trainer.steps());
        lockstep::save_checkpoint(model, sgd, state, options.save);
        progress.line(fmt::format("saved {}", options.save.string()));
    };

    const SaveEvery& every = options.save_every;
    while (state.epoch < epochs && !(options.steps && trainer.steps() >= *options.steps)) {
        std::optional<std::int64_t> last_step = options.steps;
        if (every.steps > 0) {
            const std::int64_t next = (trainer.steps() / every.steps + 1) * every.steps;
            last_step = std::min(next, last_step.value_or(next));
        }
        state.batch = trainer.run(state.epoch, state.batch, last_step);
        evaluated = false;
        const bool epoch_ends = state.batch == per_epoch;
        if (epoch_ends) {
            ++state.epoch;
            state.batch = 0;
        }
        if (trainer.stopped()) break;
        const bool due = every.steps > 0    ? trainer.steps() % every.steps == 0
                         : every.epochs > 0 ? epoch_ends && state.epoch % static_cast<std::uint64_t>(every.epochs) == 0
                                            : false;
        if (due && trainer.steps() < before + total) save();
        if (epoch_ends) tell(fmt::format("epoch {}: ", state.epoch));
    }
    const std::optional<int> signal = trainer.stopped();
    if (!evaluated && signal)
        figures.test_accuracy.reset();
    else if (!evaluated && state.batch > 0)
        tell(fmt::format("epoch {}, step {} of {}: ", state.epoch + 1, state.batch, per_epoch));
    else if (!evaluated)
        tell(fmt::format("after {} epochs: ", state.epoch));

    save();
    figures.samples_per_second = trainer.rows_per_second();
    figures.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    report(options, figures, model.devices());
    if (!signal) return std::nullopt;
    return Stop{*signal, options.leads() ? how_to_go_on(options, *signal, trainer.steps()) : ""};
}

}  // namespace program
