#include "lockstep/parallel/comm/group/communicator.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <thread>
#include <utility>

#include "lockstep/parallel/comm/group/call_comparison.h"
#include "lockstep/parallel/comm/group/host_identity.h"
#include "lockstep/parallel/comm/group/parts.h"
#include "lockstep/parallel/comm/group/rank_progress.h"
#include "lockstep/parallel/comm/group/reduce_elements.h"
#include "lockstep/parallel/comm/group/transport.h"
#include "lockstep/parallel/comm/report_failure.h"
#include "lockstep/parallel/comm/store/rank_exits.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/digest.h"

namespace lockstep {

namespace {

int number_of(Communicator::Elements elements) { return elements ? static_cast<int>(*elements) : -1; }

/// Whether no part is empty.
bool none_is_empty(std::span<const std::size_t> parts) {
    return std::find(parts.begin(), parts.end(), std::size_t{0}) == parts.end();
}

/// The ranks of a group, numbered as in the job.
std::vector<int> job_ranks(const Communicator::Info& info) {
    std::vector<int> ranks = info.global_ranks;
    if (ranks.empty()) {
        ranks.resize(static_cast<std::size_t>(info.size));
        std::iota(ranks.begin(), ranks.end(), 0);
    }
    return ranks;
}

}  // namespace

std::string unusable_reason(std::string_view backend) {
    const TransportBackend& found = transport_backend(backend);
    if (!found.make) return found.absence;
    return found.unusable ? found.unusable() : std::string();
}

void require_usable(std::string_view backend) {
    if (const std::string reason = unusable_reason(backend); !reason.empty())
        throw InvalidArgument(fmt::format("backend {}: {}{} use another one", backend, reason,
                                          transport_backend(backend).make ? ";" : ", or"));
}

Communicator::Communicator(const Info& info, std::string_view backend)
    : info_(info), backend_(backend), compares_(compares_calls()) {
    require_usable(backend);
    const TransportBackend& found = transport_backend(backend);
    backend_makes_on_ = found.make_on != nullptr;
    if (info_.rank < 0 || info_.rank >= info_.size)
        throw InvalidArgument(fmt::format("group {}: rank {} of {} ranks; expected 0 to {}", info_.name, info_.rank,
                                          info_.size, info_.size - 1));
    if (info_.size > 1) connect(fmt::format("group/{}/", info_.name), found.make);
}

Communicator::Communicator(const Info& info, std::string backend, const MakeTransport& make)
    : info_(info), backend_(std::move(backend)), compares_(compares_calls()) {
    connect(fmt::format("group/{}/gpu/", info_.name), make);
}

void Communicator::connect(const std::string& prefix, const MakeTransport& make) {
    const auto store = std::make_shared<PrefixStore>(prefix, info_.store);
    const auto give_up = [&](const std::string& reason) {
        report_failure(FailureCause::other_rank);
        info_.failure->note();
        const std::string missing = rank_progress_ ? rank_progress_->unconnected() : std::string();
        throw CommunicationError(fmt::format("rank {} of {}: setting up group {} ({}): {}{}{}", info_.rank, info_.size,
                                             info_.name, backend_, reason, missing.empty() ? "" : "; ", missing));
    };
    const auto gone = [&](int rank) {
        const std::string lines = info_.store->try_get(rank_exits).value_or("");
        const auto how = rank_exit_of(lines, job_ranks(info_)[static_cast<std::size_t>(rank)]);
        return how ? fmt::format("rank {} has {}", rank, name_of(*how)) : std::string();
    };
    GroupInfo where{.rank = info_.rank,
                    .size = info_.size,
                    .store = store,
                    .timeout = info_.timeout,
                    .global_ranks = info_.global_ranks,
                    .master_addr = info_.master_addr,
                    .gone = gone,
                    .lost = [this] { return rank_progress_ ? rank_progress_->lost_in_setup() : std::string(); },
                    .verdict = [this] { return rank_progress_ ? rank_progress_->verdict() : std::string(); }};
    try {
        rank_progress_ = std::make_unique<RankProgress>(*info_.store, prefix, info_.rank, job_ranks(info_),
                                                        [this](const std::string& reason) { abort(reason); });
        rank_progress_->begin_waiting();
        if (info_.hosts.empty()) info_.hosts = find_hosts(where, deadline_in(info_.timeout));
        where.hosts = info_.hosts;
        transport_ = make(where);
        rank_progress_->note_connected();
        rank_progress_->end_waiting();
    } catch (const TransportError& error) {
        give_up(error.what());
    } catch (const CommunicationError& error) {  // thrown by the store
        give_up(error.what());
    }
}

Communicator::~Communicator() {
    if (transport_) transport_->patience = info_.failure->patience(transport_->patience);
}

std::unique_ptr<Communicator> Communicator::duplicate(std::string_view purpose) const {
    Info info = info_;
    info.name = fmt::format("{}/{}{}", info_.name, purpose, duplicates_++);
    return std::make_unique<Communicator>(info, backend_);
}

std::shared_ptr<Communicator> Communicator::on(Device gpu, Stream* stream) const {
    if (!has_gpu_memory() || gpu.kind() != DeviceKind::cuda) return nullptr;
    return std::shared_ptr<Communicator>(
        new Communicator(info_, backend_, [&, make = transport_backend(backend_).make_on](const GroupInfo& info) {
            return make(info, gpu, stream, transport_);
        }));
}

void Communicator::check() {
    if (!transport_) return;
    if (const std::string reason = transport_->failure(); !reason.empty()) fail("collective", sequence_, 0, reason);
}

void Communicator::fail(std::string_view name, std::uint64_t number, std::uint64_t bytes, const std::string& reason) {
    report_failure(FailureCause::other_rank);
    info_.failure->note();
    if (rank_progress_ && !failed_) rank_progress_->note_failure(reason);
    // Ranks that wait for this one get the error now, not at their deadlines.
    abort(fmt::format("rank {} gave up: {}", info_.rank, reason));
    // Only once: calls after a failure fail at once.
    const std::string missing = number > 0 && !failed_ ? rank_progress_->missing(name, number) : std::string();
    failed_ = true;
    throw CommunicationError(fmt::format("rank {} of {}: {}{} ({} bytes, {}): {}{}{}", info_.rank, info_.size, name,
                                         number > 0 ? fmt::format(" number {}", number) : std::string(), bytes,
                                         backend_, reason, missing.empty() ? "" : "; ", missing));
}

template <class Body>
void Communicator::perform(CollectiveCall call, Body&& body) {
    const std::uint64_t number = ++sequence_;
    if (!transport_) return;
    call.on_gpu = on_gpu();
    const Deadline deadline = deadline_in(info_.timeout);
    rank_progress_->begin(call.name, number);
    try {
        if (compares_) compare_calls(transport_->on_host(), info_.rank, info_.size, call, deadline);
        body(deadline);
    } catch (const TransportError& error) {
        rank_progress_->end();
        fail(call.name, number, call.bytes, error.what());
    }
    if (call.hears_all && !call.on_gpu)
        rank_progress_->end_with_all();
    else
        rank_progress_->end();
}

void Communicator::require_root(std::string_view name, int root) const {
    if (root < 0 || root >= info_.size)
        throw InvalidArgument(
            fmt::format("{}: root {} in a group of {}; expected 0 to {}", name, root, info_.size, info_.size - 1));
}

void Communicator::require_peer(std::string_view name, int peer) const {
    if (peer < 0 || peer >= info_.size || peer == info_.rank)
        throw InvalidArgument(
            fmt::format("{}: rank {} communicates with rank {} in a group of {}; expected another rank of the group",
                        name, info_.rank, peer, info_.size));
}

void Communicator::require_parts(std::string_view name, std::size_t parts) const {
    if (parts != static_cast<std::size_t>(info_.size))
        throw InvalidArgument(
            fmt::format("{}: {} parts in a group of {}; expected one per rank", name, parts, info_.size));
}

void Communicator::barrier() {
    perform({.name = "barrier", .hears_all = true}, [&](Deadline deadline) { transport_->barrier(deadline); });
}

void Communicator::broadcast(void* data, std::size_t bytes, int root, Elements elements) {
    require_root("broadcast", root);
    perform({.name = "broadcast", .bytes = bytes, .root = root, .dtype = number_of(elements)},
            [&](Deadline d) { transport_->broadcast(data, bytes, root, d); });
}

void Communicator::all_gather(const void* in, void* out, std::span<const std::size_t> bytes, Elements elements) {
    require_parts("all_gather", bytes.size());
    if (!transport_) copy_bytes(out, in, bytes[0]);
    perform({.name = "all_gather",
             .bytes = sum_of(bytes),
             .dtype = number_of(elements),
             .layout = digest_of(bytes),
             .hears_all = none_is_empty(bytes)},
            [&](Deadline d) { transport_->all_gather(in, out, bytes, d); });
}

void Communicator::gather(const void* in, void* out, std::span<const std::size_t> bytes, int root, Elements elements) {
    require_root("gather", root);
    require_parts("gather", bytes.size());
    if (!transport_) copy_bytes(out, in, bytes[0]);
    perform({.name = "gather",
             .bytes = sum_of(bytes),
             .root = root,
             .dtype = number_of(elements),
             .layout = digest_of(bytes)},
            [&](Deadline d) { transport_->gather(in, out, bytes, root, d); });
}

void Communicator::scatter(const void* in, void* out, std::span<const std::size_t> bytes, int root, Elements elements) {
    require_root("scatter", root);
    require_parts("scatter", bytes.size());
    if (!transport_) copy_bytes(out, in, bytes[0]);
    perform({.name = "scatter",
             .bytes = sum_of(bytes),
             .root = root,
             .dtype = number_of(elements),
             .layout = digest_of(bytes)},
            [&](Deadline d) { transport_->scatter(in, out, bytes, root, d); });
}

void Communicator::all_to_all(const void* in, std::span<const std::size_t> sent, void* out,
                              std::span<const std::size_t> received, Elements elements) {
    require_parts("all_to_all", sent.size());
    require_parts("all_to_all", received.size());
    if (!transport_) copy_bytes(out, in, std::min(sent[0], received[0]));
    perform({.name = "all_to_all",
             .bytes = sum_of(sent),
             .dtype = number_of(elements),
             .uneven = true,
             .hears_all = none_is_empty(received)},
            [&](Deadline d) {
                if (compares_) compare_parts(transport_->on_host(), info_.rank, sent, received, d);
                transport_->all_to_all(in, sent, out, received, d);
            });
}

bool Communicator::divides(ReduceOp op, DType dtype) const {
    if (op != ReduceOp::mean) return false;
    if (dtype == DType::boolean) divide_elements(dtype, nullptr, 0, 1);  // the error lists the supported operations
    return !on_gpu();
}

void Communicator::all_reduce(void* data, std::size_t count, DType dtype, ReduceOp op) {
    const bool mean = divides(op, dtype);
    perform({.name = "all_reduce",
             .bytes = count * size_of(dtype),
             .dtype = static_cast<int>(dtype),
             .op = static_cast<int>(op),
             .hears_all = count > 0},
            [&](Deadline d) { transport_->all_reduce(data, count, dtype, mean ? ReduceOp::sum : op, d); });
    if (mean) divide_elements(dtype, data, count, info_.size);
}

void Communicator::reduce(void* data, std::size_t count, DType dtype, ReduceOp op, int root) {
    require_root("reduce", root);
    const bool mean = divides(op, dtype);
    perform({.name = "reduce",
             .bytes = count * size_of(dtype),
             .root = root,
             .dtype = static_cast<int>(dtype),
             .op = static_cast<int>(op)},
            [&](Deadline d) { transport_->reduce(data, count, dtype, mean ? ReduceOp::sum : op, root, d); });
    if (mean && info_.rank == root) divide_elements(dtype, data, count, info_.size);
}

void Communicator::reduce_scatter(const void* in, void* out, std::span<const std::size_t> counts, DType dtype,
                                  ReduceOp op) {
    require_parts("reduce_scatter", counts.size());
    const bool mean = divides(op, dtype);
    if (!transport_) copy_bytes(out, in, counts[0] * size_of(dtype));
    perform({.name = "reduce_scatter",
             .bytes = sum_of(counts) * size_of(dtype),
             .dtype = static_cast<int>(dtype),
             .op = static_cast<int>(op),
             .layout = digest_of(counts),
             .hears_all = counts[static_cast<std::size_t>(info_.rank)] > 0},
            [&](Deadline d) { transport_->reduce_scatter(in, out, counts, dtype, mean ? ReduceOp::sum : op, d); });
    if (mean) divide_elements(dtype, out, counts[static_cast<std::size_t>(info_.rank)], info_.size);
}

void Communicator::monitored_barrier(std::chrono::milliseconds timeout) {
    const std::uint64_t number = ++sequence_;
    if (!transport_) return;
    constexpr std::uint32_t arrive = 0xffffff01, leave = 0xffffff02;  // distinct from the tags of users
    // Rank 0 knows which ranks are missing and reports them first, after it has found out which of them only wait
    // themselves.
    constexpr std::chrono::milliseconds ahead(4000);
    const Waiting waiting(*this);
    const Deadline deadline = deadline_in(timeout) + (info_.rank == 0 ? std::chrono::milliseconds(0) : ahead);
    char token = 0;
    std::vector<int> missing;
    const auto arrived = [&](Message& message) {
        while (!message.advance()) {
            if (RunClock::now() >= deadline) return false;
            if (transport_->meanwhile) transport_->meanwhile();
            std::this_thread::yield();
        }
        return true;
    };
    try {
        if (info_.rank > 0) {
            const auto here = transport_->send(&token, 1, 0, arrive);
            if (!arrived(*here) || !arrived(*transport_->receive(&token, 1, 0, leave))) missing.push_back(0);
        } else {
            for (int rank = 1; rank < info_.size; ++rank)
                if (!arrived(*transport_->receive(&token, 1, rank, arrive))) missing.push_back(rank);
            for (int rank = 1; missing.empty() && rank < info_.size; ++rank)
                if (!arrived(*transport_->send(&token, 1, rank, leave))) missing.push_back(rank);
        }
    } catch (const TransportError& error) {
        fail("monitored_barrier", number, 0, error.what());
    }
    if (missing.empty()) return;
    if (std::vector<int> idle = rank_progress_->not_waiting(missing); !idle.empty()) missing = std::move(idle);
    fail("monitored_barrier", number, 0,
         fmt::format("{} {} did not arrive within {} ms", missing.size() == 1 ? "rank" : "ranks",
                     fmt::join(missing, ", "), timeout.count()));
}

Communicator::Waiting::Waiting(const Communicator& communicator) : communicator_(communicator) {
    if (communicator_.rank_progress_) communicator_.rank_progress_->begin_waiting();
}

Communicator::Waiting::~Waiting() {
    if (communicator_.rank_progress_) communicator_.rank_progress_->end_waiting();
}

std::unique_ptr<Message> Communicator::send(const void* data, std::size_t bytes, int to, std::uint32_t tag) {
    require_peer("send", to);
    try {
        return transport_->send(data, bytes, to, tag);
    } catch (const TransportError& error) {
        fail(fmt::format("send to rank {}", to), 0, bytes, error.what());
    }
}

std::unique_ptr<Message> Communicator::receive(void* data, std::size_t bytes, int from, std::uint32_t tag) {
    if (from != Transport::any_source || !transport_) require_peer("receive", from);
    try {
        return transport_->receive(data, bytes, from, tag);
    } catch (const TransportError& error) {
        fail(fmt::format("receive from rank {}", from), 0, bytes, error.what());
    }
}

bool Communicator::advance(Message& message, std::string_view what, std::size_t bytes) {
    try {
        return message.advance();
    } catch (const TransportError& error) {
        fail(what, 0, bytes, error.what());
    }
}

void Communicator::give_up(std::string_view what, std::size_t bytes, const std::string& reason) {
    fail(what, 0, bytes, reason);
}

void Communicator::abort(const std::string& reason) noexcept {
    if (!transport_) return;
    info_.failure->note();
    rank_progress_->note_cause(reason);
    transport_->abort(reason);
}

const TransportBackend& transport_backend(std::string_view name) {
    if (name == "shm") return hosts_backend();
    if (name == "gloo") return gloo_backend();
    if (name == "nccl") return nccl_backend();
    if (name == "mpi") return mpi_backend();
    throw InvalidArgument(
        fmt::format("backend '{}' does not exist; expected one of {}", name, fmt::join(transport_backend_names, ", ")));
}

std::string no_gpu_reason() {
    const std::string reason = cuda_absence_reason();
    return reason.empty() ? reason : "there is no GPU: " + reason;
}

}  // namespace lockstep
