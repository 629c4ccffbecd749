// The collectives of the shm backend that compute. Parts are combined in the order of ranks, straight from the slots.
#include <algorithm>
#include <array>

#include "lockstep/parallel/comm/group/reduce_elements.h"
#include "lockstep/parallel/comm/shm/parts.h"
#include "lockstep/parallel/comm/shm/shm_transport.h"

namespace lockstep::shm {

namespace {

/// From this size on, groups of more than two ranks share the work.
constexpr std::size_t worth_sharing = std::size_t{16} << 10;

using Sources = std::vector<const std::byte*>;

/// out = from[0] op from[1] op ...; `out` may be one of them.
void combine(DType dtype, ReduceOp op, std::byte* out, const Sources& from, std::size_t bytes) {
    if (bytes == 0) return;
    if (from.size() == 2) return reduce_elements(dtype, op, out, from[0], from[1], bytes / size_of(dtype));
    alignas(cache_line) std::array<std::byte, 8192> sum;
    for (std::size_t at = 0; at < bytes; at += sum.size()) {
        const std::size_t count = std::min(sum.size(), bytes - at) / size_of(dtype);
        reduce_elements(dtype, op, sum.data(), from[0] + at, from[1] + at, count);
        for (std::size_t r = 2; r + 1 < from.size(); ++r)
            reduce_elements(dtype, op, sum.data(), sum.data(), from[r] + at, count);
        reduce_elements(dtype, op, out + at, sum.data(), from.back() + at, count);
    }
}

}  // namespace

void ShmTransport::all_reduce(void* data, std::size_t count, DType dtype, ReduceOp op, Deadline deadline) {
    reduce_to(static_cast<std::byte*>(data), count * size_of(dtype), dtype, op, true, true, deadline);
}

void ShmTransport::reduce(void* data, std::size_t count, DType dtype, ReduceOp op, int root, Deadline deadline) {
    const bool takes = rank_ == root;
    reduce_to(static_cast<std::byte*>(data), count * size_of(dtype), dtype, op, !takes, takes, deadline);
}

void ShmTransport::reduce_to(std::byte* data, std::size_t bytes, DType dtype, ReduceOp op, bool puts, bool takes,
                             Deadline deadline) {
    Rounds call = rounds(deadline);
    if (size_ > 2 && bytes >= worth_sharing) return reduce_in_shares(data, bytes, dtype, op, takes, call);
    Sources parts(static_cast<std::size_t>(size_));
    call.run(
        pieces(bytes, slot_bytes), puts, takes,
        [&](std::uint64_t k, std::byte* slot) {
            const Piece piece(k, slot_bytes, bytes);
            copy_bytes(slot, data + piece.begin, piece.bytes);
        },
        [&](std::uint64_t k, std::uint64_t round) {
            const Piece piece(k, slot_bytes, bytes);
            for (int peer = 0; peer < size_; ++peer)
                parts[static_cast<std::size_t>(peer)] = peer == rank_ ? data + piece.begin : call.from(peer, round);
            combine(dtype, op, data + piece.begin, parts, piece.bytes);
        });
}

void ShmTransport::reduce_in_shares(std::byte* data, std::size_t bytes, DType dtype, ReduceOp op, bool takes,
                                    Rounds& call) {
    const auto ranks = static_cast<std::size_t>(size_);
    Sources parts(ranks);
    const auto give = [&](std::uint64_t k) {
        const Piece piece(k, slot_bytes, bytes);
        return call.give([&](std::byte* slot) { copy_bytes(slot, data + piece.begin, piece.bytes); });
    };
    const std::uint64_t count = pieces(bytes, slot_bytes);
    std::uint64_t given = give(0);
    for (std::uint64_t k = 0; k < count; ++k) {
        const std::uint64_t next = k + 1 < count ? give(k + 1) : given;
        const Piece piece(k, slot_bytes, bytes);
        const std::size_t unit = (piece.bytes / ranks / cache_line + 1) * cache_line;
        const std::uint64_t sums = call.give([&](std::byte* slot) {
            const Piece share(static_cast<std::uint64_t>(rank_), unit, piece.bytes);
            for (int peer = 0; peer < size_; ++peer)
                parts[static_cast<std::size_t>(peer)] = call.from(peer, given) + share.begin;
            combine(dtype, op, slot, parts, share.bytes);
        });
        for (int peer = 0; peer < size_ && takes; ++peer) {
            const Piece share(static_cast<std::uint64_t>(peer), unit, piece.bytes);
            copy_bytes(data + piece.begin + share.begin, call.from(peer, sums), share.bytes);
        }
        call.took_before(k + 1 < count ? next : sums + 1);
        given = next;
    }
}

void ShmTransport::reduce_scatter(const void* in, void* out, std::span<const std::size_t> counts, DType dtype,
                                  ReduceOp op, Deadline deadline) {
    Rounds call = rounds(deadline);
    const auto* const from = static_cast<const std::byte*>(in);
    auto* const to = static_cast<std::byte*>(out);
    std::vector<std::size_t> bytes;
    for (const std::size_t part : counts) bytes.push_back(part * size_of(dtype));
    const std::byte* own = nullptr;
    each_part(bytes, [&](int part, std::size_t begin, std::size_t) {
        if (part == rank_) own = from + begin;
    });
    Sources parts(counts.size());
    call.run(
        pieces(longest(bytes), lane_bytes_), true, true,
        [&](std::uint64_t k, std::byte* slot) { fill_lanes(k, slot, from, bytes); },
        [&](std::uint64_t k, std::uint64_t round) {
            const Piece piece(k, lane_bytes_, bytes[static_cast<std::size_t>(rank_)]);
            for (int peer = 0; peer < size_; ++peer)
                parts[static_cast<std::size_t>(peer)] =
                    peer == rank_ ? own + piece.begin : call.from(peer, round) + lane(peer, rank_);
            combine(dtype, op, to + piece.begin, parts, piece.bytes);
        });
}

}  // namespace lockstep::shm
