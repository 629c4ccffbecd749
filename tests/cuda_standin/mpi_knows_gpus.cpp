// Makes the linked MPI CUDA-aware, through MPI's profiling interface: like such libraries, it queries CUDA for every
// address passed to it, on any thread.
#include "lockstep/tests/cuda_standin/mpi_knows_gpus.h"

#include <cuda_runtime_api.h>
#include <mpi.h>

namespace {

bool knows_gpus = false;

void look_at(const void* address) {
    if (!knows_gpus || address == nullptr) return;
    cudaPointerAttributes attributes{};
    if (cudaPointerGetAttributes(&attributes, address) != cudaSuccess) (void)cudaGetLastError();
}

}  // namespace

void let_mpi_know_gpus() { knows_gpus = true; }

extern "C" {

int MPI_Isend(const void* data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request* request) {
    look_at(data);
    return PMPI_Isend(data, count, type, to, tag, comm, request);
}

int MPI_Irecv(void* data, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Request* request) {
    look_at(data);
    return PMPI_Irecv(data, count, type, from, tag, comm, request);
}

int MPI_Ibcast(void* data, int count, MPI_Datatype type, int root, MPI_Comm comm, MPI_Request* request) {
    look_at(data);
    return PMPI_Ibcast(data, count, type, root, comm, request);
}

int MPI_Iallreduce(const void* in, void* out, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm,
                   MPI_Request* request) {
    look_at(in == MPI_IN_PLACE ? out : in);
    return PMPI_Iallreduce(in, out, count, type, op, comm, request);
}

}  // extern "C"
