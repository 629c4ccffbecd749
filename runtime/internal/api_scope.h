// Public function that the caller's program has called, for messages, however many functions it calls itself.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace lockstep {

/// While an instance lives, this thread works for the public function `name` (a literal). The outermost instance
/// counts: cross_entropy, not the log_softmax inside it.
class ApiScope {
public:
    explicit ApiScope(const char* name) : outer_(current_), enclosing_(innermost_) {
        if (!outer_) current_ = name;
        innermost_ = name;
    }
    /// Suspends the enclosing scopes.
    explicit ApiScope(std::nullptr_t) : outer_(current_), enclosing_(innermost_) { current_ = innermost_ = nullptr; }
    ~ApiScope() {
        current_ = outer_;
        innermost_ = enclosing_;
    }
    ApiScope(const ApiScope&) = delete;
    ApiScope& operator=(const ApiScope&) = delete;
    /// Null outside of all scopes.
    static const char* name() { return current_; }
    /// The function that this thread executes for it, such as log_softmax. Null outside of all scopes.
    static const char* innermost() { return innermost_; }

private:
    const char *outer_, *enclosing_;
    static inline thread_local const char* current_ = nullptr;
    static inline thread_local const char* innermost_ = nullptr;
};

class Operation;

/// The public function, if known; otherwise the operation.
std::string_view api_name(const Operation& operation);

/// Name of `operation` ("nll_forward") within `call` ("cross_entropy", or null) in messages: "conv2d_forward" suffices
/// by itself, otherwise both: "cross_entropy (nll_forward)".
std::string call_and_operation(const char* call, std::string_view operation);

}  // namespace lockstep
