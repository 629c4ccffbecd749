#include "lockstep/samples/program/train.h"

#include <algorithm>

namespace program {

std::string rates_of(const lockstep::Optimizer& optimizer) {
    std::string text = fmt::format("lr {}", optimizer.lr());
    const std::vector<std::string> settings = optimizer.setting_names();
    if (std::find(settings.begin(), settings.end(), "momentum") != settings.end())
        text += fmt::format(", momentum {}", optimizer.setting("momentum"));
    return text;
}

void set_rate(const Options& options, const lockstep::RunState& state, lockstep::Optimizer& optimizer) {
    if (!options.lr) return;
    const auto began = lockstep::number_in(state, "schedule initial_lr.0");  // of FollowSchedule
    if (!began) return optimizer.set_lr(*options.lr);
    if (*began != *options.lr)
        throw UsageError(fmt::format("--lr {}: the run of {} began with {}, and its schedule goes on; leave --lr out",
                                     *options.lr, options.load.string(), *began));
}

void require_same_run(const Options& options, const lockstep::RunState& state, std::int64_t batch_size) {
    if (state.seed != options.seed)
        throw UsageError(fmt::format("--seed {}: the run of {} has seed {}; give that", options.seed,
                                     options.load.string(), state.seed));
    if (state.batch > 0 && state.batch_size != batch_size)
        throw UsageError(
            fmt::format("{} rows a step: the run of {} stopped within an epoch of {} rows a step; "
                        "go on with --batch-size {}",
                        batch_size, options.load.string(), state.batch_size, state.batch_size));
}

std::filesystem::path interrupted_file(const std::filesystem::path& save) {
    const std::string name = save.string();
    if (name.find("{epoch}") == std::string::npos && name.find("{step}") == std::string::npos) return {};
    return save.parent_path() / "INTERRUPTED.safetensors";
}

void LogEvaluations::log(const lockstep::Run& run) {
    const auto score = run.scores().find(training_->score.name);
    const std::uint64_t steps = run.state().steps;
    if (score == run.scores().end() || score->second.steps != steps || logged_ == steps) return;
    logged_ = steps;
    training_->log_evaluation(report_->log().events(), std::max<std::int64_t>(static_cast<std::int64_t>(steps) - 1, 0));
}

}  // namespace program
