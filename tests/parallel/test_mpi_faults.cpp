// As test_ddp_faults, under mpirun: ranks that detect the fault report it in time, and when one has ended mpirun ends
// the others, with nothing left behind. Uses the same environment variables.
#include <fstream>
#include <iterator>
#include <random>

#include "lockstep/parallel/data/safetensors.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/environment.h"
#include "lockstep/tests/fixtures/faults.h"
#include "lockstep/tests/fixtures/processes.h"

using namespace lockstep::test;
namespace test = lockstep::test;

namespace {

/// Time that mpirun needs to end a job: a stopped process gets a second before it is killed.
constexpr std::chrono::milliseconds to_end_the_job(10000);

std::string content(const std::filesystem::path& file) {
    std::ifstream in(file);
    return {std::istreambuf_iterator<char>(in), {}};
}

bool gone(int pid) {
    return test::comes_true([&] { return ::kill(pid, 0) != 0; });
}

/// Causes the fault from outside, once the victim runs.
void strike(const FaultTrial& trial, const std::filesystem::path& folder, const FaultBoard& board) {
    const auto pid_file = folder / ("pid-" + std::to_string(trial.victim));
    test::comes_true([&] { return !content(pid_file).empty(); });
    std::this_thread::sleep_for(std::chrono::microseconds(5 * trial.delay_us));  // MPI needs time to begin
    board->event = FaultBoard::now();
    ::kill(std::atoi(content(pid_file).c_str()), trial.fault == Fault::killed ? SIGKILL : SIGSTOP);
}

void check(const FaultTrial& trial) {
    const std::string what = trial.str();
    INFO(what);
    const test::TemporaryDirectory place;
    const std::filesystem::path folder = place.path();
    const auto shared_memory = paths_in("/dev/shm");
    const FaultBoard board(folder / "board");
    std::thread outside;
    if (trial.place == FaultPlace::anywhere) outside = std::thread([&] { strike(trial, folder, board); });
    test::ChildProcess job{
        .command = {"/usr/bin/env", "timeout", "-k", "5", std::to_string(no_limit.count()), "mpirun",
                    "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", std::to_string(trial.ranks),
                    FAULT_RANK, std::to_string(trial.number), folder.string(), std::to_string(trial.patience)},
        .environment = {{"TMPDIR", folder.string()}, {"OMPI_MCA_btl_vader_backing_directory", folder.string()}},
        .output = folder / "output"};
    const int status = test::run_child(job);
    const auto over = std::chrono::duration_cast<std::chrono::milliseconds>(
        std::chrono::steady_clock::duration(FaultBoard::now() - board->event.load()));
    if (outside.joinable()) outside.join();
    INFO(content(folder / "output"));
    if (const auto again = to_repeat(trial, board)) return check(*again);
    CHECK(board->event != 0);
    CHECK(status != 0);
    CHECK(status != 124);  // status of `timeout`
    CHECK(over <= time_to_end(trial) + to_end_the_job);
    for (int rank = 0; rank < trial.ranks; ++rank) {
        const std::string said = content(folder / ("said-" + std::to_string(rank)));
        INFO("rank " << rank << " said: " << said);
        const int pid = std::atoi(content(folder / ("pid-" + std::to_string(rank))).c_str());
        CHECK((pid == 0 || gone(pid)));
        if (rank == trial.victim || board->ended[rank] == 0) continue;  // mpirun may be faster
        CHECK(is_about(said, trial.victim));
        CHECK(since_event(board, rank) <= time_to_end(trial));
    }
    CHECK(left_in("/dev/shm", shared_memory) == std::set<std::string>());
    if (std::filesystem::exists(folder / "checkpoint")) CHECK_NOTHROW(lockstep::SafetensorsFile(folder / "checkpoint"));
    for (const std::string& file : paths_in(folder))  // the next save takes over the lock
        CHECK((file.find("checkpoint.") == std::string::npos ||
               (trial.place == FaultPlace::save && file.ends_with("checkpoint.lock"))));
    if (std::getenv("LOCKSTEP_FAULT_TRIALS")) fmt::print("{}\n    over after {} ms\n", what, over.count());
}

}  // namespace

TEST_CASE("after any fault of a rank under mpirun, the job ends in time and nothing is left behind") {
    if (const std::string reason = lockstep::unusable_reason("mpi"); !reason.empty()) {
        fmt::print("skipped: mpi: {}\n", reason);
        return;
    }
    if (std::system("command -v mpirun > /dev/null") != 0) {
        fmt::print("skipped: there is no mpirun; install openmpi-bin\n");
        return;
    }
    const int seed = number_from("LOCKSTEP_FAULT_SEED", static_cast<int>(std::random_device{}() % 1'000'000));
    fmt::print("seed {}\n", seed);
    const int trials = number_from("LOCKSTEP_FAULT_TRIALS", 6);
    for (int number = 0; number < trials; ++number) check(random_trial(seed + number, {"mpi"}));
}
