#include "lockstep/runtime/error.h"

#include <string>
#include <string_view>

#include "lockstep/runtime/internal/api_scope.h"

namespace lockstep {

namespace {

/// The message of a function that another one has called, with the name of that one.
std::string with_call(const std::string& message) {
    const char *const call = ApiScope::name(), *const inner = ApiScope::innermost();
    if (call == nullptr || inner == nullptr) return message;
    const std::string_view name = inner;
    if (name == call || !message.starts_with(name) || message.compare(name.size(), 2, ": ") != 0) return message;
    return std::string(call).append(" (").append(name).append(")").append(message, name.size());
}

}  // namespace

InvalidArgument::InvalidArgument(const std::string& message) : Error(with_call(message)) {}

}  // namespace lockstep
