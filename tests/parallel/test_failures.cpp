// Errors while a step runs: bad targets, non-finite losses, no memory, kernels that throw. The model is unchanged and
// usable.
#include <fmt/format.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <map>
#include <thread>
#include <vector>

#include "lockstep/ops/sgd.h"
#include "lockstep/runtime/memory.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/eight_devices.h"
#include "lockstep/tests/fixtures/messages.h"
#include "lockstep/tests/fixtures/nets.h"
#include "lockstep/tests/fixtures/waiting.h"

namespace ls = lockstep;
using namespace lockstep::test;
using ls::Device;

namespace {

/// Every kind of state that a step changes: parameters, momentum (through later steps), running statistics, masks.
struct Stateful {
    ls::Conv2d conv{2, 4, 3};
    ls::BatchNorm2d norm{4};
    ls::Dropout drop{0.3};
    ls::Linear fc{100, 5};
    LOCKSTEP_MEMBERS(conv, norm, drop, fc)
    ls::Tensor forward(const ls::Tensor& x) {
        const ls::Tensor features = drop(ls::relu(norm(conv(x)))).flatten(1);
        return ls::log_softmax(fc(call_hook(features)), 1);
    }
    Stateful() = default;
};

/// Backward reaches `call_hook` when the second layer's gradients are complete.
struct Late {
    ls::Linear first{4, 4}, second{4, 5};
    LOCKSTEP_MEMBERS(first, second)
    ls::Tensor forward(const ls::Tensor& x) { return ls::log_softmax(second(call_hook(first(x))), 1); }
};

/// Polls memory that a device writes, without synchronization.
[[gnu::no_sanitize_thread, gnu::no_sanitize_address]] float peek(const volatile float* value) { return *value; }

using State = std::map<std::string, std::vector<float>>;

State state_of(Stateful& model) {
    State state;
    for (const ls::NamedTensor& named : ls::named_tensors(model))
        state[named.name] = named.member->tensor().detach().to(ls::DType::f32).to_vector<float>();
    return state;
}

/// A model on three devices and a twin without errors: both must stay bit-identical.
struct Twins {
    Stateful net;
    ls::DataParallel<Stateful> model, twin;
    ls::SGD sgd{model, {.lr = 0.05, .momentum = 0.9, .weight_decay = 0.01}},
        twin_sgd{twin, {.lr = 0.05, .momentum = 0.9, .weight_decay = 0.01}};
    ConvNetBatch batch;
    ls::StepOptions how;

    explicit Twins(const ls::DataParallelOptions& options = {}, int accumulation_steps = 1)
        : model(net, cpu_devices(3), options),
          twin(net, cpu_devices(3), options),
          batch(make_batch(accumulation_steps == 1 ? 8 : 20)),
          how{accumulation_steps} {}
    ~Twins() { kernel_hook() = {}; }

    ls::StepLoss step(const ls::Tensor& images, const ls::Tensor& labels) {
        return model.step(sgd, images, labels, ls::nll_loss, how);
    }
    void good_steps(int count) {
        for (int i = 0; i < count; ++i) {
            const ls::StepLoss a = step(batch.images, batch.labels);
            CHECK(a.item() == twin.step(twin_sgd, batch.images, batch.labels, ls::nll_loss, how).item());
        }
        require_equal();
    }
    void require_equal() {
        CHECK(state_of(*model) == state_of(*twin));
        CHECK(model.engine().steps_done() == twin.engine().steps_done());
        model.engine().verify_replicas();
    }
};

ls::Tensor bad_labels() {
    std::vector<std::int64_t> classes(8, 1);
    classes[4] = 7;
    classes[6] = -3;
    return ls::Tensor::from(classes, {8});
}

ls::Tensor not_a_number(const ls::Tensor& images) {
    ls::Tensor bad = images.clone();
    bad.data<float>()[5] = std::numeric_limits<float>::quiet_NaN();
    return bad;
}

const std::string target_message =
    "step 2: target 7 in row 4 of the batch is out of range (shard 1, replica 1 on cpu:1); the step was not applied; "
    "expected 0 to the number of classes minus 1";

}  // namespace

