// Whatever happens to one rank of a job that trains, wherever it happens: the others end in time with an error that
// says who it was, and nothing is left behind. LOCKSTEP_FAULT_TRIALS: how many trials; LOCKSTEP_FAULT_SEED: of which. A
// trial's number is the seed that begins with it. LOCKSTEP_FAULT_GRACE_MS: how late the others may be.
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <fstream>

#include "lockstep/parallel/data/safetensors.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/cpu_devices.h"
#include "lockstep/tests/parallel/fault_checks.h"

using namespace lockstep;
using namespace lockstep::testing;
using namespace fault_trial;

namespace {

const bool one_device = lockstep::test::set_cpu_devices(1);
std::vector<std::string> backends() {
    std::vector<std::string> names;
    for (const ProcessGroupBackend& backend : process_group_backends())
        if (backend.built_in && backend.name != "mpi" && backend.name != "nccl")  // mpirun's ranks; GPUs
            names.push_back(backend.name);
    return names;
}

/// A port that was free just now. No server of ours: a process with threads cannot fork.
int free_port() {
    const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    const bool bound = ::bind(socket, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
                       ::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) == 0;
    ::close(socket);
    if (!bound) throw std::runtime_error("no free port");
    return ntohs(address.sin_port);
}

/// Does any process listen there?
bool listens(int port) {
    std::ifstream table("/proc/net/tcp");
    std::string line;
    while (std::getline(table, line))
        if (line.find(fmt::format("0100007F:{:04X} 00000000:0000 0A", port)) != std::string::npos) return true;
    return false;
}

void check(const Trial& trial) {
    const std::string what = trial.str();
    INFO(what);
    test::TemporaryDirectory place;
    const int port = trial.tcp ? free_port() : 0;
    const Meeting meeting{trial.tcp ? fmt::format("tcp://127.0.0.1:{}", port) : "file://" + (place / "store").string(),
                          (place / "checkpoint").string(), timeout_of(trial)};
    const auto shared_memory = files_in("/dev/shm");
    const Board board;
    std::vector<std::vector<std::string>> said;
    {
        const auto begin = Clock::now();
        ForkedRanks ranks(trial.ranks, [&](int rank) {
            std::string text;
            try {
                train(trial, rank, meeting, board);
            } catch (const std::exception& error) {
                text = error.what();
            }
            board->ended[rank] = Board::now();
            return std::vector<std::string>{text};
        });
        if (trial.place == Place::anywhere) {
            std::this_thread::sleep_until(begin + std::chrono::microseconds(trial.delay_us));
            board->event = Board::now();
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
    CHECK(board->event != 0);
    for (int rank = 0; rank < trial.ranks; ++rank) {
        const auto& lines = said[static_cast<std::size_t>(rank)];
        INFO("rank " << rank << " said: " << (lines.empty() ? "nothing" : lines[0]));
        if (rank == trial.victim && trial.fault != Fault::thrown) continue;
        REQUIRE(lines.size() == 1);
        CHECK(lines[0] != "");
        if (rank != trial.victim) CHECK(tells_of(lines[0], trial.victim));
        CHECK(since_event(board, rank) <= timeout_of(trial) + grace());
        if (std::getenv("LOCKSTEP_FAULT_TRIALS"))
            fmt::print("{}\n    rank {} after {} ms: {}\n", what, rank, since_event(board, rank).count(), lines[0]);
    }
    CHECK(::waitpid(-1, nullptr, WNOHANG) == -1);  // there is no child, nor a child of one
    CHECK(!(trial.tcp && listens(port)));
    CHECK(left_in("/dev/shm", shared_memory) == std::set<std::string>());
    std::set<std::string> files = files_in(place.path());
    if (trial.place == Place::save) files.erase(meeting.checkpoint + ".lock");  // which the next save takes over
    if (files.erase(meeting.checkpoint) > 0) CHECK_NOTHROW(SafetensorsFile(meeting.checkpoint));
    CHECK(files == std::set<std::string>());
}

}  // namespace

TEST_CASE("whatever happens to a rank, the others end in time, and nothing is left") {
    REQUIRE(::prctl(PR_SET_CHILD_SUBREAPER, 1) == 0);
    const int seed = number_from("LOCKSTEP_FAULT_SEED", static_cast<int>(std::random_device{}() % 1'000'000));
    fmt::print("seed {}\n", seed);
    const int trials = number_from("LOCKSTEP_FAULT_TRIALS", 20);
    for (int number = 0; number < trials; ++number) check(random_trial(seed + number, backends()));
}
