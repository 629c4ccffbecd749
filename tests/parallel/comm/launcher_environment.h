// Variables that launchers set for their ranks, for tests that replace a launcher.
#pragma once

#include <cstdlib>
#include <map>
#include <string>

namespace lockstep::test {

/// Clears the environment except for these variables.
class Environment {
public:
    explicit Environment(const std::map<std::string, std::string>& variables) {
        for (const char* name : {"RANK",
                                 "WORLD_SIZE",
                                 "LOCAL_RANK",
                                 "LOCAL_WORLD_SIZE",
                                 "MASTER_ADDR",
                                 "MASTER_PORT",
                                 "TORCHELASTIC_RUN_ID",
                                 "OMPI_COMM_WORLD_RANK",
                                 "OMPI_COMM_WORLD_SIZE",
                                 "OMPI_COMM_WORLD_LOCAL_RANK",
                                 "OMPI_COMM_WORLD_LOCAL_SIZE",
                                 "PMIX_NAMESPACE",
                                 "SLURM_PROCID",
                                 "SLURM_LOCALID",
                                 "SLURM_STEP_NUM_TASKS",
                                 "SLURM_STEP_TASKS_PER_NODE",
                                 "SLURM_NODEID",
                                 "SLURM_STEP_NODELIST",
                                 "SLURM_NODELIST",
                                 "SLURM_JOB_ID",
                                 "SLURM_STEP_ID",
                                 "LOCKSTEP_STORE_TOKEN"})
            unsetenv(name);
        for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
    }
};

}  // namespace lockstep::test
