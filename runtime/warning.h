// Warnings: one line each, to stderr unless the program takes them.
#pragma once

#include <functional>
#include <string>

namespace lockstep {

using WarningHandler = std::function<void(const std::string& text)>;
/// Sends warnings to `handler` from now on; an empty one restores stderr. Returns the handler that was there. Threads
/// of the library call it, too: it must be safe beside itself.
WarningHandler set_warning_handler(WarningHandler handler);
void warn(const std::string& text);
/// `warn` in a thread of the library, which nobody can catch an exception from: one that the handler throws is dropped,
/// and the text goes to stderr.
void warn_in_thread(const std::string& text) noexcept;

}  // namespace lockstep
