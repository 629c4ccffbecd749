// The operations of ops-bench, by family: those of the sample networks at 1 Mi elements or at the shapes of small
// networks.
#include "lockstep/bench/op_cases.h"

#include <memory>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/loss.h"
#include "lockstep/ops/module.h"
#include "lockstep/ops/recurrent.h"
#include "lockstep/ops/transformer.h"

namespace ls = lockstep;

namespace lockstep::bench {
namespace {

using Tensors = std::vector<Tensor>;

const Shape large{1024, 1024}, images{16, 64, 32, 32}, heads{8, 4, 128, 32};
const LastInput mask{LastInput::Kind::mask};

LastInput classes(std::int64_t count) { return {LastInput::Kind::classes, count}; }

/// A layer that is made at its first use.
template <class Layer, class... Arguments>
OpCase layer_case(const char* torch, const char* layer, Shape shape,
                  std::function<Tensor(const Layer&, const Tensor&)> run, Arguments... arguments) {
    const auto made = std::make_shared<std::unique_ptr<Layer>>();
    const auto get = [made, arguments...]() -> Layer& {
        if (!*made) *made = std::make_unique<Layer>(arguments...);
        return **made;
    };
    return {torch,
            {std::move(shape)},
            [get, run](const Tensors& in) { return run(get(), in[0]); },
            {},
            DType::f32,
            layer,
            [get] {
                Tensors tensors;
                for (const NamedTensor& parameter : named_tensors(get())) tensors.push_back(parameter.member->tensor());
                return tensors;
            }};
}

const std::vector<OpCase> elementwise = {
    {"a + b", {large, large}, [](const Tensors& in) { return in[0] + in[1]; }},
    {"a + b", {large, {1024}}, [](const Tensors& in) { return in[0] + in[1]; }},
    {"a * b", {large, large}, [](const Tensors& in) { return in[0] * in[1]; }},
    {"a * b", {images, {1, 64, 1, 1}}, [](const Tensors& in) { return in[0] * in[1]; }},
    {"a / b", {large, large}, [](const Tensors& in) { return in[0] / in[1]; }},
    {"a * 2", {large}, [](const Tensors& in) { return in[0] * 2; }},
    {"torch.maximum(a, b)", {large, large}, [](const Tensors& in) { return ls::maximum(in[0], in[1]); }},
    {"torch.where(a > 0, a, b)", {large, large}, [](const Tensors& in) { return ls::where(in[0] > 0, in[0], in[1]); }},
    {"torch.where(b, a, a)", {large, large}, [](const Tensors& in) { return ls::where(in[1], in[0], in[0]); }, mask},
    {"a.masked_fill(b, 0)", {large, large}, [](const Tensors& in) { return ls::masked_fill(in[0], in[1], 0); }, mask},
    {"torch.exp(a)", {large}, [](const Tensors& in) { return ls::exp(in[0]); }},
    {"torch.log(a.abs())", {large}, [](const Tensors& in) { return ls::log(ls::abs(in[0])); }},
    {"torch.log1p(a.abs())", {large}, [](const Tensors& in) { return ls::log1p(ls::abs(in[0])); }},
    {"torch.sin(a)", {large}, [](const Tensors& in) { return ls::sin(in[0]); }},
    {"torch.cos(a)", {large}, [](const Tensors& in) { return ls::cos(in[0]); }},
    {"torch.erf(a)", {large}, [](const Tensors& in) { return ls::erf(in[0]); }},
    {"torch.tanh(a)", {large}, [](const Tensors& in) { return ls::tanh(in[0]); }},
    {"torch.sigmoid(a)", {large}, [](const Tensors& in) { return ls::sigmoid(in[0]); }},
    {"torch.relu(a)", {large}, [](const Tensors& in) { return ls::relu(in[0]); }},
    {"F.leaky_relu(a)", {large}, [](const Tensors& in) { return ls::leaky_relu(in[0]); }},
    {"F.elu(a)", {large}, [](const Tensors& in) { return ls::elu(in[0]); }},
    {"F.gelu(a)", {large}, [](const Tensors& in) { return ls::gelu(in[0]); }},
    {"F.gelu(a, approximate='tanh')", {large}, [](const Tensors& in) { return ls::gelu(in[0], GeluForm::tanh); }},
    {"F.silu(a)", {large}, [](const Tensors& in) { return ls::silu(in[0]); }},
    {"F.softplus(a)", {large}, [](const Tensors& in) { return ls::softplus(in[0]); }},
    {"F.mish(a)", {large}, [](const Tensors& in) { return ls::mish(in[0]); }},
    {"F.hardswish(a)", {large}, [](const Tensors& in) { return ls::hardswish(in[0]); }},
    {"F.logsigmoid(a)", {large}, [](const Tensors& in) { return ls::logsigmoid(in[0]); }},
    {"F.glu(a)", {large}, [](const Tensors& in) { return ls::glu(in[0]); }},
    {"torch.sqrt(a.abs())", {large}, [](const Tensors& in) { return ls::sqrt(ls::abs(in[0])); }},
    {"torch.rsqrt(a.abs())", {large}, [](const Tensors& in) { return ls::rsqrt(ls::abs(in[0])); }},
    {"torch.pow(a, 3)", {large}, [](const Tensors& in) { return ls::pow(in[0], 3); }},
    {"torch.pow(a.abs(), 1.7)", {large}, [](const Tensors& in) { return ls::pow(ls::abs(in[0]), 1.7); }},
    {"torch.clamp(a, -1, 1)", {large}, [](const Tensors& in) { return ls::clamp(in[0], -1, 1); }},
    {"torch.lerp(a, b, 0.3)", {large, large}, [](const Tensors& in) { return ls::lerp(in[0], in[1], 0.3); }},
    {"F.dropout(a, 0.5)", {large}, [](const Tensors& in) { return ls::dropout(in[0], 0.5); }},
};

const std::vector<OpCase> reductions = {
    {"torch.softmax(a, 1)", {large}, [](const Tensors& in) { return ls::softmax(in[0], 1); }},
    {"torch.softmax(a, 0)", {large}, [](const Tensors& in) { return ls::softmax(in[0], 0); }},
    {"torch.log_softmax(a, 1)", {{4096, 10}}, [](const Tensors& in) { return ls::log_softmax(in[0], 1); }},
    {"torch.log_softmax(a, 1)", {large}, [](const Tensors& in) { return ls::log_softmax(in[0], 1); }},
    {"torch.logsumexp(a, 1)", {large}, [](const Tensors& in) { return ls::logsumexp(in[0], 1); }},
    {"a.sum()", {large}, [](const Tensors& in) { return ls::sum(in[0]); }},
    {"a.sum(1)", {large}, [](const Tensors& in) { return ls::sum(in[0], 1); }},
    {"a.mean(0)", {large}, [](const Tensors& in) { return ls::mean(in[0], 0); }},
    {"a.mean((2, 3))",
     {images},
     [](const Tensors& in) {
         return ls::mean(in[0], {2, 3});
     }},
    {"a.var(1)", {large}, [](const Tensors& in) { return ls::var(in[0], 1); }},
    {"a.norm()", {large}, [](const Tensors& in) { return ls::norm(in[0]); }},
    {"a.prod(1)", {large}, [](const Tensors& in) { return ls::prod(in[0], 1); }},
    {"a.amax(1)", {large}, [](const Tensors& in) { return ls::amax(in[0], 1); }},
    {"a.amax(0)", {large}, [](const Tensors& in) { return ls::amax(in[0], 0); }},
    {"a.max(1)[0]", {large}, [](const Tensors& in) { return (ls::max)(in[0], 1).values; }},
    {"a.cumsum(1)", {large}, [](const Tensors& in) { return ls::cumsum(in[0], 1); }},
    {"a.cumsum(0)", {large}, [](const Tensors& in) { return ls::cumsum(in[0], 0); }},
    {"a.cumprod(1)", {large}, [](const Tensors& in) { return ls::cumprod(in[0], 1); }},
    {"a.sort(1)[0]", {{256, 1024}}, [](const Tensors& in) { return ls::sort(in[0], 1).values; }},
    {"a.topk(10, 1)[0]", {large}, [](const Tensors& in) { return ls::topk(in[0], 10, 1).values; }},
};

const std::vector<OpCase> pieces = {
    {"a.t().contiguous()", {large}, [](const Tensors& in) { return in[0].transpose(0, 1).contiguous(); }},
    {"a.permute(0, 2, 1, 3).contiguous()",
     {{16, 128, 8, 64}},
     [](const Tensors& in) {
         return ls::permute(in[0], {0, 2, 1, 3}).contiguous();
     }},
    {"torch.cat([a, b], 0)",
     {large, large},
     [](const Tensors& in) {
         return ls::cat({in[0], in[1]}, 0);
     }},
    {"torch.cat([a, b], 1)",
     {large, large},
     [](const Tensors& in) {
         return ls::cat({in[0], in[1]}, 1);
     }},
    {"torch.stack([a, b], 1)",
     {large, large},
     [](const Tensors& in) {
         return ls::stack({in[0], in[1]}, 1);
     }},
    {"a.repeat(4, 1)",
     {{256, 1024}},
     [](const Tensors& in) {
         return ls::repeat(in[0], {4, 1});
     }},
    {"a.repeat(1, 4)",
     {{1024, 256}},
     [](const Tensors& in) {
         return ls::repeat(in[0], {1, 4});
     }},
    {"a.repeat_interleave(4, 1)", {{1024, 256}}, [](const Tensors& in) { return ls::repeat_interleave(in[0], 4, 1); }},
    {"a[:, 256:768] * 2", {large}, [](const Tensors& in) { return in[0].slice(1, 256, 768) * 2; }},
    {"sum(a[:, i] for i in range(8))",
     {{512, 8, 256}},
     [](const Tensors& in) {
         Tensor sum = in[0].select(1, 0);
         for (int i = 1; i < 8; ++i) sum = sum + in[0].select(1, i);
         return sum;
     }},
    {"torch.tril(a)", {large}, [](const Tensors& in) { return ls::tril(in[0]); }},
    {"a.flip(1)", {large}, [](const Tensors& in) { return ls::flip(in[0], 1); }},
    {"torch.roll(a, 100, 1)", {large}, [](const Tensors& in) { return ls::roll(in[0], 100, 1); }},
    {"F.pad(a, (1, 1, 1, 1))",
     {images},
     [](const Tensors& in) {
         return ls::pad(in[0], {1, 1, 1, 1});
     }},
    {"F.embedding(b, a)",
     {{1000, 256}, {4096}},
     [](const Tensors& in) { return ls::embedding(in[1], in[0]); },
     classes(1000)},
    {"a.index_select(0, b)",
     {large, {512}},
     [](const Tensors& in) { return ls::index_select(in[0], 0, in[1]); },
     classes(1024)},
    {"a.index_select(1, b)",
     {large, {512}},
     [](const Tensors& in) { return ls::index_select(in[0], 1, in[1]); },
     classes(1024)},
    {"a.gather(1, b)", {large, large}, [](const Tensors& in) { return ls::gather(in[0], 1, in[1]); }, classes(1024)},
    {"a.scatter_add(1, c, b)",
     {large, large, large},
     [](const Tensors& in) { return ls::scatter_add(in[0], 1, in[2], in[1]); },
     classes(1024)},
};

const std::vector<OpCase> normalizations = {
    {"F.layer_norm(a, (1024,))", {large}, [](const Tensors& in) { return ls::layer_norm(in[0], Shape{1024}); }},
    {"F.layer_norm(a, (1024,), b, c)",
     {large, {1024}, {1024}},
     [](const Tensors& in) { return ls::layer_norm(in[0], Shape{1024}, in[1], in[2]); }},
    {"F.layer_norm(a, (64,), b, c)",
     {{16384, 64}, {64}, {64}},
     [](const Tensors& in) { return ls::layer_norm(in[0], Shape{64}, in[1], in[2]); }},
    {"F.rms_norm(a, (1024,), b)",
     {large, {1024}},
     [](const Tensors& in) { return ls::rms_norm(in[0], Shape{1024}, in[1]); }},
    {"F.group_norm(a, 8, b, c)",
     {images, {64}, {64}},
     [](const Tensors& in) { return ls::group_norm(in[0], 8, in[1], in[2]); }},
    {"F.instance_norm(a)", {images}, [](const Tensors& in) { return ls::instance_norm(in[0]); }},
    {"F.batch_norm(a, None, None, b, c, True)",
     {images, {64}, {64}},
     [](const Tensors& in) { return ls::batch_norm(in[0], {}, {}, in[1], in[2], {.training = true}); }},
    {"F.normalize(a)", {large}, [](const Tensors& in) { return ls::normalize(in[0]); }},
};

const std::vector<OpCase> convolutions = {
    {"F.conv2d(a, b, padding=1)",
     {images, {64, 64, 3, 3}},
     [](const Tensors& in) { return ls::conv2d(in[0], in[1], {}, 1, 1); }},
    {"F.conv2d(a, b)", {images, {64, 64, 1, 1}}, [](const Tensors& in) { return ls::conv2d(in[0], in[1]); }},
    {"F.conv2d(a, b, stride=2, padding=1)",
     {images, {128, 64, 3, 3}},
     [](const Tensors& in) { return ls::conv2d(in[0], in[1], {}, 2, 1); }},
    {"F.conv2d(a, b, stride=2, padding=3)",
     {{8, 3, 128, 128}, {64, 3, 7, 7}},
     [](const Tensors& in) { return ls::conv2d(in[0], in[1], {}, 2, 3); }},
    {"F.conv2d(a, b, padding=1, groups=64)",
     {images, {64, 1, 3, 3}},
     [](const Tensors& in) { return ls::conv2d(in[0], in[1], {}, 1, 1, 1, 64); }},
    {"F.conv2d(a, b, padding=1, groups=16)",
     {images, {64, 4, 3, 3}},
     [](const Tensors& in) { return ls::conv2d(in[0], in[1], {}, 1, 1, 1, 16); }},
    {"F.conv2d(a, b, padding=1, groups=4)",
     {images, {64, 16, 3, 3}},
     [](const Tensors& in) { return ls::conv2d(in[0], in[1], {}, 1, 1, 1, 4); }},
    {"F.conv_transpose2d(a, b, stride=2)",
     {images, {64, 32, 2, 2}},
     [](const Tensors& in) { return ls::conv_transpose2d(in[0], in[1], {}, 2); }},
    {"F.conv1d(a, b, padding=1)",
     {{16, 64, 1024}, {64, 64, 3}},
     [](const Tensors& in) { return ls::conv1d(in[0], in[1], {}, 1, 1); }},
    {"F.conv3d(a, b, padding=1)",
     {{2, 16, 16, 32, 32}, {16, 16, 3, 3, 3}},
     [](const Tensors& in) { return ls::conv3d(in[0], in[1], {}, 1, 1); }},
    {"F.max_pool2d(a, 2)", {images}, [](const Tensors& in) { return ls::max_pool2d(in[0], 2); }},
    {"F.max_pool2d(a, 3, 2, 1)", {images}, [](const Tensors& in) { return ls::max_pool2d(in[0], 3, 2, 1); }},
    {"F.avg_pool2d(a, 2)", {images}, [](const Tensors& in) { return ls::avg_pool2d(in[0], 2); }},
    {"F.avg_pool2d(a, 3, 1, 1)", {images}, [](const Tensors& in) { return ls::avg_pool2d(in[0], 3, 1, 1); }},
    {"F.adaptive_avg_pool2d(a, 1)", {images}, [](const Tensors& in) { return ls::adaptive_avg_pool2d(in[0], 1); }},
    {"F.adaptive_avg_pool2d(a, 7)", {images}, [](const Tensors& in) { return ls::adaptive_avg_pool2d(in[0], 7); }},
    {"F.adaptive_max_pool2d(a, 4)", {images}, [](const Tensors& in) { return ls::adaptive_max_pool2d(in[0], 4); }},
    {"F.interpolate(a, scale_factor=2)",
     {{16, 64, 16, 16}},
     [](const Tensors& in) { return ls::interpolate(in[0], {.scale_factor = 2}); }},
    {"F.interpolate(a, scale_factor=2, mode='bilinear')",
     {{16, 64, 16, 16}},
     [](const Tensors& in) { return ls::interpolate(in[0], {.scale_factor = 2, .mode = InterpolateMode::bilinear}); }},
    {"F.pixel_shuffle(a, 2)", {images}, [](const Tensors& in) { return ls::pixel_shuffle(in[0], 2); }},
    {"F.unfold(a, 3, padding=1)", {{16, 16, 32, 32}}, [](const Tensors& in) { return ls::unfold(in[0], 3, 1, 1); }},
};

const std::vector<OpCase> products = {
    {"F.linear(a, b)", {{64, 784}, {256, 784}}, [](const Tensors& in) { return ls::linear(in[0], in[1]); }},
    {"F.linear(a, b, c)",
     {{1024, 256}, {1024, 256}, {1024}},
     [](const Tensors& in) { return ls::linear(in[0], in[1], in[2]); }},
    {"a @ b", {{512, 512}, {512, 512}}, [](const Tensors& in) { return ls::matmul(in[0], in[1]); }},
    {"a @ b", {{1024, 1024}, {1024}}, [](const Tensors& in) { return ls::matmul(in[0], in[1]); }},
    {"torch.bmm(a, b)", {{32, 128, 64}, {32, 64, 128}}, [](const Tensors& in) { return ls::bmm(in[0], in[1]); }},
    {"torch.einsum('bhqd,bhkd->bhqk', a, b)",
     {heads, heads},
     [](const Tensors& in) {
         return ls::einsum("bhqd,bhkd->bhqk", {in[0], in[1]});
     }},
    {"torch.outer(a, b)", {{1024}, {1024}}, [](const Tensors& in) { return ls::outer(in[0], in[1]); }},
    {"F.scaled_dot_product_attention(a, b, c)",
     {heads, heads, heads},
     [](const Tensors& in) { return ls::scaled_dot_product_attention(in[0], in[1], in[2]); }},
    {"F.scaled_dot_product_attention(a, b, c, is_causal=True)",
     {{8, 6, 256, 64}, {8, 6, 256, 64}, {8, 6, 256, 64}},
     [](const Tensors& in) { return ls::scaled_dot_product_attention(in[0], in[1], in[2], {.is_causal = true}); }},
    layer_case<LSTM>(
        "m(a)[0]", "torch.nn.LSTM(128, 128, batch_first=True)", {32, 32, 128},
        [](const LSTM& m, const Tensor& x) { return m(x).output; }, 128, 128),
    layer_case<GRU>(
        "m(a)[0]", "torch.nn.GRU(128, 128, batch_first=True)", {32, 32, 128},
        [](const GRU& m, const Tensor& x) { return m(x).output; }, 128, 128),
    layer_case<MultiheadAttention>(
        "m(a, a, a, need_weights=False)[0]", "torch.nn.MultiheadAttention(256, 8, batch_first=True)", {8, 128, 256},
        [](const MultiheadAttention& m, const Tensor& x) { return m(x, x, x); }, 256, 8),
};

const std::vector<OpCase> losses = {
    {"F.cross_entropy(a, b)",
     {{4096, 10}, {4096}},
     [](const Tensors& in) { return ls::cross_entropy(in[0], in[1]).value(); },
     classes(10)},
    {"F.cross_entropy(a, b)",
     {{1024, 1024}, {1024}},
     [](const Tensors& in) { return ls::cross_entropy(in[0], in[1]).value(); },
     classes(1024)},
    {"F.binary_cross_entropy_with_logits(a, b.detach())",
     {large, large},
     [](const Tensors& in) { return ls::binary_cross_entropy_with_logits(in[0], in[1].detach()).value(); }},
    {"F.binary_cross_entropy(a.sigmoid(), b.to(a.dtype))",
     {large, large},
     [](const Tensors& in) { return ls::binary_cross_entropy(ls::sigmoid(in[0]), in[1].to(in[0].dtype())).value(); },
     mask},
    {"F.mse_loss(a, b)", {large, large}, [](const Tensors& in) { return ls::mse_loss(in[0], in[1]).value(); }},
    {"F.l1_loss(a, b)", {large, large}, [](const Tensors& in) { return ls::l1_loss(in[0], in[1]).value(); }},
    {"F.smooth_l1_loss(a, b)",
     {large, large},
     [](const Tensors& in) { return ls::smooth_l1_loss(in[0], in[1]).value(); }},
    {"F.huber_loss(a, b)", {large, large}, [](const Tensors& in) { return ls::huber_loss(in[0], in[1]).value(); }},
    {"F.kl_div(a, b.detach().abs(), reduction='batchmean')",
     {large, large},
     [](const Tensors& in) {
         return KlDivLoss{{.reduction = KlDivOptions::Reduction::batchmean}}(in[0], ls::abs(in[1].detach())).value();
     }},
};

const std::vector<OpCase> other_dtypes = {
    {"a + b", {large, large}, [](const Tensors& in) { return in[0] + in[1]; }, {}, DType::f64},
    {"torch.exp(a)", {large}, [](const Tensors& in) { return ls::exp(in[0]); }, {}, DType::f64},
    {"F.gelu(a)", {large}, [](const Tensors& in) { return ls::gelu(in[0]); }, {}, DType::f64},
    {"torch.softmax(a, 1)", {large}, [](const Tensors& in) { return ls::softmax(in[0], 1); }, {}, DType::f64},
    {"a @ b", {{256, 256}, {256, 256}}, [](const Tensors& in) { return ls::matmul(in[0], in[1]); }, {}, DType::f64},
    {"a + b", {large, large}, [](const Tensors& in) { return in[0] + in[1]; }, {}, DType::bf16},
    {"F.gelu(a)", {large}, [](const Tensors& in) { return ls::gelu(in[0]); }, {}, DType::bf16},
    {"F.silu(a)", {large}, [](const Tensors& in) { return ls::silu(in[0]); }, {}, DType::bf16},
    {"torch.softmax(a, 1)", {large}, [](const Tensors& in) { return ls::softmax(in[0], 1); }, {}, DType::bf16},
    {"F.layer_norm(a, (1024,))",
     {large},
     [](const Tensors& in) { return ls::layer_norm(in[0], Shape{1024}); },
     {},
     DType::bf16},
    {"a.sum(1)", {large}, [](const Tensors& in) { return ls::sum(in[0], 1); }, {}, DType::bf16},
    {"F.linear(a, b)",
     {{1024, 256}, {1024, 256}},
     [](const Tensors& in) { return ls::linear(in[0], in[1]); },
     {},
     DType::bf16},
    {"F.scaled_dot_product_attention(a, b, c)",
     {heads, heads, heads},
     [](const Tensors& in) { return ls::scaled_dot_product_attention(in[0], in[1], in[2]); },
     {},
     DType::bf16},
    {"a + b", {large, large}, [](const Tensors& in) { return in[0] + in[1]; }, {}, DType::f16},
    {"F.gelu(a)", {large}, [](const Tensors& in) { return ls::gelu(in[0]); }, {}, DType::f16},
};

}  // namespace

const std::vector<OpCase>& op_cases() {
    static const std::vector<OpCase> all = [] {
        std::vector<OpCase> joined;
        for (const auto* family :
             {&elementwise, &reductions, &pieces, &normalizations, &convolutions, &products, &losses, &other_dtypes})
            joined.insert(joined.end(), family->begin(), family->end());
        return joined;
    }();
    return all;
}

}  // namespace lockstep::bench
