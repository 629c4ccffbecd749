// Image entries of the op table: resizing, padding, and concatenation of channels.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/histogram.h"
#include "lockstep/tests/ops/op_table.h"

namespace lockstep::test {

namespace {

/// Linear map from an image to its interpolation along one dimension: weights (out, in), by PyTorch's formulas.
struct Weights {
    std::ptrdiff_t out, in;
    std::vector<double> of;

    Weights(const InterpolateOptions& options, std::ptrdiff_t size_in, std::ptrdiff_t size_out, double factor)
        : out(size_out), in(size_in), of(static_cast<std::size_t>(size_in * size_out)) {
        const double ratio = factor > 0 ? 1 / factor : static_cast<double>(in) / static_cast<double>(out);
        for (std::ptrdiff_t o = 0; o < out; ++o) {
            double* const row = &of[static_cast<std::size_t>(o * in)];
            if (options.mode == InterpolateMode::nearest) {
                row[std::min(static_cast<std::ptrdiff_t>(std::floor(static_cast<double>(o) * ratio + 1e-7)), in - 1)] =
                    1;
                continue;
            }
            const double corners = out > 1 ? static_cast<double>(in - 1) / static_cast<double>(out - 1) : 0;
            const double at = options.align_corners ? static_cast<double>(o) * corners
                                                    : std::max(0.0, (static_cast<double>(o) + 0.5) * ratio - 0.5);
            // A hat function for every element; positions beyond the last element belong to that one.
            for (std::ptrdiff_t i = 0; i < in; ++i)
                row[i] +=
                    std::max(0.0, 1 - std::abs(std::min(at, static_cast<double>(in - 1)) - static_cast<double>(i)));
        }
    }
};

struct InterpolateOp final : Op {
    InterpolateOp(Sizes x, const InterpolateOptions& o) : shape(std::move(x)), options(o) {}
    Sizes shape;
    InterpolateOptions options;

    std::string arguments() const {
        std::string text = options.size
                               ? fmt::format("size=({}, {})", options.size->h, options.size->w)
                               : fmt::format("scale_factor=({}, {})", options.scale_factor->h, options.scale_factor->w);
        if (options.mode == InterpolateMode::nearest) return text + ", mode='nearest'";
        return text + fmt::format(", mode='bilinear', align_corners={}", options.align_corners ? "True" : "False");
    }
    std::string name() const override { return fmt::format("interpolate of {} channels, {}", shape[1], arguments()); }
    std::string torch() const override { return fmt::format("F.interpolate(a, {})", arguments()); }
    std::vector<Input> inputs() const override { return {{shape}}; }
    Tensor run(const std::vector<Tensor>& in) const override { return interpolate(in[0], options); }
    Array reference(const std::vector<Array>& in) const override {
        const auto size = [](std::ptrdiff_t of, double factor) {
            return static_cast<std::ptrdiff_t>(std::floor(static_cast<double>(of) * factor));
        };
        const Sizes to = options.size
                             ? Sizes{options.size->h, options.size->w}
                             : Sizes{size(shape[2], options.scale_factor->h), size(shape[3], options.scale_factor->w)};
        const Weights rows(options, shape[2], to[0], options.size ? 0 : options.scale_factor->h);
        const Weights columns(options, shape[3], to[1], options.size ? 0 : options.scale_factor->w);
        Array y(Sizes{shape[0], shape[1], to[0], to[1]});
        std::ptrdiff_t next = 0;
        for (std::ptrdiff_t plane = 0; plane < shape[0] * shape[1]; ++plane)
            for (std::ptrdiff_t oh = 0; oh < to[0]; ++oh)
                for (std::ptrdiff_t ow = 0; ow < to[1]; ++ow, ++next)
                    for (std::ptrdiff_t h = 0; h < shape[2]; ++h)
                        for (std::ptrdiff_t w = 0; w < shape[3]; ++w)
                            y[next] += rows.of[static_cast<std::size_t>(oh * rows.in + h)] *
                                       columns.of[static_cast<std::size_t>(ow * columns.in + w)] *
                                       in[0][(plane * shape[2] + h) * shape[3] + w];
        return y;
    }
    bool keeps_layout() const override { return true; }
};

struct PadOp final : Op {
    PadOp(Sizes x, std::vector<std::int64_t> a, double v) : shape(std::move(x)), amounts(std::move(a)), value(v) {}
    Sizes shape;
    std::vector<std::int64_t> amounts;
    double value;

