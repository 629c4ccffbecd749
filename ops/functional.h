// The functions of a model, with gradients. Names, arguments and defaults are those of torch and torch.nn.functional;
// docs/support.md lists the limits. Inputs are f32, f64, f16 or bf16, all of one dtype (torch promotes, and so does
// Autocast, runtime/autocast.h) and on one device. Results are fresh tensors on that device. f16 and bf16 are computed
// in f32 and rounded, or with at least that accuracy. f32 is computed in f32 on every kind of device: TF32, which
// PyTorch's convolutions use on GPUs by default, must be permitted (allow_tf32 in EngineOptions and ComputeSettings).
// Each function enqueues its work and returns. Invalid shapes, dtypes and attributes throw InvalidArgument with the
// name of the called function.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/runtime/tensor.h"

namespace lockstep {

// ---- elementwise ------------------------------------------------------------------------------------------------

/// Inputs are broadcast (numpy's rule). Integers wrap around in sums, differences and products; a quotient of integers
/// is f32.
Tensor add(const Tensor& a, const Tensor& b);
Tensor sub(const Tensor& a, const Tensor& b);
Tensor mul(const Tensor& a, const Tensor& b);
Tensor div(const Tensor& a, const Tensor& b);

inline Tensor operator+(const Tensor& a, const Tensor& b) { return add(a, b); }
inline Tensor operator-(const Tensor& a, const Tensor& b) { return sub(a, b); }
inline Tensor operator*(const Tensor& a, const Tensor& b) { return mul(a, b); }
inline Tensor operator/(const Tensor& a, const Tensor& b) { return div(a, b); }

/// A number that is combined with a tensor (torch's Scalar); remembers whether it was written as an integer.
class Scalar {
public:
    template <class T>
    requires std::is_arithmetic_v<T> Scalar(T value)  // NOLINT(google-explicit-constructor): `x * 2`
        : value_(static_cast<double>(value)), integer_(std::is_integral_v<T>) {}
    double value() const { return value_; }
    bool is_integer() const { return integer_; }

private:
    double value_;
    bool integer_;
};

// Operators with a number, which becomes part of the program while `forward` is traced. It is rounded to the tensor's
// dtype. With an integer tensor, an integer (below 2^53) gives integers; any other number, and every division, gives
// f32.
Tensor operator+(const Tensor& a, Scalar b);
Tensor operator-(const Tensor& a, Scalar b);
Tensor operator*(const Tensor& a, Scalar b);
/// Multiplies by 1 / b, unless that is too large or too small for the dtype.
Tensor operator/(const Tensor& a, Scalar b);
Tensor operator-(Scalar a, const Tensor& b);
Tensor operator/(Scalar a, const Tensor& b);
inline Tensor operator+(Scalar a, const Tensor& b) { return b + a; }
inline Tensor operator*(Scalar a, const Tensor& b) { return b * a; }

Tensor neg(const Tensor& x);
Tensor exp(const Tensor& x);
Tensor log(const Tensor& x);
Tensor sqrt(const Tensor& x);
Tensor square(const Tensor& x);
/// -1, 0 or 1.
Tensor sign(const Tensor& x);
Tensor abs(const Tensor& x);
Tensor reciprocal(const Tensor& x);
/// 1 / sqrt(x).
Tensor rsqrt(const Tensor& x);
Tensor floor(const Tensor& x);
Tensor ceil(const Tensor& x);
/// To the nearest integer, from the middle between two to the even one.
Tensor round(const Tensor& x);
/// exp(x) - 1 and log(1 + x), exact for small x.
Tensor expm1(const Tensor& x);
Tensor log1p(const Tensor& x);
Tensor erf(const Tensor& x);
/// x in radians.
Tensor sin(const Tensor& x);
Tensor cos(const Tensor& x);
/// The exact remainder of x / divisor, with the sign of x; NaN if the divisor is 0. The divisor becomes part of the
/// program while `forward` is traced.
Tensor fmod(const Tensor& x, double divisor);
/// Limits x. A missing limit does not apply; `max` applies where it is less than `min`. Throws InvalidArgument if both
/// are missing.
Tensor clamp(const Tensor& x, std::optional<double> min, std::optional<double> max = std::nullopt);
/// x to a power, which becomes part of the program while `forward` is traced.
Tensor pow(const Tensor& x, double exponent);
inline Tensor operator-(const Tensor& x) { return neg(x); }
Tensor relu(const Tensor& x);
Tensor sigmoid(const Tensor& x);
Tensor tanh(const Tensor& x);
/// torch.nn.functional.gelu; `tanh` is its approximate="tanh".
enum class GeluForm : std::uint8_t { exact, tanh };
Tensor gelu(const Tensor& x, GeluForm form = GeluForm::exact);
Tensor silu(const Tensor& x);
Tensor logsigmoid(const Tensor& x);
Tensor leaky_relu(const Tensor& x, double negative_slope = 0.01);
/// log(1 + exp(beta x)) / beta, or x if beta x exceeds the threshold.
Tensor softplus(const Tensor& x, double beta = 1, double threshold = 20);
Tensor elu(const Tensor& x, double alpha = 1);
Tensor celu(const Tensor& x, double alpha = 1);
Tensor selu(const Tensor& x);
/// Limits x. Unlike that of `clamp`, the gradient is 0 at the limits.
Tensor hardtanh(const Tensor& x, double min_val = -1, double max_val = 1);
Tensor relu6(const Tensor& x);
Tensor hardsigmoid(const Tensor& x);
Tensor hardswish(const Tensor& x);
Tensor mish(const Tensor& x);
Tensor softsign(const Tensor& x);
/// x, or weight x where x is not positive; weight: one number, or one for each channel of x (N, C, ...).
Tensor prelu(const Tensor& x, const Tensor& weight);
/// The first half of x along `dim`, times the sigmoid of the second half.
Tensor glu(const Tensor& x, int dim = -1);
/// Whether an element is neither infinite nor NaN, as bool. Not differentiable.
Tensor isfinite(const Tensor& x);

// ---- comparison and choice --------------------------------------------------------------------------------------

/// Comparisons of all dtypes, as bool: equal, unequal, less than, less or equal, greater than, greater or equal. Inputs
/// are broadcast. NaN is unequal to everything. With a tensor of integers, a number is compared in the tensor's dtype,
/// or in i64 if that does not have it. If the number is not an integer, both are compared in f32. Not differentiable.
Tensor eq(const Tensor& a, const Tensor& b);
Tensor ne(const Tensor& a, const Tensor& b);
Tensor lt(const Tensor& a, const Tensor& b);
Tensor le(const Tensor& a, const Tensor& b);
Tensor gt(const Tensor& a, const Tensor& b);
Tensor ge(const Tensor& a, const Tensor& b);
Tensor eq(const Tensor& a, Scalar b);
Tensor ne(const Tensor& a, Scalar b);
Tensor lt(const Tensor& a, Scalar b);
Tensor le(const Tensor& a, Scalar b);
Tensor gt(const Tensor& a, Scalar b);
Tensor ge(const Tensor& a, Scalar b);
inline Tensor operator<(const Tensor& a, const Tensor& b) { return lt(a, b); }
inline Tensor operator<=(const Tensor& a, const Tensor& b) { return le(a, b); }
inline Tensor operator>(const Tensor& a, const Tensor& b) { return gt(a, b); }
inline Tensor operator>=(const Tensor& a, const Tensor& b) { return ge(a, b); }
inline Tensor operator<(const Tensor& a, Scalar b) { return lt(a, b); }
inline Tensor operator<=(const Tensor& a, Scalar b) { return le(a, b); }
inline Tensor operator>(const Tensor& a, Scalar b) { return gt(a, b); }
inline Tensor operator>=(const Tensor& a, Scalar b) { return ge(a, b); }
inline Tensor operator<(Scalar a, const Tensor& b) { return gt(b, a); }
inline Tensor operator<=(Scalar a, const Tensor& b) { return ge(b, a); }
inline Tensor operator>(Scalar a, const Tensor& b) { return lt(b, a); }
inline Tensor operator>=(Scalar a, const Tensor& b) { return le(b, a); }

/// Logical functions of tensors of any dtype, as bool. Every number except 0 counts as true.
Tensor logical_not(const Tensor& x);
Tensor logical_and(const Tensor& a, const Tensor& b);
Tensor logical_or(const Tensor& a, const Tensor& b);
Tensor logical_xor(const Tensor& a, const Tensor& b);

/// a where `condition` (bool) holds, b elsewhere, all broadcast together. Any dtype; a number gets that of the tensor.
Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b);
Tensor where(const Tensor& condition, Scalar a, const Tensor& b);
Tensor where(const Tensor& condition, const Tensor& a, Scalar b);
/// x with `value` where `mask` (bool) holds; the two are broadcast together.
Tensor masked_fill(const Tensor& x, const Tensor& mask, Scalar value);
/// The larger or smaller of two numbers, which are broadcast; NaN if one of them is NaN. The gradient of equal numbers
/// is half to each.
Tensor maximum(const Tensor& a, const Tensor& b);
Tensor minimum(const Tensor& a, const Tensor& b);

