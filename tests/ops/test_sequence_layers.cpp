// Recurrent and transformer layers against loops in double precision, their gradients against finite differences.
#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/ops/internal/gate_operations.h"
#include "lockstep/ops/recurrent.h"
#include "lockstep/ops/transformer.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/random.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/messages.h"
#include "lockstep/tests/ops/op_table.h"

using namespace lockstep;
using test::Array;
using test::message_of;
using test::Sizes;
using test::to_array;

namespace {

using Row = std::vector<double>;
using Rows = std::vector<Row>;

double sigmoid_of(double x) { return 1 / (1 + std::exp(-x)); }

/// weight (out, in) times x, plus bias.
Row affine(const Array& weight, const Array& bias, const Row& x) {
    Row y(static_cast<std::size_t>(weight.shape[0]));
    const std::ptrdiff_t in = weight.shape[1];
    for (std::ptrdiff_t o = 0; o < weight.shape[0]; ++o) {
        double sum = bias.size() > 0 ? bias[o] : 0;
        for (std::ptrdiff_t i = 0; i < in; ++i) sum += weight[o * in + i] * x[static_cast<std::size_t>(i)];
        y[static_cast<std::size_t>(o)] = sum;
    }
    return y;
}

/// One step of a cell with `gates` gates (1: RNN with tanh); the state is hidden, then cell for an LSTM.
Rows stepped(const std::vector<Array>& cell, int gates, const Row& x, const Rows& state) {
    const Array none;
    const Row of_x = affine(cell[0], cell.size() > 2 ? cell[2] : none, x);
    const Row of_h = affine(cell[1], cell.size() > 2 ? cell[3] : none, state[0]);
    const std::size_t size = state[0].size();
    Rows next(state.size(), Row(size));
    for (std::size_t i = 0; i < size; ++i) {
        const auto both = [&](std::size_t gate) { return of_x[gate * size + i] + of_h[gate * size + i]; };
        if (gates == 4) {
            next[1][i] = sigmoid_of(both(1)) * state[1][i] + sigmoid_of(both(0)) * std::tanh(both(2));
            next[0][i] = sigmoid_of(both(3)) * std::tanh(next[1][i]);
        } else if (gates == 1) {
            next[0][i] = std::tanh(both(0));
        } else {
            const double update = sigmoid_of(both(1));
            const double made = std::tanh(of_x[2 * size + i] + sigmoid_of(both(0)) * of_h[2 * size + i]);
            next[0][i] = (1 - update) * made + update * state[0][i];
        }
    }
    return next;
}

struct Expected {
    Row output, last;  ///< (N, L, D hidden), then states (N, layers D, hidden): hidden, then cell
};

/// parameters: those of the layer in their order.
Expected recurrent(const std::vector<Array>& parameters, int gates, const Array& x, std::size_t hidden,
                   const RecurrentOptions& options) {
    const std::size_t directions = options.bidirectional ? 2 : 1, of_cell = options.bias ? 4 : 2;
    const auto layers = static_cast<std::size_t>(options.num_layers), rows = static_cast<std::size_t>(x.shape[0]);
    const auto length = static_cast<std::size_t>(x.shape[1]), features = static_cast<std::size_t>(x.shape[2]);
    Expected expected;
    Row last_hidden, last_cell;
    for (std::size_t n = 0; n < rows; ++n) {
        Rows inputs(length);
        for (std::size_t t = 0; t < length; ++t)
            for (std::size_t f = 0; f < features; ++f)
                inputs[t].push_back(x[static_cast<std::ptrdiff_t>((n * length + t) * features + f)]);
        for (std::size_t layer = 0; layer < layers; ++layer) {
            Rows outputs(length);
            for (std::size_t direction = 0; direction < directions; ++direction) {
                const auto first =
                    parameters.begin() + static_cast<std::ptrdiff_t>((layer * directions + direction) * of_cell);
                const std::vector<Array> cell(first, first + static_cast<std::ptrdiff_t>(of_cell));
                Rows state(gates == 4 ? 2 : 1, Row(hidden, 0));
                for (std::size_t i = 0; i < length; ++i) {
                    const std::size_t t = direction == 0 ? i : length - 1 - i;
                    state = stepped(cell, gates, inputs[t], state);
                    outputs[t].insert(outputs[t].end(), state[0].begin(), state[0].end());
                }
                last_hidden.insert(last_hidden.end(), state[0].begin(), state[0].end());
                if (gates == 4) last_cell.insert(last_cell.end(), state[1].begin(), state[1].end());
            }
            inputs = outputs;
        }
        for (const Row& output : inputs) expected.output.insert(expected.output.end(), output.begin(), output.end());
    }
    expected.last = last_hidden;
    expected.last.insert(expected.last.end(), last_cell.begin(), last_cell.end());
    return expected;
}

void check_near(const Row& found, const Row& expected, double bound) {
    REQUIRE(found.size() == expected.size());
    for (std::size_t i = 0; i < found.size(); ++i) {
        INFO("element " << i << ": " << found[i] << ", expected " << expected[i]);
        CHECK(std::abs(found[i] - expected[i]) < bound);
    }
}

/// Results and gradients of an LSTM, GRU or RNN. `states`: h_n, and c_n of an LSTM.
template <class Layer>
void check_recurrent(Layer& layer, int gates, std::int64_t hidden, const RecurrentOptions& options,
                     const std::function<std::vector<Tensor>(const Tensor&)>& states) {
    const Tensor x = Tensor::randn({2, 3, 3}).requires_grad_();
    std::vector<Array> parameters;
    for (const NamedTensor& named : named_tensors(layer)) parameters.push_back(to_array(named.member->tensor()));
    const auto exact = [&](const std::vector<Array>& values) {
        const std::vector<Array> weights(values.begin() + 1, values.end());
        return recurrent(weights, gates, values[0], static_cast<std::size_t>(hidden), options);
    };
    std::vector<Array> values{to_array(x)};
    values.insert(values.end(), parameters.begin(), parameters.end());
    const Expected expected = exact(values);
    const Tensor output = layer.forward(x).output;
    check_near(to_array(output).v, expected.output, 1e-6);
    Row last;
    for (const Tensor& state : states(x)) {
        const Row part = to_array(state).v;
        last.insert(last.end(), part.begin(), part.end());
    }
    check_near(last, expected.last, 1e-6);

    const Tensor dy = Tensor::randn(output.shape());
    output.backward(dy);
    const auto differences = reference::finite_differences(
        [&](const std::vector<Array>& at) {
            Array y(Sizes{static_cast<std::ptrdiff_t>(expected.output.size())});
            y.v = exact(at).output;
            return y;
        },
        values, std::vector<bool>(values.size(), true), to_array(dy));
    check_near(to_array(x.grad()).v, differences[0].v, 2e-5);
    std::size_t next = 1;
    for (const NamedTensor& named : named_tensors(layer)) {
        INFO(named.name);
        check_near(to_array(named.member->tensor().grad()).v, differences[next++].v, 2e-5);
    }
}

std::vector<std::string> names_of(auto& layer) {
    std::vector<std::string> names;
    for (const NamedTensor& named : named_tensors(layer)) names.push_back(named.name);
    return names;
}

}  // namespace

