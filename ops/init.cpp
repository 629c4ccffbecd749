#include "lockstep/ops/init.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <utility>
#include <vector>

#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/random.h"

namespace lockstep::init {

namespace {

void require_floating(const char* name, const Tensor& tensor) {
    if (!tensor.defined())
        throw InvalidArgument(fmt::format("{}: the tensor is undefined; expected a defined tensor", name));
    if (!is_floating(tensor.dtype()))
        throw InvalidArgument(
            fmt::format("{}: dtype {} is not floating; expected a floating dtype", name, name_of(tensor.dtype())));
}

void require_finite(const char* name, const char* argument, double value) {
    if (!std::isfinite(value))
        throw InvalidArgument(fmt::format("{}: invalid {} ({}); expected a finite number", name, argument, value));
}

void require_not_negative(const char* name, const char* argument, double value) {
    if (!(value >= 0) || !std::isfinite(value))
        throw InvalidArgument(fmt::format("{}: invalid {} ({}); expected 0 or more", name, argument, value));
}

void require_dims(const char* name, const Tensor& tensor, int least, int most, const char* expected) {
    require_floating(name, tensor);
    if (tensor.dims() < least || tensor.dims() > most)
        throw InvalidArgument(
            fmt::format("{}: the tensor has shape {}; expected {}", name, tensor.shape().str(), expected));
}

/// Overwrites `tensor` with `values`, row-major.
template <class T>
const Tensor& store(const Tensor& tensor, const std::vector<T>& values) {
    const NoGrad no_grad;
    return tensor.copy_(Tensor::from(values, tensor.shape()));
}

std::size_t count_of(const Tensor& tensor) { return static_cast<std::size_t>(tensor.numel()); }

std::vector<float> uniform_values(std::size_t count, double a, double b) {
    std::vector<float> values(count);
    host_uniform(values.data(), std::ssize(values), static_cast<float>(a), static_cast<float>(b));
    return values;
}

std::vector<float> normal_values(std::size_t count, double mean, double std) {
    std::vector<float> values(count);
    host_normal(values.data(), std::ssize(values));
    for (float& value : values) value = static_cast<float>(mean + std * static_cast<double>(value));
    return values;
}

struct Fans {
    double in, out;
};
Fans fans_of(const char* name, const Tensor& tensor) {
    require_dims(name, tensor, 2, Shape::max_dims, "at least two dimensions, (out, in, ...)");
    double kernel = 1;
    for (int dim = 2; dim < tensor.dims(); ++dim) kernel *= static_cast<double>(tensor.size(dim));
    return {static_cast<double>(tensor.size(1)) * kernel, static_cast<double>(tensor.size(0)) * kernel};
}

double fan_of(const char* name, const Tensor& tensor, FanMode mode) {
    const Fans fans = fans_of(name, tensor);
    return mode == FanMode::fan_in ? fans.in : fans.out;
}

double kaiming_deviation(const char* name, const Tensor& tensor, const Kaiming& options) {
    require_finite(name, "a", options.a);
    return calculate_gain(options.nonlinearity, options.a) / std::sqrt(fan_of(name, tensor, options.mode));
}

/// The distribution function of N(0, 1).
double below(double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); }

}  // namespace

double calculate_gain(Nonlinearity nonlinearity, std::optional<double> negative_slope) {
    switch (nonlinearity) {
        case Nonlinearity::tanh: return 5.0 / 3;
        case Nonlinearity::relu: return std::sqrt(2.0);
        case Nonlinearity::leaky_relu: {
            const double slope = negative_slope.value_or(0.01);
            return std::sqrt(2 / (1 + slope * slope));
        }
        case Nonlinearity::selu: return 0.75;
        case Nonlinearity::linear:
        case Nonlinearity::conv:
        case Nonlinearity::sigmoid: break;
    }
    return 1;
}

const Tensor& constant_(const Tensor& tensor, double value) {
    require_floating("constant_", tensor);
    const NoGrad no_grad;
    return tensor.fill_(value);
}

