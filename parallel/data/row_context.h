// Context in which a data set reads a row: the epoch, and the row's random numbers.
#pragma once

#include <cstdint>

#include "lockstep/runtime/random.h"

namespace lockstep {

/// Common context of all rows of one epoch.
struct EpochKey {
    std::uint64_t seed = 0;
    std::uint64_t epoch = 0;
};

/// The second argument of a data set's `get`, for augmentation. Its random numbers are Philox's. They depend on seed,
/// epoch, row and the number of earlier draws, but not on the device, shard, rank or thread that reads the row, nor on
/// its position in the order. A row that a sampler draws twice in an epoch gets the same numbers twice.
class RowContext {
public:
    RowContext(EpochKey epoch, std::int64_t row);

    std::uint64_t epoch() const { return epoch_; }
    /// The row of the underlying data set: in a Subset, a row has the same number, and so the same random numbers.
    std::int64_t row() const { return row_; }
    /// 64 random bits, the same in every call, for seeding your own generator.
    std::uint64_t key() const { return key_; }

    /// The next 64 random bits.
    std::uint64_t bits();
    /// Uniform in [0, 1), with 53 bits.
    double uniform();
    /// Uniform in [low, high); `low` if both are equal. Throws InvalidArgument if low > high or a limit is not finite.
    double uniform(double low, double high);
    /// Uniform in 0 to count - 1. Throws InvalidArgument for a count below 1.
    std::int64_t integer(std::int64_t count);
    /// True with that probability. Throws InvalidArgument for a probability outside [0, 1].
    bool flip(double probability = 0.5);

private:
    std::uint64_t epoch_;
    std::int64_t row_;
    std::uint64_t key_;
    StepState state_;  ///< the row's Philox key
    std::uint64_t drawn_ = 0;
};

}  // namespace lockstep
