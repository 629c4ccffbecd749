// One rank of a trial that mpirun starts: fault-rank NUMBER FOLDER. Leaves its process id and what it gets to hear
// there.
#include <cstdlib>
#include <fstream>

#include "lockstep/tests/parallel/fault_trial.h"

using namespace fault_trial;

namespace {

/// It may take many seconds where names are resolved slowly, and that is no fault: only what happens meanwhile is tried
/// against the trial's deadline.
void start_mpi(const Trial& trial, int rank, const std::filesystem::path& folder) {
    const ls::ProcessGroup group({.backend = "mpi",
                                  .rendezvous = {.init_method = "file://" + (folder / "start").string(),
                                                 .rank = rank,
                                                 .world_size = trial.ranks},
                                  .time_limit = std::chrono::seconds(60)});
}

}  // namespace

int main(int, char** arguments) {
    ::setenv("LOCKSTEP_CPU_DEVICES", "1", 1);
    const int rank = std::atoi(std::getenv("OMPI_COMM_WORLD_RANK"));
    const std::filesystem::path folder = arguments[2];
    const auto file = [&](const char* name) { return folder / (name + std::to_string(rank)); };
    std::ofstream(file("pid-")) << ::getpid();
    const Trial trial = random_trial(std::atoi(arguments[1]), {"mpi"});
    const Board board(folder / "board");
    std::string text;
    try {
        if (trial.place != Place::start && trial.place != Place::anywhere) start_mpi(trial, rank, folder);
        train(trial, rank,
              {"file://" + (folder / "store").string(), (folder / "checkpoint").string(), timeout_of(trial)}, board);
    } catch (const std::exception& error) {
        text = error.what();
    }
    board->ended[rank] = Board::now();
    std::ofstream(file("said-")) << text;
    return 1;
}
