// Ranks of a group for a test: processes forked from it, each of which says what went wrong. None outlives the test.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <exception>
#include <functional>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "lockstep/tests/patience.h"

namespace lockstep::testing {

/// The largest groups that do everything. Sanitizers, which make that ten times slower, see one rank at a time.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr int most_ranks = 4;
#else
inline constexpr int most_ranks = 8;
#endif

using test::hang;
using test::no_limit;

/// A T that this process shares with those that it forks.
template <class T>
class Shared {
public:
    Shared() {
        void* memory = ::mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) throw std::runtime_error("no shared memory");
        content_ = new (memory) T{};
    }
    ~Shared() { ::munmap(content_, sizeof(T)); }
    Shared(const Shared&) = delete;
    Shared& operator=(const Shared&) = delete;
    T& operator*() const { return *content_; }
    T* operator->() const { return content_; }

private:
    T* content_;
};

using RankMain = std::function<std::vector<std::string>(int rank)>;

/// The parent must have no threads that hold locks (a TcpStoreServer is none to fork beside): let ranks meet in a
/// FileStore.
class ForkedRanks {
public:
    ForkedRanks(int size, const RankMain& main) : children_(static_cast<std::size_t>(size)) {
        std::fflush(nullptr);
        for (int rank = 0; rank < size; ++rank) start(rank, main);
    }
    ~ForkedRanks() { kill_all(); }
    ForkedRanks(const ForkedRanks&) = delete;
    ForkedRanks& operator=(const ForkedRanks&) = delete;

    pid_t pid(int rank) const { return child(rank).pid; }
    void signal(int rank, int number) const {
        if (child(rank).pid > 0) ::kill(child(rank).pid, number);
    }

    /// Waits until `rank` is stopped by a signal.
    void wait_until_stopped(int rank) const {
        siginfo_t info{};
        if (::waitid(P_PID, static_cast<id_t>(child(rank).pid), &info, WSTOPPED | WEXITED | WNOWAIT) != 0 ||
            info.si_code != CLD_STOPPED)
            throw std::runtime_error("rank " + std::to_string(rank) + " has ended instead of stopping");
    }
    /// Waits until all ranks have ended except those in `staying`, for at most `limit`.
    void let_others_end(const std::vector<int>& staying, std::chrono::milliseconds limit = hang) {
        const auto deadline = std::chrono::steady_clock::now() + limit;
        const auto others_run = [&] {
            for (std::size_t rank = 0; rank < children_.size(); ++rank)
                if (children_[rank].pipe >= 0 &&
                    std::find(staying.begin(), staying.end(), static_cast<int>(rank)) == staying.end())
                    return true;
            return false;
        };
        while (others_run() && read_some(deadline)) {
        }
    }

    /// Waits until all ranks have ended; those that have not at the end of `limit` are killed. What each rank
    /// returned or threw, one line each; a line more where it was ended by a signal or did not exit with 0.
    std::vector<std::vector<std::string>> finish(std::chrono::milliseconds limit = hang) {
        const auto deadline = std::chrono::steady_clock::now() + limit;
        while (read_some(deadline)) {
        }
        bool late = std::chrono::steady_clock::now() >= deadline;
        std::vector<std::vector<std::string>> result;
        for (Child& one : children_) {
            if (late) ::kill(one.pid, SIGKILL);
            int status = 0;
            if (::waitpid(one.pid, &status, 0) != one.pid) one.text += "could not be waited for\n";
            one.pid = -1;
            if (WIFSIGNALED(status))
                one.text += late && WTERMSIG(status) == SIGKILL
                                ? "did not end within " + std::to_string(limit.count()) + " ms\n"
                                : "ended by signal " + std::to_string(WTERMSIG(status)) + "\n";
            else if (WEXITSTATUS(status) != 0)
                one.text += "exited with " + std::to_string(WEXITSTATUS(status)) + "\n";
            result.push_back(lines_of(one.text));
        }
        return result;
    }

private:
    struct Child {
        pid_t pid = -1;
        int pipe = -1;
        std::string text;
    };

    const Child& child(int rank) const { return children_.at(static_cast<std::size_t>(rank)); }

    void start(int rank, const RankMain& main) {
        Child& one = children_[static_cast<std::size_t>(rank)];
        std::array<int, 2> ends{};
        if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw std::runtime_error("pipe2 failed");
        const pid_t parent = ::getpid();
        one.pid = ::fork();
        if (one.pid == 0) {
            // 0: the parent is outside of this process's PID namespace.
            if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || (::getppid() != parent && ::getppid() != 0)) ::_exit(125);
            run(rank, main, ends[1]);
        }
        ::close(ends[1]);
        one.pipe = ends[0];
        if (one.pid < 0) throw std::runtime_error("fork failed");
    }

    [[noreturn]] static void run(int rank, const RankMain& main, int pipe) {
        std::string text;
        try {
            for (const std::string& line : main(rank)) text += line + '\n';
        } catch (const std::exception& error) {
            text += std::string(error.what()) + '\n';
        }
        for (std::size_t done = 0; done < text.size();) {
            const ssize_t written = ::write(pipe, text.data() + done, text.size() - done);
            if (written <= 0) ::_exit(124);
            done += static_cast<std::size_t>(written);
        }
        std::fflush(nullptr);
        ::_exit(0);
    }

    /// False when all pipes are at their end or the deadline has passed.
    bool read_some(std::chrono::steady_clock::time_point deadline) {
        std::vector<pollfd> waiting;
        for (const Child& one : children_)
            if (one.pipe >= 0) waiting.push_back({.fd = one.pipe, .events = POLLIN, .revents = 0});
        const auto left =
            std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count();
        if (waiting.empty() || left <= 0) return false;
        ::poll(waiting.data(), waiting.size(), static_cast<int>(std::min<long long>(left, 1000)));
        for (const pollfd& ready : waiting) {
            if (ready.revents == 0) continue;
            const auto one = std::find_if(children_.begin(), children_.end(),
                                          [&](const Child& candidate) { return candidate.pipe == ready.fd; });
            std::array<char, 4096> bytes{};
            const ssize_t got = ::read(ready.fd, bytes.data(), bytes.size());
            if (got > 0) {
                one->text.append(bytes.data(), static_cast<std::size_t>(got));
            } else {
                ::close(one->pipe);
                one->pipe = -1;
            }
        }
        return true;
    }

    void kill_all() noexcept {
        for (Child& one : children_) {
            if (one.pid > 0) {
                ::kill(one.pid, SIGKILL);
                ::waitpid(one.pid, nullptr, 0);
            }
            if (one.pipe >= 0) ::close(one.pipe);
            one = {};
        }
    }

    static std::vector<std::string> lines_of(const std::string& text) {
        std::vector<std::string> lines;
        for (std::size_t at = 0; at < text.size();) {
            const std::size_t end = std::min(text.find('\n', at), text.size());
            lines.push_back(text.substr(at, end - at));
            at = end + 1;
        }
        return lines;
    }

    std::vector<Child> children_;
};

/// "rank 1: no connection", for the failures of all ranks; empty when there are none.
inline std::string joined(const std::vector<std::vector<std::string>>& failures) {
    std::string text;
    for (std::size_t rank = 0; rank < failures.size(); ++rank)
        for (const std::string& failure : failures[rank])
            text += "rank " + std::to_string(rank) + ": " + failure + '\n';
    return text;
}

}  // namespace lockstep::testing
