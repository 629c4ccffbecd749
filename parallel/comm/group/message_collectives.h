// Collectives made of messages between two ranks: for backends whose library lacks an operation, or cannot do it with
// parts of different sizes, within a deadline, or without ending the process if ranks disagree.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/parallel/comm/group/transport.h"

namespace lockstep {

class MessageCollectives : public Transport {
public:
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

protected:
    /// `spins`: see Backoff.
    /// `verdict`: see GroupInfo.
    MessageCollectives(int rank, int size, int spins, std::function<std::string()> verdict)
        : rank_(rank), size_(size), spins_(spins), verdict_(std::move(verdict)) {}

    /// As send and receive, but never matched with messages of the user. `call`: the same on all ranks of one
    /// collective.
    virtual std::unique_ptr<Message> send_part(const void* data, std::size_t bytes, int to, std::uint32_t call) = 0;
    virtual std::unique_ptr<Message> receive_part(void* data, std::size_t bytes, int from, std::uint32_t call) = 0;
    /// Makes the transport unusable and throws.
    [[noreturn]] virtual void fail(const std::string& reason) = 0;

    /// The number of a collective, assigned when it begins.
    std::uint32_t next_call() { return ++calls_; }
    /// The error after the deadline: the rank to blame, or if unknown the rank that this rank waited for.
    std::string late(const std::string& waited_for) const {
        const std::string verdict = verdict_ ? verdict_() : std::string();
        return verdict.empty() ? "the deadline has passed; waited for " + waited_for
                               : "the deadline has passed: " + verdict;
    }

    const int rank_, size_;
    const int spins_;
    const std::function<std::string()> verdict_;

private:
    struct Part {
        std::unique_ptr<Message> message;
        int peer;
    };
    using Parts = std::vector<Part>;
    /// Splits `count` elements into one number per rank.
    std::vector<std::size_t> even_shares(std::size_t count) const;
    void add_send(Parts& parts, const void* data, std::size_t bytes, int to, std::uint32_t call);
    void add_receive(Parts& parts, void* data, std::size_t bytes, int from, std::uint32_t call);
    /// Copies a rank's own part, by a message if only the library can access the memory.
    void add_own(Parts& parts, void* to, const void* from, std::size_t bytes, std::uint32_t call);
    /// Waits for all `parts`.
    void finish(Parts& parts, Deadline deadline);

    std::uint32_t calls_ = 0;
};

}  // namespace lockstep
