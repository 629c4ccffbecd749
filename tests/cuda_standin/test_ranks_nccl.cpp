// The nccl backend: sharing of GPUs, and termination of operations that cannot finish.
#include <atomic>
#include <csignal>
#include <thread>

#include "lockstep/runtime/memory.h"
#include "lockstep/tests/cuda_standin/ranks_training.h"
#include "lockstep/tests/fixtures/messages.h"
#include "lockstep/tests/fixtures/processes.h"
#include "lockstep/tests/fixtures/waiting.h"

using namespace lockstep;
using namespace lockstep::test;
using std::chrono::seconds;

namespace {

Tensor on_gpu(float value, std::int64_t elements = 1000) {
    return Tensor::full({elements}, value, DType::f32, Device::cuda(0));
}

/// Words that are missing in the CommunicationError that `call` throws.
template <class Call>
Lines lost_with(const std::vector<std::string>& words, Call&& call) {
    const std::string message = lost(call);
    Lines lines;
    for (const std::string& word : words)
        if (!contains(message, word)) lines.push_back("not '" + word + "' in: " + message);
    return lines;
}

/// Streams with short queues, for the processes that start meanwhile.
struct ShortQueues {
    explicit ShortQueues(int tasks) { ::setenv("LOCKSTEP_STANDIN_LAUNCH_QUEUE", std::to_string(tasks).c_str(), 1); }
    ~ShortQueues() { ::unsetenv("LOCKSTEP_STANDIN_LAUNCH_QUEUE"); }
    ShortQueues(const ShortQueues&) = delete;
    ShortQueues& operator=(const ShortQueues&) = delete;
};

/// Trains; the last rank is killed before step 4. Returns the errors in the other ranks' messages. Calls `meanwhile`
/// after every step.
template <class Meanwhile>
Lines train_until_a_rank_dies(ProcessGroup& group, Meanwhile&& meanwhile) {
    const Images images(16);
    Rank<test::Small> rank(group, {.shards = 4, .bucket_bytes = 8192});
    return lost_with({" of 2: "}, [&] {
        for (int i = 0; i < 40; ++i) {
            if (i == 4 && group.rank() + 1 == group.size()) {
                rank.model.synchronize();
                ::raise(SIGKILL);
            }
            rank.step(images, 0, 16);
            meanwhile();
        }
        rank.model.synchronize();
    });
}

}  // namespace

TEST_CASE("two ranks on one GPU are rejected with an error that names both") {
    const std::string found = on_gpus({.backend = "nccl", .size = 3, .share = true}, [](ProcessGroup& group) {
        return lost_with(
            {"ranks 0 and 1 share one GPU (" + device_info(Device::cuda(0)).bus_id + ")", "use one GPU per rank"},
            [&] { group.all_reduce(on_gpu(1)); });
    });
    CHECK(found == "");
}

TEST_CASE("if a rank is missing, the other ranks' GPUs continue at the deadline with an error") {
    if (!has_gpus(2, "nccl")) return;
    const Shared<std::atomic<bool>> heard;
    CHECK(on_gpus({.backend = "nccl", .timeout = seconds(5)}, [&](ProcessGroup& group) {
              group.all_reduce(on_gpu(1));
              if (group.rank() == 1) {
                  test::comes_true([&] { return heard->load(); });
                  return Lines();
              }
              const Lines lines = lost_with({"rank 0 of 2: all_reduce number 2 (4000 bytes, nccl)", "5000 ms"},
                                            [&] { group.all_reduce(on_gpu(1)); });
              *heard = true;
              return lines;
          }) == "");
}

TEST_CASE("ranks that call different operations, one of them on its GPU") {
    if (!has_gpus(2, "nccl")) return;
    ::setenv("LOCKSTEP_DEBUG", "detail", 1);
    const std::string found = on_gpus("nccl", 2, [](ProcessGroup& group) {
        group.all_reduce(on_gpu(1));
        const Tensor x = group.rank() == 0 ? on_gpu(1, 10) : Tensor::full({10}, 1);
        return lost_with(
            {"rank 0 all_reduce of 40 bytes of f32 (sum) on a GPU", "rank 1 all_reduce of 40 bytes of f32 (sum)"},
            [&] { group.all_reduce(x); });
    });
    ::unsetenv("LOCKSTEP_DEBUG");
    CHECK(found == "");
}

TEST_CASE("no step is partially applied if a rank stops during training") {
    if (!has_gpus(2, "nccl")) return;
    const Shared<std::atomic<bool>> heard;
    const std::string found = on_gpus({.backend = "nccl", .timeout = seconds(5)}, [&](ProcessGroup& group) {
        const Images images(16);
        Rank<test::Small> rank(group, {.shards = 2});  // one bucket
        const auto steps = [&] {
            for (int i = 0; i < 10; ++i) {
                if (i == 4 && group.rank() == 1) {
                    rank.model.synchronize();
                    test::comes_true([&] { return heard->load(); });
                    ::_exit(0);
                }
                rank.step(images, 0, 16);
            }
            rank.model.synchronize();
        };
        Lines lines = lost_with({"rank 0 of 2: ", "5000 ms"}, steps);
        *heard = true;
        Trained<test::Small> alone(gpus(1), {.shards = 2});
        for (int i = 0; i < 4; ++i) alone.step(images, 0, 16);
        alone.model.synchronize();
        if (test::values_of(rank.model.module()) != alone.values())
            lines.push_back("the weights are not those after 4 steps");
        return lines;
    });
    CHECK(found == "");
}

TEST_CASE("training over nccl with full queues: work that GPUs wait for does not wait for the host") {
    if (!has_gpus(2, "nccl")) return;
    const ShortQueues few(6);
    CHECK(on_gpus({.backend = "nccl"}, [](ProcessGroup& group) {
              return same_bits<test::Normed>(group, {.shards = 4, .bucket_bytes = 8192});
          }) == "");
}

TEST_CASE("if a rank dies, the other ranks' GPUs continue and their hosts report it") {
    if (!has_gpus(2, "nccl")) return;
    const GpuRanks start{.backend = "nccl"};
    const std::string killed = "rank 1: ended by signal 9\n";
    CHECK(on_gpus(start, [](ProcessGroup& group) { return train_until_a_rank_dies(group, [] {}); }) == killed);
    CHECK(on_gpus(start, [](ProcessGroup& group) {
              test::set_delays(3, 1000);
              return train_until_a_rank_dies(group, [] {});
          }) == killed);
    {
        const ShortQueues few(6);
        CHECK(on_gpus(start, [](ProcessGroup& group) { return train_until_a_rank_dies(group, [] {}); }) == killed);
    }
    // The host frees memory, for which CUDA waits until the GPU is idle.
    CHECK(on_gpus(start, [](ProcessGroup& group) {
              return train_until_a_rank_dies(group, [] {
                  (void)Tensor::zeros({10000}, DType::f32, Device::cuda(0));
                  release_cached_memory(Device::cuda(0));
              });
          }) == killed);
    for (const int tasks : {1000, 1}) {
        const ShortQueues few(tasks);
        CHECK(on_gpus(start, [](ProcessGroup& group) {
                  const Tensor x = on_gpu(1);
                  return lost_with({"rank 0 of 2: all_reduce number "}, [&] {
                      for (int i = 0; i < 4; ++i) group.all_reduce(x);
                      if (group.rank() == 1) ::raise(SIGKILL);  // with its own operations still in flight
                      group.all_reduce(x);
                  });
              }) == killed);
    }
}
