// Failures of any single CUDA call while a step is enqueued, on the stand-in: the step is executed in full, or it
// throws and changes nothing.
#include <string>
#include <vector>

#include "lockstep/runtime/error.h"
#include "lockstep/tests/cuda_standin/standin.h"
#include "lockstep/tests/cuda_standin/training.h"

using namespace lockstep;
using test::gpus;
using test::Images;
using test::Trained;

namespace {

constexpr const char* calls_of_a_step[] = {"cudaStreamWaitEvent", "cudaEventRecord", "cudaMemcpyPeerAsync",
                                           "cudaMemcpyAsync", "cudaLaunchKernel"};

constexpr int rows = 5;  // one for each shard: the number of calls does not depend on it

struct Outcome {
    int thrown = 0, taken = 0;
};

/// Makes each call of `function` within `act(tried)` fail, one after the other. `twin` repeats the successful work of
/// `tried`.
template <class Act, class State>
Outcome fail_each(const std::string& function, Trained<test::Normed>& tried, Trained<test::Normed>& twin, Act&& act,
                  State&& state) {
    Outcome outcome;
    act(tried);  // creates the programs
    standin::reset_counters();
    act(tried);
    const auto calls = static_cast<int>(standin::counters().calls[function]);
    act(twin);
    act(twin);
    for (int nth = 1; nth <= calls; ++nth) {
        INFO(function << " number " << nth << " of " << calls);
        const auto before = state(tried);
        standin::inject_failure(function, nth, cudaErrorInvalidValue);
        bool thrown = false;
        try {
            act(tried);
        } catch (const DeviceError&) {
            thrown = true;
        }
        ++(thrown ? outcome.thrown : outcome.taken);
        if (thrown) REQUIRE((state(tried) == before));
        if (!thrown) act(twin);
        REQUIRE((state(tried) == state(twin)));
        tried.model.engine().verify_replicas();
    }
    return outcome;
}

std::vector<std::vector<float>> values(Trained<test::Normed>& of) { return of.values(); }

}  // namespace

TEST_CASE("a step with a failing call is applied completely or not at all", "[two_phases]") {
    const Images images(rows);
    for (const ReductionMode reduction : {ReductionMode::root, ReductionMode::slice_wise})
        for (const char* function : calls_of_a_step) {
            const EngineOptions options{.shards = 5, .reduction = reduction, .bucket_bytes = 20000};
            Trained<test::Normed> tried(gpus(3), options), twin(gpus(3), options);
            const auto step = [&](Trained<test::Normed>& on) {
                on.step(images, 0, rows);
                on.model.synchronize();
            };
            const Outcome outcome = fail_each(function, tried, twin, step, values);
            INFO(function);
            CHECK(outcome.thrown > 0);
            CHECK(outcome.taken > 0);
        }
    test::check_no_mistakes();
}

TEST_CASE("a step with a failing call while steps are logged: nothing is done twice", "[two_phases]") {
    const Images images(rows);
    const EngineOptions options{.shards = 3, .bucket_bytes = 20000};
    Trained<test::Normed> tried(gpus(2), options), twin(gpus(2), options);
    for (Trained<test::Normed>* each : {&tried, &twin}) each->model.engine().log_steps(2);
    const auto step = [&](Trained<test::Normed>& on) {
        on.step(images, 0, rows);
        on.model.synchronize();
    };
    const Outcome outcome = fail_each("cudaEventRecord", tried, twin, step, values);
    CHECK(outcome.thrown > 0);
    CHECK(outcome.taken > 0);
    test::check_no_mistakes();
}

TEST_CASE("a manual step with a failing call: each part is applied completely or not at all", "[two_phases]") {
    const Images images(rows);
    const auto gradients = [](Trained<test::Normed>& of) {
        auto all = of.values();
        for (const NamedTensor& named : named_tensors(of.model.module()))
            if (const Tensor gradient = named.member->tensor().grad(); gradient.defined())
                all.push_back(gradient.to_vector<float>());
        return all;
    };
    const EngineOptions options{.shards = 5, .bucket_bytes = 20000};
    for (const char* function : calls_of_a_step) {
        Trained<test::Normed> tried(gpus(3), options), twin(gpus(3), options);
        Tensor loss;
        const auto backward = [&](Trained<test::Normed>& on) {
            loss.backward();
            on.model.synchronize();
        };
        const auto forward = [&](Trained<test::Normed>& on) {
            loss = nll_loss(on.model(images.batch(0, rows)), images.targets(0, rows).to(Device::cuda(0))).value();
            on.model.synchronize();
        };
        for (Trained<test::Normed>* each : {&tried, &twin})
            for (int i = 0; i < 2; ++i) {  // creates the programs
                forward(*each);
                standin::reset_counters();
                backward(*each);
            }
        const auto calls = static_cast<int>(standin::counters().calls[function]);
        Outcome outcome;
        for (int nth = 1; nth <= calls; ++nth) {  // a forward pass for every backward pass; its own calls succeed
            INFO(function << " number " << nth << " of " << calls);
            forward(tried);
            const auto before = gradients(tried);
            standin::inject_failure(function, nth, cudaErrorInvalidValue);
            bool thrown = false;
            try {
                backward(tried);
            } catch (const DeviceError&) {
                thrown = true;
            }
            ++(thrown ? outcome.thrown : outcome.taken);
            if (thrown) REQUIRE((gradients(tried) == before));
            forward(twin);
            if (!thrown) backward(twin);
            REQUIRE((gradients(tried) == gradients(twin)));
        }
        INFO(function);
        CHECK(outcome.thrown + outcome.taken > 0);
    }
    test::check_no_mistakes();
}
