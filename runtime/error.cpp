#include "lockstep/runtime/error.h"

#include <algorithm>
#include <string_view>

#include "lockstep/runtime/internal/api_scope.h"

namespace lockstep {

namespace {

/// The function with which a message begins; empty if it does not begin with the name of one.
std::string_view function_of(std::string_view message) {
    const std::string_view name = message.substr(0, message.find(": "));
    const bool is_name = name.size() < message.size() && std::all_of(name.begin(), name.end(), [](char c) {
                             return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
                         });
    return is_name ? name : std::string_view();
}

std::string with_call(const std::string& message) {
    const std::string_view call = ApiScope::name() != nullptr ? ApiScope::name() : "", name = function_of(message);
    if (call.empty() || name.empty() || name == call) return message;
    return std::string(call).append(" (").append(name).append(")").append(message, name.size());
}

}  // namespace

InvalidArgument::InvalidArgument(const std::string& message) : Error(with_call(message)) {}

}  // namespace lockstep
