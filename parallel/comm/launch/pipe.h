// Pipes between a launcher and the processes that it starts.
#pragma once

#include <utility>

#include "lockstep/parallel/comm/store/sockets.h"

namespace lockstep {

enum class PipeEnds : bool { reader_at_once, both_at_once };
/// Reading and writing end; those named return at once instead of waiting. Closed by exec, and never one of the
/// standard streams, even where those are closed. Throws Error.
std::pair<Descriptor, Descriptor> make_pipe(PipeEnds at_once);

/// The same file under a number above those of the standard streams, which children are given. Throws Error.
Descriptor above_standard_streams(const Descriptor& low);

/// Throws Error: the system has refused `what`, for the reason that errno says.
[[noreturn]] void refuse_launch(const char* what);

}  // namespace lockstep
