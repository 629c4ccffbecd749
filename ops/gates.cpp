#include "lockstep/ops/functional.h"
#include "lockstep/ops/internal/checked_args.h"
#include "lockstep/ops/internal/gate_operations.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/record.h"

namespace lockstep {

namespace {

Tensor sum_of_defined(const Tensor& a, const Tensor& b) { return !a.defined() ? b : !b.defined() ? a : a + b; }

/// Gradient of tanh, or of the sigmoid, whose result is y.
Tensor through_tanh(const Tensor& dy, const Tensor& y) { return dy * (1.0 - square(y)); }
Tensor through_sigmoid(const Tensor& dy, const Tensor& y) { return dy * ((1.0 - y) * y); }

bool any_batch(TensorList tensors) {
    bool batch = false;
    for (const Tensor& tensor : tensors) batch = batch || tensor.is_batch();
    return batch;
}

// Gradients of steps by functions with gradients. The first output of a step, on which these depend, is the values of
// its gates: its gradient is defined when gradients are differentiated.

/// `gradients`: of the gates, hidden and cell.
std::vector<Tensor> differentiable_lstm(const Tensor& gates, const Tensor& before,
                                        const std::vector<Tensor>& gradients) {
    const std::vector<Tensor> gate = chunk(gates, 4, 1);
    const Tensor shown = tanh(gate[1] * before + gate[0] * gate[2]);
    const Tensor dhidden = gradients[1].defined() ? gradients[1] : zeros_like(shown);
    const Tensor dcell = sum_of_defined(gradients[2], through_tanh(dhidden * gate[3], shown));
    std::vector<Tensor> of_gates{dcell * gate[2], dcell * before, dcell * gate[0], dhidden * shown};
    if (gradients[0].defined()) {
        const std::vector<Tensor> own = chunk(gradients[0], 4, 1);
        for (std::size_t i = 0; i < 4; ++i) of_gates[i] = of_gates[i] + own[i];
    }
    for (std::size_t i = 0; i < 4; ++i)
        of_gates[i] = i == 2 ? through_tanh(of_gates[i], gate[i]) : through_sigmoid(of_gates[i], gate[i]);
    return {cat(of_gates, 1), dcell * gate[1]};
}

/// `gradients`: of the gates and hidden.
std::vector<Tensor> differentiable_gru(const Tensor& gates, const Tensor& from_state, const Tensor& before,
                                       const std::vector<Tensor>& gradients) {
    const std::vector<Tensor> gate = chunk(gates, 3, 1),
                              own = gradients[0].defined() ? chunk(gradients[0], 3, 1) : std::vector<Tensor>(3);
    const Tensor &reset = gate[0], &update = gate[1], &next = gate[2];
    const Tensor dhidden = gradients[1].defined() ? gradients[1] : zeros_like(before);
    const Tensor dnext = through_tanh(sum_of_defined(dhidden - dhidden * update, own[2]), next);
    const Tensor dupdate = through_sigmoid(sum_of_defined(dhidden * (before - next), own[1]), update);
    const Tensor dreset = through_sigmoid(sum_of_defined(dnext * chunk(from_state, 3, 1)[2], own[0]), reset);
    return {cat({dreset, dupdate, dnext}, 1), cat({dreset, dupdate, dnext * reset}, 1), dhidden * update};
}

}  // namespace

CellStep lstm_cell(const Tensor& given_x, const Tensor& given_state, const Tensor& given_cell) {
    constexpr const char* name = LstmCell::name;
    const CheckedArgs call(
        name, {arg::promoted("the product of the input", given_x),
               arg::promoted("the product of the state", given_state), arg::promoted("the cell", given_cell)});
    const Tensor &from_x = call[0], &from_state = call[1], &cell = call[2];
    const bool with_backward = needs_autograd({from_x, from_state, cell});
    const bool batch = any_batch({from_x, from_state, cell});
    const Output state = shaped(cell, cell.shape(), batch);
    const auto made = apply(make_operation(LstmCell{}), {from_x, from_state, cell},
                            {state, state, with_backward ? Output(shaped(cell, from_x.shape(), batch)) : Output()});
    if (!with_backward) return {made[0], made[1]};

    const bool tags[] = {from_x.is_batch(), from_state.is_batch(), cell.is_batch()};
    add_autograd_node(
        name, {from_x, from_state, cell}, {made[2], made[0], made[1]},
        BackwardFunction::composed(
            [tags, of_gates = shaped(cell, from_x.shape(), batch), of_cell = shaped(cell, cell.shape(), batch),
             gates = SavedTensor(made[2], name, SavedTensor::Role::output), before = SavedTensor(cell, name),
             after = SavedTensor(made[1], name, SavedTensor::Role::output)](const auto& given) {
                const auto made_by_step = [&] {
                    if (grad_enabled() || given[0].defined())
                        return differentiable_lstm(gates.get(), before.get(), given);
                    return apply(make_operation(LstmCellBackward{}),
                                 {gates.get(), before.get(), after.get(), given[1], given[2]}, {of_gates, of_cell});
                }();
                return std::vector<Tensor>{tagged(made_by_step[0], tags[0]), tagged(made_by_step[0], tags[1]),
                                           tagged(made_by_step[1], tags[2])};
            }));
    return {made[0], made[1]};
}

CellStep gru_cell(const Tensor& given_x, const Tensor& given_state, const Tensor& given_hidden) {
    constexpr const char* name = GruCell::name;
    const CheckedArgs call(
        name, {arg::promoted("the product of the input", given_x),
               arg::promoted("the product of the state", given_state), arg::promoted("the state", given_hidden)});
    const Tensor &from_x = call[0], &from_state = call[1], &hidden = call[2];
    const bool with_backward = needs_autograd({from_x, from_state, hidden});
    const bool batch = any_batch({from_x, from_state, hidden});
    const TensorMeta of_gates = shaped(hidden, from_x.shape(), batch), of_state = shaped(hidden, hidden.shape(), batch);
    const auto made = apply(make_operation(GruCell{}), {from_x, from_state, hidden},
                            {of_state, with_backward ? Output(of_gates) : Output()});
    if (!with_backward) return {made[0], {}};

    const bool tags[] = {from_x.is_batch(), from_state.is_batch(), hidden.is_batch()};
    add_autograd_node(
        name, {from_x, from_state, hidden}, {made[1], made[0]},
        BackwardFunction::composed(
            [tags, of_gates, of_state, gates = SavedTensor(made[1], name, SavedTensor::Role::output),
             product = SavedTensor(from_state, name), before = SavedTensor(hidden, name)](const auto& given) {
                const auto made_by_step = [&] {
                    if (grad_enabled() || given[0].defined())
                        return differentiable_gru(gates.get(), product.get(), before.get(), given);
                    return apply(make_operation(GruCellBackward{}),
                                 {gates.get(), product.get(), before.get(), given[1]}, {of_gates, of_gates, of_state});
                }();
                return std::vector<Tensor>{tagged(made_by_step[0], tags[0]), tagged(made_by_step[1], tags[1]),
                                           tagged(made_by_step[2], tags[2])};
            }));
    return {made[0], {}};
}

}  // namespace lockstep
