// Recurrent layers over rows of different lengths: against PyTorch's packed sequences, and against each row by itself.
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/recurrent.h"
#include "lockstep/runtime/autocast.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/random.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/messages.h"
#include "lockstep/tests/ops/recorded_sequences.h"
#include "lockstep/tests/ops/sines.h"

using namespace lockstep;
using test::message_of;
using test::sines;

namespace {

constexpr std::int64_t packed_rows = 4, packed_length = 5;
const std::vector<std::int64_t> packed_lengths{3, 5, 1, 4};
constexpr double packed_nan = std::numeric_limits<double>::quiet_NaN();

Tensor lengths_of(const std::vector<std::int64_t>& values) {
    return Tensor::from(values, {static_cast<std::int64_t>(values.size())});
}

/// x with NaN from each row's length on.
Tensor with_nan(const Tensor& x, const std::vector<std::int64_t>& lengths) {
    const Tensor positions = Tensor::arange(0, static_cast<double>(x.size(1)), 1, DType::i64);
    return masked_fill(x, (positions >= lengths_of(lengths).unsqueeze(1)).unsqueeze(2), packed_nan);
}

/// Results, then gradients, of a layer over the recorded rows, whose padding is NaN. `states`: h_n, and c_n of an LSTM.
template <class Layer, class States>
std::vector<Tensor> packed_run(Layer& layer, const std::vector<Tensor>& initial, const States& states) {
    test::fill_with_sines(layer);
    const Tensor x = with_nan(sines(100, {packed_rows, packed_length, 3}), packed_lengths).requires_grad_();
    for (const Tensor& state : initial) state.requires_grad_();
    std::vector<Tensor> tensors = states(pack_padded_sequence(x, lengths_of(packed_lengths)));
    Tensor loss;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
        const Tensor part = sum(tensors[i] * sines(110 + static_cast<double>(i), tensors[i].shape()));
        loss = loss.defined() ? loss + part : part;
    }
    loss.backward();
    tensors.push_back(x.grad());
    test::append_gradients(layer, tensors);
    for (const Tensor& state : initial) tensors.push_back(state.grad());
    return tensors;
}

template <class Layer>
std::vector<Tensor> packed_hidden_run(Layer layer, const Tensor& initial = {}) {
    return packed_run(layer, initial.defined() ? std::vector<Tensor>{initial} : std::vector<Tensor>(),
                      [&](const PaddedSequence& x) {
                          const auto result = layer(x, initial);
                          return std::vector<Tensor>{result.output, result.h_n};
                      });
}

std::vector<Tensor> packed_lstm_run(LSTM layer, const Tensor& h_0 = {}, const Tensor& c_0 = {}) {
    return packed_run(layer, h_0.defined() ? std::vector<Tensor>{h_0, c_0} : std::vector<Tensor>(),
                      [&](const PaddedSequence& x) {
                          const LstmResult result = layer(x, h_0, c_0);
                          return std::vector<Tensor>{result.output, result.h_n, result.c_n};
                      });
}

}  // namespace

TEST_CASE("LSTM, GRU and RNN over packed sequences have PyTorch's results, states and gradients") {
    namespace recorded = test::recorded;
    test::check_recorded(packed_lstm_run(LSTM(3, 2)), recorded::lstm);
    test::check_recorded(packed_lstm_run(LSTM(3, 2, {.num_layers = 2, .bias = false, .bidirectional = true}),
                                         sines(101, {4, 4, 2}), sines(102, {4, 4, 2})),
                         recorded::lstm_states);
    test::check_recorded(packed_hidden_run(GRU(3, 2, {.num_layers = 2, .bidirectional = true})), recorded::gru);
    test::check_recorded(packed_hidden_run(GRU(3, 2, {.bidirectional = true}), sines(101, {4, 2, 2})),
                         recorded::gru_states);
    test::check_recorded(packed_hidden_run(RNN(3, 2, {.bidirectional = true})), recorded::rnn_tanh);
    test::check_recorded(packed_hidden_run(RNN(3, 2, {.num_layers = 2}, Nonlinearity::relu)), recorded::rnn_relu);
}

TEST_CASE("a packed row has the results of a batch of that row without padding") {
    manual_seed(51);
    LSTM lstm(3, 4, {.num_layers = 2, .bidirectional = true});
    to(lstm, DType::f64);
    const Tensor x = sines(3, {packed_rows, packed_length, 3});
    const LstmResult all = lstm(pack_padded_sequence(with_nan(x, packed_lengths), lengths_of(packed_lengths)));
    for (std::int64_t n = 0; n < packed_rows; ++n) {
        INFO("row " << n);
        const std::int64_t length = packed_lengths[static_cast<std::size_t>(n)];
        const LstmResult one = lstm(x.slice(0, n, n + 1).slice(1, 0, length));
        const auto near = [&](const Tensor& found, const Tensor& expected) {
            return amax(abs(found - expected)).item() < 1e-14;
        };
        CHECK(near(all.output.slice(0, n, n + 1).slice(1, 0, length), one.output));
        CHECK(near(all.h_n.slice(0, n, n + 1), one.h_n));
        CHECK(near(all.c_n.slice(0, n, n + 1), one.c_n));
        const Tensor rest = all.output.slice(0, n, n + 1).slice(1, length, packed_length);
        for (const double value : rest.to_vector<double>()) CHECK(value == 0);
    }
}

