// Recurrent layers. Names, shapes and initial distributions of the parameters are PyTorch's. Dimension 0 is always the
// batch, as with batch_first=True in PyTorch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/ops/module.h"
#include "lockstep/runtime/signature.h"

namespace lockstep {

namespace detail {
/// Parameters of one cell: without biases, these are undefined.
struct CellParameters {
    Tensor weight_ih, weight_hh, bias_ih, bias_hh;
};
/// State of one cell, (N, hidden_size) each; a GRU has no `cell`.
struct CellState {
    Tensor hidden, cell;
};
}  // namespace detail

/// Options of RNN, GRU and LSTM.
struct RecurrentOptions {
    int num_layers = 1;
    bool bias = true;
    double dropout = 0;  ///< probability with which outputs of all layers but the last are set to 0 in training
    bool bidirectional = false;
};

/// Rows of different lengths, padded to one: the result of pack_padded_sequence, and input of LSTM, GRU and RNN.
class PaddedSequence {
public:
    const Tensor& data() const { return data_; }        ///< (N, L, features), 0 from a row's length on
    const Tensor& lengths() const { return lengths_; }  ///< (N) i64

private:
    friend PaddedSequence pack_padded_sequence(const Tensor& x, const Tensor& lengths);
    friend class RecurrentLayer;
    PaddedSequence() = default;

    Tensor data_, lengths_;
    std::vector<Tensor> present_;  // (N, 1) bool for each position: whether the row has it
    Tensor mask_;                  // the same as (N, L, 1)
};

/// Rows of x (N, L, features) with their lengths (N) i64, 1 to L, in any order: torch.nn.utils.rnn.pack_padded_sequence
/// with batch_first=True and enforce_sorted=False. Shapes do not depend on the lengths: the result is x with 0 from
/// each row's length on, also in place of NaN, and the gradient of x is 0 there. Only the device can detect a length
/// out of range; it is reported like an index (functional.h), and a length of 0 as -1. Lengths on the host are copied
/// to the device of x. Throws InvalidArgument for other shapes and dtypes.
PaddedSequence pack_padded_sequence(const Tensor& x, const Tensor& lengths);

/// Base of LSTM, GRU and RNN. It has the parameters weight_ih_l0, weight_hh_l0, bias_ih_l0, bias_hh_l0, ... of every
/// layer and direction, with a block of hidden_size rows for each gate. All ~ U(-1/sqrt(hidden_size),
/// 1/sqrt(hidden_size)).
class RecurrentLayer {
public:
    double dropout;
    bool training = true;

    template <class Visit>
    void lockstep_members(Visit&& visit) {
        for (std::size_t i = 0; i < parameters_.size(); ++i) visit(names_[i], parameters_[i]);
    }
    void describe(Signature& signature) const { signature.add(dropout); }

    std::int64_t input_size() const { return parameters_[0].tensor().size(1); }
    std::int64_t hidden_size() const { return parameters_[1].tensor().size(1); }

protected:
    /// `layer`: its name in messages. Throws InvalidArgument.
    RecurrentLayer(const char* layer, int gates, std::int64_t input_size, std::int64_t hidden_size,
                   const RecurrentOptions& options);

    using Step = detail::CellState (*)(const detail::CellParameters& parameters, const Tensor& of_input,
                                       const detail::CellState& before);
    /// Outputs (N, L, ...), and states after the last step.
    struct Run {
        Tensor output, hidden, cell;
    };
    /// All layers and directions over x (N, L, input_size), by steps of the cells. States that are undefined begin at
    /// 0. `rows`: x with the lengths of its rows, or null.
    Run run(const Tensor& x, const PaddedSequence* rows, const Tensor& h_0, const Tensor& c_0, bool has_cell,
            Step step) const;

private:
    detail::CellParameters cell(int index) const;

    RecurrentOptions structure_;
    std::vector<Parameter> parameters_;
    std::vector<std::string> names_;
    const char* layer_;
};

/// Result of LSTM. D is 2 if bidirectional, else 1.
struct LstmResult {
    Tensor output;  ///< (N, L, D hidden): of the last layer at every position
    Tensor h_n;  ///< (N, layers D, hidden): the last state of every layer and direction; PyTorch: (layers D, N, hidden)
    Tensor c_n;  ///< the same of the cells
};

/// torch.nn.LSTM.
struct LSTM : RecurrentLayer {
    /// Throws InvalidArgument.
    LSTM(std::int64_t input_size, std::int64_t hidden_size, const RecurrentOptions& how = {})
        : RecurrentLayer("LSTM", 4, input_size, hidden_size, how) {}

    /// x (N, L, input_size). States (N, layers D, hidden_size) default to 0. Throws InvalidArgument for other shapes.
    LstmResult forward(const Tensor& x, const Tensor& h_0 = {}, const Tensor& c_0 = {}) const;
    /// Rows of different lengths. Their output is 0 from their length on, as pad_packed_sequence of PyTorch returns it.
    /// The last states, and the first ones of the reverse direction, are those at a row's own last position.
    LstmResult forward(const PaddedSequence& x, const Tensor& h_0 = {}, const Tensor& c_0 = {}) const;
    LstmResult operator()(const Tensor& x, const Tensor& h_0 = {}, const Tensor& c_0 = {}) const {
        return forward(x, h_0, c_0);
    }
    LstmResult operator()(const PaddedSequence& x, const Tensor& h_0 = {}, const Tensor& c_0 = {}) const {
        return forward(x, h_0, c_0);
    }
};

/// Result of GRU.
struct GruResult {
    Tensor output;  ///< (N, L, D hidden)
    Tensor h_n;     ///< (N, layers D, hidden)
};

/// torch.nn.GRU; see LSTM.
struct GRU : RecurrentLayer {
    /// Throws InvalidArgument.
    GRU(std::int64_t input_size, std::int64_t hidden_size, const RecurrentOptions& how = {})
        : RecurrentLayer("GRU", 3, input_size, hidden_size, how) {}

