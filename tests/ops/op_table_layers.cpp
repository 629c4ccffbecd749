// Linear, convolution, pooling, normalisation and softmax of the op table.
#include <fmt/format.h>

#include "lockstep/ops/functional.h"
#include "lockstep/tests/ops/op_table.h"

namespace lockstep::test {

namespace {

struct LinearOp final : Op {
    LinearOp(Sizes x, std::ptrdiff_t o, bool b) : shape(std::move(x)), out(o), bias(b) {}
    Sizes shape;
    std::ptrdiff_t out;
    bool bias;

    std::string name() const override {
        return fmt::format("linear {} to {}{}", shape.back(), out, bias ? " bias" : "");
    }
    std::string torch() const override { return bias ? "F.linear(a, b, c)" : "F.linear(a, b)"; }
    std::vector<Input> inputs() const override {
        std::vector<Input> list{{shape}, {{out, shape.back()}}};
        if (bias) list.push_back({{out}});
        return list;
    }
    Tensor run(const std::vector<Tensor>& in) const override { return linear(in[0], in[1], bias ? in[2] : Tensor()); }
    Array reference(const std::vector<Array>& in) const override {
        const std::ptrdiff_t features = shape.back(), rows = in[0].size() / features;
        Sizes result = shape;
        result.back() = out;
        Array y(result);
        for (std::ptrdiff_t r = 0; r < rows; ++r)
            for (std::ptrdiff_t o = 0; o < out; ++o) {
                double& value = y[r * out + o];
                if (bias) value = in[2][o];
                for (std::ptrdiff_t i = 0; i < features; ++i)
                    value += in[0][r * features + i] * in[1][o * features + i];
            }
        return y;
    }
    std::vector<Array> reference_gradients(const std::vector<Array>& in, const Array& dy) const override {
        const std::ptrdiff_t features = shape.back(), rows = in[0].size() / features;
        std::vector<Array> gradients{Array(in[0].shape), Array(in[1].shape)};
        if (bias) gradients.emplace_back(in[2].shape);
        for (std::ptrdiff_t r = 0; r < rows; ++r)
            for (std::ptrdiff_t o = 0; o < out; ++o) {
                const double slope = dy[r * out + o];
                if (bias) gradients[2][o] += slope;
                for (std::ptrdiff_t i = 0; i < features; ++i) {
                    gradients[0][r * features + i] += slope * in[1][o * features + i];
                    gradients[1][o * features + i] += slope * in[0][r * features + i];
                }
            }
        return gradients;
    }
};

struct ConvOp final : Op {
    ConvOp(Sizes x, Sizes w, Pair s, Pair p, bool b, bool x_gradient = true)
        : shape(std::move(x)), weight(std::move(w)), stride(s), padding(p), bias(b), input_gradient(x_gradient) {}
    ConvOp(Sizes x, Sizes w, Pair s, Pair p, Pair d, std::int64_t g, bool b)
        : ConvOp(std::move(x), std::move(w), s, p, b) {
        dilation = d;
        groups = g;
    }
    Sizes shape, weight;
    Pair stride, padding, dilation = 1;
    std::int64_t groups = 1;
    bool bias, input_gradient;

