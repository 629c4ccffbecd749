// A whole run of a sample: load, train, evaluate, save, report.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <numeric>
#include <span>
#include <string>

#include "lockstep/parallel/checkpoint.h"
#include "lockstep/samples/program/options.h"
#include "lockstep/samples/program/progress.h"
#include "lockstep/samples/program/report.h"
#include "lockstep/samples/program/same_on_ranks.h"

namespace program {

/// Trains on the rows of `loader` as the options say. `evaluate`, called after every epoch and at the end, returns the
/// test accuracy; it may be empty. `began`: when the program did.
template <class Model, class Data, class LossFunction>
void train(const std::string& name, const Options& options, Model& model, lockstep::Loader<Data>& loader,
           const LossFunction& loss, const std::function<double()>& evaluate,
           std::chrono::steady_clock::time_point began) {
    for (const auto* path : {&options.save, &options.json}) require_writable(*path);
    lockstep::SGD sgd(model, {.lr = options.lr.value_or(Options::default_lr),
                              .momentum = options.momentum.value_or(Options::default_momentum)});
    RunLog log(options, name, model.devices());
    lockstep::RunState state;
    state.seed = options.seed;
    if (!options.load.empty()) {
        lockstep::load(model, options.load);
        if (std::filesystem::exists(lockstep::resume_path(options.load))) {
            state = lockstep::load_resume(model, sgd, options.load);
            if (state.seed != options.seed)
                throw UsageError(fmt::format("--seed {}: the run of {} has seed {}; give that", options.seed,
                                             options.load.string(), state.seed));
            if (state.batch > 0 && state.batch_size != loader.options().batch_size)
                throw UsageError(fmt::format(
                    "{} rows a step: the run of {} stopped within an epoch of {} rows a step; "
                    "go on with --batch-size {}",
                    loader.options().batch_size, options.load.string(), state.batch_size, state.batch_size));
            lockstep::SgdOptions settings = sgd.options();  // the run's; what is asked for now wins
            settings.lr = options.lr.value_or(settings.lr);
            settings.momentum = options.momentum.value_or(settings.momentum);
            sgd.set_options(settings);
        }
        if (options.group) {
            require_same_on_ranks(
                *options.group,
                {fmt::format("a run of {} steps in --load", state.steps),
                 fmt::format("one in epoch {} before batch {}", state.epoch + 1, state.batch + 1),
                 fmt::format("the rates lr {}, momentum {}", sgd.options().lr, sgd.options().momentum)});
            model.engine().verify_replicas();
        }
    }

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
                              {.micro_steps = options.micro_steps});
    trainer.set_steps(before);
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
    while (state.epoch < epochs && !(options.steps && trainer.steps() >= *options.steps)) {
        state.batch = trainer.run(state.epoch, state.batch, options.steps);
        evaluated = false;
        if (state.batch < per_epoch) break;
        state.batch = 0;
        tell(fmt::format("epoch {}: ", ++state.epoch));
    }
    if (!evaluated && state.batch > 0)
        tell(fmt::format("epoch {}, step {} of {}: ", state.epoch + 1, state.batch, per_epoch));
    else if (!evaluated)
        tell(fmt::format("after {} epochs: ", state.epoch));

    log.flush();
    if (!options.save.empty()) {
        state.batch_size = loader.options().batch_size;
        state.steps = static_cast<std::uint64_t>(trainer.steps());
        lockstep::save(model, options.save);
        lockstep::save_resume(model, sgd, state, options.save);
        progress.line(fmt::format("saved {}", options.save.string()));
    }
    figures.samples_per_second = trainer.rows_per_second();
    figures.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    report(options, figures, model.devices());
}

}  // namespace program
