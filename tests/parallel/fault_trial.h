// One job that trains while something happens to one of its ranks: what happens, where, and what the others make of it.
#pragma once

#include <fcntl.h>
#include <fmt/format.h>
#include <malloc.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <new>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/layers.h"
#include "lockstep/ops/sgd.h"
#include "lockstep/parallel/checkpoint.h"
#include "lockstep/parallel/comm/group/communicator.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "lockstep/runtime/error.h"
#include "lockstep/tests/parallel/comm/forked_ranks.h"
#include "lockstep/tests/parallel/file_fixture.h"
#include "lockstep/tests/parallel/test_operations.h"
#include "lockstep/tests/patience.h"

namespace fault_trial {

namespace ls = lockstep;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

/// `left`: the process ends with 0, its work undone.
enum class Fault { killed, stopped, left, thrown };
/// `anywhere`: a signal from outside, at some instant. `exchange`: while it waits in a collective of the training.
enum class Place { start, construction, forward, backward, exchange, between_steps, save, barrier, anywhere };

struct Trial {
    int number = 0, ranks = 2, victim = 0;
    std::string backend = "shm";
    bool tcp = false;  ///< the ranks meet at rank 0, not in a file
    Fault fault = Fault::killed;
    Place place = Place::start;
    int step = 0;      ///< in which it happens
    int exchange = 0;  ///< how many collectives later, for Place::exchange
    int delay_us = 0;  ///< from the start, for Place::anywhere

