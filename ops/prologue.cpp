#include "lockstep/ops/internal/prologue.h"

#include <fmt/format.h>

#include <optional>

#include "lockstep/ops/internal/autocast_lists.h"
#include "lockstep/runtime/autocast.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/common_device.h"
#include "lockstep/runtime/trace.h"

namespace lockstep {

Prologue::Prologue(const char* function, std::initializer_list<Argument> arguments)
    : call_(function), function_(function) {
    tensors_.reserve(arguments.size());
    for (const Argument& argument : arguments) take(argument);
    convert();
    require_alike(arguments.begin());
    require_one_device();
}

Prologue::Prologue(const char* function, const char* name, const std::vector<Tensor>& tensors, Dtypes dtypes)
    : call_(function), function_(function) {
    tensors_.reserve(tensors.size());
    std::vector<Argument> arguments;
    for (const Tensor& tensor : tensors) {
        arguments.push_back(takes::floating(name, tensor));
        take(arguments.back());
    }
    convert();
    if (dtypes == Dtypes::alike) require_alike(arguments.data());
    require_one_device();
}

void Prologue::take(const Argument& argument) {
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

void Prologue::convert() {
    const std::optional<DType> dtype = autocast_dtype(function_, tensors_);
    if (!dtype) return;
    for (Tensor& tensor : tensors_)
        if (tensor.defined() && autocast_converts(tensor.dtype())) tensor = Autocast::cast(tensor, *dtype);
}

void Prologue::require_alike(const Argument* arguments) const {
    for (std::size_t i = 1; i < tensors_.size(); ++i) {
        const Kind kind = arguments[i].kind;
        if (!tensors_[i].defined() || kind == Kind::any) continue;
        const DType dtype = tensors_[i].dtype(), first = tensors_[0].dtype();
        if (dtype == first || (kind == Kind::parameter && dtype == DType::f32 && is_short_float(first))) continue;
        throw InvalidArgument(fmt::format("{}: {} has dtype {}; expected {} like the others (use .to(dtype))",
                                          function_, arguments[i].name, name_of(dtype), name_of(first)));
    }
}

/// In a trace tensors have the device that they get when it is run.
void Prologue::require_one_device() const {
    if (Trace::current() != nullptr) return;
    CommonDevice common(PublicCall::name());
    for (const Tensor& tensor : tensors_)
        if (tensor.defined() && !tensor.is_symbolic()) common.take(tensor);
}

}  // namespace lockstep
