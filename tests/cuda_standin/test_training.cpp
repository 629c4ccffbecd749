// DataParallel trains on GPUs, of the stand-in or real: the same bits on any number of devices, the CPU's results, and
// no call that CUDA would reject. Run with peer access, without it (copies staged) and under the ordering checker.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/parallel/loader.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/error.h"
#include "lockstep/tests/cuda_standin/training.h"

using namespace lockstep;
using test::gpus;
using test::Images;
using test::Trained;

namespace {

using Values = std::vector<std::vector<float>>;

struct Setting {
    int steps = 5;
    std::int64_t rows = 22;  // eight shards: seven of 3 rows, one of 1
    std::vector<int> devices{2, 3, 8};
    int accumulation_steps = 1;
    std::optional<DType> autocast = {};
};

/// ||found - expected|| / ||expected - before||, over everything.
double distance(const Values& found, const Values& expected, const Values& before) {
    double error = 0, moved = 0;
    for (std::size_t i = 0; i < expected.size(); ++i)
        for (std::size_t k = 0; k < expected[i].size(); ++k) {
            error += std::pow(found[i][k] - expected[i][k], 2);
            moved += std::pow(expected[i][k] - before[i][k], 2);
        }
    return std::sqrt(error / moved);
}

template <class Net>
Values train(const Devices& devices, const Setting& setting, ReductionMode reduction) {
    Trained<Net> trained(devices,
                         {.shards = 8, .autocast = setting.autocast, .reduction = reduction, .bucket_bytes = 4096});
    trained.how.accumulation_steps = setting.accumulation_steps;
    trained.run(setting.steps, setting.rows);
    trained.model.engine().verify_replicas();
    const auto operations = trained.model.engine().operations_per_device();
    for (int d = 0; d < devices.size(); ++d) CHECK(operations[static_cast<std::size_t>(d)] > 0);
    return trained.values();
}

template <class Net>
void check_same_bits(const Setting& setting) {
    const Values expected = train<Net>(gpus(1), setting, ReductionMode::root);
    bool delayed = false;  // every other run: each number of devices and each reduction has runs with and without
    for (const ReductionMode reduction : {ReductionMode::root, ReductionMode::slice_wise})
        for (const int devices : setting.devices) {
            const int delay_us = delayed ? 150 : 0;
            delayed = !delayed;
            INFO(devices << " devices, reduction " << static_cast<int>(reduction) << ", delays " << delay_us);
            test::set_delays(static_cast<std::uint64_t>(devices), delay_us);
            CHECK((train<Net>(gpus(devices), setting, reduction) == expected));
        }
    test::set_delays(0, 0);

    // The CPU's kernels, which are tested against double, share no code with these and use the same masks.
    const Values cpu = train<Net>(test::some_devices(DeviceKind::cpu, 2), setting, ReductionMode::root);
    manual_seed(1);
    Net untrained;
    CHECK(distance(expected, cpu, test::values_of(untrained)) < 1e-3);
    test::check_no_mistakes();
}

}  // namespace

TEST_CASE("small: five steps give the same bits on 1, 2, 3 and 8 devices") { check_same_bits<test::Small>({}); }

TEST_CASE("batch normalisation and two dropouts: the same bits on 1, 2, 3 and 8 devices") {
    check_same_bits<test::Normed>({});
}

TEST_CASE("two microbatches per batch: the same bits on 1, 2, 3 and 8 devices") {
    check_same_bits<test::Normed>(
        {.steps = 4, .accumulation_steps = 2});  // with 22 rows, the last shard has no second microbatch
}

TEST_CASE("batch normalisation under autocast: the same bits on 1 and 3 devices, close to f32") {
    const Values wide = train<test::Normed>(gpus(1), {.steps = 4}, ReductionMode::root);
    manual_seed(1);
    test::Normed untrained;
    for (const DType dtype : {DType::bf16, DType::f16}) {
        const Setting setting{.steps = 4, .autocast = dtype};
        const Values expected = train<test::Normed>(gpus(1), setting, ReductionMode::root);
        CHECK((train<test::Normed>(gpus(3), setting, ReductionMode::root) == expected));
        CHECK((train<test::Normed>(gpus(3), setting, ReductionMode::slice_wise) == expected));
        const double distant = distance(expected, wide, test::values_of(untrained));
        CHECK(distant > 0);
        CHECK(distant < (dtype == DType::bf16 ? 0.1 : 0.02));
    }
    test::check_no_mistakes();
}

