// Whatever happens to one rank of a job that trains, wherever it happens: the others end in time with an error that
// says who it was, and nothing is left behind. LOCKSTEP_FAULT_TRIALS: how many trials; LOCKSTEP_FAULT_SEED: of which. A
// trial's number is the seed that begins with it. LOCKSTEP_FAULT_GRACE_MS: how late the others may be.
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "lockstep/parallel/safetensors.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/parallel/fault_trial.h"
#include "lockstep/tests/runtime/gate.h"

using namespace lockstep;
using namespace lockstep::testing;
using namespace fault_trial;

namespace {

const bool one_device = ::setenv("LOCKSTEP_CPU_DEVICES", "1", 1) == 0;
constexpr milliseconds timeout(1000);

int number_from(const char* variable, int otherwise) {
    const char* text = std::getenv(variable);
    return text ? std::atoi(text) : otherwise;
}

/// What the others are given beyond the deadline.
milliseconds grace() { return milliseconds(number_from("LOCKSTEP_FAULT_GRACE_MS", 1000)); }

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

std::set<std::string> files_in(const std::filesystem::path& directory) {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(directory)) names.insert(entry.path().string());
    return names;
}

/// Files in `directory` that were not there before and stay: those of other programs come and go.
std::set<std::string> left_in(const std::filesystem::path& directory, const std::set<std::string>& before) {
    const auto patience = Clock::now() + std::chrono::seconds(30);
    std::set<std::string> left = files_in(directory);
    for (const std::string& name : before) left.erase(name);
    while (!left.empty() && Clock::now() < patience) {
        std::this_thread::sleep_for(milliseconds(20));
        std::erase_if(left, [](const std::string& name) { return !std::filesystem::exists(name); });
    }
    return left;
}

/// "rank 2", or 2 in a list behind "ranks".
bool names(const std::string& text, int victim) {
    for (std::size_t at = text.find("rank"); at != std::string::npos; at = text.find("rank", at + 4)) {
        std::istringstream list(text.substr(text[at + 4] == 's' ? at + 5 : at + 4));
        char comma = ',';
        for (int rank = 0; comma == ',' && list >> rank; comma = static_cast<char>(list.get()))
            if (rank == victim) return true;
    }
    return false;
}

/// A rank that goes on from one group to the next may find that all others have given the job up and removed its file.
bool tells_of(const std::string& text, int victim) {
    return names(text, victim) || lockstep::testing::contains(text, "it was removed: the job has ended");
}

milliseconds since_event(const Board& board, int rank) {
    return std::chrono::duration_cast<milliseconds>(
        Clock::duration(board->ended[static_cast<std::size_t>(rank)].load() - board->event.load()));
}

void wait_until(const std::function<bool()>& there) {
    const auto patience = Clock::now() + std::chrono::seconds(30);
    while (!there() && Clock::now() < patience) std::this_thread::sleep_for(milliseconds(1));
}

void check(const Trial& trial) {
    const std::string what = trial.str();
    INFO(what);
    test::TemporaryDirectory place;
    const int port = trial.tcp ? free_port() : 0;
    const Meeting meeting{trial.tcp ? fmt::format("tcp://127.0.0.1:{}", port) : "file://" + (place / "store").string(),
                          (place / "checkpoint").string(), timeout};
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
        wait_until([&] {
            for (int rank = 0; rank < trial.ranks; ++rank)
                if (rank != trial.victim && board->ended[rank] == 0) return false;
            return true;
        });
        if (trial.fault == Fault::stopped) ranks.signal(trial.victim, SIGKILL);
        said = ranks.finish(std::chrono::seconds(10));
    }
    CHECK(board->event != 0);
    for (int rank = 0; rank < trial.ranks; ++rank) {
        const auto& lines = said[static_cast<std::size_t>(rank)];
        INFO("rank " << rank << " said: " << (lines.empty() ? "nothing" : lines[0]));
        if (rank == trial.victim && trial.fault != Fault::thrown) continue;
        REQUIRE(lines.size() == 1);
        CHECK(lines[0] != "");
        if (rank != trial.victim) CHECK(tells_of(lines[0], trial.victim));
        CHECK(since_event(board, rank) <= timeout + grace());
        if (std::getenv("LOCKSTEP_FAULT_TRIALS"))
            fmt::print("{}\n    rank {} after {} ms: {}\n", what, rank, since_event(board, rank).count(), lines[0]);
    }
    CHECK(::waitpid(-1, nullptr, WNOHANG) == -1);  // there is no child, nor a child of one
    CHECK(!(trial.tcp && listens(port)));
    CHECK(left_in("/dev/shm", shared_memory) == std::set<std::string>());
    std::set<std::string> files = files_in(place.path());
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
