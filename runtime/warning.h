// Warnings: one line each, to stderr unless the program installs a handler.
#pragma once

#include <functional>
#include <string>

namespace lockstep {

using WarningHandler = std::function<void(const std::string& text)>;
/// Sends warnings to `handler` from now on; an empty one restores stderr. Returns the previous handler. Threads of the
/// library call it concurrently, so it must be thread-safe.
WarningHandler set_warning_handler(WarningHandler handler);
void warn(const std::string& text);
/// `warn` for threads of the library, in which no caller can catch an exception. An exception from the handler is
/// dropped, and the text is written to stderr.
void warn_in_thread(const std::string& text) noexcept;

}  // namespace lockstep
