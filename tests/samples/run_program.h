// A program as a user runs it, from a shell.
#pragma once

#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <string>

#include "lockstep/tests/fixtures/files.h"
#include "lockstep/tests/fixtures/shell.h"

namespace lockstep::test {

struct ProgramRun {
    int status = -1;
    std::string out, err;
    long lines_of_err() const { return std::count(err.begin(), err.end(), '\n'); }
};

/// Runs `line`, which begins with a program's name, in `directory`, preceded by `before`.
inline ProgramRun run_program(const TemporaryDirectory& directory, const std::string& line,
                              const std::string& before = "") {
    const std::string command = "cd " + shell_word(directory.path()) + " && " + before + " " + shell_word(PROGRAMS) +
                                "/" + line + " >out 2>err";
    const int raw = std::system(command.c_str());
    return {WIFEXITED(raw) ? WEXITSTATUS(raw) : -1, get_bytes(directory / "out"), get_bytes(directory / "err")};
}

}  // namespace lockstep::test