    std::string name() const override {
        return fmt::format(
            "conv2d {} channels to {}, {}x{}, stride ({}, {}), padding ({}, {}), dilation ({}, {}), groups {}{}",
            shape[1], weight[0], weight[2], weight[3], stride.h, stride.w, padding.h, padding.w, dilation.h, dilation.w,
            groups, bias ? ", bias" : "");
    }
    std::string torch() const override {
        return fmt::format("F.conv2d(a, b, {}, ({}, {}), ({}, {}), ({}, {}), {})", bias ? "c" : "None", stride.h,
                           stride.w, padding.h, padding.w, dilation.h, dilation.w, groups);
    }
    std::vector<Input> inputs() const override {
        std::vector<Input> list{{shape, Values::any, input_gradient}, {weight}};
        if (bias) list.push_back({{weight[0]}});
        return list;
    }
    reference::Window window() const {
        return {stride.h, stride.w, padding.h, padding.w, dilation.h, dilation.w, groups};
    }
    Tensor run(const std::vector<Tensor>& in) const override {
        return conv2d(in[0], in[1], bias ? in[2] : Tensor(), stride, padding, dilation, groups);
    }
    Array reference(const std::vector<Array>& in) const override {
        return reference::conv2d(in[0], in[1], bias ? in[2] : Array(), window());
    }
    std::vector<Array> reference_gradients(const std::vector<Array>& in, const Array& dy) const override {
        return reference::conv2d_gradients(in[0], in[1], bias, window(), dy);
    }
    // Winograd's transforms lose some digits.
    double bound() const override { return 5e-6; }
};

struct ConvTransposeOp final : Op {
    ConvTransposeOp(Sizes x, Sizes w, Pair s, Pair p, Pair o, bool b)
        : shape(std::move(x)), weight(std::move(w)), stride(s), padding(p), output_padding(o), bias(b) {}
    ConvTransposeOp(Sizes x, Sizes w, Pair s, Pair p, Pair o, std::int64_t g, Pair d, bool b)
        : ConvTransposeOp(std::move(x), std::move(w), s, p, o, b) {
        groups = g;
        dilation = d;
    }
    Sizes shape, weight;
    Pair stride, padding, output_padding;
    std::int64_t groups = 1;
    Pair dilation = 1;
    bool bias;

    std::ptrdiff_t channels() const { return weight[1] * groups; }
    std::string name() const override {
        return fmt::format(
            "conv_transpose2d {} channels to {}, {}x{}, stride ({}, {}), padding ({}, {}) and ({}, {}), groups {}, "
            "dilation ({}, {}){}",
            shape[1], channels(), weight[2], weight[3], stride.h, stride.w, padding.h, padding.w, output_padding.h,
            output_padding.w, groups, dilation.h, dilation.w, bias ? ", bias" : "");
    }
    std::string torch() const override {
        return fmt::format("F.conv_transpose2d(a, b, {}, ({}, {}), ({}, {}), ({}, {}), {}, ({}, {}))",
                           bias ? "c" : "None", stride.h, stride.w, padding.h, padding.w, output_padding.h,
                           output_padding.w, groups, dilation.h, dilation.w);
    }
    std::vector<Input> inputs() const override {
        std::vector<Input> list{{shape}, {weight}};
        if (bias) list.push_back({{channels()}});
        return list;
    }
    Tensor run(const std::vector<Tensor>& in) const override {
        return conv_transpose2d(in[0], in[1], bias ? in[2] : Tensor(), stride, padding, output_padding, groups,
                                dilation);
    }
    Sizes result() const {
        return {shape[0], channels(),
                (shape[2] - 1) * stride.h - 2 * padding.h + dilation.h * (weight[2] - 1) + 1 + output_padding.h,
                (shape[3] - 1) * stride.w - 2 * padding.w + dilation.w * (weight[3] - 1) + 1 + output_padding.w};
    }
    /// Calls f(x index, weight index, y index) for every product.
    template <class F>
    void for_each_product(F f) const {
        const Sizes y = result();
        reference::for_each_index(weight, [&](const Sizes& w) {
            for (std::ptrdiff_t n = 0; n < shape[0]; ++n)
                for (std::ptrdiff_t h = 0; h < shape[2]; ++h)
                    for (std::ptrdiff_t c = 0; c < shape[3]; ++c) {
                        const std::ptrdiff_t row = h * stride.h + w[2] * dilation.h - padding.h;
                        const std::ptrdiff_t column = c * stride.w + w[3] * dilation.w - padding.w;
                        if (row < 0 || row >= y[2] || column < 0 || column >= y[3]) continue;
                        f(reference::position(shape, {n, w[0], h, c}), reference::position(weight, w),
                          reference::position(y, {n, w[0] / (shape[1] / groups) * weight[1] + w[1], row, column}));
                    }
        });
    }
    Array reference(const std::vector<Array>& in) const override {
        Array y(result());
        const std::ptrdiff_t plane = y.shape[2] * y.shape[3];
        for (std::ptrdiff_t i = 0; bias && i < y.size(); ++i) y[i] = in[2][i / plane % channels()];
        for_each_product([&](auto x, auto w, auto to) { y[to] += in[0][x] * in[1][w]; });
        return y;
    }
    std::vector<Array> reference_gradients(const std::vector<Array>& in, const Array& dy) const override {
        std::vector<Array> gradients{Array(shape), Array(weight)};
        for_each_product([&](auto x, auto w, auto from) {
            gradients[0][x] += in[1][w] * dy[from];
            gradients[1][w] += in[0][x] * dy[from];
        });
        if (!bias) return gradients;
        gradients.emplace_back(Sizes{channels()});
        const std::ptrdiff_t plane = dy.shape[2] * dy.shape[3];
        for (std::ptrdiff_t i = 0; i < dy.size(); ++i) gradients[2][i / plane % channels()] += dy[i];
        return gradients;
    }
    // Same bound as ConvOp.
    double bound() const override { return 5e-6; }
};

struct MaxPoolOp final : Op {
    MaxPoolOp(Sizes x, Pair k, Pair s, Pair p) : shape(std::move(x)), kernel(k), stride(s), padding(p) {}
    Sizes shape;
    Pair kernel, stride, padding;

