// Summary of a model's calls, shapes and sizes, like torchinfo's.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/ops/module.h"
#include "lockstep/runtime/dtype.h"
#include "lockstep/runtime/shape.h"

namespace lockstep {

/// An input of `forward`, batch first.
struct SummaryInput {
    // NOLINTNEXTLINE(google-explicit-constructor): a shape converts implicitly
    SummaryInput(const Shape& of_shape, DType of_dtype = DType::f32) : shape(of_shape), dtype(of_dtype) {}
    Shape shape;
    DType dtype;
};

/// One call of a function of the library in `forward`.
struct SummaryRow {
    std::string call;   ///< "conv2d"
    std::string layer;  ///< module whose parameters it uses: "down1.maxpool_conv.1.double_conv.0"; may be empty
    Shape output;
    std::uint64_t bytes = 0;      ///< size of the output, row-major
    std::int64_t parameters = 0;  ///< elements of parameters that no previous row uses
    bool shared = false;          ///< uses parameters of a previous row
};

/// Result of `summary`.
struct ModelSummary {
    std::vector<SummaryRow> rows;  ///< in the order of `forward`
    std::int64_t parameters = 0;   ///< elements; tied parameters count once
    std::int64_t trainable = 0;    ///< elements that require a gradient
    std::uint64_t parameter_bytes = 0, buffer_bytes = 0, input_bytes = 0;
    std::uint64_t result_bytes = 0;   ///< sum over all rows: approximate memory that a training step saves for backward
    std::vector<std::string> unused;  ///< parameters that `forward` does not use

    /// A table, with a line per row and the totals below. Ends with a newline.
    std::string str() const;
};

namespace detail {
/// `forward` is called once, within a trace.
ModelSummary summarise(const std::vector<NamedTensor>& tensors, const std::vector<SummaryInput>& inputs,
                       const std::function<void(const std::vector<Tensor>&)>& forward);

/// Puts all modules of a model in evaluation mode; the destructor restores their modes.
class EvaluationScope {
public:
    template <class Net>
    explicit EvaluationScope(Net& net) {
        struct {
            std::vector<std::pair<bool*, bool>>& modes;
            void tensor(NoName, ModuleTensor&, bool) {}
            void training_flag(NoName, bool& flag) { modes.emplace_back(&flag, std::exchange(flag, false)); }
        } collect{modes_};
        visit_module(NoName(), net, collect);
    }
    ~EvaluationScope() {
        for (const auto& [flag, mode] : modes_) *flag = mode;
    }
    EvaluationScope(const EvaluationScope&) = delete;
    EvaluationScope& operator=(const EvaluationScope&) = delete;

private:
    std::vector<std::pair<bool*, bool>> modes_;
};

template <class Net, std::size_t... Indices>
ModelSummary summarise(Net& net, const std::vector<SummaryInput>& inputs, std::index_sequence<Indices...>) {
    const EvaluationScope evaluation(net);
    return summarise(named_tensors(net), inputs,
                     [&net](const std::vector<Tensor>& given) { static_cast<void>(net.forward(given[Indices]...)); });
}
}  // namespace detail

/// Describes `forward` of a plain module: calls it in evaluation mode with inputs of the given shapes and without
/// values. Nothing is computed, and the model does not change. `summary(net, Shape{1, 3, 160, 240}).str()`. For a
/// wrapper, pass `wrapper.module()`. Throws InvalidArgument as `forward` does, and if `forward` reads values. Views
/// (flatten, transpose) and dropout, which is a no-op in evaluation mode, have no rows.
template <class Net, std::convertible_to<SummaryInput>... Inputs>
ModelSummary summary(Net& net, const Inputs&... inputs) {
    return detail::summarise(net, {SummaryInput(inputs)...}, std::index_sequence_for<Inputs...>());
}

}  // namespace lockstep
