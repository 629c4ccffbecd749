// Mixed precision: functions that benefit from 16-bit floats compute in them, and functions that need f32 use f32.
#pragma once

#include <memory>
#include <optional>

#include "lockstep/runtime/dtype.h"
#include "lockstep/runtime/tensor.h"

namespace lockstep {

/// Scope in which functions choose their compute dtype, as in torch.autocast. Convolutions and matrix products use f16
/// or bf16. Losses, softmax, exp, log, layer_norm and sums use f32. Functions of several tensors use the widest dtype
/// of their inputs. All others use the dtype of their input (docs/mixed-precision.md has the lists). Parameters,
/// gradients and optimizers stay in f32, and f64 tensors are not converted. Backward computes in the dtypes of forward,
/// inside or outside the scope. A leaf that requires a gradient is converted once per scope, and again after a write to
/// it.
///
///     ls::Autocast scope(ls::DType::bf16);
///     ls::Tensor logits = net.forward(images);  // bf16
///     ls::Tensor loss = ls::cross_entropy(logits, labels).value();  // f32
///
/// Applies to the thread that created it; the innermost scope counts. A wrapper's step inside a scope is traced with
/// it; see also EngineOptions::autocast.
class Autocast {
public:
    /// std::nullopt disables autocast within the scope. Throws InvalidArgument for a dtype other than f16 and bf16.
    explicit Autocast(std::optional<DType> dtype);
    ~Autocast();
    Autocast(const Autocast&) = delete;
    Autocast& operator=(const Autocast&) = delete;

    /// Compute dtype of the current scope; std::nullopt outside of a scope.
    static std::optional<DType> dtype();
    /// Compute dtype of the current scope, or `otherwise` outside of a scope.
    static std::optional<DType> dtype_or(std::optional<DType> otherwise);
    /// `tensor` converted to `dtype`. The current scope caches conversions of leaves that require a gradient.
    static Tensor cast(const Tensor& tensor, DType dtype);

private:
    struct State;
    static State*& current();
    std::unique_ptr<State> state_;
};

}  // namespace lockstep