TEST_CASE("a target out of range is thrown when the loss is read, and the state is that before the step") {
    for (const auto mode : {ls::ReductionMode::root, ls::ReductionMode::slice_wise}) {
        ls::manual_seed(21);
        Twins t({.reduction = mode});
        t.good_steps(2);
        const ls::StepLoss loss = t.step(t.batch.images, bad_labels());
        CHECK(message_of<ls::StepError>([&] { (void)loss.item(); }) == target_message);
        t.require_equal();
        CHECK(message_of<ls::StepError>([&] { (void)loss.item(); }) == target_message);  // in every call
        t.good_steps(2);
    }
}

TEST_CASE("a target out of range is thrown within two calls, and work queued after it changes nothing") {
    ls::manual_seed(22);
    Twins t;
    t.good_steps(2);
    const ls::StepLoss bad = t.step(t.batch.images, bad_labels());
    std::vector<ls::StepLoss> later;
    int calls = 0;
    std::string text;
    std::int64_t number = -1;
    try {
        while (++calls <= 3) later.push_back(t.step(t.batch.images, t.batch.labels));
    } catch (const ls::StepError& error) {
        text = error.what();
        number = error.step();
    }
    CHECK(calls <= 2);
    CHECK(text == target_message);
    CHECK(number == 2);
    for (const ls::StepLoss& loss : later) CHECK_THROWS_AS(loss.item(), ls::StepError);
    CHECK_THROWS_AS(bad.item(), ls::StepError);
    t.require_equal();
    t.good_steps(3);
}

TEST_CASE("a non-finite loss stops with the step's number") {
    ls::manual_seed(23);
    Twins t;
    t.good_steps(3);
    const ls::StepLoss loss = t.step(not_a_number(t.batch.images), t.batch.labels);
    CHECK(message_of<ls::StepError>([&] { t.model.synchronize(); }) ==
          "step 3: the loss is not finite; the step was not applied, the model is unchanged");
    CHECK_THROWS_AS(loss.item(), ls::StepError);
    t.require_equal();
    t.good_steps(2);
}

TEST_CASE("training continues after a non-finite loss on request") {
    ls::manual_seed(24);
    Twins t({.nan_policy = ls::NanPolicy::ignore});
    t.good_steps(1);
    CHECK(std::isnan(t.step(not_a_number(t.batch.images), t.batch.labels).item()));
    CHECK(t.model.engine().steps_done() == 2);
}

TEST_CASE("the error of a kernel that throws names replica and device, and the model is unchanged") {
    for (const bool in_backward : {false, true}) {
        ls::manual_seed(25);
        Twins t;
        t.good_steps(2);
        auto& hook = in_backward ? kernel_hook().backward : kernel_hook().forward;
        hook = [](int shard) {
            if (shard == 1) throw std::runtime_error("the kernel broke");
        };
        const ls::StepLoss loss = t.step(t.batch.images, t.batch.labels);
        const std::string expected = std::string("replica 1 on cpu:1, shard 1: ") +
                                     (in_backward ? "call_hook_backward" : "call_hook") + ": the kernel broke";
        CHECK(message_of<ls::DeviceError>([&] { t.model.synchronize(); }) == expected);
        CHECK(message_of<ls::StepError>([&] { (void)loss.item(); }) == expected);
        hook = [](int) {};
        if (in_backward) {
            // Running statistics were committed after forward. The gradients, in one bucket here, were never applied.
            for (const char* name : {"conv.weight", "norm.weight", "fc.weight", "fc.bias"})
                CHECK(state_of(*t.model).at(name) == state_of(*t.twin).at(name));
            CHECK(t.model.engine().steps_done() == 2);
            t.model.engine().verify_replicas();
            (void)t.step(t.batch.images, t.batch.labels).item();
        } else {
            t.require_equal();
            t.good_steps(2);
        }
    }
}

TEST_CASE("a kernel that throws in backward after a bucket was updated is reported, and replicas stay identical") {
    for (const auto mode : {ls::ReductionMode::root, ls::ReductionMode::slice_wise}) {
        ls::manual_seed(29);
        ls::DataParallel<Late> model(Late{}, cpu_devices(2), {.reduction = mode, .bucket_bytes = 16});
        ls::SGD sgd(model, {.lr = 0.5});
        const ls::Tensor images = ls::Tensor::rand({4, 4});
        const ls::Tensor labels = ls::Tensor::from(std::vector<std::int64_t>{0, 1, 2, 3}, {4});
        (void)model.step(sgd, images, labels, ls::nll_loss).item();
        model.synchronize();
        const auto* bias = static_cast<const float*>(model.parameter_store()->replicas()[0].parameters[0]->data());
        const float before = *bias;  // bias of `second`, whose bucket is the first to be updated
        kernel_hook().backward = [&](int shard) {
            if (shard != 1) return;
            while (peek(bias) == before) std::this_thread::yield();
            throw std::runtime_error("the kernel broke");
        };
        CHECK(message_of<ls::DeviceError>([&] { (void)model.step(sgd, images, labels, ls::nll_loss).item(); }) ==
              "replica 1 on cpu:1, shard 1: call_hook_backward: the kernel broke; a part of the step "
              "was committed; load a checkpoint before you continue");
        kernel_hook().backward = [](int) {};
        model.engine().verify_replicas();
        CHECK(std::isfinite(model.step(sgd, images, labels, ls::nll_loss).item()));
    }
}

