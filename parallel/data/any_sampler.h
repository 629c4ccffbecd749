// Type-erased sampler for a Loader: any class that selects the rows of an epoch and their order.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "lockstep/parallel/data/sampler.h"

namespace lockstep {

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

/// Holds a sampler of any class, or none.
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
    explicit operator bool() const { return indices_ || batches_; }
    /// Whether the sampler makes batches.
    bool is_batching() const { return static_cast<bool>(batches_); }
    /// Rows of an epoch.
    std::int64_t rows() const { return rows_; }
    /// Batches of an epoch, and rows of the largest one; only for a batching sampler.
    std::int64_t batch_count() const { return batch_count_; }
    std::int64_t batch_size() const { return batch_size_; }

    /// Rows of that epoch, for batches of `batch_size` rows; only for a sampler that is not batching.
    std::vector<std::int64_t> indices(std::uint64_t epoch, std::int64_t batch_size) const {
        return indices_(epoch, batch_size);
    }
    /// Batches of that epoch; only for a batching sampler.
    std::vector<std::vector<std::int64_t>> batches(std::uint64_t epoch) const { return batches_(epoch); }

private:
    std::int64_t rows_ = 0, batch_count_ = 0, batch_size_ = 0;
    std::function<std::vector<std::int64_t>(std::uint64_t, std::int64_t)> indices_;
    std::function<std::vector<std::vector<std::int64_t>>(std::uint64_t)> batches_;
};

}  // namespace lockstep