    /// Before (0) or after (1) dimension d.
    std::ptrdiff_t amount(std::size_t d, std::size_t side) const {
        const std::size_t at = 2 * (shape.size() - 1 - d) + side;
        return at < amounts.size() ? static_cast<std::ptrdiff_t>(amounts[at]) : 0;
    }
    std::string name() const override { return torch() + fmt::format(" of {} dimensions", shape.size()); }
    std::string torch() const override {
        return fmt::format("F.pad(a, ({}), value={})", fmt::join(amounts, ", "), value);
    }
    std::vector<Input> inputs() const override { return {{shape}}; }
    Tensor run(const std::vector<Tensor>& in) const override { return pad(in[0], amounts, value); }
    bool hands_on_batch(std::size_t) const override { return amount(0, 0) == 0 && amount(0, 1) == 0; }
    Array reference(const std::vector<Array>& in) const override {
        Sizes to = shape;
        for (std::size_t d = 0; d < to.size(); ++d) to[d] += amount(d, 0) + amount(d, 1);
        Array y(to, value);
        std::ptrdiff_t next = 0;
        reference::for_each_index(to, [&](Sizes at) {
            bool inside = true;
            for (std::size_t d = 0; d < at.size(); ++d) {
                at[d] -= amount(d, 0);
                inside = inside && at[d] >= 0 && at[d] < shape[d];
            }
            if (inside) y[next] = in[0][reference::position(shape, at)];
            ++next;
        });
        return y;
    }
    /// True unless channels are cropped, or their padding would not be zero.
    bool keeps_layout() const override { return amounts.size() <= 4 && (value == 0 || shape[1] % 16 == 0); }
};

/// Concatenation of channels of images, as in a U-Net's decoder.
struct CatChannelsOp final : Op {
    CatChannelsOp(Sizes x, std::vector<std::ptrdiff_t> c, bool keeps)
        : shape(std::move(x)), channels(std::move(c)), keeps_blocks(keeps) {}
    Sizes shape;  ///< except for the channels
    std::vector<std::ptrdiff_t> channels;
    bool keeps_blocks;

    std::string name() const override {
        return fmt::format("cat of images with {} channels", fmt::join(channels, ", "));
    }
    std::string torch() const override {
        return fmt::format("torch.cat([{}], 1)", channels.size() == 2 ? "a, b" : "a, b, c");
    }
    std::vector<Input> inputs() const override {
        std::vector<Input> list;
        for (const std::ptrdiff_t c : channels) list.push_back({{shape[0], c, shape[1], shape[2]}});
        return list;
    }
    Tensor run(const std::vector<Tensor>& in) const override { return cat(in, 1); }
    bool hands_on_batch(std::size_t) const override { return true; }
    Array reference(const std::vector<Array>& in) const override { return reference::cat(in, 1); }
    bool keeps_layout() const override { return keeps_blocks; }
};

struct OneHotOp final : Op {
    OneHotOp(Sizes s, int c) : shape(std::move(s)), classes(c) {}
    Sizes shape;
    int classes;

    std::string name() const override {
        return fmt::format("one_hot of {} dimensions, {} classes", shape.size(), classes);
    }
    std::string torch() const override { return fmt::format("F.one_hot(a, {})", classes); }
    std::vector<Input> inputs() const override { return {{shape, Values::classes, false, classes}}; }
    Tensor run(const std::vector<Tensor>& in) const override { return one_hot(in[0], classes); }
    Array reference(const std::vector<Array>& in) const override {
        Sizes to = shape;
        to.push_back(classes);
        Array y(to);
        for (std::ptrdiff_t i = 0; i < in[0].size(); ++i) y[i * classes + static_cast<std::ptrdiff_t>(in[0][i])] = 1;
        return y;
    }
};

struct IsFiniteOp final : Op {
    explicit IsFiniteOp(Input x) : input(std::move(x)) {}
    Input input;

    std::string name() const override { return fmt::format("isfinite of {} dimensions", input.shape.size()); }
    std::string torch() const override { return "a.isfinite()"; }
    std::vector<Input> inputs() const override { return {input}; }
    Tensor run(const std::vector<Tensor>& in) const override { return isfinite(in[0]); }
    Array reference(const std::vector<Array>& in) const override {
        return reference::map(in[0], [](double x) { return std::isfinite(x) ? 1.0 : 0.0; });
    }
};

struct HistogramOp final : Op {
    HistogramOp(Input x, std::vector<double> e) : input(std::move(x)), edges(std::move(e)) {}
    Input input;
    std::vector<double> edges;

