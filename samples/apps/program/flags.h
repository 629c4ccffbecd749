// The flags of --help: how Options (options.h) are read from a command line.
#pragma once

#include <CLI/CLI.hpp>
#include <filesystem>

#include "lockstep/samples/apps/program/options.h"

namespace program {

/// Adds the program's flags and those of all programs, in the groups of --help. Parsing sets `options`.
void add_flags(CLI::App& app, Options& options, const Program& program);

/// File name of the program's checkpoint in --work-dir.
std::filesystem::path name_in_work_dir(const Program& program);

}  // namespace program
