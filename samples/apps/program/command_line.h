// How every program reads its command line and ends: status 0 success, 1 a failed run, 2 wrong usage; by a signal where
// one has stopped it.
#pragma once

#include <functional>
#include <stdexcept>
#include <string>
#include <utility>

namespace CLI {
class App;
class Validator;
}  // namespace CLI

namespace program {

/// Wrong usage found after parsing.
class UsageError : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

/// What was printed is not where it should be.
class OutputLost : public std::runtime_error {
public:
    OutputLost() : std::runtime_error("cannot write to standard output") {}
};

/// Ranks of this program have failed and said why: it ends with their status and says nothing more.
class RanksFailed : public std::runtime_error {
public:
    explicit RanksFailed(int their_status) : std::runtime_error("ranks have failed"), status(their_status) {}
    int status;
};

/// How a run ended before its time.
struct Stop {
    int signal = 0;
    std::string text;  ///< for the user; empty where another process has told
};

/// Ends the program as the signal would have: whoever waits for it sees that, as shells want to. A rank exits with
/// 128 + signal instead: to a launcher a signal is a failure.
class Stopped : public std::runtime_error {
public:
    enum class As : bool { program, rank };
    Stopped(const Stop& stop, As who) : std::runtime_error(stop.text), signal(stop.signal), as(who) {}
    int signal;
    As as;
};

/// For `transform`: a whole number from 0 to 2^64 - 1 in decimal digits. (CLI11 takes -1 and what is too large as other
/// ones, and 010 as 8.)
CLI::Validator is_natural();

/// A number from `low`, or above it, to `high`.
CLI::Validator is_between(double low, double high, bool with_low = true);

/// What was ended may have left a bar on the terminal: the next line begins a new one there.
void end_line_on_terminal();

/// Adds --config, a TOML file with flags, parses, runs `body`, and turns what is thrown into one line on stderr.
/// Returns the exit status.
int run(CLI::App& app, int argc, char** argv, const std::function<void()>& body);

}  // namespace program