    std::string name() const override {
        return fmt::format("histogram of {} dimensions, {} bins", input.shape.size(), edges.size() - 1);
    }
    std::string torch() const override {
        return fmt::format("torch.histogram(a[~a.isnan()], torch.tensor([{}], dtype=a.dtype))[0]",
                           fmt::join(edges, ", "));
    }
    std::vector<Input> inputs() const override { return {input}; }
    Tensor run(const std::vector<Tensor>& in) const override {
        const Tensor bounds = Tensor::from(edges, {static_cast<std::int64_t>(edges.size())}, in[0].device());
        return histogram(in[0], bounds).counts;
    }
    bool hands_on_batch(std::size_t) const override { return false; }
    Array reference(const std::vector<Array>& in) const override {
        const std::size_t bins = edges.size() - 1;
        Array y(Sizes{static_cast<std::ptrdiff_t>(bins)});
        for (const double x : in[0].v)
            for (std::size_t bin = 0; bin < bins; ++bin)
                if (x >= edges[bin] && (x < edges[bin + 1] || (bin + 1 == bins && x == edges[bins])))
                    y[static_cast<std::ptrdiff_t>(bin)] += 1;
        return y;
    }
};

}  // namespace

void add_images(Table& table) {
    const auto all = [&table](const Sizes& shape, InterpolateOptions options) {
        table.push_back(std::make_unique<InterpolateOp>(shape, options));
        options.mode = InterpolateMode::bilinear;
        table.push_back(std::make_unique<InterpolateOp>(shape, options));
        options.align_corners = true;
        table.push_back(std::make_unique<InterpolateOp>(shape, options));
    };
    all({2, 16, 3, 4}, {.scale_factor = 2});
    all({2, 10, 3, 4}, {.scale_factor = 2});
    all({1, 3, 4, 5}, {.scale_factor = ScaleFactor(1.6, 0.7)});
    all({2, 1, 5, 4}, {.size = Pair(3, 7)});
    all({1, 20, 4, 3}, {.size = Pair(4, 1)});
    all({1, 2, 1, 6}, {.size = Pair(5, 2)});
    all({1, 1, 7, 9}, {.size = Pair(2, 4)});
    all({1, 1, 1, 1}, {.size = Pair(3, 2)});

    for (const double value : {0.0, 1.5}) {
        table.push_back(std::make_unique<PadOp>(Sizes{5}, std::vector<std::int64_t>{2, 1}, value));
        table.push_back(std::make_unique<PadOp>(Sizes{2, 16, 3, 4}, std::vector<std::int64_t>{1, 2, 0, 3}, value));
        table.push_back(std::make_unique<PadOp>(Sizes{2, 10, 3, 4}, std::vector<std::int64_t>{0, 1}, value));
        table.push_back(std::make_unique<PadOp>(Sizes{1, 16, 5, 4}, std::vector<std::int64_t>{-1, 2, 1, -2}, value));
        table.push_back(
            std::make_unique<PadOp>(Sizes{2, 16, 3, 4}, std::vector<std::int64_t>{1, 0, 0, 1, 2, 0}, value));
        table.push_back(std::make_unique<PadOp>(Sizes{3, 4}, std::vector<std::int64_t>{1, 1, -1, 1}, value));
        table.push_back(std::make_unique<PadOp>(Sizes{2, 3}, std::vector<std::int64_t>{4, -3}, value));
    }
    const auto cat_of = [&table](const Sizes& shape, const std::vector<std::ptrdiff_t>& channels, bool keeps) {
        table.push_back(std::make_unique<CatChannelsOp>(shape, channels, keeps));
    };
    cat_of({2, 3, 5}, {32, 16}, true);
    cat_of({2, 3, 5}, {16, 16, 32}, true);
    cat_of({1, 3, 5}, {16, 10}, true);
    cat_of({2, 3, 5}, {10, 16}, true);
    cat_of({2, 3, 5}, {20, 10}, true);
    cat_of({2, 3, 5}, {3, 2}, false);

    table.push_back(std::make_unique<OneHotOp>(Sizes{7}, 3));
    table.push_back(std::make_unique<OneHotOp>(Sizes{2, 3, 5}, 2));
    table.push_back(std::make_unique<OneHotOp>(Sizes{1, 1}, 1));
    const std::vector<double> strange{1, NAN, -2, INFINITY, 0, -INFINITY, 0.5, -0.25};
    table.push_back(std::make_unique<IsFiniteOp>(Input{{2, 4}, Values::any, false, 0, strange}));
    table.push_back(std::make_unique<IsFiniteOp>(Input{{2, 16, 3, 4}, Values::any, false}));
    table.push_back(std::make_unique<HistogramOp>(Input{{2, 4}, Values::any, false, 0, strange},
                                                  std::vector<double>{-2, -0.25, 0.5, 1}));
    table.push_back(
        std::make_unique<HistogramOp>(Input{{2, 16, 3, 4}, Values::any, false}, std::vector<double>{-1, 0.5}));
    table.push_back(std::make_unique<HistogramOp>(Input{{5, 41}, Values::any, false},
                                                  std::vector<double>{-2, -1.5, -1, -0.1, 0, 0.3, 1, 1.9}));
}

}  // namespace lockstep::test
