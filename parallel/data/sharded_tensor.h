// A batch that is already cut into shards on their devices, as a loader passes it to `step`.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "lockstep/runtime/moved_from.h"
#include "lockstep/runtime/placement.h"
#include "lockstep/runtime/tensor.h"

namespace lockstep {

/// Rows of one batch: one tensor for each shard with rows, on the device of that shard. With several processes, each
/// holds the rows of its shards; shards of other processes are host tensors without rows. Copies share the memory.
class ShardedTensor {
public:
    ShardedTensor() = default;
    /// `ready`: one event per shard, recorded after the work that fills it; empty if all shards are complete.
    ShardedTensor(BatchCut cut, std::vector<Tensor> shards, std::shared_ptr<std::vector<Event>> ready = nullptr)
        : ShardedTensor(cut, std::move(shards), std::move(ready), {0, cut.present}) {}
    /// `held`: the shards of this process, among those with rows. Throws InvalidArgument unless there is one tensor
    /// (and event) for each shard with rows, including those of other processes.
    ShardedTensor(BatchCut cut, std::vector<Tensor> shards, std::shared_ptr<std::vector<Event>> ready, ShardRange held);

    const BatchCut& cut() const { return live().cut_; }
    /// Rows of the whole batch.
    std::int64_t rows() const { return cut().rows; }
    int shards() const { return static_cast<int>(live().shards_.size()); }
    ShardRange held() const { return live().held_; }
    const Tensor& shard(int i) const { return live().shards_[static_cast<std::size_t>(i)]; }
    /// Event after which shard `i` is complete, or null.
    const Event* ready(int i) const { return live().ready_ ? &(*ready_)[static_cast<std::size_t>(i)] : nullptr; }
    /// All rows that this process holds as one tensor on the host. Waits for them.
    Tensor gathered() const;

private:
    const ShardedTensor& live() const {
        mark_.require("ShardedTensor");
        return *this;
    }
    BatchCut cut_;
    std::vector<Tensor> shards_;
    std::shared_ptr<std::vector<Event>> ready_;
    ShardRange held_;
    detail::MoveMark mark_;
};

/// An input of a step: a whole batch, or one that is already cut.
using BatchInput = std::variant<Tensor, ShardedTensor>;

}  // namespace lockstep
