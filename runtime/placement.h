// Placement of shards. A global batch is split into shards, devices get contiguous runs of shards, and every sum over
// shards follows one tree: this makes results independent of the number of devices.
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
    /// The shards below `present`.
    ShardRange among(int present) const { return {(std::min)(first, present), (std::min)(last, present)}; }
    friend bool operator==(const ShardRange&, const ShardRange&) = default;
};

/// How a batch is split, as by torch.chunk: ceil(rows / shards) rows each; the last shard may be shorter, and shards
/// beyond the last row are absent.
struct BatchCut {
    std::int64_t rows = 0;
    int shards = 0;          ///< number of shards, S
    std::int64_t chunk = 0;  ///< rows of a full shard
    int present = 0;         ///< shards that have rows
    /// A microbatch uses a part of every shard's rows: shards begin `spacing` rows apart, and the microbatch starts at
    /// row `begin` of each. The whole batch has spacing == chunk, begin == 0.
    std::int64_t spacing = 0, begin = 0;
    /// The rows may be those of only one of several processes: of shards [first_shard, end), beginning at row
    /// `base_row` of the whole batch. Default: the whole batch.
    int first_shard = 0, end = 0;
    std::int64_t base_row = 0;
    /// First row of a shard, in the whole batch.
    std::int64_t first_row(int shard) const { return base_row + own_row(shard); }
    /// First row of a shard, within `rows`.
    std::int64_t own_row(int shard) const { return (shard - first_shard) * spacing + begin; }
    std::int64_t rows_of(int shard) const;
    /// Whether this is the last shard of `rows`, which may be shorter than the others.
    bool is_last(int shard) const { return shard + 1 == end; }
};
/// Throws InvalidArgument for zero rows or fewer than one shard.
BatchCut cut_batch(std::int64_t rows, int shards);
/// Splits the local rows of one of several processes into its shards `held`; the `rank` processes before it have the
/// same number of rows. Throws InvalidArgument for zero rows and for no shards.
BatchCut cut_own_rows(std::int64_t rows, int shards, ShardRange held, RankIndex rank);
/// Non-empty microbatches of a batch: every shard is split into pieces of ceil(chunk / accumulation_steps) rows, as
/// torch.chunk splits a full shard; the last piece may be shorter. The last shard is split into pieces of the same
/// size, so it never has more of them than the others. Absent shards remain the last ones. Throws InvalidArgument for
/// fewer than one microbatch.
std::vector<BatchCut> cut_microbatches(const BatchCut& batch, int accumulation_steps);

/// The run of shards of participant `index` of `count`: contiguous, lengths differ by at most one, longer ones first.
ShardRange run_of(int index, int count, int shards);

/// The nodes of the tree over shards [0, present) that cover exactly `run`, in order: the partial sums that a
/// participant with this run stores and sends. At most 2 * log2(present) (1 for aligned runs).
std::vector<ShardRange> tree_nodes(ShardRange run, int present);

/// A stream that computes a run of shards, one after another in each record.
struct Lane {
    DeviceIndex device;
    int stream = 0;  ///< index of its compute stream
    ShardRange shards;
};

/// Lanes for the shards `held` on `devices`: one per device, or one per core (at most one per shard) if each shard is
/// computed by one thread.
std::vector<Lane> place_shards(const Devices& devices, ShardRange held, int threads_per_shard);

}  // namespace lockstep
