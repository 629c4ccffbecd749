// The tree along which values of shards are combined: the range [lo, hi) splits at the largest power of two below its
// length. Absent shards are the last ones; without them, the tree of the others is unchanged. The tree over the present
// shards is therefore the one over all.
#pragma once

#include "lockstep/runtime/random.h"  // LOCKSTEP_HD

namespace lockstep {

/// Split point of a range of `length` > 1 shards: the largest power of two below `length`.
LOCKSTEP_HD constexpr int shard_split(int length) {
    int split = 1;
    while (2 * split < length) split *= 2;
    return split;
}

/// Combines value(0), ..., value(shards - 1), shards > 0, along the tree with `combine(left, right)`. Calls `value`
/// once per shard, in order; holds about log2(shards) partial results.
template <class T, class Value, class Combine>
LOCKSTEP_HD T combine_shards(int shards, Value value, Combine combine) {
    // Like a binary counter: partial results of aligned powers of two, each smaller than the one before.
    T partial[32];
    int held = 0;
    for (int shard = 0; shard < shards; ++shard) {
        T sum = value(shard);
        for (int bits = shard; (bits & 1) != 0; bits >>= 1) sum = combine(partial[--held], sum);
        partial[held++] = sum;
    }
    T sum = partial[--held];
    while (held > 0) sum = combine(partial[--held], sum);
    return sum;
}

}  // namespace lockstep
