#include "lockstep/ops/internal/checks.h"

#include <fmt/format.h>

#include "lockstep/runtime/error.h"

namespace lockstep::checks {

void defined(const char* operation, const char* argument, const Tensor& tensor) {
    if (!tensor.defined())
        throw InvalidArgument(fmt::format("{}: {} is undefined; pass a tensor", operation, argument));
}

void floating(const char* operation, const char* argument, const Tensor& tensor) {
    defined(operation, argument, tensor);
    if (tensor.dtype() != DType::f32 && tensor.dtype() != DType::f64)
        throw InvalidArgument(fmt::format("{}: {} {} is of dtype {}; convert it with .to(DType::f32)", operation,
                                          argument, tensor.shape().str(), name_of(tensor.dtype())));
}

void dims(const char* operation, const char* argument, const Tensor& tensor, int count, const char* layout) {
    if (tensor.dims() != count)
        throw InvalidArgument(fmt::format("{}: {} has {} dimensions, {}, but must be {}", operation, argument,
                                          tensor.dims(), tensor.shape().str(), layout));
}

void same_dtype(const char* operation, const char* argument, const Tensor& tensor, const Tensor& reference) {
    if (tensor.defined() && tensor.dtype() != reference.dtype())
        throw InvalidArgument(
            fmt::format("{}: {} is of dtype {} and not {} like the others; convert it with .to(dtype)", operation,
                        argument, name_of(tensor.dtype()), name_of(reference.dtype())));
}

void vector_of(const char* operation, const char* argument, const Tensor& tensor, std::int64_t size, const char* what) {
    if (tensor.defined() && !(tensor.shape() == Shape{size}))
        throw InvalidArgument(fmt::format("{}: {} is {} but must be ({},), one for each {}", operation, argument,
                                          tensor.shape().str(), size, what));
}

}  // namespace lockstep::checks
