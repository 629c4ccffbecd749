#include "lockstep/parallel/comm/launch/failure_file.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>

namespace lockstep {

constexpr std::size_t longest_message = 4096;

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

namespace {
constexpr off_t message_begin = 64;  // behind the mark
}

void FailureFile::write_message(const std::string& text) const noexcept {
    [[maybe_unused]] const ssize_t written =
        file_ ? pwrite(file_.get(), text.data(), std::min(text.size(), longest_message), message_begin) : 0;
}

std::string FailureFile::message() const {
    std::string text(longest_message, '\0');
    const ssize_t count = file_ ? pread(file_.get(), text.data(), text.size(), message_begin) : 0;
    text.resize(static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
    return text;
}

}  // namespace lockstep
