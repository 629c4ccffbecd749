// A program that a test starts and watches: its output in files, its end awaited for so long and no longer.
#pragma once

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "lockstep/tests/parallel/file_fixture.h"
#include "lockstep/tests/patience.h"

namespace lockstep::test {

/// Is there such a process, and not only what is left of it until its parent asks?
inline bool runs(pid_t process) {
    std::ifstream file("/proc/" + std::to_string(process) + "/stat");
    std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    const auto name_end = text.rfind(')');
    return name_end != std::string::npos && text.at(name_end + 2) != 'Z' && text.at(name_end + 2) != 'X';
}

/// Variables that launchers set or read; what a test starts sees those only that the test gives.
inline const std::vector<const char*>& launcher_variables() {
    static const std::vector<const char*> names{
        "RANK",        "WORLD_SIZE",    "LOCAL_RANK",           "LOCAL_WORLD_SIZE",    "GROUP_RANK",
        "MASTER_ADDR", "MASTER_PORT",   "TORCHELASTIC_RUN_ID",  "OMP_NUM_THREADS",     "LOCKSTEP_CPU_DEVICES",
        "PMIX_RANK",   "OMP_PROC_BIND", "LOCKSTEP_STORE_TOKEN", "CUDA_VISIBLE_DEVICES"};
    return names;
}

class StartedProcess {
public:
    struct Options {
        std::vector<std::string> environment = {};  ///< "NAME=value"
        int out = -1, err = -1;                     ///< descriptors, in place of files
    };

    StartedProcess(const std::vector<std::string>& command, const Options& options)
        : out_(directory_ / "out"), err_(directory_ / "err") {
        std::vector<char*> words;
        for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
        words.push_back(nullptr);
        process_ = ::fork();
        if (process_ < 0) throw std::runtime_error("fork failed");
        if (process_ > 0) return;
        ::setpgid(0, 0);
        for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1}) ::signal(signal, SIG_DFL);
        for (const char* name : launcher_variables()) ::unsetenv(name);
        for (const std::string& entry : options.environment) ::putenv(const_cast<char*>(entry.c_str()));
        constexpr int flags = O_WRONLY | O_CREAT | O_APPEND;
        const int out = options.out >= 0 ? options.out : ::open(out_.c_str(), flags, 0600);
        const int err = options.err >= 0 ? options.err : ::open(err_.c_str(), flags, 0600);
        if (::dup2(out, 1) < 0 || ::dup2(err, 2) < 0) ::_exit(126);
        ::execvp(words[0], words.data());
        ::_exit(127);
    }
    explicit StartedProcess(const std::vector<std::string>& command) : StartedProcess(command, Options()) {}
    ~StartedProcess() {
        if (status_ != still_running) return;
        ::kill(-process_, SIGKILL);
        ::waitpid(process_, nullptr, 0);
    }
    StartedProcess(const StartedProcess&) = delete;
    StartedProcess& operator=(const StartedProcess&) = delete;

    pid_t process() const { return process_; }
    void send(int signal) const { ::kill(process_, signal); }
    bool ended() {
        int raw = 0;
        if (status_ == still_running && ::waitpid(process_, &raw, WNOHANG) == process_)
            status_ = WIFEXITED(raw) ? WEXITSTATUS(raw) : 128 + WTERMSIG(raw);
        return status_ != still_running;
    }
    /// Its exit status, 128 and more when a signal ended it; throws when it hangs.
    int status() {
        if (!comes_true([&] { return ended(); })) throw std::runtime_error("still runs after minutes");
        return status_;
    }
    std::string out() const { return get_bytes(out_); }
    std::string err() const { return get_bytes(err_); }
    /// Those of `out`, sorted: ranks print in any order.
    std::vector<std::string> lines() const {
        std::vector<std::string> all;
        std::istringstream text(out());
        for (std::string line; std::getline(text, line);) all.push_back(line);
        std::sort(all.begin(), all.end());
        return all;
    }

private:
    static constexpr int still_running = -1;
    TemporaryDirectory directory_;
    std::filesystem::path out_, err_;
    pid_t process_ = -1;
    int status_ = still_running;
};

}  // namespace lockstep::test
