// Functions of gates: GLU, and the steps of recurrent layers after their matrix products.
#pragma once

#include "lockstep/ops/internal/unary_functions.h"
#include "lockstep/runtime/host_device.h"
#include "lockstep/runtime/tensor.h"

namespace lockstep {

/// in: x; out: the first half of x along `dim`, times the sigmoid of the second
struct Glu {
    static constexpr const char* name = "glu";
    int dim;
};
/// in: dy, x; out: dx
struct GluBackward {
    static constexpr const char* name = "glu_backward";
    int dim;
};

/// in: from_x (N, 4 H) and from_state (N, 4 H), in blocks for input, forget, cell and output gate, and cell (N, H);
/// out: hidden (N, H), cell (N, H), and the values of the gates (N, 4 H) or undefined
struct LstmCell {
    static constexpr const char* name = "lstm_cell";
};
/// in: gates (N, 4 H), cell before and after the step (N, H), dhidden and dcell (N, H), of which one may be undefined;
/// out: gradient of from_x and of from_state (N, 4 H), and of the cell before (N, H)
struct LstmCellBackward {
    static constexpr const char* name = "lstm_cell_backward";
};

/// in: from_x (N, 3 H) and from_state (N, 3 H), in blocks for reset, update and new gate, and hidden (N, H); out:
/// hidden (N, H), and the values of the gates (N, 3 H) or undefined
struct GruCell {
    static constexpr const char* name = "gru_cell";
};
/// in: gates (N, 3 H), from_state (N, 3 H), hidden before the step and dhidden (N, H); out: gradients of from_x and of
/// from_state (N, 3 H), and of hidden (N, H)
struct GruCellBackward {
    static constexpr const char* name = "gru_cell_backward";
};

/// The state after a step; `cell` of an LSTM only. 16-bit numbers are computed in f32 and rounded once.
struct CellStep {
    Tensor hidden, cell;
};
CellStep lstm_cell(const Tensor& from_x, const Tensor& from_state, const Tensor& cell);
CellStep gru_cell(const Tensor& from_x, const Tensor& from_state, const Tensor& hidden);

namespace element {

/// Values of the gates of one element of an LSTM, or gradients of their arguments.
template <class T>
struct LstmGates {
    T input, forget, cell, output;
};
template <class T>
LOCKSTEP_HD_INLINE LstmGates<T> lstm_gates(T input, T forget, T cell, T output) {
    const functor::Sigmoid sigmoid;
    return {sigmoid.value(input), sigmoid.value(forget), functor::Tanh().value(cell), sigmoid.value(output)};
}
/// `dcell` becomes the gradient of the cell before the step.
template <class T>
LOCKSTEP_HD_INLINE LstmGates<T> lstm_gradient(const LstmGates<T>& gates, T before, T after, T dhidden, T& dcell) {
    const functor::Sigmoid sigmoid;
    const functor::Tanh tanh;
    const T shown = tanh.value(after), all = dcell + tanh.gradient(dhidden * gates.output, shown);
    dcell = all * gates.forget;
    return {sigmoid.gradient(all * gates.cell, gates.input), sigmoid.gradient(all * before, gates.forget),
            tanh.gradient(all * gates.input, gates.cell), sigmoid.gradient(dhidden * shown, gates.output)};
}

}  // namespace element

}  // namespace lockstep
