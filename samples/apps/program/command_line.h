// Command line and exit of every program: status 0 for success, 1 for a failed run, 2 for a usage error; ends by a
// signal if one has stopped it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

namespace CLI {
class App;
class Validator;
}  // namespace CLI

namespace program {

/// A usage error found after parsing.
class UsageError : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

/// Printed text was lost.
class OutputLost : public std::runtime_error {
public:
    OutputLost() : std::runtime_error("cannot write to standard output") {}
};

/// Ranks of this program have failed and printed why: it exits with their status and prints nothing more.
class RanksFailed : public std::runtime_error {
public:
    explicit RanksFailed(int their_status) : std::runtime_error("ranks have failed"), status(their_status) {}
    int status;
};

/// A run that a signal has stopped.
struct Stop {
    int signal = 0;
    std::string text;  ///< for the user; empty if another process has printed it
};

/// Ends the program as the signal would have, so that shells see the signal. A rank exits with
/// 128 + signal instead: to a launcher a signal is a failure.
class Stopped : public std::runtime_error {
public:
    enum class As : bool { program, rank };
    Stopped(const Stop& stop, As who) : std::runtime_error(stop.text), signal(stop.signal), as(who) {}
    int signal;
    As as;
};

/// For `transform`: a whole number from 0 to 2^64 - 1 in decimal digits. (CLI11 wraps -1 and numbers that are too
/// large, and reads 010 as 8.)
CLI::Validator is_natural();

/// For `transform`: a whole number from `low` to `high` in decimal digits.
CLI::Validator is_whole(std::int64_t low, std::int64_t high);

/// The number that the whole text is, in decimal digits with or without an exponent; nullopt for anything else. (CLI11
/// reads 0x10 as 16, 1_0 as 10, and a number after a blank.)
std::optional<double> number_of(const std::string& text);

/// A number from `low` to `high`, or greater than `low`.
CLI::Validator is_between(double low, double high, bool with_low = true);

/// Whether the flag has a value other than its default.
bool differs_from_default(const CLI::App& app, const std::string& flag);

/// Whether `text` can be written to a TOML or JSON file.
bool is_utf8(const std::string& text);

/// Throws OutputLost if standard output is lost. A pipe closed by its reader, such as `head`, does not count.
void require_output();

/// Begins a new line on a terminal, because a process that has ended may have left a bar.
void end_line_on_terminal();

/// Adds --config, a TOML file with flags, parses, runs `body`, and prints exceptions as one line on stderr.
/// Returns the exit status.
int run(CLI::App& app, int argc, char** argv, const std::function<void()>& body);

}  // namespace program
