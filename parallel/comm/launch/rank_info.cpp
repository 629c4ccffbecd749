#include "lockstep/parallel/comm/rank_info.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "lockstep/parallel/comm/store/store_address.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/digest.h"
#include "lockstep/runtime/internal/process.h"

namespace lockstep {

namespace {

constexpr std::int64_t max_ranks = 1 << 20;

std::string text(const char* name) {
    const char* value = std::getenv(name);
    return value ? value : "";
}

/// A variable that is required because `because` is set.
int required(const char* name, const char* because, std::int64_t low) {
    const auto value = environment::integer(name, low, max_ranks);
    if (!value)
        throw InvalidEnvironment(
            fmt::format("rendezvous: {} is set and {} is not; expected both or neither", because, name));
    return static_cast<int>(*value);
}

int optional(const char* name, std::int64_t low, int otherwise) {
    return static_cast<int>(environment::integer(name, low, max_ranks).value_or(otherwise));
}

/// Number of tasks of a node in Slurm's "4(x2),3": two nodes with four tasks and one with three.
int tasks_of_node(const std::string& list, int node) {
    const auto malformed = [&] {
        return InvalidEnvironment(
            fmt::format("rendezvous: SLURM_STEP_TASKS_PER_NODE={} does not contain the tasks of node {}; start with "
                        "srun, or set RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE",
                        list, node));
    };
    for (std::size_t begin = 0; begin < list.size();) {
        const std::size_t end = std::min(list.find(',', begin), list.size());
        int tasks = 0, nodes = 1, used = 0;
        const std::string entry = list.substr(begin, end - begin);
        const int read = std::sscanf(entry.c_str(), "%d%n(x%d)%n", &tasks, &used, &nodes, &used);
        if (read < 1 || tasks < 1 || nodes < 1 || static_cast<std::size_t>(used) != entry.size()) throw malformed();
        if (node < nodes) return tasks;
        node -= nodes;
        begin = end + 1;
    }
    throw malformed();
}

/// Ports that all processes of a job compute by themselves, below the range of ephemeral ports.
void make_ports_from(const std::string& job, RankInfo& info) {
    constexpr int ports = 16;
    info.master_port = 10000 + static_cast<int>(digest_of(job) % (20000 - ports));
    info.master_ports = ports;
    info.job = job;
}

/// First host of Slurm's "gpu[03-05,09],login".
std::string first_host(const std::string& list) {
    const auto bracket = list.find_first_of("[,");
    if (bracket == std::string::npos || list[bracket] == ',') return list.substr(0, bracket);
    const auto end = list.find_first_of("-,]", bracket + 1);
    const auto close = list.find(']', bracket);
    if (end == std::string::npos || close == std::string::npos)
        throw InvalidEnvironment(fmt::format("rendezvous: the list of hosts '{}' is malformed; set MASTER_ADDR", list));
    const auto rest = list.find(',', close);
    return list.substr(0, bracket) + list.substr(bracket + 1, end - bracket - 1) +
           list.substr(close + 1, rest == std::string::npos ? rest : rest - close - 1);
}

RankInfo from_environment() {
    RankInfo info;
    info.launcher = text("TORCHELASTIC_RUN_ID").empty() ? Launcher::environment : Launcher::torchrun;
    info.rank = required("RANK", "WORLD_SIZE", 0);
    info.world_size = required("WORLD_SIZE", "RANK", 1);
    info.local_rank = optional("LOCAL_RANK", 0, info.rank);
    info.local_world_size = optional("LOCAL_WORLD_SIZE", 1, info.world_size);
    return info;
}

/// Variables that every cluster launcher sets, under its own names.
RankInfo from_cluster(Launcher launcher, const char* rank, const char* world_size, const char* local_rank) {
    RankInfo info;
    info.launcher = launcher;
    info.rank = required(rank, world_size, 0);
    info.world_size = required(world_size, rank, 1);
    info.local_rank = required(local_rank, rank, 0);
    return info;
}

RankInfo from_open_mpi() {
    constexpr const char* rank = "OMPI_COMM_WORLD_RANK";
    RankInfo info = from_cluster(Launcher::open_mpi, rank, "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK");
    info.local_world_size = required("OMPI_COMM_WORLD_LOCAL_SIZE", rank, 1);
    make_ports_from(text("PMIX_NAMESPACE"), info);
    return info;
}

RankInfo from_slurm() {
    RankInfo info = from_cluster(Launcher::slurm, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID");
    const std::string per_node = text("SLURM_STEP_TASKS_PER_NODE");
    info.local_world_size =
        per_node.empty() ? info.world_size : tasks_of_node(per_node, optional("SLURM_NODEID", 0, 0));
    make_ports_from(text("SLURM_JOB_ID") + "." + text("SLURM_STEP_ID"), info);
    const std::string hosts =
        text("SLURM_STEP_NODELIST").empty() ? text("SLURM_NODELIST") : text("SLURM_STEP_NODELIST");
    if (info.local_world_size < info.world_size) info.master_addr = first_host(hosts);
    return info;
}

}  // namespace

RankInfo rank_info() {
    RankInfo info;
    if (!text("RANK").empty() || !text("WORLD_SIZE").empty())
        info = from_environment();
    else if (!text("OMPI_COMM_WORLD_RANK").empty())
        info = from_open_mpi();
    else if (!text("SLURM_STEP_NUM_TASKS").empty())
        info = from_slurm();
    if (const auto address = master_addr_of_environment()) info.master_addr = *address;
    // Uses loopback if all ranks are on one machine: launchers often give the host name that other machines see.
    const bool counts_hosts =
        info.launcher == Launcher::open_mpi || info.launcher == Launcher::slurm || !text("LOCAL_WORLD_SIZE").empty();
    if (counts_hosts && info.local_world_size == info.world_size) info.master_addr = "127.0.0.1";
    if (const auto port = environment::integer("MASTER_PORT", 1, 65535)) {
        info.master_port = static_cast<int>(*port);
        info.master_ports = 1;
        info.job.clear();
    }
    if (info.rank >= info.world_size)
        throw InvalidEnvironment(fmt::format("rendezvous: rank {} of {} processes; expected 0 to world size - 1",
                                             info.rank, info.world_size));
    if (info.local_rank >= info.local_world_size)
        throw InvalidEnvironment(
            fmt::format("rendezvous: local rank {} of {} processes on this host; expected 0 to local world size - 1",
                        info.local_rank, info.local_world_size));
    return info;
}

}  // namespace lockstep
