#include "lockstep/ops/cpu/conv/conv_engine.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/ops/cpu/relu.h"
#include "lockstep/runtime/error.h"

namespace lockstep::cpu {
namespace {

using Tag = dnnl::memory::format_tag;

const ConvShape& checked(const ConvShape& s, int threads) {
    const bool sizes = s.n > 0 && s.c > 0 && s.h > 0 && s.w > 0 && s.k > 0 && s.kh > 0 && s.kw > 0;
    const bool steps =
        s.stride.h > 0 && s.stride.w > 0 && s.pad.h >= 0 && s.pad.w >= 0 && s.dilation.h > 0 && s.dilation.w > 0;
    const bool equal_groups = s.groups > 0 && s.c % s.groups == 0 && s.k % s.groups == 0;
    if (!equal_groups)
        throw InvalidArgument(
            fmt::format("convolution of {} channels to {}: invalid number of groups ({}); expected a divisor of both",
                        s.c, s.k, s.groups));
    if (!sizes || !steps || s.h + 2 * s.pad.h < s.window_h() || s.w + 2 * s.pad.w < s.window_w())
        throw InvalidArgument(
            fmt::format("convolution of {}: the output is empty; expected at least one element", text_of(s)));
    if (threads < 1)
        throw InvalidArgument(fmt::format("convolution: invalid number of threads ({}); expected at least 1", threads));
    return s;
}

WinogradShape winograd_shape(const ConvShape& s) { return {s.n, s.c, s.h, s.w, s.k, s.pad.h}; }
FirstLayerShape first_layer_shape(const ConvShape& s) { return {s.n, s.c, s.h, s.w, s.k, s.kh, s.stride.h, s.pad.h}; }

Tag blocked(Isa isa) { return isa_vector_width(isa) == 16 ? Tag::nChw16c : Tag::nChw8c; }

onednn::Desc activation(std::int64_t n, std::int64_t c, std::int64_t h, std::int64_t w, Tag tag) {
    return {{n, c, h, w}, dnnl::memory::data_type::f32, tag};
}

/// Inputs with at most this many channels remain plain: oneDNN's choice is the fastest for them.
constexpr std::int64_t max_plain_channels = 4;

/// oneDNN's SSE kernels add all products of an output, or of an input's gradient, one by one to a single float; its
/// matrix products, which it uses for plain layouts, add them in blocks. Longer sums use the latter.
constexpr std::int64_t longest_sse_sum = 1024;

std::ptrdiff_t floats(const onednn::Desc& layout) {
    return static_cast<std::ptrdiff_t>(layout.get_size() / sizeof(float));
}

bool whole_blocks(const ConvShape& s, Isa isa) {
    const int width = isa_vector_width(isa);
    return s.c / s.groups % width == 0 && s.k / s.groups % width == 0;
}

// Names of algorithms, which checkpoints contain.
std::string winograd_name(Isa with) { return fmt::format("winograd {}", isa_name(with)); }
constexpr const char *depthwise = "depthwise", *first_layer = "first layer", *plain = "direct plain",
                     *channels_last = "direct channels last", *own_layouts = "direct";

std::string by_rule(const ConvShape& shape, Isa isa, ConvAlgorithm algorithm) {
    const std::vector<std::string> ways = ConvEngine::algorithms(shape, isa);
    if (algorithm != ConvAlgorithm::direct) return ways.front();
    return *std::find_if(ways.begin(), ways.end(), [](const std::string& way) { return !way.starts_with("winograd"); });
}

}  // namespace

std::vector<std::string> ConvEngine::algorithms(const ConvShape& s, Isa isa) {
    std::vector<std::string> names;
    if (s.kh == 3 && s.kw == 3 && s.stride.h == 1 && s.stride.w == 1 && s.pad.same() && s.is_dense()) {
        // The widest vectors that divide both numbers of channels.
        for (const Isa with : {Isa::avx512, Isa::avx2})
            if (with <= isa && WinogradConv::supported(with, winograd_shape(s))) names.push_back(winograd_name(with));
    }
    if (DepthwiseConv::supported(isa, s)) names.emplace_back(depthwise);
    const bool square = s.kh == s.kw && s.stride.same() && s.pad.same() && s.is_dense();
    if (square && FirstLayerGradient::supported(isa, first_layer_shape(s))) names.emplace_back(first_layer);
    if (isa == Isa::generic && std::max(s.c, s.k) / s.groups * s.kh * s.kw > longest_sse_sum) {
        names.emplace_back(plain);
    } else if (s.groups == 1 && s.c > max_plain_channels && s.kh * s.kw > 1 && !whole_blocks(s, isa)) {
        // Padded blocks would multiply zeros; oneDNN's channels-last kernels waste less.
        names.insert(names.end(), {channels_last, own_layouts, plain});
    } else {
        names.insert(names.end(), {own_layouts, channels_last, plain});
    }
    return names;
}

ConvEngine::ConvEngine(const ConvShape& shape, int threads, Isa isa, ConvAlgorithm algorithm)
    : ConvEngine(shape, threads, isa, by_rule(checked(shape, threads), isa, algorithm)) {}

ConvEngine::ConvEngine(const ConvShape& shape, int threads, Isa isa, std::string_view way)
    : shape_(checked(shape, threads)), threads_(threads), path_(ConvPath::direct) {
    const std::vector<std::string> known = algorithms(shape, isa);
    if (std::find(known.begin(), known.end(), way) == known.end())
        throw InvalidArgument(fmt::format(
            "convolution: algorithm '{}' does not support this shape; expected one such as '{}'", way, known.front()));
    for (const Isa with : {Isa::avx512, Isa::avx2})
        if (way == winograd_name(with)) make_winograd(with);
    if (way == depthwise)
        make_depthwise(isa);
    else if (!winograd_)
        make_direct(way);
}

void ConvEngine::make_winograd(Isa with) {
    const ConvShape& s = shape_;
    winograd_.emplace(with, winograd_shape(s));
    path_ = ConvPath::winograd;
    src_ = activation(s.n, s.c, s.h, s.w, blocked(with));
    dst_ = activation(s.n, s.k, s.out_h(), s.out_w(), blocked(with));
}

void ConvEngine::make_depthwise(Isa isa) {
    const ConvShape& s = shape_;
    depthwise_.emplace(isa, s);
    path_ = ConvPath::depthwise;
    src_ = activation(s.n, s.c, s.h, s.w, blocked(isa));
    dst_ = activation(s.n, s.k, s.out_h(), s.out_w(), blocked(isa));
}

void ConvEngine::make_direct(std::string_view layouts) {
    const ConvShape& s = shape_;
    const auto make = [&](Tag x, Tag y) {
        direct_.emplace(s, threads_, activation(s.n, s.c, s.h, s.w, x), activation(s.n, s.k, s.out_h(), s.out_w(), y));
    };
    if (layouts == first_layer) {
        first_layer_.emplace(first_layer_shape(s));
        path_ = ConvPath::first_layer;
        make(Tag::nchw, Tag::nChw8c);
    } else if (layouts == plain) {
        make(Tag::nchw, Tag::nchw);
    } else if (layouts == channels_last) {
        make(Tag::nhwc, Tag::nhwc);
    } else {
        direct_.emplace(s, threads_);
    }
    src_ = direct_->src_layout();
    dst_ = direct_->dst_layout();
}

std::size_t ConvEngine::scratch_bytes() const {
    if (winograd_) return winograd_->scratch_bytes(threads_);
    if (depthwise_) return depthwise_->scratch_bytes(threads_);
    return std::max(direct_->scratch_bytes(), first_layer_ ? first_layer_->scratch_bytes() : std::size_t{0});
}

void ConvEngine::forward(const float* x, const float* w, const float* bias, bool relu, float* y, void* scratch) const {
    if (!shape_.bias) bias = nullptr;
    if (winograd_) return winograd_->forward(x, w, bias, relu, y, scratch, threads_);
    if (depthwise_)
        depthwise_->forward(x, w, bias, y, scratch, threads_);
    else
        direct_->forward(x, w, bias, y, scratch);
    // Not oneDNN's own ReLU, which turns NaN into a number.
    if (relu) relu_in_place(y, floats(dst_), threads_);
}

void ConvEngine::backward_data(const float* dy, const float* w, const float* made, float* dx, void* scratch) const {
    if (winograd_) return winograd_->backward_data(dy, w, made, dx, scratch, threads_);
    if (depthwise_)
        depthwise_->backward_data(dy, w, dx, scratch, threads_);
    else
        direct_->backward_data(dy, w, dx, scratch);
    if (made != nullptr) relu_backward_in_place(dx, made, floats(src_), threads_);
}

void ConvEngine::backward_weights(const float* x, const float* dy, float* dw, float* db, void* scratch) const {
    if (!shape_.bias) db = nullptr;
    if (winograd_)
        winograd_->backward_weights(x, dy, dw, db, scratch, threads_);
    else if (depthwise_)
        depthwise_->backward_weights(x, dy, dw, db, scratch, threads_);
    else if (first_layer_)
        first_layer_->backward_weights(x, dy, dw, db, scratch, threads_);
    else
        direct_->backward_weights(x, dy, dw, db, scratch);
}

}  // namespace lockstep::cpu