TEST_CASE("a kernel that throws in the manual step") {
    ls::manual_seed(26);
    Twins t;
    t.good_steps(1);
    kernel_hook().forward = [](int shard) {
        if (shard == 2) throw std::runtime_error("the kernel broke");
    };
    (void)t.model(t.batch.images);
    CHECK(message_of<ls::DeviceError>([&] { t.model.synchronize(); }) ==
          "replica 2 on cpu:2, shard 2: call_hook: the kernel broke");
    kernel_hook().forward = [](int) {};
    t.require_equal();
}

TEST_CASE("with outputs on the host, a kernel's exception is thrown at once and only once") {
    ls::manual_seed(29);
    Twins t({.output_device = Device::host()});
    for (const bool trains : {true, false}) {
        t.model.train(trains);
        t.twin.train(trains);
        kernel_hook().forward = [](int shard) {
            if (shard == 1) throw std::runtime_error("the kernel broke");
        };
        CHECK(message_of<ls::DeviceError>([&] { (void)t.model(t.batch.images); }) ==
              "replica 1 on cpu:1, shard 1: call_hook: the kernel broke");
        kernel_hook().forward = [](int) {};
        t.model.synchronize();
        CHECK(t.model(t.batch.images).device().is_host());
        (void)t.twin(t.batch.images);
        t.require_equal();
    }
    t.model.train();
    t.twin.train();
    // Backward with the gradient of an input on the host.
    const ls::Tensor images = t.batch.images.clone().requires_grad_();
    kernel_hook().backward = [](int shard) {
        if (shard == 1) throw std::runtime_error("the kernel broke");
    };
    const ls::Tensor output = t.model(images);
    // Other devices may have added to the gradients before the failure; then the message continues with that.
    const std::string text = message_of<ls::DeviceError>([&] { ls::sum(output).backward(); });
    INFO(text);
    CHECK(text.starts_with("replica 1 on cpu:1, shard 1: call_hook_backward: the kernel broke"));
    kernel_hook().backward = [](int) {};
    t.model.synchronize();
    (void)t.model(images);
}

TEST_CASE("an error in any microbatch refuses the whole step, and nothing changes") {
    // 20 rows on three devices: shards of 7, 7 and 6 rows in microbatches of 3, 3 and 1 (the last shard: 3 and 3).
    const struct {
        std::int64_t row;
        int shard;
    } places[] = {{1, 0}, {13, 1}, {10, 1}, {19, 2}};
    for (const auto mode : {ls::ReductionMode::root, ls::ReductionMode::slice_wise})
        for (const auto& [row, shard] : places) {
            INFO("row " << row);
            ls::manual_seed(29);
            Twins t({.reduction = mode}, 3);
            t.good_steps(2);
            std::vector<std::int64_t> classes = t.batch.classes;
            classes[static_cast<std::size_t>(row)] = 7;
            const ls::Tensor labels = ls::Tensor::from(classes, {20});
            ls::StepLoss loss = t.step(t.batch.images, labels);
            CHECK(message_of<ls::StepError>([&] { (void)loss.item(); }) ==
                  fmt::format("step 2: target 7 in row {} of the batch is out of range (shard {}, replica {} on "
                              "cpu:{}); the step was not applied; expected 0 to the number of classes minus 1",
                              row, shard, shard, shard));
            t.good_steps(1);

            ls::Tensor images = t.batch.images.clone();
            images.data<float>()[row * 98] = std::numeric_limits<float>::quiet_NaN();
            loss = t.step(images, t.batch.labels);
            std::vector<ls::StepLoss> later;  // queued after the bad one
            const std::string text = message_of<ls::StepError>([&] {
                for (int i = 0; i < 3; ++i) later.push_back(t.step(t.batch.images, t.batch.labels));
            });
            CHECK(text == "step 3: the loss is not finite; the step was not applied, the model is unchanged");
            CHECK_THROWS_AS(loss.item(), ls::StepError);
            for (const ls::StepLoss& each : later) CHECK_THROWS_AS(each.item(), ls::StepError);
            t.good_steps(2);
        }
}

