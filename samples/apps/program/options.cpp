#include "lockstep/samples/apps/program/options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string_view>
#include <system_error>
#include <tuple>
#include <utility>

#include "lockstep/parallel/checkpoint.h"
#include "lockstep/parallel/comm/launcher.h"
#include "lockstep/parallel/data/atomic_file.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/warning.h"
#include "lockstep/samples/apps/program/files_apart.h"
#include "lockstep/samples/apps/program/report.h"
#include "lockstep/samples/apps/program/same_on_ranks.h"

namespace program {

namespace {

/// Without its description: --help shows types and defaults, and the text says what is allowed.
CLI::Validator silent(CLI::Validator validator) { return validator.description(""); }

CLI::Validator is_rate() {
    const auto complaint = [](const std::string& text) {
        double value = 0;
        const bool good = CLI::detail::lexical_cast(text, value) && std::isfinite(value) && value >= 0;
        return good ? std::string() : "value is " + text + "; expected a number, 0 or more";
    };
    return {complaint, ""};
}

/// "250", "250s", "1e"; nothing for anything else.
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

std::filesystem::path name_in_work_dir(const Program& program) {
    if (program.checkpoint.empty()) return program.name + ".safetensors";
    return program.checkpoint.filename();
}

/// The command line with --batch_size as --batch-size, which people's scripts have.
std::vector<std::string> with_hyphens(int argc, const char* const* argv) {
    std::vector<std::string> words(argv, argv + argc);
    for (std::string& word : words)
        if (word.starts_with("--")) std::replace(word.begin(), std::find(word.begin(), word.end(), '='), '_', '-');
    return words;
}

/// --amp needs no value. To CLI11 it is an option with one value, as in a file of --config.
void give_amp_a_value(std::vector<std::string>& words) {
    for (std::size_t i = 1; i < words.size(); ++i)
        if (words[i] == "--amp" && (i + 1 == words.size() || words[i + 1].starts_with("-"))) words[i] += "=true";
}

constexpr std::int64_t most_rows = std::int64_t{1} << 31;

/// Flags of every program. They are grouped for --help by what was set last as the default of new options.
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
        ->check(silent(CLI::Range(1, 65536)));
    auto* whole = app.add_option("--batch-size,-b", options.batch_size,
                                 std::string("rows per step over all devices") +
                                     (options.default_batch_size > 0 ? "" : "; default one per device"))
                      ->type_name("ROWS")
                      ->check(silent(CLI::Range(std::int64_t{1}, most_rows)));
    if (options.default_batch_size > 0) whole->default_str(std::to_string(options.default_batch_size));
    app.add_option("--batch-size-per-device", options.batch_size_per_device,
                   "rows per step on each device, instead of --batch-size")
        ->type_name("ROWS")
        ->check(silent(CLI::Range(std::int64_t{1}, most_rows)))
        ->excludes(whole);
    app.add_flag("--benchmark", options.benchmark,
                 "use the fastest convolution algorithms; a resumed run uses the same");
    app.add_flag("--deterministic", options.deterministic, "make runs bit-identical without fixing the shards");
    app.option_defaults()->group("Data");
    if (!program.data.empty())
        app.add_option("--data", options.data, program.data)->type_name("DIR")->capture_default_str();
    app.add_option("--workers", options.workers, "threads that read data")
        ->type_name("N")
        ->check(silent(CLI::Range(0, 1024)))
        ->capture_default_str();
}

void add_flags_of_output(CLI::App& app, Options& options) {
    app.option_defaults()->group("Output");
    app.add_option("--json", options.json, "file for the final results")->type_name("FILE");
    app.add_flag("--quiet", options.quiet, "warnings and errors only");
}

/// Flags of steps and rates. A program may replace one of these with its own flag.
void add_flags_of_rates(CLI::App& app, Options& options) {
    const auto is_free = [&](const char* flag) { return app.get_option_no_throw(flag) == nullptr; };
    if (is_free("--weight-decay"))
        app.add_option("--weight-decay", options.weight_decay, "weight decay; a resumed run keeps its own unless given")
            ->type_name("RATE")
            ->check(is_rate())
            ->default_str(text_of(options.default_weight_decay));
    if (is_free("--clip"))
        app.add_option("--clip", options.clip, "maximum norm of the gradients; 0 disables clipping")
            ->type_name("NORM")
            ->check(is_rate())
            ->capture_default_str();
    app.add_option("--early-stop", options.early_stop, "evaluations without a better score before the run ends")
        ->type_name("N")
        ->check(silent(CLI::Range(1, 1 << 30)));
    app.option_defaults()->group(
        "Learning rate (schedules: constant, step, multistep, exponential, linear, cosine, cosine-restarts, one-cycle, "
        "plateau)");
    app.add_option("--lr,-l,--learning-rate", options.lr, "learning rate; a resumed run keeps its own unless given")
        ->type_name("RATE")
        ->check(is_rate())
        ->default_str(text_of(options.default_lr));
    if (is_free("--schedule")) {
        const std::vector<std::string> names{"constant",        "step",      "multistep",
                                             "exponential",     "linear",    "cosine",
                                             "cosine-restarts", "one-cycle", "plateau"};
        app.add_option("--schedule", options.schedule.name,
                       "schedule by epochs (one-cycle: by steps; plateau: by evaluations)")
            ->type_name("NAME")
            ->check(silent(CLI::IsMember(names)))
            ->capture_default_str();
        const auto is_count = silent(CLI::Range(std::int64_t{1}, std::int64_t{1} << 31));
        app.add_option("--lr-period", options.schedule.period,
                       "epochs per reduction (step), rise (linear) or cycle (cosine-restarts)")
            ->type_name("N")
            ->check(is_count)
            ->capture_default_str();
        app.add_option("--lr-milestones", options.schedule.milestones, "epochs of the reductions (multistep)")
            ->type_name("LIST")
            ->delimiter(',')
            ->check(is_count);
        app.add_option("--lr-gamma", options.schedule.gamma, "factor per reduction or, if exponential, per epoch")
            ->type_name("FACTOR")
            ->check(is_between(0, 1, false))
            ->capture_default_str();
        app.add_option("--lr-min", options.schedule.lowest, "minimum rate (cosine, cosine-restarts, plateau)")
            ->type_name("RATE")
            ->check(is_rate())
            ->capture_default_str();
        app.add_option("--lr-patience", options.schedule.patience,
                       "evaluations without a better score before a reduction (plateau)")
            ->type_name("N")
            ->check(silent(CLI::Range(std::int64_t{0}, std::int64_t{1} << 31)))
            ->capture_default_str();
    }
    app.add_option("--rates", options.rates, "adaptive rate, not with a schedule; yellowfin also sets momentum")
        ->type_name("none|adascale|yellowfin")
        ->check(silent(CLI::IsMember({"none", "adascale", "yellowfin"})))
        ->capture_default_str();
}

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
        ->check(silent(CLI::Range(1, 1 << 30)));
    app.add_option("--best", options.best, "checkpoint with the best score")->type_name("FILE");
    app.add_option("--load,-f,--start-from", options.load,
                   "weights to start from (safetensors, .pth); with FILE.resume, run to resume")
        ->type_name("FILE");
    app.add_option_function<std::string>(
           "--resume", [&options](const std::string&) { options.resumes_if_there = true; },
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
        ->check(silent(CLI::Range(1, 65536)))
        ->capture_default_str();
    app.add_option("--amp", options.amp, "mixed precision; without a value fp16 on GPUs, bf16 on CPUs")
        ->type_name("[off|fp16|bf16]")
        ->check(silent(CLI::IsMember({"off", "fp16", "bf16", "true", "false"})))
        ->capture_default_str();
    app.option_defaults()->group("Training");
    app.add_option("--epochs,-e", options.epochs, "number of epochs, including those before a resume")
        ->type_name("N")
        ->check(silent(CLI::Range(std::int64_t{0}, std::int64_t{1} << 31)))
        ->capture_default_str();
    app.add_option("--steps", options.steps, "number of steps, including those before a resume; default: all epochs")
        ->type_name("N")
        ->check(silent(CLI::Range(std::int64_t{0}, std::int64_t{1} << 62)));
    app.add_option("--seed", options.seed, "random seed for weights, dropout and shuffling")
        ->type_name("N")
        ->transform(is_natural())
        ->capture_default_str();
    app.add_option("--momentum", options.momentum, "momentum (SGD, RMSprop); a resumed run keeps its own unless given")
        ->type_name("RATE")
        ->check(is_rate())
        ->default_str(text_of(options.default_momentum));
    add_flags_of_rates(app, options);
    add_flags_of_checkpoints(app, options, program);
    add_flags_of_output(app, options);
    app.add_option("--log-dir", options.log_dir,
                   "directory for the log of every step: " + program.name + ".jsonl and TensorBoard's events")
        ->type_name("DIR");
    app.add_option("--log-interval", options.log_interval, "batches between lines in the format of PyTorch's examples")
        ->type_name("N")
        ->check(silent(CLI::Range(std::int64_t{1}, std::int64_t{1} << 31)));
    app.footer(
        "The first signal of --stop-signals stops all processes after a step. The run is saved if --save is given, and "
        "the\nprogram dies of that signal (status 128 + signal: 130, 143). A second SIGINT or SIGTERM ends it at "
        "once.\nExit status: 0 for success, 1 for a failed run or lost output, 2 for a usage error. Underscores and "
        "hyphens in flags are\ninterchangeable.");
}

void join(Options& options) {
    options.group = join_ranks(options, options.devices);
    if (options.leads()) return;
    options.quiet = true;
    options.json.clear();
    options.log_dir.clear();
    options.work_dir.clear();
}

/// Files that were not named are in --work-dir.
void use_work_dir(Options& options, const Program& program) {
    if (!program.trains) return;
    const bool given = !options.work_dir.empty();
    if (options.save.empty()) options.save = given ? options.work_dir / name_in_work_dir(program) : program.checkpoint;
    if (options.log_dir.empty()) options.log_dir = options.work_dir;
}

/// Read by --config it makes the same run. What only this process has is left out, and so is what a run that goes on
/// takes from its checkpoint.
std::string resolved_flags(CLI::App& app, const Options& options) {
    const auto leave_out = [&](const char* flag) {
        if (CLI::Option* option = app.get_option_no_throw(flag)) option->configurable(false);
    };
    for (CLI::Option* option : app.get_options([](const CLI::Option* flag) {
             return flag->count() == 0 && flag->get_expected_min() > 0 && flag->get_default_str().empty();
         }))
        option->configurable(false);  // without a value
    for (const char* flag : {"--rank", "--world-size"}) leave_out(flag);
    if (options.batch_size_per_device) leave_out("--batch-size");  // one excludes the other
    if (!options.timeout_seconds) leave_out("--timeout");          // only for several processes
    if (!options.load.empty() && !options.lr) leave_out("--lr");
    if (!options.load.empty() && !options.momentum) leave_out("--momentum");
    if (!options.load.empty() && !options.weight_decay) leave_out("--weight-decay");
    return app.config_to_str(true, false);
}

/// The file's name with numbers for {epoch} and {step}.
bool is_checkpoint_of(const std::string& pattern, std::string_view name) {
    for (std::size_t at = 0; at < pattern.size();) {
        const std::string_view rest = std::string_view(pattern).substr(at);
        const std::size_t place = rest.starts_with("{epoch}") ? 7 : rest.starts_with("{step}") ? 6 : 0;
        const std::size_t digits = name.find_first_not_of("0123456789") == std::string_view::npos
                                       ? name.size()
                                       : name.find_first_not_of("0123456789");
        const std::size_t taken = place > 0 ? digits : 1;
        if (name.empty() || taken == 0 || (place == 0 && name[0] != rest[0])) return false;
        name.remove_prefix(taken);
        at += place > 0 ? place : 1;
    }
    return name.empty();
}

/// The checkpoint that has made most steps among those of --save and INTERRUPTED; empty: not found. One that cannot be
/// read is a warning.
std::filesystem::path newest_checkpoint(const std::filesystem::path& save) {
    const std::string pattern = save.filename().string();
    const bool several = pattern.find("{epoch}") != std::string::npos || pattern.find("{step}") != std::string::npos;
    std::filesystem::path directory = save.parent_path(), newest;
    if (directory.empty()) directory = ".";
    std::optional<lockstep::RunState> most;
    std::error_code missing;
    for (const auto& entry : std::filesystem::directory_iterator(directory, missing)) {
        const std::string name = entry.path().filename().string();
        if (!is_checkpoint_of(pattern, name) && !(several && name == "INTERRUPTED.safetensors")) continue;
        try {
            const auto state = lockstep::read_run(entry.path());
            const auto progress = [](const lockstep::RunState& run) { return std::tuple(run.steps, run.epoch); };
            if (!state || (most && progress(*state) < progress(*most))) continue;
            if (most && progress(*state) == progress(*most) && name == "INTERRUPTED.safetensors") continue;
            most = state;
            newest = save.parent_path() / name;
        } catch (const lockstep::Error& error) {
            lockstep::warn(fmt::format("--resume auto: skipping {}: {}", entry.path().string(), error.what()));
        }
    }
    return newest;
}

void find_checkpoint(Options& options) {
    if (!options.resumes_if_there) return;
    if (options.save.empty()) throw UsageError("--resume auto requires --save or --work-dir");
    if (options.save.parent_path().string().find('{') != std::string::npos)
        throw UsageError("--resume auto: " + options.save.string() +
                         " has {epoch} or {step} in its directory; expected them "
                         "only in the file name");
    if (const auto found = newest_checkpoint(options.save); !found.empty()) options.load = found;
}

void leave_configuration(const Options& options) {
    if (options.work_dir.empty()) return;
    make_directory(options.work_dir);
    lockstep::AtomicFile file(options.work_dir / "config.toml");
    file.write(std::as_bytes(std::span(options.configuration)));
    file.commit();
}

void check(const Options& options, const std::string& program) {
    if (!options.distributed() &&
        (!options.backend.empty() || options.rank || options.init_method != "env://" || options.timeout_seconds ||
         (!options.launcher.empty() && options.launcher != "none") || options.reduction != "tree"))
        throw UsageError(
            "--launcher, --backend, --rank, --world-size, --init-method, --timeout and --reduction require --parallel "
            "ddp");
    if ((options.save_every.steps > 0 || options.save_every.epochs > 0) && options.save.empty())
        throw UsageError("--save-every requires --save or --work-dir");
    for (const auto* path : {&options.save, &options.json})
        if (!path->empty() && !path->has_filename())
            throw UsageError(path->string() + ": path is a directory; expected a file");
    // --save numbers files by their names, and nothing else is numbered.
    for (const auto& [flag, path] : {std::pair("--work-dir", options.work_dir),
                                     {"--save", options.save.parent_path()},
                                     {"--load", options.load},
                                     {"--log-dir", options.log_dir},
                                     {"--json", options.json}})
        for (const char* number : {"{epoch}", "{step}"})
            if (path.string().find(number) != std::string::npos)
                throw UsageError(fmt::format("{} {}: {} is not allowed; expected it only in the file name of --save",
                                             flag, path.string(), number));
    if (options.keep > 0 && options.save.string().find("{epoch}") == std::string::npos &&
        options.save.string().find("{step}") == std::string::npos)
        throw UsageError("--keep requires {epoch} or {step} in the name of --save");
    if (!options.best.empty() && options.save.empty()) throw UsageError("--best requires --save or --work-dir");
    if (options.schedule.name == "multistep" && options.schedule.milestones.empty())
        throw UsageError("--schedule multistep requires --lr-milestones");
    if (options.rates != "none" && options.schedule.name != "constant")
        throw UsageError("--rates " + options.rates + " and --schedule " + options.schedule.name +
                         " both set the learning rate; expected one of them");
    require_files_apart(options, program);
}

/// The devices in the list, whether or not this process sees them; empty for "all".
std::vector<lockstep::Device> named_devices(const std::string& text) {
    std::vector<lockstep::Device> devices;
    if (text == "all") return devices;
    for (const std::string& name : CLI::detail::split(text, ',')) devices.push_back(lockstep::Device::parse(name));
    return devices;
}

/// Creates enough virtual CPU devices for the named ones, unless LOCKSTEP_CPU_DEVICES sets their number.
void make_room_for(const std::vector<lockstep::Device>& devices) {
    int highest = -1;
    for (const lockstep::Device device : devices)
        if (device.kind() == lockstep::DeviceKind::cpu) highest = std::max(highest, device.index());
    constexpr int standard = 2, most = 64;
    if (highest >= most && !std::getenv("LOCKSTEP_CPU_DEVICES"))
        throw lockstep::InvalidArgument(
            fmt::format("cpu:{}: no such virtual device; expected cpu:0 to cpu:{}", highest, most - 1));
    if (highest >= standard) setenv("LOCKSTEP_CPU_DEVICES", std::to_string(highest + 1).c_str(), 0);
}

void require_as_many(std::size_t devices, int ranks) {
    if (static_cast<std::size_t>(ranks) > devices)
        throw lockstep::InvalidArgument(
            fmt::format("{} {} for {} ranks on this host; expected one per rank, or no list", devices,
                        devices == 1 ? "device" : "devices", ranks));
}

/// Rank i of a host takes device i of the list; without a list, visible ones in turn. A process that has cores of its
/// own sees one virtual device, all of them, whatever number it has in the list.
lockstep::Device device_of_rank(const std::string& devices, int local_rank) {
    const lockstep::Devices visible = lockstep::Devices::visible();
    if (devices == "all") return visible[local_rank % visible.size()];
    require_as_many(named_devices(devices).size(), local_rank + 1);
    if (visible.kind() == lockstep::DeviceKind::cpu && visible.size() == 1) return visible[0];
    return lockstep::Devices::parse(devices)[local_rank];
}

/// Returns what `body` returns; turns its InvalidArgument into a UsageError about --devices.
template <class Body>
auto about_devices(const Body& body) {
    try {
        return body();
    } catch (const lockstep::InvalidArgument& error) {
        throw UsageError(std::string("--devices: ") + error.what());
    }
}

/// Before the rendezvous, so that all ranks report it.
void require_a_device_each(const Options& options) {
    const int ranks = options.world_size.value_or(lockstep::rank_info().local_world_size);
    about_devices([&] {
        if (const auto named = named_devices(options.devices); !named.empty()) require_as_many(named.size(), ranks);
    });
}

void warn_where_each_trains_alone() {
    try {
        const lockstep::RankInfo info = lockstep::rank_info();
        if (info.rank == 0 && info.world_size > 1)
            lockstep::warn(fmt::format("{} processes train separate models; give --parallel ddp to train one model",
                                       info.world_size));
    } catch (const lockstep::InvalidArgument&) {  // half of a info says nothing of other processes
    }
}

}  // namespace

