// Results of a run: the figures for --json and the log for --log-dir.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/parallel/event_log.h"
#include "lockstep/runtime/step_log.h"
#include "lockstep/samples/apps/program/options.h"

namespace program {

/// Name of the score that evaluations compute.
struct ScoreName {
    std::string name = "test accuracy";
    bool is_share = true;  ///< whether it is printed in percent
    bool higher_is_better = true;
    /// In files: "test_accuracy".
    std::string key() const;
    std::string str(double value) const;
};

struct Figures {
    std::vector<double> losses;   ///< one per step
    std::optional<double> score;  ///< score of the last evaluation
    ScoreName score_name = {};
    double samples_per_second = 0;  ///< training steps only, without start-up and the first two steps
    double seconds = 0;             ///< run time of the whole program
    std::map<std::string, std::string> algorithms = {};  ///< Engine::algorithms
};

/// The text of a JSON value, with U+FFFD for bytes that are not UTF-8, such as those of a file's name. `indent`: -1 for
/// one line.
std::string json_text(const nlohmann::ordered_json& value, int indent);
/// Writes it to a file, atomically.
void write_json(const std::filesystem::path& path, const nlohmann::ordered_json& value);

/// Writes the figures with devices, peak memory (of all processes) and versions to --json, atomically. Called by every
/// process.
void report(const Options& options, const Figures& figures, const lockstep::Devices& devices);

/// Writes the last steps of all processes to --trace. `steps`: Engine::step_log of this process. Called by every
/// process.
void report_trace(const Options& options, const std::vector<lockstep::LoggedStep>& steps);

/// "data-parallel on cpu:0, cpu:1", "distributed data-parallel, 2 processes (shm)".
std::string describe(const Options& options, const lockstep::Devices& devices);

/// For a run that a signal has stopped: "stopped by SIGINT after 40 steps; saved, resume with the same flags and --load
/// net". `saved`: the checkpoint; empty: not saved.
std::string resume_hint(const std::filesystem::path& saved, int signal, std::int64_t steps);

/// Throws InvalidArgument if a file cannot be written to `path`.
void require_writable(const std::filesystem::path& path);

/// The log of a run in --log-dir, for TensorBoard and as one JSON object per line: first the run, then the values of
/// LogRun. Without a directory nothing is written. A resumed run appends to the lines of its steps, beginning with a
/// line that has the first new step.
class RunLog {
public:
    /// Creates the directory. `steps`: number of completed steps of the run. Throws InvalidArgument if the files cannot
    /// be created. Called by every process.
    RunLog(const Options& options, const std::string& program, const lockstep::Devices& devices, std::uint64_t steps);
    /// For LogRun and further values of a program; writes nothing without a directory.
    lockstep::EventLog& events() { return log_; }

private:
    lockstep::EventLog log_;
};

}  // namespace program