    std::string name() const override {
        return fmt::format("max_pool2d of {} channels, {}x{}, stride ({}, {}), padding ({}, {})", shape[1], kernel.h,
                           kernel.w, stride.h, stride.w, padding.h, padding.w);
    }
    std::string torch() const override {
        return fmt::format("F.max_pool2d(a, ({}, {}), stride=({}, {}), padding=({}, {}))", kernel.h, kernel.w, stride.h,
                           stride.w, padding.h, padding.w);
    }
    std::vector<Input> inputs() const override { return {{shape}}; }
    Tensor run(const std::vector<Tensor>& in) const override { return max_pool2d(in[0], kernel, stride, padding); }
    Array reference(const std::vector<Array>& in) const override {
        return reference::max_pool2d(in[0], kernel.h, kernel.w, {stride.h, stride.w, padding.h, padding.w});
    }
    bool keeps_layout() const override { return true; }
};

struct BatchNormOp final : Op {
    BatchNormOp(Sizes x, bool train, bool with_affine) : shape(std::move(x)), training(train), affine(with_affine) {}
    Sizes shape;
    bool training, affine;
    static constexpr double eps = 1e-5;

    std::string name() const override {
        return fmt::format("batch_norm of {} channels, {}{}", shape[1], training ? "training" : "evaluation",
                           affine ? ", affine" : "");
    }
    std::string torch() const override {
        return fmt::format("F.batch_norm(a, {}, {}, training={})", training ? "None, None" : "d, e",
                           affine ? "b, c" : "None, None", training ? "True" : "False");
    }
    std::vector<Input> inputs() const override {
        const Sizes channels{shape[1]};
        return {{shape},
                {channels, Values::any, affine},
                {channels, Values::any, affine},
                {channels, Values::any, false},
                {channels, Values::positive, false}};
    }
    Tensor run(const std::vector<Tensor>& in) const override {
        const Tensor none;
        return batch_norm(in[0], training ? none : in[3], training ? none : in[4], affine ? in[1] : none,
                          affine ? in[2] : none, {.training = training, .eps = eps});
    }
    Array reference(const std::vector<Array>& in) const override {
        const Array one(Sizes{shape[1]}, 1), zero(Sizes{shape[1]});
        const reference::ChannelStats stats =
            training ? reference::channel_stats(in[0]) : reference::ChannelStats{in[3].v, in[4].v};
        return reference::batch_norm(in[0], stats, affine ? in[1] : one, affine ? in[2] : zero, eps);
    }
    std::vector<Array> reference_gradients(const std::vector<Array>& in, const Array& dy) const override {
        const reference::ChannelStats stats =
            training ? reference::channel_stats(in[0]) : reference::ChannelStats{in[3].v, in[4].v};
        const std::ptrdiff_t pixels = shape[2] * shape[3], count = shape[0] * pixels;
        std::vector<Array> gradients{Array(shape), Array(in[1].shape), Array(in[2].shape), Array(), Array()};
        for (std::ptrdiff_t c = 0; c < shape[1]; ++c) {
            const auto channel = static_cast<std::size_t>(c);
            const double scale = 1 / std::sqrt(stats.variance[channel] + eps);
            const auto normalized = [&](std::ptrdiff_t i) { return (in[0][i] - stats.mean[channel]) * scale; };
            const auto for_each = [&](auto visit) {
                for (std::ptrdiff_t k = 0; k < count; ++k) visit((k / pixels * shape[1] + c) * pixels + k % pixels);
            };
            double& weight = gradients[1][c];
            double& bias = gradients[2][c];
            for_each([&](std::ptrdiff_t i) {
                weight += dy[i] * normalized(i);
                bias += dy[i];
            });
            for_each([&](std::ptrdiff_t i) {
                const double of_statistics = (bias + normalized(i) * weight) / static_cast<double>(count);
                gradients[0][i] = (affine ? in[1][c] : 1) * scale * (dy[i] - (training ? of_statistics : 0));
            });
        }
        return gradients;
    }
    bool keeps_layout() const override { return shape[1] % 16 == 0; }
    // Two values in a channel can be close together: their distance is a divisor.
    double bound() const override { return 2e-5; }
};

struct LayerNormOp final : Op {
    LayerNormOp(Sizes x, std::size_t normalized, bool w, bool b)
        : shape(std::move(x)),
          layer(shape.end() - static_cast<std::ptrdiff_t>(normalized), shape.end()),
          weight(w),
          bias(b) {}
    Sizes shape, layer;
    bool weight, bias;
    static constexpr double eps = 1e-3;

