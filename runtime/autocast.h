// Mixed precision: functions that gain from 16-bit floats compute in them, those that need f32 do so.
#pragma once

#include <memory>
#include <optional>

#include "lockstep/runtime/dtype.h"
#include "lockstep/runtime/tensor.h"

namespace lockstep {

/// Scope in which functions choose the dtype that they compute in, as in torch.autocast: convolutions and matrix
/// products take f16 or bf16, losses, softmax, exp, log, layer_norm and sums f32, functions of several tensors the
/// widest dtype of theirs, and all others what they are given (docs/mixed-precision.md has the lists). Parameters,
/// gradients and optimizers stay in f32, f64 is left alone. Backward computes in the dtypes of forward, inside the
/// scope or outside. A leaf that requires a gradient is converted once in a scope, and again when it was written.
///
///     ls::Autocast scope(ls::DType::bf16);
///     ls::Tensor logits = net.forward(images);  // bf16
///     ls::Tensor loss = ls::cross_entropy(logits, labels).value();  // f32
///
/// Holds for the thread that made it; the last one counts. A wrapper's step inside one is traced with it, see also
/// EngineOptions::autocast.
class Autocast {
public:
    /// Nothing: functions compute in what they are given. Throws InvalidArgument for a dtype other than f16 and bf16.
    explicit Autocast(std::optional<DType> dtype);
    ~Autocast();
    Autocast(const Autocast&) = delete;
    Autocast& operator=(const Autocast&) = delete;

    /// What is computed in, here; nothing outside of a scope.
    static std::optional<DType> dtype();
    /// Of the scope here, or `otherwise` outside of any.
    static std::optional<DType> dtype_or(std::optional<DType> otherwise);
    /// `tensor` in `dtype`, as the scope here has it: leaves that require a gradient are remembered.
    static Tensor cast(const Tensor& tensor, DType dtype);

private:
    struct State;
    static State*& current();
    std::unique_ptr<State> state_;
};

}  // namespace lockstep
