// What a run writes must not lie where it writes or reads something else.
#pragma once

#include <string>

#include "lockstep/samples/apps/program/options.h"

namespace program {

/// Throws UsageError where two of the flags name one file, in whatever spelling or through links. `program`: whose log
/// lies in --log-dir.
void require_files_apart(const Options& options, const std::string& program);

}  // namespace program