TEST_CASE("LSTM, GRU and RNN compute PyTorch's formulas, with several layers and both directions") {
    manual_seed(31);
    for (const RecurrentOptions& options : {RecurrentOptions{}, RecurrentOptions{.num_layers = 2, .bias = false},
                                            RecurrentOptions{.num_layers = 2, .bidirectional = true}}) {
        LSTM lstm(3, 2, options);
        check_recurrent(lstm, 4, 2, options, [&](const Tensor& x) {
            const LstmResult result = lstm.forward(x);
            return std::vector<Tensor>{result.h_n, result.c_n};
        });
        GRU gru(3, 2, options);
        check_recurrent(gru, 3, 2, options, [&](const Tensor& x) { return std::vector<Tensor>{gru.forward(x).h_n}; });
        RNN rnn(3, 2, options);
        check_recurrent(rnn, 1, 2, options, [&](const Tensor& x) { return std::vector<Tensor>{rnn.forward(x).h_n}; });
    }
}

TEST_CASE("recurrent layers have PyTorch's parameters and continue from a state") {
    manual_seed(32);
    LSTM lstm(3, 4, {.num_layers = 2, .bidirectional = true});
    const std::vector<std::string> names = names_of(lstm);
    CHECK(names.size() == 16);
    CHECK(names[0] == "weight_ih_l0");
    CHECK(names[3] == "bias_hh_l0");
    CHECK(names[4] == "weight_ih_l0_reverse");
    CHECK(names[8] == "weight_ih_l1");
    CHECK(named_tensors(lstm)[8].member->tensor().shape() == Shape{16, 8});
    for (const NamedTensor& named : named_tensors(lstm))
        for (const float value : named.member->tensor().to_vector<float>()) CHECK(std::abs(value) <= 0.5F);

    LSTM one(3, 4);
    const Tensor x = Tensor::randn({2, 5, 3});
    const LstmResult whole = one(x), first = one(x.slice(1, 0, 2)), rest = one(x.slice(1, 2, 5), first.h_n, first.c_n);
    CHECK(rest.output.to_vector<float>() == whole.output.slice(1, 2, 5).to_vector<float>());
    CHECK(rest.c_n.to_vector<float>() == whole.c_n.to_vector<float>());
    CHECK(whole.h_n.select(1, 0).to_vector<float>() == whole.output.select(1, 4).to_vector<float>());

    LSTM dropping(3, 4, {.num_layers = 2, .dropout = 1});
    LSTM same = dropping;
    same.training = false;
    CHECK(dropping(x).output.to_vector<float>() != same(x).output.to_vector<float>());

    CHECK_THROWS_AS(LSTM(0, 3), InvalidArgument);
    CHECK_THROWS_AS(GRU(3, 3, {.num_layers = 0}), InvalidArgument);
    CHECK_THROWS_AS(GRU(3, 3, {.dropout = 2}), InvalidArgument);
    CHECK(message_of<InvalidArgument>([&] {
              one(Tensor::zeros({2, 5, 4}));
          }) == "LSTM: input has shape (2, 5, 4); expected (N, L, 3) with at least one position");
    CHECK(message_of<InvalidArgument>([&] {
              one(x, Tensor::zeros({1, 2, 4}));
          }) == "LSTM: h_0 has shape (1, 2, 4); expected (2, 1, 4)");
}