    std::string str() const {
        constexpr const char* faults[] = {"killed", "stopped", "left", "thrown"};
        constexpr const char* places[] = {"start",         "construction", "forward", "backward", "exchange",
                                          "between steps", "save",         "barrier", "anywhere"};
        return fmt::format("trial {}: {} ranks, {}, {} store, rank {} {} in {} (step {}, exchange {}, {} us)", number,
                           ranks, backend, tcp ? "tcp" : "file", victim, faults[static_cast<int>(fault)],
                           places[static_cast<int>(place)], step, exchange, delay_us);
    }
};

inline Trial random_trial(int number, const std::vector<std::string>& backends) {
    std::mt19937 random(static_cast<unsigned>(number));
    const auto below = [&](std::size_t count) { return static_cast<int>(random() % count); };
    Trial trial;
    trial.number = number;
    trial.ranks = 2 + below(3);
    trial.backend = backends[static_cast<std::size_t>(below(backends.size()))];
    trial.tcp = below(2) == 0;
    trial.place = static_cast<Place>(below(9));
    trial.fault = static_cast<Fault>(below(trial.place == Place::anywhere ? 2 : 4));
    trial.victim = trial.place == Place::save ? 0 : below(static_cast<std::size_t>(trial.ranks));
    trial.step = below(6);
    trial.exchange = below(8);
    trial.delay_us = below(100'000);
    return trial;
}

/// What the ranks and the test tell each other.
class Board {
public:
    struct Content {
        std::atomic<std::int64_t> event;     ///< when it happened; 0: not yet
        std::atomic<std::int64_t> ended[4];  ///< when a rank was done with everything; 0: not yet
    };
    static std::int64_t now() { return Clock::now().time_since_epoch().count(); }
    /// For this process and those that it forks.
    Board() : content_(new (map(MAP_SHARED | MAP_ANONYMOUS, -1)) Content{}) {}
    /// For all that open `file`, which is full of zeros before.
    explicit Board(const std::filesystem::path& file) {
        const int opened = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        if (opened < 0 || ::ftruncate(opened, sizeof(Content)) != 0) throw std::runtime_error("no board");
        content_ = static_cast<Content*>(map(MAP_SHARED, opened));
        ::close(opened);
    }
    ~Board() { ::munmap(content_, sizeof(Content)); }
    Board(const Board&) = delete;
    Board& operator=(const Board&) = delete;
    Content* operator->() const { return content_; }

private:
    static void* map(int flags, int file) {
        void* memory = ::mmap(nullptr, sizeof(Content), PROT_READ | PROT_WRITE, flags, file, 0);
        if (memory == MAP_FAILED) throw std::runtime_error("no memory for a board");
        return memory;
    }
    Content* content_;
};

/// Does it, on the victim. Comes back only with the exception, or when somebody lets a stopped process go on.
inline void cause(Fault fault, const Board& board) {
    board->event = Board::now();
    if (fault == Fault::killed) ::raise(SIGKILL);
    if (fault == Fault::stopped) ::kill(::getpid(), SIGSTOP);
    if (fault == Fault::left) ::_exit(0);
    if (fault == Fault::thrown) throw std::runtime_error("something broke");
}

struct Net {
    ls::Linear first{6, 512}, second{512, 16};
    LOCKSTEP_MEMBERS(first, second)
    ls::Tensor forward(const ls::Tensor& x) const { return second(test_operations::touch(ls::relu(first(x)))); }
};
constexpr rlim_t half_a_checkpoint = 24'000;  // of 45 kB

/// While it lives, the file that is written breaks off in the middle and the fault happens there.
class FaultInWriting {
public:
    FaultInWriting(Fault fault, const Board& board)
        : limit_(half_a_checkpoint) {  // where nothing is done about the signal writing throws
        if (fault == Fault::thrown) {
            board->event = Board::now();
            return;
        }
        now() = {fault, &board};
        ::signal(SIGXFSZ, [](int) { cause(now().first, *now().second); });
    }

private:
    static std::pair<Fault, const Board*>& now() {
        static std::pair<Fault, const Board*> instance;
        return instance;
    }
    ls::test::FileSizeLimit limit_;
};

/// Of all waiting in a trial. MPI alone may take seconds to begin.
inline milliseconds timeout_of(const Trial& trial) { return milliseconds(trial.backend == "mpi" ? 10000 : 1000); }

struct Meeting {
    std::string init_method, checkpoint;
    milliseconds timeout;
};

/// Trains until somebody cannot go on. Throws what a rank gets to hear.
inline void train(const Trial& trial, int rank, const Meeting& meeting, const Board& board) {
    const auto fault_in = [&](Place place) {
        if (rank == trial.victim && place == trial.place) cause(trial.fault, board);
    };
    ::mallopt(M_PERTURB, 90);  // what nobody has written does not look as if it were good
    fault_in(Place::start);
    ls::ProcessGroup group({.backend = trial.backend,
                            .rendezvous = {.init_method = meeting.init_method,
                                           .rank = rank,
                                           .world_size = trial.ranks,
                                           .time_limit = std::chrono::seconds(8)},
                            .time_limit = meeting.timeout});
    fault_in(Place::construction);
    ls::DistributedDataParallel model(Net{}, group, {.bucket_bytes = 20'000});
    ls::SGD sgd(model, {.lr = 0.01, .momentum = 0.5});
    const ls::Tensor x = ls::Tensor::randn({12, 6}), y = ls::Tensor::randn({12, 16});
    const auto patience = Clock::now() + ls::test::hang;
    for (int step = 0; Clock::now() < patience; ++step) {
        if (step == trial.step) {
            fault_in(Place::between_steps);
            test_operations::hook().forward = [&](int) { fault_in(Place::forward); };
            test_operations::hook().backward = [&](int) {
                fault_in(Place::backward);
                // The others come later, so that the victim waits in its collectives.
                if (trial.place == Place::exchange && rank != trial.victim)
                    std::this_thread::sleep_for(milliseconds(20));
            };
            if (trial.place == Place::exchange && rank == trial.victim)
                model.engine().job()->set_meanwhile(
                    [&, job = model.engine().job(),
                     least = model.engine().job()->sequence() + static_cast<std::uint64_t>(trial.exchange)] {
                        if (job->sequence() > least) fault_in(Place::exchange);
                    });
        }
        static_cast<void>(model.step(sgd, x, y, ls::mse_loss).item());
        if (rank == 0) {
            std::optional<FaultInWriting> fault;
            if (step == trial.step && trial.place == Place::save) fault.emplace(trial.fault, board);
            ls::save(model, meeting.checkpoint);
        }
        if (step == trial.step) {
            fault_in(Place::barrier);
            fault_in(Place::exchange);  // it has not waited in as many
        }
        group.barrier();
    }
    throw ls::Error("went on as if nothing had happened");
}

}  // namespace fault_trial