    GruResult forward(const Tensor& x, const Tensor& h_0 = {}) const;
    GruResult forward(const PaddedSequence& x, const Tensor& h_0 = {}) const;
    GruResult operator()(const Tensor& x, const Tensor& h_0 = {}) const { return forward(x, h_0); }
    GruResult operator()(const PaddedSequence& x, const Tensor& h_0 = {}) const { return forward(x, h_0); }
};

/// Function of the sums in RNN and RNNCell.
enum class Nonlinearity : std::uint8_t { tanh, relu };

/// Result of RNN.
struct RnnResult {
    Tensor output;  ///< (N, L, D hidden)
    Tensor h_n;     ///< (N, layers D, hidden)
};

/// torch.nn.RNN: h = tanh(weight_ih x + bias_ih + weight_hh h + bias_hh), or ReLU in place of tanh; see LSTM.
struct RNN : RecurrentLayer {
    /// Throws InvalidArgument.
    RNN(std::int64_t input_size, std::int64_t hidden_size, const RecurrentOptions& how = {},
        Nonlinearity function = Nonlinearity::tanh)
        : RecurrentLayer("RNN", 1, input_size, hidden_size, how), nonlinearity(function) {}

    Nonlinearity nonlinearity;

    RnnResult forward(const Tensor& x, const Tensor& h_0 = {}) const;
    RnnResult forward(const PaddedSequence& x, const Tensor& h_0 = {}) const;
    RnnResult operator()(const Tensor& x, const Tensor& h_0 = {}) const { return forward(x, h_0); }
    RnnResult operator()(const PaddedSequence& x, const Tensor& h_0 = {}) const { return forward(x, h_0); }
    void describe(Signature& signature) const {
        RecurrentLayer::describe(signature);
        signature.add(nonlinearity);
    }
};

/// Base of LSTMCell, GRUCell and RNNCell, which compute one position. All parameters ~ U(-1/sqrt(hidden_size),
/// 1/sqrt(hidden_size)).
struct RecurrentCell {
    Parameter weight_ih;                        ///< (gates hidden_size, input_size)
    Parameter weight_hh;                        ///< (gates hidden_size, hidden_size)
    std::optional<Parameter> bias_ih, bias_hh;  ///< (gates hidden_size)
    LOCKSTEP_MEMBERS(weight_ih, weight_hh, bias_ih, bias_hh)

    std::int64_t input_size() const { return weight_ih->size(1); }
    std::int64_t hidden_size() const { return weight_hh->size(1); }

protected:
    /// `layer`: its name in messages. Throws InvalidArgument.
    RecurrentCell(const char* layer, int gates, std::int64_t input_size, std::int64_t hidden_size, bool bias);

    detail::CellParameters parameters() const;
    /// x and the states, checked. States that are undefined begin at 0.
    std::vector<Tensor> operands(const Tensor& x, const Tensor& hidden, const Tensor& cell, bool has_cell) const;

private:
    const char* layer_;
};

/// State of an LSTM cell.
struct LstmState {
    Tensor h, c;  ///< (N, hidden_size) each
};

/// torch.nn.LSTMCell.
struct LSTMCell : RecurrentCell {
    LSTMCell(std::int64_t input_size, std::int64_t hidden_size, bool bias = true)
        : RecurrentCell("LSTMCell", 4, input_size, hidden_size, bias) {}

    /// x (N, input_size). The state before defaults to 0; returns the state after. Throws InvalidArgument for other
    /// shapes.
    LstmState forward(const Tensor& x, const LstmState& before = {}) const;
    LstmState operator()(const Tensor& x, const LstmState& before = {}) const { return forward(x, before); }
};

/// torch.nn.GRUCell; see LSTMCell.
struct GRUCell : RecurrentCell {
    GRUCell(std::int64_t input_size, std::int64_t hidden_size, bool bias = true)
        : RecurrentCell("GRUCell", 3, input_size, hidden_size, bias) {}

    Tensor forward(const Tensor& x, const Tensor& before = {}) const;
    Tensor operator()(const Tensor& x, const Tensor& before = {}) const { return forward(x, before); }
};

/// torch.nn.RNNCell; see LSTMCell and RNN.
struct RNNCell : RecurrentCell {
    RNNCell(std::int64_t input_size, std::int64_t hidden_size, bool bias = true,
            Nonlinearity function = Nonlinearity::tanh)
        : RecurrentCell("RNNCell", 1, input_size, hidden_size, bias), nonlinearity(function) {}

    Nonlinearity nonlinearity;

    Tensor forward(const Tensor& x, const Tensor& before = {}) const;
    Tensor operator()(const Tensor& x, const Tensor& before = {}) const { return forward(x, before); }
    void describe(Signature& signature) const { signature.add(nonlinearity); }
};

}  // namespace lockstep
