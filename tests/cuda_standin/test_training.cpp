// DataParallel trains on the CUDA stand-in: the same bits on any number of devices, the CPU's results, and no call that
// CUDA would refuse. Run with peer access, without it (copies staged) and under the ordering checker.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/parallel/loader.h"
#include "lockstep/runtime/copy_count.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/tape.h"
#include "lockstep/tests/cuda_standin/training.h"

using namespace lockstep;
using test::gpus;
using test::Images;
using test::Trained;

namespace {

using Values = std::vector<std::vector<float>>;

bool peers() {
    const char* text = std::getenv("LOCKSTEP_STANDIN_PEER_ACCESS");
    return text == nullptr || std::string(text) == "1";
}

struct Setting {
    int steps = 10;
    std::int64_t rows = 22;  // eight shards: seven of 3 rows, one of 1
    std::vector<int> devices{2, 3, 8};
    int micro_steps = 1;
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
    Trained<Net> trained(devices, {.shards = 8, .reduction = reduction, .bucket_bytes = 4096});
    trained.how.micro_steps = setting.micro_steps;
    trained.run(setting.steps, setting.rows);
    trained.model.engine().verify_replicas();
    const auto operations = trained.model.engine().operations_per_device();
    for (int d = 0; d < devices.size(); ++d) CHECK(operations[static_cast<std::size_t>(d)] > 0);
    return trained.values();
}

template <class Net>
void check_same_bits(const Setting& setting) {
    const Values expected = train<Net>(gpus(1), setting, ReductionMode::root);
    for (const ReductionMode reduction : {ReductionMode::root, ReductionMode::slice_wise})
        for (const int delay_us : {0, 150})
            for (const int devices : setting.devices) {
                INFO(devices << " devices, reduction " << static_cast<int>(reduction) << ", delays " << delay_us);
                standin::set_delays(static_cast<std::uint64_t>(devices), delay_us);
                CHECK((train<Net>(gpus(devices), setting, reduction) == expected));
            }
    standin::set_delays(0, 0);

    // The CPU's kernels share no code with those here, and use the same masks. They are tested against doubles.
    const Values cpu = train<Net>(test::some_devices(DeviceKind::cpu, 2), setting, ReductionMode::root);
    manual_seed(1);
    Net untrained;
    CHECK(distance(expected, cpu, test::values_of(untrained)) < 1e-3);
    test::check_no_mistakes();
}

std::pair<std::uint64_t, std::uint64_t> moved(const standin::PairCounters& pair) {
    return {pair.copies + pair.kernel_reads, pair.bytes + pair.kernel_read_bytes};
}

}  // namespace

TEST_CASE("small: ten steps give the same bits on 1, 2, 3 and 8 devices") { check_same_bits<test::Small>({}); }

TEST_CASE("batch normalisation and two dropouts: the same bits on 1, 2, 3 and 8 devices") {
    check_same_bits<test::Normed>({});
}

TEST_CASE("batches in two micro-steps: the same bits on 1, 2, 3 and 8 devices") {
    check_same_bits<test::Normed>({.steps = 4, .micro_steps = 2});  // of 22 rows, the last shard has no second one
}

TEST_CASE("cnn: the same bits on 1 and 3 devices") {
    const Setting setting{.steps = 2, .rows = 8};
    const Values expected = train<test::Cnn>(gpus(1), setting, ReductionMode::root);
    CHECK((train<test::Cnn>(gpus(3), setting, ReductionMode::slice_wise) == expected));
    test::check_no_mistakes();
}

TEST_CASE("other shards give other bits: the comparison can fail") {
    Trained<test::Small> eight(gpus(2), {.shards = 8}), seven(gpus(2), {.shards = 7});
    eight.run(2, 22);
    seven.run(2, 22);
    CHECK_FALSE((eight.values() == seven.values()));
}

