// Text form of tensors.
#include <fmt/format.h>

#include "lockstep/runtime/tensor.h"

namespace lockstep {

namespace {

constexpr std::int64_t full_print_limit = 1000;
constexpr std::int64_t edge = 3;

void print(std::string& text, const std::vector<double>& values, const Tensor& tensor, int dim, std::int64_t first) {
    if (dim == tensor.dims()) {
        const double value = values[static_cast<std::size_t>(first)];
        text += is_floating(tensor.dtype()) ? fmt::format("{:.4f}", value)
                                            : fmt::format("{}", static_cast<std::int64_t>(value));
        return;
    }
    std::int64_t step = 1;
    for (int i = dim + 1; i < tensor.dims(); ++i) step *= tensor.size(i);
    const std::int64_t count = tensor.size(dim);
    const bool shorten = tensor.numel() > full_print_limit && count > 2 * edge;
    text += '[';
    for (std::int64_t i = 0; i < count; ++i) {
        if (shorten && i == edge) {
            text += "..., ";
            i = count - edge;
        }
        print(text, values, tensor, dim + 1, first + i * step);
        if (i + 1 < count) text += ", ";
    }
    text += ']';
}

}  // namespace

std::string Tensor::str() const {
    if (!defined()) return "tensor(undefined)";
    const std::string tail =
        fmt::format("shape={}, dtype={}, device={}", shape().str(), name_of(dtype()), device().str());
    if (is_symbolic()) return fmt::format("tensor(traced, {})", tail);
    std::string text;
    print(text, detach().to(DType::f64).to_vector<double>(), *this, 0, 0);
    return fmt::format("tensor({}, {})", text, tail);
}

}  // namespace lockstep
