// GPUs of several kinds in one process, and the device on which host memory is pinned: on the stand-in.
#include <thread>

#include "lockstep/runtime/error.h"
#include "lockstep/runtime/log.h"
#include "lockstep/runtime/memory.h"
#include "lockstep/tests/cuda_standin/standin.h"
#include "lockstep/tests/cuda_standin/training.h"

using namespace lockstep;
using test::gpus;
using test::Images;
using test::in_a_process;
using test::only_on;
using test::Trained;

// Separate processes, because contexts are permanent.
TEST_CASE("host memory is pinned once a GPU is in use, in that GPU's context", "[.processes]") {
    CHECK(in_a_process([] {
              const auto pinned = [] { return standin::counters().live_pinned; };
              auto before = Buffer::allocate_pinned(1000);
              if (pinned() != 0 || only_on({}) != 0) return 1;
              const Tensor x = Tensor::zeros({4}, DType::f32, Device::cuda(3));
              auto after = Buffer::allocate_pinned(1000);
              if (pinned() != 1) return 2;
              std::thread([&] { after = Buffer::allocate_pinned(2000); }).join();  // a thread without a device
              if (pinned() != 1) return 3;
              before.reset();
              std::thread([&] { after.reset(); }).join();
              if (pinned() != 0) return 4;
              return only_on({Device::cuda(3)});
          }) == 0);
}

TEST_CASE("each card model uses the algorithms chosen for it", "[.processes]") {
    CHECK(in_a_process([] {
              standin::Config config;
              config.devices.resize(4);
              config.devices[1].sm_count = 90;
              config.devices[2].compute_capability = 90;
              standin::reset(config);
              set_log_handler([](LogLevel, const std::string&) {});
              Trained<test::Normed> one(gpus(1), {.shards = 8}), all(gpus(4), {.shards = 8});
              one.run(3, 24);
              all.run(3, 24);
              const Tensor x = Tensor::full({4, 8}, 2, DType::f32, Device::cuda(2));  // also for eager work
              const Tensor y = Tensor::full({4, 8}, 2, DType::f32, Device::cuda(0));
              if (matmul(y, y.transpose(0, 1)).to_vector<float>() != matmul(x, x.transpose(0, 1)).to_vector<float>())
                  return 2;
              for (const auto& each : standin::take_mistakes()) {
                  std::fprintf(stderr, "%s\n", each.message.c_str());
                  return 3;
              }
              all.model.engine().verify_replicas();
              return one.values() == all.values() ? 0 : 1;
          }) == 0);
}

TEST_CASE("cards that need different layouts are rejected with an error that names both", "[.processes]") {
    CHECK(in_a_process([] {
              standin::Config config;
              config.devices.resize(2);
              config.devices[1].compute_capability = 90;
              standin::reset(config);
              set_log_handler([](LogLevel, const std::string&) {});
              // Four queries for the first GPU's convolution; after them, the second GPU has no channels-last
              // algorithm.
              for (const int question : {5, 6})
                  standin::inject_failure("cudnnGetConvolutionForwardWorkspaceSize", question,
                                          3000);  // CUDNN_STATUS_NOT_SUPPORTED
              Trained<test::Normed> trained(gpus(2), {.shards = 2});
              const Images images(8);
              try {
                  trained.step(images, 0, 8);
              } catch (const DeviceError& error) {
                  const std::string text = error.what();
                  for (const char* part : {"conv2d_forward", "cuda:0", "cuda:1", "expected devices of one kind"})
                      if (text.find(part) == std::string::npos) return 2;
                  return standin::take_mistakes().empty() ? 0 : 3;
              }
              return 1;
          }) == 0);
}