TEST_CASE("attention to no key gives 0 and no NaN, also in gradients") {
    const Tensor q = Tensor::randn({1, 2, 3}).requires_grad_(), k = Tensor::randn({1, 4, 3}).requires_grad_();
    const Tensor mask = Tensor::from(std::vector<std::int64_t>{1, 1, 0, 1, 0, 0, 0, 0}, {2, 4}) > 0;
    const double none = -std::numeric_limits<double>::infinity();
    for (const bool of_numbers : {false, true}) {
        const Tensor numbers = where(mask, Tensor::zeros({2, 4}), none);
        const Tensor y = scaled_dot_product_attention(q, k, k, {.attn_mask = of_numbers ? numbers : mask});
        CHECK(y.select(1, 1).to_vector<float>() == std::vector<float>(3, 0));
        y.backward(Tensor::full(y.shape(), 1));
        for (const Tensor& operand : {q, k})
            for (const float value : operand.grad().to_vector<float>()) CHECK(std::isfinite(value));
    }
    CHECK(message_of<InvalidArgument>([&] {
              scaled_dot_product_attention(q, Tensor::zeros({1, 4, 5}), k);
          }) ==
          "scaled_dot_product_attention: query (1, 2, 3), key (1, 4, 5) and value (1, 4, 3) do not match; expected "
          "(..., L, E), (..., S, E) and (..., S, Ev)");
    CHECK_THROWS_AS(scaled_dot_product_attention(q, k, k, {.attn_mask = mask, .is_causal = true}), InvalidArgument);
    const Tensor heads = Tensor::zeros({1, 4, 2, 3});
    for (const Shape& shape : {Shape{1, 3, 4, 3}, Shape{1, 8, 4, 3}, Shape{4, 3}})
        CHECK(message_of<InvalidArgument>([&] {
                  scaled_dot_product_attention(heads, Tensor::zeros(shape), Tensor::zeros(shape), {.enable_gqa = true});
              }).starts_with("scaled_dot_product_attention: with enable_gqa, key " + shape.str()));
    CHECK(message_of<InvalidArgument>([&] {
              scaled_dot_product_attention(q, k, k, {.attn_mask = Tensor::zeros({2, 4}, DType::i64)});
          }) == "scaled_dot_product_attention: attn_mask has dtype i64; expected bool or a floating dtype");
    for (const Shape& shape : {Shape{3, 2, 4}, Shape{1, 1, 2, 4}, Shape{2, 3}})
        CHECK(message_of<InvalidArgument>(
                  [&] { scaled_dot_product_attention(q, k, k, {.attn_mask = Tensor::zeros(shape)}); }) ==
              "scaled_dot_product_attention: attn_mask " + shape.str() + " does not broadcast to the scores (1, 2, 4)");
}

