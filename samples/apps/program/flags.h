// The flags of --help: how Options (options.h) are read from a command line.
#pragma once

#include <CLI/CLI.hpp>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/samples/apps/program/options.h"

namespace program {

/// Adds the program's flags and those of all programs, in the groups of --help. Parsing sets `options`.
void add_flags(CLI::App& app, Options& options, const Program& program);

// Groups of these flags, for programs that have only some of them.

/// --benchmark, --allow-tf32 and --deterministic.
void add_flags_of_algorithms(CLI::App& app, Options& options);
/// --amp.
void add_flag_of_amp(CLI::App& app, Options& options);
/// --weight-decay and --clip, except one that the program has replaced with its own.
void add_flags_of_update(CLI::App& app, Options& options);
/// --lr, and the schedules with their parameters unless the program has its own --schedule. `evaluates`: whether there
/// are scores for the schedule that follows them.
void add_flags_of_schedule(CLI::App& app, Options& options, bool evaluates);
/// --json and --quiet.
void add_flags_of_output(CLI::App& app, Options& options);
/// --reduction.
void add_flag_of_reduction(CLI::App& app, Options& options);

/// Throws UsageError if a parameter of the schedule is missing, or if one is given that the schedule does not use.
void require_complete(const CLI::App& app, const ScheduleFlags& schedule);

/// The command line as users type it: with underscores in flags (existing scripts use both), and --amp without a value.
std::vector<std::string> words_of(int argc, const char* const* argv);
/// As `run` in command_line.h, of these words.
int run(CLI::App& app, std::vector<std::string> words, const std::function<void()>& body);

/// File name of the program's checkpoint in --work-dir.
std::filesystem::path name_in_work_dir(const Program& program);

}  // namespace program
