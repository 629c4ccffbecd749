// What a data set may know of the row it reads besides its number: the epoch, and random numbers of its own.
#pragma once

#include <cstdint>

#include "lockstep/runtime/random.h"

namespace lockstep {

/// What all rows of one epoch have in common.
struct EpochKey {
    std::uint64_t seed = 0;
    std::uint64_t epoch = 0;
};

/// The second argument of a data set's `get`, for augmentation. Its random numbers are Philox's and depend on seed,
/// epoch, row and on how many were drawn before: not on the device, shard, rank or thread that reads the row, nor on
/// its place in the order. A row that a sampler draws twice in an epoch gets the same numbers twice.
class RowContext {
public:
    RowContext(EpochKey epoch, std::int64_t row);

    std::uint64_t epoch() const { return epoch_; }
    /// The row of the underlying data set: a row keeps its number, and so its random numbers, in a Subset.
    std::int64_t row() const { return row_; }
    /// 64 random bits, the same in every call: the seed of a generator of one's own.
    std::uint64_t key() const { return key_; }

    /// The next 64 random bits.
    std::uint64_t bits();
    /// Uniform in [0, 1), with 53 bits.
    double uniform();
    /// Uniform in [low, high); `low` where both are equal. Throws InvalidArgument for others and what is not finite.
    double uniform(double low, double high);
    /// Uniform in 0 to count - 1. Throws InvalidArgument for a count below 1.
    std::int64_t integer(std::int64_t count);
    /// True with that probability. Throws InvalidArgument for one outside [0, 1].
    bool flip(double probability = 0.5);

private:
    std::uint64_t epoch_;
    std::int64_t row_;
    std::uint64_t key_;
    StepState state_;  ///< the row's own key of Philox
    std::uint64_t drawn_ = 0;
};

}  // namespace lockstep
