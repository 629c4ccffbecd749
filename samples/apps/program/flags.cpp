#include "lockstep/samples/apps/program/flags.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

namespace program {

namespace {

/// Without its description: --help shows types and defaults, and the text documents the allowed values.
CLI::Validator silent(CLI::Validator validator) { return validator.description(""); }

CLI::Validator is_rate() {
    const auto complaint = [](const std::string& text) {
        return number_of(text).value_or(-1) >= 0 ? std::string()
                                                 : "value is " + text + "; expected a number, 0 or more";
    };
    return {complaint, ""};
}

/// "250", "250s", "1e"; nullopt for anything else.
std::optional<SaveEvery> save_every_of(const std::string& text, bool plain_is_epochs) {
    const bool unit = text.ends_with('e') || text.ends_with('s');
    const bool epochs = unit ? text.ends_with('e') : plain_is_epochs;
    const char* const last = text.data() + text.size() - (unit ? 1 : 0);
    std::int64_t count = 0;
    const auto [end, error] = std::from_chars(text.data(), last, count);
    if (error != std::errc() || end != last || count < 1) return std::nullopt;
    return epochs ? SaveEvery{.epochs = count} : SaveEvery{.steps = count};
}

int signal_of(const std::string& text) {
    const std::string name = text.starts_with("SIG") ? text.substr(3) : text;
    for (int signal = 1; signal < NSIG; ++signal) {
        const char* known = ::sigabbrev_np(signal);
        if (((known && name == known) || name == std::to_string(signal)) && signal != SIGKILL && signal != SIGSTOP)
            return signal;
    }
    throw CLI::ValidationError("--stop-signals", "value is '" + text + "'; expected signals that can be caught");
}

std::string text_of(double value) { return fmt::format("{}", value); }

constexpr std::int64_t max_rows = std::int64_t{1} << 31;

/// Flags of every program. Their group in --help is the one set last by option_defaults().
void add_flags_of_devices(CLI::App& app, Options& options, const Program& program) {
    app.option_defaults()->group("Devices and batch");
    app.add_option("--parallel", options.parallel, "one device, all devices from one thread, or one process per device")
        ->type_name("none|dp|ddp")
        ->check(silent(CLI::IsMember({"none", "dp", "ddp"})))
        ->capture_default_str();
    app.add_option("--devices", options.devices, "devices to use: all, or a list such as cuda:0,cuda:1 or cpu:0,cpu:1")
        ->type_name("LIST")
        ->capture_default_str();
    app.add_option("--shards", options.shards,
                   "parts of a batch, which determine the bits of the result; default one per device")
        ->type_name("N")
        ->transform(is_whole(1, 65536));
    auto* whole = app.add_option("--batch-size,-b", options.batch_size,
                                 std::string("rows per step over all devices") +
                                     (options.default_batch_size > 0 ? "" : "; default one per device"))
                      ->type_name("ROWS")
                      ->transform(is_whole(1, max_rows));
    if (options.default_batch_size > 0) whole->default_str(std::to_string(options.default_batch_size));
    app.add_option("--batch-size-per-device", options.batch_size_per_device,
                   "rows per step on each device, instead of --batch-size")
        ->type_name("ROWS")
        ->transform(is_whole(1, max_rows))
        ->excludes(whole);
    add_flags_of_algorithms(app, options);
    app.option_defaults()->group("Data");
    if (!program.data.empty())
        app.add_option("--data", options.data, program.data)->type_name(program.data_type)->capture_default_str();
    app.add_option("--workers", options.workers, "threads that read data")
        ->type_name("N")
        ->transform(is_whole(0, 1024))
        ->capture_default_str();
}

bool is_free(const CLI::App& app, const char* flag) { return app.get_option_no_throw(flag) == nullptr; }

void add_flags_of_checkpoints(CLI::App& app, Options& options, const Program& program) {
    app.option_defaults()->group("Checkpoints");
    app.add_option("--work-dir", options.work_dir,
                   "directory for config.toml, the log and " + name_in_work_dir(program).string())
        ->type_name("DIR");
    app.add_option(
           "--save", options.save,
           "weights, with FILE.resume; " + (program.checkpoint.empty() ? "{epoch} and {step} become numbers"
                                                                       : "default " + program.checkpoint.string()))
        ->type_name("FILE");
    app.add_option_function<std::string>(
           "--save-every",
           [&options, by_epochs = program.saves_by_epochs](const std::string& text) {
               const auto every = save_every_of(text, by_epochs);
               if (!every)
                   throw CLI::ValidationError("--save-every",
                                              "value is " + text + "; expected steps (250s) or epochs (1e)");
               options.save_every = *every;
           },
           program.saves_by_epochs
               ? fmt::format("epochs between saves, or steps (Ns); default {}", options.save_every.epochs)
               : "steps between saves, or epochs (Ne); default: at the end of the run only")
        ->type_name(program.saves_by_epochs ? "N|Ns" : "N|Ne");
    app.add_option("--keep", options.keep, "newest checkpoints to keep if --save has {epoch} or {step}; default all")
        ->type_name("N")
        ->transform(is_whole(1, 1 << 30));
    app.add_option("--best", options.best, "checkpoint with the best score")->type_name("FILE");
    app.add_option("--load,-f,--start-from", options.load,
                   "weights to start from (safetensors, .pth); with FILE.resume, run to resume")
        ->type_name("FILE");
    app.add_option_function<std::string>(
           "--resume", [&options](const std::string&) { options.resumes_automatically = true; },
           "resume from the newest checkpoint of --save, if there is one")
        ->type_name("auto")
        ->check(silent(CLI::IsMember({"auto"})));
    app.add_option("--allow-changed", options.allow_changed, "flags that a resume may change, such as batch-size,seed")
        ->type_name("NAMES")
        ->delimiter(',');
    app.add_option_function<std::string>(
           "--stop-signals",
           [&options](const std::string& text) {
               options.stop_signals.clear();
               for (const std::string& name : CLI::detail::split(text, ','))
                   options.stop_signals.push_back(signal_of(name));
           },
           "signals that stop and save the run; default SIGINT,SIGTERM,SIGUSR1,SIGUSR2,SIGXCPU")
        ->type_name("LIST");
}

void add_flags_of_training(CLI::App& app, Options& options, const Program& program) {
    app.option_defaults()->group("Devices and batch");
    app.add_option("--accumulation-steps", options.accumulation_steps,
                   "microbatches per step; memory for one is enough")
        ->type_name("N")
        ->transform(is_whole(1, 65536))
        ->capture_default_str();
    add_flag_of_amp(app, options);
    app.option_defaults()->group("Training");
    app.add_option("--epochs,-e", options.epochs, "number of epochs, including those before a resume")
        ->type_name("N")
        ->transform(is_whole(0, std::int64_t{1} << 31))
        ->capture_default_str();
    app.add_option("--steps", options.steps, "number of steps, including those before a resume; default: all epochs")
        ->type_name("N")
        ->transform(is_whole(0, std::int64_t{1} << 62));
    app.add_option("--seed", options.seed, "random seed for weights, dropout and shuffling")
        ->type_name("N")
        ->transform(is_natural())
        ->capture_default_str();
    app.add_option("--momentum", options.momentum, "momentum (SGD, RMSprop)")
        ->type_name("RATE")
        ->check(is_rate())
        ->default_str(text_of(options.default_momentum));
    add_flags_of_update(app, options);
    app.add_option("--early-stop", options.early_stop, "evaluations without a better score before the run ends")
        ->type_name("N")
        ->transform(is_whole(1, 1 << 30));
    add_flags_of_schedule(app, options, true);
    app.add_option("--rates", options.rates, "adaptive rate, not with a schedule; yellowfin also sets momentum")
        ->type_name("none|adascale|yellowfin")
        ->check(silent(CLI::IsMember({"none", "adascale", "yellowfin"})))
        ->capture_default_str();
    add_flags_of_checkpoints(app, options, program);
    add_flags_of_output(app, options);
    app.add_option("--log-dir", options.log_dir,
                   "directory for the log of every step: " + program.name + ".jsonl and TensorBoard's events")
        ->type_name("DIR");
    app.add_option("--trace", options.trace,
                   "file for a timeline of the last steps, which https://ui.perfetto.dev shows")
        ->type_name("FILE");
    app.add_option("--trace-steps", options.trace_steps, "number of steps in the file of --trace")
        ->type_name("N")
        ->transform(is_whole(1, 1000))
        ->capture_default_str();
    app.add_option("--log-interval", options.log_interval, "batches between lines in the format of PyTorch's examples")
        ->type_name("N")
        ->transform(is_whole(1, std::int64_t{1} << 31));
    app.footer(
        "A resumed run keeps its learning rate, momentum and weight decay unless they are given, and the algorithms\n"
        "of --benchmark. The first signal of --stop-signals stops all processes after a step. The run is saved if\n"
        "--save is given, and the program dies of that signal (status 128 + signal: 130, 143).\n"
        "A second SIGINT or SIGTERM ends it at once.\n"
        "Exit status: 0 for success, 1 for a failed run or lost output, 2 for an invalid flag or environment\n"
        "variable. Underscores and hyphens in flags are interchangeable.");
}

/// --amp needs no value, but is an option with one value for CLI11, as in a file of --config.
void give_amp_a_value(std::vector<std::string>& words) {
    for (std::size_t i = 1; i < words.size(); ++i)
        if (words[i] == "--amp" && (i + 1 == words.size() || words[i + 1].starts_with("-"))) words[i] += "=true";
}

}  // namespace

void add_flags_of_algorithms(CLI::App& app, Options& options) {
    app.add_flag("--benchmark", options.benchmark, "use the fastest convolution algorithms");
    app.add_flag("--allow-tf32", options.allow_tf32,
                 "allow TF32 for f32 convolutions and matrix products on GPUs: faster, less accurate");
    app.add_flag("--deterministic", options.deterministic, "make runs bit-identical without fixing the shards");
}

void add_flag_of_amp(CLI::App& app, Options& options) {
    app.add_option("--amp", options.amp, "mixed precision; without a value fp16 on GPUs, bf16 on CPUs")
        ->type_name("[off|fp16|bf16]")
        ->check(silent(CLI::IsMember({"off", "fp16", "bf16", "true", "false"})))
        ->capture_default_str();
}

void add_flags_of_update(CLI::App& app, Options& options) {
    if (is_free(app, "--weight-decay"))
        app.add_option("--weight-decay", options.weight_decay, "weight decay")
            ->type_name("RATE")
            ->check(is_rate())
            ->default_str(text_of(options.default_weight_decay));
    if (is_free(app, "--clip"))
        app.add_option("--clip", options.clip, "maximum norm of the gradients; 0 disables clipping")
            ->type_name("NORM")
            ->check(is_rate())
            ->capture_default_str();
}

void add_flags_of_schedule(CLI::App& app, Options& options, bool evaluates) {
    std::vector<std::string> names{"constant",   "step",   "multistep",       "exponential", "linear",
                                   "polynomial", "cosine", "cosine-restarts", "one-cycle",   "cyclic"};
    if (evaluates) names.emplace_back("plateau");
    app.option_defaults()->group(fmt::format("Learning rate ({})", fmt::join(names, "|")));
    app.add_option("--lr,-l,--learning-rate", options.lr, "learning rate")
        ->type_name("RATE")
        ->check(is_rate())
        ->default_str(text_of(options.default_lr));
    if (!is_free(app, "--schedule")) return;
    app.add_option("--schedule", options.schedule.name,
                   evaluates ? "schedule by epochs (steps: one-cycle, cyclic; scores: plateau)"
                             : "schedule by epochs (steps: one-cycle, cyclic)")
        ->type_name("NAME")
        ->check(silent(CLI::IsMember(names)))
        ->capture_default_str();
    const auto is_count = is_whole(1, std::int64_t{1} << 31);
    app.add_option("--lr-period", options.schedule.period,
                   "epochs of a reduction (step), rise (linear) or cycle (others)")
        ->type_name("N")
        ->transform(is_count)
        ->capture_default_str();
    app.add_option("--lr-milestones", options.schedule.milestones, "epochs of the reductions (multistep)")
        ->type_name("LIST")
        ->delimiter(',')
        ->transform(is_count);
    app.add_option("--lr-gamma", options.schedule.gamma, "factor per reduction, epoch (exponential) or step (cyclic)")
        ->type_name("FACTOR")
        ->check(is_between(0, 1, false))
        ->capture_default_str();
    app.add_option("--lr-power", options.schedule.power, "power of the rest of the run (polynomial)")
        ->type_name("NUMBER")
        ->check(is_between(0, 100))
        ->capture_default_str();
    app.add_option("--lr-min", options.schedule.lowest,
                   evaluates ? "minimum rate (cosine, cosine-restarts, cyclic, plateau)"
                             : "minimum rate (cosine, cosine-restarts, cyclic)")
        ->type_name("RATE")
        ->check(is_rate())
        ->capture_default_str();
    app.add_option("--lr-mode", options.schedule.mode, "form of cyclic: triangular, triangular2 or exp-range")
        ->type_name("MODE")
        ->check(silent(CLI::IsMember({"triangular", "triangular2", "exp-range"})))
        ->capture_default_str();
    app.add_flag("--lr-cycle-momentum", options.schedule.cycle_momentum,
                 "momentum from 0.9 to 0.8 and back while the rate rises and falls (cyclic)");
    if (evaluates)
        app.add_option("--lr-patience", options.schedule.patience,
                       "evaluations without a better score before a reduction (plateau)")
            ->type_name("N")
            ->transform(is_whole(0, std::int64_t{1} << 31))
            ->capture_default_str();
}

void add_flags_of_output(CLI::App& app, Options& options) {
    app.option_defaults()->group("Output");
    app.add_option("--json", options.json, "file for the final results")->type_name("FILE");
    app.add_flag("--quiet", options.quiet, "warnings and errors only");
}

void add_flag_of_reduction(CLI::App& app, Options& options) {
    app.add_option("--reduction", options.reduction, "reproducible sum (tree), or the backend's own all-reduce (fast)")
        ->type_name("tree|fast")
        ->check(silent(CLI::IsMember({"tree", "fast"})))
        ->capture_default_str();
}

void require_complete(const CLI::App& app, const ScheduleFlags& schedule) {
    if (schedule.name == "multistep" && schedule.milestones.empty())
        throw UsageError("--schedule multistep requires --lr-milestones");
    if (schedule.name == "cyclic" && (schedule.mode == "exp-range") != differs_from_default(app, "--lr-gamma"))
        throw UsageError(schedule.mode == "exp-range"
                             ? "--lr-mode exp-range requires --lr-gamma"
                             : "--lr-gamma requires --lr-mode exp-range with --schedule cyclic");
    struct Use {
        const char* flag;
        std::vector<std::string> schedules;
    };
    for (const Use& use :
         {Use{"--lr-period", {"step", "linear", "cosine-restarts", "cyclic"}}, Use{"--lr-milestones", {"multistep"}},
          Use{"--lr-gamma", {"step", "multistep", "exponential", "cyclic", "plateau"}},
          Use{"--lr-power", {"polynomial"}}, Use{"--lr-min", {"cosine", "cosine-restarts", "cyclic", "plateau"}},
          Use{"--lr-mode", {"cyclic"}}, Use{"--lr-cycle-momentum", {"cyclic"}}, Use{"--lr-patience", {"plateau"}}})
        if (differs_from_default(app, use.flag) &&
            std::find(use.schedules.begin(), use.schedules.end(), schedule.name) == use.schedules.end())
            throw UsageError(fmt::format("{}: not used by --schedule {}; expected --schedule {}", use.flag,
                                         schedule.name, fmt::join(use.schedules, " or ")));
}

std::vector<std::string> words_of(int argc, const char* const* argv) {
    std::vector<std::string> words(argv, argv + argc);
    for (std::string& word : words)
        if (word.starts_with("--")) std::replace(word.begin(), std::find(word.begin(), word.end(), '='), '_', '-');
    give_amp_a_value(words);
    return words;
}

int run(CLI::App& app, std::vector<std::string> words, const std::function<void()>& body) {
    std::vector<char*> pointers;
    for (std::string& word : words) pointers.push_back(word.data());
    return run(app, static_cast<int>(pointers.size()), pointers.data(), body);
}

std::filesystem::path name_in_work_dir(const Program& program) {
    if (program.checkpoint.empty()) return program.name + ".safetensors";
    return program.checkpoint.filename();
}

void add_flags(CLI::App& app, Options& options, const Program& program) {
    app.option_defaults()->group("Model");
    if (program.add_flags) program.add_flags(app);
    add_flags_of_devices(app, options, program);
    program.trains ? add_flags_of_training(app, options, program) : add_flags_of_output(app, options);
    add_flags_of_ranks(app, options, "Processes (--parallel ddp)");
    if (program.trains) add_flag_of_reduction(app, options);
}

}  // namespace program
