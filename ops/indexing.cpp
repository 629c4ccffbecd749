// Functions that read, add and replace elements at indices, with gradients.
#include <fmt/format.h>

#include <algorithm>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/internal/checked_args.h"
#include "lockstep/ops/internal/indexing_operations.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/api_scope.h"
#include "lockstep/runtime/record.h"
#include "lockstep/runtime/trace.h"

namespace lockstep {

namespace {

void require_index(const char* name, const Tensor& index) {
    if (index.dtype() != DType::i64)
        throw InvalidArgument(fmt::format("{}: index {} has dtype {}; expected i64 (use .to(DType::i64))", name,
                                          index.shape().str(), name_of(index.dtype())));
}

/// Elements of `index` in one row of its dimension 0.
std::int64_t per_row(const Tensor& index) {
    return index.dims() == 0 || index.size(0) == 0 ? 1 : std::max<std::int64_t>(1, index.numel() / index.size(0));
}

Shape with_size(Shape shape, int dim, std::int64_t size) {
    shape[dim] = size;
    return shape;
}

Tensor select(const char* name, const Tensor& x, int dim, const Tensor& index, std::int64_t rows_of_index,
              std::int64_t ignored);

/// The gradient of select(), a sum of the elements of dy with the same index. `saved`: the index.
Tensor select_gradient(const char* name, const Tensor& dy, const TensorMeta& dx, int dim, const Tensor& index,
                       std::int64_t rows_of_index, std::int64_t ignored) {
    const Tensor made = apply_one(IndexSelectBackward{dim, ignored}, {dy, index}, dx);
    if (needs_autograd({dy}))
        add_autograd_node(name, {dy}, {made},
                          BackwardFunction::composed(
                              [=, tag = dy.is_batch(), saved = SavedTensor(index, name)](const auto& gradients) {
                                  const Tensor indices = saved.get();
                                  Tensor up = select(name, gradients[0], dim, indices, rows_of_index, ignored);
                                  if (ignored >= 0) {  // dropped gradients do not matter
                                      Shape along = up.shape();
                                      for (int d = 0; d < along.dims(); ++d) along[d] = d == dim ? up.size(d) : 1;
                                      up = where(eq(indices, ignored).reshape(along), 0, up);
                                  }
                                  return std::vector<Tensor>{tagged(up, tag)};
                              }));
    return made;
}

/// Elements of x along `dim` at the indices of a vector. Gradients of those equal to `ignored` are dropped.
Tensor select(const char* name, const Tensor& x, int dim, const Tensor& index, std::int64_t rows_of_index,
              std::int64_t ignored) {
    const bool batch = dim == 0 ? index.is_batch() : x.is_batch();
    const Tensor y = apply_one(IndexSelect{dim, rows_of_index, index.is_batch()}, {x, index},
                               shaped(x, with_size(x.shape(), dim, index.numel()), batch));
    if (needs_autograd({x}))
        add_autograd_node(
            name, {x}, {y},
            BackwardFunction::composed([=, saved = SavedTensor(index, name), dx = like(x)](const auto& gradients) {
                return std::vector<Tensor>{
                    select_gradient(name, gradients[0], dx, dim, saved.get(), rows_of_index, ignored)};
            }));
    return y;
}

/// Throws InvalidArgument unless `index` has the dimensions of `x`, and no larger sizes except along `dim`.
void require_within(const char* name, const Tensor& index, const char* what, const Tensor& x, int dim) {
    bool fits = index.dims() == x.dims();
    for (int d = 0; fits && d < x.dims(); ++d) fits = d == dim || index.size(d) <= x.size(d);
    if (!fits)
        throw InvalidArgument(
            fmt::format("{}: index {} does not fit {} {}; expected as many dimensions, and sizes that are not larger{}",
                        name, index.shape().str(), what, x.shape().str(),
                        dim < 0 ? std::string() : fmt::format(" except along dimension {}", dim)));
}

/// Throws InvalidArgument if rows of a batch would be paired with those of a tensor that every shard has in whole.
void require_same_rows(const char* name, const Tensor& x, const Tensor& index, int dim) {
    if (Trace::current() == nullptr || dim == 0 || x.is_batch() == index.is_batch()) return;
    throw InvalidArgument(fmt::format(
        "{}: {} is a batch and {} is not, so every shard would pair its rows with the first rows; expected two "
        "batches (see tag_batch()) or none",
        name, x.is_batch() ? "the tensor" : "the index", x.is_batch() ? "the index" : "the tensor"));
}

Tensor gathered(const char* name, const Tensor& x, int dim, const Tensor& index);

/// Sums of elements of `source` at the indices, in a tensor of `shape`.
Tensor scattered(const char* name, const Tensor& source, int dim, const Tensor& index, const Shape& shape, bool batch) {
    const Tensor y =
        apply_one(ScatterSum{dim, per_row(index), index.is_batch()}, {source, index}, shaped(source, shape, batch));
    if (needs_autograd({source}))
        add_autograd_node(name, {source}, {y},
                          BackwardFunction::composed([=, saved = SavedTensor(index, name), origin = source.shape(),
                                                      tag = source.is_batch()](const auto& gradients) {
                              Tensor dx = gathered(name, gradients[0], dim, saved.get());
                              // The index may be smaller than the source, whose other elements have no gradient.
                              for (int d = 0; d < origin.dims(); ++d)
                                  if (dx.size(d) < origin[d]) {
                                      std::vector<std::int64_t> after(static_cast<std::size_t>(2 * (origin.dims() - d)),
                                                                      0);
                                      after.back() = origin[d] - dx.size(d);
                                      dx = pad(dx, after);
                                  }
                              return std::vector<Tensor>{tagged(dx, tag)};
                          }));
    return y;
}

Tensor gathered(const char* name, const Tensor& x, int dim, const Tensor& index) {
    require_same_rows(name, x, index, dim);
    const bool batch = index.is_batch() || (x.is_batch() && dim != 0 && x.size(0) == index.size(0));
    const Tensor y =
        apply_one(Gather{dim, per_row(index), index.is_batch()}, {x, index}, shaped(x, index.shape(), batch));
    if (needs_autograd({x}))
        add_autograd_node(name, {x}, {y},
                          BackwardFunction::composed([=, saved = SavedTensor(index, name), origin = x.shape(),
                                                      tag = x.is_batch()](const auto& gradients) {
                              return std::vector<Tensor>{scattered(name, gradients[0], dim, saved.get(), origin, tag)};
                          }));
    return y;
}

/// For each element of x along `dim`: 1 + the last position of its coordinate in the index, or 0.
Tensor last_position(const Tensor& x, int dim, const Tensor& index) {
    return apply_one(LastPosition{dim, per_row(index), index.is_batch()}, {index},
                     TensorMeta::contiguous(DType::i64, x.shape(), x.is_batch()));
}

/// `source` with zeros at its ends, so that it has at least the sizes of x except along `dim`.
Tensor grown(const Tensor& source, const Tensor& x, int dim) {
    std::vector<std::int64_t> after(static_cast<std::size_t>(2 * x.dims()), 0);
    for (int d = 0; d < x.dims(); ++d)
        if (d != dim)
            after[static_cast<std::size_t>(2 * (x.dims() - 1 - d) + 1)] =
                std::max<std::int64_t>(0, x.size(d) - source.size(d));
    return tagged(pad(source, after), source.is_batch());
}

void require_dtype(const char* name, const Tensor& source, const Tensor& x) {
    if (source.dtype() != x.dtype())
        throw InvalidArgument(fmt::format("{}: src has dtype {}; expected {} like the tensor (use .to(dtype))", name,
                                          name_of(source.dtype()), name_of(x.dtype())));
}

/// x with elements of `source` at the indices.
Tensor replaced(const char* name, const Tensor& x, int dim, const Tensor& index, const Tensor& source) {
    if (index.numel() == 0) return x.clone();
    const Tensor last = last_position(x, dim, index);
    const Tensor chosen = gathered(name, grown(source, x, dim), dim, clamp(last - 1, 0));
    return tagged(where(last > 0, chosen, x), x.is_batch());
}

/// A vector of indices of x as one for every element of `source`. Throws InvalidArgument for sizes that do not match.
Tensor for_each_line(const char* name, const Tensor& x, int dim, const Tensor& index, const Tensor& source) {
    require_index(name, index);
    checks::dims(name, "index", index, 1, "(I)");
    const int along = wrap_dim(dim, source.dims(), name);
    if (x.dims() != source.dims() || source.size(along) != index.size(0))
        throw InvalidArgument(
            fmt::format("{}: src {} with {} indices for the tensor {}; expected equal dimensions, and "
                        "an index for each element of src along dimension {}",
                        name, source.shape().str(), index.size(0), x.shape().str(), along));
    Shape shape;
    for (int i = 0; i < source.dims(); ++i) shape.push_back(i == along ? source.size(along) : 1);
    return tagged(index.reshape(shape).expand(source.shape()), source.is_batch() && along != 0);
}

/// A scalar as a vector with one element.
Tensor with_dimension(const Tensor& x) { return x.dims() == 0 ? x.reshape({1}) : x; }

}  // namespace

Tensor embedding(const Tensor& given_index, const Tensor& given_weight, std::optional<std::int64_t> padding_idx) {
    constexpr const char* name = "embedding";
    const CheckedArgs call(name, {arg::floating("weight", given_weight), arg::any("input", given_index)});
    const Tensor &weight = call[0], &index = call[1];
    require_index(name, index);
    checks::dims(name, "weight", weight, 2, "(num_embeddings, embedding_dim)");
    std::int64_t ignored = -1;
    if (padding_idx) {
        ignored = *padding_idx < 0 ? *padding_idx + weight.size(0) : *padding_idx;
        if (ignored < 0 || ignored >= weight.size(0))
            throw InvalidArgument(fmt::format("{}: padding_idx is {} for {} embeddings; expected {} to {}", name,
                                              *padding_idx, weight.size(0), -weight.size(0), weight.size(0) - 1));
    }
    Shape shape = index.shape();
    shape.push_back(weight.size(1));
    const Tensor all = tagged(index.reshape({index.numel()}), index.is_batch());
    const Tensor rows = select(name, weight, 0, all, per_row(index), ignored);
    return tagged(rows.reshape(shape), index.is_batch());
}

Tensor index_select(const Tensor& given, int dim, const Tensor& given_index) {
    constexpr const char* name = "index_select";
    const CheckedArgs call(name, {arg::any("the tensor", given), arg::any("index", given_index)});
    const Tensor &x = call[0], &index = call[1];
    require_index(name, index);
    if (index.dims() > 1)
        throw InvalidArgument(
            fmt::format("{}: index {} is not a vector; expected one dimension", name, index.shape().str()));
    const Tensor source = with_dimension(x);
    const int along = wrap_dim(dim, source.dims(), name);
    checks::not_rows(ApiScope::name(), source, along);
    const Tensor y = select(name, source, along, with_dimension(index), 1, -1);
    if (x.dims() == 0 && y.numel() == 1) return y.reshape({});
    return y;
}

Tensor gather(const Tensor& given, int dim, const Tensor& given_index) {
    constexpr const char* name = "gather";
    const CheckedArgs call(name, {arg::any("the tensor", given), arg::any("index", given_index)});
    require_index(name, call[1]);
    const Tensor x = with_dimension(call[0]), index = with_dimension(call[1]);
    const int along = wrap_dim(dim, x.dims(), name);
    require_within(name, index, "the tensor", x, along);
    checks::not_rows(name, x, along);
    const Tensor y = gathered(name, x, along, index);
    return call[1].dims() == 0 ? y.reshape({}) : y;
}

Tensor take_along_dim(const Tensor& given, const Tensor& given_index, std::optional<int> dim) {
    constexpr const char* name = "take_along_dim";
    const CheckedArgs call(name, {arg::any("the tensor", given), arg::any("index", given_index)});
    require_index(name, call[1]);
    const Tensor &x = call[0], &index = call[1];
    if (!dim) {
        checks::not_rows(name, x, 0);
        return gathered(name, x.reshape({x.numel()}), 0, index.reshape({index.numel()}));
    }
    if (x.dims() != index.dims() || x.dims() == 0)
        throw InvalidArgument(fmt::format("{}: index {} and the tensor {} differ in dimensions; expected equal numbers",
                                          name, index.shape().str(), x.shape().str()));
    const int along = wrap_dim(*dim, x.dims(), name);
    checks::not_rows(name, x, along);
    Shape of_x = x.shape(), of_index = index.shape();
    of_x[along] = of_index[along] = 1;
    const Shape both = broadcast_shapes(of_x, of_index, name);
    const auto widened = [&](const Tensor& tensor, const Tensor& other) {
        // One row for all rows of a batch counts as a batch.
        const bool own = tensor.is_batch() && (along == 0 || tensor.size(0) == both[0]);
        const bool batch = own || (other.is_batch() && along != 0 && tensor.size(0) == 1 && other.size(0) == both[0]);
        return tagged(tensor.expand(with_size(both, along, tensor.size(along))), batch);
    };
    return gathered(name, widened(x, index), along, widened(index, x));
}

Tensor scatter_add(const Tensor& given, int dim, const Tensor& given_index, const Tensor& given_source) {
    constexpr const char* name = "scatter_add";
    const CheckedArgs call(
        name, {arg::number("the tensor", given), arg::number("src", given_source), arg::any("index", given_index)});
    require_index(name, call[2]);
    const Tensor x = with_dimension(call[0]), source = with_dimension(call[1]), index = with_dimension(call[2]);
    const int along = wrap_dim(dim, x.dims(), name);
    require_within(name, index, "the tensor", x, along);
    require_within(name, index, "src", source, -1);
    checks::not_rows(name, x, along);
    require_same_rows(name, x, index, along);
    require_same_rows(name, source, index, along);
    const bool batch = x.is_batch() || (source.is_batch() && index.is_batch() && along != 0);
    const Tensor y = add(x, scattered(name, source, along, index, x.shape(), batch));
    return call[0].dims() == 0 ? y.reshape({}) : y;
}

Tensor scatter(const Tensor& given, int dim, const Tensor& given_index, const Tensor& given_source) {
    constexpr const char* name = "scatter";
    const CheckedArgs call(
        name, {arg::any("the tensor", given), arg::any("src", given_source), arg::any("index", given_index)});
    require_index(name, call[2]);
    require_dtype(name, call[1], call[0]);
    const Tensor x = with_dimension(call[0]), source = with_dimension(call[1]), index = with_dimension(call[2]);
    const int along = wrap_dim(dim, x.dims(), name);
    require_within(name, index, "the tensor", x, along);
    require_within(name, index, "src", source, -1);
    checks::not_rows(name, x, along);
    require_same_rows(name, x, index, along);
    require_same_rows(name, source, index, along);
    const Tensor y = replaced(name, x, along, index, source);
    return call[0].dims() == 0 ? y.reshape({}) : y;
}

Tensor scatter(const Tensor& given, int dim, const Tensor& given_index, Scalar value) {
    constexpr const char* name = "scatter";
    const CheckedArgs call(name, {arg::any("the tensor", given), arg::any("index", given_index)});
    require_index(name, call[1]);
    checks::number_of(name, value.value(), call[0].dtype());
    const Tensor x = with_dimension(call[0]), index = with_dimension(call[1]);
    const int along = wrap_dim(dim, x.dims(), name);
    require_within(name, index, "the tensor", x, along);
    checks::not_rows(name, x, along);
    require_same_rows(name, x, index, along);
    const Tensor y = masked_fill(x, last_position(x, along, index) > 0, value);
    return call[0].dims() == 0 ? y.reshape({}) : y;
}

Tensor index_copy(const Tensor& given, int dim, const Tensor& given_index, const Tensor& given_source) {
    constexpr const char* name = "index_copy";
    const CheckedArgs call(
        name, {arg::any("the tensor", given), arg::any("src", given_source), arg::any("index", given_index)});
    require_dtype(name, call[1], call[0]);
    const Tensor everywhere = for_each_line(name, call[0], dim, call[2], call[1]);
    return scatter(call[0], wrap_dim(dim, call[1].dims(), name), everywhere, call[1]);
}

Tensor index_fill(const Tensor& given, int dim, const Tensor& given_index, Scalar value) {
    constexpr const char* name = "index_fill";
    const CheckedArgs call(name, {arg::any("the tensor", given), arg::any("index", given_index)});
    require_index(name, call[1]);
    checks::dims(name, "index", call[1], 1, "(I)");
    const Tensor x = with_dimension(call[0]);
    const int along = wrap_dim(dim, x.dims(), name);
    checks::not_rows(name, x, along);
    const Tensor none = Tensor::zeros({x.size(along)}, DType::i64, x.device());
    const Tensor times = scatter_add(none, 0, call[1], ones_like(call[1]));
    Shape shape;
    for (int i = 0; i < x.dims(); ++i) shape.push_back(i == along ? x.size(along) : 1);
    return masked_fill(call[0], (times > 0).reshape(call[0].dims() == 0 ? Shape{} : shape), value);
}

Tensor index_add(const Tensor& given, int dim, const Tensor& given_index, const Tensor& given_source, double alpha) {
    constexpr const char* name = "index_add";
    const CheckedArgs call(
        name, {arg::floating("the tensor", given), arg::floating("src", given_source), arg::any("index", given_index)});
    const Tensor& source = call[1];
    const Tensor everywhere = for_each_line(name, call[0], dim, call[2], source);
    return scatter_add(call[0], wrap_dim(dim, source.dims(), name), everywhere, alpha == 1 ? source : source * alpha);
}

Tensor embedding_bag(const Tensor& input, const Tensor& weight, EmbeddingBagMode mode) {
    constexpr const char* name = "embedding_bag";
    const CheckedArgs call(name, {arg::floating("weight", weight), arg::any("input", input)});
    checks::dims(name, "input", call[1], 2, "(B, L)");
    const Tensor rows = embedding(call[1], call[0]);
    switch (mode) {
        case EmbeddingBagMode::sum: return sum(rows, 1);
        case EmbeddingBagMode::max: return (max)(rows, 1).values;
        case EmbeddingBagMode::mean: break;
    }
    return mean(rows, 1);
}

}  // namespace lockstep
