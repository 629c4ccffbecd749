#include "lockstep/samples/apps/program/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "lockstep/parallel/data/atomic_file.h"
#include "lockstep/parallel/step_trace.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/memory.h"
#include "lockstep/runtime/versions.h"
#include "lockstep/samples/apps/program/gather_strings.h"

namespace program {

using nlohmann::ordered_json;

namespace {

/// The lists of all processes, in order of ranks.
ordered_json lists_of_all(const Options& options, const ordered_json& own) {
    if (!options.group) return own;
    ordered_json all = ordered_json::array();
    for (const std::string& text : gather_strings(*options.group, own.dump()))
        for (const ordered_json& value : ordered_json::parse(text)) all.push_back(value);
    return all;
}

/// Names of all processes' devices; `devices` are visible to this rank only.
ordered_json names_of(const Options& options, const lockstep::Devices& devices) {
    ordered_json names = ordered_json::array();
    for (const lockstep::Device device : devices)
        names.push_back(options.group ? fmt::format("rank {} {}", options.group->rank(), device.str()) : device.str());
    return lists_of_all(options, names);
}

}  // namespace

std::string ScoreName::key() const {
    std::string text = name;
    std::replace(text.begin(), text.end(), ' ', '_');
    return text;
}

std::string ScoreName::str(double value) const {
    return is_share ? fmt::format("{} {:.2f} %", name, 100 * value) : fmt::format("{} {:.4f}", name, value);
}

std::string json_text(const ordered_json& value, int indent) {
    return value.dump(indent, ' ', false, ordered_json::error_handler_t::replace);
}

void write_json(const std::filesystem::path& path, const ordered_json& value) {
    const std::string text = json_text(value, 1) + "\n";
    lockstep::AtomicFile file(path);
    file.write(std::as_bytes(std::span(text)));
    file.commit();
}

void report(const Options& options, const Figures& figures, const lockstep::Devices& devices) {
    ordered_json peaks = ordered_json::array();
    for (const lockstep::Device device : devices) peaks.push_back(lockstep::memory_stats(device).peak);
    peaks = lists_of_all(options, peaks);
    const ordered_json names = names_of(options, devices);
    if (options.json.empty()) return;
    ordered_json text;
    text["losses"] = figures.losses;
    if (figures.score) text[figures.score_name.key()] = *figures.score;
    text["samples_per_second"] = figures.samples_per_second;
    text["seconds"] = figures.seconds;
    if (!figures.algorithms.empty()) text["algorithms"] = figures.algorithms;
    text["peak_bytes"] = peaks;
    text["devices"] = names;
    text["world_size"] = options.world();
    if (options.group) text["backend"] = std::string(options.group->backend());
    for (const auto& [name, version] : lockstep::library_versions()) text["versions"][name] = version;
    write_json(options.json, text);
}

void report_trace(const Options& options, const std::vector<lockstep::LoggedStep>& steps) {
    std::vector<std::string> processes{lockstep::trace_events(steps, options.group ? options.group->rank() : 0)};
    if (options.group) processes = gather_strings(*options.group, processes.front());
    if (options.is_rank0()) lockstep::write_trace(options.trace, processes);
}

std::string describe(const Options& options, const lockstep::Devices& devices) {
    if (options.group)
        return fmt::format("distributed data-parallel, {} {} ({})", options.world(),
                           options.world() == 1 ? "process" : "processes", options.group->backend());
    return fmt::format("{} on {}", options.parallel == "none" ? "one device" : "data-parallel", devices.str());
}

std::string resume_hint(const std::filesystem::path& saved, int signal, std::int64_t steps) {
    const char* name = ::sigabbrev_np(signal);
    const std::string stopped =
        fmt::format("stopped by {} after {} {}; ", name ? fmt::format("SIG{}", name) : fmt::format("signal {}", signal),
                    steps, steps == 1 ? "step" : "steps");
    if (saved.empty()) return stopped + "nothing was saved (no --save FILE)";
    return stopped + fmt::format("saved, resume with the same flags and --load {}", saved.string());
}

void require_writable(const std::filesystem::path& path) {
    if (path.empty()) return;
    const lockstep::AtomicFile probe(path);  // the probe leaves nothing behind
}

RunLog::RunLog(const Options& options, const std::string& program, const lockstep::Devices& devices,
               std::uint64_t steps) {
    ordered_json head = {{"program", program}, {"devices", names_of(options, devices)}};
    if (options.log_dir.empty()) return;
    lockstep::EventLogOptions how{.name = program};
    if (!options.load.empty()) {
        how.resume_step = static_cast<std::int64_t>(steps);
        head["continues"] = options.load.string();
        head["step"] = steps;
    }
    for (const auto& [name, version] : lockstep::library_versions()) head["versions"][name] = version;
    log_ = lockstep::EventLog(options.log_dir, how);
    log_.json_line(json_text(head, -1));
    log_.text("configuration", "```toml\n" + options.configuration + "```", static_cast<std::int64_t>(steps));
    log_.text("run", "```\n" + json_text(head, 1) + "\n```", static_cast<std::int64_t>(steps));
}

}  // namespace program
