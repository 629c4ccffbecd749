#include "lockstep/samples/apps/program/options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <span>
#include <string_view>
#include <system_error>
#include <tuple>
#include <utility>

#include "lockstep/parallel/checkpoint.h"
#include "lockstep/parallel/comm/launcher.h"
#include "lockstep/parallel/data/atomic_file.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/log.h"
#include "lockstep/samples/apps/program/distinct_paths.h"
#include "lockstep/samples/apps/program/flags.h"
#include "lockstep/samples/apps/program/ranks_agree.h"
#include "lockstep/samples/apps/program/report.h"

namespace program {

namespace {

void join(Options& options) {
    options.group = join_ranks(options, options.devices);
    if (options.is_rank0()) return;
    options.quiet = true;
    options.json.clear();
    options.log_dir.clear();
    options.work_dir.clear();
}

/// Places files without a name in --work-dir.
void use_work_dir(Options& options, const Program& program) {
    if (!program.trains) return;
    const bool given = !options.work_dir.empty();
    if (options.save.empty()) options.save = given ? options.work_dir / name_in_work_dir(program) : program.checkpoint;
    if (options.log_dir.empty()) options.log_dir = options.work_dir;
}

/// A TOML value that every version of CLI11 reads as `text`, which require_storable has accepted. CLI11 writes escapes
/// in some versions only, and does not read those of others.
std::string toml_value(const std::string& text) {
    if (text == "true" || text == "false" || number_of(text)) return text;
    const char quote = text.find('"') == std::string::npos ? '"' : '\'';
    return quote + text + quote;
}

/// "name=value", or nothing for a flag without a value.
std::string toml_line(const CLI::Option& flag) {
    std::vector<std::string> values = flag.reduced_results();
    if (values.empty() && flag.get_expected_min() == 0) values = {"false"};
    if (values.empty() && !flag.get_default_str().empty()) values = {flag.get_default_str()};
    if (!flag.get_configurable() || flag.get_single_name().empty() || values.empty()) return {};
    for (std::string& value : values) value = toml_value(value);
    return flag.get_single_name() + '=' +
           (values.size() == 1 ? values[0] : '[' + CLI::detail::join(values, ", ") + ']') + '\n';
}

/// Flags from which --config makes the same run, without those that only concern this process, and those that a resumed
/// run reads from its checkpoint.
std::string resolved_flags(CLI::App& app, const Options& options) {
    const auto leave_out = [&](const char* flag) {
        if (CLI::Option* option = app.get_option_no_throw(flag)) option->configurable(false);
    };
    for (CLI::Option* option : app.get_options([](const CLI::Option* flag) {
             return flag->count() == 0 && flag->get_expected_min() > 0 && flag->get_default_str().empty();
         }))
        option->configurable(false);  // has no value
    for (const char* flag : {"--rank", "--world-size"}) leave_out(flag);
    if (options.batch_size_per_device) leave_out("--batch-size");  // one excludes the other
    if (!options.timeout_seconds) leave_out("--timeout");          // only for several processes
    if (!options.load.empty() && !options.lr) leave_out("--lr");
    if (!options.load.empty() && !options.momentum) leave_out("--momentum");
    if (!options.load.empty() && !options.weight_decay) leave_out("--weight-decay");
    std::string lines;
    for (const CLI::Option* flag : app.get_options()) lines += toml_line(*flag);
    return lines;
}

/// Whether `name` is the pattern with numbers for {epoch} and {step}. A number may be followed by digits of the
/// pattern.
bool is_checkpoint_of(std::string_view pattern, std::string_view name) {
    if (pattern.empty()) return name.empty();
    const std::size_t mark = pattern.starts_with("{epoch}") ? 7 : pattern.starts_with("{step}") ? 6 : 0;
    if (mark == 0) return name.starts_with(pattern[0]) && is_checkpoint_of(pattern.substr(1), name.substr(1));
    for (; !name.empty() && name[0] >= '0' && name[0] <= '9'; name.remove_prefix(1))
        if (is_checkpoint_of(pattern.substr(mark), name.substr(1))) return true;
    return false;
}

/// The checkpoint with the most steps among those of --save and INTERRUPTED; empty: not found. An unreadable one is a
/// warning. Throws DataError if all are unreadable, because a new run would overwrite them.
std::filesystem::path newest_checkpoint(const std::filesystem::path& save) {
    const std::string pattern = save.filename().string();
    const bool several = pattern.find("{epoch}") != std::string::npos || pattern.find("{step}") != std::string::npos;
    std::filesystem::path directory = save.parent_path(), newest;
    if (directory.empty()) directory = ".";
    std::optional<lockstep::RunState> most;
    std::string unreadable;
    std::error_code failed;
    std::filesystem::directory_iterator entries(directory, failed);
    if (failed && failed != std::errc::no_such_file_or_directory)
        throw lockstep::DataError(
            fmt::format("--resume auto: cannot read the directory {}: {}", directory.string(), failed.message()));
    for (const auto& entry : entries) {
        const std::string name = entry.path().filename().string();
        if (!is_checkpoint_of(pattern, name) && !(several && name == "INTERRUPTED.safetensors")) continue;
        try {
            const auto state = lockstep::read_run(entry.path());
            const auto progress = [](const lockstep::RunState& run) { return std::tuple(run.steps, run.epoch); };
            if (!state) throw lockstep::DataError("it has no state to resume from (" + name + ".resume)");
            if (most && progress(*state) < progress(*most)) continue;
            if (most && progress(*state) == progress(*most) && name == "INTERRUPTED.safetensors") continue;
            most = state;
            newest = save.parent_path() / name;
        } catch (const lockstep::Error& error) {
            lockstep::warn(fmt::format("--resume auto: skipping {}: {}", entry.path().string(), error.what()));
            unreadable = entry.path().string();
        }
    }
    if (newest.empty() && !unreadable.empty())
        throw lockstep::DataError(
            fmt::format("--resume auto: cannot resume from {}, which a new run would overwrite; expected a complete "
                        "checkpoint, or none",
                        unreadable));
    return newest;
}

void find_checkpoint(Options& options) {
    if (!options.resumes_automatically) return;
    if (options.save.empty()) throw UsageError("--resume auto requires --save or --work-dir");
    if (options.save.parent_path().string().find('{') != std::string::npos)
        throw UsageError("--resume auto: " + options.save.string() +
                         " has {epoch} or {step} in its directory; expected them "
                         "only in the file name");
    if (const auto found = newest_checkpoint(options.save); !found.empty()) options.load = found;
}

void write_config(const Options& options) {
    if (options.work_dir.empty()) return;
    lockstep::make_directories(options.work_dir);
    lockstep::AtomicFile file(options.work_dir / "config.toml");
    file.write(std::as_bytes(std::span(options.configuration)));
    file.commit();
}

void check(const CLI::App& app, const Options& options, const std::string& program) {
    if (!options.distributed() &&
        (!options.backend.empty() || options.rank || options.init_method != "env://" || options.timeout_seconds ||
         (!options.launcher.empty() && options.launcher != "none") || options.reduction != "tree"))
        throw UsageError(
            "--launcher, --backend, --rank, --world-size, --init-method, --timeout and --reduction require --parallel "
            "ddp");
    if ((options.save_every.steps > 0 || options.save_every.epochs > 0) && options.save.empty())
        throw UsageError("--save-every requires --save or --work-dir");
    for (const auto* path : {&options.save, &options.json, &options.trace})
        if (!path->empty() && !path->has_filename())
            throw UsageError(path->string() + ": path is a directory; expected a file");
    // Only --save may contain {epoch} and {step}.
    for (const auto& [flag, path] : {std::pair("--work-dir", options.work_dir),
                                     {"--save", options.save.parent_path()},
                                     {"--load", options.load},
                                     {"--best", options.best},
                                     {"--log-dir", options.log_dir},
                                     {"--json", options.json},
                                     {"--trace", options.trace}})
        for (const char* number : {"{epoch}", "{step}"})
            if (path.string().find(number) != std::string::npos)
                throw UsageError(fmt::format("{} {}: {} is not allowed; expected it only in the file name of --save",
                                             flag, path.string(), number));
    if (options.keep > 0 && options.save.string().find("{epoch}") == std::string::npos &&
        options.save.string().find("{step}") == std::string::npos)
        throw UsageError("--keep requires {epoch} or {step} in the name of --save");
    if (!options.best.empty() && options.save.empty()) throw UsageError("--best requires --save or --work-dir");
    require_complete(app, options.schedule);
    if (options.trace.empty() && differs_from_default(app, "--trace-steps"))
        throw UsageError("--trace-steps requires --trace");
    if (options.rates != "none" && options.schedule.name != "constant")
        throw UsageError("--rates " + options.rates + " and --schedule " + options.schedule.name +
                         " both set the learning rate; expected one of them");
    require_distinct_paths(options, program);
}

/// config.toml has the values of all flags and must be UTF-8; file names may contain other bytes. A TOML string in
/// double quotes has escapes, which not all versions of CLI11 read. Nor do they read # in a string.
void require_storable(const CLI::App& app, const Options& options) {
    if (options.work_dir.empty()) return;
    const auto is_special = [](unsigned char c) {
        return (c < 0x20 && c != '\t') || c == 0x7f || c == '\\' || c == '#';
    };
    for (const CLI::Option* option : app.get_options())
        for (const std::string& value : option->results()) {
            if (!is_utf8(value))
                throw UsageError(option->get_name() +
                                 ": value is not UTF-8; --work-dir stores flags in config.toml, expected UTF-8");
            const bool both_quotes = value.find('"') != std::string::npos && value.find('\'') != std::string::npos;
            if (both_quotes || std::any_of(value.begin(), value.end(), is_special))
                throw UsageError(option->get_name() +
                                 ": value cannot be stored in the config.toml of --work-dir; expected no control "
                                 "characters, backslashes or #, and at most one kind of quotes");
        }
}

/// The devices in the list, whether or not this process sees them; empty for "all".
std::vector<lockstep::Device> named_devices(const std::string& text) {
    std::vector<lockstep::Device> devices;
    if (text == "all") return devices;
    for (const std::string& name : CLI::detail::split(text, ',')) devices.push_back(lockstep::Device::parse(name));
    return devices;
}

/// Creates enough virtual CPU devices for the list, unless LOCKSTEP_CPU_DEVICES sets their number.
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

/// Rank i of a host uses device i of the list; without a list, the visible ones in turn. A process with its own cores
/// sees one virtual device with all of them, whatever its number in the list.
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

/// Must be called before the rendezvous, so that all ranks report it.
void require_device_per_rank(const Options& options) {
    const int ranks = options.world_size.value_or(lockstep::rank_info().local_world_size);
    about_devices([&] {
        if (const auto named = named_devices(options.devices); !named.empty()) require_as_many(named.size(), ranks);
    });
}

void warn_separate_training() {
    try {
        const lockstep::RankInfo info = lockstep::rank_info();
        if (info.rank == 0 && info.world_size > 1)
            lockstep::warn(fmt::format("{} processes train separate models; give --parallel ddp to train one model",
                                       info.world_size));
    } catch (const lockstep::InvalidArgument&) {  // incomplete rank information does not imply other processes
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
    if (name == "polynomial") return fmt::format("{} {}", name, power);
    if (name == "cosine") return fmt::format("{} to {}", name, lowest);
    if (name == "cosine-restarts") return fmt::format("{} {} to {}", name, period, lowest);
    if (name == "cyclic")
        return fmt::format("{} {} {}{} from {}{}", name, period, mode,
                           mode == "exp-range" ? fmt::format(" x {}", gamma) : "", lowest,
                           cycle_momentum ? " with momentum" : "");
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
    engine.allow_tf32 = allow_tf32;
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
    add_flags(app, options, program);
    std::vector<std::string> words = words_of(argc, argv);
    if (!program.command.empty()) words.erase(words.begin() + 1);
    return run(app, std::move(words), [&] {
        const CLI::Option& config = *app.get_config_ptr();
        if (config.count() > 0) options.config = config.as<std::string>();  // CLI11 2.4.1 reads a missing value
        use_work_dir(options, program);
        // Adaptive rates override a program's own default.
        if (const CLI::Option* schedule = app.get_option_no_throw("--schedule");
            schedule && schedule->count() == 0 && options.rates != "none")
            options.schedule.name = "constant";
        require_launcher(options);
        check(app, options, program.name);
        require_storable(app, options);
        options.distributed() ? require_device_per_rank(options) : warn_separate_training();
        if (options.distributed() && has_no_launcher(options)) {
            const lockstep::Devices devices = options.chosen_devices();
            // A rank has its share of the cores, and one device with all of them; but numbers in CUDA_VISIBLE_DEVICES
            // are those of all devices.
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
            write_config(options);
            stop = body();
        } catch (const UsageError&) {  // found by all ranks
            throw;
        } catch (const std::exception& error) {  // the others must not wait for this rank
            if (options.group)
                options.group->abort(fmt::format("rank {} failed: {}", options.group->rank(), error.what()));
            throw;
        }
        if (stop) throw Stopped(*stop, options.group ? Stopped::As::rank : Stopped::As::program);
    });
}

}  // namespace program