const Tensor& zeros_(const Tensor& tensor) { return constant_(tensor, 0); }
const Tensor& ones_(const Tensor& tensor) { return constant_(tensor, 1); }

const Tensor& uniform_(const Tensor& tensor, double a, double b) {
    require_floating("uniform_", tensor);
    if (!(a <= b) || !std::isfinite(a) || !std::isfinite(b))
        throw InvalidArgument(fmt::format("uniform_: invalid range, {} to {}; expected a <= b", a, b));
    return store(tensor, uniform_values(count_of(tensor), a, b));
}

const Tensor& normal_(const Tensor& tensor, double mean, double std) {
    require_floating("normal_", tensor);
    require_finite("normal_", "mean", mean);
    require_not_negative("normal_", "std", std);
    return store(tensor, normal_values(count_of(tensor), mean, std));
}

const Tensor& trunc_normal_(const Tensor& tensor, const TruncatedNormal& wanted) {
    constexpr const char* name = "trunc_normal_";
    constexpr double least_share = 0.01;
    require_floating(name, tensor);
    require_finite(name, "mean", wanted.mean);
    require_not_negative(name, "std", wanted.std);
    const double share = below((wanted.b - wanted.mean) / wanted.std) - below((wanted.a - wanted.mean) / wanted.std);
    if (!(share >= least_share))
        throw InvalidArgument(
            fmt::format("{}: [{}, {}] has less than 1% of N({}, {}^2); expected limits around the mean", name, wanted.a,
                        wanted.b, wanted.mean, wanted.std));
    std::vector<float> kept;
    const std::size_t count = count_of(tensor);
    while (kept.size() < count) {
        for (const float value : normal_values(count - kept.size(), wanted.mean, wanted.std))
            if (value >= static_cast<float>(wanted.a) && value <= static_cast<float>(wanted.b)) kept.push_back(value);
    }
    return store(tensor, kept);
}

const Tensor& eye_(const Tensor& tensor) {
    require_dims("eye_", tensor, 2, 2, "a matrix");
    const NoGrad no_grad;
    return tensor.copy_(Tensor::eye(tensor.size(0), tensor.size(1)));
}

const Tensor& dirac_(const Tensor& tensor, std::int64_t groups) {
    require_dims("dirac_", tensor, 3, 5, "3 to 5 dimensions, (out, in, ...)");
    const std::int64_t out = tensor.size(0), in = tensor.size(1);
    if (groups < 1 || out % groups != 0)
        throw InvalidArgument(
            fmt::format("dirac_: {} groups of {} output channels; expected a divisor of their number", groups, out));
    std::int64_t kernel = 1, middle = 0;
    for (int dim = 2; dim < tensor.dims(); ++dim) {
        kernel *= tensor.size(dim);
        middle = middle * tensor.size(dim) + tensor.size(dim) / 2;
    }
    std::vector<float> values(count_of(tensor));
    const std::int64_t of_group = out / groups;
    if (kernel > 0)
        for (std::int64_t group = 0; group < groups; ++group)
            for (std::int64_t i = 0; i < std::min(of_group, in); ++i)
                values[static_cast<std::size_t>(((group * of_group + i) * in + i) * kernel + middle)] = 1;
    return store(tensor, values);
}

const Tensor& xavier_uniform_(const Tensor& tensor, double gain) {
    constexpr const char* name = "xavier_uniform_";
    const Fans fans = fans_of(name, tensor);
    require_not_negative(name, "gain", gain);
    const double bound = gain * std::sqrt(6 / (fans.in + fans.out));
    return store(tensor, uniform_values(count_of(tensor), -bound, bound));
}

const Tensor& xavier_normal_(const Tensor& tensor, double gain) {
    constexpr const char* name = "xavier_normal_";
    const Fans fans = fans_of(name, tensor);
    require_not_negative(name, "gain", gain);
    return store(tensor, normal_values(count_of(tensor), 0, gain * std::sqrt(2 / (fans.in + fans.out))));
}

