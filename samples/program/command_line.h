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

/// A whole number from 0 up (CLI11 takes -1 as an unsigned one).
CLI::Validator is_natural();

/// Parses, runs `body`, and turns what is thrown into one line on stderr. Returns the exit status.
int run(CLI::App& app, int argc, char** argv, const std::function<void()>& body);

}  // namespace program
