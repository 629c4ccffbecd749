#include "lockstep/ops/internal/checked_args.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "lockstep/runtime/autocast.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/operands.h"
#include "lockstep/runtime/trace.h"

namespace lockstep::checks {

void dims(const char* operation, const char* argument, const Tensor& tensor, int count, const char* layout) {
    if (tensor.dims() != count)
        throw InvalidArgument(fmt::format("{}: {} has {} dimensions, {}; expected {}", operation, argument,
                                          tensor.dims(), tensor.shape().str(), layout));
}

void vector_of(const char* operation, const char* argument, const Tensor& tensor, std::int64_t size, const char* what) {
    if (tensor.defined() && !(tensor.shape() == Shape{size}))
        throw InvalidArgument(fmt::format("{}: {} has shape {}; expected ({},), one for each {}", operation, argument,
                                          tensor.shape().str(), size, what));
}

bool holds(DType dtype, double value) {
    switch (dtype) {
        case DType::boolean: return value == 0 || value == 1;
        case DType::u8: return value >= 0 && value <= std::numeric_limits<std::uint8_t>::max();
        case DType::i32:
            return value >= std::numeric_limits<std::int32_t>::min() &&
                   value <= std::numeric_limits<std::int32_t>::max();
        default: return true;
    }
}

void exact_number(const char* operation, double number, DType dtype) {
    constexpr double exact = 1LL << 53;
    if (!(std::abs(number) < exact))
        throw InvalidArgument(fmt::format(
            "{}: the number {} with a tensor of {} is too large to be exact; expected a tensor, as from Tensor::from",
            operation, number, name_of(dtype)));
}

void number_of(const char* operation, double number, DType dtype) {
    if (is_floating(dtype)) return;
    exact_number(operation, number, dtype);
    if (std::trunc(number) != number || !holds(dtype, number))
        throw InvalidArgument(fmt::format("{}: the number {} with a tensor of {}; expected a number of that dtype",
                                          operation, number, name_of(dtype)));
}

std::uint32_t dim_bits(const char* operation, const Tensor& tensor, const std::vector<int>& dims) {
    if (dims.empty()) return (1u << tensor.dims()) - 1;
    std::uint32_t bits = 0;
    for (const int dim : dims) {
        const std::uint32_t bit = 1u << wrap_dim(dim, tensor.dims(), operation);
        if (bits & bit)
            throw InvalidArgument(fmt::format("{}: dimension {} of {} is listed twice; expected every dimension once",
                                              operation, dim, tensor.shape().str()));
        bits |= bit;
    }
    return bits;
}

void not_rows(const char* operation, const Tensor& tensor, int dim) {
    if (Trace::current() != nullptr && dim == 0 && tensor.is_batch())
        throw InvalidArgument(
            fmt::format("{}: dimension 0 is the batch, of which a shard has only some rows; expected another dimension",
                        operation));
}

}  // namespace lockstep::checks

namespace lockstep {

namespace {

constexpr std::string_view in_16_bits[] = {"addbmm",
                                           "addmm",
                                           "addmv",
                                           "addr",
                                           "baddbmm",
                                           "bmm",
                                           "conv1d",
                                           "conv2d",
                                           "conv3d",
                                           "conv_transpose1d",
                                           "conv_transpose2d",
                                           "conv_transpose3d",
                                           "linear",
                                           "matmul",
                                           "mm",
                                           "mv",
                                           "prelu",
                                           "scaled_dot_product_attention"};

constexpr std::string_view in_f32[] = {"acos",
                                       "asin",
                                       "binary_cross_entropy",
                                       "binary_cross_entropy_with_logits",
                                       "cdist",
                                       "cosh",
                                       "cosine_embedding_loss",
                                       "cosine_similarity",
                                       "cross_entropy",
                                       "ctc_loss",
                                       "cumprod",
                                       "cumsum",
                                       "dice_loss",
                                       "dice_score",
                                       "erfinv",
                                       "exp",
                                       "expm1",
                                       "gaussian_nll_loss",
                                       "group_norm",
                                       "hinge_embedding_loss",
                                       "huber_loss",
                                       "kl_div",
                                       "l1_loss",
                                       "layer_norm",
                                       "log",
                                       "log10",
                                       "log1p",
                                       "log2",
                                       "log_softmax",
                                       "margin_ranking_loss",
                                       "mean",
                                       "mean_loss",
                                       "mse_loss",
                                       "multi_margin_loss",
                                       "multilabel_margin_loss",
                                       "multilabel_soft_margin_loss",
                                       "nll_loss",
                                       "norm",
                                       "normalize",
                                       "pdist",
                                       "poisson_nll_loss",
                                       "pow",
                                       "prod",
                                       "reciprocal",
                                       "rsqrt",
                                       "sinh",
                                       "smooth_l1_loss",
                                       "soft_margin_loss",
                                       "softmax",
                                       "softmin",
                                       "softplus",
                                       "square",
                                       "sum",
                                       "sum_loss",
                                       "sum_over_shards",
                                       "tan",
                                       "triplet_margin_loss",
                                       "triplet_margin_with_distance_loss"};

constexpr std::string_view in_the_widest[] = {"add",   "addcdiv",     "addcmul", "atan2",     "bilinear", "cat",
                                              "cross", "div",         "dot",     "eq",        "ge",       "grid_sample",
                                              "gt",    "le",          "lt",      "maximum",   "minimum",  "mul",
                                              "ne",    "scatter_add", "sub",     "tensordot", "where"};

template <std::size_t n>
bool has(const std::string_view (&list)[n], std::string_view function) {
    return std::find(std::begin(list), std::end(list), function) != std::end(list);
}

/// 0 for bool, 1 for integers, 2 for floats.
int category(DType dtype) { return is_floating(dtype) ? 2 : dtype == DType::boolean ? 0 : 1; }

/// The dtype of tensors of several dimensions, and that of scalars, which counts only if its category is higher.
struct CommonDType {
    std::optional<DType> of_many, of_scalars;

