#include "lockstep/parallel/data/sampler.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/parallel/data/internal/torch_generator.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/warning.h"

namespace lockstep {

std::vector<std::int64_t> random_permutation(std::int64_t length, std::uint64_t seed) {
    return TorchGenerator(seed).permutation("random_permutation", length);
}

DistributedSampler::DistributedSampler(std::int64_t length, int replicas, int rank,
                                       const DistributedSamplerOptions& options)
    : length_(length), replicas_(replicas), rank_(rank), options_(options) {
    if (length < 0)
        throw InvalidArgument(fmt::format("DistributedSampler: a data set of {} rows; expected 0 or more", length));
    if (replicas < 1)
        throw InvalidArgument(
            fmt::format("DistributedSampler: {} replicas; expected the world size, 1 or more", replicas));
    if (rank < 0 || rank >= replicas)
        throw InvalidArgument(fmt::format("DistributedSampler: Invalid rank {}, rank should be in the interval [0, {}]",
                                          rank, replicas - 1));
    if (options.drop_last && !options.pad)
        throw InvalidArgument("DistributedSampler: drop_last and pad = false; expected at most one of them");
}

std::int64_t DistributedSampler::size() const {
    if (options_.drop_last) return length_ / replicas_;
    if (options_.pad) return (length_ + replicas_ - 1) / replicas_;
    return (length_ - rank_ + replicas_ - 1) / replicas_;
}

std::vector<std::int64_t> DistributedSampler::indices() {
    if (options_.shuffle && last_ == epoch_)
        warn(
            fmt::format("DistributedSampler: epoch {} is read again, in the same order; call set_epoch before every "
                        "epoch",
                        epoch_));
    last_ = epoch_;
    const std::vector<std::int64_t> order = order_of(epoch_);
    std::vector<std::int64_t> rows;
    rows.reserve(static_cast<std::size_t>(size()));
    for (std::int64_t i = 0; i < size(); ++i)  // beyond the end: from the start again, as often as it takes
        rows.push_back(order[static_cast<std::size_t>((rank_ + i * replicas_) % length_)]);
    return rows;
}

std::vector<std::int64_t> DistributedSampler::order_of(std::int64_t epoch) const {
    return options_.shuffle ? random_permutation(length_, options_.seed + static_cast<std::uint64_t>(epoch))
                            : rows_in_order("DistributedSampler", length_);
}

std::int64_t DistributedSampler::global_size() const {
    if (options_.drop_last) return length_ / replicas_ * replicas_;
    if (options_.pad) return (length_ + replicas_ - 1) / replicas_ * replicas_;
    return length_;
}

std::vector<std::int64_t> DistributedSampler::global_indices(std::uint64_t epoch, std::int64_t batch_size) const {
    if (batch_size < 1 || batch_size % replicas_ != 0)
        throw InvalidArgument(
            fmt::format("DistributedSampler: batches of {} rows for {} replicas; expected a multiple, {} rows for each",
                        batch_size, replicas_, std::max<std::int64_t>(batch_size / replicas_, 1)));
    const std::vector<std::int64_t> order = order_of(static_cast<std::int64_t>(epoch));
    const std::int64_t end = global_size();
    std::vector<std::int64_t> rows;
    rows.reserve(static_cast<std::size_t>(end));
    for (std::int64_t batch = 0; batch < end; batch += batch_size)
        for (std::int64_t rank = 0; rank < replicas_; ++rank)
            for (std::int64_t i = batch + rank; i < std::min(batch + batch_size, end); i += replicas_)
                rows.push_back(order[static_cast<std::size_t>(i % length_)]);
    return rows;
}

}  // namespace lockstep
