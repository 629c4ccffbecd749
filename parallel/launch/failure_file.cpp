#include "lockstep/parallel/launch/failure_file.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <charconv>

namespace lockstep {

FailureFile::FailureFile() : file_(memfd_create("lockstep-failure", MFD_CLOEXEC)) {}

std::string FailureFile::path() const { return file_ ? fmt::format("/proc/{}/fd/{}", getpid(), file_.get()) : ""; }

std::optional<std::chrono::steady_clock::time_point> FailureFile::mark() const {
    std::array<char, 32> text{};
    const ssize_t count = file_ ? pread(file_.get(), text.data(), text.size(), 0) : 0;
    std::int64_t time = 0;
    if (count <= 0 || std::from_chars(text.data(), text.data() + count, time).ec != std::errc()) return {};
    return std::chrono::steady_clock::time_point(std::chrono::nanoseconds(time));
}

}  // namespace lockstep
