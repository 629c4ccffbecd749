// One host thread drives all devices: models and losses are called on it alone, and steps start no threads.
#include <filesystem>
#include <iterator>
#include <set>
#include <thread>

#include "lockstep/parallel/data_parallel.h"
#include "lockstep/runtime/cpu/cpu_queue.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/parallel/eight_devices.h"
#include "lockstep/tests/parallel/networks.h"

using namespace lockstep;

namespace {

std::set<std::thread::id> callers;

struct Watched {
    test::Small net;
    LOCKSTEP_MEMBERS(net)
    Tensor forward(const Tensor& x) {
        callers.insert(std::this_thread::get_id());
        return net.forward(x);
    }
};

/// All threads of this process, the library's or not.
std::ptrdiff_t process_threads() {
    return std::distance(std::filesystem::directory_iterator("/proc/self/task"), std::filesystem::directory_iterator());
}

}  // namespace

TEST_CASE("no thread is started by steps, and none beyond a stream's worker by anything") {
    constexpr int devices = 8;
    const test::Images images(64);
    // This one, and what a sanitizer runs for itself as soon as a program has threads.
    Stream::of(Device::cpu(0)).synchronize();
    const std::ptrdiff_t others = process_threads() - cpu_worker_count();
    for (const ReductionMode reduction : {ReductionMode::root, ReductionMode::slice_wise}) {
        EngineOptions options;
        options.shards = devices;
        options.reduction = reduction;
        DataParallel<Watched> model(Watched{}, test::cpu_devices(devices), options);
        SGD sgd(model, {.lr = 0.01, .momentum = 0.5});
        const auto step = [&](std::int64_t rows) {
            model
                .step(sgd, images.batch(0, rows), images.targets(0, rows),
                      [](const Tensor& output, const Tensor& target) {
                          callers.insert(std::this_thread::get_id());
                          return nll_loss(output, target);
                      })
                .item();
        };
        step(64);
        const int workers = cpu_worker_count();
        const std::ptrdiff_t threads = process_threads();
        for (const std::int64_t rows : {64, 20, 5, 64, 20, 5, 64, 64, 64, 64}) step(rows);
        CHECK(cpu_worker_count() == workers);
        CHECK(process_threads() == threads);

        // A device's streams: the compute streams of its lanes, one to communicate, one to commit, none for anything
        // else.
        const int lanes = static_cast<int>(place_shards(test::cpu_devices(devices), {0, devices}, 1).size());
        CHECK(workers <= lanes + 2 * devices);
        CHECK(process_threads() == workers + others);
    }
    CHECK(callers == std::set<std::thread::id>{std::this_thread::get_id()});
}
