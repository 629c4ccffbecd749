// Runs another program for a test: with its own environment, on some of the cores.
#pragma once

#include <fcntl.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::test {

struct ChildProcess {
    std::vector<std::string> command;
    std::vector<std::pair<std::string, std::string>> environment;
    int cores = 0;       ///< it may use that many of this process's cores; 0: all
    std::string output;  ///< file that takes what it prints
};

/// Runs it to its end and returns its exit status, 128 and more when a signal ended it.
inline int run_child(const ChildProcess& child) {
    std::vector<char*> words;
    for (const std::string& word : child.command) words.push_back(const_cast<char*>(word.c_str()));
    words.push_back(nullptr);
    const pid_t pid = ::fork();
    if (pid < 0) throw std::runtime_error("fork failed");
    if (pid == 0) {
        cpu_set_t all, some;
        if (child.cores > 0 && ::sched_getaffinity(0, sizeof all, &all) == 0) {
            CPU_ZERO(&some);
            for (int core = 0; core < CPU_SETSIZE && CPU_COUNT(&some) < child.cores; ++core)
                if (CPU_ISSET(core, &all)) CPU_SET(core, &some);
            if (::sched_setaffinity(0, sizeof some, &some) != 0) ::_exit(126);
        }
        for (const auto& [name, value] : child.environment) ::setenv(name.c_str(), value.c_str(), 1);
        const int file = ::open(child.output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
        if (file < 0 || ::dup2(file, 1) < 0) ::_exit(126);
        ::execv(words[0], words.data());
        ::_exit(127);
    }
    int status = 0;
    if (::waitpid(pid, &status, 0) != pid) throw std::runtime_error("waitpid failed");
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace lockstep::test
