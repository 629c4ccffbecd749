#include "lockstep/parallel/comm/launch/failure_file.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <charconv>

namespace lockstep {

FailureFile::FailureFile() : file_(memfd_create("lockstep-failure", MFD_CLOEXEC)) {}

std::string FailureFile::path() const { return file_ ? fmt::format("/proc/{}/fd/{}", getpid(), file_.get()) : ""; }

std::optional<FailureMark> FailureFile::mark() const {
    std::array<char, 32> text{};
    const ssize_t count = file_ ? pread(file_.get(), text.data(), text.size(), 0) : 0;
    std::int64_t time = 0;
    if (count <= 0) return {};
    const char* const end = text.data() + count;
    const auto [behind, error] = std::from_chars(text.data(), end, time);
    if (error != std::errc()) return {};
    return FailureMark{std::chrono::steady_clock::time_point(std::chrono::nanoseconds(time)),
                       behind != end && *behind == ' ' ? FailureCause::others : FailureCause::here};
}

}  // namespace lockstep