std::string ScheduleFlags::str() const {
    if (name == "step" || name == "multistep")
        return fmt::format("{} {} x {}", name,
                           name == "step" ? fmt::format("{}", period) : fmt::format("{}", fmt::join(milestones, ",")),
                           gamma);
    if (name == "exponential") return fmt::format("{} {}", name, gamma);
    if (name == "linear") return fmt::format("{} {}", name, period);
    if (name == "cosine") return fmt::format("{} to {}", name, lowest);
    if (name == "cosine-restarts") return fmt::format("{} {} to {}", name, period, lowest);
    if (name == "plateau") return fmt::format("{} {} x {} to {}", name, patience, gamma, lowest);
    return name;
}

lockstep::Devices Options::chosen_devices() const {
    return about_devices([&] {
        make_room_for(named_devices(devices));
        if (group) return lockstep::Devices({device_of_rank(devices, group->local_rank())});
        const lockstep::Devices all = lockstep::Devices::parse(devices);
        return parallel == "none" ? lockstep::Devices({all[0]}) : all;
    });
}

lockstep::EngineOptions Options::engine_options() const {
    lockstep::EngineOptions engine;
    engine.shards = shards.value_or(0);
    engine.deterministic = deterministic;
    if (benchmark) engine.convolution = lockstep::ConvAlgorithm::benchmark;
    if (reduction == "fast") engine.reduction = lockstep::ReductionMode::fast;
    engine.seed = seed;
    engine.autocast = autocast();
    return engine;
}

