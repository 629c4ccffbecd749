// The stand-in's representation of NCCL's communicators.
#pragma once

#include <nccl.h>

#include "lockstep/tests/cuda_standin/nccl_link.h"
#include "lockstep/tests/cuda_standin/state.h"

namespace standin {

struct NcclCommunicator : Communicator {
    NcclCommunicator(std::string name, int rank, int size, int gpu) : link(std::move(name), rank, size, gpu) {}
    void abort() override {
        link.abort();
        ready->wait();
        link.hang_up();
    }

    Link link;
    int device = 0;
    bool blocking = true;
    MarkerPtr ready = std::make_shared<Marker>();  // done when the other ranks are connected, or on an error
    MarkerPtr launched;  // if not blocking: done when the last operations are in their streams; or empty
    MarkerPtr last;      // the end of the last operation, or empty
    std::weak_ptr<Stream> last_stream;
    // If not blocking: an operation has returned ncclInProgress, which has not been queried since.
    bool unasked = false;
    bool finalized = false;
    std::thread::id grouping;  // the thread that has added operations of it to a group that is still open

    bool is_launching() const { return launched && !launched->done(); }
};
using NcclCommunicatorPtr = std::shared_ptr<NcclCommunicator>;

/// Refuses communicators that were destroyed, aborted or never created.
NcclCommunicatorPtr communicator(Call& call, ncclComm_t handle);
/// The same for every use except its end; refuses one that is not ready. Stores its error in `error`.
NcclCommunicatorPtr usable_communicator(Call& call, ncclComm_t handle, ncclResult_t& error);

/// The result of `values[0] op values[1] op …`, in this order, of `count` elements each.
void reduce_parts(ncclDataType_t type, ncclRedOp_t op, const std::vector<const char*>& values, std::size_t count,
                  char* to);

ncclResult_t nccl_status(cudaError_t code);
/// True between ncclGroupStart and ncclGroupEnd of this thread.
bool in_nccl_group();

/// `body` returns an ncclResult_t; ncclInProgress is not an error.
template <class Body>
ncclResult_t nccl_call(const char* name, Body&& body) {
    ncclResult_t result = ncclSuccess;
    const ncclResult_t status = library_call<ncclResult_t>(name, nccl_status, [&](Call& call) { result = body(call); });
    if (status != ncclSuccess) return status;
    if (result != ncclSuccess && result != ncclInProgress) leave_library(name, result);
    return result;
}

}  // namespace standin
