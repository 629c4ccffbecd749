// Two wrappers of one process, each trained by its own thread together with other ranks: neither waits for the other,
// in whatever order the ranks call them.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "lockstep/ops/layers.h"
#include "lockstep/parallel/loader.h"
#include "lockstep/runtime/error.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/ranks.h"
#include "lockstep/tests/fixtures/two_wrappers.h"

using namespace lockstep;
using namespace lockstep::test;

namespace {

/// in: x of wrapper `wrapper`; out: a copy of it. Its kernel's factory calls `in_factory`.
struct Meeting {
    std::int64_t wrapper;
    std::string_view name() const { return "meeting"; }
};
std::function<void(std::int64_t wrapper)>& in_factory() {
    static std::function<void(std::int64_t)> instance;
    return instance;
}
std::unique_ptr<Kernel> make_meeting(const Meeting& op, KernelRequest& request) {
    in_factory()(op.wrapper);
    request.want_all_contiguous();
    return make_kernel([count = request.in[0].numel()](const KernelArgs& run) {
        std::copy_n(run.input<float>(0), count, run.output<float>(0));
    });
}

struct MeetingNet {
    std::int64_t wrapper = 0;
    Linear fc{6, 3};
    LOCKSTEP_MEMBERS(fc)
    Tensor forward(const Tensor& x) const {
        return fc(apply_one(Meeting{wrapper}, {x}, TensorMeta::contiguous(x.dtype(), x.shape(), x.is_batch())));
    }
};

struct Rows {
    std::int64_t size() const { return 24; }
    std::tuple<Tensor, Tensor> get(std::int64_t row) const {
        return {Tensor::full({6}, static_cast<double>(row % 5)), Tensor::full({3}, static_cast<double>(row % 3))};
    }
};

/// Runs `body` on two ranks of a backend, each with two virtual devices. Returns their failures, one per line.
std::string on_two_devices(const std::string& backend, const std::function<Lines(ProcessGroup&)>& body) {
    const TemporaryDirectory place;
    ForkedRanks ranks(2, [&](int rank) {
        ::setenv("LOCKSTEP_CPU_DEVICES", "2", 1);
        ProcessGroup group(group_options(backend, place, rank, 2));
        return body(group);
    });
    return joined(ranks.finish());
}

}  // namespace

TEST_CASE("two wrappers whose steps two ranks begin in opposite orders") {
    for (const std::string& backend : forkable_backends()) {
        INFO(backend);
        CHECK(on_two_devices(backend, [](ProcessGroup& group) {
                  const std::unique_ptr<ProcessGroup> second = group.duplicate();
                  return train_two_wrappers(group, *second);
              }) == "");
    }
}

TEST_CASE("two wrappers on one device, whose steps two ranks begin in opposite orders, get an error and do not hang") {
    // The device's streams run both in order: each wrapper waits for the other one, on the other rank.
    const TemporaryDirectory place;
    ForkedRanks ranks(2, [&](int rank) {
        ::setenv("LOCKSTEP_CPU_DEVICES", "1", 1);
        ProcessGroup group(group_options("shm", place, rank, 2, std::chrono::seconds(3)));
        const std::unique_ptr<ProcessGroup> other = group.duplicate();
        try {
            RankTraining first(0, group, Device::cpu(0)), second(1, *other, Device::cpu(0));
            rank == 0 ? train_in_order(first, second) : train_in_order(second, first);
        } catch (const CommunicationError&) {
            return Lines();
        }
        return Lines{"no error"};
    });
    CHECK(joined(ranks.finish()) == "");
}

TEST_CASE("two wrappers fed by loaders, whose steps two ranks begin in opposite orders") {
    CHECK(on_two_devices("shm", [](ProcessGroup& group) {
              const std::unique_ptr<ProcessGroup> other = group.duplicate();
              std::array<Gate, 6> enqueued;
              const auto train = [&](ProcessGroup& own, int number) {
                  const bool early = number == group.rank();
                  RankTraining training(number, own, Device::cpu(number));
                  Loader loader(training.model, Rows(), {.batch_size = 4, .workers = 0});
                  std::size_t step = 0;
                  for (auto& [x, y] : loader.epoch(0)) {
                      if (!early) enqueued[step].pass();
                      training.losses.push_back(training.model.step(training.sgd, x, y, mse_loss));
                      if (early) enqueued[step].open();
                      ++step;
                  }
                  training.model.synchronize();
                  expect(step == enqueued.size(), "another number of batches");
              };
              in_threads({[&] { train(group, 0); }, [&] { train(*other, 1); }});
              return Lines();
          }) == "");
}

TEST_CASE("a kernel that one wrapper's ranks create together does not block another wrapper's kernels") {
    CHECK(on_two_devices("shm", [](ProcessGroup& group) {
              const std::unique_ptr<ProcessGroup> second = group.duplicate();
              // Rank 0 enters the factory of wrapper 0 first, and waits there until rank 1 has entered its own. Rank 1
              // does so from inside the factory of wrapper 1, which waits for that of rank 0.
              std::array<Gate, 2> entered;
              in_factory() = [&](std::int64_t wrapper) {
                  entered[static_cast<std::size_t>(wrapper)].open();
                  group.store()->set(fmt::format("factory {} of {}", wrapper, group.rank()), "entered");
                  static_cast<void>(group.store()->get(fmt::format("factory {} of {}", wrapper, 1 - group.rank())));
              };
              KernelTable::of(DeviceKind::cpu).add<Meeting, make_meeting>();
              manual_seed(3);
              const Tensor x = Tensor::randn({8, 6}), y = Tensor::randn({8, 3});
              const auto train = [&](int wrapper, ProcessGroup& own) {
                  DistributedDataParallel model(MeetingNet{wrapper}, own, Device::cpu(wrapper), {.shards = 2});
                  SGD sgd(model, {.lr = 0.1});
                  if (wrapper != group.rank()) entered[static_cast<std::size_t>(group.rank())].pass();
                  static_cast<void>(model.step(sgd, x, y, mse_loss).item());
              };
              in_threads({[&] { train(0, group); }, [&] { train(1, *second); }});
              return Lines();
          }) == "");
}

TEST_CASE("groups and wrappers that threads create and destroy while other wrappers train") {
    for (const std::string& backend : forkable_backends()) {
        INFO(backend);
        const TemporaryDirectory place;
        ForkedRanks ranks(2, [&](int rank) {
            ::setenv("LOCKSTEP_CPU_DEVICES", "2", 1);
            const auto train = [&](int number) {
                for (int round = 0; round < 3; ++round) {
                    ProcessGroupOptions options = group_options(backend, place, rank, 2);
                    options.rendezvous.init_method += fmt::format(" {} {}", number, round);
                    ProcessGroup group(options);
                    // Both threads draw from the process's generator, so results are not compared.
                    RankTraining training(number, group, Device::cpu(number));
                    for (int step = 0; step < two_wrappers_steps; ++step) training.begin(step);
                    training.model.synchronize();
                }
            };
            in_threads({[&] { train(rank); }, [&] { train(1 - rank); }});
            return Lines();
        });
        CHECK(joined(ranks.finish()) == "");
    }
}
