// Samplers: the order in which the rows of a dataset are read, and the batches that they form.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/runtime/moved_from.h"

namespace lockstep {

// PyTorch's DistributedSampler, for code that is ported from PyTorch. Lockstep's own Loader draws the batches of every
// mode from one global order and does not need it, but accepts it.

/// Options of DistributedSampler.
struct DistributedSamplerOptions {
    bool shuffle = true;
    std::uint64_t seed = 0;  ///< the same on every rank
    bool drop_last = false;  ///< drops excess rows instead of repeating others
    /// If false, no rows are repeated to pad, so that the first ranks may have one row more. For evaluation, in which
    /// every row counts once; cannot be combined with `drop_last`.
    bool pad = true;
};

/// torch.utils.data.DistributedSampler: the same indices for the same seed, epoch, length, replicas and `drop_last`.
class DistributedSampler {
public:
    /// Throws InvalidArgument for a length outside 0 to 2^62, no replicas, a rank outside [0, replicas - 1], and
    /// `drop_last` without `pad`. With a length of 0 every rank has 0 rows.
    DistributedSampler(std::int64_t length, int replicas, int rank, const DistributedSamplerOptions& options = {});

    /// The order depends on seed + epoch. Call it before every epoch.
    void set_epoch(std::int64_t epoch) { epoch_ = epoch; }
    /// The rows of this rank in this epoch. Warns if the same shuffled epoch is requested twice in a row: without
    /// `set_epoch` every epoch has the same order.
    std::vector<std::int64_t> indices();
    /// The number of rows of `indices`.
    std::int64_t size() const;

    /// The rows of all replicas in that epoch, in the order in which a Loader reads them. Cut them into batches of
    /// `batch_size` rows, and each batch into one part per replica. Every rank then has the rows that PyTorch's
    /// DataLoader reads there in batches of `batch_size / replicas`. A program ported from PyTorch therefore trains on
    /// the same rows on each rank. Without `pad` a row of the last batch may be on another rank. Throws InvalidArgument
    /// for a size that is not a multiple of the replicas.
    std::vector<std::int64_t> global_indices(std::uint64_t epoch, std::int64_t batch_size) const;
    /// The number of rows of `global_indices`.
    std::int64_t global_size() const;

private:
    std::vector<std::int64_t> order_of(std::int64_t epoch) const;
    std::int64_t length_;
    int replicas_, rank_;
    DistributedSamplerOptions options_;
    std::int64_t epoch_ = 0;
    std::optional<std::int64_t> last_;  ///< epoch of the last call of `indices`
};

/// torch.randperm(length, generator=torch.Generator().manual_seed(seed)) on the CPU. Throws InvalidArgument for a
/// negative length, and from 2^32 / 20 rows on, for which PyTorch uses another generator.
std::vector<std::int64_t> random_permutation(std::int64_t length, std::uint64_t seed);

// Type-erased sampler for a Loader: any class that selects the rows of an epoch and their order.

/// Returns the rows of an epoch in order, the same number in every epoch: `size()` and `indices(epoch)`. It must return
/// the same rows on every rank: a Loader then cuts each batch by shard.
template <class T>
concept Sampler = requires(const T& sampler, std::uint64_t epoch) {
    { sampler.size() } -> std::convertible_to<std::int64_t>;
    { sampler.indices(epoch) } -> std::convertible_to<std::vector<std::int64_t>>;
};

/// Returns the batches of an epoch, over all devices and ranks. `size()` is their number and `rows()` the number of
/// rows in them, the same in every epoch; `batch_size()` is the number of rows of the largest batch. The batches must
/// be the same on every rank.
template <class T>
concept BatchingSampler = requires(const T& sampler, std::uint64_t epoch) {
    { sampler.size() } -> std::convertible_to<std::int64_t>;
    { sampler.rows() } -> std::convertible_to<std::int64_t>;
    { sampler.batch_size() } -> std::convertible_to<std::int64_t>;
    { sampler.batches(epoch) } -> std::convertible_to<std::vector<std::vector<std::int64_t>>>;
};

/// Holds a sampler of any class, or none. Using one that was moved from throws InvalidArgument.
class AnySampler {
public:
    AnySampler() = default;
    /// The same rows in every epoch.
    AnySampler(std::vector<std::int64_t> rows)
        : rows_(std::ssize(rows)), indices_([rows = std::move(rows)](auto, auto) { return rows; }) {}
    template <Sampler S>
    requires(!std::same_as<S, AnySampler>) AnySampler(S sampler)
        : rows_(sampler.size()), indices_([sampler = std::move(sampler)](std::uint64_t epoch, std::int64_t) {
              return std::vector<std::int64_t>(sampler.indices(epoch));
          }) {}
    template <BatchingSampler S>
    requires(!std::same_as<S, AnySampler>) AnySampler(S sampler)
        : rows_(sampler.rows()),
          batch_count_(sampler.size()),
          batch_size_(sampler.batch_size()),
          batches_([sampler = std::move(sampler)](std::uint64_t epoch) {
              return std::vector<std::vector<std::int64_t>>(sampler.batches(epoch));
          }) {}
    /// The rows of all replicas, in the order of `global_indices`. The rank of the sampler has no effect.
    AnySampler(DistributedSampler sampler)
        : rows_(sampler.global_size()),
          indices_([sampler = std::move(sampler)](std::uint64_t epoch, std::int64_t batch_size) {
              return sampler.global_indices(epoch, batch_size);
          }) {}

