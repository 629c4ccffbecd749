// For tests of the program: commands to start, and parsing of its output.
#pragma once

#include <fmt/format.h>

#include <string>
#include <vector>

#include "lockstep/tests/fixtures/files.h"
#include "lockstep/tests/fixtures/processes.h"
#include "lockstep/tests/fixtures/waiting.h"

namespace lockstep::test {

using Words = std::vector<std::string>;

/// lockstep-run with `flags`, which starts the worker with its arguments.
inline Words command(const Words& flags, const Words& worker) {
    Words all{LOCKSTEP_RUN};
    all.insert(all.end(), flags.begin(), flags.end());
    all.emplace_back(LAUNCH_WORKER);
    all.insert(all.end(), worker.begin(), worker.end());
    return all;
}

/// The value after " NAME=" in a line that `launch_worker env` printed.
inline std::string value_in(const std::string& line, const std::string& name) {
    const auto at = line.find(" " + name + "=");
    if (at == std::string::npos) return "no " + name;
    const auto begin = at + name.size() + 2;
    return line.substr(begin, line.find(' ', begin) - begin);
}

inline bool has_line(const StartedProcess& process, const std::string& line) {
    const auto lines = process.lines();
    return std::find(lines.begin(), lines.end(), line) != lines.end();
}

/// Process ids that `pid=` and `child=` wrote to `directory`, once there are `count`.
inline std::vector<pid_t> processes_in(const TemporaryDirectory& directory, std::ptrdiff_t count) {
    std::vector<pid_t> all;
    const bool there = comes_true([&] {
        all.clear();
        for (const auto& entry : std::filesystem::directory_iterator(directory.path())) {
            const std::string text = get_bytes(entry.path());
            if (!text.empty()) all.push_back(std::stoi(text));
        }
        return std::ssize(all) >= count;
    });
    if (!there) throw std::runtime_error("the workers did not start");
    return all;
}

inline bool none_runs(const std::vector<pid_t>& processes) {
    return comes_true([&] { return std::none_of(processes.begin(), processes.end(), is_running); });
}

}  // namespace lockstep::test
