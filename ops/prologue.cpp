#include "lockstep/ops/internal/prologue.h"

#include <fmt/format.h>

#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/common_device.h"
#include "lockstep/runtime/trace.h"

namespace lockstep {

Prologue::Prologue(const char* function, std::initializer_list<Argument> arguments)
    : call_(function), function_(function) {
    tensors_.reserve(arguments.size());
    for (const Argument& argument : arguments) take(argument, Dtypes::alike);
    require_one_device();
}

Prologue::Prologue(const char* function, const char* name, const std::vector<Tensor>& tensors, Dtypes dtypes)
    : call_(function), function_(function) {
    tensors_.reserve(tensors.size());
    for (const Tensor& tensor : tensors) take(takes::floating(name, tensor), dtypes);
    require_one_device();
}

void Prologue::take(const Argument& argument, Dtypes dtypes) {
    const Tensor& tensor = argument.tensor;
    if (!tensor.defined()) {
        if (argument.kind != Kind::optional)
            throw InvalidArgument(fmt::format("{}: {} is undefined; pass a tensor", function_, argument.name));
    } else if (argument.kind == Kind::floating && tensor.dtype() != DType::f32 && tensor.dtype() != DType::f64) {
        throw InvalidArgument(fmt::format("{}: {} {} is of dtype {}; convert it with .to(DType::f32)", function_,
                                          argument.name, tensor.shape().str(), name_of(tensor.dtype())));
    } else if (argument.kind == Kind::number && tensor.dtype() == DType::boolean) {
        throw InvalidArgument(fmt::format("{}: a tensor of dtype bool; convert it with .to(dtype)", function_));
    } else if (argument.kind != Kind::any && dtypes == Dtypes::alike && !tensors_.empty() &&
               tensor.dtype() != tensors_[0].dtype()) {
        throw InvalidArgument(
            fmt::format("{}: {} is of dtype {} and not {} like the others; convert it with .to(dtype)", function_,
                        argument.name, name_of(tensor.dtype()), name_of(tensors_[0].dtype())));
    }
    tensors_.push_back(tensor);
}

/// In a trace tensors have the device that they get when it is run.
void Prologue::require_one_device() const {
    if (Trace::current() != nullptr) return;
    CommonDevice common(PublicCall::name());
    for (const Tensor& tensor : tensors_)
        if (tensor.defined() && !tensor.is_symbolic()) common.take(tensor);
}

}  // namespace lockstep
