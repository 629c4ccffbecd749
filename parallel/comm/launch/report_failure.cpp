#include "lockstep/parallel/comm/report_failure.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <string_view>

#include "lockstep/parallel/comm/store/sockets.h"

namespace lockstep {

void report_failure(FailureCause cause) noexcept {
    static std::atomic_flag noted = ATOMIC_FLAG_INIT;
    if (noted.test_and_set()) return;
    const std::chrono::nanoseconds now = std::chrono::steady_clock::now().time_since_epoch();
    const char* file = std::getenv("LOCKSTEP_FAILURE_FILE");
    if (!file || !*file) return;
    // A process that outlives the launcher must not write to another file that has this descriptor number.
    std::array<char, 64> target{};
    if (readlink(file, target.data(), target.size() - 1) < 0 ||
        !std::string_view(target.data()).starts_with("/memfd:lockstep-failure"))
        return;
    std::array<char, 32> text{};
    char* end = std::to_chars(text.data(), text.data() + text.size() - 2, now.count()).ptr;
    if (cause == FailureCause::other_rank) *end++ = ' ';
    *end = '\n';
    const Descriptor to(open(file, O_WRONLY | O_APPEND | O_CLOEXEC));
    [[maybe_unused]] const ssize_t written =
        to ? write(to.get(), text.data(), static_cast<std::size_t>(end + 1 - text.data())) : 0;
}

}  // namespace lockstep
