// Shared by the tests that train on the stand-in and on GPUs.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/ops/sgd.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/environment.h"
#include "lockstep/tests/fixtures/messages.h"
#include "lockstep/tests/fixtures/nets.h"
#include "lockstep/tests/fixtures/waiting.h"
#include "lockstep/tests/gpu/machine.h"

namespace lockstep::test {

/// One virtual device per GPU, set before any code counts them.
inline const bool cpu_devices_set = test::set_cpu_devices(8);

inline Devices some_devices(DeviceKind kind, int count) {
    std::vector<Device> devices;
    for (int i = 0; i < count; ++i) devices.push_back(kind == DeviceKind::cuda ? Device::cuda(i) : Device::cpu(i));
    return {devices};
}
inline Devices gpus(int count) { return some_devices(DeviceKind::cuda, count); }

/// Parameters and f32 buffers, in the order of the members.
template <class Net>
std::vector<std::vector<float>> values_of(Net& net) {
    std::vector<std::vector<float>> values;
    for (const NamedTensor& named : named_tensors(net))
        if (named.member->tensor().dtype() == DType::f32)
            values.push_back(named.member->tensor().detach().template to_vector<float>());
    return values;
}

/// Runs `function` in another process, for at most 60 seconds. Returns its result, or 128 plus the signal.
template <class F>
int in_a_process(F&& function) {
    std::fflush(nullptr);
    const pid_t pid = ::fork();
    REQUIRE(pid >= 0);
    if (pid == 0) {
        ::alarm(static_cast<unsigned>(test::hang.count()));  // ends a process that hangs
        int result = 99;
        try {
            result = function();
        } catch (const std::exception& error) {
            std::fprintf(stderr, "escaped: %s\n", error.what());
        }
        std::exit(result);
    }
    int status = 0;
    REQUIRE(::waitpid(pid, &status, 0) == pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/// 0 if this process has contexts only on the GPUs of these devices; otherwise prints the calls that created others.
inline int only_on(const std::vector<Device>& devices) {
    std::set<int> wanted, found;
    for (const Device device : devices) wanted.insert(device_info(device).physical_index);
    for (const auto& [gpu, call] : contexts()) {
        found.insert(gpu);
        if (!wanted.contains(gpu)) std::fprintf(stderr, "a context on GPU %d by %s\n", gpu, call.c_str());
    }
    return found == wanted ? 0 : 1;
}

/// A model in training, the same in every run.
template <class Net>
struct Trained {
    explicit Trained(Devices devices, EngineOptions options)
        : model((manual_seed(1), Net{}), std::move(devices), with_seed(options)),
          sgd(model, {.lr = 0.01, .momentum = 0.5}) {}

    static EngineOptions with_seed(EngineOptions options) {
        options.seed = 5;
        return options;
    }

    StepLoss step(const Images& images, std::int64_t first, std::int64_t last) {
        return model.step(sgd, images.batch(first, last), images.targets(first, last), nll_loss, how);
    }
    /// `steps` steps of `rows` rows, the last one of 5 rows (fewer than eight shards).
    void run(int steps, std::int64_t rows) {
        const Images images(rows * steps);
        for (int i = 0; i < steps; ++i) step(images, i * rows, i * rows + (i + 1 == steps ? 5 : rows));
        model.synchronize();
    }
    std::vector<std::vector<float>> values() { return values_of(model.module()); }

    DataParallel<Net> model;
    SGD sgd;
    StepOptions how;
};

}  // namespace lockstep::test