TEST_CASE("a kernel that throws in any microbatch leaves the model unchanged") {
    for (const bool in_backward : {false, true})
        for (const int which : {1, 2, 3}) {
            // In backward of the last microbatch another bucket may have been committed.
            if (in_backward && which == 3) continue;
            INFO("microbatch " << which << (in_backward ? ", backward" : ", forward"));
            ls::manual_seed(30);
            Twins t({}, 3);
            t.good_steps(2);
            std::atomic<int> calls{0};
            auto& hook = in_backward ? kernel_hook().backward : kernel_hook().forward;
            hook = [&](int shard) {
                if (shard == 1 && ++calls == which) throw std::runtime_error("the kernel broke");
            };
            const ls::StepLoss loss = t.step(t.batch.images, t.batch.labels);
            CHECK(message_of<ls::DeviceError>([&] { t.model.synchronize(); }) ==
                  std::string("replica 1 on cpu:1, shard 1: call_hook") + (in_backward ? "_backward" : "") +
                      ": the kernel broke");
            CHECK_THROWS_AS(loss.item(), ls::StepError);
            hook = [](int) {};
            t.good_steps(2);
        }
}

TEST_CASE("a changed learning rate is enqueued without waiting for the step before it") {
    ls::manual_seed(26);
    Twins t;
    t.good_steps(2);
    Gate leave;
    kernel_hook().forward = [&](int) { leave.pass(); };
    std::vector<ls::StepLoss> losses;
    std::atomic<bool> enqueued{false};
    std::thread user([&] {
        losses.push_back(t.step(t.batch.images, t.batch.labels));
        t.sgd.set_lr(0.02);
        losses.push_back(t.step(t.batch.images, t.batch.labels));
        enqueued = true;
    });
    const bool at_once = comes_true([&] { return enqueued.load(); });
    leave.open();
    user.join();
    CHECK(at_once);
    t.model.synchronize();  // kernels have read the hook
    kernel_hook() = {};
    REQUIRE(losses.size() == 2);
    CHECK(losses[0].item() == t.twin.step(t.twin_sgd, t.batch.images, t.batch.labels, ls::nll_loss).item());
    t.twin_sgd.set_lr(0.02);
    CHECK(losses[1].item() == t.twin.step(t.twin_sgd, t.batch.images, t.batch.labels, ls::nll_loss).item());
    t.good_steps(1);
}

TEST_CASE("out of memory on one device leaves the model unchanged and usable") {
    ls::manual_seed(27);
    Twins t;
    t.good_steps(1);
    const ConvNetBatch large = make_batch(600);
    ls::set_memory_limit(Device::cpu(1), ls::memory_stats(Device::cpu(1)).current + 4096);
    const std::string text = message_of<ls::OutOfMemory>([&] { t.step(large.images, large.labels); });
    ls::set_memory_limit(Device::cpu(1), 0);
    INFO(text);
    CHECK(text.find("out of memory on cpu:1: ") == 0);
    CHECK(text.find(" bytes requested, 4096 free of a limit of ") != std::string::npos);
    CHECK(text.find("; held: ") != std::string::npos);
    CHECK(text.find(" parameters") != std::string::npos);
    CHECK(text.find("; expected a smaller batch or more devices") != std::string::npos);
    t.require_equal();
    t.good_steps(1);
    CHECK(t.step(large.images, large.labels).item() ==
          t.twin.step(t.twin_sgd, large.images, large.labels, ls::nll_loss).item());
    t.require_equal();
}

TEST_CASE("an optimizer at the address of a destroyed one has its own state") {
    ls::manual_seed(28);
    ConvNet net;
    const ConvNetBatch batch = make_batch(6);
    ls::DataParallel<ConvNet> model(net, cpu_devices(2));
    for (const double lr : {0.5, 0.0}) {
        const auto before = parameters_of(*model);
        ls::SGD sgd(model, {.lr = lr});
        (void)model.step(sgd, batch.images, batch.labels, ls::nll_loss).item();
        CHECK((relative_error(parameters_of(*model), before) > 0) == (lr > 0));
    }
}