TEST_CASE("cnn: the same bits on 1 and 3 devices") {
    const Setting setting{.steps = 2, .rows = 8};
    const Values expected = train<test::Cnn>(gpus(1), setting, ReductionMode::root);
    CHECK((train<test::Cnn>(gpus(3), setting, ReductionMode::slice_wise) == expected));
    test::check_no_mistakes();
}

TEST_CASE("GPUs with another number of shards give other bits, so the comparison can fail") {
    Trained<test::Small> eight(gpus(2), {.shards = 8}), seven(gpus(2), {.shards = 7});
    eight.run(2, 22);
    seven.run(2, 22);
    CHECK_FALSE((eight.values() == seven.values()));
}

TEST_CASE("forward, backward and the optimizer's step are equivalent to step") {
    const Images images(16);
    for (const ReductionMode reduction : {ReductionMode::root, ReductionMode::slice_wise}) {
        Trained<test::Dense> whole(gpus(3), {.reduction = reduction}), parts(gpus(3), {.reduction = reduction});
        manual_seed(3);
        const Tensor x = Tensor::rand({16, 64}), target = images.targets(0, 16);
        const auto before = whole.values();
        for (int i = 0; i < 3; ++i) {
            whole.model.step(whole.sgd, x, target, nll_loss);
            parts.sgd.zero_grad();
            Tensor loss = nll_loss(parts.model(x), target.to(Device::cuda(0)));
            loss.backward();
            parts.sgd.step();
        }
        whole.model.synchronize();
        parts.model.synchronize();
        CHECK(distance(parts.values(), whole.values(), before) < 1e-5);
        CHECK(parts.model.engine().steps_done() == 3);
        parts.model.engine().verify_replicas();
    }
    test::check_no_mistakes();
}

TEST_CASE("training from a loader, with one host thread, gives the same bits as whole batches") {
    const Images images(50);
    Trained<test::Small> loaded(gpus(3), {.shards = 8}), direct(gpus(3), {.shards = 8});
    test::set_delays(4, 100);
    Loader loader(loaded.model, TensorDataset(images.batch(0, 50), images.targets(0, 50)),
                  {.batch_size = 22, .workers = 2});
    for (int epoch = 0; epoch < 2; ++epoch) {
        for (auto& [pixels, labels] : loader.epoch(static_cast<std::uint64_t>(epoch)))
            loaded.model.step(loaded.sgd, pixels, labels, nll_loss);
        for (std::int64_t first = 0; first < 50; first += 22)
            direct.step(images, first, std::min<std::int64_t>(first + 22, 50));
    }
    loaded.model.synchronize();
    direct.model.synchronize();
    test::set_delays(0, 0);
    CHECK((loaded.values() == direct.values()));
    test::check_no_mistakes();  // with the loader's workers, still one thread that calls CUDA
}

TEST_CASE("evaluation does not change the model and matches the CPU's outputs") {
    const Images images(10);
    Trained<test::Normed> here(gpus(3), {.shards = 4}), cpu(test::some_devices(DeviceKind::cpu, 2), {.shards = 4});
    for (auto* each : {&here, &cpu}) {
        each->run(3, 10);
        each->model.eval();
    }
    const auto before = here.values();
    const NoGrad guard;
    const Tensor found = here.model(images.batch(0, 10)), expected = cpu.model(images.batch(0, 10));
    CHECK(found.device() == Device::cuda(0));
    const auto a = found.to_vector<float>(), b = expected.to_vector<float>();
    for (std::size_t i = 0; i < a.size(); ++i) REQUIRE(a[i] == Approx(b[i]).epsilon(1e-4).margin(1e-4));
    CHECK((here.values() == before));
    test::check_no_mistakes();
}

TEST_CASE("several logical devices on one GPU give the same bits", "[.logical]") {
    REQUIRE(device_count(DeviceKind::cuda) == 8);  // two GPUs, four on each
    CHECK(device_info(Device::cuda(5)).physical_index == 1);
    CHECK(test::gpu_count() == 2);
    check_same_bits<test::Small>({.steps = 3, .rows = 22, .devices = {3, 4, 8}});
    check_same_bits<test::Normed>({.steps = 3, .rows = 22, .devices = {3, 4, 8}});
}
