// Rank and world size of a process in its job, as set by its launcher.
#pragma once

#include <cstdint>
#include <string>

#include "lockstep/runtime/language.h"

namespace lockstep {

/// The source of this process's rank.
enum class Launcher : std::uint8_t {
    none,         ///< not launched: a job of one process
    environment,  ///< RANK and WORLD_SIZE, set by lockstep-run or by hand
    torchrun,
    open_mpi,
    slurm
};

/// Position of this process in its job.
struct RankInfo {
    Launcher launcher = Launcher::none;
    int rank = 0, world_size = 1;
    int local_rank = 0, local_world_size = 1;  ///< among the processes of this host
    /// Address of rank 0; empty if unknown. 127.0.0.1 if the launcher reports that all processes are on this host.
    std::string master_addr;
    int master_port = 0;  ///< port of rank 0; 0 if unknown
    /// Number of ports to try, from `master_port`. More than 1 if the port is derived from the job's name and may be in
    /// use. Rank 0 serves on the first free one; the others search all of them for this job's store.
    int master_ports = 1;
    std::string job = {};  ///< the job's name in that case
};

/// Reads RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT. If the rank is not set, reads the
/// variables of Open MPI's mpirun and Slurm's srun. If these do not set a port, it is derived from the job's name.
/// Throws InvalidEnvironment for values that are not numbers, contradict each other or are incomplete.
RankInfo rank_info();

}  // namespace lockstep
