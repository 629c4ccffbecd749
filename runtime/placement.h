// Where shards go. A global batch is cut in shards, shards go to devices in contiguous runs, and every sum over shards
// follows one tree: that is what makes results independent of the number of devices.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "lockstep/runtime/device.h"

namespace lockstep {

/// A half-open range of shards.
struct ShardRange {
    int first = 0, last = 0;
    int size() const { return last - first; }
    bool empty() const { return last <= first; }
    bool contains(int shard) const { return first <= shard && shard < last; }
    /// Those below `present`.
    ShardRange among(int present) const { return {(std::min)(first, present), (std::min)(last, present)}; }
    friend bool operator==(const ShardRange&, const ShardRange&) = default;
};

/// How a batch is cut: like torch.chunk, ceil(rows / shards) rows each, the last one shorter, absent ones when rows run
/// out.
struct BatchCut {
    std::int64_t rows = 0;
    int shards = 0;          ///< S
    std::int64_t chunk = 0;  ///< rows of a full shard
    int present = 0;         ///< shards that have rows
    /// A microbatch takes part of every shard's rows: shards begin `spacing` rows apart, and it takes those from row
    /// `begin` of each on. The whole batch: spacing == chunk, begin == 0.
    std::int64_t spacing = 0, begin = 0;
    /// The rows may be those of one of several processes alone: of shards [first_shard, end), and rows `base_row` and
    /// further of the whole batch. By default: of all.
    int first_shard = 0, end = 0;
    std::int64_t base_row = 0;
    /// Of the whole batch.
    std::int64_t first_row(int shard) const { return base_row + own_row(shard); }
    /// Of `rows`.
    std::int64_t own_row(int shard) const { return (shard - first_shard) * spacing + begin; }
    std::int64_t rows_of(int shard) const;
    /// The last shard of `rows`: it may be shorter than the others.
    bool is_last(int shard) const { return shard + 1 == end; }
};
/// Throws InvalidArgument for no rows or fewer than one shard.
BatchCut cut_batch(std::int64_t rows, int shards);
/// The cut of the rows that one of several processes has of its own, for its shards `held`; `rank` processes before it
/// have as many. Throws InvalidArgument for no rows and for no shards.
BatchCut cut_own_rows(std::int64_t rows, int shards, ShardRange held, RankIndex rank);
/// The microbatches of a batch, those that have rows: every shard is cut in pieces of ceil(chunk / accumulation_steps)
/// rows, as torch.chunk cuts a full shard, the last piece shorter. The last shard is cut in pieces of that size as
/// well, so it never has more of them than the others, and absent shards stay the last ones. Throws InvalidArgument for
/// fewer than one microbatch.
std::vector<BatchCut> cut_microbatches(const BatchCut& batch, int accumulation_steps);

/// The run of shards of participant `index` of `count`: contiguous, lengths differ by at most one, longer ones first.
ShardRange run_of(int index, int count, int shards);

/// The nodes of the tree over shards [0, present) that cover exactly `run`, in order: what a participant that holds
/// this run has to keep and send. At most 2 * log2(present) (1 for aligned runs).
std::vector<ShardRange> tree_nodes(ShardRange run, int present);

/// A stream that computes a run of shards, one after another in each record.
struct Lane {
    DeviceIndex device;
    int stream = 0;  ///< index of its compute stream
    ShardRange shards;
};

/// Lanes for the shards `held` on `devices` devices: one per device, or as many as the device has cores (and shards)
/// when each shard is computed by one thread.
std::vector<Lane> place_shards(const Devices& devices, ShardRange held, int threads_per_shard);

}  // namespace lockstep