    /// Whether it holds a sampler.
    explicit operator bool() const { return live().indices_ || batches_; }
    /// Whether the sampler makes batches.
    bool is_batching() const { return static_cast<bool>(live().batches_); }
    /// Rows of an epoch.
    std::int64_t rows() const { return live().rows_; }
    /// Batches of an epoch, and rows of the largest one; only for a batching sampler.
    std::int64_t batch_count() const { return live().batch_count_; }
    std::int64_t batch_size() const { return live().batch_size_; }

    /// Rows of that epoch, for batches of `batch_size` rows; only for a sampler that is not batching.
    std::vector<std::int64_t> indices(std::uint64_t epoch, std::int64_t batch_size) const {
        return live().indices_(epoch, batch_size);
    }
    /// Batches of that epoch; only for a batching sampler.
    std::vector<std::vector<std::int64_t>> batches(std::uint64_t epoch) const { return live().batches_(epoch); }

private:
    const AnySampler& live() const {
        mark_.require("AnySampler");
        return *this;
    }
    std::int64_t rows_ = 0, batch_count_ = 0, batch_size_ = 0;
    std::function<std::vector<std::int64_t>(std::uint64_t, std::int64_t)> indices_;
    std::function<std::vector<std::vector<std::int64_t>>(std::uint64_t)> batches_;
    detail::MoveMark mark_;
};

// Samplers of torch.utils.data, for LoaderOptions::sampler. Epoch e of a random sampler equals PyTorch's with
// generator=torch.Generator().manual_seed(seed + e), as DistributedSampler counts epochs. This seed is independent of
// LoaderOptions::seed, which augmentation uses. `indices` of all samplers throws InvalidArgument for more rows than
// this machine's memory can hold.

/// All rows in order: torch.utils.data.SequentialSampler.
class SequentialSampler {
public:
    /// Throws InvalidArgument for a negative length.
    explicit SequentialSampler(std::int64_t length);
    std::int64_t size() const { return length_; }
    std::vector<std::int64_t> indices(std::uint64_t epoch) const;

private:
    std::int64_t length_;
};

/// Options of RandomSampler.
struct RandomSamplerOptions {
    bool replacement = false;                                ///< whether every row is drawn from all rows
    std::optional<std::int64_t> num_samples = std::nullopt;  ///< rows of an epoch; default: all
    std::uint64_t seed = 0;                                  ///< the same on every rank
};

/// torch.utils.data.RandomSampler, with PyTorch's rows. Without replacement, a sample larger than the dataset consists
/// of several permutations.
class RandomSampler {
public:
    /// Throws InvalidArgument for fewer than one row or sample, and, without replacement, from 2^32 / 20 rows on.
    explicit RandomSampler(std::int64_t length, const RandomSamplerOptions& options = {});
    std::int64_t size() const { return samples_; }
    std::vector<std::int64_t> indices(std::uint64_t epoch) const;

private:
    std::int64_t length_, samples_;
    bool replacement_;
    std::uint64_t seed_;
};

/// Options of WeightedRandomSampler.
struct WeightedRandomSamplerOptions {
    bool replacement = true;
    std::uint64_t seed = 0;  ///< the same on every rank
};

/// torch.utils.data.WeightedRandomSampler: row i is drawn with a probability that is proportional to weights[i]. With
/// replacement, and more than one sample, the rows are PyTorch's. Otherwise PyTorch's generator depends on its build,
/// and the rows differ, with the same probabilities.
class WeightedRandomSampler {
public:
    /// Throws InvalidArgument for fewer than one sample, no weights, and a weight that is negative or not finite. The
    /// sum of weights must be positive and finite. Without replacement, at least as many weights as samples must be
    /// positive.
    WeightedRandomSampler(std::vector<double> weights, std::int64_t num_samples,
                          const WeightedRandomSamplerOptions& options = {});
    std::int64_t size() const { return samples_; }
    std::vector<std::int64_t> indices(std::uint64_t epoch) const;

private:
    std::vector<double> weights_;     ///< without replacement
    std::vector<double> cumulative_;  ///< with replacement: sums up to and including row i, normalized to 1
    std::int64_t samples_;
    WeightedRandomSamplerOptions options_;
    detail::MoveMark mark_;
};

/// Batches of another sampler's rows: torch.utils.data.BatchSampler. Like any BatchingSampler, it replaces a Loader's
/// `batch_size` and `drop_last`. The batches of a BatchingSampler may differ in size.
class BatchSampler {
public:
    /// Throws InvalidArgument for an empty sampler, one that makes batches, and a batch size below 1.
    BatchSampler(AnySampler sampler, std::int64_t batch_size, bool drop_last);
    /// Batches of an epoch.
    std::int64_t size() const;
    std::int64_t rows() const;
    std::int64_t batch_size() const { return batch_size_; }
    std::vector<std::vector<std::int64_t>> batches(std::uint64_t epoch) const;

private:
    AnySampler sampler_;
    std::int64_t batch_size_;
    bool drop_last_;
};

}  // namespace lockstep
