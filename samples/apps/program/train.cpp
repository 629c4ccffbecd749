#include "lockstep/samples/apps/program/train.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>
#include <system_error>

namespace program {

std::string rates_of(const lockstep::Optimizer& optimizer) {
    std::string text = fmt::format("lr {}", optimizer.lr());
    const std::vector<std::string> settings = optimizer.setting_names();
    if (std::find(settings.begin(), settings.end(), "momentum") != settings.end())
        text += fmt::format(", momentum {}", optimizer.setting("momentum"));
    return text;
}

namespace {

/// A flag with a setting of the optimizer.
struct SettingFlag {
    std::string flag, setting;
    std::optional<double> given;
    double standard;
    /// Field of the state with the value that was given last, or with which the run started.
    std::string field() const { return "flag " + flag; }
};

std::vector<SettingFlag> setting_flags(const Options& options) {
    return {{"lr", "lr", options.lr, options.default_lr},
            {"momentum", "momentum", options.momentum, options.default_momentum},
            {"weight-decay", "weight_decay", options.weight_decay, options.default_weight_decay}};
}

}  // namespace

std::vector<std::string> override_settings(const Options& options, const lockstep::RunState& state,
                                           lockstep::Optimizer& optimizer) {
    std::vector<std::string> changes;
    const auto began = lockstep::number_in(state, "schedule initial_lr.0");  // written by FollowSchedule
    for (const SettingFlag& flag : setting_flags(options)) {
        if (!flag.given) continue;
        if (flag.flag == "lr") {
            // --lr is the maximum of the cycle, which is compared with the other facts of the run.
            if (options.schedule.is_by_steps()) continue;
            if (began && *began != *flag.given)
                throw UsageError(
                    fmt::format("--lr {}: the schedule saved in {} started with {}; expected the same, or no --lr",
                                *flag.given, options.load.string(), *began));
            if (began) continue;
        }
        // A run restarted with its own flags keeps the settings that it has reached, such as a reduced rate.
        if (lockstep::number_in(state, flag.field()) == flag.given) continue;
        const double before = optimizer.setting(flag.setting);
        if (before != *flag.given)
            changes.push_back(fmt::format("--{} {} instead of {}", flag.flag, *flag.given, before));
        optimizer.set_setting(flag.setting, *flag.given);
    }
    return changes;
}

void record_settings(const Options& options, bool resumes, lockstep::RunState& state) {
    for (const SettingFlag& flag : setting_flags(options))
        if (flag.given || !resumes) state.fields[flag.field()] = lockstep::field_of(flag.given.value_or(flag.standard));
}

namespace {

std::string text_of_schedule(const Options& options) {
    if (!options.schedule.is_by_steps()) return options.schedule.str();
    const std::string length =
        options.schedule.name == "one-cycle" ? fmt::format(" of {} epochs", options.epochs) : std::string();
    return fmt::format("{}{} up to {}", options.schedule.str(), length, options.lr.value_or(options.default_lr));
}

}  // namespace

std::map<std::string, std::string> facts_of(const Options& options) {
    std::map<std::string, std::string> facts{
        {"seed", std::to_string(options.seed)},
        {"schedule", text_of_schedule(options)},
        {"early-stop", options.early_stop > 0 ? std::to_string(options.early_stop) : "off"}};
    // Other schedules do not depend on the number of epochs: such a run may be extended.
    if (options.schedule.name == "cosine" || options.schedule.name == "polynomial")
        facts["epochs"] = fmt::format("{} ({})", options.epochs, options.schedule.name);
    return facts;
}

std::uint64_t seed_in(const std::map<std::string, std::string>& facts) {
    const std::string& text = facts.at("seed");
    std::uint64_t seed = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seed);
    if (error != std::errc() || end != text.data() + text.size())
        throw lockstep::DataError(
            fmt::format("the checkpoint's field '{}seed' is '{}'; expected a whole number from 0 to 2^64 - 1",
                        lockstep::detail::fact, text));
    return seed;
}

void keep_facts_of_finished(const Options& options, const lockstep::RunState& state,
                            std::map<std::string, std::string>& facts) {
    const bool by_steps = options.steps && state.steps >= static_cast<std::uint64_t>(*options.steps);
    if (!by_steps && state.epoch < static_cast<std::uint64_t>(options.epochs)) return;
    const std::string_view begin = lockstep::detail::fact;
    for (const auto& [field, value] : state.fields)
        if (field.starts_with(begin)) facts[field.substr(begin.size())] = value;
}

