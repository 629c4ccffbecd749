// A batch that is cut and on its devices already: what the loader hands to `step`.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "lockstep/runtime/placement.h"
#include "lockstep/runtime/tensor.h"

namespace lockstep {

/// Rows of one batch, a tensor for each present shard on the device of that shard. Where several processes train
/// together each holds the rows of its own shards; those of the others are tensors without rows on the host. Shared:
/// copying shares the memory.
class ShardedTensor {
public:
    ShardedTensor() = default;
    /// `ready`: one event per shard, recorded after the work that fills it; empty when everything is there.
    ShardedTensor(BatchCut cut, std::vector<Tensor> shards, std::shared_ptr<std::vector<Event>> ready = nullptr)
        : ShardedTensor(cut, std::move(shards), std::move(ready), {0, cut.present}) {}
    /// `held`: the shards of this process, of those present. Throws InvalidArgument where there is not one tensor (and
    /// event) for each shard present, those of other processes included.
    ShardedTensor(BatchCut cut, std::vector<Tensor> shards, std::shared_ptr<std::vector<Event>> ready, ShardRange held);

    const BatchCut& cut() const { return cut_; }
    /// Of the whole batch.
    std::int64_t rows() const { return cut_.rows; }
    int shards() const { return static_cast<int>(shards_.size()); }
    ShardRange held() const { return held_; }
    const Tensor& shard(int i) const { return shards_[static_cast<std::size_t>(i)]; }
    /// Event after which shard `i` is there, or null.
    const Event* ready(int i) const { return ready_ ? &(*ready_)[static_cast<std::size_t>(i)] : nullptr; }
    /// All rows that this process holds as one tensor on the host. Waits for them.
    Tensor gathered() const;

private:
    BatchCut cut_;
    std::vector<Tensor> shards_;
    std::shared_ptr<std::vector<Event>> ready_;
    ShardRange held_;
};

/// An input of a step: a whole batch, or one cut already.
using BatchInput = std::variant<Tensor, ShardedTensor>;

}  // namespace lockstep
