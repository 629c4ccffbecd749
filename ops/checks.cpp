#include "lockstep/ops/internal/checks.h"

#include <fmt/format.h>

#include "lockstep/runtime/error.h"

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

}  // namespace lockstep::checks
