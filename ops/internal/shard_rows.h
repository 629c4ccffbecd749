// The rows of a shard among those of the whole batch. Kernels know the number of a shard's first row.
#pragma once

namespace lockstep {

/// in: x (n, ...), the rows of this shard, contiguous; out: (rows of the batch, ...): x at the place of the shard's
/// rows, 0 elsewhere
struct PlaceShardRows {
    static constexpr const char* name = "place_shard_rows";
};

/// in: x (rows of the batch, ...), contiguous; out: (n, ...): the rows of this shard. Any dtype.
struct TakeShardRows {
    static constexpr const char* name = "take_shard_rows";
};

}  // namespace lockstep
