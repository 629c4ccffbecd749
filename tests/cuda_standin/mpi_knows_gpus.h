// A CUDA-aware MPI, for mpi_gpu_rank.cpp.
#pragma once

/// Makes MPI query CUDA for every address from now on.
void let_mpi_know_gpus();
