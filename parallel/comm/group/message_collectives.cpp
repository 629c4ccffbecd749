#include "lockstep/parallel/comm/group/message_collectives.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "lockstep/parallel/comm/group/reduce_elements.h"
#include "lockstep/parallel/comm/reduce_op.h"
#include "lockstep/parallel/comm/store/deadline.h"

namespace lockstep {

namespace {

using Sizes = std::span<const std::size_t>;

std::size_t total(Sizes sizes) { return std::accumulate(sizes.begin(), sizes.end(), std::size_t{0}); }

/// Offset of part `r`.
std::size_t before(Sizes sizes, int r) { return total(sizes.first(static_cast<std::size_t>(r))); }

std::size_t of(Sizes sizes, int r) { return sizes[static_cast<std::size_t>(r)]; }

std::byte* part_of(void* data, Sizes sizes, int r) { return static_cast<std::byte*>(data) + before(sizes, r); }
const std::byte* part_of(const void* data, Sizes sizes, int r) {
    return static_cast<const std::byte*>(data) + before(sizes, r);
}

std::vector<std::size_t> times(Sizes sizes, std::size_t factor) {
    std::vector<std::size_t> result(sizes.begin(), sizes.end());
    for (std::size_t& size : result) size *= factor;
    return result;
}

}  // namespace

void MessageCollectives::add_send(Parts& parts, const void* data, std::size_t bytes, int to, std::uint32_t call) {
    parts.push_back({send_part(data, bytes, to, call), to});
}

void MessageCollectives::add_receive(Parts& parts, void* data, std::size_t bytes, int from, std::uint32_t call) {
    parts.push_back({receive_part(data, bytes, from, call), from});
}

void MessageCollectives::add_own(Parts& parts, void* to, const void* from, std::size_t bytes, std::uint32_t call) {
    if (bytes == 0 || to == from) return;
    if (!takes_gpu_memory()) {
        std::memcpy(to, from, bytes);
        return;
    }
    add_receive(parts, to, bytes, rank_, call);
    add_send(parts, from, bytes, rank_, call);
}

void MessageCollectives::finish(Parts& parts, Deadline deadline) {
    Backoff backoff(spins_);
    for (;;) {
        std::erase_if(parts, [](const Part& part) { return part.message->advance(); });
        if (parts.empty()) return;
        if (meanwhile) meanwhile();
        if (RunClock::now() >= deadline) break;
        backoff.pause();
    }
    std::vector<int> missing;
    for (const Part& part : parts) missing.push_back(part.peer);
    std::sort(missing.begin(), missing.end());
    missing.erase(std::unique(missing.begin(), missing.end()), missing.end());
    fail(late(fmt::format("{} {}", missing.size() == 1 ? "rank" : "ranks", fmt::join(missing, ", "))));
}

void MessageCollectives::barrier(Deadline deadline) {
    const std::uint32_t call = next_call();
    for (int distance = 1; distance < size_; distance *= 2) {
        Parts parts;
        add_receive(parts, nullptr, 0, (rank_ - distance + size_) % size_, call);
        add_send(parts, nullptr, 0, (rank_ + distance) % size_, call);
        finish(parts, deadline);
    }
}

/// Binomial tree with root `root`.
void MessageCollectives::broadcast(void* data, std::size_t bytes, int root, Deadline deadline) {
    const std::uint32_t call = next_call();
    const int position = (rank_ - root + size_) % size_;
    const auto rank_at = [&](int other) { return (other + root) % size_; };
    int reach = 1;  // size of this rank's subtree
    while (reach < size_ && (position & reach) == 0) reach *= 2;
    Parts parts;
    if (position != 0) {
        add_receive(parts, data, bytes, rank_at(position - reach), call);
        finish(parts, deadline);
    }
    for (int step = reach / 2; step > 0; step /= 2)
        if (position + step < size_) add_send(parts, data, bytes, rank_at(position + step), call);
    finish(parts, deadline);
}

/// Ring.
void MessageCollectives::all_gather(const void* in, void* out, Sizes bytes, Deadline deadline) {
    const std::uint32_t call = next_call();
    Parts own;
    add_own(own, part_of(out, bytes, rank_), in, of(bytes, rank_), call);
    finish(own, deadline);
    const int next = (rank_ + 1) % size_, previous = (rank_ - 1 + size_) % size_;
    for (int step = 0; step + 1 < size_; ++step) {
        const int passed_on = (rank_ - step + size_) % size_, got = (previous - step + size_) % size_;
        Parts parts;
        add_receive(parts, part_of(out, bytes, got), of(bytes, got), previous, call);
        add_send(parts, part_of(out, bytes, passed_on), of(bytes, passed_on), next, call);
        finish(parts, deadline);
    }
}

void MessageCollectives::gather(const void* in, void* out, Sizes bytes, int root, Deadline deadline) {
    const std::uint32_t call = next_call();
    Parts parts;
    if (rank_ != root) {
        add_send(parts, in, of(bytes, rank_), root, call);
    } else {
        for (int r = 0; r < size_; ++r)
            if (r != root) add_receive(parts, part_of(out, bytes, r), of(bytes, r), r, call);
        add_own(parts, part_of(out, bytes, rank_), in, of(bytes, rank_), call);
    }
    finish(parts, deadline);
}

void MessageCollectives::scatter(const void* in, void* out, Sizes bytes, int root, Deadline deadline) {
    const std::uint32_t call = next_call();
    Parts parts;
    if (rank_ != root) {
        add_receive(parts, out, of(bytes, rank_), root, call);
    } else {
        for (int r = 0; r < size_; ++r)
            if (r != root) add_send(parts, part_of(in, bytes, r), of(bytes, r), r, call);
        add_own(parts, out, part_of(in, bytes, rank_), of(bytes, rank_), call);
    }
    finish(parts, deadline);
}

/// No message is sent for an empty part.
void MessageCollectives::all_to_all(const void* in, Sizes sent, void* out, Sizes received, Deadline deadline) {
    const std::uint32_t call = next_call();
    Parts parts;
    for (int step = 1; step < size_; ++step) {
        const int from = (rank_ - step + size_) % size_;
        if (of(received, from) > 0) add_receive(parts, part_of(out, received, from), of(received, from), from, call);
    }
    for (int step = 1; step < size_; ++step) {
        const int to = (rank_ + step) % size_;
        if (of(sent, to) > 0) add_send(parts, part_of(in, sent, to), of(sent, to), to, call);
    }
    add_own(parts, part_of(out, received, rank_), part_of(in, sent, rank_), of(sent, rank_), call);
    finish(parts, deadline);
}

std::vector<std::size_t> MessageCollectives::even_shares(std::size_t count) const {
    const auto size = static_cast<std::size_t>(size_);
    std::vector<std::size_t> shares(size, count / size);
    std::fill_n(shares.begin(), count % size, count / size + 1);
    return shares;
}

/// Each rank reduces a share, which all others then fetch.
void MessageCollectives::all_reduce(void* data, std::size_t count, DType dtype, ReduceOp op, Deadline deadline) {
    const std::vector<std::size_t> shares = even_shares(count), bytes = times(shares, size_of(dtype));
    std::byte* own = part_of(data, bytes, rank_);
    MessageCollectives::reduce_scatter(data, own, shares, dtype, op, deadline);
    MessageCollectives::all_gather(own, data, bytes, deadline);
}

/// As all_reduce, but only the root fetches the shares.
void MessageCollectives::reduce(void* data, std::size_t count, DType dtype, ReduceOp op, int root, Deadline deadline) {
    const std::vector<std::size_t> shares = even_shares(count), bytes = times(shares, size_of(dtype));
    const auto own = std::make_unique_for_overwrite<std::byte[]>(of(bytes, rank_));
    MessageCollectives::reduce_scatter(data, own.get(), shares, dtype, op, deadline);
    MessageCollectives::gather(own.get(), data, bytes, root, deadline);
}

/// Adds in the order of the ranks. `out` may be a part of `in`.
void MessageCollectives::reduce_scatter(const void* in, void* out, Sizes counts, DType dtype, ReduceOp op,
                                        Deadline deadline) {
    const std::size_t count = of(counts, rank_), bytes = count * size_of(dtype);
    const std::vector<std::size_t> received(counts.size(), bytes);
    const auto parts = std::make_unique_for_overwrite<std::byte[]>(counts.size() * bytes);
    MessageCollectives::all_to_all(in, times(counts, size_of(dtype)), parts.get(), received, deadline);
    for (int r = 1; r < size_; ++r)
        reduce_elements(dtype, op, parts.get(), parts.get(), part_of(parts.get(), received, r), count);
    if (bytes > 0) std::memcpy(out, parts.get(), bytes);
}

}  // namespace lockstep
