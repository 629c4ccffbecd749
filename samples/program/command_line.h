// How every program reads its command line and ends: status 0 success, 1 a failed run, 2 wrong usage.
#pragma once

#include <functional>
#include <stdexcept>

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
    OutputLost() : std::runtime_error("standard output cannot be written") {}
};

/// Ranks of this program have failed and said why: it ends with their status and says nothing more.
class RanksFailed : public std::runtime_error {
public:
    explicit RanksFailed(int their_status) : std::runtime_error("ranks have failed"), status(their_status) {}
    int status;
};

/// A whole number from 0 up (CLI11 takes -1 as an unsigned one).
CLI::Validator is_natural();

/// What was ended may have left a bar on the terminal: the next line begins a new one there.
void end_line_on_terminal();

/// Parses, runs `body`, and turns what is thrown into one line on stderr. Returns the exit status.
int run(CLI::App& app, int argc, char** argv, const std::function<void()>& body);

}  // namespace program
