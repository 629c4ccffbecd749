// Arguments of MPI calls: the reductions of reduce_elements as MPI_Ops, and sizes that do not fit into an int.
#pragma once

#include <mpi.h>

#include <cstddef>

#include "lockstep/parallel/comm/reduce_op.h"
#include "lockstep/runtime/dtype.h"

namespace lockstep {

/// `op` on elements of `dtype` that are sent as `mpi_type(dtype)`; not mean. The caller holds the world's lock.
MPI_Op mpi_op(DType dtype, ReduceOp op);
/// An MPI type of the same size: only mpi_op interprets the bytes.
MPI_Datatype mpi_type(DType dtype);

/// Any number of bytes, as `count` elements of `type`.
class MpiBytes {
public:
    explicit MpiBytes(std::size_t bytes);
    ~MpiBytes();
    MpiBytes(const MpiBytes&) = delete;
    MpiBytes& operator=(const MpiBytes&) = delete;
    int count() const { return count_; }
    MPI_Datatype type() const { return type_; }

private:
    int count_;
    MPI_Datatype type_ = MPI_BYTE;
};

}  // namespace lockstep
