// Devices work in parallel, and the host waits only for values that it reads.
#include <array>
#include <atomic>
#include <list>
#include <map>
#include <string>

#include "lockstep/ops/adagrad.h"
#include "lockstep/ops/clip_grad.h"
#include "lockstep/runtime/step_log.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/eight_devices.h"
#include "lockstep/tests/fixtures/training.h"
#include "lockstep/tests/fixtures/waiting.h"

namespace ls = lockstep;
using namespace lockstep::test;

TEST_CASE("operations of two devices each end only after the other has begun") {
    for (const bool in_backward : {false, true})
        for (const int waits : {0, 1}) {
            HookedTraining s;
            (void)s.step().item();  // traced and scheduled
            Gate begun;
            const auto meet = [&begun, waits](int shard) {
                if (shard == waits)
                    begun.pass();
                else
                    begun.open();
            };
            (in_backward ? kernel_hook().backward : kernel_hook().forward) = meet;
            CHECK_NOTHROW(s.step().item());
        }
}

TEST_CASE("a rendezvous: both are in their operation at the same time") {
    HookedTraining s;
    (void)s.step().item();
    Gate here[2];
    kernel_hook().forward = [&here](int shard) {
        here[shard].open();
        here[1 - shard].pass();
    };
    CHECK_NOTHROW(s.step().item());
}

TEST_CASE("a step returns while its operations are blocked") {
    HookedTraining s;
    (void)s.step().item();
    const auto before = s.model.engine().steps_done();
    Gate release;
    std::atomic<int> finished = 0;
    kernel_hook().forward = [&](int) {
        release.pass();
        ++finished;
    };
    const ls::StepLoss first = s.step();
    const ls::StepLoss second = s.step();  // two may be in flight
    CHECK(finished == 0);
    release.open();
    (void)second.item();
    (void)first.item();
    CHECK(finished == 4);
    CHECK(s.model.engine().steps_done() == before + 2);
}

TEST_CASE("a step that clips and may be skipped returns while its operations are blocked") {
    HookedTraining s;
    const ls::StepOptions how{
        .clip = {ls::ClipGradValue{.clip_value = 0.1}, ls::ClipGradNorm{.max_norm = 0.1, .error_if_nonfinite = true}},
        .skip_nonfinite = true};
    const auto step = [&] { return s.model.step(s.sgd, s.x, s.y, ls::mse_loss, how); };
    (void)step().item();
    Gate release;
    std::atomic<int> finished = 0;
    kernel_hook().forward = [&](int) {
        release.pass();
        ++finished;
    };
    const ls::StepLoss first = step();
    const ls::StepLoss second = step();
    CHECK(finished == 0);
    release.open();
    CHECK_FALSE(second.skipped());
    CHECK(first.grad_norm() > 0);
    CHECK(finished == 4);
}

namespace {

/// Gate that the update of any parameter opens; the update changes nothing. Other devices may still open it after a
/// step's end.
std::atomic<Gate*> updated = nullptr;
std::unique_ptr<ls::Kernel> make_notifying_update(const ls::FusedUpdate<ls::AdagradRule>&, ls::KernelRequest& request) {
    request.want_all_contiguous();
    return ls::make_kernel([](const ls::KernelArgs&) {
        if (Gate* gate = updated) gate->open();
    });
}

struct TwoHooked {
    ls::Linear first{4, 64}, second{64, 3};
    LOCKSTEP_MEMBERS(first, second)
    ls::Tensor forward(const ls::Tensor& x) const { return call_hook(second(call_hook(first(x)))); }
};

}  // namespace

TEST_CASE("without clipping, the last layer is updated during backward of the first, and with it, after all") {
    ls::KernelTable::of(ls::DeviceKind::cpu).add<ls::FusedUpdate<ls::AdagradRule>, make_notifying_update>();
    static std::list<Gate> gates;
    for (const ls::ReductionMode reduction : {ls::ReductionMode::root, ls::ReductionMode::slice_wise})
        for (const bool clips : {false, true}) {
            INFO((reduction == ls::ReductionMode::root ? "root" : "slices") << (clips ? ", clipped" : ""));
            const HookedTraining data;
            ls::DataParallel model(TwoHooked{}, cpu_devices(2), {.reduction = reduction, .bucket_bytes = 512});
            ls::Adagrad optimizer(model);
            ls::StepOptions how;
            if (clips) how.clip = {ls::ClipGradNorm{.max_norm = 1}};
            const auto step = [&] { return model.step(optimizer, data.x, data.y, ls::mse_loss, how); };
            (void)step().item();
            Gate& update_began = gates.emplace_back();
            std::atomic<bool> began_before_end = false;
            std::array<std::atomic<int>, 2> gone_back{};
            updated = &update_began;
            kernel_hook().backward = [&](int shard) {
                if (gone_back[static_cast<std::size_t>(shard)]++ == 0) return;  // backward of the last layer runs first
                if (!clips) update_began.pass();
                began_before_end = update_began.is_open();
            };
            CHECK_NOTHROW(step().item());
            CHECK(update_began.is_open());
            CHECK(began_before_end == !clips);
            kernel_hook() = {};
        }
}

TEST_CASE("a step without clipping has no operations for it") {
    const auto names = [](const ls::StepOptions& how) {
        HookedTraining s;
        s.model.engine().log_steps(1);
        (void)s.model.step(s.sgd, s.x, s.y, ls::mse_loss, how).item();
        const auto log = s.model.engine().step_log();
        std::map<std::string, int> count;
        for (const ls::StepSpan& span : log.at(0).spans) ++count[span.name];
        return count;
    };
    auto plain = names({}), by_norm = names({.clip = {ls::ClipGradNorm{.max_norm = 1, .error_if_nonfinite = true}}}),
         by_value = names({.clip = {ls::ClipGradValue{.clip_value = 1}}}), skipping = names({.skip_nonfinite = true});
    ls::GradScaler scaler;
    auto scaling = names({.scaler = &scaler});
    for (const char* name : {"measure_gradients", "gradient_norm", "check_grad_norm", "clip_coefficient",
                             "scale_gradients", "clamp_gradients", "unscale_factor", "update_loss_scale"})
        CHECK(plain[name] == 0);
    for (const char* name : {"measure_gradients", "gradient_norm", "check_grad_norm", "scale_gradients",
                             "unscale_factor", "update_loss_scale"})
        CHECK(scaling[name] > 0);
    for (const char* name :
         {"measure_gradients", "gradient_norm", "check_grad_norm", "clip_coefficient", "scale_gradients"})
        CHECK(by_norm[name] > 0);
    CHECK(by_value["clamp_gradients"] > 0);
    CHECK(skipping["check_grad_norm"] > 0);
}

TEST_CASE("the manual step returns while its operations are blocked") {
    HookedTraining s;
    (void)s.model(s.x);
    s.model.synchronize();
    Gate release;
    std::atomic<int> finished = 0;
    kernel_hook().forward = [&](int) {
        release.pass();
        ++finished;
    };
    const ls::Tensor output = s.model(s.x);
    ls::sum(output).backward();
    CHECK(finished == 0);
    release.open();
    (void)output.to_vector<float>();
    CHECK(finished == 2);
}
