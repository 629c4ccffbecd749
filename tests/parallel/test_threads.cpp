// One host thread drives all devices: models and losses are called only on it, and steps start no threads. The threads
// that serve the devices end when they are no longer needed.
#include <chrono>
#include <filesystem>
#include <functional>
#include <iterator>
#include <memory>
#include <set>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "lockstep/ops/sgd.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/loader.h"
#include "lockstep/runtime/cpu/cpu_queue.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/eight_devices.h"
#include "lockstep/tests/fixtures/nets.h"
#include "lockstep/tests/fixtures/waiting.h"

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

/// The system takes a moment to remove threads that have ended.
bool soon(const std::function<bool()>& holds) { return test::comes_true(holds); }

/// A model with its optimizer.
struct Trained {
    struct Rows {
        std::int64_t size() const { return 12; }
        std::tuple<Tensor> get(std::int64_t row) const { return {Tensor::full({1}, static_cast<double>(row))}; }
    };
    DataParallel<test::Small> model{test::Small{}, test::cpu_devices(2)};
    SGD sgd{model, {.lr = 0.01}};
    Loader<Rows> loader{model, Rows(), {.batch_size = 4, .workers = 2}};
    double step(const test::Images& images) {
        for ([[maybe_unused]] auto& batch : loader.epoch(0)) {
        }
        return model.step(sgd, images.batch(0, 20), images.targets(0, 20), nll_loss).item();
    }
};

}  // namespace

TEST_CASE("steps start no thread, and only the worker of a stream is ever started") {
    constexpr int devices = 8;
    const test::Images images(64);
    // This thread, and a sanitizer's own once a program has threads. A stream has one while it has work.
    (void)Tensor::zeros({1}).to(Device::cpu(0)).item();
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

        // A device's streams: the compute streams of its lanes, one to reduce, one to commit, and no others.
        const int lanes = static_cast<int>(place_shards(test::cpu_devices(devices), {0, devices}, 1).size());
        CHECK(workers <= lanes + 2 * devices);
        CHECK(process_threads() == workers + others);
    }
    CHECK(callers == std::set<std::thread::id>{std::this_thread::get_id()});
}

TEST_CASE("threads end with the last model, and start again with the next one") {
    const test::Images images(20);
    // Threads that always remain: this one, a sanitizer's, those of OpenMP for this thread's work.
    std::make_unique<Trained>()->step(images);
    REQUIRE(cpu_worker_count() == 0);
    std::ptrdiff_t others = 0;
    soon([&] { return std::exchange(others, process_threads()) == process_threads(); });
    for (int turn = 0; turn < 3; ++turn) {
        auto first = std::make_unique<Trained>();
        const double loss = first->step(images);
        CHECK(process_threads() > others);
        {
            Trained second;
            second.step(images);
        }
        CHECK(cpu_worker_count() > 0);  // not the last one
        CHECK(process_threads() > others);
        CHECK(first->step(images) < loss + 1);
        first.reset();
        CHECK(cpu_worker_count() == 0);
        CHECK(soon([&] { return process_threads() == others; }));
    }
}

TEST_CASE("threads of tensors without a model exist during work, end soon after, and start again") {
    const Tensor kept = Tensor::full({3}, 2, DType::f32, Device::cpu(0));
    CHECK((kept * 2.0).to_vector<float>() == std::vector<float>(3, 4.f));
    const int workers = cpu_worker_count();
    CHECK(workers > 0);
    std::set<std::thread::id> servers;
    for (int i = 0; i < 100; ++i) {
        CHECK(Tensor::full({3}, i, DType::f32, Device::cpu(0)).to_vector<float>()[1] == static_cast<float>(i));
        Stream::of(Device::cpu(0)).run("who", {}, [&](const ExecContext&) {
            servers.insert(std::this_thread::get_id());
        });
        Stream::of(Device::cpu(0)).synchronize();
    }
    CHECK(servers.size() == 1);  // not one per call
    CHECK(soon([] { return cpu_worker_count() == 0; }));
    CHECK((kept + 1.0).to_vector<float>() == std::vector<float>(3, 3.f));
    CHECK(cpu_worker_count() > 0);
}
