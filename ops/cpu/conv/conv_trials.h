// Which way a convolution is computed in where trials decide (ConvAlgorithm::benchmark).
#pragma once

#include <string>

#include "lockstep/ops/cpu/conv/conv_shape.h"
#include "lockstep/runtime/device.h"

namespace lockstep::cpu {

/// The one of ConvEngine::ways that AlgorithmChoices::current() has for the shape, whatever its bias, and so many
/// threads; where it has none, the one whose three passes take the least time together on `device`, which are run there
/// on memory of their own after all that its stream was given. One choice for all passes: they share the layouts of x
/// and y. What it takes to bring x and y from and to other layouts is not counted.
std::string tried_way(const ConvShape& shape, int threads, Device device);

}  // namespace lockstep::cpu
