#include "lockstep/parallel/comm/launch/rank_environment.h"

#include <omp.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <string_view>

#include "lockstep/runtime/device.h"

namespace lockstep {

namespace {

/// CUDA_VISIBLE_DEVICES may name a device that one alone would not have.
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
    // Who is to be forked must not find the driver asked already.
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

void use_as_rank(const LaunchOptions& options, int cores) {
    if (sees_one_cpu_device()) setenv("LOCKSTEP_CPU_DEVICES", "1", 1);
    if (options.bind_cores) omp_set_num_threads(cores);
}

std::vector<int> share_of(const std::vector<int>& cores, int index, int count) {
    const auto run = static_cast<std::ptrdiff_t>(cores.size()) / count;
    if (run == 0) return {cores[static_cast<std::size_t>(index) % cores.size()]};
    return {cores.begin() + index * run, cores.begin() + (index + 1) * run};
}

}  // namespace lockstep
