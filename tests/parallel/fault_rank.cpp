// One rank of a trial that mpirun starts: fault-rank NUMBER FOLDER PATIENCE. Writes its process id and the error that
// it gets to the folder.
#include <cstdlib>
#include <fstream>

#include "lockstep/tests/fixtures/faults.h"

namespace ls = lockstep;
using namespace lockstep::test;

namespace {

/// Starting may take many seconds if name resolution is slow, which is not a fault: only later events are compared with
/// the trial's deadline.
void start_mpi(const FaultTrial& trial, int rank, const std::filesystem::path& folder) {
    const ls::ProcessGroup group({.backend = "mpi",
                                  .rendezvous = {.init_method = "file://" + (folder / "start").string(),
                                                 .rank = rank,
                                                 .world_size = trial.ranks},
                                  .time_limit = no_limit});
}

}  // namespace

int main(int, char** arguments) {
    ::setenv("LOCKSTEP_CPU_DEVICES", "1", 1);
    const int rank = std::atoi(std::getenv("OMPI_COMM_WORLD_RANK"));
    const std::filesystem::path folder = arguments[2];
    const auto file = [&](const char* name) { return folder / (name + std::to_string(rank)); };
    std::ofstream(file("pid-")) << ::getpid();
    FaultTrial trial = random_trial(std::atoi(arguments[1]), {"mpi"});
    trial.patience = std::atoi(arguments[3]);
    const FaultBoard board(folder / "board");
    std::string text;
    try {
        if (trial.place != FaultPlace::start && trial.place != FaultPlace::anywhere) start_mpi(trial, rank, folder);
        train_until_fault(
            trial, rank, {"file://" + (folder / "store").string(), (folder / "checkpoint").string(), timeout_of(trial)},
            board);
    } catch (const std::exception& error) {
        text = error.what();
    }
    board->ended[rank] = FaultBoard::now();
    std::ofstream(file("said-")) << text;
    return 1;
}
