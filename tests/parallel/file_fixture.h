// For tests of files: a directory that goes away, files of given bytes, and damage that is the same in every run.
#pragma once

#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>

#include "lockstep/tests/catch.h"

namespace lockstep::test {

/// Matches texts that contain `part`; Catch2 3 renamed its matcher.
inline auto contains(const std::string& part) {
#if CATCH_VERSION_MAJOR >= 3
    return Catch::Matchers::ContainsSubstring(part);
#else
    return Catch::Matchers::Contains(part);
#endif
}

/// A number from the environment: how often a trial is made, where somebody wants more than the suite has time for.
inline int number_from(const char* variable, int usual) {
    const char* text = std::getenv(variable);
    return text ? std::atoi(text) : usual;
}

class TemporaryDirectory {
public:
    TemporaryDirectory() {
        static std::atomic<int> count{0};
        path_ = std::filesystem::temp_directory_path() /
                ("lockstep-test-" + std::to_string(::getpid()) + "-" + std::to_string(count++));
        std::filesystem::create_directories(path_);
    }
    ~TemporaryDirectory() {
        std::error_code ignored;
        std::filesystem::remove_all(path_, ignored);
    }
    TemporaryDirectory(const TemporaryDirectory&) = delete;
    TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

    std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
    const std::filesystem::path& path() const { return path_; }
    std::ptrdiff_t file_count() const { return static_cast<std::ptrdiff_t>(names().size()); }
    std::set<std::string> names() const {
        std::set<std::string> all;
        for (const auto& entry : std::filesystem::directory_iterator(path_)) all.insert(entry.path().filename());
        return all;
    }

private:
    std::filesystem::path path_;
};

inline void put_bytes(const std::filesystem::path& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary | std::ios::trunc).write(bytes.data(), std::ssize(bytes));
}

inline std::string get_bytes(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

/// While it lives this process can write no file longer than `bytes`, as on a full disk. Writing throws, unless the
/// signal that comes then is handled otherwise; its handler is restored.
class FileSizeLimit {
public:
    explicit FileSizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_DFL)) {
        ::getrlimit(RLIMIT_FSIZE, &before_);
        rlimit limit = before_;
        limit.rlim_cur = bytes;
        ::setrlimit(RLIMIT_FSIZE, &limit);
    }
    ~FileSizeLimit() {
        ::setrlimit(RLIMIT_FSIZE, &before_);
        std::signal(SIGXFSZ, handler_);
    }
    FileSizeLimit(const FileSizeLimit&) = delete;
    FileSizeLimit& operator=(const FileSizeLimit&) = delete;

private:
    rlimit before_{};
    void (*handler_)(int);
};

/// Damages files: flips, inserts, deletes, repeats and cuts bytes.
class Vandal {
public:
    explicit Vandal(std::uint32_t seed) : state_(seed * 2654435761u + 1) {}

    std::size_t below(std::size_t count) {
        state_ = state_ * 6364136223846793005u + 1442695040888963407u;
        return static_cast<std::size_t>((state_ >> 33) % count);
    }

    std::string damage(std::string bytes) {
        for (std::size_t left = 1 + below(4); left > 0 && !bytes.empty(); --left) {
            const std::size_t at = below(bytes.size());
            switch (below(6)) {
                case 0: bytes[at] = static_cast<char>(below(256)); break;
                case 1: bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8))); break;
                case 2: bytes.insert(at, 1, "{}[]\",:0123456789-e\\\xff"[below(21)]); break;
                case 3: bytes.erase(at, 1 + below(8)); break;
                case 4: bytes.insert(at, bytes.substr(below(bytes.size()), 1 + below(16))); break;
                default: bytes.resize(at); break;
            }
        }
        return bytes;
    }

private:
    std::uint64_t state_;
};

}  // namespace lockstep::test
