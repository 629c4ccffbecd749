// mpi-rank TRIAL FOLDER: one rank of test_mpi, started by mpirun. Writes its process id into FOLDER/pid-RANK at its
// start and its errors, if any, into FOLDER/end-RANK at its end.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/parallel/comm/group/transport.h"
#include "lockstep/parallel/comm/process_group.h"
#include "lockstep/parallel/comm/rendezvous.h"
#include "lockstep/tests/parallel/comm/transport_exercise.h"
#include "lockstep/tests/parallel/comm/transport_trials.h"

using namespace lockstep;
using namespace lockstep::test;
using std::chrono::milliseconds;

namespace {

struct Job {
    std::shared_ptr<Store> store;
    int rank, size;

    /// A group of some of the ranks, under a unique name.
    std::unique_ptr<Transport> group(const std::string& name, const std::vector<int>& members) const {
        int own = 0;
        while (members[static_cast<std::size_t>(own)] != rank) ++own;
        return mpi_backend().make({.rank = own,
                                   .size = static_cast<int>(members.size()),
                                   .store = std::make_shared<PrefixStore>(name + "/", store),
                                   .timeout = milliseconds(60000),
                                   .global_ranks = members,
                                   .master_addr = {}});
    }
    std::unique_ptr<Transport> all() const {
        std::vector<int> members(static_cast<std::size_t>(size));
        std::iota(members.begin(), members.end(), 0);
        return group("all", members);
    }
};

void append(Lines& to, const Lines& more) { to.insert(to.end(), more.begin(), more.end()); }

Lines exercise(const Job& job) {
    const auto transport = job.all();
    Lines wrong = exercise_transport(*transport, job.rank, job.size);
    append(wrong, other_bits(*transport, job.rank));
    if (job.size < 3) return wrong;
    if (job.rank > 0) {  // a part of the job, in another order, in addition to the whole
        std::vector<int> members;
        for (int r = job.size - 1; r > 0; --r) members.push_back(r);
        const auto part = job.group("part", members);
        append(wrong, exercise_transport(*part, job.size - 1 - job.rank, job.size - 1));
    }
    transport->barrier(far_off());
    return wrong;
}

Lines messages(const Job& job) {
    const auto transport = job.all();
    std::vector<unsigned char> data(1 << 20, 7), got(data.size());
    const int other = job.rank ^ 1;
    for (const std::size_t bytes : {std::size_t{100}, data.size()}) {  // cancelled messages do not match later ones
        transport->receive(data.data(), bytes, other, 1);
        transport->receive(data.data(), bytes, Transport::any_source, 1);
        transport->barrier(far_off());
        const auto sent = transport->send(data.data(), bytes, other, 1);
        finish(*transport->receive(got.data(), bytes, other, 1));
        finish(*sent);
    }
    if (got != data) return {"other bytes"};
    transport->barrier(far_off());
    if (job.rank == 1) {
        finish(*transport->send(data.data(), 100, 0, 1));
        return {};
    }
    const std::size_t expected = job.rank == 0 ? 200 : 0;
    const std::string error = error_of([&] { finish(*transport->receive(got.data(), expected, 1, 1)); });
    const Lines wrong = unless(error, "rank 1 sent 100 bytes; expected 200");
    if (!wrong.empty()) return wrong;
    const std::string later = error_of([&] { transport->barrier(far_off()); });
    return unless(later, error);
}

/// Returns once `count` ranks have written their results, or at a time limit.
void wait_for_ends(const std::filesystem::path& folder, int count) {
    test::comes_true([&] {
        const auto said = [](const auto& entry) { return entry.path().filename().string().starts_with("end-"); };
        const std::filesystem::directory_iterator files(folder);
        return std::count_if(begin(files), end(files), said) >= count;
    });
}

/// Rank 1 stops or leaves, while the others wait for it.
Lines without_rank_1(const Job& job, const std::filesystem::path& folder, bool stop) {
    auto transport = job.all();
    transport->barrier(far_off());
    if (job.rank == 1 && stop) ::kill(::getpid(), SIGSTOP);
    if (job.rank == 1) {
        transport.reset();
        wait_for_ends(folder, job.size - 1);
        return {};
    }
    std::vector<float> data(1 << 16);
    const std::string error =
        error_of([&] { transport->all_reduce(data.data(), data.size(), DType::f32, ReduceOp::sum, in(1000)); });
    transport.reset();
    return unless(error, "deadline");
}

Lines aborted(const Job& job) {
    auto transport = job.all();
    std::thread other([&] {
        std::this_thread::sleep_for(milliseconds(100));
        transport->abort("had enough");
    });
    const std::string error = error_of([&] {
        for (;;) transport->broadcast(nullptr, 0, 0, far_off()), transport->barrier(far_off());
    });
    other.join();
    return unless(error, "had enough");
}

Lines killed(const Job& job) {
    const auto transport = job.all();
    transport->barrier(far_off());
    if (job.rank == 1) ::kill(::getpid(), SIGKILL);
    for (;;) transport->barrier(far_off());
}

Lines run(const std::string& trial, const std::filesystem::path& folder, const Job& job) {
    if (trial == "exercise") return exercise(job);
    if (trial == "messages") return messages(job);
    if (trial == "stop") return without_rank_1(job, folder, true);
    if (trial == "leave") return without_rank_1(job, folder, false);
    if (trial == "abort") return aborted(job);
    if (trial == "kill") return killed(job);
    return {"trial not found"};
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 3) return 2;
    const std::filesystem::path folder(argv[2]);
    const std::string trial = argv[1];
    Lines wrong;
    std::string rank = "unknown";
    int size = 0;
    try {
        const RankInfo info = rank_info();
        rank = std::to_string(info.rank);
        std::ofstream(folder / ("pid-" + rank)) << ::getpid() << '\n';
        const Job job{std::make_shared<FileStore>(folder / "store", test::no_limit), info.rank, info.world_size};
        size = job.size;
        wrong = run(trial, folder, job);
    } catch (const std::exception& error) {
        wrong.push_back(error.what());
    }
    {
        std::ofstream end(folder / ("unfinished-" + rank));
        for (const std::string& line : wrong) end << line << '\n';
    }
    std::filesystem::rename(folder / ("unfinished-" + rank), folder / ("end-" + rank));
    // mpirun kills the others as soon as one has ended without MPI_Finalize, so each first writes its results.
    wait_for_ends(folder, trial == "stop" ? size - 1 : size);
    // If several end in this way at the same time, mpirun of Open MPI 4.1 sometimes crashes or hangs.
    if (trial != "exercise") std::this_thread::sleep_for(std::atoi(rank.c_str()) * milliseconds(300));
    return wrong.empty() ? 0 : 1;
}