TEST_CASE("MultiheadAttention projects, attends by heads, and respects its masks") {
    manual_seed(33);
    MultiheadAttention attention(6, 2);
    CHECK(names_of(attention) ==
          std::vector<std::string>{"in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias"});
    const double bound = std::sqrt(6.0 / 24);
    for (const float value : attention.in_proj_weight->to_vector<float>()) CHECK(std::abs(value) <= bound);
    CHECK(attention.in_proj_bias->tensor().to_vector<float>() == std::vector<float>(18, 0));
    CHECK(attention.out_proj.bias->tensor().to_vector<float>() == std::vector<float>(6, 0));
    CHECK_FALSE(MultiheadAttention(6, 2, {.bias = false}).in_proj_bias.has_value());

    const Tensor x = Tensor::randn({2, 4, 6}), memory = Tensor::randn({2, 5, 6});
    const Array weight = to_array(attention.in_proj_weight), out = to_array(attention.out_proj.weight);
    const Array queries = to_array(x), keys = to_array(memory);
    const auto projected = [&](const Array& from, std::ptrdiff_t row, std::ptrdiff_t block) {
        Row y(6, 0);
        for (std::ptrdiff_t o = 0; o < 6; ++o)
            for (std::ptrdiff_t i = 0; i < 6; ++i)
                y[static_cast<std::size_t>(o)] += weight[(6 * block + o) * 6 + i] * from[row * 6 + i];
        return y;
    };
    const auto expected = [&](const std::function<bool(std::ptrdiff_t, std::ptrdiff_t, std::ptrdiff_t)>& attends) {
        Row result;
        for (std::ptrdiff_t n = 0; n < 2; ++n)
            for (std::ptrdiff_t l = 0; l < 4; ++l) {
                Row joined(6, 0);
                const Row q = projected(queries, n * 4 + l, 0);
                for (std::size_t head = 0; head < 2; ++head) {
                    double total = 0;
                    Row sums(3, 0);
                    for (std::ptrdiff_t s = 0; s < 5; ++s) {
                        if (!attends(n, l, s)) continue;
                        const Row k = projected(keys, n * 5 + s, 1), v = projected(keys, n * 5 + s, 2);
                        double score = 0;
                        for (std::size_t i = 3 * head; i < 3 * head + 3; ++i) score += q[i] * k[i];
                        const double share = std::exp(score / std::sqrt(3.0));
                        total += share;
                        for (std::size_t i = 0; i < 3; ++i) sums[i] += share * v[3 * head + i];
                    }
                    for (std::size_t i = 0; i < 3; ++i) joined[3 * head + i] = sums[i] / total;
                }
                const Row y = affine(out, Array(), joined);
                result.insert(result.end(), y.begin(), y.end());
            }
        return result;
    };
    const auto everything = [](std::ptrdiff_t, std::ptrdiff_t, std::ptrdiff_t) { return true; };
    check_near(to_array(attention(x, memory, memory)).v, expected(everything), 1e-6);
    const auto causal = [](std::ptrdiff_t, std::ptrdiff_t l, std::ptrdiff_t s) { return s <= l; };
    check_near(to_array(attention(x, memory, memory, {.is_causal = true})).v, expected(causal), 1e-6);
    const Tensor padding = Tensor::from(std::vector<std::int64_t>{0, 0, 0, 1, 1, 0, 1, 0, 0, 0}, {2, 5}) > 0;
    const auto is_kept = [](std::ptrdiff_t n, std::ptrdiff_t s) { return n == 0 ? s < 3 : s != 1; };
    const auto kept = [&](std::ptrdiff_t n, std::ptrdiff_t, std::ptrdiff_t s) { return is_kept(n, s); };
    check_near(to_array(attention(x, memory, memory, {.key_padding_mask = padding})).v, expected(kept), 1e-6);
    const auto both = [&](std::ptrdiff_t n, std::ptrdiff_t l, std::ptrdiff_t s) { return s <= l && is_kept(n, s); };
    check_near(to_array(attention(x, memory, memory, {.key_padding_mask = padding, .is_causal = true})).v,
               expected(both), 1e-6);
    CHECK_THROWS_AS(MultiheadAttention(6, 4), InvalidArgument);
    CHECK_THROWS_AS(attention(x, memory.slice(0, 0, 1), memory.slice(0, 0, 1)), InvalidArgument);
    CHECK(message_of<InvalidArgument>([&] {
              attention(x, memory, memory, {.key_padding_mask = Tensor::zeros({2, 5})});
          }) == "MultiheadAttention: key_padding_mask has dtype f32 and shape (2, 5); expected bool and (2, 5)");
}

