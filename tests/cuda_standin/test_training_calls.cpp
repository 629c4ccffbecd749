// CUDA calls of a training step, counted by the stand-in.
#include <cstdint>
#include <cstdlib>
#include <map>
#include <string>
#include <utility>

#include "lockstep/runtime/internal/copy_count.h"
#include "lockstep/tests/cuda_standin/standin.h"
#include "lockstep/tests/cuda_standin/training.h"

using namespace lockstep;
using test::gpus;
using test::Images;
using test::Trained;

namespace {

bool peers() {
    const char* text = std::getenv("LOCKSTEP_STANDIN_PEER_ACCESS");
    return text == nullptr || std::string(text) == "1";
}

std::pair<std::uint64_t, std::uint64_t> moved(const standin::PairCounters& pair) {
    return {pair.copies + pair.kernel_reads, pair.bytes + pair.kernel_read_bytes};
}

}  // namespace

TEST_CASE("GPUs make as many copies as CPU devices, and CUDA is asked for no others") {
    for (const ReductionMode reduction : {ReductionMode::root, ReductionMode::slice_wise})
        for (const int devices : {2, 3}) {
            INFO(devices << " devices, reduction " << static_cast<int>(reduction));
            std::map<std::pair<int, int>, std::pair<std::uint64_t, std::uint64_t>> counted[2];
            auto asked = standin::counters().pairs;
            for (const DeviceKind kind : {DeviceKind::cpu, DeviceKind::cuda}) {
                // The default depends on the caches of the device.
                Trained<test::Normed> trained(test::some_devices(kind, devices),
                                              {.reduction = reduction, .bucket_bytes = std::size_t{1} << 20});
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
                CHECK(moved(numbers) == counted[1][pair]);
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

    trained.how.accumulation_steps = 2;
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
