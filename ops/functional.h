// The functions of a model, with gradients. Names, arguments and defaults are those of torch and torch.nn.functional;
// docs/support.md lists the limits. Inputs are f32, f64, f16 or bf16, all of one dtype (Autocast converts them,
// runtime/autocast.h) and on one device. A comment names the functions that also take integers or bool. Results are
// fresh tensors on that device. f16 and bf16 are computed in f32 and rounded, or with at least that accuracy. f32 is
// computed in f32 on every kind of device: TF32, which PyTorch's convolutions use on GPUs by default, must be permitted
// (allow_tf32 in EngineOptions and ComputeSettings). Each function enqueues its work and returns. Invalid shapes,
// dtypes and attributes throw InvalidArgument with the name of the called function.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/ops/elementwise.h"
#include "lockstep/ops/pieces.h"
#include "lockstep/runtime/tensor.h"

namespace lockstep {

// ---- bits -------------------------------------------------------------------------------------------------------

/// And, or, and exclusive or of the bits of integers, or of bool. The tensors are broadcast and converted as by `add`.
Tensor bitwise_and(const Tensor& a, const Tensor& b);
Tensor bitwise_or(const Tensor& a, const Tensor& b);
Tensor bitwise_xor(const Tensor& a, const Tensor& b);
Tensor bitwise_and(const Tensor& a, Scalar b);
Tensor bitwise_or(const Tensor& a, Scalar b);
Tensor bitwise_xor(const Tensor& a, Scalar b);
/// The complement of the bits of integers, or of bool.
Tensor bitwise_not(const Tensor& x);
/// Integers whose bits are moved. A number of bits that is negative or at least that of the dtype moves all of them
/// out: the result is 0, and -1 if a negative number is moved right. The tensors are broadcast and converted as by
/// `add`.
Tensor bitwise_left_shift(const Tensor& x, const Tensor& bits);
Tensor bitwise_right_shift(const Tensor& x, const Tensor& bits);
Tensor bitwise_left_shift(const Tensor& x, Scalar bits);
Tensor bitwise_right_shift(const Tensor& x, Scalar bits);

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
/// x with y[.., index[.., i, ..], ..] = src[.., i, ..], or `value`, for all elements of the index, in the order of i:
/// the last of equal indices counts, in the gradient of src as well. The sizes are those of scatter_add. Any dtype, the
/// same for x and src.
Tensor scatter(const Tensor& x, int dim, const Tensor& index, const Tensor& src);
Tensor scatter(const Tensor& x, int dim, const Tensor& index, Scalar value);
/// x with `value` at the indices of a vector along `dim`. Any dtype.
Tensor index_fill(const Tensor& x, int dim, const Tensor& index, Scalar value);
/// x with y[.., index[i], ..] += alpha src[.., i, ..] along `dim`, in the order of i, for a vector of indices.
Tensor index_add(const Tensor& x, int dim, const Tensor& index, const Tensor& src, double alpha = 1);
/// x with y[.., index[i], ..] = src[.., i, ..] along `dim`, for a vector of indices, as `scatter`. Any dtype.
Tensor index_copy(const Tensor& x, int dim, const Tensor& index, const Tensor& src);
/// x with y[index[0], index[1], ..] = values for indices of the first dimensions, which are broadcast together; values
/// are broadcast to their shape, followed by the other dimensions of x. If `accumulate`, values are added in their
/// order; otherwise the last of equal indices counts, in the gradient of values as well. The dtype is the same for x
/// and values; any, or with `accumulate` any but bool.
Tensor index_put(const Tensor& x, const std::vector<Tensor>& index, const Tensor& values, bool accumulate = false);
/// Elements of the flattened tensor at the indices, in the shape of the index. Any dtype.
Tensor take(const Tensor& x, const Tensor& index);
/// x with the first elements of `source`, in their order, where `mask` (bool) holds; x and the mask are broadcast. Any
/// dtype, the same for x and source. The source must have as many elements as the mask has true ones.
Tensor masked_scatter(const Tensor& x, const Tensor& mask, const Tensor& source);
/// How scatter_reduce combines elements.
enum class ScatterReduction : std::uint8_t { sum, mean, amax, amin, prod };
/// x with y[.., index[.., i, ..], ..] = the sum, mean, extremum or product of the elements src[.., i, ..] with that
/// index and, if `include_self`, of the element of x; elements without an index remain. Equal extrema share the
/// gradient. Sizes as for scatter_add. Any dtype but bool; means of integers are rounded down.
Tensor scatter_reduce(const Tensor& x, int dim, const Tensor& index, const Tensor& src, ScatterReduction reduce,
                      bool include_self = true);
/// How embedding_bag combines the rows of a bag.
enum class EmbeddingBagMode : std::uint8_t { sum, mean, max };
/// Rows of weight (num_embeddings, embedding_dim) at the indices `input` (B, L), combined over L: (B, embedding_dim).
/// torch.nn.functional.embedding_bag.
Tensor embedding_bag(const Tensor& input, const Tensor& weight, EmbeddingBagMode mode = EmbeddingBagMode::mean);

// ---- reductions and orders --------------------------------------------------------------------------------------

/// Sum over `dims`; i64 for integers and bool. For a batch, this is the sum over the shard; `sum_over_shards` adds
/// them.
Tensor sum(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
Tensor mean(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
/// Index (i64) of the first largest element along `dim`, or in the flattened tensor. Any dtype. Not differentiable.
Tensor argmax(const Tensor& x, std::optional<int> dim = std::nullopt, bool keepdim = false);
/// Index (i64) of the first smallest element. Any dtype. Not differentiable.
Tensor argmin(const Tensor& x, std::optional<int> dim = std::nullopt, bool keepdim = false);
/// Result of max() and min().
struct ValuesAndIndices {
    Tensor values, indices;
};
/// Largest or smallest elements along `dim`, NaN if there is one, and their first indices (i64). Any dtype. The
/// gradient is that of these elements.
ValuesAndIndices(max)(const Tensor& x, int dim, bool keepdim = false);
ValuesAndIndices(min)(const Tensor& x, int dim, bool keepdim = false);
/// Largest or smallest element over `dims`, NaN if there is one. Any dtype. Equal elements share the gradient.
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
/// The smallest and the largest element of `dims`; see amin and amax.
std::pair<Tensor, Tensor> aminmax(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
/// Variance or standard deviation, and mean.
std::pair<Tensor, Tensor> var_mean(const Tensor& x, const Dims& dims = {}, double correction = 1, bool keepdim = false);
std::pair<Tensor, Tensor> std_mean(const Tensor& x, const Dims& dims = {}, double correction = 1, bool keepdim = false);
/// The number (i64) of elements over `dims` that are not 0. Any dtype. Not differentiable.
Tensor count_nonzero(const Tensor& x, const Dims& dims = {});
/// Sum and mean over `dims` of the elements that are not NaN.
Tensor nansum(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
Tensor nanmean(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
/// The k-th smallest element along `dim`, from 1, and its index (i64). NaN is larger than every number. Any dtype.
ValuesAndIndices kthvalue(const Tensor& x, std::int64_t k, int dim = -1, bool keepdim = false);
/// The middle element along `dim`, the smaller one of two, and its index (i64); NaN if there is one. Any
/// dtype.
ValuesAndIndices median(const Tensor& x, int dim, bool keepdim = false);
/// The q-quantile of the elements along `dim`, interpolated linearly between two elements; NaN if there is one. f32 or
/// f64.
Tensor quantile(const Tensor& x, double q, int dim, bool keepdim = false);
/// Several quantiles, along a new dimension 0.
Tensor quantile(const Tensor& x, const std::vector<double>& q, int dim, bool keepdim = false);
/// `quantile` of the elements that are not NaN, and NaN of lines without such elements.
Tensor nanquantile(const Tensor& x, double q, int dim, bool keepdim = false);
Tensor nanquantile(const Tensor& x, const std::vector<double>& q, int dim, bool keepdim = false);
/// The middle element of the whole tensor, the smaller one of two; NaN if there is one. Any dtype.
Tensor median(const Tensor& x);
/// The middle one of the elements along `dim` that are not NaN, and its index (i64). Any dtype.
ValuesAndIndices nanmedian(const Tensor& x, int dim, bool keepdim = false);
/// The most frequent element along `dim`, the smallest one of several, and its last index (i64). Any dtype.
ValuesAndIndices mode(const Tensor& x, int dim = -1, bool keepdim = false);
/// Numbers of elements in `bins` equal ranges from `min` to `max`, in the dtype of x; the last range contains `max`.
/// If the limits are equal, they are the smallest and the largest element. NaN is not counted. For a batch, these are
/// the elements of the shard. Not differentiable.
Tensor histc(const Tensor& x, std::int64_t bins = 100, double min = 0, double max = 0);
/// log(sum(exp(x))) over `dims`, without overflow. Integers and bool are converted to f32.
Tensor logsumexp(const Tensor& x, const Dims& dims, bool keepdim = false);
/// x divided by its p-norm along `dim`, or by `eps` if the norm is smaller. torch.nn.functional.normalize.
Tensor normalize(const Tensor& x, double p = 2, int dim = 1, double eps = 1e-12);
/// Cosines of the angles between vectors along `dim`; norms below `eps` count as `eps`.
Tensor cosine_similarity(const Tensor& a, const Tensor& b, int dim = 1, double eps = 1e-8);
/// Product of all elements, or along `dim`; i64 for integers and bool.
Tensor prod(const Tensor& x, std::optional<int> dim = std::nullopt, bool keepdim = false);
/// Sums and products of the elements up to each one along `dim`; i64 for integers and bool.
Tensor cumsum(const Tensor& x, int dim);
Tensor cumprod(const Tensor& x, int dim);
/// The largest and the smallest element so far along `dim`, with its index (i64), the last one of equal elements; NaN
/// wins. Not along dimension 0 of a batch.
ValuesAndIndices cummax(const Tensor& x, int dim);
ValuesAndIndices cummin(const Tensor& x, int dim);
/// The logarithm of the cumulative sum of exp(x), without overflow. Integers are converted to f32.
Tensor logcumsumexp(const Tensor& x, int dim);
/// Differences of successive elements along `dim`, `n` times; of bool, whether they differ.
Tensor diff(const Tensor& x, int n = 1, int dim = -1);
/// For each value (..., N), the number of elements of its sorted sequence (..., S), or of one sequence (S), that are
/// less, or less or equal if `right`: the index (i64) at which it would be inserted. Any dtypes, converted as by `add`.
Tensor searchsorted(const Tensor& sorted_sequence, const Tensor& values, bool right = false);
/// The same for the elements of x and one sorted vector. torch.bucketize.
Tensor bucketize(const Tensor& x, const Tensor& boundaries, bool right = false);
/// Whether each element of x is among the test elements, as bool, or the opposite if `invert`. Any dtypes, converted as
/// by `add`. Not differentiable.
Tensor isin(const Tensor& x, const Tensor& test_elements, bool invert = false);
/// Elements in ascending or descending order along `dim`, and their indices (i64). Any dtype. Equal elements keep their
/// order; NaN is larger than every number.
ValuesAndIndices sort(const Tensor& x, int dim = -1, bool descending = false);
Tensor argsort(const Tensor& x, int dim = -1, bool descending = false);
/// The k largest or smallest elements along `dim` in order, and their indices (i64). Any dtype.
ValuesAndIndices topk(const Tensor& x, std::int64_t k, int dim = -1, bool largest = true);
/// Products (N, M) of the elements of two vectors of any dtypes, as by `mul`.
Tensor outer(const Tensor& a, const Tensor& b);
// ---- linear algebra, convolution, pooling -----------------------------------------------------------------------

/// (..., M, K) x (..., K, N); the leading dimensions are broadcast. A vector (K) is a row on the left and a column on
/// the right, and has no dimension in the result. Out: (..., M, N).
Tensor matmul(const Tensor& a, const Tensor& b);
/// Sums of products by Einstein's convention: einsum("bij,bjk->bik", {a, b}). Every dimension has a letter; letters
/// that the result lacks are summed over. Without "->", the result has the letters that appear once, in alphabetic
/// order. Operands are multiplied from left to right. torch.einsum.
Tensor einsum(const std::string& equation, const std::vector<Tensor>& tensors);
/// Products of batches of matrices, (B, M, K) x (B, K, N), of matrices, (M, K) x (K, N), of a matrix and a vector, (M,
/// K) x (K), and of two vectors.
Tensor bmm(const Tensor& a, const Tensor& b);
Tensor mm(const Tensor& a, const Tensor& b);
Tensor mv(const Tensor& a, const Tensor& b);
Tensor dot(const Tensor& a, const Tensor& b);
/// beta x + alpha a b of matrices, and of batches of them; x is broadcast. With beta 0, x is not read.
Tensor addmm(const Tensor& x, const Tensor& a, const Tensor& b, double beta = 1, double alpha = 1);
Tensor baddbmm(const Tensor& x, const Tensor& a, const Tensor& b, double beta = 1, double alpha = 1);
/// beta x + alpha times the sum of the products of two batches of matrices.
Tensor addbmm(const Tensor& x, const Tensor& a, const Tensor& b, double beta = 1, double alpha = 1);
/// beta x + alpha a b for a matrix (M, K) and a vector (K).
Tensor addmv(const Tensor& x, const Tensor& a, const Tensor& b, double beta = 1, double alpha = 1);
/// beta x + alpha times the outer product of vectors.
Tensor addr(const Tensor& x, const Tensor& a, const Tensor& b, double beta = 1, double alpha = 1);
/// Sums of products over the last dimension of both: (..., K) and (.., K) give (..., ..). torch.inner.
Tensor inner(const Tensor& a, const Tensor& b);
/// The same as dot: real numbers have no conjugates.
Tensor vdot(const Tensor& a, const Tensor& b);
/// Sums of products over the last `dims` dimensions of a and the first ones of b, or over dimensions of both.
Tensor tensordot(const Tensor& a, const Tensor& b, int dims = 2);
Tensor tensordot(const Tensor& a, const Tensor& b, const std::vector<int>& dims_a, const std::vector<int>& dims_b);
/// Kronecker product: every element of a times b.
Tensor kron(const Tensor& a, const Tensor& b);
/// Cross products of vectors of three elements along `dim`; the tensors are broadcast.
Tensor cross(const Tensor& a, const Tensor& b, int dim = -1);
/// p-norms of the differences of all rows of a (..., P, M) and b (..., R, M): (..., P, R). p is 1, 2 or infinity.
Tensor cdist(const Tensor& a, const Tensor& b, double p = 2);
/// p-norms of a - b + eps along the last dimension; p is 1, 2 or infinity. torch.nn.functional.pairwise_distance.
Tensor pairwise_distance(const Tensor& a, const Tensor& b, double p = 2, double eps = 1e-6, bool keepdim = false);
/// p-norms of the differences of all pairs of rows of x (N, M): N (N - 1) / 2 numbers, those of row 0 first; p is 1, 2
/// or infinity. torch.nn.functional.pdist.
Tensor pdist(const Tensor& x, double p = 2);
/// Covariances and correlations of the rows of x (variables, observations), (variables, variables); of a vector, its
/// variance or 1. The divisor of covariances is the number of observations less `correction`. For a batch in another
/// dimension, transpose.
Tensor cov(const Tensor& x, double correction = 1);
Tensor corrcoef(const Tensor& x);
/// Integrals along `dim` by the trapezoidal rule, of points at a distance of `dx`, or at the places x.
Tensor trapezoid(const Tensor& y, double dx = 1, int dim = -1);
Tensor trapezoid(const Tensor& y, const Tensor& x, int dim = -1);
/// a^T weight[k] b + bias[k] of rows a (..., in1) and b (..., in2); weight (out, in1, in2), bias (out) or undefined.
/// Out: (..., out). torch.nn.functional.bilinear.
Tensor bilinear(const Tensor& a, const Tensor& b, const Tensor& weight, const Tensor& bias = {});
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
/// If several elements are largest, the first one gets the gradient. With `ceil_mode`, elements that are left at the
/// end have a smaller window. `dilation` is the distance between the elements of a window.
Tensor max_pool2d(const Tensor& x, Pair kernel_size, std::optional<Pair> stride = std::nullopt, Pair padding = 0,
                  bool ceil_mode = false, Pair dilation = 1);
/// The same with the positions of these elements (i64) in the flattened image. torch.nn.functional.max_pool2d with
/// return_indices=True.
ValuesAndIndices max_pool2d_with_indices(const Tensor& x, Pair kernel_size, std::optional<Pair> stride = std::nullopt,
                                         Pair padding = 0, bool ceil_mode = false, Pair dilation = 1);
/// Images of zeros, with x (N, C, H, W) at the positions that max_pool2d_with_indices returned: (N, C, output_size).
/// The size defaults to the smallest that the pooling can have had. The last of equal positions counts. Only the device
/// can detect a position out of range (see embedding).
Tensor max_unpool2d(const Tensor& x, const Tensor& indices, Pair kernel_size, std::optional<Pair> stride = std::nullopt,
                    Pair padding = 0, std::optional<Pair> output_size = std::nullopt);

/// Mean of every window of x (N, C, H, W); stride defaults to the window. Padding is at most half the window; its zeros
/// count as elements if `count_include_pad`. With `ceil_mode`, elements that are left at the end have a smaller window.
/// `divisor_override` replaces the number of elements of a window.
Tensor avg_pool2d(const Tensor& x, Pair kernel_size, std::optional<Pair> stride = std::nullopt, Pair padding = 0,
                  bool count_include_pad = true, bool ceil_mode = false,
                  std::optional<std::int64_t> divisor_override = std::nullopt);
/// The root of order `norm_type` of the sum of x^norm_type over every window of x (N, C, H, W).
Tensor lp_pool2d(const Tensor& x, double norm_type, Pair kernel_size, std::optional<Pair> stride = std::nullopt,
                 bool ceil_mode = false);
/// Means of `output_size` windows that cover x (N, C, H, W) evenly. Window i of n covers elements floor(i H / n) to
/// ceil((i + 1) H / n).
Tensor adaptive_avg_pool2d(const Tensor& x, Pair output_size);

/// Largest elements of the windows of adaptive_avg_pool2d. If several are largest, the first one gets the gradient.
Tensor adaptive_max_pool2d(const Tensor& x, Pair output_size);

/// x (N, C, ...) divided by (k + alpha s)^beta, where s is the mean square of `size` channels around each one, with
/// zeros beyond the first and the last. torch.nn.functional.local_response_norm.
Tensor local_response_norm(const Tensor& x, int size, double alpha = 1e-4, double beta = 0.75, double k = 1);

/// x (N, C, ...) with its channels, in `groups` groups, exchanged: the first of every group, then the second, and so
/// on. Any dtype.
Tensor channel_shuffle(const Tensor& x, int groups);

/// (N, C r^2, H, W) as (N, C, H r, W r), and back. Any dtype.
Tensor pixel_shuffle(const Tensor& x, int upscale_factor);
Tensor pixel_unshuffle(const Tensor& x, int downscale_factor);

/// The sliding windows of x (N, C, H, W), zero padding, as columns: (N, C kh kw, L), with L windows in row-major order.
/// Any dtype. torch.nn.functional.unfold.
Tensor unfold(const Tensor& x, Pair kernel_size, Pair dilation = 1, Pair padding = 0, Pair stride = 1);
/// The gradient of unfold: windows (N, C kh kw, L), added where they overlap, as (N, C, output_size).
/// torch.nn.functional.fold.
Tensor fold(const Tensor& x, Pair output_size, Pair kernel_size, Pair dilation = 1, Pair padding = 0, Pair stride = 1);

/// Convolution and pooling of sequences x (N, C, L); weight (K, C / groups, k).
Tensor conv1d(const Tensor& x, const Tensor& weight, const Tensor& bias = {}, int stride = 1, int padding = 0,
              int dilation = 1, std::int64_t groups = 1);
Tensor conv_transpose1d(const Tensor& x, const Tensor& weight, const Tensor& bias = {}, int stride = 1, int padding = 0,
                        int output_padding = 0, std::int64_t groups = 1, int dilation = 1);
Tensor max_pool1d(const Tensor& x, int kernel_size, std::optional<int> stride = std::nullopt, int padding = 0,
                  bool ceil_mode = false, int dilation = 1);
ValuesAndIndices max_pool1d_with_indices(const Tensor& x, int kernel_size, std::optional<int> stride = std::nullopt,
                                         int padding = 0, bool ceil_mode = false, int dilation = 1);
Tensor max_unpool1d(const Tensor& x, const Tensor& indices, int kernel_size, std::optional<int> stride = std::nullopt,
                    int padding = 0, std::optional<int> output_size = std::nullopt);
Tensor avg_pool1d(const Tensor& x, int kernel_size, std::optional<int> stride = std::nullopt, int padding = 0,
                  bool count_include_pad = true, bool ceil_mode = false);
Tensor lp_pool1d(const Tensor& x, double norm_type, int kernel_size, std::optional<int> stride = std::nullopt,
                 bool ceil_mode = false);
Tensor adaptive_avg_pool1d(const Tensor& x, int output_size);
Tensor adaptive_max_pool1d(const Tensor& x, int output_size);

/// Depth, height and width: `3` for all, or `{3, 5, 5}`.
struct Triple {
    int d, h, w;
    constexpr Triple(int all) : d(all), h(all), w(all) {}  // NOLINT(google-explicit-constructor)
    constexpr Triple(int depth, int height, int width) : d(depth), h(height), w(width) {}
};

/// Convolution and pooling of volumes x (N, C, D, H, W); weight (K, C / groups, kd, kh, kw).
Tensor conv3d(const Tensor& x, const Tensor& weight, const Tensor& bias = {}, Triple stride = 1, Triple padding = 0,
              Triple dilation = 1, std::int64_t groups = 1);
Tensor conv_transpose3d(const Tensor& x, const Tensor& weight, const Tensor& bias = {}, Triple stride = 1,
                        Triple padding = 0, Triple output_padding = 0, std::int64_t groups = 1, Triple dilation = 1);
Tensor max_pool3d(const Tensor& x, Triple kernel_size, std::optional<Triple> stride = std::nullopt, Triple padding = 0,
                  bool ceil_mode = false, Triple dilation = 1);
ValuesAndIndices max_pool3d_with_indices(const Tensor& x, Triple kernel_size,
                                         std::optional<Triple> stride = std::nullopt, Triple padding = 0,
                                         bool ceil_mode = false, Triple dilation = 1);
Tensor max_unpool3d(const Tensor& x, const Tensor& indices, Triple kernel_size,
                    std::optional<Triple> stride = std::nullopt, Triple padding = 0,
                    std::optional<Triple> output_size = std::nullopt);
Tensor avg_pool3d(const Tensor& x, Triple kernel_size, std::optional<Triple> stride = std::nullopt, Triple padding = 0,
                  bool count_include_pad = true, bool ceil_mode = false,
                  std::optional<std::int64_t> divisor_override = std::nullopt);
Tensor lp_pool3d(const Tensor& x, double norm_type, Triple kernel_size, std::optional<Triple> stride = std::nullopt,
                 bool ceil_mode = false);
Tensor adaptive_avg_pool3d(const Tensor& x, Triple output_size);
Tensor adaptive_max_pool3d(const Tensor& x, Triple output_size);

/// Height and width as multiples: `2` for both, or `{2, 1.5}`.
struct ScaleFactor {
    double d, h, w;
    constexpr ScaleFactor(double all) : d(all), h(all), w(all) {}  // NOLINT(google-explicit-constructor)
    constexpr ScaleFactor(double height, double width) : d(1), h(height), w(width) {}
    constexpr ScaleFactor(double depth, double height, double width) : d(depth), h(height), w(width) {}
};

/// How interpolate computes values between elements.
enum class InterpolateMode : std::uint8_t {
    nearest,
    nearest_exact,  ///< the nearest element, where `nearest` rounds positions down
    linear,         ///< sequences
    bilinear,       ///< images
    bicubic,        ///< images
    trilinear,      ///< volumes
    area            ///< means, as adaptive_avg_pool2d
};

/// Size of a result: (size), (h, w) or (d, h, w). Sequences have the size w.
struct InterpolateSize {
    int d, h, w;
    constexpr InterpolateSize(int all) : d(all), h(all), w(all) {}  // NOLINT(google-explicit-constructor)
    constexpr InterpolateSize(int height, int width) : d(1), h(height), w(width) {}
    constexpr InterpolateSize(int depth, int height, int width) : d(depth), h(height), w(width) {}
    constexpr InterpolateSize(const Pair& p) : d(1), h(p.h), w(p.w) {}      // NOLINT(google-explicit-constructor)
    constexpr InterpolateSize(const Triple& t) : d(t.d), h(t.h), w(t.w) {}  // NOLINT(google-explicit-constructor)
};

/// Options of interpolate.
struct InterpolateOptions {
    std::optional<InterpolateSize> size = std::nullopt;  ///< size of the result; this or scale_factor
    std::optional<ScaleFactor> scale_factor = std::nullopt;
    InterpolateMode mode = InterpolateMode::nearest;
    /// Not for nearest, nearest_exact and area: corner elements keep their values, others are interpolated.
    bool align_corners = false;
};
/// Sequences (N, C, L), images (N, C, H, W) or volumes (N, C, D, H, W) resized to `size`, or to floor(H *
/// scale_factor), ... torch.nn.functional.interpolate.
Tensor interpolate(const Tensor& x, const InterpolateOptions& options);

/// Values outside of the image.
enum class GridSamplePadding : std::uint8_t {
    zeros,
    border,     ///< the nearest pixel
    reflection  ///< the image, mirrored at its borders
};

/// Options of grid_sample.
struct GridSampleOptions {
    InterpolateMode mode = InterpolateMode::bilinear;  ///< or nearest
    GridSamplePadding padding_mode = GridSamplePadding::zeros;
    bool align_corners = false;  ///< -1 and 1 are the centers of the pixels at the border, not their outer edges
};
/// Images x (N, C, H, W) at the points of `grid` (N, Y, X, 2), each a column and a row in [-1, 1]: (N, C, Y, X).
/// torch.nn.functional.grid_sample.
Tensor grid_sample(const Tensor& x, const Tensor& grid, const GridSampleOptions& options = {});
/// The grid for images of `size` (N, C, H, W), transformed by the matrices `theta` (N, 2, 3).
/// torch.nn.functional.affine_grid.
Tensor affine_grid(const Tensor& theta, const Shape& size, bool align_corners = false);

// ---- normalisation and softmax ----------------------------------------------------------------------------------

/// Rows that contribute to the running statistics. Only `synchronized` also normalises the batch with the pooled
/// statistics; otherwise each shard is normalised with the statistics of its rows.
enum class BatchNormStatistics : std::uint8_t {
    all_shards,    ///< count, mean and squared deviations of all shards pooled
    shard0,        ///< shard 0, as torch.nn.DataParallel does
    synchronized,  ///< all shards pooled, and these normalise the batch as well: torch.nn.SyncBatchNorm
};

/// Options of batch_norm.
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
/// softmax(-x).
Tensor softmin(const Tensor& x, int dim);
/// x - log(sum(exp(x))) along `dim`.
Tensor log_softmax(const Tensor& x, int dim);

// ---- attention --------------------------------------------------------------------------------------------------

/// Options of scaled_dot_product_attention.
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

/// Numbers of categories (i64), drawn `num_samples` times for each row of weights, (C) or (N, C), which need not add up
/// to 1. Without replacement, a category of weight 0 is drawn only if no others are left. Negative weights, weights
/// that are not finite and rows of zeros are errors, which the first read throws. Out: (num_samples), or (N,
/// num_samples). torch.multinomial.
Tensor multinomial(const Tensor& weights, std::int64_t num_samples, bool replacement = false);

/// Sets elements to 0 with probability p and divides the others by 1 - p. The mask depends on the seed, the step, the
/// ordinal of the call and the global row, not on the shards. Returns x itself unless `training`.
Tensor dropout(const Tensor& x, double p = 0.5, bool training = true);
/// Dropout that keeps the mean and variance of standard normal inputs, after SELU: dropped elements are set to -1.758
/// before all are scaled and moved (Klambauer et al. 2017). torch.nn.functional.alpha_dropout.
Tensor alpha_dropout(const Tensor& x, double p = 0.5, bool training = true);
/// alpha_dropout of whole channels: one draw for every (n, c) of x (N, C, ...).
Tensor feature_alpha_dropout(const Tensor& x, double p = 0.5, bool training = true);
/// x, or x times a slope if it is negative: in training a random one between `lower` and `upper` for every element,
/// otherwise their mean. torch.nn.functional.rrelu, whose default of `training` it has.
Tensor rrelu(const Tensor& x, double lower = 1.0 / 8, double upper = 1.0 / 3, bool training = false);
/// Samples of the Gumbel-softmax distribution along `dim`, with the temperature `tau`. `hard`: one-hot vectors, with
/// the gradients of the soft samples. torch.nn.functional.gumbel_softmax.
Tensor gumbel_softmax(const Tensor& logits, double tau = 1, bool hard = false, int dim = -1);
/// Dropout of whole channels: one draw for every (n, c) of x (N, C, ...). Dimension 0 is always N (torch takes three
/// dimensions for (C, H, W)).
Tensor dropout1d(const Tensor& x, double p = 0.5, bool training = true);
Tensor dropout2d(const Tensor& x, double p = 0.5, bool training = true);
Tensor dropout3d(const Tensor& x, double p = 0.5, bool training = true);

// ---- across shards ----------------------------------------------------------------------------------------------

/// Sum of x over all shards of the batch, equal on all of them; x must have one shape on all shards. The gradient is
/// the sum of the gradients of all shards. Eager use has one shard.
Tensor sum_over_shards(const Tensor& x);
/// Several at once, in one exchange.
std::vector<Tensor> sum_over_shards(const std::vector<Tensor>& tensors);
/// The rows of all shards of the batch, in their order, equal on all shards: a contrastive loss compares its rows with
/// them. x (n, ...) has the batch in dimension 0. The gradient of a row is the sum of those of all shards. Eager use
/// has one shard. Throws InvalidArgument in microbatches, which have only some rows of the batch.
Tensor gather_shards(const Tensor& x);
/// The numbers (n) i64 of the rows of x in the whole batch: gather_shards(x) has row i of x at row_numbers(x)[i].
Tensor row_numbers(const Tensor& x);

// ---- sizes that depend on values --------------------------------------------------------------------------------

// The host waits for the values. Inside `forward` of a wrapper, these functions throw InvalidArgument.

/// Indices (n, dims), i64, of the elements that are not 0, in row-major order.
Tensor nonzero(const Tensor& x);
/// A vector of the elements of x where `mask` (bool) holds; the two are broadcast. Differentiable.
Tensor masked_select(const Tensor& x, const Tensor& mask);
/// Result of unique and unique_consecutive.
struct UniqueResult {
    Tensor values;   ///< the different elements; of `unique`, in ascending order
    Tensor inverse;  ///< for each element of x, the index of its value (i64)
    Tensor counts;   ///< for each value, how often it occurs (i64)
};
/// The different elements of x. NaN differs from NaN.
UniqueResult unique(const Tensor& x);
/// x without the elements that are equal to the one before them, in row-major order; `inverse` and `counts` are those
/// of the runs of equal elements.
UniqueResult unique_consecutive(const Tensor& x);
/// How often each of 0, 1, ... occurs in a vector of integers, or the sum of its weights: max(x) + 1 numbers, at least
/// `minlength`; i64, or f32 or f64 with weights. Not differentiable.
Tensor bincount(const Tensor& x, const Tensor& weights = {}, std::int64_t minlength = 0);
/// Whether all elements are close (`isclose`).
bool allclose(const Tensor& a, const Tensor& b, double rtol = 1e-5, double atol = 1e-8, bool equal_nan = false);
/// Whether two tensors of one dtype have equal shapes and elements.
bool equal(const Tensor& a, const Tensor& b);

}  // namespace lockstep
