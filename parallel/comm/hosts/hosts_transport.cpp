#include "lockstep/parallel/comm/hosts/hosts_transport.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/parallel/comm/group/parts.h"
#include "lockstep/parallel/comm/reduce_op.h"

namespace lockstep {

namespace {

// Tags of parts, distinct from those of users and of Communicator. The number of the call wraps around; messages
// between two ranks under one tag stay in order.
constexpr std::uint32_t direct_parts = 0xfffe0000, speakers_parts = 0xfffe8000, tags = 0x8000;

}  // namespace

/// Transport between the ranks that represent their hosts, one per host: its ranks are the hosts.
class HostsTransport::Speakers final : public MessageCollectives {
public:
    explicit Speakers(HostsTransport& all)
        : MessageCollectives(all.host_, all.layout_.hosts(), 0, all.verdict_),
          all_(all),
          ranks_(static_cast<std::size_t>(size_)) {
        meanwhile = [&all] {
            if (all.meanwhile) all.meanwhile();
        };
    }

    /// On every host the rank at `position` represents it.
    void begin(std::uint32_t call, int position) {
        tag_ = speakers_parts + call % tags;
        for (int host = 0; host < size_; ++host)
            ranks_[static_cast<std::size_t>(host)] = all_.layout_.ranks_on(host)[static_cast<std::size_t>(position)];
    }
    void let_speak(int rank) { ranks_[static_cast<std::size_t>(all_.layout_.host_of(rank))] = rank; }
    int of(int host) const { return ranks_[static_cast<std::size_t>(host)]; }
    /// Whether this rank represents its host.
    bool here() const { return of(rank_) == all_.rank_; }
    /// The number, inside the host, of the rank that represents this host.
    int inside() const { return all_.layout_.position_of(of(rank_)); }

    std::string_view backend() const override { return all_.backend(); }
    std::unique_ptr<Message> send(const void* data, std::size_t bytes, int to, std::uint32_t tag) override {
        return all_.send(data, bytes, of(to), tag);
    }
    std::unique_ptr<Message> receive(void* data, std::size_t bytes, int from, std::uint32_t tag) override {
        return all_.receive(data, bytes, of(from), tag);
    }
    int announced(std::uint32_t tag) override { return all_.announced(tag); }
    void abort(const std::string& reason) noexcept override { all_.abort(reason); }

private:
    std::unique_ptr<Message> send_part(const void* data, std::size_t bytes, int to, std::uint32_t) override {
        return send(data, bytes, to, tag_);
    }
    std::unique_ptr<Message> receive_part(void* data, std::size_t bytes, int from, std::uint32_t) override {
        return receive(data, bytes, from, tag_);
    }
    [[noreturn]] void fail(const std::string& reason) override { all_.fail(reason); }

