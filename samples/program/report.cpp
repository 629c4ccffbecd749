#include "lockstep/samples/program/report.h"

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

}  // namespace

void write_json(const std::filesystem::path& path, const Figures& figures, const lockstep::Devices& devices) {
    ordered_json text;
    text["losses"] = figures.losses;
    if (figures.test_accuracy) text["test_accuracy"] = *figures.test_accuracy;
    text["samples_per_second"] = figures.samples_per_second;
    text["seconds"] = figures.seconds;
    text["peak_bytes"] = ordered_json::array();
    for (const lockstep::Device device : devices) text["peak_bytes"].push_back(lockstep::memory_stats(device).peak);
    text["devices"] = names_of(devices);
    text["world_size"] = 1;
    for (const auto& [name, version] : lockstep::library_versions()) text["versions"][name] = version;
    const std::string bytes = text.dump(1) + "\n";
    lockstep::internal::AtomicFile file(path);
    file.write(std::as_bytes(std::span(bytes)));
    file.commit();
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