// ---- indexing ---------------------------------------------------------------------------------------------------

// An index is i64. Only the device can detect an index out of range; it is reported like that of a class in a loss
// (loss.h). Negative indices are out of range. While a step is traced, elements along dimension 0 of a batch cannot be
// selected, because a shard has only some of its rows: this throws InvalidArgument.

/// Rows of weight (num_embeddings, embedding_dim) at the indices `input` (...). Out: (..., embedding_dim). The gradient
/// adds the rows of equal indices in their order; that of row `padding_idx`, if given, is 0.
/// torch.nn.functional.embedding.
Tensor embedding(const Tensor& input, const Tensor& weight, std::optional<std::int64_t> padding_idx = std::nullopt);
/// Elements along `dim` at the indices of a vector: y[.., i, ..] = x[.., index[i], ..]. Any dtype.
Tensor index_select(const Tensor& x, int dim, const Tensor& index);
/// Elements along `dim`, with an index for each result: y[.., i, ..] = x[.., index[.., i, ..], ..]. The index has the
/// dimensions of x, and no larger sizes except along `dim`. Any dtype.
Tensor gather(const Tensor& x, int dim, const Tensor& index);
/// The same with x and index broadcast together except along `dim`; without a dimension, of the flattened tensors.
Tensor take_along_dim(const Tensor& x, const Tensor& index, std::optional<int> dim = std::nullopt);
/// x with y[.., index[.., i, ..], ..] += src[.., i, ..] for all elements of the index, in the order of i. The index has
/// the dimensions of x and src and no larger sizes, except along `dim` than x. Any dtype but bool.
Tensor scatter_add(const Tensor& x, int dim, const Tensor& index, const Tensor& src);

