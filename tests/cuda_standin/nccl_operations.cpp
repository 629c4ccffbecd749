// NCCL's operations and groups: memory that each one reads, writes and sends, and its execution as a task of a stream.
#include <algorithm>
#include <array>
#include <cstring>

#include "lockstep/tests/cuda_standin/nccl_state.h"

namespace standin {
namespace {

enum class Function { all_reduce, reduce, broadcast, all_gather, reduce_scatter, send, recv };
constexpr std::array kNames{"ncclAllReduce",     "ncclReduce", "ncclBroadcast", "ncclAllGather",
                            "ncclReduceScatter", "ncclSend",   "ncclRecv"};
constexpr std::array<std::size_t, 10> kTypeBytes{1, 1, 4, 4, 8, 8, 2, 4, 8, 2};

struct Operation {
    Function function;
    const void* send;
    void* recv;
    std::size_t count;
    ncclDataType_t type;
    ncclRedOp_t op;
    int root;  // or the peer
    ncclComm_t comm;
    cudaStream_t stream;

    const char* name() const { return kNames[static_cast<std::size_t>(function)]; }
    std::size_t bytes() const { return count * kTypeBytes[static_cast<std::size_t>(type)]; }
    bool between_two() const { return function == Function::send || function == Function::recv; }
    char* from() const { return static_cast<char*>(const_cast<void*>(send)); }
    char* to() const { return static_cast<char*>(recv); }
};

struct Group {
    int depth = 0;
    std::vector<Operation> operations;
    ncclResult_t error = ncclSuccess;
};
thread_local Group group;

std::vector<Access> accesses(const Operation& each, int rank, int size) {
    const std::size_t bytes = each.bytes(), all = bytes * static_cast<std::size_t>(size);
    switch (each.function) {
        case Function::all_reduce: return {reads(each.send, bytes), writes(each.recv, bytes)};
        case Function::reduce: return {reads(each.send, bytes), writes(each.recv, rank == each.root ? bytes : 0)};
        case Function::broadcast: return {reads(each.send, rank == each.root ? bytes : 0), writes(each.recv, bytes)};
        case Function::all_gather: return {reads(each.send, bytes), writes(each.recv, all)};
        case Function::reduce_scatter: return {reads(each.send, all), writes(each.recv, bytes)};
        case Function::send: return {reads(each.send, bytes)};
        case Function::recv: return {writes(each.recv, bytes)};
    }
    return {};
}

// Transfers of the operations of one group, and the remaining work after them.
class Plan {
public:
    explicit Plan(NcclCommunicator& comm) : comm_(comm), rank_(comm.link.rank()), size_(comm.link.size()) {}

    void add(const Operation& each) {
        switch (each.function) {
            case Function::all_reduce: return reduction(each, -1, 0);
            case Function::reduce: return reduction(each, each.root, 0);
            case Function::reduce_scatter: return reduction(each, -1, each.bytes());
            case Function::broadcast: return broadcast(each);
            case Function::all_gather: return all_gather(each);
            case Function::send:
                if (each.root == rank_) return to_self_.push_back(each);
                return move(each, each.root, true, each.from());
            case Function::recv:
                if (each.root == rank_) return from_self_.push_back(each);
                return move(each, each.root, false, each.to());
        }
    }

    void run() {
        if (!comm_.link.run(transfers_)) return;
        for (const auto& each : finish_) each();
        for (std::size_t i = 0; i < to_self_.size(); ++i)
            if (from_self_[i].bytes() > 0) std::memmove(from_self_[i].to(), to_self_[i].from(), from_self_[i].bytes());
    }

private:
    void move(const Operation& each, int peer, bool out, char* data) {
        const bool alone = each.between_two();
        transfers_.push_back({peer,
                              out,
                              data,
                              {each.bytes(), static_cast<int>(alone ? Function::send : each.function),
                               alone ? 0 : each.type, each.op, alone ? 0 : each.root}});
    }

    // Reduction to `target`, or to all ranks (-1); each rank's share is `step` bytes after the previous one.
    void reduction(const Operation& each, int target, std::size_t step) {
        const auto share = [&](int rank) { return each.from() + step * static_cast<std::size_t>(rank); };
        for (int peer = 0; peer < size_; ++peer)
            if (peer != rank_ && (target < 0 || target == peer)) move(each, peer, true, share(peer));
        if (target >= 0 && target != rank_) return;
        std::vector<const char*> parts;
        for (int peer = 0; peer < size_; ++peer) {
            if (peer == rank_) {
                parts.push_back(share(rank_));
                continue;
            }
            auto& room = rooms_.emplace_back(std::make_unique<char[]>(each.bytes()));
            move(each, peer, false, room.get());
            parts.push_back(room.get());
        }
        finish_.emplace_back([each, parts] { reduce_parts(each.type, each.op, parts, each.count, each.to()); });
    }

