#include "lockstep/samples/program/report.h"

#include <fmt/format.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "lockstep/parallel/data/atomic_file.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/memory.h"
#include "lockstep/runtime/versions.h"
#include "lockstep/samples/program/texts_of_ranks.h"

namespace program {

using nlohmann::ordered_json;

namespace {

/// The lists of all processes, in order of ranks.
ordered_json lists_of_all(const Options& options, const ordered_json& own) {
    if (!options.group) return own;
    ordered_json all = ordered_json::array();
    for (const std::string& text : texts_of_ranks(*options.group, own.dump()))
        for (const ordered_json& value : ordered_json::parse(text)) all.push_back(value);
    return all;
}

/// Of all processes; a rank may be alone in seeing a device by that name.
ordered_json names_of(const Options& options, const lockstep::Devices& devices) {
    ordered_json names = ordered_json::array();
    for (const lockstep::Device device : devices)
        names.push_back(options.group ? fmt::format("rank {} {}", options.group->rank(), device.str()) : device.str());
    return lists_of_all(options, names);
}

}  // namespace

void report(const Options& options, const Figures& figures, const lockstep::Devices& devices) {
    ordered_json peaks = ordered_json::array();
    for (const lockstep::Device device : devices) peaks.push_back(lockstep::memory_stats(device).peak);
    peaks = lists_of_all(options, peaks);
    const ordered_json names = names_of(options, devices);
    if (options.json.empty()) return;
    ordered_json text;
    text["losses"] = figures.losses;
    if (figures.test_accuracy) text["test_accuracy"] = *figures.test_accuracy;
    text["samples_per_second"] = figures.samples_per_second;
    text["seconds"] = figures.seconds;
    text["peak_bytes"] = peaks;
    text["devices"] = names;
    text["world_size"] = options.world();
    if (options.group) text["backend"] = std::string(options.group->backend());
    for (const auto& [name, version] : lockstep::library_versions()) text["versions"][name] = version;
    const std::string bytes = text.dump(1) + "\n";
    lockstep::AtomicFile file(options.json);
    file.write(std::as_bytes(std::span(bytes)));
    file.commit();
}

std::string describe(const Options& options, const lockstep::Devices& devices) {
    if (options.group)
        return fmt::format("distributed data-parallel, {} {} ({})", options.world(),
                           options.world() == 1 ? "process" : "processes", options.group->backend());
    return fmt::format("{} on {}", options.parallel == "none" ? "one device" : "data-parallel", devices.str());
}

std::string how_to_go_on(const Options& options, int signal, std::int64_t steps) {
    const char* name = ::sigabbrev_np(signal);
    const std::string stopped =
        fmt::format("stopped by {} after {} {}; ", name ? fmt::format("SIG{}", name) : fmt::format("signal {}", signal),
                    steps, steps == 1 ? "step" : "steps");
    if (options.save.empty()) return stopped + "nothing was saved, as there was no --save FILE";
    return stopped + fmt::format("saved, go on with the same flags and --load {}", options.save.string());
}

void require_writable(const std::filesystem::path& path) {
    if (path.empty()) return;
    const lockstep::AtomicFile probe(path);  // nothing remains of it
}

RunLog::RunLog(const Options& options, const std::string& program, const lockstep::Devices& devices,
               std::uint64_t steps)
    : path_(options.log_dir / (program + ".jsonl")) {
    ordered_json head = {{"program", program}, {"devices", names_of(options, devices)}};
    if (options.log_dir.empty()) return;
    std::error_code failed;
    std::filesystem::create_directories(options.log_dir, failed);
    open(!options.load.empty());
    if (!options.load.empty()) {
        head["continues"] = options.load.string();
        head["step"] = steps;
    }
    for (const auto& [name, version] : lockstep::library_versions()) head["versions"][name] = version;
    put(head);
}

void RunLog::open(bool goes_on) {
    std::error_code failed;
    const auto status = std::filesystem::status(path_, failed);
    if (std::filesystem::is_fifo(status))
        throw lockstep::InvalidArgument(path_.string() +
                                        " is a pipe, and a log is a file; give --log-dir another directory");
    if (goes_on && std::filesystem::is_regular_file(status)) {
        // A run that was killed may have left half a line.
        std::ifstream old(path_, std::ios::binary);
        std::uintmax_t whole = 0, all = 0;
        for (std::string line; std::getline(old, line);) {
            all += line.size() + (old.eof() ? 0 : 1);
            if (!old.eof()) whole = all;
        }
        if (whole < all) std::filesystem::resize_file(path_, whole, failed);
    }
    file_.open(path_, goes_on ? std::ios::app : std::ios::trunc);
    if (!file_)
        throw lockstep::InvalidArgument(path_.string() + " cannot be written; give --log-dir another directory");
}

void RunLog::put(const nlohmann::ordered_json& line) {
    file_ << line.dump() << '\n';
    require_written();
}

void RunLog::require_written() const {
    if (!file_) throw lockstep::DataError(path_.string() + " cannot be written any further; is the disk full?");
}

void RunLog::step(const lockstep::StepReport& step) {
    if (file_.is_open()) put({{"epoch", step.epoch}, {"step", step.step}, {"rows", step.rows}, {"loss", step.loss}});
}

void RunLog::epoch(std::uint64_t epoch, double test_accuracy) {
    if (file_.is_open()) put({{"epoch", epoch}, {"test_accuracy", test_accuracy}});
    flush();
}

void RunLog::flush() {
    file_.flush();
    require_written();
}

}  // namespace program
