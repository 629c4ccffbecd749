// Training steps as a trace, which Perfetto (https://ui.perfetto.dev) and chrome://tracing show as a timeline.
//
//     model.engine().log_steps(10);                                       // the last ten steps
//     ...                                                                 // training
//     ls::write_trace("trace.json", {ls::trace_events(model.engine().step_log())});
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/runtime/step_log.h"

namespace lockstep {

/// Events of one process in Chrome's trace format: JSON objects, with commas between them. Every stream is a track with
/// the operations and copies that it executed, in categories by SpanKind. A track "steps" has the steps, from their
/// first operation to their last one. Collectives have the rank that arrived last, and how long this rank waited for
/// it. `rank`: number of the process, which is also its name: "rank 0".
std::string trace_events(const std::vector<LoggedStep>& steps, int rank = 0);

/// Writes the events of processes as one file, atomically. Times of processes on one host are comparable (StepSpan).
/// Throws InvalidArgument if the directory is missing or not writable, and DataError if the disk is full or fails.
void write_trace(const std::filesystem::path& path, const std::vector<std::string>& processes);

}  // namespace lockstep
