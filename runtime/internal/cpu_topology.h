// Properties of the processor, and its division among the virtual CPU devices.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace lockstep {

/// Numbers of the cores that this process may run on (its affinity mask), in ascending order; at least one.
std::vector<int> allowed_cores();
/// Those of `cores` that belong to the same NUMA nodes as the cores of `share`.
std::vector<int> cores_around(const std::vector<int>& share, const std::vector<int>& cores);
/// Number of allowed cores that OpenMP may use: limited by OMP_THREAD_LIMIT and by the CPU quota of the control group,
/// which is read once and rounded up. Throws InvalidArgument if OMP_THREAD_LIMIT is not a positive integer.
int usable_cores();
/// Number of visible virtual CPU devices.
int cpu_device_count();
/// Cores of visible virtual device `index`: all have the same number, at least one.
int cores_of_cpu_device(int index);
/// Threads for eager work on device `index` (-1: the host): its cores, as determined by the first call. Throws
/// InvalidArgument for a device that is not visible.
int threads_of_cpu_device(int index);
/// Number of visible virtual device `index` before CUDA_VISIBLE_DEVICES renumbered it.
int physical_cpu_device(int index);
/// "AMD EPYC 9654 96-Core Processor"; "CPU" if the kernel does not report it.
std::string cpu_model_name();
/// Bytes of a core's second-level cache; 1 MiB if the system does not report it.
std::size_t cache_of_a_core();
/// Bytes of the machine's memory, and of the part that a process could allocate now.
std::size_t total_memory();
std::size_t free_memory();

/// Visible virtual devices: the numbers, below `count`, that `cuda_visible_devices` (null: unset) lists, in its order.
/// As in the driver, the list ends at the first number that does not exist. A value that is empty, starts with -1 or is
/// not a list of numbers applies to GPUs only. Throws InvalidArgument if a number is listed twice.
std::vector<int> visible_cpu_devices(int count, const char* cuda_visible_devices, bool cuda_driver);

}  // namespace lockstep
