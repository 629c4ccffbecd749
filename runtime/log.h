// Messages of the library: what it decides, and warnings. One line each, to stderr unless the program has a handler.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "lockstep/runtime/language.h"

namespace lockstep {

/// The subjects of messages. `debug`: programs that are traced, libraries that are loaded, memory; `info`: what a run
/// consists of, algorithms that trials chose; `warning`: probable mistakes. `off` is a limit above all.
enum class LogLevel : std::uint8_t { debug, info, warning, off };

/// Receives messages.
using LogHandler = std::function<void(LogLevel level, const std::string& text)>;
/// Sends messages to `handler` from now on; an empty one restores stderr. Returns the previous handler. Threads of the
/// library call it concurrently, so it must be thread-safe.
LogHandler set_log_handler(LogHandler handler);

/// Messages below this level are dropped. At first it is that of the environment variable LOCKSTEP_LOG (the names of
/// the levels), or `warning`. Throws InvalidArgument for another value of the variable.
LogLevel log_level();
void set_log_level(LogLevel level);
/// Whether messages of `level` are written.
bool logs(LogLevel level);

/// Writes a message unless it is below the level. An exception from the handler is dropped, and the text is written to
/// stderr.
void write_log(LogLevel level, const std::string& text) noexcept;
/// The same with the text that `compose` returns, which is called only if it is written.
template <class Compose>
void log_message(LogLevel level, const Compose& compose) {
    if (logs(level)) write_log(level, compose());
}
/// A warning to the caller of a function: an exception from the handler reaches it.
void warn(const std::string& text);

}  // namespace lockstep