    void take(const Tensor& tensor) {
        std::optional<DType>& dtype = tensor.dims() == 0 ? of_scalars : of_many;
        dtype = dtype ? promote_types(*dtype, tensor.dtype()) : tensor.dtype();
    }
    DType get() const {
        if (!of_many || !of_scalars) return of_many ? *of_many : *of_scalars;
        return category(*of_scalars) > category(*of_many) ? promote_types(*of_many, *of_scalars) : *of_many;
    }
};

/// f32 if the tensors have several dtypes among f32, f16 and bf16. Ignores f64 and integers, which are rejected later.
std::optional<DType> widest(TensorList tensors) {
    std::optional<DType> all;
    for (const Tensor& tensor : tensors) {
        if (!tensor.defined() || !autocast_converts(tensor.dtype())) continue;
        all = all && *all != tensor.dtype() ? DType::f32 : tensor.dtype();
    }
    return all;
}

}  // namespace

std::optional<DType> autocast_dtype(std::string_view function, TensorList tensors) {
    const std::optional<DType> half_dtype = Autocast::dtype();
    if (!half_dtype) return std::nullopt;
    if (has(in_16_bits, function)) return half_dtype;
    if (has(in_f32, function)) return DType::f32;
    if (has(in_the_widest, function)) return widest(tensors);
    return std::nullopt;
}

CheckedArgs::CheckedArgs(const char* function, std::initializer_list<Argument> arguments)
    : call_(function), function_(function) {
    tensors_.reserve(arguments.size());
    for (const Argument& argument : arguments) take(argument);
    convert();
    promote(arguments.begin());
    require_alike(arguments.begin());
    require_one_device();
}

CheckedArgs::CheckedArgs(const char* function, const char* name, TensorList tensors, Dtypes dtypes)
    : call_(function), function_(function) {
    tensors_.reserve(tensors.size());
    recycled::Vector<Argument> arguments;
    arguments.reserve(tensors.size());
    for (const Tensor& tensor : tensors) {
        arguments.push_back(dtypes == Dtypes::promoted ? arg::promoted(name, tensor) : arg::floating(name, tensor));
        take(arguments.back());
    }
    convert();
    promote(arguments.data());
    if (dtypes != Dtypes::floating) require_alike(arguments.data());
    require_one_device();
}

void CheckedArgs::take(const Argument& argument) {
    const Tensor& tensor = argument.tensor;
    if (!tensor.defined()) {
        if (argument.kind != Kind::optional && argument.kind != Kind::parameter)
            throw InvalidArgument(fmt::format("{}: {} is undefined; expected a tensor", function_, argument.name));
    } else if (argument.kind == Kind::floating && !is_floating(tensor.dtype())) {
        throw InvalidArgument(fmt::format("{}: {} {} has dtype {}; expected a floating dtype (use .to(DType::f32))",
                                          function_, argument.name, tensor.shape().str(), name_of(tensor.dtype())));
    } else if (argument.kind == Kind::number && tensor.dtype() == DType::boolean) {
        throw InvalidArgument(
            fmt::format("{}: a tensor has dtype bool; expected a number (use .to(dtype))", function_));
    }
    tensors_.push_back(tensor);
}

void CheckedArgs::convert() {
    const std::optional<DType> dtype = autocast_dtype(function_, tensors_);
    if (!dtype) return;
    for (Tensor& tensor : tensors_)
        if (tensor.defined() && autocast_converts(tensor.dtype())) tensor = Autocast::cast(tensor, *dtype);
}

void CheckedArgs::promote(const Argument* arguments) {
    CommonDType common;
    const auto is_promoted = [](Kind kind) { return kind == Kind::promoted || kind == Kind::real; };
    for (std::size_t i = 0; i < tensors_.size(); ++i)
        if (is_promoted(arguments[i].kind)) common.take(tensors_[i]);
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
        const Kind kind = arguments[i].kind;
        if (!is_promoted(kind)) continue;
        const DType dtype = kind == Kind::real && !is_floating(common.get()) ? DType::f32 : common.get();
        if (tensors_[i].dtype() != dtype) tensors_[i] = tensors_[i].to(dtype);
    }
}

void CheckedArgs::require_alike(const Argument* arguments) const {
    for (std::size_t i = 1; i < tensors_.size(); ++i) {
        const Kind kind = arguments[i].kind;
        if (!tensors_[i].defined() || kind > Kind::number) continue;
        const DType dtype = tensors_[i].dtype(), first = tensors_[0].dtype();
        if (dtype == first || (kind == Kind::parameter && dtype == DType::f32 && is_half_type(first))) continue;
        throw InvalidArgument(fmt::format("{}: {} has dtype {}; expected {} like the others (use .to(dtype))",
                                          function_, arguments[i].name, name_of(dtype), name_of(first)));
    }
}

/// In a trace, tensors without value get their device when the program runs.
void CheckedArgs::require_one_device() const {
    if (Trace::current() != nullptr) return;
    CommonDevice common(ApiScope::name());
    for (const Tensor& tensor : tensors_)
        if (tensor.defined() && !tensor.is_symbolic()) common.take(tensor);
}

}  // namespace lockstep
