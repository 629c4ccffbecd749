// Handling of failed CUDA calls and of GPUs that are short of memory, unequal or missing in DataParallel: on the
// stand-in.
#include <string>
#include <vector>

#include "lockstep/runtime/log.h"
#include "lockstep/runtime/memory.h"
#include "lockstep/runtime/order_checker.h"
#include "lockstep/tests/cuda_standin/failures.h"
#include "lockstep/tests/cuda_standin/standin.h"

using namespace lockstep;
using test::contains;
using test::gpus;
using test::Images;
using test::in_a_process;
using test::message_of;
using test::Model;

TEST_CASE("a step without memory on one device changes nothing, and the model stays usable") {
    test::check_short_of_memory(
        [] {
            release_cached_memory(Device::cuda(1));
            standin::set_memory_limit(1, standin::counters().devices[1].bytes_in_use + 1000);
        },
        [] { standin::set_memory_limit(1, std::size_t{8} << 30); });
}

TEST_CASE("a missing wait is reported before CUDA gets the work") {
    order_check::set_checking(true);
    Model trained(gpus(2), {});
    const Images images(8);
    trained.step(images, 0, 8);
    trained.step(images, 0, 8);
    void* weights = trained.model.parameter_store()->replicas()[1].parameters[0]->data();
    Stream& other = Stream::of(Device::cuda(1), StreamRole::input);
    standin::reset_counters();
    CHECK_THROWS_AS(other.fill(weights, 0, 64), OrderError);  // the steps may still read and write them
    CHECK(standin::counters().devices[1].memsets == 0);
    trained.model.synchronize();
    order_check::set_checking(false);
    trained.model.engine().verify_replicas();
    test::check_no_mistakes();
}

// Below: separate processes, created before this one has used a device.

TEST_CASE("a warning names both of two unequal GPUs", "[.processes]") {
    const auto warning_with = [](std::size_t memory, int sm_count) {
        return in_a_process([=] {
            standin::Config config;
            config.devices.resize(3);
            config.devices[1].memory = memory;
            config.devices[1].sm_count = sm_count;
            standin::reset(config);
            std::vector<std::string> warnings;
            set_log_handler([&](LogLevel, const std::string& text) { warnings.push_back(text); });
            const Model trained(gpus(3), {});
            if (warnings.empty()) return 0;
            return warnings.size() == 1 && contains(warnings[0], "exclude device 1") &&
                           contains(warnings[0], "75% of the memory or cores of device 0")
                       ? 1
                       : 2;
        });
    };
    CHECK(warning_with(std::size_t{8} << 30, 108) == 0);
    CHECK(warning_with(std::size_t{7} << 30, 100) == 0);
    CHECK(warning_with(std::size_t{5} << 30, 108) == 1);
    CHECK(warning_with(std::size_t{8} << 30, 80) == 1);
}

TEST_CASE("without a driver, or with an outdated one, there are no GPUs and the CPU trains", "[.processes]") {
    for (const auto driver : {standin::Driver::absent, standin::Driver::too_old})
        CHECK(in_a_process([=] {
                  standin::Config config;
                  config.driver = driver;
                  standin::reset(config);
                  if (device_count(DeviceKind::cuda) != 0 || cuda_absence_reason().empty()) return 1;
                  if (Devices::visible().kind() != DeviceKind::cpu) return 2;
                  try {
                      gpus(1);
                      return 3;
                  } catch (const InvalidArgument&) {
                  }
                  Model trained(Devices{Device::cpu(0), Device::cpu(1)}, {});
                  trained.run(2, 8);
                  return standin::take_mistakes().empty() ? 0 : 4;
              }) == 0);
}

TEST_CASE("CUDA_VISIBLE_DEVICES selects and orders the GPUs", "[.processes]") {
    CHECK(in_a_process([] {
              setenv("CUDA_VISIBLE_DEVICES", "2,0", 1);
              standin::Config config;
              config.devices.resize(3);
              config.devices[2].sm_count = 7;
              standin::reset(config);
              if (device_count(DeviceKind::cuda) != 2 || device_info(Device::cuda(0)).units != 7) return 1;
              set_log_handler([](LogLevel, const std::string&) {});
              Model trained(Devices::visible(), {});
              trained.run(2, 8);
              return standin::take_mistakes().empty() ? 0 : 2;
          }) == 0);
}

TEST_CASE("a call that fails in a step throws, after a lost context every call throws, and nothing hangs",
          "[.processes]") {
    struct Planted {
        const char* call;
        std::vector<int> nths;
    };
    const std::vector<Planted> all{{"cudaMemcpyAsync", {1, 2, 7}}, {"cudaMemcpyPeerAsync", {1, 2, 7}},
                                   {"cudaEventRecord", {1, 2, 7}}, {"cudaStreamWaitEvent", {1, 2, 7}},
                                   {"cudaMalloc", {1, 2}},         {"cudaEventSynchronize", {1}},
                                   {"cudaSetDevice", {1, 3}}};
    for (const Planted& planted : all)
        for (const int nth : planted.nths)
            for (const bool lost : {true, false}) {
                INFO(planted.call << " number " << nth << (lost ? ", context lost" : ""));
                const auto status = lost ? cudaErrorLaunchFailure : cudaErrorInvalidValue;
                CHECK(in_a_process([&] {
                          return test::after_failure(lost, nth == 2 ? ReductionMode::slice_wise : ReductionMode::root,
                                                     [&] { standin::inject_failure(planted.call, nth, status, lost); });
                      }) == 0);
            }
}

TEST_CASE("an error in a step reaches the caller after all devices are idle", "[.processes]") {
    CHECK(in_a_process([] {
              const Images images(8);
              Model trained(gpus(3), {});
              trained.step(images, 0, 8);
              trained.model.synchronize();
              standin::set_delays(1, 2000);
              standin::inject_failure("cudnnConvolutionBackwardFilter", 3, 8);
              if (message_of<DeviceError>([&] { trained.step(images, 0, 8); }).empty()) return 1;
              for (int i = 0; i < 3; ++i)
                  for (const StreamRole role : {StreamRole::compute, StreamRole::reduce, StreamRole::commit})
                      if (!Stream::of(Device::cuda(i), role).idle()) return 2;
              standin::set_delays(0, 0);
              trained.step(images, 0, 8);
              trained.model.engine().verify_replicas();
              return 0;
          }) == 0);
}

TEST_CASE("a library call that fails in a step names replica, device and operation", "[.processes]") {
    for (const char* call : {"cudnnConvolutionForward", "cudnnConvolutionBackwardFilter", "cublasLtMatmul"})
        CHECK(in_a_process([=] {
                  standin::reset(standin::config_from_environment());
                  const Images images(8);
                  Model trained(gpus(2), {});
                  trained.step(images, 0, 8);
                  trained.model.synchronize();
                  standin::inject_failure(call, 2, 8);
                  const std::string text = message_of<DeviceError>([&] { trained.step(images, 0, 8); });
                  return contains(text, "replica ") && contains(text, "on cuda:") && contains(text, call) ? 0 : 1;
              }) == 0);
}

TEST_CASE("a faulting kernel loses the context", "[.processes]") {
    for (const char* kernel : {"sgd_update", "tree_sum", "agree_status"})
        CHECK(in_a_process([=] {
                  return test::after_failure(true, ReductionMode::root, [&] { standin::inject_fault(kernel, 1); });
              }) == 0);
}