TEST_CASE("TransformerEncoderLayer adds attention and two linear layers to its input") {
    manual_seed(34);
    for (const bool norm_first : {false, true}) {
        TransformerEncoderLayer layer(6, 2, {.dim_feedforward = 5, .dropout = 0, .norm_first = norm_first});
        CHECK(names_of(layer).size() == 12);
        CHECK(names_of(layer)[4] == "linear1.weight");
        const Tensor x = Tensor::randn({2, 4, 6});
        const auto forward = [&](const Tensor& y) { return layer.linear2(relu(layer.linear1(y))); };
        const auto attention = [&](const Tensor& y) { return layer.self_attn(y, y, y); };
        const Tensor middle = norm_first ? x + attention(layer.norm1(x)) : layer.norm1(x + attention(x));
        const Tensor expected =
            norm_first ? middle + forward(layer.norm2(middle)) : layer.norm2(middle + forward(middle));
        CHECK(layer(x).to_vector<float>() == expected.to_vector<float>());
    }
}

TEST_CASE("TransformerDecoderLayer adds attention to itself and to a memory, and two linear layers") {
    manual_seed(37);
    for (const bool norm_first : {false, true}) {
        TransformerDecoderLayer layer(6, 2, {.dim_feedforward = 5, .dropout = 0, .norm_first = norm_first});
        CHECK(names_of(layer).size() == 18);
        CHECK(names_of(layer)[4] == "multihead_attn.in_proj_weight");
        CHECK(names_of(layer)[8] == "linear1.weight");
        CHECK(names_of(layer).back() == "norm3.bias");
        const Tensor x = Tensor::randn({2, 4, 6}), memory = Tensor::randn({2, 5, 6});
        const AttentionMasks causal{.is_causal = true};
        const Tensor padding = Tensor::from(std::vector<std::int64_t>{0, 0, 0, 1, 1, 0, 1, 0, 0, 0}, {2, 5}) > 0;
        const auto itself = [&](const Tensor& y) { return layer.self_attn(y, y, y, causal); };
        const auto other = [&](const Tensor& y) {
            return layer.multihead_attn(y, memory, memory, {.key_padding_mask = padding});
        };
        const auto forward = [&](const Tensor& y) { return layer.linear2(relu(layer.linear1(y))); };
        const auto added = [&](const LayerNorm& norm, const Tensor& y, const auto& part) {
            return norm_first ? y + part(norm(y)) : norm(y + part(y));
        };
        const Tensor expected = added(layer.norm3, added(layer.norm2, added(layer.norm1, x, itself), other), forward);
        CHECK(layer(x, memory, causal, {.key_padding_mask = padding}).to_vector<float>() ==
              expected.to_vector<float>());
        // A key that is ignored has no effect.
        const Tensor changed = where(padding.unsqueeze(2), memory + 1, memory);
        CHECK(layer(x, changed, causal, {.key_padding_mask = padding}).to_vector<float>() ==
              expected.to_vector<float>());

        const TransformerDecoder decoder(layer, 2, LayerNorm(6));
        CHECK(decoder(x, memory, causal).to_vector<float>() ==
              LayerNorm(6)(layer(layer(x, memory, causal), memory, causal)).to_vector<float>());
    }
    CHECK_THROWS_AS(TransformerDecoder(TransformerDecoderLayer(6, 2), 0), InvalidArgument);
}

