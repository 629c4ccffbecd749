// The files that a run writes must differ from each other and from those that it reads.
#pragma once

#include <string>

#include "lockstep/samples/apps/program/options.h"

namespace program {

/// Throws UsageError if two flags name the same file, in any spelling or through links. `program`: name of the log in
/// --log-dir.
void require_distinct_paths(const Options& options, const std::string& program);

}  // namespace program