TEST_CASE("whole rows and longer padding do not change the bits of packed rows") {
    manual_seed(52);
    const Tensor x = Tensor::randn({packed_rows, packed_length, 3});
    const auto check = [&](auto layer) {
        const Tensor whole = lengths_of(std::vector<std::int64_t>(packed_rows, packed_length));
        const auto plain = layer(x), packed = layer(pack_padded_sequence(x, whole));
        CHECK(packed.output.template to_vector<float>() == plain.output.template to_vector<float>());
        CHECK(packed.h_n.template to_vector<float>() == plain.h_n.template to_vector<float>());
        const Tensor longer = pad(x, {0, 0, 0, 3}, packed_nan);
        const auto padded = layer(pack_padded_sequence(longer, whole));
        CHECK(padded.output.slice(1, 0, packed_length).template to_vector<float>() ==
              plain.output.template to_vector<float>());
        CHECK(padded.h_n.template to_vector<float>() == plain.h_n.template to_vector<float>());
    };
    check(LSTM(3, 4, {.num_layers = 2, .bidirectional = true}));
    check(GRU(3, 4, {.bidirectional = true}));
    check(RNN(3, 4));
}

TEST_CASE("packed rows under Autocast and in 16 bits have the dtypes and bits of whole rows") {
    manual_seed(53);
    const Tensor x = Tensor::randn({packed_rows, packed_length, 3});
    const Tensor whole = lengths_of(std::vector<std::int64_t>(packed_rows, packed_length));
    const auto numbers = [](const Tensor& tensor) { return tensor.to(DType::f32).to_vector<float>(); };
    const auto check = [&](auto& layer, const Tensor& input) {
        const auto plain = layer(input), packed = layer(pack_padded_sequence(input, whole));
        CHECK(packed.output.dtype() == plain.output.dtype());
        CHECK(packed.h_n.dtype() == plain.h_n.dtype());
        CHECK(numbers(packed.output) == numbers(plain.output));
        CHECK(numbers(packed.h_n) == numbers(plain.h_n));
        const auto shorter = layer(pack_padded_sequence(with_nan(input, packed_lengths), lengths_of(packed_lengths)));
        for (const float value : numbers(shorter.output)) CHECK(std::isfinite(value));
        for (const float value : numbers(shorter.h_n)) CHECK(std::isfinite(value));
    };
    for (const DType dtype : {DType::f16, DType::bf16}) {
        LSTM lstm(3, 4, {.bidirectional = true});
        GRU gru(3, 4, {.num_layers = 2});
        RNN rnn(3, 4, {.bidirectional = true});
        {
            const Autocast scope(dtype);
            check(lstm, x);
            check(gru, x);
            check(rnn, x);
        }
        to(lstm, dtype);
        to(gru, dtype);
        to(rnn, dtype);
        check(lstm, x.to(dtype));
        check(gru, x.to(dtype));
        check(rnn, x.to(dtype));
    }
}

TEST_CASE("a packed batch can be empty, or have one row of one position") {
    GRU gru(3, 2, {.bidirectional = true});
    const GruResult none = gru(pack_padded_sequence(Tensor::zeros({0, 4, 3}), Tensor::zeros({0}, DType::i64)));
    CHECK(none.output.shape() == Shape{0, 4, 4});
    CHECK(none.h_n.shape() == Shape{0, 2, 2});
    const Tensor x = Tensor::ones({1, 1, 3});
    CHECK(gru(pack_padded_sequence(x, lengths_of({1}))).output.to_vector<float>() == gru(x).output.to_vector<float>());
}

TEST_CASE("NaN in a packed row remains in that row") {
    manual_seed(54);
    LSTM lstm(3, 2, {.num_layers = 2, .bidirectional = true});
    std::vector<float> values = Tensor::randn({2, 4, 3}).to_vector<float>();
    values[0] = std::numeric_limits<float>::infinity();
    values[3] = std::numeric_limits<float>::quiet_NaN();
    const LstmResult result = lstm(pack_padded_sequence(Tensor::from(values, {2, 4, 3}), lengths_of({2, 3})));
    CHECK(std::isnan(result.h_n.select(0, 0).to_vector<float>()[0]));
    for (const float value : result.output.select(0, 1).to_vector<float>()) CHECK(std::isfinite(value));
    for (const float value : result.output.select(0, 0).slice(0, 2, 4).to_vector<float>()) CHECK(value == 0);
}

