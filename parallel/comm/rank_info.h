// Who a process is in its job: rank and world size, as its launcher has told it.
#pragma once

#include <cstdint>
#include <string>

namespace lockstep {

/// Who has told this process its rank.
enum class Launcher : std::uint8_t {
    none,         ///< nobody: a job of one process
    environment,  ///< RANK and WORLD_SIZE: lockstep-run, or by hand
    torchrun,
    open_mpi,
    slurm
};

/// Where this process stands in its job.
struct RankInfo {
    Launcher launcher = Launcher::none;
    int rank = 0, world_size = 1;
    int local_rank = 0, local_world_size = 1;  ///< among the processes of this host
    /// Of rank 0; empty when nobody said it. 127.0.0.1 where the launcher says that all processes are on this host.
    std::string master_addr;
    int master_port = 0;  ///< likewise; 0 when nobody said it
    /// More than 1 where the port is derived from the job's name and may be taken: rank 0 serves on the first free one
    /// of so many, and the others look on all of them for this job's store.
    int master_ports = 1;
    std::string job = {};  ///< the job's name in that case
};

/// Reads RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT, and where those of the rank are
/// not set what Open MPI's mpirun and Slurm's srun set. Where those name no port, one is made from the job's name.
/// Throws InvalidArgument for numbers that are none or contradict each other, and for half of what is needed.
RankInfo rank_info();

}  // namespace lockstep
