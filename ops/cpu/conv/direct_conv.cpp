#include "lockstep/ops/cpu/conv/direct_conv.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "lockstep/runtime/round_up.h"

namespace lockstep::cpu {
namespace {

using onednn::Desc;

using Tag = dnnl::memory::format_tag;
using ForwardDesc = dnnl::convolution_forward::primitive_desc;
using BackwardDataDesc = dnnl::convolution_backward_data::primitive_desc;
using BackwardWeightsDesc = dnnl::convolution_backward_weights::primitive_desc;

constexpr std::size_t part_alignment = 64;
std::size_t padded(std::size_t bytes) { return round_up(bytes, part_alignment); }

Desc described(const onednn::Dims& dims, Tag tag) { return {dims, dnnl::memory::data_type::f32, tag}; }

std::string name(const char* pass, const ConvShape& s) {
    return fmt::format("{} of a convolution of {}", pass, text_of(s));
}

}  // namespace

DirectConv::DirectConv(const ConvShape& shape, int threads) : DirectConv(shape, threads, nullptr, nullptr) {}
DirectConv::DirectConv(const ConvShape& shape, int threads, const Desc& src, const Desc& dst)
    : DirectConv(shape, threads, &src, &dst) {}

DirectConv::DirectConv(const ConvShape& s, int threads, const Desc* src, const Desc* dst) : threads_(threads) {
    const onednn::ThreadScope scope(threads);
    const std::int64_t g = s.groups;
    const onednn::Dims x = {s.n, s.c, s.h, s.w}, y = {s.n, s.k, s.out_h(), s.out_w()};
    const onednn::Dims w = g == 1 ? onednn::Dims{s.k, s.c, s.kh, s.kw} : onednn::Dims{g, s.k / g, s.c / g, s.kh, s.kw};
    // oneDNN's dilation is the number of elements that are skipped.
    const onednn::Window window{
        {s.stride.h, s.stride.w}, {s.pad.h, s.pad.w}, {s.pad.h, s.pad.w}, {s.dilation.h - 1, s.dilation.w - 1}};
    const Desc any_w = described(w, Tag::any), plain_w = described(w, g == 1 ? Tag::oihw : Tag::goihw);
    const Desc bias = s.bias ? described({s.k}, Tag::x) : Desc();

    const auto forward_from = [&](const Desc& from, const Desc& to) {
        return [&, from, to] { return onednn::convolution_forward(from, any_w, bias, to, window); };
    };
    const Desc any_x = described(x, Tag::any), any_y = described(y, Tag::any);
    const auto forward = onednn::first_fast<ForwardDesc>(
        name("the forward pass", s),
        {forward_from(src != nullptr ? *src : any_x, dst != nullptr ? *dst : any_y), forward_from(any_x, any_y),
         forward_from(described(x, Tag::nchw), any_y), forward_from(described(x, Tag::nchw), described(y, Tag::nchw)),
         forward_from(described(x, Tag::nhwc), described(y, Tag::nhwc))});
    src_ = src != nullptr ? *src : forward.src_desc();
    dst_ = dst != nullptr ? *dst : forward.dst_desc();

    // For the other passes, tries the forward layouts first, then those that oneDNN prefers.
    const auto data_from = [&](const Desc& dx, const Desc& dy) {
        return [&, dx, dy] { return onednn::convolution_backward_data(forward, dx, any_w, dy, window); };
    };
    const auto data = onednn::first_fast<BackwardDataDesc>(
        name("the gradient of the input", s), {data_from(src_, dst_), data_from(any_x, dst_), data_from(any_x, any_y),
                                               data_from(described(x, Tag::nchw), described(y, Tag::nchw)),
                                               data_from(described(x, Tag::nhwc), described(y, Tag::nhwc))});
    const auto weights_from = [&](const Desc& from, const Desc& dy) {
        return [&, from, dy] { return onednn::convolution_backward_weights(forward, from, any_w, bias, dy, window); };
    };
    const auto weights = onednn::first_fast<BackwardWeightsDesc>(
        name("the gradient of the weights", s), {weights_from(src_, dst_), weights_from(any_x, any_y),
                                                 weights_from(described(x, Tag::nchw), described(y, Tag::nchw)),
                                                 weights_from(described(x, Tag::nhwc), described(y, Tag::nhwc))});

    forward_.begin(dnnl::convolution_forward(forward), forward.scratchpad_desc());
    forward_.add(DNNL_ARG_SRC, false, src_, forward.src_desc());
    forward_.add(DNNL_ARG_WEIGHTS, false, plain_w, forward.weights_desc());
    forward_.add(DNNL_ARG_DST, true, dst_, forward.dst_desc());
    if (s.bias) forward_.add(DNNL_ARG_BIAS, false, bias, bias);

    backward_data_.begin(dnnl::convolution_backward_data(data), data.scratchpad_desc());
    backward_data_.add(DNNL_ARG_DIFF_DST, false, dst_, data.diff_dst_desc());
    backward_data_.add(DNNL_ARG_WEIGHTS, false, plain_w, data.weights_desc());
    backward_data_.add(DNNL_ARG_DIFF_SRC, true, src_, data.diff_src_desc());

    backward_weights_.begin(dnnl::convolution_backward_weights(weights), weights.scratchpad_desc());
    backward_weights_.add(DNNL_ARG_SRC, false, src_, weights.src_desc());
    backward_weights_.add(DNNL_ARG_DIFF_DST, false, dst_, weights.diff_dst_desc());
    backward_weights_.add(DNNL_ARG_DIFF_WEIGHTS, true, plain_w, weights.diff_weights_desc());
    if (s.bias) backward_weights_.add(DNNL_ARG_DIFF_BIAS, true, bias, bias);
}

void DirectConv::Pass::begin(dnnl::primitive primitive, const Desc& scratchpad_desc) {
    kernel = std::move(primitive);
    scratchpad = scratchpad_desc;
    scratch_bytes = padded(scratchpad.get_size());
}

void DirectConv::Pass::add(int argument, bool written, const Desc& outside, const Desc& inside) {
    Operand& operand = operands[count++];
    operand.argument = argument;
    operand.outside = outside;
    operand.inside = inside;
    operand.written = written;
    if (outside == inside) return;
    const auto copy = written ? onednn::reorder(inside, outside) : onednn::reorder(outside, inside);
    operand.copy = dnnl::reorder(copy);
    operand.copy_scratchpad = copy.scratchpad_desc();
    operand.copy_at = scratch_bytes;
    operand.copy_scratchpad_at = operand.copy_at + padded(inside.get_size());
    scratch_bytes = operand.copy_scratchpad_at + padded(operand.copy_scratchpad.get_size());
}

void DirectConv::Pass::run(const std::array<void*, 4>& data, void* scratch) const {
    // Memory objects only hold pointers; creating them here lets several threads run one object concurrently.
    const dnnl::engine& engine = onednn::cpu_engine();
    dnnl::stream& stream = onednn::cpu_stream();
    const auto at = [scratch](std::size_t offset) { return static_cast<std::byte*>(scratch) + offset; };
    const auto copy = [&](const Operand& operand, dnnl::memory& from, dnnl::memory& to) {
        operand.copy.execute(
            stream, {{DNNL_ARG_FROM, from},
                     {DNNL_ARG_TO, to},
                     {DNNL_ARG_SCRATCHPAD, {operand.copy_scratchpad, engine, at(operand.copy_scratchpad_at)}}});
    };
    std::unordered_map<int, dnnl::memory> arguments;
    for (std::size_t i = 0; i < count; ++i) {
        const Operand& operand = operands[i];
        dnnl::memory outside(operand.outside, engine, data[i]);
        if (!operand.copy) {
            arguments[operand.argument] = outside;
            continue;
        }
        dnnl::memory inside(operand.inside, engine, at(operand.copy_at));
        if (!operand.written) copy(operand, outside, inside);
        arguments[operand.argument] = inside;
    }
    arguments[DNNL_ARG_SCRATCHPAD] = {scratchpad, engine, scratch};
    kernel.execute(stream, arguments);
    for (std::size_t i = 0; i < count; ++i) {
        const Operand& operand = operands[i];
        if (!operand.copy || !operand.written) continue;
        dnnl::memory outside(operand.outside, engine, data[i]);
        copy(operand, arguments[operand.argument], outside);
    }
    stream.wait();
}

std::size_t DirectConv::scratch_bytes() const {
    return std::max({forward_.scratch_bytes, backward_data_.scratch_bytes, backward_weights_.scratch_bytes});
}

// Casts away const: oneDNN has no pointers to const, but only writes the outputs of a pass.
void DirectConv::forward(const float* x, const float* w, const float* bias, float* y, void* scratch) const {
    const onednn::ThreadScope scope(threads_);
    forward_.run({const_cast<float*>(x), const_cast<float*>(w), y, const_cast<float*>(bias)}, scratch);
}

void DirectConv::backward_data(const float* dy, const float* w, float* dx, void* scratch) const {
    const onednn::ThreadScope scope(threads_);
    backward_data_.run({const_cast<float*>(dy), const_cast<float*>(w), dx, nullptr}, scratch);
}

void DirectConv::backward_weights(const float* x, const float* dy, float* dw, float* db, void* scratch) const {
    const onednn::ThreadScope scope(threads_);
    backward_weights_.run({const_cast<float*>(x), const_cast<float*>(dy), dw, db}, scratch);
}

}  // namespace lockstep::cpu
