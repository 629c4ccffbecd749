// The backend for ranks on one host: through shared memory.
#pragma once

#include <memory>

#include "lockstep/parallel/comm/shm/group.h"
#include "lockstep/parallel/comm/shm/mailbox.h"
#include "lockstep/parallel/comm/shm/rounds.h"

namespace lockstep::shm {

/// Results are computed in the order of ranks, whatever the number of bytes.
class ShmTransport final : public Transport {
public:
    explicit ShmTransport(const GroupInfo& info);
    ~ShmTransport() override;
    ShmTransport(const ShmTransport&) = delete;
    ShmTransport& operator=(const ShmTransport&) = delete;

    std::string_view backend() const override { return "shm"; }
    std::unique_ptr<Message> send(const void* data, std::size_t bytes, int to, std::uint32_t tag) override;
    std::unique_ptr<Message> receive(void* data, std::size_t bytes, int from, std::uint32_t tag) override;
    int announced(std::uint32_t tag) override { return mailbox_->announced(tag); }
    void barrier(Deadline deadline) override;
    void broadcast(void* data, std::size_t bytes, int root, Deadline deadline) override;
    void all_gather(const void* in, void* out, std::span<const std::size_t> bytes, Deadline deadline) override;
    void gather(const void* in, void* out, std::span<const std::size_t> bytes, int root, Deadline deadline) override;
    void scatter(const void* in, void* out, std::span<const std::size_t> bytes, int root, Deadline deadline) override;
    void all_to_all(const void* in, std::span<const std::size_t> sent, void* out, std::span<const std::size_t> received,
                    Deadline deadline) override;
    void all_reduce(void* data, std::size_t count, DType dtype, ReduceOp op, Deadline deadline) override;
    void reduce(void* data, std::size_t count, DType dtype, ReduceOp op, int root, Deadline deadline) override;
    void reduce_scatter(const void* in, void* out, std::span<const std::size_t> counts, DType dtype, ReduceOp op,
                        Deadline deadline) override;
    void abort(const std::string& reason) noexcept override;
    std::string failure() const override { return group_->failure(); }

private:
    Rounds rounds(Deadline deadline) { return {*group_, next_round_, deadline, meanwhile}; }
    /// The part of a slot for one rank, if each rank gets its own.
    std::size_t lane(int from, int to) const;
    /// Piece k of each rank's part of `from`.
    void fill_lanes(std::uint64_t k, std::byte* slot, const std::byte* from, std::span<const std::size_t> bytes) const;
    /// Moves data from all ranks that put to all that take.
    void gather_to(const void* in, void* out, std::span<const std::size_t> bytes, bool puts, bool takes,
                   Deadline deadline);
    void reduce_to(std::byte* data, std::size_t bytes, DType dtype, ReduceOp op, bool puts, bool takes,
                   Deadline deadline);
    /// Every rank adds up its share for all others. With many ranks each reads less than if it added up everything.
    void reduce_in_shares(std::byte* data, std::size_t bytes, DType dtype, ReduceOp op, bool takes, Rounds& call);

    std::shared_ptr<Group> group_;
    std::shared_ptr<Mailbox> mailbox_;
    int rank_, size_;
    std::size_t lane_bytes_;
    std::uint64_t next_round_ = 0;
};

}  // namespace lockstep::shm
