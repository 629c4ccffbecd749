// Effects of a failing device on training, on the stand-in and on GPUs.
#pragma once

#include <string>

#include "lockstep/runtime/error.h"
#include "lockstep/runtime/stream.h"
#include "lockstep/tests/cuda_standin/training.h"
#include "lockstep/tests/fixtures/messages.h"

namespace lockstep::test {

using Model = Trained<Normed>;

/// A step changes nothing if `limit` leaves device 1 too little memory. After `lift`, the model trains like one that
/// was never limited.
template <class Limit, class Lift>
void check_short_of_memory(Limit&& limit, Lift&& lift) {
    const Images images(64);
    Model tried(gpus(3), {.shards = 8}), spared(gpus(3), {.shards = 8});
    for (Model* each : {&tried, &spared}) {
        each->step(images, 0, 16);
        each->model.synchronize();
    }
    const auto before = tried.values();
    limit();
    try {
        tried.step(images, 0, 64);  // needs more than the 16 rows before
        FAIL_CHECK("there was memory");
    } catch (const OutOfMemory& error) {
        CHECK(contains(error.what(), "out of memory on cuda:1"));
        CHECK(contains(error.what(), "held:"));
    }
    CHECK((tried.values() == before));
    lift();
    for (Model* each : {&tried, &spared}) {
        each->step(images, 0, 64);
        each->model.engine().verify_replicas();
    }
    CHECK((tried.values() == spared.values()));
    check_no_mistakes();
}

/// Trains two steps, lets `plant` make the third one fail and continues until something throws. 0: the error was
/// thrown, later calls behaved as documented, and all destructors returned.
template <class Plant>
int after_failure(bool lost, ReductionMode reduction, Plant&& plant) {
    const Images images(16);
    {
        Model trained(gpus(3), {.reduction = reduction});
        trained.step(images, 0, 8);
        trained.step(images, 0, 8);
        trained.model.synchronize();
        plant();
        std::string first;
        for (int i = 0; i < 4 && first.empty(); ++i)
            first = message_of<DeviceError>(
                [&] { trained.step(images, 0, i < 2 ? 8 : 16); });  // the same program, then a new one
        if (first.empty()) first = message_of<DeviceError>([&] { trained.model.synchronize(); });
        if (first.empty() && lost) return 1;  // else the call was retried: test_two_phases.cpp
        if (lost) {
            if (!contains(first, "the CUDA context is lost")) return 2;
            if (message_of<DeviceError>([&] { trained.step(images, 0, 8); }).empty()) return 3;
            if (message_of<DeviceError>([&] { trained.model.synchronize(); }).empty()) return 4;
            if (message_of<DeviceError>([&] { (void)trained.values(); }).empty()) return 5;
            if (message_of<DeviceError>([&] { Stream::of(Device::cuda(2)).synchronize(); }).empty()) return 6;
            if (message_of<DeviceError>([&] { (void)Tensor::zeros({4}, DType::f32, Device::cuda(1)); }).empty())
                return 7;
        }
    }  // destructors return and never throw
    return take_mistakes().empty() ? 0 : 8;
}

}  // namespace lockstep::test
