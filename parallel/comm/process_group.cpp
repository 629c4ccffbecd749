#include "lockstep/parallel/comm/process_group.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "lockstep/parallel/comm/group/host_identity.h"
#include "lockstep/parallel/comm/group/tensor_calls.h"
#include "lockstep/parallel/comm/report_failure.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/process.h"
#include "lockstep/runtime/internal/threads.h"
#include "lockstep/runtime/log.h"
#include "lockstep/runtime/moved_from.h"

namespace lockstep {

namespace {

std::shared_ptr<Communicator> world(const ProcessGroupOptions& options, const Rendezvous& rendezvous) {
    Communicator::Info info;
    info.name = "world";
    info.rank = rendezvous.rank();
    info.size = rendezvous.world_size();
    info.store = rendezvous.store();
    info.timeout = bounded(options.time_limit);
    info.master_addr = rendezvous.info().master_addr;
    info.failure = rendezvous.failure();
    info.global_ranks.resize(static_cast<std::size_t>(info.size));
    std::iota(info.global_ranks.begin(), info.global_ranks.end(), 0);
    return std::make_shared<Communicator>(info, options.backend.empty() ? "shm" : options.backend);
}

calls::Caller caller(const Communicator& group) { return {group.rank(), group.size()}; }

}  // namespace

std::vector<ProcessGroupBackend> process_group_backends() {
    std::vector<ProcessGroupBackend> all;
    for (const std::string_view name : transport_backend_names) {
        const TransportBackend& backend = transport_backend(name);
        all.push_back({std::string(name), backend.make != nullptr, backend.absence});
    }
    return all;
}

ProcessGroup::ProcessGroup(const ProcessGroupOptions& options)
    : rendezvous_(std::make_shared<Rendezvous>(options.rendezvous)),
      communicator_(world(options, *rendezvous_)),
      queue_(std::make_unique<OperationQueue>(communicator_)),
      notice_(std::make_unique<UnwindingNotice>()),
      fork_generation_(forked::generation()) {
    log_message(LogLevel::info, [&] {
        return fmt::format("process group: rank {} of {}, backend {}", communicator_->rank(), communicator_->size(),
                           communicator_->backend());
    });
}

ProcessGroup::ProcessGroup(std::shared_ptr<Rendezvous> rendezvous, std::shared_ptr<Communicator> communicator)
    : rendezvous_(std::move(rendezvous)),
      communicator_(std::move(communicator)),
      queue_(std::make_unique<OperationQueue>(communicator_)),
      notice_(std::make_unique<UnwindingNotice>()),
      fork_generation_(forked::generation()) {}

ProcessGroup::~ProcessGroup() {
    if (fork_generation_ != forked::generation()) {  // in a forked child: leaving the group is its parent's task
        forked::keep(std::move(queue_));
        forked::keep(std::move(communicator_));
        forked::keep(std::move(rendezvous_));
        return;
    }
    if (notice_->unwinding()) abort(fmt::format("rank {} has left: it ended with an error", rank()));
}

int ProcessGroup::rank() const { return communicator_->rank(); }
int ProcessGroup::size() const { return communicator_->size(); }
std::string_view ProcessGroup::backend() const { return communicator_->backend(); }

std::unique_ptr<ProcessGroup> ProcessGroup::subgroup(const std::vector<int>& ranks) {
    const auto count = static_cast<std::size_t>(size());
    std::vector<unsigned char> member(count, 0);
    if (ranks.empty()) throw InvalidArgument("subgroup: no ranks; expected one or more");
    Communicator::Info info = communicator_->info();
    info.rank = -1;
    info.size = static_cast<int>(ranks.size());
    info.global_ranks.clear();
    info.hosts.clear();
    for (std::size_t i = 0; i < ranks.size(); ++i) {
        const int rank = ranks[i];
        if (rank < 0 || rank >= size())
            throw InvalidArgument(
                fmt::format("subgroup: rank {} in a group of {}; expected 0 to {}", rank, size(), size() - 1));
        if (std::exchange(member[static_cast<std::size_t>(rank)], 1) != 0)
            throw InvalidArgument(fmt::format("subgroup: rank {} is repeated", rank));
        if (rank == this->rank()) info.rank = static_cast<int>(i);
        info.global_ranks.push_back(communicator_->info().global_ranks[static_cast<std::size_t>(rank)]);
    }
    std::vector<std::int32_t> own(count + 1, -1);  // number of ranks, then the ranks
    own[0] = info.size;
    std::copy(ranks.begin(), ranks.end(), own.begin() + 1);
    const auto width = static_cast<std::int64_t>(own.size());
    const Tensor all = Tensor::empty({size(), width}, DType::i32);
    all_gather(all, Tensor::from(own, Shape{width}));
    const std::vector<std::int32_t> lists = all.to_vector<std::int32_t>();
    for (std::size_t rank = 0; rank < count; ++rank)
        if (!std::equal(own.begin(), own.end(), lists.begin() + static_cast<std::ptrdiff_t>(rank * own.size())))
            throw InvalidArgument(fmt::format(
                "subgroup: rank {} and rank {} of the group pass different ranks; expected the same list on all ranks",
                this->rank(), rank));
    info.name = fmt::format("{}/subgroup{}", info.name, subgroups_++);
    if (info.rank < 0) return nullptr;
    return std::unique_ptr<ProcessGroup>(
        new ProcessGroup(rendezvous_, std::make_shared<Communicator>(info, communicator_->backend())));
}

std::unique_ptr<ProcessGroup> ProcessGroup::duplicate() {
    std::vector<int> all(static_cast<std::size_t>(size()));
    std::iota(all.begin(), all.end(), 0);
    return subgroup(all);
}

std::shared_ptr<Communicator> ProcessGroup::communicator(std::string_view purpose) const {
    return communicator_->duplicate(purpose);
}

void ProcessGroup::once_per_host(const std::function<void()>& prepare) {
    if (HostLayout(communicator_->info().hosts, size()).position_of(rank()) == 0) {
        try {
            prepare();
        } catch (const std::exception& error) {
            abort(fmt::format("rank {} could not prepare: {}", rank(), error.what()));
            throw;
        }
    }
    barrier();
}

void ProcessGroup::abort(const std::string& reason) noexcept {
    report_failure();
    communicator_->abort(reason);
}

WorkState& ProcessGroup::Work::state() const { return detail::content_of(state_, "ProcessGroup::Work"); }

bool ProcessGroup::Work::done() const { return state().done(); }

void ProcessGroup::Work::wait() const {
    state().wait();
    state().check();
}

bool ProcessGroup::Work::wait_for(std::chrono::milliseconds time) const {
    if (!state().wait_until(deadline_in(time))) return false;
    state().check();
    return true;
}

int ProcessGroup::Work::source() const {
    wait();
    return state().source();
}

void ProcessGroup::all_reduce(const Tensor& tensor, ReduceOp op) {
    queue_->run(calls::all_reduce(caller(*communicator_), tensor, op));
}
ProcessGroup::Work ProcessGroup::all_reduce_async(const Tensor& tensor, ReduceOp op) {
    return Work(queue_->start(calls::all_reduce(caller(*communicator_), tensor, op)));
}

void ProcessGroup::reduce(const Tensor& tensor, int root, ReduceOp op) {
    queue_->run(calls::reduce(caller(*communicator_), tensor, root, op));
}
ProcessGroup::Work ProcessGroup::reduce_async(const Tensor& tensor, int root, ReduceOp op) {
    return Work(queue_->start(calls::reduce(caller(*communicator_), tensor, root, op)));
}

void ProcessGroup::broadcast(const Tensor& tensor, int root) {
    queue_->run(calls::broadcast(caller(*communicator_), tensor, root));
}
ProcessGroup::Work ProcessGroup::broadcast_async(const Tensor& tensor, int root) {
    return Work(queue_->start(calls::broadcast(caller(*communicator_), tensor, root)));
}

void ProcessGroup::all_gather(const Tensor& out, const Tensor& in) {
    queue_->run(calls::all_gather(caller(*communicator_), out, in));
}
ProcessGroup::Work ProcessGroup::all_gather_async(const Tensor& out, const Tensor& in) {
    return Work(queue_->start(calls::all_gather(caller(*communicator_), out, in)));
}

void ProcessGroup::all_gather(const std::vector<Tensor>& out, const Tensor& in) {
    queue_->run(calls::all_gather(caller(*communicator_), out, in));
}
ProcessGroup::Work ProcessGroup::all_gather_async(const std::vector<Tensor>& out, const Tensor& in) {
    return Work(queue_->start(calls::all_gather(caller(*communicator_), out, in)));
}

void ProcessGroup::gather(const Tensor& in, const std::vector<Tensor>& out, int root) {
    queue_->run(calls::gather(caller(*communicator_), in, out, root));
}
ProcessGroup::Work ProcessGroup::gather_async(const Tensor& in, const std::vector<Tensor>& out, int root) {
    return Work(queue_->start(calls::gather(caller(*communicator_), in, out, root)));
}

void ProcessGroup::scatter(const Tensor& out, const std::vector<Tensor>& in, int root) {
    queue_->run(calls::scatter(caller(*communicator_), out, in, root));
}
ProcessGroup::Work ProcessGroup::scatter_async(const Tensor& out, const std::vector<Tensor>& in, int root) {
    return Work(queue_->start(calls::scatter(caller(*communicator_), out, in, root)));
}

void ProcessGroup::reduce_scatter(const Tensor& out, const Tensor& in, ReduceOp op) {
    queue_->run(calls::reduce_scatter(caller(*communicator_), out, in, op));
}
ProcessGroup::Work ProcessGroup::reduce_scatter_async(const Tensor& out, const Tensor& in, ReduceOp op) {
    return Work(queue_->start(calls::reduce_scatter(caller(*communicator_), out, in, op)));
}

void ProcessGroup::reduce_scatter(const Tensor& out, const std::vector<Tensor>& in, ReduceOp op) {
    queue_->run(calls::reduce_scatter(caller(*communicator_), out, in, op));
}
ProcessGroup::Work ProcessGroup::reduce_scatter_async(const Tensor& out, const std::vector<Tensor>& in, ReduceOp op) {
    return Work(queue_->start(calls::reduce_scatter(caller(*communicator_), out, in, op)));
}

void ProcessGroup::all_to_all(const Tensor& out, const Tensor& in) {
    queue_->run(calls::all_to_all(caller(*communicator_), out, in));
}
ProcessGroup::Work ProcessGroup::all_to_all_async(const Tensor& out, const Tensor& in) {
    return Work(queue_->start(calls::all_to_all(caller(*communicator_), out, in)));
}

void ProcessGroup::all_to_all(const Tensor& out, const Tensor& in, const std::vector<std::int64_t>& out_rows,
                              const std::vector<std::int64_t>& in_rows) {
    queue_->run(calls::all_to_all(caller(*communicator_), out, in, out_rows, in_rows));
}
ProcessGroup::Work ProcessGroup::all_to_all_async(const Tensor& out, const Tensor& in,
                                                  const std::vector<std::int64_t>& out_rows,
                                                  const std::vector<std::int64_t>& in_rows) {
    return Work(queue_->start(calls::all_to_all(caller(*communicator_), out, in, out_rows, in_rows)));
}

void ProcessGroup::all_to_all(const std::vector<Tensor>& out, const std::vector<Tensor>& in) {
    queue_->run(calls::all_to_all(caller(*communicator_), out, in));
}
ProcessGroup::Work ProcessGroup::all_to_all_async(const std::vector<Tensor>& out, const std::vector<Tensor>& in) {
    return Work(queue_->start(calls::all_to_all(caller(*communicator_), out, in)));
}

void ProcessGroup::barrier() { queue_->run(calls::barrier()); }
ProcessGroup::Work ProcessGroup::barrier_async() { return Work(queue_->start(calls::barrier())); }

void ProcessGroup::monitored_barrier(std::chrono::milliseconds timeout) {
    queue_->run(
        Collective{{}, {}, [timeout](Communicator& group, const void*, void*) { group.monitored_barrier(timeout); }});
}

void ProcessGroup::send(const Tensor& tensor, int to, int tag) {
    queue_->run(calls::send(caller(*communicator_), tensor, to, tag));
}
ProcessGroup::Work ProcessGroup::isend(const Tensor& tensor, int to, int tag) {
    return Work(queue_->start(calls::send(caller(*communicator_), tensor, to, tag)));
}

int ProcessGroup::recv(const Tensor& tensor, int from, int tag) {
    return queue_->run(calls::receive(caller(*communicator_), tensor, from, tag));
}
ProcessGroup::Work ProcessGroup::irecv(const Tensor& tensor, int from, int tag) {
    return Work(queue_->start(calls::receive(caller(*communicator_), tensor, from, tag)));
}

}  // namespace lockstep
