// After any fault of one rank of a training job, at any place, the others end in time with an error that names it, and
// nothing is left behind. LOCKSTEP_FAULT_TRIALS: number of trials; LOCKSTEP_FAULT_SEED: their first seed. A trial's
// number is the seed that begins with it. LOCKSTEP_FAULT_GRACE_MS: how late the others may be.
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <fstream>

#include "lockstep/parallel/comm/store/sockets.h"
#include "lockstep/parallel/data/safetensors.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/environment.h"
#include "lockstep/tests/fixtures/faults.h"
#include "lockstep/tests/fixtures/processes.h"

using namespace lockstep;
using namespace lockstep::test;

namespace {

const bool one_device = lockstep::test::set_cpu_devices(1);
std::vector<std::string> backends() {
    std::vector<std::string> names;
    for (const ProcessGroupBackend& backend : process_group_backends())
        if (backend.present && backend.name != "mpi" && backend.name != "nccl")  // mpirun's ranks; GPUs
            names.push_back(backend.name);
    return names;
}

/// Whether any process listens there.
bool listens(int port) {
    std::ifstream table("/proc/net/tcp");
    std::string line;
    while (std::getline(table, line))
        if (line.find(fmt::format("0100007F:{:04X} 00000000:0000 0A", port)) != std::string::npos) return true;
    return false;
}

void check(const FaultTrial& trial) {
    const std::string what = trial.str();
    INFO(what);
    test::TemporaryDirectory place;
    const Descriptor held = hold_free_port();
    const int port = trial.tcp ? port_of(held) : 0;
    const FaultMeeting meeting{
        trial.tcp ? fmt::format("tcp://127.0.0.1:{}", port) : "file://" + (place / "store").string(),
        (place / "checkpoint").string(), timeout_of(trial)};
    const auto shared_memory = paths_in("/dev/shm");
    const FaultBoard board;
    std::vector<std::vector<std::string>> said;
    {
        const auto begin = std::chrono::steady_clock::now();
        ForkedRanks ranks(trial.ranks, [&](int rank) {
            std::string text;
            try {
                train_until_fault(trial, rank, meeting, board);
            } catch (const std::exception& error) {
                text = error.what();
            }
            board->ended[rank] = FaultBoard::now();
            return std::vector<std::string>{text};
        });
        if (trial.place == FaultPlace::anywhere) {
            std::this_thread::sleep_until(begin + std::chrono::microseconds(trial.delay_us));
            board->event = FaultBoard::now();
            ranks.signal(trial.victim, trial.fault == Fault::killed ? SIGKILL : SIGSTOP);
        }
        test::comes_true([&] {
            for (int rank = 0; rank < trial.ranks; ++rank)
                if (rank != trial.victim && board->ended[rank] == 0) return false;
            return true;
        });
        if (trial.fault == Fault::stopped) ranks.signal(trial.victim, SIGKILL);
        said = ranks.finish();
    }
    if (const auto again = to_repeat(trial, board)) return check(*again);
    CHECK(board->event != 0);
    for (int rank = 0; rank < trial.ranks; ++rank) {
        const auto& lines = said[static_cast<std::size_t>(rank)];
        INFO("rank " << rank << " said: " << (lines.empty() ? "nothing" : lines[0]));
        if (rank == trial.victim && trial.fault != Fault::thrown) continue;
        REQUIRE(lines.size() == 1);
        CHECK(lines[0] != "");
        if (rank != trial.victim) CHECK(is_about(lines[0], trial.victim));
        CHECK(since_event(board, rank) <= time_to_end(trial));
        if (std::getenv("LOCKSTEP_FAULT_TRIALS"))
            fmt::print("{}\n    rank {} after {} ms: {}\n", what, rank, since_event(board, rank).count(), lines[0]);
    }
    CHECK(::waitpid(-1, nullptr, WNOHANG) == -1);  // no child exists, nor a child of one
    CHECK(!(trial.tcp && listens(port)));
    CHECK(left_in("/dev/shm", shared_memory) == std::set<std::string>());
    std::set<std::string> files = paths_in(place.path());
    if (trial.place == FaultPlace::save) files.erase(meeting.checkpoint + ".lock");  // the next save takes it over
    if (files.erase(meeting.checkpoint) > 0) CHECK_NOTHROW(SafetensorsFile(meeting.checkpoint));
    CHECK(files == std::set<std::string>());
}

}  // namespace

TEST_CASE("after any fault of a rank, the others end in time and nothing is left behind") {
    REQUIRE(::prctl(PR_SET_CHILD_SUBREAPER, 1) == 0);
    const int seed = number_from("LOCKSTEP_FAULT_SEED", static_cast<int>(std::random_device{}() % 1'000'000));
    fmt::print("seed {}\n", seed);
    const int trials = number_from("LOCKSTEP_FAULT_TRIALS", 20);
    for (int number = 0; number < trials; ++number) check(random_trial(seed + number, backends()));
}