const Tensor& kaiming_uniform_(const Tensor& tensor, const Kaiming& options) {
    const double bound = std::sqrt(3.0) * kaiming_deviation("kaiming_uniform_", tensor, options);
    return store(tensor, uniform_values(count_of(tensor), -bound, bound));
}

const Tensor& kaiming_normal_(const Tensor& tensor, const Kaiming& options) {
    const double deviation = kaiming_deviation("kaiming_normal_", tensor, options);
    return store(tensor, normal_values(count_of(tensor), 0, deviation));
}

namespace {

/// Makes the columns of a (rows, columns) matrix of normal numbers orthonormal, rows >= columns: Gram-Schmidt, twice,
/// which is enough for orthogonality to rounding ("twice is enough", Giraud et al. 2005). With the signs of the
/// projections, which a QR decomposition with a positive diagonal has, the result is uniform over such matrices.
void orthonormalise(std::vector<double>& matrix, std::size_t rows, std::size_t columns) {
    const auto at = [&](std::size_t row, std::size_t column) -> double& { return matrix[row * columns + column]; };
    for (std::size_t column = 0; column < columns; ++column) {
        for (int round = 0; round < 2; ++round)
            for (std::size_t before = 0; before < column; ++before) {
                double product = 0;
                for (std::size_t row = 0; row < rows; ++row) product += at(row, before) * at(row, column);
                for (std::size_t row = 0; row < rows; ++row) at(row, column) -= product * at(row, before);
            }
        double square = 0;
        for (std::size_t row = 0; row < rows; ++row) square += at(row, column) * at(row, column);
        for (std::size_t row = 0; row < rows; ++row) at(row, column) /= std::sqrt(square);
    }
}

}  // namespace

const Tensor& orthogonal_(const Tensor& tensor, double gain) {
    constexpr const char* name = "orthogonal_";
    require_dims(name, tensor, 2, Shape::max_dims, "at least two dimensions");
    require_finite(name, "gain", gain);
    if (tensor.numel() == 0) return tensor;
    const auto rows = static_cast<std::size_t>(tensor.size(0));
    const std::size_t columns = count_of(tensor) / rows, tall = std::max(rows, columns), wide = std::min(rows, columns);
    const std::vector<float> drawn = normal_values(count_of(tensor), 0, 1);
    std::vector<double> matrix(drawn.begin(), drawn.end());
    orthonormalise(matrix, tall, wide);
    std::vector<double> values(matrix.size());
    for (std::size_t row = 0; row < rows; ++row)
        for (std::size_t column = 0; column < columns; ++column)
            values[row * columns + column] =
                gain * (rows >= columns ? matrix[row * wide + column] : matrix[column * wide + row]);
    return store(tensor, values);
}

const Tensor& sparse_(const Tensor& tensor, double sparsity, double std) {
    constexpr const char* name = "sparse_";
    require_dims(name, tensor, 2, 2, "a matrix");
    require_not_negative(name, "std", std);
    if (!(sparsity >= 0 && sparsity <= 1))
        throw InvalidArgument(fmt::format("{}: invalid sparsity ({}); expected 0 to 1", name, sparsity));
    const auto rows = static_cast<std::size_t>(tensor.size(0)), columns = static_cast<std::size_t>(tensor.size(1));
    const auto zeros = static_cast<std::size_t>(std::ceil(sparsity * static_cast<double>(rows)));
    std::vector<float> values = normal_values(count_of(tensor), 0, std);
    std::vector<std::size_t> order(rows);
    for (std::size_t column = 0; column < columns; ++column) {
        // The rows in a random order, by random keys.
        const std::vector<float> keys = uniform_values(rows, 0, 1);
        std::iota(order.begin(), order.end(), std::size_t{0});
        std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return keys[a] < keys[b]; });
        for (std::size_t i = 0; i < zeros; ++i) values[order[i] * columns + column] = 0;
    }
    return store(tensor, values);
}

}  // namespace lockstep::init
