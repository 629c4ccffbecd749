// Process groups by MPI: mpirun starts mpi-rank, a small program whose ranks run a trial and write their errors to
// files.
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/parallel/comm/group/transport.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/files.h"
#include "lockstep/tests/fixtures/messages.h"
#include "lockstep/tests/fixtures/processes.h"
#include "lockstep/tests/fixtures/waiting.h"
#include "lockstep/tests/parallel/comm/transport_trials.h"

using namespace lockstep;
using namespace lockstep::test;

namespace {

bool on_path(const std::string& program) {
    const char* path = std::getenv("PATH");
    std::string rest = path != nullptr ? path : "";
    for (std::size_t at = 0; at <= rest.size();) {
        const std::size_t end = std::min(rest.find(':', at), rest.size());
        if (::access((rest.substr(at, end - at) + "/" + program).c_str(), X_OK) == 0) return true;
        at = end + 1;
    }
    return false;
}

bool absent() {
    if (mpi_backend().make == nullptr)
        std::printf("skipped: mpi: %s\n", mpi_backend().absence.c_str());
    else if (!on_path("mpirun"))
        std::printf("skipped: there is no mpirun; install openmpi-bin\n");
    else
        return false;
    return true;
}

std::string content(const std::filesystem::path& file) {
    std::ifstream in(file);
    if (!in) return "did not reach its end\n";
    return {std::istreambuf_iterator<char>(in), {}};
}

struct Outcome {
    int status = 0;
    std::string output;
    std::vector<std::string> ends;  ///< errors of each rank
    std::string left;               ///< process ids that still exist

    std::string failures() const {
        std::string text;
        for (std::size_t r = 0; r < ends.size(); ++r)
            if (!ends[r].empty()) text += "rank " + std::to_string(r) + ": " + ends[r];
        return text;
    }
};

/// A process killed by mpirun may take a moment to disappear.
bool gone(int pid) {
    return test::comes_true([&] { return ::kill(pid, 0) != 0 && errno == ESRCH; });
}

Outcome start(const std::string& trial, int ranks, const char* program = MPI_RANK) {
    const test::TemporaryDirectory folder;
    const std::string here = (folder / "").string();
    const auto file = [&](const std::string& name, int rank) { return folder / (name + std::to_string(rank)).c_str(); };
    test::ChildProcess job{
        .command = {"/usr/bin/env", "timeout", "-k", "10", "300", "mpirun", "--allow-run-as-root", "--oversubscribe",
                    "--bind-to", "none", "-n", std::to_string(ranks), program, trial, here},
        .environment = {{"TMPDIR", here}, {"OMPI_MCA_btl_vader_backing_directory", here}},
        .output = folder / "output"};
    const char* asan = std::getenv("ASAN_OPTIONS");  // MPI leaks memory
    job.environment.emplace_back("ASAN_OPTIONS",
                                 (asan != nullptr ? std::string(asan) + ":" : std::string()) + "detect_leaks=0");
    Outcome outcome;
    outcome.status = test::run_child(job);
    outcome.output = content(folder / "output");
    // When all ranks of a failed job have ended, Open MPI 4.1's mpirun itself sometimes crashes. If a rank crashes, it
    // names the rank.
    if (outcome.status == 128 + SIGSEGV && !contains(outcome.output, "on signal 11")) outcome.status = 1;
    for (int rank = 0; rank < ranks; ++rank) {
        outcome.ends.push_back(content(file("end-", rank)));
        const int pid = std::atoi(content(file("pid-", rank)).c_str());
        if (pid <= 0 || !gone(pid)) outcome.left += " " + std::to_string(pid);
    }
    return outcome;
}

}  // namespace

TEST_CASE("every operation over MPI") {
    if (absent()) return;
    const int ranks = GENERATE(2, 3, 4, 8);
    const Outcome outcome = start("exercise", ranks);
    INFO(outcome.output);
    CHECK(outcome.failures() == "");
    CHECK(outcome.status == 0);
    CHECK(outcome.left == "");
}

TEST_CASE("two threads of every rank create groups in opposite orders, and train wrappers in opposite orders") {
    if (absent()) return;
    const std::string trial = GENERATE("creations", "wrappers");
    const std::string mode = GENERATE("", "serial ");
    INFO(mode << trial);
    const Outcome outcome = start(mode + trial, 2, MPI_THREADS_RANK);
    INFO(outcome.output);
    CHECK(outcome.failures() == "");
    CHECK(outcome.status == 0);
}

TEST_CASE("groups that overlap are created by several threads at once") {
    if (absent()) return;
    const Outcome outcome = start("creations", 3, MPI_THREADS_RANK);
    INFO(outcome.output);
    CHECK(outcome.failures() == "");
}

TEST_CASE("MPI messages that are abandoned or have the wrong size") {
    if (absent()) return;
    const Outcome outcome = start("messages", 2);
    INFO(outcome.output);
    CHECK(outcome.failures() == "");
}

TEST_CASE("a rank that stops, leaves or aborts is detected at the deadline, and the job ends") {
    if (absent()) return;
    const std::string trial = GENERATE("stop", "leave", "abort");
    Outcome outcome = start(trial, 3);
    INFO(trial << ": " << outcome.output);
    if (trial != "abort") outcome.ends[1].clear();  // mpirun ends rank 1 when the others have ended with an error
    CHECK(outcome.failures() == "");
    CHECK(outcome.status != 124);  // status of `timeout`
    CHECK(outcome.status < 128);
    CHECK(outcome.left == "");
}

TEST_CASE("mpirun ends a job whose rank was killed") {
    if (absent()) return;
    const Outcome outcome = start("kill", 3);
    INFO(outcome.output);
    CHECK(outcome.status != 0);
    CHECK(outcome.status != 124);
    for (const std::string& end : outcome.ends) CHECK(contains(end, "did not reach its end"));
    CHECK(outcome.left == "");
}

TEST_CASE("without mpirun, the error explains what to do") {
    if (absent()) return;
    const test::TemporaryDirectory folder;
    const std::string error = error_of([&] {
        mpi_backend().make({.rank = 0,
                            .size = 2,
                            .store = std::make_shared<FileStore>(folder / "store"),
                            .timeout = std::chrono::milliseconds(1000),
                            .global_ranks = {0, 1},
                            .master_addr = {}});
    });
    CHECK(contains(error, "mpirun -n 2"));
}
