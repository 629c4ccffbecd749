// A thread for MPI calls that wait for other ranks without a deadline, so that callers can stop waiting.
#pragma once

#include <functional>

#include "lockstep/parallel/comm/store/deadline.h"

namespace lockstep {

/// One thread of the process, which starts MPI and, as MPI wants it, ends it.
class MpiThread {
public:
    /// Makes `call` there, and throws what it throws. False at the deadline: then it may still be under way, or never
    /// end, and what it uses must stay.
    static bool run(std::function<void()> call, Deadline deadline);
};

}  // namespace lockstep
