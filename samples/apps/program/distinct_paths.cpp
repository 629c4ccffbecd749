#include "lockstep/samples/apps/program/distinct_paths.h"

#include <fmt/format.h>

#include <filesystem>
#include <vector>

#include "lockstep/parallel/checkpoint.h"
#include "lockstep/parallel/data/atomic_file.h"

namespace program {

namespace {

struct Named {
    std::string what;  ///< "--json FILE"
    std::filesystem::path path;
};

/// A checkpoint and its state file.
std::vector<Named> checkpoint(const std::string& flag, const std::filesystem::path& path) {
    if (path.empty()) return {};
    const std::filesystem::path state = lockstep::resume_path(path);
    return {{fmt::format("{} {}", flag, path.string()), path},
            {fmt::format("the run state of {} {}", flag, path.string()), state}};
}

void require_other_files(const Named& one, const std::vector<Named>& others) {
    for (const Named& other : others)
        if (lockstep::same_file(one.path, other.path))
            throw UsageError(
                fmt::format("{}: same file as {}; expected a different file for each", one.what, other.what));
}

}  // namespace

void require_distinct_paths(const Options& options, const std::string& program) {
    const std::vector<Named> saved = checkpoint("--save", options.save), loaded = checkpoint("--load", options.load);
    std::vector<Named> reports;
    for (const Named& best : checkpoint("--best", options.best)) {
        require_other_files(best, saved);
        require_other_files(best, loaded);
        reports.push_back(best);
    }
    std::vector<Named> json;
    if (!options.json.empty()) json.push_back({"--json " + options.json.string(), options.json});
    if (!options.trace.empty()) json.push_back({"--trace " + options.trace.string(), options.trace});
    reports.insert(reports.end(), json.begin(), json.end());
    if (!options.log_dir.empty()) {
        const std::filesystem::path log = options.log_dir / (program + ".jsonl");
        reports.push_back({"the log " + log.string(), log});
    }
    if (!options.work_dir.empty()) {
        const std::filesystem::path flags = options.work_dir / "config.toml";
        reports.push_back({"the configuration " + flags.string(), flags});
    }
    if (!options.config.empty()) {
        const Named read{"--config " + options.config.string(), options.config};
        require_other_files(read, saved);
        require_other_files(read, json);
    }
    for (std::size_t i = 0; i < reports.size(); ++i) {
        require_other_files(reports[i], saved);
        require_other_files(reports[i], loaded);
        require_other_files(reports[i], {reports.begin(), reports.begin() + static_cast<std::ptrdiff_t>(i)});
    }
    // --save may equal --load, to resume in place, but weights must not overwrite a state.
    if (saved.empty() || loaded.empty()) return;
    require_other_files(saved[0], {loaded[1]});
    require_other_files(saved[1], {loaded[0]});
}

}  // namespace program
