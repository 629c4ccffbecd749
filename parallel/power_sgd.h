// PowerSGD: a communication hook that sends matrices as products of two thin ones.
#pragma once

#include <cstdint>

#include "lockstep/parallel/communication_hook.h"

namespace lockstep {

struct PowerSgdOptions {
    int rank = 1;                ///< columns of the thin matrices; more columns reduce the error
    int start_iteration = 1000;  ///< number of initial backwards with the plain all-reduce
    /// Minimum factor by which compression must reduce the elements of a matrix; otherwise it is sent whole.
    double min_compression_rate = 2;
    bool use_error_feedback = true;  ///< whether the compression error is added to the next gradients
    bool warm_start = true;          ///< whether to start from the last backward's matrix instead of a random one
    std::uint64_t seed = 0;          ///< random seed for the initial matrices
};

/// Vogels et al., "PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization" (NeurIPS 2019);
/// torch's powerSGD_hook. A gradient of shape (n, ...) is a matrix of n rows, which one step of power iteration
/// approximates by P Q^T. Vectors and small matrices are sent whole. If a parameter is cut over several buckets, each
/// piece is compressed as the squarest matrix. A hook stores the compression error, so each model needs its own hook.
/// Throws InvalidArgument for a rank below 1, a rate that is not positive, and a start before iteration 2 with error
/// feedback or warm start (the first backwards lose the most).
CommunicationHook power_sgd_hook(const PowerSgdOptions& options = {});

}  // namespace lockstep
