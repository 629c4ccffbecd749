// Tests on the stand-in: control and queries.
#include "lockstep/tests/gpu/machine.h"

#include <cstdlib>

#include "lockstep/tests/catch.h"
#include "lockstep/tests/cuda_standin/standin.h"
#include "lockstep/tests/gpu/kernels.h"

namespace lockstep::test {
namespace {

/// Eight GPUs unless the environment sets another number, before any code reads it.
const bool environment_set =
    ::setenv("LOCKSTEP_STANDIN_DEVICES", "8", 0) == 0 && ::unsetenv("CUDA_VISIBLE_DEVICES") == 0;

}  // namespace

bool on_standin() { return true; }

int gpu_count() { return environment_set ? static_cast<int>(standin::config_from_environment().devices.size()) : 0; }

void start_with_devices(int count) {
    standin::Config config;
    config.devices.resize(static_cast<std::size_t>(count));
    config.delay_seed = 7;
    config.max_delay_us = 200;
    standin::reset(config);
    ::unsetenv("LOCKSTEP_DEVICES_PER_GPU");
}

std::vector<std::string> take_mistakes() {
    std::vector<std::string> all;
    for (const standin::Mistake& mistake : standin::take_mistakes())
        all.push_back(std::string(standin::name_of(mistake.kind)) + ": " + mistake.message);
    return all;
}

void check_no_mistakes() {
    for (const std::string& mistake : take_mistakes()) FAIL_CHECK(mistake);
    CHECK(standin::calling_threads().size() <= 1);
}

void set_delays(std::uint64_t seed, int longest_us) { standin::set_delays(seed, longest_us); }

std::map<int, std::string> contexts() { return standin::contexts(); }

void write_nowhere(const ExecContext& context) {
    standin::inject_fault(nowhere, 1);
    launch_write_nowhere(static_cast<cudaStream_t>(context.native));
}

}  // namespace lockstep::test
