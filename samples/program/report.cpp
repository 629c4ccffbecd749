#include "lockstep/samples/program/report.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "lockstep/parallel/internal/file.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/memory.h"
#include "lockstep/runtime/versions.h"

namespace program {

using nlohmann::ordered_json;

namespace {

ordered_json names_of(const lockstep::Devices& devices) {
    ordered_json names = ordered_json::array();
    for (const lockstep::Device device : devices) names.push_back(device.str());
    return names;
}

/// What each process has to say, in order of ranks, on rank 0.
std::vector<ordered_json> told(const Options& options, const std::string& what, const ordered_json& own) {
    if (!options.group) return {own};
    const auto key = [&](int rank) { return "report/" + what + "/" + std::to_string(rank); };
    options.group->store()->set(key(options.group->rank()), own.dump());
    std::vector<ordered_json> all;
    for (int rank = 0; options.leads() && rank < options.world(); ++rank)
        all.push_back(ordered_json::parse(options.group->store()->get(key(rank))));
    return all;
}

}  // namespace

void report(const Options& options, const Figures& figures, const lockstep::Devices& devices) {
    ordered_json peaks = ordered_json::array();
    for (const lockstep::Device device : devices) peaks.push_back(lockstep::memory_stats(device).peak);
    const ordered_json own = {{"devices", names_of(devices)}, {"peak_bytes", peaks}};
    const std::vector<ordered_json> all = told(options, "figures", own);
    if (options.json.empty()) return;
    ordered_json text;
    text["losses"] = figures.losses;
    if (figures.test_accuracy) text["test_accuracy"] = *figures.test_accuracy;
    text["samples_per_second"] = figures.samples_per_second;
    text["seconds"] = figures.seconds;
    for (const char* key : {"peak_bytes", "devices"}) {
        text[key] = ordered_json::array();
        for (const ordered_json& process : all)
            for (const ordered_json& value : process[key]) text[key].push_back(value);
    }
    text["world_size"] = options.world();
    if (options.group) text["backend"] = std::string(options.group->backend());
    for (const auto& [name, version] : lockstep::library_versions()) text["versions"][name] = version;
    const std::string bytes = text.dump(1) + "\n";
    lockstep::internal::AtomicFile file(options.json);
    file.write(std::as_bytes(std::span(bytes)));
    file.commit();
}

std::string describe(const Options& options, const lockstep::Devices& devices) {
    if (options.group)
        return fmt::format("distributed data-parallel, {} {} ({})", options.world(),
                           options.world() == 1 ? "process" : "processes", options.group->backend());
    return fmt::format("{} on {}", options.parallel == "none" ? "one device" : "data-parallel", devices.str());
}

void require_writable(const std::filesystem::path& path) {
    if (path.empty()) return;
    const lockstep::internal::AtomicFile probe(path);  // nothing remains of it
}

RunLog::RunLog(const std::filesystem::path& directory, const std::string& program, const lockstep::Devices& devices) {
    if (directory.empty()) return;
    std::error_code failed;
    std::filesystem::create_directories(directory, failed);
    const std::filesystem::path path = directory / (program + ".jsonl");
    file_.open(path);
    if (!file_) throw lockstep::InvalidArgument(path.string() + " cannot be written; give --log-dir another directory");
    ordered_json head = {{"program", program}, {"devices", names_of(devices)}};
    for (const auto& [name, version] : lockstep::library_versions()) head["versions"][name] = version;
    file_ << head.dump() << '\n';
}

void RunLog::step(const lockstep::StepReport& step) {
    if (file_.is_open())
        file_ << ordered_json({{"epoch", step.epoch}, {"step", step.step}, {"rows", step.rows}, {"loss", step.loss}})
                     .dump()
              << '\n';
}

void RunLog::epoch(std::uint64_t epoch, double test_accuracy) {
    if (file_.is_open())
        file_ << ordered_json({{"epoch", epoch}, {"test_accuracy", test_accuracy}}).dump() << std::endl;
}

}  // namespace program