    std::string name() const override {
        return fmt::format("layer_norm of {} dimensions over {}{}{}", shape.size(), layer.size(),
                           weight ? ", weight" : "", bias ? ", bias" : "");
    }
    std::string torch() const override {
        return fmt::format("F.layer_norm(a, b.shape, {}, {}, {})", weight ? "b" : "None", bias ? "c" : "None", eps);
    }
    std::vector<Input> inputs() const override {
        return {{shape}, {layer, Values::any, weight}, {layer, Values::any, bias}};
    }
    Tensor run(const std::vector<Tensor>& in) const override {
        return layer_norm(in[0], to_shape(layer), weight ? in[1] : Tensor(), bias ? in[2] : Tensor(), eps);
    }
    Array reference(const std::vector<Array>& in) const override {
        const std::ptrdiff_t size = in[1].size();
        Array y(shape);
        for (std::ptrdiff_t first = 0; first < y.size(); first += size) {
            double mean = 0, variance = 0;
            for (std::ptrdiff_t i = 0; i < size; ++i) mean += in[0][first + i] / static_cast<double>(size);
            for (std::ptrdiff_t i = 0; i < size; ++i)
                variance += (in[0][first + i] - mean) * (in[0][first + i] - mean) / static_cast<double>(size);
            for (std::ptrdiff_t i = 0; i < size; ++i)
                y[first + i] = (in[0][first + i] - mean) / std::sqrt(variance + eps) * (weight ? in[1][i] : 1) +
                               (bias ? in[2][i] : 0);
        }
        return y;
    }
    std::vector<Array> reference_gradients(const std::vector<Array>& in, const Array& dy) const override {
        const std::ptrdiff_t size = in[1].size();
        std::vector<Array> gradients{Array(shape), Array(layer), Array(layer)};
        for (std::ptrdiff_t first = 0; first < dy.size(); first += size) {
            const double* const x = &in[0].v[static_cast<std::size_t>(first)];
            const double* const g = &dy.v[static_cast<std::size_t>(first)];
            const auto of = [size](auto value) {
                double sum = 0;
                for (std::ptrdiff_t i = 0; i < size; ++i) sum += value(i);
                return sum / static_cast<double>(size);
            };
            const double mean = of([&](std::ptrdiff_t i) { return x[i]; });
            const double scale =
                1 / std::sqrt(of([&](std::ptrdiff_t i) { return (x[i] - mean) * (x[i] - mean); }) + eps);
            const auto normalized = [&](std::ptrdiff_t i) { return (x[i] - mean) * scale; };
            const auto weighted = [&](std::ptrdiff_t i) { return g[i] * (weight ? in[1][i] : 1); };
            const double of_mean = of(weighted);
            const double of_scale = of([&](std::ptrdiff_t i) { return weighted(i) * normalized(i); });
            for (std::ptrdiff_t i = 0; i < size; ++i) {
                gradients[0][first + i] = scale * (weighted(i) - of_mean - normalized(i) * of_scale);
                gradients[1][i] += g[i] * normalized(i);
                gradients[2][i] += g[i];
            }
        }
        return gradients;
    }
};

struct SoftmaxOp final : Op {
    SoftmaxOp(bool log, Sizes x, int d) : logarithm(log), shape(std::move(x)), dim(d) {}
    bool logarithm;
    Sizes shape;
    int dim;

