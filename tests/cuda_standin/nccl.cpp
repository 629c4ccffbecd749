// NCCL's communicators: creation, destruction and errors.
#include <cstring>
#include <random>

#include "lockstep/tests/cuda_standin/nccl_state.h"

namespace standin {

ncclResult_t nccl_status(cudaError_t code) {
    switch (code) {
        case cudaSuccess: return ncclSuccess;
        case cudaErrorInvalidValue:
        case cudaErrorInvalidResourceHandle: return ncclInvalidArgument;
        case cudaErrorInvalidDevice:
        case cudaErrorNotPermitted:
        case cudaErrorNotSupported: return ncclInvalidUsage;
        default: return ncclUnhandledCudaError;
    }
}

NcclCommunicatorPtr communicator(Call& call, ncclComm_t handle) {
    if (handle == nullptr) refuse(cudaErrorInvalidValue, Kind::invalid_argument, "a null communicator");
    const auto found = call.state().communicators.find(reinterpret_cast<std::uintptr_t>(handle));
    if (found == call.state().communicators.end())
        refuse(cudaErrorInvalidResourceHandle, Kind::destroyed_handle,
               "the communicator was destroyed, aborted or never created");
    return std::static_pointer_cast<NcclCommunicator>(found->second);
}

namespace {

constexpr std::string_view kIdPrefix = "lockstep-nccl-";

// Result of ncclCommGetAsyncError; the query acknowledges the last operation.
ncclResult_t async_error(NcclCommunicator& each) {
    if (!each.ready->done() || each.is_launching()) return ncclInProgress;
    if (each.link.error() != ncclSuccess) return each.link.error();
    if (each.finalized && each.last && !each.last->done()) return ncclInProgress;
    return std::exchange(each.unasked, false) ? ncclInProgress : ncclSuccess;
}

// Another thread is adding operations of the communicator to a group.
void require_no_other_thread(const NcclCommunicator& each) {
    if (each.grouping != std::thread::id() && each.grouping != std::this_thread::get_id())
        refuse(cudaErrorNotPermitted, Kind::concurrent_use, "another thread has a group of operations open");
}

void erase(Call& call, ncclComm_t handle) {
    call.state().communicators.erase(reinterpret_cast<std::uintptr_t>(handle));
}

ncclResult_t init(Call& call, ncclComm_t* handle, int size, const ncclUniqueId& id, int rank, bool blocking) {
    if (handle == nullptr || size < 1 || rank < 0 || rank >= size)
        refuse(cudaErrorInvalidValue, Kind::invalid_argument, "a null pointer, or a rank outside of its communicator");
    *handle = nullptr;
    const std::string name(id.internal, ::strnlen(id.internal, sizeof id.internal));
    if (!name.starts_with(kIdPrefix))
        refuse(cudaErrorInvalidValue, Kind::invalid_argument, "the unique id was not created by ncclGetUniqueId");
    if (in_nccl_group()) refuse(cudaErrorNotSupported, Kind::unsupported, "ranks created in a group");
    const int device = call.current_device();
    call.need_context(device);
    const auto made = std::make_shared<NcclCommunicator>(name, rank, size, call.device(device).physical);
    made->device = device;
    made->blocking = blocking;
    const std::uintptr_t number = call.new_handle();
    const auto created = reinterpret_cast<ncclComm_t>(number);
    call.state().communicators.emplace(number, made);
    std::thread([made] {
        made->link.connect();
        made->ready->complete();
    }).detach();
    if (!blocking) {
        *handle = created;
        return ncclInProgress;
    }
    call.wait(made->ready);
    if (made->link.error() == ncclSuccess)
        *handle = created;
    else
        erase(call, created);
    return made->link.error();
}

}  // namespace

NcclCommunicatorPtr usable_communicator(Call& call, ncclComm_t handle, ncclResult_t& error) {
    auto found = communicator(call, handle);
    if (!found->ready->done() || found->is_launching() || found->unasked)
        refuse(cudaErrorInvalidValue, Kind::invalid_argument,
               "the communicator is in progress: ncclCommGetAsyncError has not returned ncclSuccess yet");
    if (found->finalized) refuse(cudaErrorInvalidValue, Kind::invalid_argument, "the communicator was finalized");
    error = found->link.error();
    return found;
}

}  // namespace standin