TEST_CASE("RNNCell is the step of RNN, with tanh or ReLU") {
    manual_seed(38);
    for (const Nonlinearity function : {Nonlinearity::tanh, Nonlinearity::relu}) {
        RNN rnn(3, 4, {}, function);
        RNNCell cell(3, 4, true, function);
        const auto target = named_tensors(cell), source = named_tensors(rnn);
        for (std::size_t i = 0; i < target.size(); ++i)
            target[i].member->tensor().detach().copy_(source[i].member->tensor());
        const Tensor x = Tensor::randn({2, 5, 3}), output = rnn(x).output;
        Tensor hidden;
        for (std::int64_t t = 0; t < 5; ++t) {
            hidden = cell(x.select(1, t), hidden);
            CHECK(hidden.to_vector<float>() == output.select(1, t).to_vector<float>());
        }
        const bool positive = amin(output).item() >= 0;
        CHECK(positive == (function == Nonlinearity::relu));
    }
}

TEST_CASE("LSTMCell and GRUCell are the steps of LSTM and GRU") {
    manual_seed(35);
    for (const bool bias : {true, false}) {
        LSTM lstm(3, 4, {.bias = bias});
        LSTMCell cell(3, 4, bias);
        GRU gru(3, 4, {.bias = bias});
        GRUCell gated(3, 4, bias);
        CHECK(names_of(cell) == (bias ? std::vector<std::string>{"weight_ih", "weight_hh", "bias_ih", "bias_hh"}
                                      : std::vector<std::string>{"weight_ih", "weight_hh"}));
        const auto share = [](auto& to, auto& from) {
            const auto target = named_tensors(to), source = named_tensors(from);
            REQUIRE(target.size() == source.size());
            for (std::size_t i = 0; i < target.size(); ++i)
                target[i].member->tensor().detach().copy_(source[i].member->tensor());
        };
        share(cell, lstm);
        share(gated, gru);
        const Tensor x = Tensor::randn({2, 5, 3});
        const LstmResult whole = lstm(x);
        const Tensor gated_whole = gru(x).output;
        LstmState state;
        Tensor hidden;
        for (std::int64_t t = 0; t < 5; ++t) {
            state = cell(x.select(1, t), state);
            hidden = gated(x.select(1, t), hidden);
            CHECK(state.h.to_vector<float>() == whole.output.select(1, t).to_vector<float>());
            CHECK(hidden.to_vector<float>() == gated_whole.select(1, t).to_vector<float>());
        }
        CHECK(state.c.to_vector<float>() == whole.c_n.select(1, 0).to_vector<float>());
    }
    LSTMCell cell(3, 4);
    const auto refused = [](auto call, const char* message) {
        CHECK(message_of<InvalidArgument>(call).find(message) != std::string::npos);
    };
    refused([&] { cell(Tensor::ones({2, 5})); }, "LSTMCell: input has shape (2, 5); expected (N, 3)");
    refused([&] { cell(Tensor::ones({2, 3}), {Tensor::ones({2, 5}), {}}); }, "LSTMCell: h has shape (2, 5)");
    refused([&] { GRUCell(0, 4); }, "GRUCell: invalid input_size (0)");
    refused([&] { GRUCell(3, -1); }, "GRUCell: invalid hidden_size (-1)");
}

