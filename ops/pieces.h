// Functions that cut, join, repeat and rearrange tensors, with gradients; functional.h has the rules for all functions.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <utility>
#include <vector>

#include "lockstep/runtime/tensor.h"

namespace lockstep {

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

/// Concatenates tensors along `dim`; all other dimensions must agree. Any dtypes, converted to their common one.
Tensor cat(const std::vector<Tensor>& tensors, int dim = 0);
/// Tensors of equal shapes along a new dimension `dim`. Any dtypes, converted to their common one.
Tensor stack(const std::vector<Tensor>& tensors, int dim = 0);
/// Views of x along `dim`, of any dtype. `size`: parts of that size, the last one with the rest. `sizes`: parts of
/// these sizes, which add up to the size of x. `chunks`: at most this number of parts of equal sizes, the last one with
/// the rest.
std::vector<Tensor> split(const Tensor& x, std::int64_t size, int dim = 0);
std::vector<Tensor> split(const Tensor& x, const std::vector<std::int64_t>& sizes, int dim = 0);
std::vector<Tensor> chunk(const Tensor& x, int chunks, int dim = 0);
/// Parts along `dim`: `sections`, of which the first are larger by one if the size is not a multiple; or those that
/// begin at the indices, which count from the end if they are negative.
std::vector<Tensor> tensor_split(const Tensor& x, int sections, int dim = 0);
std::vector<Tensor> tensor_split(const Tensor& x, const std::vector<std::int64_t>& indices, int dim = 0);
/// A tensor with the shape, dtype and device of x, and one value. It does not depend on x.
Tensor zeros_like(const Tensor& x);
Tensor ones_like(const Tensor& x);
Tensor full_like(const Tensor& x, double value);
/// x with the elements along `dims` in reverse order. Any dtype.
Tensor flip(const Tensor& x, const Dims& dims);
/// x with the elements along `dim` moved by `shift`; those that leave at one end enter at the other. Any dtype.
Tensor roll(const Tensor& x, std::int64_t shift, int dim);
Tensor roll(const Tensor& x, const std::vector<std::int64_t>& shifts, const Dims& dims);
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
/// Tensors (L, ...) of different lengths as one, (N, T, ...) if `batch_first`, else (T, N, ...), with `padding_value`
/// after the shorter ones. Any dtypes, converted to their common one. torch.nn.utils.rnn.pad_sequence.
Tensor pad_sequence(const std::vector<Tensor>& sequences, bool batch_first = false, double padding_value = 0);
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
/// A view of x with dimension `source` at the place `destination`. Any dtype.
Tensor movedim(const Tensor& x, int source, int destination);
Tensor movedim(const Tensor& x, const std::vector<int>& source, const std::vector<int>& destination);
/// A view of x with two dimensions exchanged. Any dtype.
Tensor swapaxes(const Tensor& x, int dim0, int dim1);
/// Views of x with dimensions of size 1, so that there are at least one, two or three. A vector of n elements becomes
/// (1, n) or (1, n, 1). Any dtype.
Tensor atleast_1d(const Tensor& x);
Tensor atleast_2d(const Tensor& x);
Tensor atleast_3d(const Tensor& x);
/// A view of x, broadcast to `shape`. Any dtype.
Tensor broadcast_to(const Tensor& x, const Shape& shape);
/// Views of the tensors, broadcast to one shape. Any dtypes.
std::vector<Tensor> broadcast_tensors(const std::vector<Tensor>& tensors);
/// Views of x at every index along `dim`, without that dimension. Any dtype.
std::vector<Tensor> unbind(const Tensor& x, int dim = 0);
/// A view of the elements `start` to `start + length - 1` along `dim`; a negative start counts from the end. Any dtype.
Tensor narrow(const Tensor& x, int dim, std::int64_t start, std::int64_t length);
/// x `repeats[d]` times along each dimension d; leading dimensions without a number are not repeated. Any dtype.
Tensor tile(const Tensor& x, const std::vector<std::int64_t>& repeats);
/// Tensors side by side (dimension 1, or 0 of vectors), or one below the other (dimension 0; vectors are rows). Any
/// dtypes, converted to their common one.
Tensor hstack(const std::vector<Tensor>& tensors);
Tensor vstack(const std::vector<Tensor>& tensors);
Tensor dstack(const std::vector<Tensor>& tensors);
/// Tensors side by side; vectors are columns. Any dtypes, converted to their common one.
Tensor column_stack(const std::vector<Tensor>& tensors);
/// Matrices as the blocks of a diagonal, with 0 elsewhere; vectors are rows. Any dtypes, converted to their common one.
Tensor block_diag(const std::vector<Tensor>& tensors);
/// x with its columns (dimension 1) or rows (dimension 0) in reverse order. Any dtype.
Tensor fliplr(const Tensor& x);
Tensor flipud(const Tensor& x);
/// x turned by k right angles, from the first of two dimensions towards the second. Any dtype.
Tensor rot90(const Tensor& x, int k = 1, const std::vector<int>& dims = {0, 1});
/// The elements of a diagonal of the dimensions dim1 and dim2, as the last dimension of the result: `offset` 0 is the
/// main diagonal, positive numbers are above it. Any dtype.
Tensor diagonal(const Tensor& x, std::int64_t offset = 0, int dim1 = 0, int dim2 = 1);
/// Matrices with the last dimension of x as their diagonal, and 0 elsewhere. Any dtype.
Tensor diag_embed(const Tensor& x, std::int64_t offset = 0);
/// A matrix with the vector x as its diagonal, or the diagonal of the matrix x. Any dtype.
Tensor diag(const Tensor& x, std::int64_t diagonal = 0);
/// The sum of the main diagonal of a matrix.
Tensor trace(const Tensor& x);
/// Order of the first two dimensions of a grid: those of the vectors, or exchanged.
enum class GridIndexing : std::uint8_t { ij, xy };
/// The coordinates of a grid: tensor i has the elements of vector i along dimension i, with all sizes. Any dtype.
std::vector<Tensor> meshgrid(const std::vector<Tensor>& vectors, GridIndexing indexing = GridIndexing::ij);
/// All combinations of the elements of vectors, (n, number of vectors), or the only vector. Any dtypes, converted to
/// their common one.
Tensor cartesian_prod(const std::vector<Tensor>& vectors);
/// Row and column indices (2, n), i64, of the elements of a matrix on and below, or on and above a diagonal (see tril).
Tensor tril_indices(std::int64_t rows, std::int64_t columns, std::int64_t offset = 0, Device device = {});
Tensor triu_indices(std::int64_t rows, std::int64_t columns, std::int64_t offset = 0, Device device = {});
/// x (...) i64 in 0..num_classes-1 as (..., num_classes) i64: 1 at the class, 0 elsewhere. Only the device
/// can detect a class out of range; it is reported like that of a loss (loss.h).
Tensor one_hot(const Tensor& x, std::int64_t num_classes);
/// Dimensions start_dim..end_dim as one.
Tensor flatten(const Tensor& x, int start_dim = 0, int end_dim = -1);
/// Dimension `dim` as several of the given sizes, one of which may be -1. Any dtype.
Tensor unflatten(const Tensor& x, int dim, const Shape& sizes);

}  // namespace lockstep
