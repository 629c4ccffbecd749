// Handling of bad steps, missing memory and lost contexts in DataParallel, on the stand-in and on GPUs.
#include <cuda_runtime_api.h>

#include <limits>
#include <string>
#include <vector>

#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/memory.h"
#include "lockstep/tests/cuda_standin/failures.h"

using namespace lockstep;
using test::contains;
using test::gpus;
using test::Images;
using test::in_a_process;
using test::message_of;
using test::Model;

TEST_CASE("a bad step is refused, names its location and changes nothing, and training continues") {
    const Images images(16);
    for (const ReductionMode reduction : {ReductionMode::root, ReductionMode::slice_wise}) {
        Model bad(gpus(3), {.shards = 8, .reduction = reduction}), good(gpus(3), {.shards = 8, .reduction = reduction});
        for (Model* each : {&bad, &good}) {
            each->step(images, 0, 16);
            each->model.synchronize();
        }
        const auto before = bad.values();

        std::vector<std::int64_t> labels = images.batch_labels(0, 16);
        labels[13] = 10;
        StepLoss loss = bad.model.step(bad.sgd, images.batch(0, 16), Tensor::from(labels, {16}), nll_loss);
        StepLoss later = bad.step(images, 0, 16);  // queued after the bad one
        try {
            bad.model.synchronize();
            FAIL_CHECK("the step was taken");
        } catch (const StepError& error) {
            CHECK(error.step() == 1);
            CHECK(contains(error.what(), "target 10 in row 13"));
            CHECK(contains(error.what(), "shard 6, replica 2 on cuda:2"));
        }
        CHECK_THROWS_AS(loss.item(), StepError);
        CHECK_THROWS_AS(later.item(), StepError);
        CHECK((bad.values() == before));

        Tensor pixels = images.batch(0, 16).clone();
        pixels.data<float>()[5] = std::numeric_limits<float>::quiet_NaN();
        CHECK_THROWS_AS(bad.model.step(bad.sgd, pixels, images.targets(0, 16), nll_loss).item(), StepError);
        CHECK((bad.values() == before));
        CHECK(bad.model.engine().steps_done() == 1);

        for (Model* each : {&bad, &good}) {
            each->step(images, 0, 16);
            each->model.engine().verify_replicas();
        }
        CHECK((bad.values() == good.values()));
    }
    test::check_no_mistakes();
}

TEST_CASE("a step beyond one device's memory limit changes nothing, and the model stays usable") {
    const Device short_of = Device::cuda(1);
    test::check_short_of_memory([&] { set_memory_limit(short_of, memory_stats(short_of).current + 1000); },
                                [&] { set_memory_limit(short_of, 0); });
}

TEST_CASE("a differing replica is detected") {
    Model trained(gpus(2), {});
    const Images images(8);
    trained.step(images, 0, 8);
    trained.model.engine().verify_replicas();
    Stream& stream = Stream::of(Device::cuda(1));
    stream.fill(trained.model.parameter_store()->replicas()[1].parameters[0]->data(), 1, 4);
    stream.synchronize();
    CHECK(contains(message_of<DeviceError>([&] { trained.model.engine().verify_replicas(); }), "cuda:1"));
    {
        const NoGrad guard;
        trained.model->fc2.bias->tensor().fill_(0.5);  // replica 0 is authoritative: the others are refreshed
    }
    trained.model.engine().verify_replicas();
    test::check_no_mistakes();
}

TEST_CASE("a step does not report unread errors of other parts of the program") {
    const Images images(8);
    Model disturbed(gpus(2), {.shards = 4}), twin(gpus(2), {.shards = 4});
    for (int i = 0; i < 4; ++i) {
        CHECK(cudaSetDevice(99) == cudaErrorInvalidDevice);
        disturbed.step(images, 0, 8);
        for (const std::string& each : test::take_mistakes())  // the planted mistake, and its unread error
            CHECK(contains(each, test::on_standin() ? ": cudaSetDevice" : "cudaErrorInvalidDevice"));
        twin.step(images, 0, 8);
    }
    disturbed.model.synchronize();
    twin.model.synchronize();
    CHECK((disturbed.values() == twin.values()));
    test::check_no_mistakes();
}

// A separate process, created before this one has used a device.
TEST_CASE("a kernel that writes to an invalid address loses the context, and nothing hangs", "[.processes]") {
    CHECK(in_a_process([] {
              return test::after_failure(true, ReductionMode::root, [] { test::lose_context(Device::cuda(1)); });
          }) == 0);
}
