// A rank that mpirun starts for a test: its place in the job, and the files in which the test finds its errors.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/parallel/comm/group/transport.h"
#include "lockstep/parallel/comm/rendezvous.h"
#include "lockstep/tests/fixtures/waiting.h"
#include "lockstep/tests/parallel/comm/transport_trials.h"

namespace lockstep::test {

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
                                   .timeout = test::no_limit,
                                   .global_ranks = members,
                                   .master_addr = {}});
    }
    std::unique_ptr<Transport> all() const {
        std::vector<int> members(static_cast<std::size_t>(size));
        std::iota(members.begin(), members.end(), 0);
        return group("all", members);
    }
};

/// Returns once `count` ranks have written their results, or at a time limit.
inline void wait_for_ends(const std::filesystem::path& folder, int count) {
    comes_true([&] {
        const auto said = [](const auto& entry) { return entry.path().filename().string().starts_with("end-"); };
        const std::filesystem::directory_iterator files(folder);
        return std::count_if(begin(files), end(files), said) >= count;
    });
}

/// main of a program `PROGRAM TRIAL FOLDER`, which runs a trial and returns its errors. Writes the process id into
/// FOLDER/pid-RANK at the start and the errors into FOLDER/end-RANK at the end.
inline int run_rank(
    int argc, char** argv,
    const std::function<Lines(const std::string& trial, const std::filesystem::path& folder, const Job& job)>& run) {
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
        const Job job{std::make_shared<FileStore>(folder / "store", no_limit), info.rank, info.world_size};
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
    if (trial != "exercise") std::this_thread::sleep_for(std::atoi(rank.c_str()) * std::chrono::milliseconds(300));
    return wrong.empty() ? 0 : 1;
}

}  // namespace lockstep::test