TEST_CASE("pack_padded_sequence refuses other shapes and dtypes, and reports lengths out of range") {
    const Tensor x = Tensor::ones({2, 4, 3});
    const auto refused = [](const auto& call) { return message_of<InvalidArgument>(call); };
    CHECK(refused([&] {
              pack_padded_sequence(x.select(2, 0), lengths_of({1, 1}));
          }) == "pack_padded_sequence: input has shape (2, 4); expected (N, L, features) with at least one position");
    CHECK(refused([&] {
              pack_padded_sequence(Tensor::ones({2, 0, 3}), lengths_of({1, 1}));
          }) ==
          "pack_padded_sequence: input has shape (2, 0, 3); expected (N, L, features) with at least one position");
    CHECK(refused([&] { pack_padded_sequence(x, lengths_of({1})); }) ==
          "pack_padded_sequence: lengths has dtype i64 and shape (1,); expected i64 and (2,), one for each row");
    CHECK(refused([&] { pack_padded_sequence(x, Tensor::ones({2})); }) ==
          "pack_padded_sequence: lengths has dtype f32 and shape (2,); expected i64 and (2,), one for each row");
    CHECK(refused([&] {
              pack_padded_sequence(x.to(DType::i64), lengths_of({1, 1}));
          }).starts_with("pack_padded_sequence: input"));
    CHECK(refused([&] { pack_padded_sequence(x, Tensor()); }).starts_with("pack_padded_sequence: lengths"));
    CHECK(refused([&] {
              LSTM(4, 2)(pack_padded_sequence(x, lengths_of({1, 1})));
          }) == "LSTM: input has shape (2, 4, 3); expected (N, L, 4) with at least one position");
    GRU gru(3, 2);
    const auto reported = [&](const std::vector<std::int64_t>& lengths, std::int64_t index, std::int64_t row) {
        const std::string expected = "pack_padded_sequence: index " + std::to_string(index) + " in row " +
                                     std::to_string(row) +
                                     " is out of range; expected 0 to (size of the dimension - 1)";
        for (const bool state : {false, true})
            CHECK(refused([&] {
                      const GruResult result = gru(pack_padded_sequence(x, lengths_of(lengths)));
                      (state ? result.h_n : result.output).to_vector<float>();
                  }) == expected);
    };
    reported({5, 1}, 5, 0);
    reported({4, 0}, -1, 1);
    reported({4, -2}, -2, 1);
    reported({1, std::numeric_limits<std::int64_t>::max()}, std::numeric_limits<std::int64_t>::max(), 1);
    CHECK(gru(pack_padded_sequence(x, lengths_of({4, 1}))).output.size(1) == 4);
}

TEST_CASE("pad_sequence pads tensors of different lengths on either side of the batch") {
    const Tensor a = Tensor::from(std::vector<std::int64_t>{1, 2, 3, 4}, {2, 2});
    const Tensor b = Tensor::from(std::vector<std::int64_t>{5, 6}, {1, 2}), none = Tensor::zeros({0, 2}, DType::i64);
    const Tensor batch = pad_sequence({a, b, none}, true, -1);
    CHECK(batch.shape() == Shape{3, 2, 2});
    CHECK(batch.to_vector<std::int64_t>() == std::vector<std::int64_t>{1, 2, 3, 4, 5, 6, -1, -1, -1, -1, -1, -1});
    CHECK(pad_sequence({a, b}).to_vector<std::int64_t>() == std::vector<std::int64_t>{1, 2, 5, 6, 3, 4, 0, 0});
    CHECK(pad_sequence({none, none}, true).shape() == Shape{2, 0, 2});
    const Tensor x = Tensor::ones({1, 3}).requires_grad_(), y = Tensor::ones({2, 3}).requires_grad_();
    sum(pad_sequence({x, y}, true, packed_nan).select(0, 1)).backward();
    CHECK(x.grad().to_vector<float>() == std::vector<float>(3, 0));
    CHECK(y.grad().to_vector<float>() == std::vector<float>(6, 1));

    const auto refused = [](const auto& call) { return message_of<InvalidArgument>(call); };
    CHECK(refused([] { pad_sequence({}); }) == "pad_sequence: an empty list of tensors; expected at least one");
    CHECK(
        refused([&] {
            pad_sequence({a, Tensor::zeros({1, 3}, DType::i64)});
        }) ==
        "pad_sequence: tensors of shapes (2, 2) and (1, 3); expected at least one dimension, and sizes that differ in "
        "the first one only");
    CHECK(refused([] { pad_sequence({Tensor::ones({})}); }).starts_with("pad_sequence: tensors of shapes () and ()"));
    CHECK(pad_sequence({a, Tensor::zeros({1, 2})}).dtype() == DType::f32);
}
