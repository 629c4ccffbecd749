// Launchers of others, where they are installed.
#pragma once

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <optional>
#include <sstream>
#include <string>

namespace lockstep::test {

/// A program's file: what the variable says, or the first along PATH. Prints that it was skipped where there is none.
inline std::optional<std::string> found(const char* variable, const std::string& name) {
    if (const char* file = std::getenv(variable)) return file;
    const char* path = std::getenv("PATH");
    std::istringstream directories(path ? path : "");
    for (std::string directory; std::getline(directories, directory, ':');)
        if (const std::string file = directory + "/" + name; ::access(file.c_str(), X_OK) == 0) return file;
    std::printf("skipped: %s was not found (%s names it)\n", name.c_str(), variable);
    return std::nullopt;
}

}  // namespace lockstep::test