using namespace standin;

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
    if (version == nullptr) return ncclInvalidArgument;
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
    error_fetched();
    switch (result) {
        case ncclSuccess: return "no error";
        case ncclUnhandledCudaError: return "unhandled cuda error";
        case ncclSystemError: return "unhandled system error";
        case ncclInternalError: return "internal error";
        case ncclInvalidArgument: return "invalid argument";
        case ncclInvalidUsage: return "invalid usage";
        case ncclRemoteError: return "remote process exited or there was a network error";
        case ncclInProgress: return "NCCL operation in progress";
        default: return "unknown result code";
    }
}

const char* ncclGetLastError(ncclComm_t) {
    error_fetched();
    return "the CUDA stand-in records the mistakes of the NCCL stand-in";
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
    return nccl_call("ncclGetUniqueId", [&](Call&) {
        if (id == nullptr) refuse(cudaErrorInvalidValue, Kind::invalid_argument, "a null pointer");
        std::random_device random;
        std::string name(kIdPrefix);
        for (int i = 0; i < 4; ++i) name += std::to_string(random()) + '.';
        *id = {};
        std::memcpy(id->internal, name.data(), std::min(name.size(), sizeof id->internal - 1));
        return ncclSuccess;
    });
}

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank) {
    return nccl_call("ncclCommInitRank", [&](Call& call) { return init(call, comm, ranks, id, rank, true); });
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config) {
    return nccl_call("ncclCommInitRankConfig", [&](Call& call) {
        const ncclConfig_t initial = NCCL_CONFIG_INITIALIZER;
        if (config != nullptr && (config->size != initial.size || config->magic != initial.magic))
            refuse(cudaErrorInvalidValue, Kind::invalid_argument, "a config without NCCL_CONFIG_INITIALIZER");
        return init(call, comm, ranks, id, rank, config == nullptr || config->blocking != 0);
    });
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
    return nccl_call("ncclCommGetAsyncError", [&](Call& call) {
        const auto found = communicator(call, comm);
        if (!found->blocking)
            require_no_other_thread(*found);  // the query may finish the group's work in the background
        *error = async_error(*found);
        return ncclSuccess;
    });
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int* count) {
    return nccl_call("ncclCommCount", [&](Call& call) {
        ncclResult_t error = ncclSuccess;
        *count = usable_communicator(call, comm, error)->link.size();
        return error;
    });
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) {
    return nccl_call("ncclCommUserRank", [&](Call& call) {
        ncclResult_t error = ncclSuccess;
        *rank = usable_communicator(call, comm, error)->link.rank();
        return error;
    });
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
    return nccl_call("ncclCommFinalize", [&](Call& call) {
        ncclResult_t error = ncclSuccess;
        const auto found = usable_communicator(call, comm, error);
        found->finalized = true;
        if (!found->blocking) return ncclInProgress;
        if (found->last) call.wait(found->last);
        return error;
    });
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    return nccl_call("ncclCommDestroy", [&](Call& call) {
        const auto found = communicator(call, comm);
        call.wait(found->ready);
        if (found->last) call.wait(found->last);
        erase(call, comm);
        return ncclSuccess;
    });
}

// As in NCCL's commReclaim: ends work in flight, then waits for the end of every launched operation, and therefore for
// all earlier work of its stream, including host functions. Leaves the thread's device current.
ncclResult_t ncclCommAbort(ncclComm_t comm) {
    bool refused = true;
    const auto end = [&](Call& call) {
        refused = false;
        const auto found = communicator(call, comm);
        require_no_other_thread(*found);
        call.need_context(call.current_device());
        erase(call, comm);
        found->abort();
        if (found->launched) call.wait_to_the_end(found->launched);
        if (found->last) call.wait_to_the_end(found->last);
        return ncclSuccess;
    };
    const ncclResult_t status = nccl_call("ncclCommAbort", end);
    // With a poisoned context every call returns its error, but work that waits for other ranks is ended.
    if (refused && sticky_error() != cudaSuccess) {
        Call call("ncclCommAbort", state());
        if (call.state().communicators.contains(reinterpret_cast<std::uintptr_t>(comm))) end(call);
    }
    return status;
}

}  // extern "C"
