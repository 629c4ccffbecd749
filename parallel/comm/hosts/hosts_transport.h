// The backend for ranks of several hosts: shared memory inside a host, Gloo between them.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/parallel/comm/group/message_collectives.h"
#include "lockstep/parallel/comm/hosts/host_messages.h"

namespace lockstep {

/// Data that all ranks need, or contribute to, crosses between hosts once per host: one rank represents its host, or,
/// in all_reduce on even hosts, each rank a share. The other collectives (gather, scatter, all_to_all) consist of
/// messages between the ranks involved. Sums are computed inside the hosts first, in the order of ranks, then host by
/// host.
class HostsTransport final : public MessageCollectives {
public:
    explicit HostsTransport(const GroupInfo& info);
    ~HostsTransport() override { messages_->close(); }
    HostsTransport(const HostsTransport&) = delete;
    HostsTransport& operator=(const HostsTransport&) = delete;

    std::string_view backend() const override { return "shm"; }
    std::unique_ptr<Message> send(const void* data, std::size_t bytes, int to, std::uint32_t tag) override {
        return messages_->send(data, bytes, to, tag);
    }
    std::unique_ptr<Message> receive(void* data, std::size_t bytes, int from, std::uint32_t tag) override {
        return messages_->receive(data, bytes, from, tag);
    }
    int announced(std::uint32_t tag) override { return messages_->announced(tag); }
    void barrier(Deadline deadline) override;
    void broadcast(void* data, std::size_t bytes, int root, Deadline deadline) override;
    void all_gather(const void* in, void* out, std::span<const std::size_t> bytes, Deadline deadline) override;
    void all_reduce(void* data, std::size_t count, DType dtype, ReduceOp op, Deadline deadline) override;
    void reduce(void* data, std::size_t count, DType dtype, ReduceOp op, int root, Deadline deadline) override;
    void reduce_scatter(const void* in, void* out, std::span<const std::size_t> counts, DType dtype, ReduceOp op,
                        Deadline deadline) override;
    void abort(const std::string& reason) noexcept override { messages_->end(reason); }
    std::string failure() const override { return messages_->failure(); }

private:
    class Speakers;

    std::unique_ptr<Message> send_part(const void* data, std::size_t bytes, int to, std::uint32_t call) override;
    std::unique_ptr<Message> receive_part(void* data, std::size_t bytes, int from, std::uint32_t call) override;
    [[noreturn]] void fail(const std::string& reason) override { messages_->fail(reason); }
    /// Begins a collective in two levels. The first rank of every host represents it; `root` represents its own host.
    Speakers& speakers(int root = 0);
    /// For even hosts: every rank represents its share, to the ranks at its position on the other hosts.
    Speakers& counterparts();
    /// From one number per rank: those of this host's ranks, and the sums per host.
    std::span<const std::size_t> of_own_host(std::span<const std::size_t> numbers) const;
    std::vector<std::size_t> by_host(std::span<const std::size_t> numbers) const;
    /// Every rank of a host exchanges a share with the other hosts.
    void all_reduce_in_shares(void* data, std::size_t count, DType dtype, ReduceOp op, Deadline deadline);

    const HostLayout layout_;
    const int host_;
    std::shared_ptr<HostMessages> messages_;
    std::unique_ptr<Speakers> speakers_;
};

}  // namespace lockstep
