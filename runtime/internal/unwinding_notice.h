// Whether an object ends because something has gone wrong.
#pragma once

#include <exception>

namespace lockstep {

/// For destructors whose end others notice: was an exception thrown while the object lived, and is it on its way?
class UnwindingNotice {
public:
    bool unwinding() const noexcept { return std::uncaught_exceptions() > before_; }

private:
    int before_ = std::uncaught_exceptions();
};

}  // namespace lockstep
