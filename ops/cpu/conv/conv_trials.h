// Selection of convolution algorithms by trials (ConvAlgorithm::benchmark).
#pragma once

#include <string>

#include "lockstep/ops/cpu/conv/conv_shape.h"
#include "lockstep/runtime/device.h"

namespace lockstep::cpu {

/// Algorithm (one of ConvEngine::algorithms) that AlgorithmChoices::current() has for this shape and number of threads;
/// the bias does not matter. If there is no choice yet, all algorithms are timed on `device`, with separate memory,
/// after the work already enqueued on its stream, and the one with the shortest total time of its three passes is
/// chosen. One choice serves all passes, because they share the layouts of x and y. Conversions from and to other
/// layouts are not timed.
std::string benchmarked_algorithm(const ConvShape& shape, int threads, Device device);

}  // namespace lockstep::cpu
