#include "lockstep/parallel/comm/mpi/mpi_world.h"

#include <fmt/format.h>

#include <condition_variable>
#include <deque>
#include <exception>
#include <future>
#include <mutex>
#include <thread>
#include <utility>

namespace lockstep {

namespace {

class Worker {
public:
    /// Exists as long as the process: its thread may wait forever.
    static Worker& instance() {
        static auto* one = new Worker;
        return *one;
    }
    std::future<void> start(std::function<void()> call) {
        const std::scoped_lock lock(mutex_);
        calls_.emplace_back(std::move(call));
        changed_.notify_one();
        return calls_.back().get_future();
    }

private:
    Worker() {
        std::thread([this] { work(); }).detach();
    }
    void work() {
        for (std::unique_lock lock(mutex_);;) {
            changed_.wait(lock, [&] { return !calls_.empty(); });
            std::packaged_task<void()> call = std::move(calls_.front());
            calls_.pop_front();
            lock.unlock();
            call();
            lock.lock();
        }
    }

    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<std::packaged_task<void()>> calls_;
};

}  // namespace

bool MpiThread::run(std::function<void()> call, Deadline deadline) {
    std::future<void> done = Worker::instance().start(std::move(call));
    while (done.wait_for(look_interval) != std::future_status::ready)
        if (RunClock::now() >= deadline) return false;
    done.get();
    return true;
}

}  // namespace lockstep

#if defined(OPEN_MPI) && __has_include(<mpi-ext.h>)
#include <mpi-ext.h>
#endif

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <optional>

#include "lockstep/runtime/internal/process.h"

namespace lockstep {

namespace {

bool initialized() {
    int yes = 0;
    MPI_Initialized(&yes);
    return yes != 0;
}

/// MPI's own report; nullopt if it gives none.
std::optional<bool> says_cuda_aware() {
#ifdef MPIX_CUDA_AWARE_SUPPORT
    return MPIX_Query_cuda_support() != 0;
#else
    return std::nullopt;
#endif
}

/// Without a launcher MPI creates a job of one process, and ends the process if it cannot.
bool launched() {
    constexpr std::array variables{"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK"};
    return std::any_of(variables.begin(), variables.end(),
                       [](const char* name) { return std::getenv(name) != nullptr; });
}

}  // namespace

MpiWorld& MpiWorld::get(const GroupInfo& info) {
    const auto otherwise = [&](const std::string& found) {
        return TransportError(
            fmt::format("{}, but the group has ranks of a job of {} or more; start the program with mpirun -n {}",
                        found, info.size, info.size));
    };
    if (!launched() && !initialized()) throw otherwise("this process was not started by mpirun");
    if (given_up_) throw TransportError("MPI can no longer be used in this process: an operation has failed");
    static MpiWorld world(info.timeout);
    if (world.size_ < info.size) throw otherwise(fmt::format("MPI has {} processes", world.size_));
    return world;
}

MpiWorld::MpiWorld(std::chrono::milliseconds timeout) {
    timeout_ = timeout;
    const auto told = environment::integer("LOCKSTEP_MPI_CUDA_AWARE", 0, 1);
    int provided = MPI_THREAD_SINGLE;
    if (initialized()) {
        require_mpi(MPI_Query_thread(&provided), "MPI_Query_thread");
    } else {
        const auto given = std::make_shared<int>(MPI_THREAD_SINGLE);
        const auto start = [given] {
            require_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, given.get()), "MPI_Init_thread");
        };
        if (!MpiThread::run(start, deadline_in(timeout))) {
            give_up();
            throw TransportError(
                fmt::format("MPI_Init did not finish within {} ms: a rank does not start", timeout.count()));
        }
        provided = *given;
        if (std::atexit(finalize) != 0) throw TransportError("MPI_Finalize would not be called when the process ends");
    }
    if (provided < MPI_THREAD_SERIALIZED)
        throw TransportError(
            "MPI was initialized without thread support; expected MPI_THREAD_MULTIPLE, or no MPI_Init before the "
            "group");
    serial_ = provided < MPI_THREAD_MULTIPLE;
    const std::optional<bool> says = says_cuda_aware();
    cuda_aware_ = told ? *told != 0 : says.value_or(false);
    may_call_cuda_ = cuda_aware_ || says.value_or(true);
    require_mpi(MPI_Comm_rank(MPI_COMM_WORLD, &rank_), "MPI_Comm_rank");
    require_mpi(MPI_Comm_size(MPI_COMM_WORLD, &size_), "MPI_Comm_size");
}

std::unique_lock<std::mutex> MpiWorld::lock() {
    return serial_ ? std::unique_lock(mutex_) : std::unique_lock<std::mutex>();
}

MpiWorld::Turn::Turn(MpiWorld& world, Deadline deadline) : world_(world) {
    std::unique_lock lock(world_.turns_);
    while (!world_.returned_.wait_for(lock, look_interval, [&] { return !world_.taken_; }))
        if (RunClock::now() >= deadline)
            throw TransportError("another group of this process was still being created when the deadline passed");
    world_.taken_ = true;
}

MpiWorld::Turn::~Turn() {
    {
        const std::scoped_lock lock(world_.turns_);
        world_.taken_ = false;
    }
    world_.returned_.notify_all();
}

void MpiWorld::finalize() {
    int done = 0;
    MPI_Finalized(&done);
    if (done == 0 && !skip_finalize_) MpiThread::run([] { MPI_Finalize(); }, deadline_in(timeout_));
}

void require_mpi(int status, const char* call) {
    if (status == MPI_SUCCESS) return;
    std::array<char, MPI_MAX_ERROR_STRING> text{};
    int length = 0;
    MPI_Error_string(status, text.data(), &length);
    std::string line(text.data(), static_cast<std::size_t>(length));
    std::replace(line.begin(), line.end(), '\n', ' ');
    throw TransportError(fmt::format("{}: {}", call, line));
}

}  // namespace lockstep
