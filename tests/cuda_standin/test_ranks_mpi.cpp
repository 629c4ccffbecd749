// The mpi backend on tensors of GPUs: through pinned memory, or directly if MPI supports their memory.
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/files.h"
#include "lockstep/tests/fixtures/messages.h"
#include "lockstep/tests/fixtures/processes.h"

using lockstep::test::TemporaryDirectory;

namespace {

/// Runs two ranks, which write their findings to `place`. Returns mpirun's exit status.
int run_ranks(const TemporaryDirectory& place, const char* cuda_aware) {
    const std::string here = place.path().string();
    return lockstep::test::run_child(
        {.command = {"/usr/bin/env", "mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none",
                     "--timeout", std::to_string(lockstep::test::hang.count()), "-n", "2", MPI_GPU_RANK, here},
         // MPI writes its files to this folder; it leaks memory at exit.
         .environment = {{"TMPDIR", here},
                         {"OMPI_MCA_btl_vader_backing_directory", here},
                         {"LOCKSTEP_MPI_CUDA_AWARE", cuda_aware},
                         {"ASAN_OPTIONS", "detect_leaks=0"}},
         .output = (place / "output").string()});
}

}  // namespace

TEST_CASE("every operation on GPUs and training under mpirun, with and without a CUDA-aware MPI") {
    for (const char* cuda_aware : {"0", "1"}) {
        const TemporaryDirectory place;
        INFO("CUDA-aware " << cuda_aware);
        CHECK(run_ranks(place, cuda_aware) == 0);
        for (int rank = 0; rank < 2; ++rank)
            CHECK(lockstep::test::get_bytes(place / ("rank" + std::to_string(rank))) == "done\n");
    }
}

TEST_CASE("LOCKSTEP_MPI_CUDA_AWARE is 0 or 1") {
    const TemporaryDirectory place;
    CHECK(run_ranks(place, "yes") != 0);
    CHECK_THAT(lockstep::test::get_bytes(place / "rank0"),
               lockstep::test::contains("LOCKSTEP_MPI_CUDA_AWARE=yes is invalid; expected an integer from 0 to 1"));
}