// ---- reductions and pieces --------------------------------------------------------------------------------------

/// Dimensions of a reduction: `1`, `{0, -1}`, or none for all of them.
class Dims {
public:
    Dims() = default;
    Dims(int dim) : list_{dim} {}  // NOLINT(google-explicit-constructor)
    Dims(std::initializer_list<int> dims) : list_(dims) {}
    Dims(std::vector<int> dims) : list_(std::move(dims)) {}  // NOLINT(google-explicit-constructor)
    const std::vector<int>& list() const { return list_; }

private:
    std::vector<int> list_;
};

/// Sum over `dims`; i64 for integers and bool. For a batch, this is the sum over the shard; `sum_over_shards` adds
/// them.
Tensor sum(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
Tensor mean(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
/// Index (i64) of the first largest element along `dim`, or in the flattened tensor. Not differentiable.
Tensor argmax(const Tensor& x, std::optional<int> dim = std::nullopt, bool keepdim = false);
/// Index (i64) of the first smallest element. Not differentiable.
Tensor argmin(const Tensor& x, std::optional<int> dim = std::nullopt, bool keepdim = false);
/// Result of max() and min().
struct ValuesAndIndices {
    Tensor values, indices;
};
/// Largest or smallest elements along `dim`, NaN if there is one, and their first indices (i64). The gradient is that
/// of these elements.
ValuesAndIndices(max)(const Tensor& x, int dim, bool keepdim = false);
ValuesAndIndices(min)(const Tensor& x, int dim, bool keepdim = false);
/// Largest or smallest element over `dims`, NaN if there is one. Equal elements share the gradient.
Tensor amax(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
Tensor amin(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
/// bool: whether any element over `dims`, or all, are not 0. Any dtype. Not differentiable.
Tensor any(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
Tensor all(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
/// Variance and standard deviation over `dims`. The divisor is the number of elements less `correction`, at least 0.
/// For a batch, this is the variance of the shard.
Tensor var(const Tensor& x, const Dims& dims = {}, double correction = 1, bool keepdim = false);
Tensor std(const Tensor& x, const Dims& dims = {}, double correction = 1, bool keepdim = false);
/// The p-norm of the elements over `dims`; p is 1, 2 or infinity. The gradient of the 2-norm is 0 at 0.
Tensor norm(const Tensor& x, double p = 2, const Dims& dims = {}, bool keepdim = false);
/// log(sum(exp(x))) over `dims`, without overflow.
Tensor logsumexp(const Tensor& x, const Dims& dims, bool keepdim = false);
/// x divided by its p-norm along `dim`, or by `eps` if the norm is smaller. torch.nn.functional.normalize.
Tensor normalize(const Tensor& x, double p = 2, int dim = 1, double eps = 1e-12);
/// Cosines of the angles between vectors along `dim`; norms below `eps` count as `eps`.
Tensor cosine_similarity(const Tensor& a, const Tensor& b, int dim = 1, double eps = 1e-8);
/// Product of all elements, or along `dim`.
Tensor prod(const Tensor& x, std::optional<int> dim = std::nullopt, bool keepdim = false);
/// Sums and products of the elements up to each one along `dim`.
Tensor cumsum(const Tensor& x, int dim);
Tensor cumprod(const Tensor& x, int dim);
/// Elements in ascending or descending order along `dim`, and their indices (i64). Equal elements keep their order; NaN
/// is larger than every number.
ValuesAndIndices sort(const Tensor& x, int dim = -1, bool descending = false);
Tensor argsort(const Tensor& x, int dim = -1, bool descending = false);
/// The k largest or smallest elements along `dim` in order, and their indices (i64).
ValuesAndIndices topk(const Tensor& x, std::int64_t k, int dim = -1, bool largest = true);
/// Products (N, M) of the elements of two vectors.
Tensor outer(const Tensor& a, const Tensor& b);
/// Concatenates tensors along `dim`; all other dimensions must agree. Any dtype, the same for all.
Tensor cat(const std::vector<Tensor>& tensors, int dim = 0);
/// Tensors of equal shapes along a new dimension `dim`. Any dtype, the same for all.
Tensor stack(const std::vector<Tensor>& tensors, int dim = 0);
/// Views of x along `dim`, of any dtype. `size`: parts of that size, the last one with the rest. `sizes`: parts of
/// these sizes, which add up to the size of x. `chunks`: at most this number of parts of equal sizes, the last one with
/// the rest.
std::vector<Tensor> split(const Tensor& x, std::int64_t size, int dim = 0);
std::vector<Tensor> split(const Tensor& x, const std::vector<std::int64_t>& sizes, int dim = 0);
std::vector<Tensor> chunk(const Tensor& x, int chunks, int dim = 0);
/// A tensor with the shape, dtype and device of x, and one value. It does not depend on x.
Tensor zeros_like(const Tensor& x);
Tensor ones_like(const Tensor& x);
Tensor full_like(const Tensor& x, double value);
/// x with the elements along `dims` in reverse order. Any dtype.
Tensor flip(const Tensor& x, const Dims& dims);
/// x with the elements along `dim` moved by `shift`; those that leave at one end enter at the other. Any dtype.
Tensor roll(const Tensor& x, std::int64_t shift, int dim);
/// x `repeats[d]` times along each dimension d; x gets leading dimensions if there are more numbers. Any dtype.
Tensor repeat(const Tensor& x, const std::vector<std::int64_t>& repeats);
/// x with every element along `dim` `repeats` times. Any dtype.
Tensor repeat_interleave(const Tensor& x, std::int64_t repeats, int dim);
/// Matrices x (..., M, N) with 0 above or below a diagonal: 0 is the main one, positive numbers are above it. Any
/// dtype.
Tensor tril(const Tensor& x, std::int64_t diagonal = 0);
Tensor triu(const Tensor& x, std::int64_t diagonal = 0);
/// x with `value` around it: `pad` holds the number of elements before and after the last dimension, then before and
/// after the second to last, and so on; negative numbers crop. Any dtype. torch.nn.functional.pad with mode "constant".
Tensor pad(const Tensor& x, const std::vector<std::int64_t>& pad, double value = 0);
/// The elements around a padded tensor.
enum class PaddingMode : std::uint8_t {
    zeros,
    reflect,    ///< the elements next to the edge, mirrored; padding is less than the size
    replicate,  ///< the element at the edge; padding is at most 2^24
    circular    ///< the elements at the other edge; padding is at most the size
};
/// x with copies of its elements around it. Any dtype. torch.nn.functional.pad with the mode of that name.
Tensor pad(const Tensor& x, const std::vector<std::int64_t>& pad, PaddingMode mode);
/// A view of x with its dimensions in the order `dims`. Any dtype.
Tensor permute(const Tensor& x, const std::vector<int>& dims);
/// x (...) i64 in 0..num_classes-1 as (..., num_classes) i64: 1 at the class, 0 elsewhere. Only the device
/// can detect a class out of range; it is reported like that of a loss (loss.h).
Tensor one_hot(const Tensor& x, std::int64_t num_classes);
/// Dimensions start_dim..end_dim as one.
Tensor flatten(const Tensor& x, int start_dim = 0, int end_dim = -1);

// ---- linear algebra, convolution, pooling -----------------------------------------------------------------------

/// (..., M, K) x (..., K, N); the leading dimensions are broadcast. A vector (K) is a row on the left and a column on
/// the right, and has no dimension in the result. Out: (..., M, N).
Tensor matmul(const Tensor& a, const Tensor& b);
/// Sums of products by Einstein's convention: einsum("bij,bjk->bik", {a, b}). Every dimension has a letter; letters
/// that the result lacks are summed over. Without "->", the result has the letters that appear once, in alphabetic
/// order. Operands are multiplied from left to right. torch.einsum.
Tensor einsum(const std::string& equation, const std::vector<Tensor>& tensors);
/// x (..., in) weight^T + bias; weight (out, in), bias (out) or undefined. Out: (..., out).
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias = {});

/// Height and width: `3` for both, or `{3, 5}`.
struct Pair {
    int h, w;
    constexpr Pair(int both) : h(both), w(both) {}  // NOLINT(google-explicit-constructor)
    constexpr Pair(int height, int width) : h(height), w(width) {}
};

/// Cross-correlation of x (N, C, H, W) with weight (K, C / groups, kh, kw), zero padding, plus bias (K) or undefined.
/// Out: (N, K, (H + 2 padding - dilation (kh - 1) - 1) / stride + 1, ...). Each of the `groups` equal ranges of input
/// channels contributes to one of as many ranges of output channels; `groups` = C is a depthwise convolution.
/// `dilation` is the distance between the elements of x that a window reads. In f32 on CPU devices, most 3x3
/// convolutions with stride 1, one group and no dilation use Winograd's algorithm. It has larger rounding errors than a
/// sum of products and spreads NaN over tiles (docs/accuracy.md). `LOCKSTEP_CONV=direct` and
/// `EngineOptions::convolution` disable it.
Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias = {}, Pair stride = 1, Pair padding = 0,
              Pair dilation = 1, std::int64_t groups = 1);
/// Transposed convolution, the gradient of conv2d. Every element of x (N, C, H, W) adds its product with weight (C,
/// K / groups, kh, kw) to y, plus bias (K) or undefined. Out: (N, K, (H - 1) stride - 2 padding + dilation (kh - 1) + 1
/// + output_padding, ...); output_padding, less than the stride or the dilation, selects among the sizes that conv2d
/// maps to H. Algorithms are those of conv2d.
Tensor conv_transpose2d(const Tensor& x, const Tensor& weight, const Tensor& bias = {}, Pair stride = 1,
                        Pair padding = 0, Pair output_padding = 0, std::int64_t groups = 1, Pair dilation = 1);
/// Largest element of every window of x (N, C, H, W); stride defaults to the window, which has at most 255 elements.
/// If several elements are largest, the first one gets the gradient.
Tensor max_pool2d(const Tensor& x, Pair kernel_size, std::optional<Pair> stride = std::nullopt, Pair padding = 0);

/// Mean of every window of x (N, C, H, W); stride defaults to the window. Padding is at most half the window; its zeros
/// count as elements if `count_include_pad`.
Tensor avg_pool2d(const Tensor& x, Pair kernel_size, std::optional<Pair> stride = std::nullopt, Pair padding = 0,
                  bool count_include_pad = true);
/// Means of `output_size` windows that cover x (N, C, H, W) evenly. Window i of n covers elements floor(i H / n) to
/// ceil((i + 1) H / n).
Tensor adaptive_avg_pool2d(const Tensor& x, Pair output_size);

/// (N, C r^2, H, W) as (N, C, H r, W r), and back. Any dtype.
Tensor pixel_shuffle(const Tensor& x, int upscale_factor);
Tensor pixel_unshuffle(const Tensor& x, int downscale_factor);

/// The sliding windows of x (N, C, H, W), zero padding, as columns: (N, C kh kw, L), with L windows in row-major order.
/// Any dtype. torch.nn.functional.unfold.
Tensor unfold(const Tensor& x, Pair kernel_size, Pair dilation = 1, Pair padding = 0, Pair stride = 1);
/// The gradient of unfold: windows (N, C kh kw, L), added where they overlap, as (N, C, output_size).
/// torch.nn.functional.fold.
Tensor fold(const Tensor& x, Pair output_size, Pair kernel_size, Pair dilation = 1, Pair padding = 0, Pair stride = 1);

// Convolution and pooling of sequences x (N, C, L); weight (K, C / groups, k).
Tensor conv1d(const Tensor& x, const Tensor& weight, const Tensor& bias = {}, int stride = 1, int padding = 0,
              int dilation = 1, std::int64_t groups = 1);
Tensor max_pool1d(const Tensor& x, int kernel_size, std::optional<int> stride = std::nullopt, int padding = 0);
Tensor avg_pool1d(const Tensor& x, int kernel_size, std::optional<int> stride = std::nullopt, int padding = 0,
                  bool count_include_pad = true);
Tensor adaptive_avg_pool1d(const Tensor& x, int output_size);

/// Depth, height and width: `3` for all, or `{3, 5, 5}`.
struct Triple {
    int d, h, w;
    constexpr Triple(int all) : d(all), h(all), w(all) {}  // NOLINT(google-explicit-constructor)
    constexpr Triple(int depth, int height, int width) : d(depth), h(height), w(width) {}
};

// Convolution and pooling of volumes x (N, C, D, H, W); weight (K, C / groups, kd, kh, kw).
Tensor conv3d(const Tensor& x, const Tensor& weight, const Tensor& bias = {}, Triple stride = 1, Triple padding = 0,
              Triple dilation = 1, std::int64_t groups = 1);
Tensor max_pool3d(const Tensor& x, Triple kernel_size, std::optional<Triple> stride = std::nullopt, Triple padding = 0);
Tensor avg_pool3d(const Tensor& x, Triple kernel_size, std::optional<Triple> stride = std::nullopt, Triple padding = 0,
                  bool count_include_pad = true);
Tensor adaptive_avg_pool3d(const Tensor& x, Triple output_size);

/// Height and width as multiples: `2` for both, or `{2, 1.5}`.
struct ScaleFactor {
    double h, w;
    constexpr ScaleFactor(double both) : h(both), w(both) {}  // NOLINT(google-explicit-constructor)
    constexpr ScaleFactor(double height, double width) : h(height), w(width) {}
};

enum class InterpolateMode : std::uint8_t { nearest, bilinear };

struct InterpolateOptions {
    std::optional<Pair> size = std::nullopt;  ///< size of the result; this or scale_factor
    std::optional<ScaleFactor> scale_factor = std::nullopt;
    InterpolateMode mode = InterpolateMode::nearest;
    bool align_corners = false;  ///< bilinear: corner elements keep their values, others are interpolated
};
/// Images x (N, C, H, W) resized to `size`, or to floor(H * scale_factor), ... torch.nn.functional.interpolate.
Tensor interpolate(const Tensor& x, const InterpolateOptions& options);

// ---- normalisation and softmax ----------------------------------------------------------------------------------

/// Rows that contribute to the running statistics. Only `synchronized` also normalises the batch with the pooled
/// statistics; otherwise each shard is normalised with the statistics of its rows.
enum class BatchNormStatistics : std::uint8_t {
    all_shards,    ///< count, mean and squared deviations of all shards pooled
    shard0,        ///< shard 0, as torch.nn.DataParallel does
    synchronized,  ///< all shards pooled, and these normalise the batch as well: torch.nn.SyncBatchNorm
};

struct BatchNormOptions {
    bool training = false;
    double momentum = 0.1;
    double eps = 1e-5;
    BatchNormStatistics statistics = BatchNormStatistics::all_shards;
};
/// Normalises x (N, C, H, W), or any (N, C, ...), per channel, times weight (C), plus bias (C) (undefined: 1 and 0). In
/// training, or without running statistics, it uses the mean and biased variance of x. The running statistics (C), if
/// defined, then move by `momentum` towards the mean and the unbiased variance when the step commits. Otherwise it uses
/// the running statistics. Throws InvalidArgument when training with one value per channel, before anything has
/// changed; with synchronized statistics, the whole batch counts.
Tensor batch_norm(const Tensor& x, const Tensor& running_mean, const Tensor& running_var, const Tensor& weight = {},
                  const Tensor& bias = {}, const BatchNormOptions& options = {});

/// Normalises the last dimensions of x, which are `normalized_shape`, with their mean and biased variance, times
/// weight, plus bias, of that shape (undefined: 1 and 0).
Tensor layer_norm(const Tensor& x, const Shape& normalized_shape, const Tensor& weight = {}, const Tensor& bias = {},
                  double eps = 1e-5);

/// Normalises each of `num_groups` groups of channels of every row of x (N, C, ...) with its mean and biased variance,
/// times weight (C), plus bias (C) (undefined: 1 and 0).
Tensor group_norm(const Tensor& x, std::int64_t num_groups, const Tensor& weight = {}, const Tensor& bias = {},
                  double eps = 1e-5);
/// Normalises every channel of every row of x (N, C, L, ...); see group_norm.
Tensor instance_norm(const Tensor& x, const Tensor& weight = {}, const Tensor& bias = {}, double eps = 1e-5);
/// Divides the last dimensions of x, which are `normalized_shape`, by the root of their mean square plus `eps`, times
/// weight. `eps` defaults to the precision of the arithmetic, that of f32 or f64.
Tensor rms_norm(const Tensor& x, const Shape& normalized_shape, const Tensor& weight = {},
                std::optional<double> eps = std::nullopt);

/// exp(x) / sum(exp(x)) along `dim`.
Tensor softmax(const Tensor& x, int dim);
/// x - log(sum(exp(x))) along `dim`.
Tensor log_softmax(const Tensor& x, int dim);

// ---- attention --------------------------------------------------------------------------------------------------

struct AttentionOptions {
    /// Broadcast to (..., L, S): bool, true where a query attends to a key, or numbers that are added to the scores.
    Tensor attn_mask = {};
    double dropout_p = 0;
    bool is_causal = false;                      ///< queries attend to keys up to their own position
    std::optional<double> scale = std::nullopt;  ///< factor of the products; 1 / sqrt(E) by default
    /// Several heads of the query share one of key and value: (..., heads, L, E) and (..., groups, S, E), with a number
    /// of groups that divides the heads. Head h uses group h / (heads / groups).
    bool enable_gqa = false;
};
/// softmax(query key^T scale) value, of query (..., L, E), key (..., S, E) and value (..., S, Ev). Out: (..., L, Ev).
/// Queries that attend to no key give 0. torch.nn.functional.scaled_dot_product_attention.
Tensor scaled_dot_product_attention(const Tensor& query, const Tensor& key, const Tensor& value,
                                    const AttentionOptions& options = {});

// ---- random numbers ---------------------------------------------------------------------------------------------

// Every call in `forward` draws new numbers in every step, microbatch and inference. They depend on the seed and the
// counts of these, on the ordinal of the call, and on the global row and element, but not on devices, ranks and shards.
// Without the batch in dimension 0, elements have the same numbers on all shards if the argument has the same value on
// all of them, such as a parameter, and different numbers otherwise. Outside a wrapper, the numbers depend on
// `manual_seed` and the calls since. Every kind of device draws the same bits. Also in evaluation mode. As in PyTorch,
// results have gradients of 0, or none (rand_like, randn_like); mu + sigma * randn_like(sigma) has those of a sample.

/// Uniform numbers in [0, 1), in steps of 2^-24 (f32), 2^-53 (f64), 2^-11 (f16) or 2^-8 (bf16), with the shape, dtype
/// and device of x.
Tensor rand_like(const Tensor& x);
/// Standard normal numbers with the shape, dtype and device of x: those of f32 are below 6.34, those of f64 below 9.1,
/// and those of 16 bits are rounded from f32.
Tensor randn_like(const Tensor& x);
/// 1 with the probability that an element of p is, else 0. A probability outside [0, 1] is an error of the data: eager
/// reads throw it, steps are refused. Probabilities are resolved to 2^-24, or 2^-53 in f64.
Tensor bernoulli(const Tensor& p);
/// With the same probability p for all elements of x, resolved to 2^-24; the values of x are not read.
Tensor bernoulli(const Tensor& x, double p);
/// Normal numbers with the mean and standard deviation that elements of `mean` and `std` (broadcast) are. A negative
/// `std` is an error, in a tensor one of the data.
Tensor normal(const Tensor& mean, const Tensor& std);
Tensor normal(const Tensor& mean, double std = 1);
Tensor normal(double mean, const Tensor& std);

/// Sets elements to 0 with probability p and divides the others by 1 - p. The mask depends on the seed, the step, the
/// ordinal of the call and the global row, not on the shards. Returns x itself unless `training`.
Tensor dropout(const Tensor& x, double p = 0.5, bool training = true);
/// Dropout of whole channels: one draw for every (n, c) of x (N, C, ...). Dimension 0 is always N (torch takes three
/// dimensions for (C, H, W)).
Tensor dropout2d(const Tensor& x, double p = 0.5, bool training = true);

// ---- across shards ----------------------------------------------------------------------------------------------

/// Sum of x over all shards of the batch, equal on all of them; x must have one shape on all shards. The gradient is
/// the sum of the gradients of all shards. Eager use has one shard.
Tensor sum_over_shards(const Tensor& x);
/// Several at once, in one exchange.
std::vector<Tensor> sum_over_shards(const std::vector<Tensor>& tensors);

}  // namespace lockstep