std::string accepted_changes(const Options& options, const Beginning& begin,
                             const std::map<std::string, std::string>& facts, std::int64_t batch_size) {
    const lockstep::RunState& state = begin.state;
    std::vector<std::string> refused, accepted = begin.changed_settings;
    for (const std::string& name : options.allow_changed)
        if (!facts.contains(name)) {
            std::string known;
            for (const auto& [fact, value] : facts) known += (known.empty() ? "" : ", ") + fact;
            throw UsageError(fmt::format("--allow-changed: unknown name {}; expected some of {}", name, known));
        }
    for (const auto& [name, before, now] : lockstep::changed_facts(state, facts)) {
        if (name == follows_amp) continue;
        // The algorithm of convolutions is that of LOCKSTEP_CONV.
        const bool is_flag = name != "rows" && !name.ends_with("dataset") && name != "convolution";
        const std::string what = is_flag ? "--" + name : name;
        const auto& allowed = options.allow_changed;
        if (std::find(allowed.begin(), allowed.end(), name) != allowed.end())
            accepted.push_back(fmt::format("{} {} instead of {}", what, now, before));
        else
            refused.push_back(
                fmt::format("{} {}: the run saved in {} has {}", what, now, options.load.string(), before));
    }
    if (state.batch > 0 && state.batch_size != 0 && state.batch_size != batch_size)
        throw UsageError(
            fmt::format("{} rows per step: the run saved in {} stopped within an epoch of {} rows per step; "
                        "expected --batch-size {}",
                        batch_size, options.load.string(), state.batch_size, state.batch_size));
    if (!refused.empty())
        throw UsageError(
            fmt::format("{}; expected the same, or a change listed in --allow-changed", fmt::join(refused, "; ")));
    return accepted.empty() ? "" : fmt::format("continues with {}", fmt::join(accepted, ", "));
}

std::unique_ptr<lockstep::LRSchedule> schedule_of(const Options& options, lockstep::Optimizer& optimizer,
                                                  std::int64_t batches) {
    using namespace lockstep;
    const ScheduleFlags& flags = options.schedule;
    const std::int64_t epochs = std::max<std::int64_t>(1, options.epochs);
    if (flags.name == "step") return std::make_unique<StepLR>(optimizer, flags.period, flags.gamma);
    if (flags.name == "multistep") return std::make_unique<MultiStepLR>(optimizer, flags.milestones, flags.gamma);
    if (flags.name == "exponential") return std::make_unique<ExponentialLR>(optimizer, flags.gamma);
    if (flags.name == "linear")
        return std::make_unique<LinearLR>(optimizer, LinearLROptions{.total_iters = flags.period});
    if (flags.name == "polynomial")
        return std::make_unique<PolynomialLR>(optimizer,
                                              PolynomialLROptions{.total_iters = epochs, .power = flags.power});
    if (flags.name == "cosine") return std::make_unique<CosineAnnealingLR>(optimizer, epochs, flags.lowest);
    if (flags.name == "cosine-restarts")
        return std::make_unique<CosineAnnealingWarmRestarts>(optimizer, flags.period, 1, flags.lowest);
    if (flags.name == "one-cycle")
        return std::make_unique<OneCycleLR>(
            optimizer, OneCycleLROptions{.max_lr = optimizer.lr(), .total_steps = epochs * batches});
    if (flags.name == "cyclic") {
        const std::int64_t steps = flags.period * batches, up = std::max<std::int64_t>(1, steps / 2);
        return std::make_unique<CyclicLR>(optimizer,
                                          CyclicLROptions{.base_lr = flags.lowest,
                                                          .max_lr = optimizer.lr(),
                                                          .step_size_up = up,
                                                          .step_size_down = std::max<std::int64_t>(1, steps - up),
                                                          .mode = flags.mode == "triangular2" ? CyclicMode::triangular2
                                                                  : flags.mode == "exp-range" ? CyclicMode::exp_range
                                                                                              : CyclicMode::triangular,
                                                          .gamma = flags.gamma,
                                                          .cycle_momentum = flags.cycle_momentum});
    }
    return nullptr;
}

std::unique_ptr<lockstep::AdaptiveRates> rates_of_flags(const Options& options) {
    if (options.rates == "adascale") return std::make_unique<lockstep::AdaScale>();
    if (options.rates == "yellowfin") return std::make_unique<lockstep::YellowFin>();
    return nullptr;
}

std::filesystem::path interrupted_file(const std::filesystem::path& save) {
    const std::string name = save.string();
    if (name.find("{epoch}") == std::string::npos && name.find("{step}") == std::string::npos) return {};
    return save.parent_path() / "INTERRUPTED.safetensors";
}

void LogEvaluations::log(const lockstep::Runner& run) {
    const auto score = run.scores().find(training_->score.name);
    const std::uint64_t steps = run.state().steps;
    if (score == run.scores().end() || score->second.steps != steps || logged_ == steps) return;
    logged_ = steps;
    training_->log_evaluation(report_->log().events(), std::max<std::int64_t>(static_cast<std::int64_t>(steps) - 1, 0));
}

}  // namespace program
