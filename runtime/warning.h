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

}  // namespace lockstep
