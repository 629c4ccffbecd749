// Which function of the library the caller's program has called: what messages name, whatever it is made of.
#pragma once

#include <string>
#include <string_view>

namespace lockstep {

/// While one lives, this thread works for the public function `name` (a literal). The outermost one counts:
/// cross_entropy, not the log_softmax inside.
class PublicCall {
public:
    explicit PublicCall(const char* name) : outer_(current_) {
        if (!outer_) current_ = name;
    }
    ~PublicCall() { current_ = outer_; }
    PublicCall(const PublicCall&) = delete;
    PublicCall& operator=(const PublicCall&) = delete;
    /// Null outside of all.
    static const char* name() { return current_; }

private:
    const char* outer_;
    static inline thread_local const char* current_ = nullptr;
};

class Operation;

/// What the caller's program has called, as far as is known: else the operation.
std::string_view called(const Operation& operation);

/// How messages call `operation` ("nll_forward") that works for `call` ("cross_entropy", or null): "conv2d_forward"
/// says enough, otherwise both, "cross_entropy (nll_forward)".
std::string call_and_operation(const char* call, std::string_view operation);

}  // namespace lockstep
