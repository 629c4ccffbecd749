#include "lockstep/parallel/data/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lockstep/parallel/data/internal/torch_generator.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/log.h"
#include "lockstep/runtime/round_up.h"

namespace lockstep {

std::vector<std::int64_t> random_permutation(std::int64_t length, std::uint64_t seed) {
    return TorchGenerator(seed).permutation("random_permutation", length);
}

DistributedSampler::DistributedSampler(std::int64_t length, int replicas, int rank,
                                       const DistributedSamplerOptions& options)
    : length_(length), replicas_(replicas), rank_(rank), options_(options) {
    constexpr std::int64_t most = std::int64_t{1} << 62;  // the padded number must be representable
    if (length < 0 || length > most)
        throw InvalidArgument(fmt::format("DistributedSampler: a dataset of {} rows; expected 0 to 2^62", length));
    if (replicas < 1)
        throw InvalidArgument(
            fmt::format("DistributedSampler: {} replicas; expected the world size, 1 or more", replicas));
    if (rank < 0 || rank >= replicas)
        throw InvalidArgument(fmt::format("DistributedSampler: rank is {}; expected 0 to {}", rank, replicas - 1));
    if (options.drop_last && !options.pad)
        throw InvalidArgument("DistributedSampler: drop_last and pad = false; expected at most one of them");
}

std::int64_t DistributedSampler::size() const {
    if (options_.drop_last) return length_ / replicas_;
    if (options_.pad) return ceil_div(length_, replicas_);
    return ceil_div(length_ - rank_, replicas_);
}

std::vector<std::int64_t> DistributedSampler::indices() {
    if (options_.shuffle && last_ == epoch_)
        warn(
            fmt::format("DistributedSampler: epoch {} is read again, in the same order; call set_epoch before every "
                        "epoch",
                        epoch_));
    last_ = epoch_;
    const std::vector<std::int64_t> order = order_of(epoch_);
    std::vector<std::int64_t> rows = room_for_rows("DistributedSampler", size());
    for (std::int64_t i = 0; i < size(); ++i)  // after the end it starts again, as often as necessary
        rows.push_back(order[static_cast<std::size_t>((rank_ + i * replicas_) % length_)]);
    return rows;
}

std::vector<std::int64_t> DistributedSampler::order_of(std::int64_t epoch) const {
    return options_.shuffle ? random_permutation(length_, options_.seed + static_cast<std::uint64_t>(epoch))
                            : rows_in_order("DistributedSampler", length_);
}

std::int64_t DistributedSampler::global_size() const {
    if (options_.drop_last) return length_ / replicas_ * replicas_;
    if (options_.pad) return round_up(length_, replicas_);
    return length_;
}

std::vector<std::int64_t> DistributedSampler::global_indices(std::uint64_t epoch, std::int64_t batch_size) const {
    if (batch_size < 1 || batch_size % replicas_ != 0)
        throw InvalidArgument(
            fmt::format("DistributedSampler: batches of {} rows for {} replicas; expected a multiple, {} rows for each",
                        batch_size, replicas_, std::max<std::int64_t>(batch_size / replicas_, 1)));
    const std::vector<std::int64_t> order = order_of(static_cast<std::int64_t>(epoch));
    const std::int64_t end = global_size();
    std::vector<std::int64_t> rows = room_for_rows("DistributedSampler", end);
    for (std::int64_t batch = 0; batch < end; batch += batch_size)
        for (std::int64_t rank = 0; rank < replicas_; ++rank)
            for (std::int64_t i = batch + rank; i < std::min(batch + batch_size, end); i += replicas_)
                rows.push_back(order[static_cast<std::size_t>(i % length_)]);
    return rows;
}

namespace {

void require_samples(const char* who, std::int64_t samples) {
    if (samples < 1) throw InvalidArgument(fmt::format("{}: num_samples is {}; expected 1 or more", who, samples));
}

/// Efraimidis and Spirakis (2006): the `count` rows whose log(u) / weight are the largest, in that order.
std::vector<std::int64_t> without_replacement(const std::vector<double>& weights, std::int64_t count,
                                              TorchGenerator& random) {
    std::vector<std::pair<double, std::int64_t>> keys;
    for (std::size_t row = 0; row < weights.size(); ++row) {
        const double number = 1 - random.uniform();  // in (0, 1]
        if (weights[row] > 0) keys.emplace_back(-std::log(number) / weights[row], static_cast<std::int64_t>(row));
    }
    std::partial_sort(keys.begin(), keys.begin() + count, keys.end());
    std::vector<std::int64_t> rows;
    for (std::int64_t i = 0; i < count; ++i) rows.push_back(keys[static_cast<std::size_t>(i)].second);
    return rows;
}

}  // namespace

SequentialSampler::SequentialSampler(std::int64_t length) : length_(length) {
    if (length < 0)
        throw InvalidArgument(fmt::format("SequentialSampler: a dataset of {} rows; expected 0 or more", length));
}

std::vector<std::int64_t> SequentialSampler::indices(std::uint64_t) const {
    return rows_in_order("SequentialSampler", length_);
}

RandomSampler::RandomSampler(std::int64_t length, const RandomSamplerOptions& options)
    : length_(length),
      samples_(options.num_samples.value_or(length)),
      replacement_(options.replacement),
      seed_(options.seed) {
    require_samples("RandomSampler", samples_);
    if (length < 1)
        throw InvalidArgument(fmt::format("RandomSampler: a dataset of {} rows; expected at least one", length));
    if (!replacement_) TorchGenerator::require_permutable("RandomSampler", length);
}

std::vector<std::int64_t> RandomSampler::indices(std::uint64_t epoch) const {
    TorchGenerator random(seed_ + epoch);
    std::vector<std::int64_t> rows = room_for_rows("RandomSampler", samples_);
    while (std::ssize(rows) < samples_) {
        if (replacement_) {
            rows.push_back(random.below(length_));
        } else {
            const std::vector<std::int64_t> next = random.permutation("RandomSampler", length_);
            rows.insert(rows.end(), next.begin(), next.begin() + std::min(length_, samples_ - std::ssize(rows)));
        }
    }
    return rows;
}

WeightedRandomSampler::WeightedRandomSampler(std::vector<double> weights, std::int64_t num_samples,
                                             const WeightedRandomSamplerOptions& options)
    : samples_(num_samples), options_(options) {
    require_samples("WeightedRandomSampler", num_samples);
    double sum = 0;
    std::int64_t positive = 0;
    cumulative_.reserve(weights.size());
    for (std::size_t i = 0; i < weights.size(); ++i) {
        if (!(weights[i] >= 0) || !std::isfinite(weights[i]))
            throw InvalidArgument(fmt::format(
                "WeightedRandomSampler: weight {} of row {}; expected a finite number of 0 or more", weights[i], i));
        if (weights[i] > 0) ++positive;
        cumulative_.push_back(sum += weights[i]);
    }
    if (!(sum > 0) || !std::isfinite(sum))
        throw InvalidArgument(
            fmt::format("WeightedRandomSampler: the sum of the {} weights is {}; expected a positive, finite sum",
                        weights.size(), sum));
    if (!options.replacement && num_samples > positive)
        throw InvalidArgument(
            fmt::format("WeightedRandomSampler: {} samples without replacement of {} rows with a positive weight; "
                        "expected at most one per row",
                        num_samples, positive));
    if (!options.replacement) {
        cumulative_.clear();
        weights_ = std::move(weights);
        return;
    }
    if (sum > 1.00001 || sum < 0.99999)  // torch.multinomial accepts sums that are nearly 1
        for (double& until : cumulative_) until /= sum;
    cumulative_.back() = 1;
}

std::vector<std::int64_t> WeightedRandomSampler::indices(std::uint64_t epoch) const {
    mark_.require("WeightedRandomSampler");
    TorchGenerator random(options_.seed + epoch);
    if (!options_.replacement) return without_replacement(weights_, samples_, random);
    std::vector<std::int64_t> rows = room_for_rows("WeightedRandomSampler", samples_);
    for (std::int64_t i = 0; i < samples_; ++i)
        rows.push_back(std::lower_bound(cumulative_.begin(), cumulative_.end(), random.uniform()) -
                       cumulative_.begin());
    return rows;
}

BatchSampler::BatchSampler(AnySampler sampler, std::int64_t batch_size, bool drop_last)
    : sampler_(std::move(sampler)), batch_size_(batch_size), drop_last_(drop_last) {
    if (!sampler_ || sampler_.is_batching())
        throw InvalidArgument("BatchSampler: the sampler makes batches or is empty; expected a sampler of rows");
    if (batch_size < 1)
        throw InvalidArgument(fmt::format("BatchSampler: batch_size is {}; expected 1 or more", batch_size));
}

std::int64_t BatchSampler::size() const {
    return drop_last_ ? sampler_.rows() / batch_size_ : ceil_div(sampler_.rows(), batch_size_);
}

std::int64_t BatchSampler::rows() const { return drop_last_ ? size() * batch_size_ : sampler_.rows(); }

std::vector<std::vector<std::int64_t>> BatchSampler::batches(std::uint64_t epoch) const {
    const std::vector<std::int64_t> rows = sampler_.indices(epoch, batch_size_);
    if (std::ssize(rows) != sampler_.rows())
        throw InvalidArgument(
            fmt::format("BatchSampler: the sampler returned {} rows for this epoch; expected {}, as it declared",
                        rows.size(), sampler_.rows()));
    std::vector<std::vector<std::int64_t>> batches;
    for (auto next = rows.begin(); std::ssize(batches) < size();) {
        const auto end = next + std::min<std::ptrdiff_t>(batch_size_, rows.end() - next);
        batches.emplace_back(next, end);
        next = end;
    }
    return batches;
}

}  // namespace lockstep
