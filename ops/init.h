// Initial values of parameters, under the names, arguments and defaults of torch.nn.init. Each function overwrites a
// floating tensor in place, without autograd, and returns it:
//
//     ls::init::kaiming_normal_(net.conv.weight, {.nonlinearity = ls::init::Nonlinearity::relu});
//
// Random numbers are drawn on the host in f32, from `manual_seed`'s generator, in order of the calls. All functions
// throw InvalidArgument for an undefined tensor, a dtype that is not floating, and arguments that are not finite. For a
// wrapped model, call them between steps.
#pragma once

#include <cstdint>
#include <optional>

#include "lockstep/runtime/tensor.h"

namespace lockstep::init {

/// Activation function after a layer, for calculate_gain.
enum class Nonlinearity : std::uint8_t { linear, conv, sigmoid, tanh, relu, leaky_relu, selu };

/// Recommended gain of a nonlinearity. `negative_slope`: of leaky_relu, 0.01 by default. torch.nn.init.calculate_gain.
double calculate_gain(Nonlinearity nonlinearity, std::optional<double> negative_slope = std::nullopt);

/// All elements are `value`, 0 or 1.
const Tensor& constant_(const Tensor& tensor, double value);
const Tensor& zeros_(const Tensor& tensor);
const Tensor& ones_(const Tensor& tensor);
/// U[a, b). Throws InvalidArgument unless a <= b.
const Tensor& uniform_(const Tensor& tensor, double a = 0, double b = 1);
/// N(mean, std^2). Throws InvalidArgument for a negative std.
const Tensor& normal_(const Tensor& tensor, double mean = 0, double std = 1);

/// N(mean, std^2) of which values outside [a, b] are drawn again.
struct TruncatedNormal {
    double mean = 0, std = 1, a = -2, b = 2;
};
/// Throws InvalidArgument if [a, b] is empty or has less than 1% of the distribution.
const Tensor& trunc_normal_(const Tensor& tensor, const TruncatedNormal& distribution = {});

/// The identity matrix (rows, columns).
const Tensor& eye_(const Tensor& tensor);
/// A convolution weight (out, in, ...) of 3 to 5 dimensions that passes channels on: 1 in the middle of the kernel for
/// equal numbers of input and output channel, in each of `groups` groups of output channels. Throws InvalidArgument if
/// the groups do not divide the output channels.
const Tensor& dirac_(const Tensor& tensor, std::int64_t groups = 1);

// For weights (out, in, ...) of at least two dimensions: fan_in is in times the kernel size, fan_out is out times it.

/// U(-b, b), b = gain sqrt(6 / (fan_in + fan_out)) (Glorot and Bengio 2010).
const Tensor& xavier_uniform_(const Tensor& tensor, double gain = 1);
/// N(0, gain^2 2 / (fan_in + fan_out)).
const Tensor& xavier_normal_(const Tensor& tensor, double gain = 1);

/// Whether kaiming_*_ preserves the variance of outputs (fan_in) or of gradients (fan_out).
enum class FanMode : std::uint8_t { fan_in, fan_out };
/// Options of kaiming_uniform_ and kaiming_normal_.
struct Kaiming {
    double a = 0;  ///< negative slope, if the nonlinearity is leaky_relu
    FanMode mode = FanMode::fan_in;
    Nonlinearity nonlinearity = Nonlinearity::leaky_relu;
};
/// U(-b, b), b = gain sqrt(3 / fan) (He et al. 2015).
const Tensor& kaiming_uniform_(const Tensor& tensor, const Kaiming& options = {});
/// N(0, gain^2 / fan).
const Tensor& kaiming_normal_(const Tensor& tensor, const Kaiming& options = {});

/// Orthonormal rows or columns, whichever are fewer, of (size of dimension 0, all others), times gain (Saxe et al.
/// 2013).
const Tensor& orthogonal_(const Tensor& tensor, double gain = 1);
/// A matrix with N(0, std^2), in each column of which the share `sparsity` of elements, rounded up, is 0.
const Tensor& sparse_(const Tensor& tensor, double sparsity, double std = 0.01);

}  // namespace lockstep::init