    void broadcast(const Operation& each) {
        if (rank_ != each.root) return move(each, each.root, false, each.to());
        for (int peer = 0; peer < size_; ++peer)
            if (peer != rank_) move(each, peer, true, each.from());
        finish_.emplace_back([each] { std::memmove(each.to(), each.from(), each.bytes()); });
    }

    void all_gather(const Operation& each) {
        const auto place = [=](int rank) { return each.to() + each.bytes() * static_cast<std::size_t>(rank); };
        for (int peer = 0; peer < size_; ++peer) {
            if (peer == rank_) continue;
            move(each, peer, true, each.from());
            move(each, peer, false, place(peer));
        }
        finish_.emplace_back([each, own = place(rank_)] { std::memmove(own, each.from(), each.bytes()); });
    }

    NcclCommunicator& comm_;
    int rank_, size_;
    std::vector<Transfer> transfers_;
    std::vector<std::unique_ptr<char[]>> rooms_;
    std::vector<std::function<void()>> finish_;
    std::vector<Operation> to_self_, from_self_;
};

void check(Call& call, const Operation& each, const NcclCommunicator& comm) {
    if (each.type < 0 || each.type >= ncclNumTypes || each.op < 0 || each.op >= ncclNumOps || each.root < 0 ||
        each.root >= comm.link.size())
        refuse(cudaErrorInvalidValue, Kind::invalid_argument, "no such type, operator or rank");
    if (static_cast<std::size_t>(each.type) >= kTypeBytes.size())
        refuse(cudaErrorNotSupported, Kind::unsupported, "floats of 8 bits");
    for (const Access& access : accesses(each, comm.link.rank(), comm.link.size()))
        if (access.bytes > 0 && access.data == nullptr)
            refuse(cudaErrorInvalidValue, Kind::invalid_argument, "a null buffer");
    const auto differs = [&](const std::string& what, int device) {
        if (device != comm.device)
            refuse(cudaErrorInvalidDevice, Kind::wrong_device,
                   "the communicator belongs to device " + std::to_string(comm.device) + ", but " + what + " device " +
                       std::to_string(device));
    };
    differs("the current one is", call.current_device());
    differs("the stream is of", call.stream(each.stream)->device());
}

// One task performs all transfers: on the stream of the last operation. The other streams wait for it and it waits for
// them, which is how NCCL orders the streams of a group. This also orders consecutive operations on different streams.
void launch(Call& call, const NcclCommunicatorPtr& comm, std::vector<Operation> operations) {
    const int rank = comm->link.rank(), size = comm->link.size();
    std::stable_partition(operations.begin(), operations.end(), [](const auto& each) { return !each.between_two(); });
    std::ptrdiff_t unmatched = 0;
    for (const Operation& each : operations)
        if (each.between_two() && each.root == rank) unmatched += each.function == Function::send ? 1 : -1;
    if (unmatched != 0)
        refuse(cudaErrorNotPermitted, Kind::invalid_argument, "a rank's message to itself without a matching call");
    const Operation& final = operations.back();
    const auto base = call.work_stream(final.stream);
    if (comm->last && comm->last_stream.lock() != base) base->enqueue_wait(comm->last);
    std::set<std::shared_ptr<Stream>> others;
    for (const Operation& each : operations)
        if (const auto other = call.work_stream(each.stream); other != base && others.insert(other).second)
            base->enqueue_wait(other->enqueue_marker());
    for (const Operation& each : operations)
        if (&each != &final)
            call.launch(
                base, each.name(), [] {}, accesses(each, rank, size));
    call.launch(
        base, final.name(),
        [comm, operations] {
            Plan plan(*comm);
            for (const Operation& each : operations) plan.add(each);
            plan.run();
        },
        accesses(final, rank, size));
    comm->last = base->enqueue_marker();
    comm->last_stream = base;
    comm->unasked = !comm->blocking;
    for (const auto& other : others) other->enqueue_wait(comm->last);
}

bool has_room(Call& call, const std::vector<Operation>& operations) {
    return std::ranges::all_of(operations, [&](const Operation& each) {
        return call.stream(each.stream)->unfinished() < call.state().config.launch_queue;
    });
}

// A non-blocking communicator launches on a separate thread, because that takes time.
void launch_later(const NcclCommunicatorPtr& comm, const std::vector<Operation>& operations) {
    comm->launched = std::make_shared<Marker>();
    std::thread([comm, operations] {
        {
            Call call("ncclGroupEnd", state());
            try {
                launch(call, comm, operations);
            } catch (const Refusal& refusal) {
                record_mistake(refusal.kind, "ncclGroupEnd: " + refusal.message);
            } catch (const Failure&) {  // the context is lost, and every call reports it
            }
        }
        comm->launched->complete();
    }).detach();
}

ncclResult_t launch_all(Call& call, const std::vector<Operation>& operations) {
    ncclResult_t result = ncclSuccess;
    std::vector<std::pair<ncclComm_t, std::vector<Operation>>> by_communicator;
    for (const Operation& each : operations) {
        auto found = std::find_if(by_communicator.begin(), by_communicator.end(),
                                  [&](const auto& pair) { return pair.first == each.comm; });
        if (found == by_communicator.end()) found = by_communicator.insert(found, {each.comm, {}});
        found->second.push_back(each);
    }
    for (auto& [handle, own] : by_communicator) {
        const auto comm = communicator(call, handle);
        if (comm->blocking || has_room(call, own))
            launch(call, comm, std::move(own));
        else
            launch_later(comm, own);
        if (!comm->blocking) result = ncclInProgress;
    }
    return result;
}

ncclResult_t submit(const Operation& operation) {
    const ncclResult_t result = nccl_call(operation.name(), [&](Call& call) {
        ncclResult_t error = ncclSuccess;
        const auto comm = usable_communicator(call, operation.comm, error);
        if (error != ncclSuccess) return error;
        check(call, operation, *comm);
        if (operation.count == 0 && !operation.between_two()) return ncclSuccess;  // NCCL launches nothing
        if (group.depth == 0) return launch_all(call, {operation});
        comm->grouping = std::this_thread::get_id();
        group.operations.push_back(operation);
        return ncclSuccess;
    });
    if (group.depth > 0 && result != ncclSuccess && group.error == ncclSuccess) group.error = result;
    return result;
}

}  // namespace

bool in_nccl_group() { return group.depth > 0; }

}  // namespace standin

