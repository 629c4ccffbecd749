#include "lockstep/ops/internal/sequence.h"

#include <algorithm>
#include <tuple>
#include <type_traits>

#include "lockstep/ops/internal/tensor_operations.h"
#include "lockstep/runtime/internal/core_operations.h"

namespace lockstep {

namespace {

template <class... F>
std::optional<SequenceStep> binary_step(const Operation& operation, const std::tuple<F...>*) {
    std::optional<SequenceStep> step;
    int number = SequenceFunction::binary;
    const auto match = [&](const auto* found) {
        if (found != nullptr) step = SequenceStep{number, 2};
        ++number;
    };
    (match(op_cast<Binary<F>>(operation)), ...);
    return step;
}

template <class... F>
std::optional<SequenceStep> unary_step(const Operation& operation, const std::tuple<F...>*) {
    std::optional<SequenceStep> step;
    int number = 0;
    const auto match = [&]<class Function>(Function, const auto* forward, const auto* backward) {
        if (is_step<Function> && forward != nullptr) step = SequenceStep{SequenceFunction::unary + number, 1};
        if (is_step<Function> && backward != nullptr)
            step = SequenceStep{SequenceFunction::gradient + number, Function::saves == Saves::nothing ? 1 : 2};
        ++number;
    };
    (match(F(), op_cast<Unary<F>>(operation), op_cast<UnaryBackward<F>>(operation)), ...);
    return step;
}

std::optional<SequenceStep> step_of(const Operation& operation) {
    if (const auto* affine = op_cast<Affine>(operation))
        return SequenceStep{SequenceFunction::affine, 1, affine->scale, affine->shift};
    if (const auto* sum = op_cast<Sum>(operation)) return SequenceStep{SequenceFunction::sum, 1, 1, 0, sum->dims};
    if (const auto* fill = op_cast<Fill>(operation)) return SequenceStep{SequenceFunction::fill, 0, 1, fill->value};
    if (op_cast<Accumulate>(operation) != nullptr)
        return SequenceStep{SequenceFunction::binary + static_cast<int>(index_in<functor::Add, BinaryFunctions>()), 2};
    if (auto step = binary_step(operation, list_of<BinaryFunctions>)) return step;
    return unary_step(operation, list_of<UnaryFunctions>);
}

}  // namespace

std::optional<SequenceStep> step_of(const Record& record) {
    const auto step = step_of(*record.operation);
    if (!step || record.out.size() != 1 || record.in.size() != static_cast<std::size_t>(step->inputs))
        return std::nullopt;
    const Operand& y = record.out[0];
    if (!y.buffer || !y.buffer->is_symbolic() || y.meta.numel() == 0 || y.meta.numel() > max_step_elements)
        return std::nullopt;
    if (y.meta.dtype != DType::f32 && y.meta.dtype != DType::f64) return std::nullopt;
    const auto fits = [&](const Operand& operand) {
        const TensorMeta& meta = operand.meta;
        return operand.buffer && !meta.opaque && meta.dtype == y.meta.dtype && meta.shape.dims() <= max_step_dims &&
               meta.bytes() < std::size_t{1} << 31;
    };
    if (!fits(y) || !std::all_of(record.in.begin(), record.in.end(), fits)) return std::nullopt;
    if (step->function == SequenceFunction::sum && record.in[0].meta.numel() > max_step_terms * y.meta.numel())
        return std::nullopt;
    return step;
}

}  // namespace lockstep
