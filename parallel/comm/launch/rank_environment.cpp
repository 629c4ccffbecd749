#include "lockstep/parallel/comm/launch/rank_environment.h"

#include <fmt/format.h>
#include <omp.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <map>
#include <string_view>

#include "lockstep/runtime/device.h"

namespace lockstep {

namespace {

/// False if CUDA_VISIBLE_DEVICES is set, because it may select a virtual device that would not exist with only one.
bool sees_one_cpu_device() {
    return !std::getenv("LOCKSTEP_CPU_DEVICES") && !std::getenv("CUDA_VISIBLE_DEVICES") &&
           device_count(DeviceKind::cuda) == 0;
}

}  // namespace

int global_rank(const LaunchOptions& options, int local_rank) {
    return options.node_rank.value_or(0) * options.processes + local_rank;
}

std::vector<std::string> rank_environment(const LaunchOptions& options, const RankSettings& settings) {
    std::map<std::string, std::string> own{{"RANK", std::to_string(global_rank(options, settings.local_rank))},
                                           {"LOCAL_RANK", std::to_string(settings.local_rank)},
                                           {"WORLD_SIZE", std::to_string(options.nodes * options.processes)},
                                           {"LOCAL_WORLD_SIZE", std::to_string(options.processes)},
                                           {"GROUP_RANK", std::to_string(options.node_rank.value_or(0))},
                                           {"MASTER_ADDR", settings.master_addr},
                                           {"MASTER_PORT", std::to_string(settings.master_port)},
                                           {"LOCKSTEP_FAILURE_FILE", settings.failure_file},
                                           {"TORCHELASTIC_RESTART_COUNT", std::to_string(settings.attempt)},
                                           {"TORCHELASTIC_MAX_RESTARTS", std::to_string(options.max_restarts)}};
    if (!settings.store_token.empty()) own["LOCKSTEP_STORE_TOKEN"] = settings.store_token;
    if (!std::getenv("OMP_NUM_THREADS")) own["OMP_NUM_THREADS"] = std::to_string(settings.cores);
    if (options.bind_cores) {
        const char* limit = std::getenv("OMP_THREAD_LIMIT");
        if (!limit || std::strtoul(limit, nullptr, 10) > settings.cores)
            own["OMP_THREAD_LIMIT"] = std::to_string(settings.cores);
    }
    // The CUDA driver must not be initialized before a fork.
    if (!options.function && sees_one_cpu_device()) own["LOCKSTEP_CPU_DEVICES"] = "1";
    std::vector<std::string> all;
    for (char** entry = environ; entry && *entry; ++entry) {
        const std::string_view text(*entry);
        if (!text.starts_with("TORCHELASTIC_") && !own.contains(std::string(text.substr(0, text.find('=')))))
            all.emplace_back(text);
    }
    for (const auto& [name, value] : own) all.push_back(name + "=" + value);
    return all;
}

void set_up_rank(const LaunchOptions& options, int cores) {
    if (sees_one_cpu_device()) setenv("LOCKSTEP_CPU_DEVICES", "1", 1);
    if (options.bind_cores) omp_set_num_threads(cores);
}

std::vector<int> share_of(const std::vector<int>& cores, int index, int count) {
    const auto run = static_cast<std::ptrdiff_t>(cores.size()) / count;
    if (run == 0) return {cores[static_cast<std::size_t>(index) % cores.size()]};
    return {cores.begin() + index * run, cores.begin() + (index + 1) * run};
}

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
                       behind != end && *behind == ' ' ? FailureCause::other_rank : FailureCause::this_rank};
}

namespace {
constexpr off_t message_begin = 64;  // offset after the mark
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