TEST_CASE("steps of wide cells have the values and gradients of each element") {
    // Wider than the blocks of the CPU's kernels; `exact` has products of input and state for each gate, then the
    // state.
    constexpr std::int64_t rows = 2, size = 600;
    const auto check = [](std::int64_t gates, const std::function<Tensor(const std::vector<Tensor>&)>& run,
                          const std::function<double(const Row&)>& exact) {
        std::vector<Tensor> in;
        for (const std::int64_t columns : {gates * size, gates * size, size})
            in.push_back(Tensor::randn({rows, columns}).requires_grad_());
        const Tensor y = run(in);
        sum(y).backward();
        std::vector<Row> values, gradients;
        for (const Tensor& each : in) {
            values.push_back(to_array(each).v);
            gradients.push_back(to_array(each.grad()).v);
        }
        const Row found = to_array(y).v;
        double worst = 0, worst_gradient = 0;
        for (std::int64_t i = 0; i < rows * size; ++i) {
            // Places of the element's arguments: input, and number in it.
            std::vector<std::pair<std::size_t, std::size_t>> places;
            for (const std::size_t input : {0, 1})
                for (std::int64_t gate = 0; gate < gates; ++gate)
                    places.emplace_back(input, static_cast<std::size_t>((i / size * gates + gate) * size + i % size));
            places.emplace_back(2, static_cast<std::size_t>(i));
            Row arguments;
            for (const auto& [input, at] : places) arguments.push_back(values[input][at]);
            worst = std::max(worst, std::abs(found[static_cast<std::size_t>(i)] - exact(arguments)));
            for (std::size_t k = 0; k < places.size(); ++k) {
                Row above = arguments, below = arguments;
                above[k] += 1e-5;
                below[k] -= 1e-5;
                const double slope = (exact(above) - exact(below)) / 2e-5;
                worst_gradient =
                    std::max(worst_gradient, std::abs(gradients[places[k].first][places[k].second] - slope));
            }
        }
        CHECK(worst < 2e-6);
        CHECK(worst_gradient < 2e-6);
    };
    manual_seed(39);
    check(
        4,
        [](const std::vector<Tensor>& in) {
            const CellStep after = lstm_cell(in[0], in[1], in[2]);
            return after.hidden + after.cell;
        },
        [](const Row& a) {
            const double cell = sigmoid_of(a[1] + a[5]) * a[8] + sigmoid_of(a[0] + a[4]) * std::tanh(a[2] + a[6]);
            return sigmoid_of(a[3] + a[7]) * std::tanh(cell) + cell;
        });
    check(
        3, [](const std::vector<Tensor>& in) { return gru_cell(in[0], in[1], in[2]).hidden; },
        [](const Row& a) {
            const double update = sigmoid_of(a[1] + a[4]), made = std::tanh(a[2] + sigmoid_of(a[0] + a[3]) * a[5]);
            return (1 - update) * made + update * a[6];
        });
}

TEST_CASE("TransformerEncoder applies copies of its layer, then its norm") {
    manual_seed(36);
    TransformerEncoderLayer layer(6, 2, {.dim_feedforward = 5, .dropout = 0});
    TransformerEncoder encoder(layer, 3, LayerNorm(6));
    CHECK(encoder.layers.size() == 3);
    CHECK(names_of(encoder).front() == "layers.0.self_attn.in_proj_weight");
    CHECK(names_of(encoder).back() == "norm.bias");
    CHECK(encoder.layers[1].linear1.weight.identity() != encoder.layers[0].linear1.weight.identity());
    const Tensor x = Tensor::randn({2, 4, 6});
    const AttentionMasks masks{.is_causal = true};
    const Tensor expected = LayerNorm(6)(layer(layer(layer(x, masks), masks), masks));
    CHECK(encoder(x, masks).to_vector<float>() == expected.to_vector<float>());
    CHECK(TransformerEncoder(layer, 1)(x).to_vector<float>() == layer(x).to_vector<float>());
    CHECK_THROWS_AS(TransformerEncoder(layer, 0), InvalidArgument);
}
