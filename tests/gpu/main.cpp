// Main function of the tests on GPUs. Without a GPU it prints that and succeeds. A process that forks must not have
// used the CUDA driver, so a separate process looks for GPUs.
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

#include "lockstep/runtime/device.h"
#include "lockstep/tests/catch_runner.h"
#include "lockstep/tests/gpu/machine.h"

namespace {

int gpus = 0;

/// Number of devices that the tests need, spread over the available GPUs.
constexpr int wanted_devices = 8;

/// Counts the GPUs; returns the reason if there are no GPUs.
std::string look() {
    try {
        const int count = lockstep::device_count(lockstep::DeviceKind::cuda);
        return std::to_string(count) + " " + lockstep::cuda_absence_reason();
    } catch (const std::exception& error) {
        return std::string("0 ") + error.what();
    }
}

std::string look_in_a_process() {
    std::array<int, 2> ends{};
    if (::pipe(ends.data()) != 0) return "0 pipe failed";
    const pid_t child = ::fork();
    if (child == 0) {
        ::unsetenv("LOCKSTEP_DEVICES_PER_GPU");
        const std::string found = look();
        ::_exit(::write(ends[1], found.data(), found.size()) == static_cast<ssize_t>(found.size()) ? 0 : 1);
    }
    ::close(ends[1]);
    std::array<char, 1000> text{};
    const ssize_t bytes = child > 0 ? ::read(ends[0], text.data(), text.size()) : 0;
    ::close(ends[0]);
    int status = 0;
    if (child > 0) ::waitpid(child, &status, 0);
    if (bytes <= 0) return "0 the process that looked for it ended with status " + std::to_string(status);
    return {text.data(), static_cast<std::size_t>(bytes)};
}

}  // namespace

namespace lockstep::test {
int gpu_count() { return gpus; }
}  // namespace lockstep::test

int main(int argc, char** argv) {
    const std::string found = look_in_a_process();
    gpus = std::atoi(found.c_str());
    if (gpus == 0) {
        std::printf("skipped: no CUDA device (%s)\n", found.substr(found.find(' ') + 1).c_str());
        return 0;
    }
    const int per_gpu = (wanted_devices + gpus - 1) / gpus;
    ::setenv("LOCKSTEP_DEVICES_PER_GPU", std::to_string(per_gpu).c_str(), 0);
    ::setenv("LOCKSTEP_CPU_DEVICES", std::to_string(wanted_devices).c_str(), 0);
    return run_catch(argc, argv);
}