TEST_CASE("copies: as many as on the CPU's devices, and CUDA was asked for no other ones") {
    for (const ReductionMode reduction : {ReductionMode::root, ReductionMode::slice_wise})
        for (const int devices : {2, 3}) {
            INFO(devices << " devices, reduction " << static_cast<int>(reduction));
            std::map<std::pair<int, int>, std::pair<std::uint64_t, std::uint64_t>> counted[2];
            auto asked = standin::counters().pairs;
            for (const DeviceKind kind : {DeviceKind::cpu, DeviceKind::cuda}) {
                Trained<test::Normed> trained(test::some_devices(kind, devices), {.reduction = reduction});
                const Images images(24);
                trained.step(images, 0, 24);
                trained.step(images, 0, 24);
                trained.model.synchronize();
                copy_count::reset();
                standin::reset_counters();
                trained.step(images, 0, 24);
                trained.model.synchronize();
                for (const auto& [pair, count] : copy_count::between_devices())
                    counted[kind == DeviceKind::cuda][{pair.first.index(), pair.second.index()}] = {count.copies,
                                                                                                    count.bytes};
                asked = standin::counters().pairs;  // a debug build's wrapper reads all replicas at its end
            }
            CHECK(counted[0] == counted[1]);
            for (const auto& [pair, numbers] : asked) {
                if (pair.first == pair.second) continue;
                INFO("from " << pair.first << " to " << pair.second);
                auto expected = counted[1][pair];
                if (peers() && pair.second == 0 && pair.first > 0) {
                    // The sum of loss and weight over the shards is one operation and two launches, and each of them
                    // declares what the operation reads: both scalars once more.
                    expected.first += 2;
                    expected.second += 2 * sizeof(float);
                }
                CHECK(moved(numbers) == expected);
                CHECK(numbers.kernel_writes == 0);
                const bool between = pair.first != standin::kHost && pair.second != standin::kHost;
                CHECK(numbers.staged_copies == (between && !peers() ? numbers.copies : 0));
            }
        }
    test::check_no_mistakes();
}

TEST_CASE("the host waits for no device while it enqueues a step") {
    Trained<test::Small> trained(gpus(3), {.shards = 8});
    const Images images(20);
    for (int i = 0; i < 4; ++i) trained.step(images, 0, 20);
    trained.model.synchronize();
    standin::set_delays(3, 300);
    standin::reset_counters();
    trained.step(images, 0, 20);
    trained.step(images, 0, 20);
    const auto found = standin::counters();
    CHECK(found.host_waits.empty());
    CHECK(found.calls.count("cudaMalloc") == 0);
    CHECK(found.calls.count("cudaDeviceSynchronize") == 0);
    trained.model.synchronize();
    standin::set_delays(0, 0);

    trained.how.micro_steps = 2;
    for (int i = 0; i < 4; ++i) trained.step(images, 0, 20);
    trained.model.synchronize();
    standin::set_delays(3, 300);
    standin::reset_counters();
    trained.step(images, 0, 20);
    trained.step(images, 0, 20);
    CHECK(standin::counters().host_waits.empty());
    CHECK(standin::counters().calls.count("cudaMalloc") == 0);
    trained.model.synchronize();
    standin::set_delays(0, 0);
    test::check_no_mistakes();
}

TEST_CASE("longer form: forward, backward and the optimizer's step do what step does") {
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

TEST_CASE("the loader's batches train to the same bits as whole ones, from one thread") {
    const Images images(50);
    Trained<test::Small> loaded(gpus(3), {.shards = 8}), direct(gpus(3), {.shards = 8});
    standin::set_delays(4, 100);
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
    standin::set_delays(0, 0);
    CHECK((loaded.values() == direct.values()));
    test::check_no_mistakes();  // with the loader's workers, still one thread that calls CUDA
}

TEST_CASE("evaluation leaves the model alone and gives the CPU's outputs") {
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

TEST_CASE("several logical devices on one GPU: the same bits", "[.logical]") {
    REQUIRE(device_count(DeviceKind::cuda) == 8);  // two GPUs, four on each
    CHECK(device_info(Device::cuda(5)).physical_index == 1);
    CHECK(standin::counters().devices.size() == 2);
    check_same_bits<test::Small>({.steps = 3, .rows = 22, .devices = {3, 4, 8}});
    check_same_bits<test::Normed>({.steps = 3, .rows = 22, .devices = {3, 4, 8}});
}