std::optional<lockstep::DType> Options::autocast() const {
    if (amp == "off" || amp == "false") return std::nullopt;
    const bool half = amp == "fp16" || (amp == "true" && chosen_devices().kind() == lockstep::DeviceKind::cuda);
    return half ? lockstep::DType::f16 : lockstep::DType::bf16;
}

std::int64_t Options::global_batch_size(const lockstep::Devices& chosen) const {
    const std::int64_t of_all = std::int64_t{chosen.size()} * world();
    if (batch_size_per_device) return *batch_size_per_device * of_all;
    return batch_size.value_or(default_batch_size > 0 ? default_batch_size : of_all);
}

int run(const Program& program, Options& options, int argc, char** argv,
        const std::function<std::optional<Stop>()>& body) {
    CLI::App app(program.purpose, program.name + (program.command.empty() ? "" : " " + program.command));
    app.option_defaults()->group("Model");
    if (program.add_flags) program.add_flags(app);
    add_flags_of_devices(app, options, program);
    program.trains ? add_flags_of_training(app, options, program) : add_flags_of_output(app, options);
    add_flags_of_ranks(app, options, "Processes (--parallel ddp)");
    if (program.trains)
        app.add_option("--reduction", options.reduction,
                       "reproducible sum (tree), or the backend's own all-reduce (fast)")
            ->type_name("tree|fast")
            ->check(silent(CLI::IsMember({"tree", "fast"})))
            ->capture_default_str();
    std::vector<std::string> words = with_hyphens(argc, argv);
    give_amp_a_value(words);
    if (!program.command.empty()) words.erase(words.begin() + 1);
    std::vector<char*> flags;
    for (std::string& word : words) flags.push_back(word.data());
    return run(app, static_cast<int>(flags.size()), flags.data(), [&] {
        const CLI::Option& config = *app.get_config_ptr();
        if (config.count() > 0) options.config = config.as<std::string>();  // CLI11 2.4.1 reads what is not there
        use_work_dir(options, program);
        // A program's own default gives way to adaptive rates.
        if (const CLI::Option* schedule = app.get_option_no_throw("--schedule");
            schedule && schedule->count() == 0 && options.rates != "none")
            options.schedule.name = "constant";
        require_launcher(options);
        check(options, program.name);
        options.distributed() ? require_a_device_each(options) : warn_where_each_trains_alone();
        if (options.distributed() && nobody_launched(options)) {
            const lockstep::Devices devices = options.chosen_devices();
            // A rank has its share of the cores, and one device of all of them; but numbers in CUDA_VISIBLE_DEVICES are
            // those of all devices.
            if (devices.kind() == lockstep::DeviceKind::cpu && !std::getenv("CUDA_VISIBLE_DEVICES"))
                setenv("LOCKSTEP_CPU_DEVICES", "1", 1);
            return launch_ranks(options, devices.size(), lockstep::own_command(argc, argv));
        }
        if (options.distributed()) join(options);
        find_checkpoint(options);
        options.configuration = resolved_flags(app, options);
        std::optional<Stop> stop;
        try {
            if (options.distributed()) require_same_flags(*options.group, app);
            leave_configuration(options);
            stop = body();
        } catch (const UsageError&) {  // which all of them find
            throw;
        } catch (const std::exception& error) {  // the others need not wait for this rank
            if (options.group)
                options.group->abort(fmt::format("rank {} failed: {}", options.group->rank(), error.what()));
            throw;
        }
        if (stop) throw Stopped(*stop, options.group ? Stopped::As::rank : Stopped::As::program);
    });
}

}  // namespace program
