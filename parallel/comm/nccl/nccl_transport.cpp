#include "lockstep/parallel/comm/nccl/nccl_transport.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>
#include <vector>

#include "lockstep/parallel/comm/group/optional_backends.h"
#include "lockstep/parallel/comm/group/parts.h"
#include "lockstep/parallel/comm/reduce_op.h"
#include "lockstep/parallel/comm/store/deadline.h"
#include "lockstep/runtime/error.h"

namespace lockstep::nccl {

namespace {

/// Polling interval of the watchdog thread.
constexpr std::chrono::milliseconds pause(2);

ncclDataType_t type_of(DType dtype) {
    switch (dtype) {
        case DType::f64: return ncclFloat64;
        case DType::f16: return ncclFloat16;
        case DType::bf16: return ncclBfloat16;
        case DType::i32: return ncclInt32;
        case DType::i64: return ncclInt64;
        case DType::u8:
        case DType::boolean: return ncclUint8;
        case DType::f32: break;
    }
    return ncclFloat32;
}

ncclRedOp_t operation_of(ReduceOp op, DType dtype) {
    const bool truth = dtype == DType::boolean;
    switch (op) {
        case ReduceOp::mean: return ncclAvg;
        case ReduceOp::min: return ncclMin;
        case ReduceOp::max: return ncclMax;
        case ReduceOp::product: return truth ? ncclMin : ncclProd;
        case ReduceOp::sum: break;
    }
    return truth ? ncclMax : ncclSum;
}

bool all_alike(std::span<const std::size_t> sizes) {
    return std::all_of(sizes.begin(), sizes.end(), [&](std::size_t size) { return size == sizes[0]; });
}

const std::byte* bytes_at(const void* memory, std::size_t offset) {
    return memory ? static_cast<const std::byte*>(memory) + offset : nullptr;
}
std::byte* bytes_at(void* memory, std::size_t offset) {
    return memory ? static_cast<std::byte*>(memory) + offset : nullptr;
}

std::size_t begin_of(std::span<const std::size_t> parts, int part) {
    return std::accumulate(parts.begin(), parts.begin() + part, std::size_t{0});
}

/// Separate streams for operations that are waited for, distinct from those that stage non-contiguous data.
Stream& own_stream(Device device) { return Stream::of(device, StreamRole::collective, 3); }

}  // namespace

NcclTransport::NcclTransport(const GroupInfo& info, Device device, Stream* stream, std::shared_ptr<Transport> host)
    : device_(device),
      rank_(info.rank),
      size_(info.size),
      timeout_(info.timeout),
      stream_(stream ? *stream : own_stream(device)),
      waits_(stream == nullptr),
      host_(std::move(host)) {
    const Deadline deadline = deadline_in(info.timeout);
    require_distinct_gpus(info, deadline);
    ncclUniqueId id{};
    if (rank_ == 0) check(ncclGetUniqueId(&id), "ncclGetUniqueId");
    host_->broadcast(&id, sizeof id, 0, deadline);
    stream_.run("ncclCommInitRankConfig", {}, [&](const ExecContext&) {
        link_ = std::make_unique<Link>(id, rank_, size_, deadline, [this] {
            const std::string own = failure();
            return own.empty() ? host_->failure() : own;
        });
    });
    watcher_ = std::thread([this] { watch(); });
}

NcclTransport::~NcclTransport() {
    if (!look().empty() || oldest()) note("the group was destroyed before its operations were done");
    {
        const std::scoped_lock lock(mutex_);
        stopping_ = true;
        changed_.notify_all();
    }
    watcher_.join();  // it has aborted if required
    try {
        stream_.run("ncclCommDestroy", {}, [&](const ExecContext&) { link_->finish(RunClock::now() + patience); });
    } catch (const std::exception&) {  // the GPU is lost, with all work that waits on it
        link_->abort();
    }
}

void NcclTransport::require_distinct_gpus(const GroupInfo& info, Deadline deadline) {
    using Name = std::array<char, 32>;
    std::vector<Name> all(static_cast<std::size_t>(size_));
    Name& own = all[static_cast<std::size_t>(rank_)];
    device_info(device_).bus_id.copy(own.data(), own.size() - 1);
    const std::vector<std::size_t> sizes(all.size(), sizeof(Name));
    host_->all_gather(&own, all.data(), sizes, deadline);
    const auto host_of = [&](std::size_t rank) { return info.hosts.empty() ? 0 : info.hosts[rank]; };
    for (std::size_t rank = 0; rank < all.size(); ++rank)
        for (std::size_t before = 0; before < rank; ++before)
            if (all[rank] == all[before] && host_of(rank) == host_of(before))
                throw TransportError(
                    fmt::format("ranks {} and {} share one GPU ({}), which NCCL does not support; use one GPU per rank "
                                "(lockstep-run does), or the shm or gloo backend",
                                before, rank, all[rank].data()));
}

void NcclTransport::perform(std::string_view name, Deadline deadline, const Calls& calls, const OwnPart& own) {
    const auto done = std::make_shared<Event>(device_);
    const std::uint64_t number = begin(name, done);
    try {
        require_alive();
        if (own.bytes > 0 && own.to != own.from) stream_.copy(own.to, device_, own.from, device_, own.bytes);
        stream_.run(name, {}, [&](const ExecContext& context) {
            link_->group(deadline, [&](ncclComm_t communicator) {
                calls(communicator, static_cast<cudaStream_t>(context.native));
            });
        });
        stream_.record(*done);
    } catch (const TransportError& error) {
        fail(error.what());
        throw;
    } catch (const Error& error) {  // from the GPU
        fail(fmt::format("rank {} cannot use {}: {}", rank_, device_.str(), error.what()));
        throw;
    }
    end_of(number);
    if (waits_) wait(*done);
}

std::uint64_t NcclTransport::begin(std::string_view name, const std::shared_ptr<Event>& done) {
    const std::scoped_lock lock(mutex_);
    if (pending_.empty()) first_since_ = RunClock::now();
    pending_.push_back({name, done, ++operations_});
    changed_.notify_all();
    return operations_;
}

void NcclTransport::end_of(std::uint64_t number) {
    const std::scoped_lock lock(mutex_);
    for (Pending& one : pending_)
        if (one.number == number) one.has_end = true;
}

void NcclTransport::wait(const Event& done) {
    for (Backoff backoff(1000); !done.done(); backoff.pause()) {
        if (meanwhile) meanwhile();
        if (!failure().empty()) break;
    }
    require_alive();
}

void NcclTransport::watch() {
    const auto stopped = [&] {
        std::unique_lock lock(mutex_);
        if (pending_.empty() && !stopping_ && failure_.empty()) changed_.wait(lock);
        return stopping_ || !failure_.empty();
    };
    while (!stopped()) {
        if (const std::string reason = look(); !reason.empty()) fail(reason);
        std::unique_lock lock(mutex_);
        if (!stopping_ && failure_.empty()) changed_.wait_for(lock, pause);
    }
    if (!failure().empty()) give_up();
}

std::optional<NcclTransport::Pending> NcclTransport::oldest() {
    const std::scoped_lock lock(mutex_);
    return pending_.empty() ? std::nullopt : std::optional(pending_.front());
}

std::string NcclTransport::look() {
    std::optional<Pending> one;
    try {
        while ((one = oldest()) && one->has_end && one->done->done()) {
            const std::scoped_lock lock(mutex_);
            if (pending_.empty() || pending_.front().number != one->number) continue;  // another thread checks as well
            pending_.pop_front();
            first_since_ = RunClock::now();
        }
    } catch (const Error& error) {  // from the GPU
        return fmt::format("rank {} has lost {}: {}", rank_, device_.str(), error.what());
    }
    if (!one) return {};
    if (std::string reason = host_->failure(); !reason.empty()) return reason;
    if (std::string reason = link_->failure(); !reason.empty()) return reason;
    const std::scoped_lock lock(mutex_);
    if (RunClock::now() - first_since_ < timeout_) return {};
    return fmt::format("the deadline has passed: {} on {} did not finish within {} ms", one->name, device_.str(),
                       timeout_.count());
}

bool NcclTransport::note(const std::string& reason) noexcept {
    const std::scoped_lock lock(mutex_);
    if (!failure_.empty()) return false;
    failure_ = reason;  // set before the watchdog thread aborts, after which waiting GPUs continue
    changed_.notify_all();
    return true;
}

void NcclTransport::fail(const std::string& reason) noexcept {
    if (note(reason)) host_->abort(reason);
}

void NcclTransport::give_up() noexcept {
    ncclComm_t communicator = link_->take();
    try {
        stream_.run("ncclCommAbort", {},
                    [&](const ExecContext&) { Link::give_up(std::exchange(communicator, nullptr)); });
    } catch (const std::exception&) {  // the GPU is lost
        Link::give_up(communicator);
    }
}

void NcclTransport::require_alive() const {
    if (const std::string reason = failure(); !reason.empty()) throw TransportError(reason);
}

std::string NcclTransport::failure() const {
    const std::scoped_lock lock(mutex_);
    return failure_;
}

void NcclTransport::abort(const std::string& reason) noexcept { fail(reason); }

void NcclTransport::broadcast(void* data, std::size_t bytes, int root, Deadline deadline) {
    perform("broadcast", deadline, [&](ncclComm_t communicator, cudaStream_t stream) {
        check(ncclBroadcast(data, data, bytes, ncclUint8, root, communicator, stream), "ncclBroadcast");
    });
}

void NcclTransport::all_gather(const void* in, void* out, std::span<const std::size_t> bytes, Deadline deadline) {
    perform("all_gather", deadline, [&](ncclComm_t communicator, cudaStream_t stream) {
        if (all_alike(bytes)) {
            check(ncclAllGather(in, out, bytes[0], ncclUint8, communicator, stream), "ncclAllGather");
            return;
        }
        each_part(bytes, [&](int part, std::size_t begin, std::size_t size) {
            const void* from = part == rank_ ? in : bytes_at(out, begin);
            if (size > 0)
                check(ncclBroadcast(from, bytes_at(out, begin), size, ncclUint8, part, communicator, stream),
                      "ncclBroadcast");
        });
    });
}

void NcclTransport::gather(const void* in, void* out, std::span<const std::size_t> bytes, int root, Deadline deadline) {
    const std::size_t own = bytes[static_cast<std::size_t>(rank_)];
    const auto calls = [&](ncclComm_t communicator, cudaStream_t stream) {
        if (rank_ != root && own > 0) check(ncclSend(in, own, ncclUint8, root, communicator, stream), "ncclSend");
        if (rank_ != root) return;
        each_part(bytes, [&](int part, std::size_t begin, std::size_t size) {
            if (part != rank_ && size > 0)
                check(ncclRecv(bytes_at(out, begin), size, ncclUint8, part, communicator, stream), "ncclRecv");
        });
    };
    perform("gather", deadline, calls,
            rank_ == root ? OwnPart{bytes_at(out, begin_of(bytes, rank_)), in, own} : OwnPart{});
}

void NcclTransport::scatter(const void* in, void* out, std::span<const std::size_t> bytes, int root,
                            Deadline deadline) {
    const std::size_t own = bytes[static_cast<std::size_t>(rank_)];
    const auto calls = [&](ncclComm_t communicator, cudaStream_t stream) {
        if (rank_ != root && own > 0) check(ncclRecv(out, own, ncclUint8, root, communicator, stream), "ncclRecv");
        if (rank_ != root) return;
        each_part(bytes, [&](int part, std::size_t begin, std::size_t size) {
            if (part != rank_ && size > 0)
                check(ncclSend(bytes_at(in, begin), size, ncclUint8, part, communicator, stream), "ncclSend");
        });
    };
    perform("scatter", deadline, calls,
            rank_ == root ? OwnPart{out, bytes_at(in, begin_of(bytes, rank_)), own} : OwnPart{});
}

void NcclTransport::all_to_all(const void* in, std::span<const std::size_t> sent, void* out,
                               std::span<const std::size_t> received, Deadline deadline) {
    const auto calls = [&](ncclComm_t communicator, cudaStream_t stream) {
        each_part(sent, [&](int part, std::size_t begin, std::size_t size) {
            if (part != rank_ && size > 0)
                check(ncclSend(bytes_at(in, begin), size, ncclUint8, part, communicator, stream), "ncclSend");
        });
        each_part(received, [&](int part, std::size_t begin, std::size_t size) {
            if (part != rank_ && size > 0)
                check(ncclRecv(bytes_at(out, begin), size, ncclUint8, part, communicator, stream), "ncclRecv");
        });
    };
    perform("all_to_all", deadline, calls,
            {bytes_at(out, begin_of(received, rank_)), bytes_at(in, begin_of(sent, rank_)),
             received[static_cast<std::size_t>(rank_)]});
}

void NcclTransport::all_reduce(void* data, std::size_t count, DType dtype, ReduceOp op, Deadline deadline) {
    perform("all_reduce", deadline, [&](ncclComm_t communicator, cudaStream_t stream) {
        check(ncclAllReduce(data, data, count, type_of(dtype), operation_of(op, dtype), communicator, stream),
              "ncclAllReduce");
    });
}

void NcclTransport::reduce(void* data, std::size_t count, DType dtype, ReduceOp op, int root, Deadline deadline) {
    perform("reduce", deadline, [&](ncclComm_t communicator, cudaStream_t stream) {
        check(ncclReduce(data, data, count, type_of(dtype), operation_of(op, dtype), root, communicator, stream),
              "ncclReduce");
    });
}

void NcclTransport::reduce_scatter(const void* in, void* out, std::span<const std::size_t> counts, DType dtype,
                                   ReduceOp op, Deadline deadline) {
    perform("reduce_scatter", deadline, [&](ncclComm_t communicator, cudaStream_t stream) {
        const ncclDataType_t type = type_of(dtype);
        const ncclRedOp_t operation = operation_of(op, dtype);
        if (all_alike(counts)) {
            check(ncclReduceScatter(in, out, counts[0], type, operation, communicator, stream), "ncclReduceScatter");
            return;
        }
        each_part(counts, [&](int part, std::size_t begin, std::size_t count) {
            if (count > 0)
                check(ncclReduce(bytes_at(in, begin * size_of(dtype)), out, count, type, operation, part, communicator,
                                 stream),
                      "ncclReduce");
        });
    });
}

}  // namespace lockstep::nccl

namespace lockstep {

void lockstep_nccl_backend(TransportBackend& backend) {
    backend.make = hosts_backend().make;
    backend.unusable = no_gpu_reason;
    backend.make_on = [](const GroupInfo& info, Device device, Stream* stream,
                         std::shared_ptr<Transport> host) -> std::unique_ptr<Transport> {
        return std::make_unique<nccl::NcclTransport>(info, device, stream, std::move(host));
    };
}

}  // namespace lockstep
