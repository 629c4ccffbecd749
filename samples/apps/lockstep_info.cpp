// Prints Lockstep's view of this machine: devices, peer access, versions, instruction set, image formats; and the
// operations that its process group backends support.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lockstep/ops/instruction_set.h"
#include "lockstep/parallel/data/image_file.h"
#include "lockstep/runtime/device.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/versions.h"
#include "lockstep/samples/apps/info/collective_trials.h"
#include "lockstep/samples/apps/program/command_line.h"
#include "lockstep/samples/apps/program/report.h"

namespace ls = lockstep;

namespace {

std::vector<ls::Device> all_devices() {
    std::vector<ls::Device> devices;
    for (int i = 0; i < ls::device_count(ls::DeviceKind::cuda); ++i) devices.push_back(ls::Device::cuda(i));
    for (int i = 0; i < ls::device_count(ls::DeviceKind::cpu); ++i) devices.push_back(ls::Device::cpu(i));
    return devices;
}

std::string limit_of_instruction_set() {
    const char* limit = std::getenv("LOCKSTEP_CPU_ISA");
    return limit ? limit : "";
}

/// Null if unknown.
nlohmann::ordered_json free_memory(const ls::DeviceInfo& info) {
    return info.free_memory ? nlohmann::ordered_json(*info.free_memory) : nlohmann::ordered_json();
}

nlohmann::ordered_json as_json() {
    nlohmann::ordered_json report;
    report["devices"] = nlohmann::ordered_json::array();
    report["peer_access"] = nlohmann::ordered_json::object();
    for (const ls::Device device : all_devices()) {
        const ls::DeviceInfo info = ls::device_info(device);
        const bool gpu = device.kind() == ls::DeviceKind::cuda;
        report["devices"].push_back({{"device", device.str()},
                                     {"name", info.name},
                                     {gpu ? "multiprocessors" : "cores", info.units},
                                     {"total_memory", info.total_memory},
                                     {"free_memory", free_memory(info)},
                                     {"cache_bytes", info.cache_bytes},
                                     {"physical_index", info.physical_index}});
        if (gpu) report["devices"].back()["compute_capability"] = info.compute_capability;
        for (const ls::Device owner : all_devices())
            report["peer_access"][device.str()][owner.str()] = ls::peer_access(device, owner);
    }
    report["cuda_absence_reason"] = ls::cuda_absence_reason();
    report["versions"] = nlohmann::ordered_json::object();
    for (const auto& [name, version] : ls::library_versions()) report["versions"][name] = version;
    report["instruction_set"] = {{"used", ls::instruction_set()},
                                 {"machine", ls::machine_instruction_set()},
                                 {"limit", limit_of_instruction_set()},
                                 {"features", ls::processor_features()}};
    report["image_formats"] = nlohmann::ordered_json::object();
    for (const ls::ImageFormat& format : ls::image_formats()) report["image_formats"][format.name] = format.built_in;
    return report;
}

std::string gib(std::size_t bytes) { return fmt::format("{:.1f} GiB", static_cast<double>(bytes) / (1 << 30)); }

std::string as_text() {
    const auto devices = all_devices();
    std::string text = "devices\n";
    for (const ls::Device device : devices) {
        const ls::DeviceInfo info = ls::device_info(device);
        const bool gpu = device.kind() == ls::DeviceKind::cuda;
        text += fmt::format("  {:<8} {}, {} {}, {} of memory", device.str(), info.name, info.units,
                            gpu ? "multiprocessors" : (info.units == 1 ? "core" : "cores"), gib(info.total_memory));
        if (info.free_memory) text += fmt::format(", {} free", gib(*info.free_memory));
        if (gpu)
            text +=
                fmt::format(", compute capability {}.{}", info.compute_capability / 10, info.compute_capability % 10);
        if (info.physical_index != device.index()) text += fmt::format(" (physical index {})", info.physical_index);
        text += '\n';
    }
    if (const std::string reason = ls::cuda_absence_reason(); !reason.empty())
        text += fmt::format("  no CUDA devices: {}\n", reason);

    text += "peer access (kernels on the row's device read the column's memory)\n          ";
    for (const ls::Device owner : devices) text += fmt::format(" {:<7}", owner.str());
    for (const ls::Device reader : devices) {
        text += fmt::format("\n  {:<8}", reader.str());
        for (const ls::Device owner : devices)
            text += fmt::format(" {:<7}", ls::peer_access(reader, owner) ? "yes" : "no");
    }

    const std::string limit = limit_of_instruction_set();
    text += fmt::format("\ninstruction set\n  used     {} (machine: {}; LOCKSTEP_CPU_ISA {})\n  features",
                        ls::instruction_set(), ls::machine_instruction_set(),
                        limit.empty() ? "sets no limit" : "= " + limit);
    for (const std::string& feature : ls::processor_features()) text += " " + feature;

    text += "\nversions\n";
    for (const auto& [name, version] : ls::library_versions()) text += fmt::format("  {:<12} {}\n", name, version);

    text += "image formats\n";
    for (const ls::ImageFormat& format : ls::image_formats())
        text +=
            fmt::format("  {:<12} {}\n", format.name, format.built_in ? "yes" : "not built in; " + format.build_hint);
    return text;
}

nlohmann::ordered_json collectives_as_json() {
    nlohmann::ordered_json report = nlohmann::ordered_json::object();
    for (const info::BackendTrials& backend : info::try_all_backends()) {
        if (backend.absent.empty())
            for (const info::CollectiveTrial& trial : backend.trials)
                report["collectives"][backend.backend][trial.device][trial.operation] = trial.answer;
        else
            report["collectives"][backend.backend] = backend.absent;
    }
    return report;
}

/// One row per operation, one column per kind of device for each backend.
std::string collectives_as_text() {
    const nlohmann::ordered_json backends = collectives_as_json()["collectives"];
    std::vector<std::string> operations, absent;
    std::string heading = fmt::format("{:<19}", ""), devices = heading;
    for (const auto& [backend, found] : backends.items()) {
        if (found.is_string()) {
            absent.push_back(fmt::format("{}: {}\n", backend, found.get<std::string>()));
            continue;
        }
        heading += fmt::format("{:<{}}", backend, 8 * found.size());
        for (const auto& [device, answers] : found.items()) {
            devices += fmt::format("{:<8}", device);
            operations.clear();
            for (const auto& answer : answers.items()) operations.push_back(answer.key());
        }
    }
    const auto line = [](std::string text) { return text.erase(text.find_last_not_of(' ') + 1) + "\n"; };
    std::string text = "collectives, tried between two processes\n" + line(heading) + line(devices);
    for (const std::string& operation : operations) {
        std::string row = fmt::format("{:<19}", operation);
        for (const auto& found : backends)
            if (!found.is_string())
                for (const auto& answers : found) row += fmt::format("{:<8}", answers[operation].get<std::string>());
        text += line(row);
    }
    for (const std::string& one : absent) text += one;
    return text;
}

}  // namespace

int main(int argc, char** argv) {
    bool json = false, collectives = false;
    std::string backend, file;
    CLI::App app("Print devices, peer access, versions, instruction set and image formats as Lockstep sees them.",
                 "lockstep-info");
    app.add_flag("--json", json, "print one JSON object");
    app.add_flag("--collectives", collectives, "try every operation between processes on every backend instead");
    // Used by --collectives to start this program as a rank.
    app.add_option("--try-collectives", backend)->group("");
    app.add_option("--to", file)->group("");
    return program::run(app, argc, argv, [&] {
        if (!backend.empty()) return info::try_collectives(backend, file);
        try {
            if (collectives)
                std::cout << (json ? program::json_text(collectives_as_json(), 2) + "\n" : collectives_as_text());
            else
                std::cout << (json ? program::json_text(as_json(), 2) + "\n" : as_text());
        } catch (const ls::InvalidArgument& error) {  // a malformed environment variable
            throw program::UsageError(error.what());
        }
    });
}
