// Combinations of values of shards along their tree (runtime/internal/shard_tree.h), without arrays in local memory.
#pragma once

#include "lockstep/ops/cuda/chunk.h"
#include "lockstep/ops/cuda/kernel.h"
#include "lockstep/ops/cuda/unroll.h"

namespace lockstep::cuda {

/// Number of pointers passed as kernel arguments at once. More shards need two levels: groups of a power of two are
/// branches of the tree, and their results are combined along the same tree.
constexpr int group = 64;

template <class T>
struct Group {
    const T* of[group];
    int size;
};

/// As combine_shards, for at most `group` values, with partial results in registers: `held[l]` combines 2^l shards.
template <class T, class Value, class Combine>
LOCKSTEP_HD_INLINE T combine_group(int size, Value value, Combine combine) {
    constexpr int levels = 7;
    static_assert(1 << (levels - 1) == group);
    T held[levels] = {};
    LOCKSTEP_NO_UNROLL
    for (int s = 0; s < size; ++s) {
        T sum = value(s);
        LOCKSTEP_UNROLL
        for (int l = 0; l < levels; ++l) {
            const int below = (1 << l) - 1;
            if ((s & below) != below) continue;  // an earlier level holds the sum
            if ((s >> l & 1) != 0)
                sum = combine(held[l], sum);
            else
                held[l] = sum;
        }
    }
    T all = {};
    bool some = false;
    LOCKSTEP_UNROLL
    for (int l = 0; l < levels; ++l) {
        if ((size >> l & 1) == 0) continue;
        all = some ? combine(held[l], all) : held[l];
        some = true;
    }
    return all;
}

/// The same for a power of two that the compiler knows.
template <class T, int size, class Value, class Combine>
LOCKSTEP_HD_INLINE T combine_all(Value value, Combine combine) {
    T partial[size];
    LOCKSTEP_UNROLL
    for (int s = 0; s < size; ++s) partial[s] = value(s);
    LOCKSTEP_UNROLL
    for (int step = 1; step < size; step *= 2) {
        LOCKSTEP_UNROLL
        for (int s = 0; s < size; s += 2 * step) partial[s] = combine(partial[s], partial[s + step]);
    }
    return partial[0];
}

/// out = sum of the group's tensors, or out += sum. `number`: number of tensors, or 0 if only the group knows it.
template <class T, int number>
struct SumTensors {
    static constexpr int width = chunk_elements(sizeof(T));
    Group<T> shards;
    T* out;
    std::int64_t elements;
    bool accumulate;
    const StatusWord* agreed;
    bool aligned;  ///< chunks may be loaded at once

    struct Chunk {
        T of[width];
    };

    LOCKSTEP_HD_INLINE void operator()(std::int64_t i) const {
        if (!is_good(agreed)) return;
        const std::int64_t first = i * width;
        if (aligned && first + width <= elements) {
            const auto add = [](Chunk a, const Chunk& b) {
                LOCKSTEP_UNROLL
                for (int k = 0; k < width; ++k) a.of[k] += b.of[k];
                return a;
            };
            Chunk sum = combine<Chunk>(
                [&](int s) {
                    Chunk chunk;
                    load_chunk(shards.of[s] + first, chunk.of);
                    return chunk;
                },
                add);
            if (accumulate) {
                Chunk before;
                load_chunk(out + first, before.of);
                sum = add(before, sum);
            }
            return store_chunk(sum.of, out + first);
        }
        LOCKSTEP_NO_UNROLL
        for (std::int64_t e = first; e < elements && e < first + width; ++e) {
            const T sum = combine<T>([&](int s) { return shards.of[s][e]; }, [](T a, T b) { return a + b; });
            out[e] = accumulate ? out[e] + sum : sum;
        }
    }

private:
    template <class Each, class Value, class Combine>
    LOCKSTEP_HD_INLINE Each combine(Value value, Combine both) const {
        if constexpr (number > 0)
            return combine_all<Each, number>(value, both);
        else
            return combine_group<Each>(shards.size, value, both);
    }
};

/// Enqueues the sum. `agreed`: if not null, it must be good.
template <class T>
void sum_tensors(const Queue& queue, const char* name, const Group<T>& shards, T* out, std::int64_t elements,
                 bool accumulate = false, const StatusWord* agreed = nullptr) {
    bool aligned = is_aligned(out, chunk_bytes);
    for (int s = 0; s < shards.size; ++s) aligned = aligned && is_aligned(shards.of[s], chunk_bytes);
    const auto enqueue = [&](auto sum) {
        sum = {shards, out, elements, accumulate, agreed, aligned};
        launch(queue, name, ceil_div(elements, sum.width), sum);
    };
    switch (shards.size) {
        case 1: return enqueue(SumTensors<T, 1>{});
        case 2: return enqueue(SumTensors<T, 2>{});
        case 4: return enqueue(SumTensors<T, 4>{});
        case 8: return enqueue(SumTensors<T, 8>{});
        default: return enqueue(SumTensors<T, 0>{});
    }
}

}  // namespace lockstep::cuda
