// The share of the machine's cores that control groups leave to this process (containers, Kubernetes, systemd, Slurm).
#pragma once

#include <filesystem>
#include <optional>

namespace lockstep {

/// Cores' worth of time: the smallest limit of the process's control group and its ancestors, in version 2 (`cpu.max`)
/// and version 1 (`cpu.cfs_quota_us`). 2.5 for 250 ms in every 100 ms; nullopt without a limit. `root` is the directory
/// that contains `proc` and the mount points.
std::optional<double> cpu_quota(const std::filesystem::path& root = "/");
/// The number of threads, from 1 to `cores`, that such a quota keeps busy: rounded up, because threads beyond it are
/// throttled, and a fraction of a core is still used.
int cores_within(std::optional<double> quota, int cores);

}  // namespace lockstep
