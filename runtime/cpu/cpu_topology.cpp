#include "lockstep/runtime/internal/cpu_topology.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <omp.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <mutex>
#include <numeric>
#include <optional>
#include <set>
#include <string_view>

#include "lockstep/runtime/cpu/cpu_quota.h"
#include "lockstep/runtime/device.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/process.h"

namespace lockstep {

namespace {

/// Whether this machine has a CUDA driver, with or without usable GPUs.
bool cuda_driver_present() {
    if (device_count(DeviceKind::cuda) > 0) return true;
    void* driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (driver) dlclose(driver);
    return driver != nullptr;
}

constexpr int max_devices = 64;

struct VirtualDevices {
    std::mutex mutex;
    int wanted = 0;  // set by the program; 0: not set
    int count = 0;   // 0: not queried yet
};
VirtualDevices& virtual_device_count() {
    static auto* instance = new VirtualDevices;
    return *instance;
}

/// The number is constant once it has been returned: devices do not appear or vanish while a process runs.
int virtual_devices() {
    VirtualDevices& devices = virtual_device_count();
    const std::scoped_lock lock(devices.mutex);
    if (devices.count == 0)
        devices.count =
            devices.wanted > 0
                ? devices.wanted
                : static_cast<int>(environment::integer("LOCKSTEP_CPU_DEVICES", 1, max_devices).value_or(2));
    return devices.count;
}

/// The environment is read once: devices do not appear or vanish while a process runs.
const std::vector<int>& visible() {
    static const auto* devices = [] {
        const char* list = std::getenv("CUDA_VISIBLE_DEVICES");
        return new std::vector(visible_cpu_devices(virtual_devices(), list, list && cuda_driver_present()));
    }();
    return *devices;
}

std::optional<int> number(std::string_view text) {
    const auto first = text.find_first_not_of(' ');
    if (first == std::string_view::npos) return std::nullopt;
    text = text.substr(first, text.find_last_not_of(' ') + 1 - first);
    int value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
    return value;
}

/// Value of a line "name : value" of a file under /proc.
std::string proc_value(const char* file, std::string_view name) {
    std::ifstream in(file);
    for (std::string line; std::getline(in, line);) {
        if (!line.starts_with(name)) continue;
        const auto colon = line.find(':');
        const auto value = line.find_first_not_of(" \t", colon == std::string::npos ? colon : colon + 1);
        return value == std::string::npos ? std::string() : line.substr(value);
    }
    return {};
}

/// NUMA node of `core`; 0 if the system does not report one.
int node_of(int core) {
    std::error_code unknown;
    for (const auto& entry :
         std::filesystem::directory_iterator(fmt::format("/sys/devices/system/cpu/cpu{}", core), unknown)) {
        const std::string name = entry.path().filename().string();
        if (!name.starts_with("node")) continue;
        if (const auto node = number(std::string_view(name).substr(4))) return *node;
    }
    return 0;
}

}  // namespace

void set_cpu_device_count(int count) {
    if (count < 1 || count > max_devices)
        throw InvalidArgument(
            fmt::format("set_cpu_device_count: invalid number of devices ({}); expected 1 to {}", count, max_devices));
    VirtualDevices& devices = virtual_device_count();
    const std::scoped_lock lock(devices.mutex);
    if (devices.count != 0 && devices.count != count)
        throw InvalidArgument(
            fmt::format("set_cpu_device_count: cannot change the number of devices to {} after the first use, which "
                        "found {}; expected a call before any use of CPU devices",
                        count, devices.count));
    devices.wanted = count;
}

std::vector<int> allowed_cores() {
    std::vector<int> cores;
    for (int cpus = CPU_SETSIZE; cpus <= 1 << 20; cpus *= 2) {  // the kernel refuses a mask smaller than its own
        std::vector<cpu_set_t> set(static_cast<std::size_t>(cpus / CPU_SETSIZE));
        const std::size_t bytes = set.size() * sizeof(cpu_set_t);
        const bool known = sched_getaffinity(0, bytes, set.data()) == 0;
        for (int core = 0; known && core < cpus; ++core)
            if (CPU_ISSET_S(static_cast<std::size_t>(core), bytes, set.data())) cores.push_back(core);
        if (known) break;
    }
    if (cores.empty()) {
        cores.resize(static_cast<std::size_t>(std::max(sysconf(_SC_NPROCESSORS_ONLN), 1L)));
        std::iota(cores.begin(), cores.end(), 0);
    }
    return cores;
}

std::vector<int> cores_around(const std::vector<int>& share, const std::vector<int>& cores) {
    std::set<int> nodes;
    for (const int core : share) nodes.insert(node_of(core));
    std::vector<int> around;
    for (const int core : cores)
        if (nodes.contains(node_of(core))) around.push_back(core);
    return around;
}

// With fewer OpenMP threads (OMP_THREAD_LIMIT) than a kernel was created for, its threads would wait forever.
int usable_cores() {
    environment::integer("OMP_THREAD_LIMIT", 1, std::numeric_limits<int>::max());  // OpenMP ignores malformed values
    static const std::optional<double> quota = cpu_quota();
    const int cores = std::min(static_cast<int>(allowed_cores().size()), omp_get_thread_limit());
    return cores_within(quota, cores);
}

int cpu_device_count() { return static_cast<int>(visible().size()); }

int cores_of_cpu_device(int) {
    // The same for all devices: shards are split evenly, so a larger device would only wait for the others.
    return std::max(usable_cores() / virtual_devices(), 1);
}

int threads_of_cpu_device(int index) {
    if (index < 0) {  // does not count the devices, whose number the program may still set
        static const int host = usable_cores();
        return host;
    }
    require_visible(Device::cpu(index));
    static const int device = cores_of_cpu_device(0);
    return device;
}

int physical_cpu_device(int index) { return visible().at(static_cast<std::size_t>(index)); }

std::string cpu_model_name() {
    static const auto* name = new std::string(proc_value("/proc/cpuinfo", "model name"));
    return name->empty() ? "CPU" : *name;
}

std::size_t cache_of_a_core() {
    const long bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
    return bytes > 0 ? static_cast<std::size_t>(bytes) : std::size_t{1} << 20;
}

std::size_t total_memory() {
    return static_cast<std::size_t>(std::max(sysconf(_SC_PHYS_PAGES), 0L)) *
           static_cast<std::size_t>(std::max(sysconf(_SC_PAGESIZE), 0L));
}

std::size_t free_memory() {
    const std::string kilobytes = proc_value("/proc/meminfo", "MemAvailable");
    return static_cast<std::size_t>(std::strtoull(kilobytes.c_str(), nullptr, 10)) * 1024;
}

std::vector<int> visible_cpu_devices(int count, const char* cuda_visible_devices, bool cuda_driver) {
    std::vector<int> all(static_cast<std::size_t>(count));
    std::iota(all.begin(), all.end(), 0);
    if (cuda_driver || !cuda_visible_devices) return all;

    std::vector<int> chosen;
    const std::string_view list(cuda_visible_devices);
    bool ended = false;
    for (std::size_t at = 0; at <= list.size();) {
        const auto comma = std::min(list.find(',', at), list.size());
        const auto device = number(list.substr(at, comma - at));
        if (!device || (at == 0 && *device == -1)) return all;
        at = comma + 1;
        ended = ended || *device < 0 || *device >= count;
        if (ended) continue;
        if (std::find(chosen.begin(), chosen.end(), *device) != chosen.end())
            throw InvalidEnvironment(fmt::format(
                "CUDA_VISIBLE_DEVICES={} lists device {} twice; expected every device once", list, *device));
        chosen.push_back(*device);
    }
    return chosen;
}

}  // namespace lockstep