using namespace standin;

extern "C" {

ncclResult_t ncclGroupStart() {
    return nccl_call("ncclGroupStart", [](Call&) {
        ++group.depth;
        return ncclSuccess;
    });
}

ncclResult_t ncclGroupEnd() {
    ncclResult_t told = ncclSuccess;  // the error of a call in the group, reported there already
    const ncclResult_t result = nccl_call("ncclGroupEnd", [&](Call& call) {
        if (group.depth == 0) refuse(cudaErrorNotPermitted, Kind::invalid_argument, "there is no group to end");
        if (--group.depth > 0) return ncclSuccess;
        const Group ended = std::exchange(group, {});
        for (const auto& [handle, each] : call.state().communicators)
            if (auto& comm = static_cast<NcclCommunicator&>(*each); comm.grouping == std::this_thread::get_id())
                comm.grouping = {};
        told = ended.error;
        return told != ncclSuccess ? ncclSuccess : launch_all(call, ended.operations);
    });
    return told != ncclSuccess ? told : result;
}

ncclResult_t ncclAllReduce(const void* send, void* recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
    return submit({Function::all_reduce, send, recv, count, type, op, 0, comm, stream});
}

ncclResult_t ncclReduce(const void* send, void* recv, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                        ncclComm_t comm, cudaStream_t stream) {
    return submit({Function::reduce, send, recv, count, type, op, root, comm, stream});
}

ncclResult_t ncclBroadcast(const void* send, void* recv, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream) {
    return submit({Function::broadcast, send, recv, count, type, ncclSum, root, comm, stream});
}

ncclResult_t ncclAllGather(const void* send, void* recv, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
    return submit({Function::all_gather, send, recv, count, type, ncclSum, 0, comm, stream});
}

ncclResult_t ncclReduceScatter(const void* send, void* recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream) {
    return submit({Function::reduce_scatter, send, recv, count, type, op, 0, comm, stream});
}

ncclResult_t ncclSend(const void* send, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
    return submit({Function::send, send, nullptr, count, type, ncclSum, peer, comm, stream});
}

ncclResult_t ncclRecv(void* recv, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
    return submit({Function::recv, nullptr, recv, count, type, ncclSum, peer, comm, stream});
}

}  // extern "C"