    std::string function() const { return logarithm ? "log_softmax" : "softmax"; }

    std::string name() const override {
        return fmt::format("{} along {} of {} dimensions", function(), dim, shape.size());
    }
    std::string torch() const override { return fmt::format("F.{}(a, {})", function(), dim); }
    std::vector<Input> inputs() const override { return {{shape}}; }
    Tensor run(const std::vector<Tensor>& in) const override {
        return logarithm ? log_softmax(in[0], dim) : softmax(in[0], dim);
    }
    Array reference(const std::vector<Array>& in) const override {
        const int along = dim < 0 ? dim + static_cast<int>(shape.size()) : dim;
        const Array result = reference::log_softmax(in[0], static_cast<std::size_t>(along));
        return logarithm ? result : reference::map(result, [](double y) { return std::exp(y); });
    }
    std::vector<Array> reference_gradients(const std::vector<Array>& in, const Array& dy) const override {
        const auto product = [](double a, double b) { return a * b; };
        const auto difference = [](double a, double b) { return a - b; };
        const auto along = static_cast<std::size_t>(dim < 0 ? dim + static_cast<int>(shape.size()) : dim);
        const Array y = reference(in);
        if (!logarithm) {
            const Array mean = reference::sum(reference::combine(dy, y, product), {along});
            return {reference::combine(y, reference::combine(dy, mean, difference), product)};
        }
        const Array shares = reference::map(y, [](double value) { return std::exp(value); });
        return {reference::combine(dy, reference::combine(shares, reference::sum(dy, {along}), product), difference)};
    }
};

}  // namespace

void add_layers(Table& table) {
    for (const bool bias : {true, false}) {
        table.push_back(std::make_unique<LinearOp>(Sizes{5, 7}, 3, bias));
        table.push_back(std::make_unique<LinearOp>(Sizes{1, 20}, 10, bias));
        table.push_back(std::make_unique<LinearOp>(Sizes{33, 1}, 1, bias));
        table.push_back(std::make_unique<LinearOp>(Sizes{2, 3, 5}, 4, bias));
        table.push_back(std::make_unique<LinearOp>(Sizes{6}, 4, bias));
        table.push_back(std::make_unique<LinearOp>(Sizes{9, 1100}, 7, bias));
        table.push_back(std::make_unique<LinearOp>(Sizes{70, 20}, 10, bias));

        table.push_back(std::make_unique<ConvOp>(Sizes{2, 1, 7, 9}, Sizes{10, 1, 5, 5}, 1, 0, bias));
        table.push_back(std::make_unique<ConvOp>(Sizes{1, 10, 6, 7}, Sizes{20, 10, 5, 5}, 1, 0, bias));
        table.push_back(std::make_unique<ConvOp>(Sizes{3, 1, 9, 8}, Sizes{32, 1, 3, 3}, 1, 0, bias, false));
        table.push_back(std::make_unique<ConvOp>(Sizes{2, 32, 8, 9}, Sizes{64, 32, 3, 3}, 1, 0, bias));
        table.push_back(std::make_unique<ConvOp>(Sizes{2, 16, 7, 5}, Sizes{16, 16, 3, 3}, 1, 1, bias));
        table.push_back(std::make_unique<ConvOp>(Sizes{2, 16, 8, 7}, Sizes{32, 16, 3, 3}, 2, 1, bias));
        table.push_back(std::make_unique<ConvOp>(Sizes{2, 16, 5, 4}, Sizes{16, 16, 1, 1}, 1, 0, bias));
        table.push_back(std::make_unique<ConvOp>(Sizes{2, 3, 8, 11}, Sizes{5, 3, 2, 4}, Pair{2, 3}, Pair{1, 2}, bias));
        table.push_back(std::make_unique<ConvOp>(Sizes{1, 1, 1, 1}, Sizes{1, 1, 1, 1}, 1, 0, bias));
        table.push_back(std::make_unique<ConvOp>(Sizes{2, 7, 5, 5}, Sizes{9, 7, 3, 3}, 1, 1, bias));

        const auto add_conv = [&](Sizes x, Sizes w, Pair stride, Pair padding, Pair dilation, std::int64_t groups) {
            table.push_back(
                std::make_unique<ConvOp>(std::move(x), std::move(w), stride, padding, dilation, groups, bias));
        };
        add_conv({2, 16, 7, 6}, {16, 1, 3, 3}, 1, 1, 1, 16);
        add_conv({3, 10, 7, 5}, {10, 1, 5, 5}, {2, 1}, 2, 1, 10);
        add_conv({2, 16, 8, 7}, {16, 1, 3, 3}, 1, 2, 2, 16);
        add_conv({1, 3, 5, 6}, {6, 1, 3, 3}, 1, 1, 1, 3);
        add_conv({2, 32, 6, 5}, {32, 16, 3, 3}, 1, 1, 1, 2);
        add_conv({2, 6, 7, 8}, {9, 2, 3, 2}, {2, 1}, {1, 2}, {1, 3}, 3);
        add_conv({2, 16, 9, 8}, {16, 16, 3, 3}, 1, 2, 2, 1);
        add_conv({2, 3, 9, 11}, {5, 3, 3, 3}, 1, 0, {2, 3}, 1);
        add_conv({2, 20, 5, 4}, {10, 10, 1, 1}, 1, 0, 1, 2);

        table.push_back(std::make_unique<ConvTransposeOp>(Sizes{2, 3, 4, 3}, Sizes{3, 5, 3, 3}, 1, 0, 0, bias));
        table.push_back(std::make_unique<ConvTransposeOp>(Sizes{2, 16, 4, 5}, Sizes{16, 32, 3, 3}, 2, 1, 1, bias));
        table.push_back(std::make_unique<ConvTransposeOp>(Sizes{2, 32, 4, 3}, Sizes{32, 16, 4, 4}, 2, 1, 0, bias));
        table.push_back(std::make_unique<ConvTransposeOp>(Sizes{2, 16, 5, 6}, Sizes{16, 16, 3, 3}, 1, 1, 0, bias));
        table.push_back(std::make_unique<ConvTransposeOp>(Sizes{2, 16, 3, 4}, Sizes{16, 16, 1, 1}, 1, 0, 0, bias));
        table.push_back(std::make_unique<ConvTransposeOp>(Sizes{2, 10, 3, 4}, Sizes{10, 20, 2, 2}, 2, 0, 0, bias));
        table.push_back(std::make_unique<ConvTransposeOp>(Sizes{2, 3, 4, 5}, Sizes{3, 2, 2, 5}, Pair{2, 3}, Pair{1, 2},
                                                          Pair{1, 2}, bias));
        table.push_back(std::make_unique<ConvTransposeOp>(Sizes{1, 1, 1, 1}, Sizes{1, 1, 1, 1}, 1, 0, 0, bias));
        const auto add_transposed = [&](Sizes x, Sizes w, Pair stride, Pair padding, Pair more, std::int64_t groups,
                                        Pair dilation) {
            table.push_back(std::make_unique<ConvTransposeOp>(std::move(x), std::move(w), stride, padding, more, groups,
                                                              dilation, bias));
        };
        add_transposed({2, 16, 4, 5}, {16, 1, 3, 3}, 2, 1, 1, 16, 1);
        add_transposed({2, 10, 4, 3}, {10, 2, 3, 3}, 2, 1, 0, 5, 1);
        add_transposed({2, 16, 4, 5}, {16, 8, 3, 3}, 1, 1, 0, 1, 2);
        add_transposed({1, 6, 4, 3}, {6, 2, 2, 3}, {2, 3}, {1, 2}, {0, 2}, 3, {3, 1});
        add_transposed({2, 4, 3, 4}, {4, 3, 2, 3}, {1, 2}, {1, 2}, {2, 3}, 1, {3, 4});
    }
    table.push_back(std::make_unique<MaxPoolOp>(Sizes{2, 1, 6, 8}, 2, 2, 0));
    table.push_back(std::make_unique<MaxPoolOp>(Sizes{1, 10, 7, 5}, 2, 2, 0));
    table.push_back(std::make_unique<MaxPoolOp>(Sizes{2, 32, 6, 6}, 2, 2, 0));
    table.push_back(std::make_unique<MaxPoolOp>(Sizes{2, 16, 7, 9}, 3, 2, 1));
    table.push_back(std::make_unique<MaxPoolOp>(Sizes{2, 20, 8, 8}, 2, 2, 0));
    table.push_back(std::make_unique<MaxPoolOp>(Sizes{2, 10, 7, 9}, 3, 2, 1));
    table.push_back(std::make_unique<MaxPoolOp>(Sizes{3, 20, 5, 6}, Pair{3, 2}, Pair{1, 2}, Pair{1, 0}));
    table.push_back(std::make_unique<MaxPoolOp>(Sizes{2, 16, 8, 8}, 3, 1, 0));
    // Rows of more than 16 windows, and rows that the loops for wide ones process.
    table.push_back(std::make_unique<MaxPoolOp>(Sizes{1, 3, 5, 39}, 3, 2, 1));
    table.push_back(std::make_unique<MaxPoolOp>(Sizes{1, 2, 4, 19}, 2, 1, 1));
    table.push_back(std::make_unique<MaxPoolOp>(Sizes{1, 1, 7, 26}, Pair{2, 5}, Pair{3, 3}, Pair{0, 2}));
    table.push_back(std::make_unique<MaxPoolOp>(Sizes{1, 1, 2, 515}, Pair{1, 3}, Pair{1, 2}, Pair{0, 1}));
    table.push_back(std::make_unique<MaxPoolOp>(Sizes{1, 3, 7, 6}, 2, 2, 0));
    table.push_back(std::make_unique<MaxPoolOp>(Sizes{2, 16, 7, 5}, 2, 2, 0));
    table.push_back(std::make_unique<MaxPoolOp>(Sizes{1, 20, 8, 10}, 3, 3, 0));
    for (const bool training : {true, false})
        for (const bool affine : {true, false}) {
            table.push_back(std::make_unique<BatchNormOp>(Sizes{4, 3, 5, 3}, training, affine));
            table.push_back(std::make_unique<BatchNormOp>(Sizes{2, 16, 3, 4}, training, affine));
            table.push_back(std::make_unique<BatchNormOp>(Sizes{1, 10, 3, 5}, training, affine));
            table.push_back(std::make_unique<BatchNormOp>(Sizes{7, 1, 1, 1}, training, affine));
            // Sums by warps and by blocks, in parts.
            table.push_back(std::make_unique<BatchNormOp>(Sizes{4, 3, 12, 13}, training, affine));
            table.push_back(std::make_unique<BatchNormOp>(Sizes{2, 2, 90, 50}, training, affine));
        }
    for (const bool weight : {true, false})
        for (const bool bias : {true, false}) {
            table.push_back(std::make_unique<LayerNormOp>(Sizes{5, 7}, 1, weight, bias));
            table.push_back(std::make_unique<LayerNormOp>(Sizes{33, 1}, 1, weight, bias));
            table.push_back(std::make_unique<LayerNormOp>(Sizes{9}, 1, weight, bias));
            table.push_back(std::make_unique<LayerNormOp>(Sizes{2, 3, 5}, 1, weight, bias));
            table.push_back(std::make_unique<LayerNormOp>(Sizes{3, 4, 5}, 2, weight, bias));
            table.push_back(std::make_unique<LayerNormOp>(Sizes{2, 16, 3, 5}, 3, weight, bias));
            table.push_back(std::make_unique<LayerNormOp>(Sizes{3, 1100}, 1, weight, bias));
            table.push_back(std::make_unique<LayerNormOp>(Sizes{2, 2049}, 1, weight, bias));
            table.push_back(std::make_unique<LayerNormOp>(Sizes{700, 5}, 1, weight, bias));
            table.push_back(std::make_unique<LayerNormOp>(Sizes{300, 128}, 1, weight, bias));  // packs
            table.push_back(std::make_unique<LayerNormOp>(Sizes{2, 2056}, 1, weight, bias));
        }
    for (const bool logarithm : {true, false}) {
        table.push_back(std::make_unique<SoftmaxOp>(logarithm, Sizes{5, 10}, 1));
        table.push_back(std::make_unique<SoftmaxOp>(logarithm, Sizes{1, 10}, -1));
        table.push_back(std::make_unique<SoftmaxOp>(logarithm, Sizes{3, 1}, 1));
        table.push_back(std::make_unique<SoftmaxOp>(logarithm, Sizes{6, 7}, 0));
        table.push_back(std::make_unique<SoftmaxOp>(logarithm, Sizes{2, 16, 3, 5}, 1));
        table.push_back(std::make_unique<SoftmaxOp>(logarithm, Sizes{67, 33}, 1));
        table.push_back(std::make_unique<SoftmaxOp>(logarithm, Sizes{3, 700}, 1));
        table.push_back(std::make_unique<SoftmaxOp>(logarithm, Sizes{2, 2049}, 1));
        table.push_back(std::make_unique<SoftmaxOp>(logarithm, Sizes{1, 9000}, -1));
        table.push_back(std::make_unique<SoftmaxOp>(logarithm, Sizes{2100, 3}, 0));
        table.push_back(std::make_unique<SoftmaxOp>(logarithm, Sizes{7, 768}, 1));  // packs
        table.push_back(std::make_unique<SoftmaxOp>(logarithm, Sizes{2, 2056}, 1));
        table.push_back(std::make_unique<SoftmaxOp>(logarithm, Sizes{300, 128}, 0));
        table.push_back(std::make_unique<SoftmaxOp>(logarithm, Sizes{3, 5, 4, 2}, 1));
    }
}

}  // namespace lockstep::test
