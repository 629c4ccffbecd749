// An MPI that knows GPUs, for mpi_gpu_rank.cpp.
#pragma once

/// From now on MPI asks CUDA about every address it is given.
void let_mpi_know_gpus();
