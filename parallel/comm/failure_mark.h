// When something first went wrong in this process, for the launcher that started it.
#pragma once

#include <exception>

namespace lockstep {

/// Writes the time (nanoseconds of the steady clock) to the file that LOCKSTEP_FAILURE_FILE names. The first call
/// counts, later ones do nothing. Should come before others can notice what went wrong.
void note_failure() noexcept;

/// For destructors whose end others notice: was an exception thrown while the object lived, and is it on its way?
class UnwindingNotice {
public:
    bool unwinding() const noexcept { return std::uncaught_exceptions() > before_; }

private:
    int before_ = std::uncaught_exceptions();
};

}  // namespace lockstep
