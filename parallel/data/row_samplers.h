// Samplers of torch.utils.data, for LoaderOptions::sampler. Epoch e of a random sampler equals PyTorch's with
// generator=torch.Generator().manual_seed(seed + e), as DistributedSampler counts epochs. This seed is independent of
// LoaderOptions::seed, which augmentation uses.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/parallel/data/any_sampler.h"

namespace lockstep {

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

struct RandomSamplerOptions {
    bool replacement = false;                                ///< whether every row is drawn from all rows
    std::optional<std::int64_t> num_samples = std::nullopt;  ///< rows of an epoch; default: all
    std::uint64_t seed = 0;                                  ///< the same on every rank
};

/// torch.utils.data.RandomSampler, with PyTorch's rows. Without replacement, a sample larger than the data set consists
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

struct WeightedRandomSamplerOptions {
    bool replacement = true;
    std::uint64_t seed = 0;  ///< the same on every rank
};

/// torch.utils.data.WeightedRandomSampler: row i is drawn with a probability that is proportional to weights[i]. With
/// replacement, and more than one sample, the rows are PyTorch's. Otherwise PyTorch's generator depends on its build,
/// and the rows differ, with the same probabilities.
class WeightedRandomSampler {
public:
    /// Throws InvalidArgument for fewer than one sample, no weights, a weight that is negative or not finite, a sum
    /// that is not positive and finite, and, without replacement, more samples than rows with a positive weight.
    WeightedRandomSampler(std::vector<double> weights, std::int64_t num_samples,
                          const WeightedRandomSamplerOptions& options = {});
    std::int64_t size() const { return samples_; }
    std::vector<std::int64_t> indices(std::uint64_t epoch) const;

private:
    std::vector<double> weights_;     ///< without replacement
    std::vector<double> cumulative_;  ///< with replacement: sums up to and including row i, normalized to 1
    std::int64_t samples_;
    WeightedRandomSamplerOptions options_;
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
