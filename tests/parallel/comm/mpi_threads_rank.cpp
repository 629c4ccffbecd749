// mpi-threads-rank TRIAL FOLDER: one rank of test_mpi whose threads use MPI at the same time, started by mpirun. In
// trials that begin with "serial", the program starts MPI itself and promises that its threads call it one at a time.
#include <mpi.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/tests/fixtures/two_wrappers.h"
#include "lockstep/tests/parallel/comm/mpi_job.h"

using namespace lockstep;
using namespace lockstep::test;

namespace {

/// Calls `arrived` in the thread that reads, for the first time, that all ranks have arrived.
class WatchedStore final : public Store {
public:
    WatchedStore(std::shared_ptr<Store> store, std::string last_key, std::function<void()> arrived)
        : store_(std::move(store)), last_key_(std::move(last_key)), arrived_(std::move(arrived)) {}

    using Store::clone;
    using Store::get;
    void set(std::string_view key, std::string_view value) override { store_->set(key, value); }
    std::string get(std::string_view key, Milliseconds limit) override { return store_->get(key, limit); }
    std::optional<std::string> try_get(std::string_view key) override {
        std::optional<std::string> value = store_->try_get(key);
        if (value && key == last_key_) arrived_();
        return value;
    }
    std::int64_t add(std::string_view key, std::int64_t amount) override { return store_->add(key, amount); }
    std::string compare_set(std::string_view key, std::string_view expected, std::string_view desired) override {
        return store_->compare_set(key, expected, desired);
    }
    bool remove(std::string_view key) override { return store_->remove(key); }
    std::int64_t count() override { return store_->count(); }
    std::unique_ptr<Store> clone(Milliseconds limit) override { return store_->clone(limit); }
    Milliseconds time_limit() const override { return store_->time_limit(); }
    std::string describe() const override { return store_->describe(); }

private:
    std::shared_ptr<Store> store_;
    std::string last_key_;
    std::function<void()> arrived_;
};

/// A group of all ranks. `arrived`: see WatchedStore; the next thing that the thread does is to create communicators.
std::unique_ptr<Transport> group_of_all(const Job& job, const std::string& name, std::function<void()> arrived) {
    const auto watched =
        std::make_shared<WatchedStore>(job.store, name + "/here/" + std::to_string(job.size - 1), std::move(arrived));
    std::vector<int> members(static_cast<std::size_t>(job.size));
    std::iota(members.begin(), members.end(), 0);
    return mpi_backend().make({.rank = job.rank,
                               .size = job.size,
                               .store = std::make_shared<PrefixStore>(name + "/", watched),
                               .timeout = std::chrono::milliseconds(60000),
                               .global_ranks = members,
                               .master_addr = {}});
}

/// Two groups, each created and used by a thread. Even ranks begin to create one first, odd ranks the other one. MPI
/// cannot tell their creations apart: a group would consist of one rank's part of one and another rank's of the other.
Lines creations(const Job& job) {
    std::atomic<int> mixed{0};
    for (int round = 0; round < 5; ++round) {
        std::array<int, 2> groups{2 * round, 2 * round + 1};
        if (job.rank % 2 == 1) std::swap(groups[0], groups[1]);
        Gate begun;
        const auto use = [&](int group, const std::function<void()>& arrived) {
            const auto transport = group_of_all(job, "group" + std::to_string(group), arrived);
            std::int32_t sum = group;
            transport->all_reduce(&sum, 1, DType::i32, ReduceOp::sum, far_off());
            if (sum != group * job.size) ++mixed;
            transport->barrier(far_off());
        };
        in_threads({[&] { use(groups[0], [&] { begun.open(); }); }, [&] { use(groups[1], [&] { begun.pass(); }); }});
    }
    return mixed == 0 ? Lines() : Lines{std::to_string(mixed) + " groups have ranks of another group"};
}

Lines wrappers(const std::filesystem::path& folder, const Job& job) {
    ProcessGroup group({.backend = "mpi",
                        .rendezvous = {.init_method = "file://" + (folder / "group").string(),
                                       .rank = job.rank,
                                       .world_size = job.size,
                                       .time_limit = no_limit},
                        .time_limit = no_limit});
    const std::unique_ptr<ProcessGroup> second = group.duplicate();
    return train_two_wrappers(group, *second);
}

Lines run(const std::string& trial, const std::filesystem::path& folder, const Job& job) {
    return trial.ends_with("creations") ? creations(job) : wrappers(folder, job);
}

}  // namespace

int main(int argc, char** argv) {
    ::setenv("LOCKSTEP_CPU_DEVICES", "2", 1);
    const bool serial = argc > 1 && std::string_view(argv[1]).starts_with("serial");
    int provided = MPI_THREAD_SINGLE;
    if (serial) MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided);
    if (serial && provided != MPI_THREAD_SERIALIZED) return 3;
    const int status = run_rank(argc, argv, run);
    if (serial && status == 0) MPI_Finalize();
    return status;
}
