// PowerSGD: a communication hook that sends matrices as products of two thin ones.
#pragma once

#include <cstdint>

#include "lockstep/parallel/communication_hook.h"

namespace lockstep {

struct PowerSgdOptions {
    int rank = 1;                     ///< columns of the thin matrices: more of them lose less
    int start_iteration = 1000;       ///< backwards before it with the plain all-reduce
    double min_compression_rate = 2;  ///< a matrix is sent whole unless so many times fewer elements are sent
    bool use_error_feedback = true;   ///< what was lost is added to the next gradients
    bool warm_start = true;           ///< begins with the last backward's matrix instead of a random one
    std::uint64_t seed = 0;           ///< of the random ones
};

/// Vogels et al., "PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization" (NeurIPS 2019);
/// torch's powerSGD_hook: a gradient of shape (n, ...) is a matrix of n rows, which one step of power iteration
/// approximates by P Q^T. Vectors and small matrices are sent whole; of a parameter that is cut over several buckets
/// every piece is taken as the squarest matrix. A hook holds what was lost, so each model needs its own. Throws
/// InvalidArgument for a rank below 1, a rate that is not positive, and a start before iteration 2 with error feedback
/// or warm start (the first backwards lose the most).
CommunicationHook power_sgd_hook(const PowerSgdOptions& options = {});

}  // namespace lockstep
