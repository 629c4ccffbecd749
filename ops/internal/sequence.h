// Small operations on a few elements, of which one kernel performs many, one after the other.
#pragma once

#include <cstdint>
#include <optional>
#include <tuple>
#include <type_traits>
#include <vector>

#include "lockstep/ops/internal/arithmetic.h"
#include "lockstep/ops/internal/type_list.h"
#include "lockstep/ops/internal/unary_functions.h"
#include "lockstep/runtime/record.h"

namespace lockstep {

/// Numbers of the functions that a step may compute: the three named here, those in the lists BinaryFunctions and
/// UnaryFunctions, and the gradients of the latter.
struct SequenceFunction {
    static constexpr int affine = 0;  ///< scale * a + shift
    static constexpr int sum = 1;     ///< over the dimensions of `dims`, in the order of memory
    static constexpr int fill = 2;    ///< shift
    static constexpr int binary = 3;
    static constexpr int unary = binary + static_cast<int>(std::tuple_size_v<BinaryFunctions>);
    static constexpr int gradient = unary + static_cast<int>(std::tuple_size_v<UnaryFunctions>);
};

/// Whether a function of one number may be a step: it has no attributes, and not the large code of sine and cosine,
/// which would take registers and stack of the kernel for all other steps.
template <class F>
inline constexpr bool is_step =
    std::is_empty_v<F> && !std::is_same_v<F, functor::Sin> && !std::is_same_v<F, functor::Cos>;

/// One small operation.
struct SequenceStep {
    int function = 0;
    int inputs = 1;
    double scale = 1, shift = 0;
    std::uint32_t dims = 0;
};

/// in: the inputs of all steps, in their order; out: the result of each step. A step may read the results of those
/// before it. Results have the bits of the operations that the steps stand for.
struct Sequence {
    static constexpr const char* name = "sequence";
    std::vector<SequenceStep> steps;
};

/// Limits of a step: elements of its result, elements of a sum, dimensions.
constexpr std::int64_t max_step_elements = 2048;
constexpr std::int64_t max_step_terms = 16;
constexpr int max_step_dims = 4;

/// The record as a step: an elementwise operation or a sum of f32 or f64, within the limits, of strided tensors.
std::optional<SequenceStep> step_of(const Record& record);

}  // namespace lockstep
