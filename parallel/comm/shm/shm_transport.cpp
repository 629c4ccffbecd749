#include "lockstep/parallel/comm/shm/shm_transport.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/parallel/comm/shm/parts.h"

namespace lockstep::shm {

namespace {

constexpr int max_ranks = 1024;

}  // namespace

std::uint64_t Rounds::greatest(std::uint64_t number) {
    auto& round_of_own = own().rounds[next_ % slots];
    const std::uint64_t round = give([&](std::byte*) { round_of_own.store(number); });
    for (int peer = 0; peer < group_.size(); ++peer) {
        from(peer, round);
        number = std::max(number, group_.progress(peer).rounds[round % slots].load());
    }
    took_before(next_);
    return number;
}

ShmTransport::ShmTransport(const GroupInfo& info)
    : group_(std::make_shared<Group>(info)),
      mailbox_(std::make_shared<Mailbox>(group_)),
      rank_(info.rank),
      size_(info.size),
      lane_bytes_(slot_bytes / static_cast<std::size_t>(size_ - 1) / cache_line * cache_line) {}

ShmTransport::~ShmTransport() {
    mailbox_->close();
    group_->leave();  // messages may still own the group
}

std::size_t ShmTransport::lane(int from, int to) const {
    return static_cast<std::size_t>(to < from ? to : to - 1) * lane_bytes_;
}

void ShmTransport::fill_lanes(std::uint64_t k, std::byte* slot, const std::byte* from,
                              std::span<const std::size_t> bytes) const {
    each_part(bytes, [&](int part, std::size_t begin, std::size_t size) {
        const Piece piece(k, lane_bytes_, size);
        if (part != rank_) copy_bytes(slot + lane(rank_, part), from + begin + piece.begin, piece.bytes);
    });
}

std::unique_ptr<Message> ShmTransport::send(const void* data, std::size_t bytes, int to, std::uint32_t tag) {
    return mailbox_->send(data, bytes, to, tag);
}

std::unique_ptr<Message> ShmTransport::receive(void* data, std::size_t bytes, int from, std::uint32_t tag) {
    return mailbox_->receive(data, bytes, from, tag);
}

void ShmTransport::abort(const std::string& reason) noexcept { group_->end(reason, End::aborted); }

void ShmTransport::barrier(Deadline deadline) { rounds(deadline).greatest(0); }

void ShmTransport::broadcast(void* data, std::size_t bytes, int root, Deadline deadline) {
    Rounds call = rounds(deadline);
    auto* const at = static_cast<std::byte*>(data);
    call.run(
        pieces(bytes, slot_bytes), rank_ == root, rank_ != root,
        [&](std::uint64_t k, std::byte* slot) {
            const Piece piece(k, slot_bytes, bytes);
            copy_bytes(slot, at + piece.begin, piece.bytes);
        },
        [&](std::uint64_t k, std::uint64_t round) {
            const Piece piece(k, slot_bytes, bytes);
            copy_bytes(at + piece.begin, call.from(root, round), piece.bytes);
        });
}

void ShmTransport::all_gather(const void* in, void* out, std::span<const std::size_t> bytes, Deadline deadline) {
    gather_to(in, out, bytes, true, true, deadline);
}

void ShmTransport::gather(const void* in, void* out, std::span<const std::size_t> bytes, int root, Deadline deadline) {
    gather_to(in, out, bytes, rank_ != root, rank_ == root, deadline);
}

void ShmTransport::gather_to(const void* in, void* out, std::span<const std::size_t> bytes, bool puts, bool takes,
                             Deadline deadline) {
    Rounds call = rounds(deadline);
    const auto* const own = static_cast<const std::byte*>(in);
    auto* const all = static_cast<std::byte*>(out);
    each_part(bytes, [&](int part, std::size_t begin, std::size_t size) {
        if (part == rank_ && takes && all + begin != own) copy_bytes(all + begin, own, size);
    });
    call.run(
        pieces(longest(bytes), slot_bytes), puts, takes,
        [&](std::uint64_t k, std::byte* slot) {
            const Piece piece(k, slot_bytes, bytes[static_cast<std::size_t>(rank_)]);
            copy_bytes(slot, own + piece.begin, piece.bytes);
        },
        [&](std::uint64_t k, std::uint64_t round) {
            each_part(bytes, [&](int part, std::size_t begin, std::size_t size) {
                const Piece piece(k, slot_bytes, size);
                if (part != rank_) copy_bytes(all + begin + piece.begin, call.from(part, round), piece.bytes);
            });
        });
}

void ShmTransport::scatter(const void* in, void* out, std::span<const std::size_t> bytes, int root, Deadline deadline) {
    Rounds call = rounds(deadline);
    const auto* const all = static_cast<const std::byte*>(in);
    auto* const own = static_cast<std::byte*>(out);
    if (rank_ == root)
        each_part(bytes, [&](int part, std::size_t begin, std::size_t size) {
            if (part == rank_) copy_bytes(own, all + begin, size);
        });
    call.run(
        pieces(longest(bytes), lane_bytes_), rank_ == root, rank_ != root,
        [&](std::uint64_t k, std::byte* slot) { fill_lanes(k, slot, all, bytes); },
        [&](std::uint64_t k, std::uint64_t round) {
            const Piece piece(k, lane_bytes_, bytes[static_cast<std::size_t>(rank_)]);
            copy_bytes(own + piece.begin, call.from(root, round) + lane(root, rank_), piece.bytes);
        });
}

void ShmTransport::all_to_all(const void* in, std::span<const std::size_t> sent, void* out,
                              std::span<const std::size_t> received, Deadline deadline) {
    Rounds call = rounds(deadline);
    const auto* const from = static_cast<const std::byte*>(in);
    auto* const to = static_cast<std::byte*>(out);
    const std::byte* own = nullptr;
    each_part(sent, [&](int part, std::size_t begin, std::size_t) {
        if (part == rank_) own = from + begin;
    });
    each_part(received, [&](int part, std::size_t begin, std::size_t size) {
        if (part == rank_) copy_bytes(to + begin, own, size);
    });
    // Only the other ranks know how much they send to each other.
    const std::uint64_t count = call.greatest(pieces(std::max(longest(sent), longest(received)), lane_bytes_));
    call.run(
        count, true, true, [&](std::uint64_t k, std::byte* slot) { fill_lanes(k, slot, from, sent); },
        [&](std::uint64_t k, std::uint64_t round) {
            each_part(received, [&](int part, std::size_t begin, std::size_t size) {
                const Piece piece(k, lane_bytes_, size);
                if (part != rank_)
                    copy_bytes(to + begin + piece.begin, call.from(part, round) + lane(part, rank_), piece.bytes);
            });
        });
}

}  // namespace lockstep::shm

namespace lockstep {

const TransportBackend& shm_backend() {
    static const TransportBackend backend{
        .name = "shm", .make = [](const GroupInfo& info) -> std::unique_ptr<Transport> {
            if (info.size > shm::max_ranks)
                throw TransportError(
                    fmt::format("shm supports at most {} ranks; use the gloo backend", shm::max_ranks));
            return std::make_unique<shm::ShmTransport>(info);
        }};
    return backend;
}

}  // namespace lockstep
