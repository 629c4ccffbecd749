#include "lockstep/ops/recurrent.h"

#include <fmt/format.h>

#include <cmath>
#include <optional>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/internal/checked_args.h"
#include "lockstep/ops/internal/gate_operations.h"
#include "lockstep/ops/internal/initial_values.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/trace.h"

namespace lockstep {

namespace {

/// The product of a cell and its input, (..., features): in a layer, of all positions at once.
Tensor of_inputs(const detail::CellParameters& w, const Tensor& x) { return linear(x, w.weight_ih, w.bias_ih); }

// Steps from the result of of_inputs() for a position, and the state before it.

detail::CellState lstm_step(const detail::CellParameters& w, const Tensor& of_input, const detail::CellState& before) {
    const CellStep after = lstm_cell(of_input, linear(before.hidden, w.weight_hh, w.bias_hh), before.cell);
    return {after.hidden, after.cell};
}

detail::CellState gru_step(const detail::CellParameters& w, const Tensor& of_input, const detail::CellState& before) {
    return {gru_cell(of_input, linear(before.hidden, w.weight_hh, w.bias_hh), before.hidden).hidden, {}};
}

detail::CellState tanh_step(const detail::CellParameters& w, const Tensor& of_input, const detail::CellState& before) {
    return {tanh(of_input + linear(before.hidden, w.weight_hh, w.bias_hh)), {}};
}

detail::CellState relu_step(const detail::CellParameters& w, const Tensor& of_input, const detail::CellState& before) {
    return {relu(of_input + linear(before.hidden, w.weight_hh, w.bias_hh)), {}};
}

/// An initial state of this shape: `given`, or zeros.
Tensor initial(const char* layer, const char* what, const Tensor& given, const Tensor& x, const Shape& shape) {
    if (!given.defined()) return tagged(Tensor::zeros(shape, x.dtype(), x.device()), x.is_batch());
    if (!(given.shape() == shape))
        throw InvalidArgument(
            fmt::format("{}: {} has shape {}; expected {}", layer, what, given.shape().str(), shape.str()));
    return given;
}

}  // namespace

PaddedSequence pack_padded_sequence(const Tensor& given, const Tensor& given_lengths) {
    constexpr const char* name = "pack_padded_sequence";
    const OperandDevice device(given, given);
    const CheckedArgs call(name, {arg::floating("input", given), arg::any("lengths", device.moved(given_lengths))});
    const Tensor &x = call[0], &lengths = call[1];
    if (x.dims() != 3 || x.size(1) < 1)
        throw InvalidArgument(fmt::format(
            "{}: input has shape {}; expected (N, L, features) with at least one position", name, x.shape().str()));
    if (lengths.dtype() != DType::i64 || !(lengths.shape() == Shape{x.size(0)}))
        throw InvalidArgument(
            fmt::format("{}: lengths has dtype {} and shape {}; expected i64 and {}, one for each row", name,
                        name_of(lengths.dtype()), lengths.shape().str(), Shape{x.size(0)}.str()));
    if (Trace::current() != nullptr && x.is_batch() != lengths.is_batch())
        throw InvalidArgument(fmt::format(
            "{}: {} is a batch and {} is not, so every shard would pair its rows with the first lengths; expected two "
            "batches (see tag_batch()) or none",
            name, x.is_batch() ? "input" : "lengths", x.is_batch() ? "lengths" : "input"));

    // Adds 0 for every length from 1 to L, and reports others as indices.
    const std::int64_t positions = x.size(1);
    const Tensor zeros = Tensor::zeros({positions + 1}, DType::i64, x.device());
    PaddedSequence rows;
    rows.lengths_ = lengths + index_select(zeros, 0, masked_fill(lengths, eq(lengths, 0), -1));
    const Tensor all = rows.lengths_.unsqueeze(1) >
                       Tensor::arange(0, static_cast<double>(positions), 1, DType::i64, x.device()).unsqueeze(0);
    for (std::int64_t t = 0; t < positions; ++t) rows.present_.push_back(all.slice(1, t, t + 1));
    rows.mask_ = all.unsqueeze(2);
    rows.data_ = where(rows.mask_, x, 0);
    return rows;
}

RecurrentLayer::RecurrentLayer(const char* layer, int gates, std::int64_t input_size, std::int64_t hidden_size,
                               const RecurrentOptions& options)
    : dropout(require_probability(layer, options.dropout)), structure_(options), layer_(layer) {
    require_positive(layer, "input_size", input_size);
    require_positive(layer, "hidden_size", hidden_size);
    require_positive(layer, "num_layers", options.num_layers);
    const double bound = 1 / std::sqrt(static_cast<double>(hidden_size));
    const int directions = options.bidirectional ? 2 : 1;
    const auto add = [&](const std::string& name, const std::string& suffix, const Shape& shape) {
        names_.push_back(name + suffix);
        parameters_.emplace_back(uniform_values(shape, bound));
    };
    for (int index = 0; index < options.num_layers; ++index)
        for (int direction = 0; direction < directions; ++direction) {
            const std::string suffix = fmt::format("_l{}{}", index, direction == 0 ? "" : "_reverse");
            const std::int64_t rows = gates * hidden_size;
            add("weight_ih", suffix, {rows, index == 0 ? input_size : directions * hidden_size});
            add("weight_hh", suffix, {rows, hidden_size});
            if (!options.bias) continue;
            add("bias_ih", suffix, {rows});
            add("bias_hh", suffix, {rows});
        }
}

detail::CellParameters RecurrentLayer::cell(int index) const {
    const std::size_t per_cell = structure_.bias ? 4 : 2;
    const Parameter* first = parameters_.data() + per_cell * static_cast<std::size_t>(index);
    if (!structure_.bias) return {first[0].tensor(), first[1].tensor(), {}, {}};
    return {first[0].tensor(), first[1].tensor(), first[2].tensor(), first[3].tensor()};
}

RecurrentLayer::Run RecurrentLayer::run(const Tensor& given, const PaddedSequence* rows, const Tensor& h_0,
                                        const Tensor& c_0, bool has_cell, Step step) const {
    detail::require_listed(layer_, training);
    const CheckedArgs call(layer_,
                           {arg::floating("input", given), arg::optional("h_0", h_0), arg::optional("c_0", c_0)});
    const Tensor& x = call[0];
    if (x.dims() != 3 || x.size(2) != input_size() || x.size(1) < 1)
        throw InvalidArgument(fmt::format("{}: input has shape {}; expected (N, L, {}) with at least one position",
                                          layer_, x.shape().str(), input_size()));
    const int directions = structure_.bidirectional ? 2 : 1;
    const Shape states{x.size(0), structure_.num_layers * directions, hidden_size()};
    const Tensor hidden = initial(layer_, "h_0", call[1], x, states);
    const Tensor cells_before = has_cell ? initial(layer_, "c_0", call[2], x, states) : Tensor();

    const auto length = static_cast<std::size_t>(x.size(1));
    // The state of a row without position t does not change: the reverse direction begins at its last position.
    const auto kept = [&](std::size_t t, const Tensor& after, const Tensor& before) {
        return rows == nullptr ? after : where(rows->present_[t], after, before.to(after.dtype()));
    };
    std::vector<Tensor> last_hidden, last_cell;
    Tensor inputs = x;  // (N, L, features), of the next layer
    for (int index = 0; index < structure_.num_layers; ++index) {
        std::vector<Tensor> outputs(length);
        for (int direction = 0; direction < directions; ++direction) {
            const int number = index * directions + direction;
            const detail::CellParameters w = cell(number);
            const Tensor all = of_inputs(w, inputs);
            detail::CellState state{hidden.select(1, number), has_cell ? cells_before.select(1, number) : Tensor()};
            for (std::size_t i = 0; i < length; ++i) {
                const std::size_t t = direction == 0 ? i : length - 1 - i;
                const detail::CellState after = step(w, all.select(1, static_cast<std::int64_t>(t)), state);
                state.hidden = kept(t, after.hidden, state.hidden);
                if (has_cell) state.cell = kept(t, after.cell, state.cell);
                outputs[t] = direction == 0 ? state.hidden : cat({outputs[t], state.hidden}, 1);
            }
            last_hidden.push_back(state.hidden);
            last_cell.push_back(state.cell);
        }
        if (index + 1 < structure_.num_layers && dropout > 0)
            for (Tensor& output : outputs) output = lockstep::dropout(output, dropout, training);
        inputs = stack(outputs, 1);
    }
    return {rows == nullptr ? inputs : where(rows->mask_, inputs, 0), stack(last_hidden, 1),
            has_cell ? stack(last_cell, 1) : Tensor()};
}

LstmResult LSTM::forward(const Tensor& x, const Tensor& h_0, const Tensor& c_0) const {
    const Run made = run(x, nullptr, h_0, c_0, true, lstm_step);
    return {made.output, made.hidden, made.cell};
}

LstmResult LSTM::forward(const PaddedSequence& x, const Tensor& h_0, const Tensor& c_0) const {
    const Run made = run(x.data(), &x, h_0, c_0, true, lstm_step);
    return {made.output, made.hidden, made.cell};
}

GruResult GRU::forward(const Tensor& x, const Tensor& h_0) const {
    const Run made = run(x, nullptr, h_0, {}, false, gru_step);
    return {made.output, made.hidden};
}

GruResult GRU::forward(const PaddedSequence& x, const Tensor& h_0) const {
    const Run made = run(x.data(), &x, h_0, {}, false, gru_step);
    return {made.output, made.hidden};
}

RnnResult RNN::forward(const Tensor& x, const Tensor& h_0) const {
    const Run made = run(x, nullptr, h_0, {}, false, nonlinearity == Nonlinearity::tanh ? tanh_step : relu_step);
    return {made.output, made.hidden};
}

RnnResult RNN::forward(const PaddedSequence& x, const Tensor& h_0) const {
    const Run made = run(x.data(), &x, h_0, {}, false, nonlinearity == Nonlinearity::tanh ? tanh_step : relu_step);
    return {made.output, made.hidden};
}

// ---- cells ------------------------------------------------------------------------------------------------------

namespace {

Tensor cell_values(const char* layer, std::int64_t rows, std::int64_t columns, std::int64_t input_size,
                   std::int64_t hidden_size) {
    require_positive(layer, "input_size", input_size);
    require_positive(layer, "hidden_size", hidden_size);
    const double bound = 1 / std::sqrt(static_cast<double>(hidden_size));
    return uniform_values(columns == 0 ? Shape{rows} : Shape{rows, columns}, bound);
}

}  // namespace

RecurrentCell::RecurrentCell(const char* layer, int gates, std::int64_t input_size, std::int64_t hidden_size, bool bias)
    : weight_ih(cell_values(layer, gates * hidden_size, input_size, input_size, hidden_size)),
      weight_hh(cell_values(layer, gates * hidden_size, hidden_size, input_size, hidden_size)),
      layer_(layer) {
    if (!bias) return;
    bias_ih.emplace(cell_values(layer, gates * hidden_size, 0, input_size, hidden_size));
    bias_hh.emplace(cell_values(layer, gates * hidden_size, 0, input_size, hidden_size));
}

detail::CellParameters RecurrentCell::parameters() const {
    return {weight_ih.tensor(), weight_hh.tensor(), value_or_none(bias_ih), value_or_none(bias_hh)};
}

std::vector<Tensor> RecurrentCell::operands(const Tensor& given, const Tensor& hidden, const Tensor& cell,
                                            bool has_cell) const {
    const CheckedArgs call(layer_,
                           {arg::floating("input", given), arg::optional("h", hidden), arg::optional("c", cell)});
    const Tensor& x = call[0];
    if (x.dims() != 2 || x.size(1) != input_size())
        throw InvalidArgument(
            fmt::format("{}: input has shape {}; expected (N, {})", layer_, x.shape().str(), input_size()));
    const Shape state{x.size(0), hidden_size()};
    return {x, initial(layer_, "h", call[1], x, state), has_cell ? initial(layer_, "c", call[2], x, state) : Tensor()};
}

LstmState LSTMCell::forward(const Tensor& x, const LstmState& before) const {
    const std::vector<Tensor> in = operands(x, before.h, before.c, true);
    const detail::CellParameters w = parameters();
    const detail::CellState after = lstm_step(w, of_inputs(w, in[0]), {in[1], in[2]});
    return {after.hidden, after.cell};
}

Tensor GRUCell::forward(const Tensor& x, const Tensor& before) const {
    const std::vector<Tensor> in = operands(x, before, {}, false);
    const detail::CellParameters w = parameters();
    return gru_step(w, of_inputs(w, in[0]), {in[1], {}}).hidden;
}

Tensor RNNCell::forward(const Tensor& x, const Tensor& before) const {
    const std::vector<Tensor> in = operands(x, before, {}, false);
    const detail::CellParameters w = parameters();
    return (nonlinearity == Nonlinearity::tanh ? tanh_step : relu_step)(w, of_inputs(w, in[0]), {in[1], {}}).hidden;
}

}  // namespace lockstep
