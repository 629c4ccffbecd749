// launch() with a function of this program: its arguments, and the handling of its exceptions.
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>

#include "lockstep/ops/layers.h"
#include "lockstep/ops/loss.h"
#include "lockstep/ops/sgd.h"
#include "lockstep/parallel/comm/launcher.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/random.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/messages.h"

using namespace lockstep;
using lockstep::test::contains;
using lockstep::test::message_of;

namespace {

/// Numbers that ranks return to this process, in shared memory.
class Told {
public:
    Told()
        : numbers_(static_cast<std::atomic<double>*>(
              ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {}
    ~Told() { ::munmap(numbers_, 4096); }
    Told(const Told&) = delete;
    Told& operator=(const Told&) = delete;
    std::atomic<double>& operator[](int i) const { return numbers_[i]; }

private:
    std::atomic<double>* numbers_;
};

struct Net {
    Linear fc{3, 2};
    LOCKSTEP_MEMBERS(fc)
    Tensor forward(const Tensor& x) { return fc(x); }
};

/// Calls of waitid that still report a running process. The call after them reports its end.
int calls_until_the_end = -1;

}  // namespace

/// In place of libc's, which it calls by its number.
extern "C" int waitid(idtype_t type, id_t id, siginfo_t* info, int options) {
    if (calls_until_the_end > 0) {
        --calls_until_the_end;
        *info = {};
        return 0;
    }
    if (calls_until_the_end == 0) options &= ~WNOHANG;
    return static_cast<int>(::syscall(SYS_waitid, type, id, info, options, nullptr));
}

TEST_CASE("a function is called on N ranks with their group and the given arguments") {
    const Told told;
    launch(
        3,
        [&](ProcessGroup& group, double factor, const std::string& text) {
            const Tensor sum = Tensor::full({1}, group.rank() + 1);
            group.all_reduce(sum);
            told[group.rank()] = sum.item() * factor + static_cast<double>(text.size());
        },
        100.0, "seven");
    for (int rank = 0; rank < 3; ++rank) CHECK(told[rank] == 605);  // (1 + 2 + 3) * 100 + 5
    CHECK(told[3] == 0);
}

TEST_CASE("a function without a group gets its rank in a separate process") {
    const Told told;
    int here = 1;
    launch(2, [&](const RankInfo& rank) {
        here = 2;
        told[rank.rank] = rank.world_size;
        told[2 + rank.rank] = rank.local_rank;
        told[4 + rank.rank] = ::getpid();
        told[6 + rank.rank] = std::atoi(std::getenv("WORLD_SIZE"));
    });
    CHECK(here == 1);
    CHECK((told[0] == 2 && told[1] == 2 && told[2] == 0 && told[3] == 1 && told[6] == 2 && told[7] == 2));
    CHECK(std::set<double>{told[4], told[5], static_cast<double>(::getpid())}.size() == 3);
    CHECK(std::getenv("RANK") == nullptr);
}

TEST_CASE("the rank that failed first is named with its message, and the others are ended") {
    LaunchOptions three;
    three.processes = 3;
    three.grace = std::chrono::milliseconds(200);
    three.function = [](const RankInfo& rank) {
        if (rank.rank == 1) throw std::runtime_error("the data are missing");
        for (;;) ::pause();
    };
    CHECK(launch(three).str() == "rank 1 failed first: the data are missing");
    CHECK(message_of<CommunicationError>([] {  // rank 0 waits until rank 1 has failed
              launch(2, [](ProcessGroup& group) {
                  if (group.rank() == 1) throw InvalidArgument("no such file");
                  group.barrier();
              });
          }) == "launch: rank 1 failed first: no such file");
    CHECK(message_of<CommunicationError>([] { launch(1, [](const RankInfo&) { throw 1; }); }) ==
          "launch: rank 0 failed first: an exception that is not a std::exception was thrown");
    CHECK(message_of<CommunicationError>([] {
              launch(2, [](const RankInfo&) { ::raise(SIGKILL); });
          }).ends_with(" failed first: killed by signal 9 (SIGKILL)"));
    LaunchOptions options;
    options.function = [](const RankInfo&) { ::_exit(7); };
    CHECK(launch(options).str() == "rank 0 failed first: exit status 7");
    const Told told;
    options.function = [&](const RankInfo&) {
        if (told[0].fetch_add(1) < 2) throw std::runtime_error("not yet");
    };
    options.max_restarts = 5;
    CHECK(launch(options).restarts == 2);
}

TEST_CASE("a rank that fails between two questions of the launcher has failed") {
    LaunchOptions one;
    one.function = [](const RankInfo&) { ::_exit(7); };
    for (const int calls : {0, 1, 2, 3}) {
        calls_until_the_end = calls;
        const std::string message = launch(one).str();
        calls_until_the_end = -1;
        CHECK(message == "rank 0 failed first: exit status 7");
    }
}

TEST_CASE("ranks train one model, and the calling process is unaffected") {
    const Told told;
    const auto train = [](auto& model) {
        SGD sgd(model, {.lr = 0.1});
        const Tensor x = Tensor::full({4, 3}, 1), y = Tensor::zeros({4, 2});
        for (int i = 0; i < 5; ++i) model.step(sgd, x, y, mse_loss);
        model.synchronize();
        return static_cast<double>(model->fc.weight->template to_vector<float>()[0]);
    };
    const auto net = [] {
        manual_seed(1);
        return Net{};
    };
    launch(2, [&](ProcessGroup& group) {
        DistributedDataParallel model(net(), group, {.shards = 2});
        told[group.rank()] = train(model);
    });
    CHECK(told[0] == told[1]);
    {
        DataParallel model(net(), {Device::cpu(0)}, {.shards = 2});
        CHECK(told[0] == train(model));
        CHECK(message_of<InvalidArgument>([] { launch(2, [](const RankInfo&) {}); }) ==
              "launch: virtual CPU devices are in use in this process, and ranks that call a function would lack them; "
              "launch before models and tensors are created, or launch a program");
    }
    if (device_count(DeviceKind::cuda) > 0) return;                              // an initialized driver stays in use
    launch(2, [&](ProcessGroup& group) { told[group.rank()] = group.size(); });  // the model has been destroyed
    CHECK((told[0] == 2 && told[1] == 2));
}

TEST_CASE("a launch has either a program or a function") {
    LaunchOptions options;
    options.function = [](const RankInfo&) {};
    options.command = {"true"};
    CHECK(message_of<InvalidArgument>([&] { launch(options); }) ==
          "launch: both a program and a function; expected one of them");
    CHECK_THAT(message_of<InvalidArgument>([] { launch(0, [](const RankInfo&) {}); }), contains("0 processes"));
}
