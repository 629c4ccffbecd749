// Transformer against PyTorch's, with masks; names and initial values of its parameters.
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/transformer.h"
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

const TransformerOptions small_transformer{
    .num_encoder_layers = 2, .num_decoder_layers = 2, .dim_feedforward = 5, .dropout = 0};

/// bool (rows, size): true from each row's length on.
Tensor positions_after(const std::vector<std::int64_t>& lengths, std::int64_t size) {
    const Tensor positions = Tensor::arange(0, static_cast<double>(size), 1, DType::i64);
    return positions >= Tensor::from(lengths, {static_cast<std::int64_t>(lengths.size()), 1});
}

/// The result, and the gradients of both inputs and all parameters.
std::vector<Tensor> transformed(const TransformerOptions& options, const TransformerMasks& masks) {
    Transformer model(4, 2, options);
    test::fill_with_sines(model);
    const Tensor src = sines(100, {3, 5, 4}).requires_grad_(), tgt = sines(101, {3, 4, 4}).requires_grad_();
    std::vector<Tensor> tensors{model(src, tgt, masks)};
    sum(tensors[0] * sines(110, tensors[0].shape())).backward();
    tensors.push_back(src.grad());
    tensors.push_back(tgt.grad());
    test::append_gradients(model, tensors);
    return tensors;
}

}  // namespace

TEST_CASE("Transformer has PyTorch's results and gradients, with every mask") {
    test::check_recorded(transformed(small_transformer, {}), test::recorded::transformer);
    const Tensor padding = positions_after({3, 5, 4}, 5);
    const TransformerMasks causal{
        .src_key_padding_mask = padding, .memory_key_padding_mask = padding, .tgt_is_causal = true};
    test::check_recorded(transformed(small_transformer, causal), test::recorded::transformer_causal);

    TransformerOptions options = small_transformer;
    options.activation = TransformerEncoderLayerOptions::Activation::gelu;
    options.layer_norm_eps = 0.01;
    options.norm_first = true;
    options.bias = false;
    std::vector<std::int64_t> ignored;
    for (std::int64_t i = 0; i < 20; ++i) ignored.push_back(i / 5 == i % 5 ? 1 : 0);
    const TransformerMasks masks{
        .src_mask = sines(102, {5, 5}),
        .tgt_mask = Transformer::generate_square_subsequent_mask(4, Device::host(), DType::f64),
        .memory_mask = Tensor::from(ignored, {4, 5}) < 1,  // PyTorch's is true where a query does not attend
        .tgt_key_padding_mask = positions_after({4, 2, 3}, 4)};
    test::check_recorded(transformed(options, masks), test::recorded::transformer_masks);
}

TEST_CASE("Transformer has PyTorch's names and draws the matrices of every layer") {
    manual_seed(61);
    Transformer model(4, 2, small_transformer);
    std::vector<std::string> names;
    for (const NamedTensor& named : named_tensors(model)) names.push_back(named.name);
    REQUIRE(names.size() == 2 * 12 + 2 + 2 * 18 + 2);
    CHECK(names[0] == "encoder.layers.0.self_attn.in_proj_weight");
    CHECK(names[16] == "encoder.layers.1.linear1.weight");
    CHECK(names[25] == "encoder.norm.bias");
    CHECK(names[30] == "decoder.layers.0.multihead_attn.in_proj_weight");
    CHECK(names.back() == "decoder.norm.bias");
    const auto largest = [](const Parameter& weight) { return amax(abs(weight.tensor().detach())).item(); };
    CHECK(largest(model.encoder.layers[0].linear1.weight) <= std::sqrt(6.0 / 9) + 1e-6);
    CHECK(largest(model.encoder.layers[0].linear1.weight) > 0.5);  // more than Linear draws
    CHECK(model.encoder.layers[0].linear1.weight->to_vector<float>() !=
          model.encoder.layers[1].linear1.weight->to_vector<float>());
    CHECK(model.decoder.layers[1].self_attn.in_proj_bias->tensor().to_vector<float>() == std::vector<float>(12, 0));
    CHECK(model.encoder.norm->weight->tensor().to_vector<float>() == std::vector<float>(4, 1));
    CHECK(Transformer(4, 2, {.num_encoder_layers = 1, .num_decoder_layers = 3}).decoder.layers.size() == 3);
}

TEST_CASE("a position that Transformer ignores has no effect, and causal masks are equal to is_causal") {
    manual_seed(62);
    Transformer model(4, 2, small_transformer);
    const Tensor src = Tensor::randn({2, 5, 4}), tgt = Tensor::randn({2, 3, 4});
    const Tensor padding = positions_after({3, 5}, 5);
    const TransformerMasks masks{
        .src_key_padding_mask = padding, .memory_key_padding_mask = padding, .tgt_is_causal = true};
    const std::vector<float> expected = model(src, tgt, masks).to_vector<float>();
    CHECK(model(where(padding.unsqueeze(2), src + 1, src), tgt, masks).to_vector<float>() == expected);
    CHECK(model(src + 1, tgt, masks).to_vector<float>() != expected);
    TransformerMasks numbers = masks;
    numbers.tgt_is_causal = false;
    numbers.tgt_mask = Transformer::generate_square_subsequent_mask(3);
    CHECK(model(src, tgt, numbers).to_vector<float>() == expected);
    const float none = -std::numeric_limits<float>::infinity();
    CHECK(numbers.tgt_mask.to_vector<float>() == std::vector<float>{0, none, none, 0, 0, none, 0, 0, 0});
    CHECK(Transformer::generate_square_subsequent_mask(1, Device::host(), DType::f64).to_vector<double>() ==
          std::vector<double>{0});
    for (const DType dtype : {DType::f16, DType::bf16}) {
        const Autocast scope(dtype);
        for (const TransformerMasks& each : {masks, numbers})
            for (const float value : model(src, tgt, each).to(DType::f32).to_vector<float>())
                CHECK(std::isfinite(value));
    }
}

TEST_CASE("Transformer refuses inputs and options that do not fit") {
    const Transformer model(4, 2, small_transformer);
    const auto refused = [](const auto& call) { return message_of<InvalidArgument>(call); };
    CHECK(refused([&] {
              model(Tensor::ones({2, 5, 4}), Tensor::ones({3, 5, 4}));
          }) == "Transformer: src (2, 5, 4) and tgt (3, 5, 4); expected equal numbers of rows, and 4 features");
    CHECK(refused([&] { model(Tensor::ones({2, 5, 4}), Tensor::ones({2, 5, 6})); }).starts_with("Transformer: src"));
    CHECK(refused([&] { model(Tensor::ones({2, 5}), Tensor::ones({2, 5, 4})); }).starts_with("Transformer: src has 2"));
    CHECK_THROWS_AS(Transformer(4, 3), InvalidArgument);
    CHECK_THROWS_AS(Transformer(4, 2, {.num_decoder_layers = 0}), InvalidArgument);
    CHECK_THROWS_AS(Transformer(4, 2, {.dropout = -1}), InvalidArgument);
    CHECK(refused([] {
              Transformer::generate_square_subsequent_mask(0);
          }).starts_with("generate_square_subsequent_mask: invalid size (0)"));
}