    HostsTransport& all_;
    std::vector<int> ranks_;  ///< one per host
    std::uint32_t tag_ = 0;
};

HostsTransport::HostsTransport(const GroupInfo& info)
    : MessageCollectives(info.rank, info.size, 0, info.verdict),
      layout_(info.hosts, info.size),
      host_(layout_.host_of(info.rank)),
      messages_(std::make_shared<HostMessages>(info, layout_)),
      speakers_(std::make_unique<Speakers>(*this)) {
    messages_->set_meanwhile([this] {
        if (meanwhile) meanwhile();
    });
}

std::unique_ptr<Message> HostsTransport::send_part(const void* data, std::size_t bytes, int to, std::uint32_t call) {
    return messages_->send(data, bytes, to, direct_parts + call % tags);
}

std::unique_ptr<Message> HostsTransport::receive_part(void* data, std::size_t bytes, int from, std::uint32_t call) {
    return messages_->receive(data, bytes, from, direct_parts + call % tags);
}

HostsTransport::Speakers& HostsTransport::speakers(int root) {
    speakers_->begin(next_call(), 0);
    speakers_->let_speak(root);
    return *speakers_;
}

HostsTransport::Speakers& HostsTransport::counterparts() {
    speakers_->begin(next_call(), layout_.position_of(rank_));
    return *speakers_;
}

std::span<const std::size_t> HostsTransport::of_own_host(std::span<const std::size_t> numbers) const {
    const std::vector<int>& own = layout_.ranks_on(host_);
    return numbers.subspan(static_cast<std::size_t>(own.front()), own.size());
}

std::vector<std::size_t> HostsTransport::by_host(std::span<const std::size_t> numbers) const {
    std::vector<std::size_t> sums(static_cast<std::size_t>(layout_.hosts()), 0);
    for (int r = 0; r < size_; ++r)
        sums[static_cast<std::size_t>(layout_.host_of(r))] += numbers[static_cast<std::size_t>(r)];
    return sums;
}

void HostsTransport::barrier(Deadline deadline) {
    Speakers& between = speakers();
    messages_->inside([&](Transport& host) { host.barrier(deadline); });
    if (between.here()) between.barrier(deadline);
    messages_->inside([&](Transport& host) { host.barrier(deadline); });
}

void HostsTransport::broadcast(void* data, std::size_t bytes, int root, Deadline deadline) {
    Speakers& between = speakers(root);
    if (between.here()) between.broadcast(data, bytes, layout_.host_of(root), deadline);
    messages_->inside([&](Transport& host) { host.broadcast(data, bytes, between.inside(), deadline); });
}

/// Uses the ring of all ranks if the parts of a host are not contiguous.
void HostsTransport::all_gather(const void* in, void* out, std::span<const std::size_t> bytes, Deadline deadline) {
    if (!layout_.in_order()) return MessageCollectives::all_gather(in, out, bytes, deadline);
    Speakers& between = speakers();
    const std::vector<std::size_t> hosts = by_host(bytes);
    const std::size_t before = sum_of(std::span(hosts).first(static_cast<std::size_t>(host_)));
    const std::size_t behind = before + hosts[static_cast<std::size_t>(host_)], all = sum_of(hosts);
    auto* const to = static_cast<std::byte*>(out);
    if (layout_.ranks_on(host_).size() == 1) copy_bytes(to + before, in, behind - before);
    messages_->inside([&](Transport& host) { host.all_gather(in, to + before, of_own_host(bytes), deadline); });
    if (between.here()) between.all_gather(to + before, to, hosts, deadline);
    messages_->inside([&](Transport& host) {
        host.broadcast(to, before, between.inside(), deadline);
        host.broadcast(to + behind, all - behind, between.inside(), deadline);
    });
}

void HostsTransport::all_reduce_in_shares(void* data, std::size_t count, DType dtype, ReduceOp op, Deadline deadline) {
    Speakers& between = counterparts();
    const std::size_t ranks = layout_.ranks_on(host_).size();
    std::vector<std::size_t> counts(ranks, count / ranks), bytes;
    std::fill_n(counts.begin(), count % ranks, count / ranks + 1);
    for (const std::size_t share : counts) bytes.push_back(share * size_of(dtype));
    const auto position = static_cast<std::size_t>(layout_.position_of(rank_));
    void* const own = static_cast<std::byte*>(data) + sum_of(std::span(bytes).first(position));
    messages_->inside([&](Transport& host) { host.reduce_scatter(data, own, counts, dtype, op, deadline); });
    between.all_reduce(own, counts[position], dtype, op, deadline);
    messages_->inside([&](Transport& host) { host.all_gather(own, data, bytes, deadline); });
}

void HostsTransport::all_reduce(void* data, std::size_t count, DType dtype, ReduceOp op, Deadline deadline) {
    if (layout_.even()) return all_reduce_in_shares(data, count, dtype, op, deadline);
    Speakers& between = speakers();
    messages_->inside([&](Transport& host) { host.reduce(data, count, dtype, op, between.inside(), deadline); });
    if (between.here()) between.all_reduce(data, count, dtype, op, deadline);
    messages_->inside(
        [&](Transport& host) { host.broadcast(data, count * size_of(dtype), between.inside(), deadline); });
}

void HostsTransport::reduce(void* data, std::size_t count, DType dtype, ReduceOp op, int root, Deadline deadline) {
    Speakers& between = speakers(root);
    const std::size_t bytes = count * size_of(dtype);
    const bool own_memory = between.here() && rank_ != root;
    const auto memory = std::make_unique_for_overwrite<std::byte[]>(own_memory ? bytes : 0);
    void* sum = own_memory ? memory.get() : data;
    copy_bytes(sum, data, bytes);
    messages_->inside([&](Transport& host) { host.reduce(sum, count, dtype, op, between.inside(), deadline); });
    if (between.here()) between.reduce(sum, count, dtype, op, layout_.host_of(root), deadline);
}

void HostsTransport::reduce_scatter(const void* in, void* out, std::span<const std::size_t> counts, DType dtype,
                                    ReduceOp op, Deadline deadline) {
    if (!layout_.in_order()) return MessageCollectives::reduce_scatter(in, out, counts, dtype, op, deadline);
    Speakers& between = speakers();
    const std::vector<std::size_t> hosts = by_host(counts);
    const std::size_t all = sum_of(counts), of_host = hosts[static_cast<std::size_t>(host_)];
    const std::size_t size = size_of(dtype);
    const auto sums = std::make_unique_for_overwrite<std::byte[]>(between.here() ? all * size : 0);
    const auto part = std::make_unique_for_overwrite<std::byte[]>(between.here() ? of_host * size : 0);
    if (between.here()) copy_bytes(sums.get(), in, all * size);
    messages_->inside([&](Transport& host) {  // a rank that does not get the sum has unchanged memory
        void* data = between.here() ? sums.get() : const_cast<void*>(in);
        host.reduce(data, all, dtype, op, between.inside(), deadline);
    });
    if (between.here()) between.reduce_scatter(sums.get(), part.get(), hosts, dtype, op, deadline);
    if (layout_.ranks_on(host_).size() == 1) copy_bytes(out, part.get(), of_host * size);
    std::vector<std::size_t> bytes;
    for (const std::size_t count : of_own_host(counts)) bytes.push_back(count * size);
    messages_->inside([&](Transport& host) { host.scatter(part.get(), out, bytes, between.inside(), deadline); });
}

const TransportBackend& hosts_backend() {
    static const TransportBackend backend{
        .name = "shm", .make = [](const GroupInfo& info) -> std::unique_ptr<Transport> {
            const HostLayout layout(info.hosts, info.size);
            if (layout.hosts() == 1) return shm_backend().make(info);
            const TransportBackend& gloo = gloo_backend();
            if (gloo.make == nullptr)
                throw TransportError(
                    fmt::format("the ranks are on {} hosts, between which shm needs the backend gloo: {}",
                                layout.hosts(), gloo.absence));
            if (layout.hosts() == info.size) return gloo.make(info);
            return std::make_unique<HostsTransport>(info);
        }};
    return backend;
}

}  // namespace lockstep
