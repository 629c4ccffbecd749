#include "lockstep/parallel/data/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "lockstep/parallel/data/internal/mersenne_twister.h"
#include "lockstep/parallel/data/internal/torch_generator.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/warning.h"

namespace lockstep {

namespace {

/// Python's random.Random(seed).shuffle(rows): Fisher and Yates from the end, numbers below n by rejection.
void shuffle_like_python(std::vector<std::int64_t>& rows, std::uint64_t seed) {
    std::vector<std::uint32_t> key{static_cast<std::uint32_t>(seed)};
    if (seed >> 32 != 0) key.push_back(static_cast<std::uint32_t>(seed >> 32));
    MersenneTwister random(key);
    for (std::size_t i = rows.size(); i > 1; --i) {
        const auto bits = std::bit_width(i);
        std::size_t j = random.upper_bits(static_cast<int>(bits));
        while (j >= i) j = random.upper_bits(static_cast<int>(bits));
        std::swap(rows[i - 1], rows[j]);
    }
}

}  // namespace

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

DataPartitioner::DataPartitioner(std::int64_t length, const std::vector<double>& fractions, std::uint64_t seed)
    : length_(length) {
    std::vector<std::int64_t> rows = rows_in_order("DataPartitioner", length);
    double sum = 0;
    for (const double fraction : fractions) {
        if (!(fraction >= 0 && fraction <= 1))
            throw InvalidArgument(fmt::format("DataPartitioner: a fraction of {}; expected 0 to 1", fraction));
        sum += fraction;
    }
    if (sum > 1 + 1e-9)
        throw InvalidArgument(fmt::format("DataPartitioner: the sum of the fractions is {}; expected at most 1", sum));
    shuffle_like_python(rows, seed);
    auto next = rows.begin();
    for (const double fraction : fractions) {
        const auto wanted = static_cast<std::ptrdiff_t>(fraction * static_cast<double>(length));
        const auto end = next + std::min(wanted, rows.end() - next);
        parts_.emplace_back(next, end);
        next = end;
    }
    lost_ = rows.end() - next;
    if (lost_ > 0 && sum > 1 - 1e-9)  // else rows were meant to be left over
        warn(fmt::format("DataPartitioner: {} of {} rows are in no part, as each part's size is rounded down", lost_,
                         length));
}

const std::vector<std::int64_t>& DataPartitioner::part(std::size_t index) const {
    if (index >= parts_.size())
        throw InvalidArgument(
            fmt::format("DataPartitioner: part {} of {}; parts are counted from 0", index, parts_.size()));
    return parts_[index];
}

void DataPartitioner::require_length(std::int64_t length) const {
    if (length != length_)
        throw InvalidArgument(fmt::format("DataPartitioner: a data set of {} rows; expected {}", length, length_));
}

}  // namespace lockstep
