// Wrapper that hides the differences between oneDNN 2 (Debian 12: operation descriptors) and oneDNN 3 (Debian 13,
// Ubuntu 24.04: none), and that excludes oneDNN's slow reference kernels.
//
// Every function below returns a primitive descriptor with scratchpad_mode::user: a primitive may then be created in
// one thread and run in another, and allocates nothing outside of the memory plan. The caller passes
// DNNL_ARG_SCRATCHPAD of scratchpad_desc(). All of them throw dnnl::error (unimplemented) if oneDNN has no kernel;
// first_fast() converts that to an error of the library.
#pragma once

#include <dnnl.hpp>
#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>

namespace lockstep::cpu::onednn {

using Desc = dnnl::memory::desc;
using Dims = dnnl::memory::dims;

/// oneDNN's one CPU engine. Its instruction set is limited by LOCKSTEP_CPU_ISA, unless the program has used oneDNN
/// before Lockstep did.
const dnnl::engine& cpu_engine();
/// The calling thread's stream: execution is complete when execute returns.
dnnl::stream& cpu_stream();
dnnl::primitive_attr user_scratchpad();

/// While an instance lives: number of OpenMP threads of the calling thread, with which oneDNN plans and runs.
class ThreadScope {
public:
    explicit ThreadScope(int threads);
    ~ThreadScope();
    ThreadScope(const ThreadScope&) = delete;
    ThreadScope& operator=(const ThreadScope&) = delete;

private:
    int before_;
};

/// Whether impl_info_str() names a reference kernel, hundreds of times slower than the others.
bool is_reference(std::string_view implementation);

/// "f32 (64, 32, 26, 26)" for messages.
std::string describe(const Desc& desc);

/// `refuse` is for operations of any size. `accept` is for small operations for which oneDNN has no other kernel;
/// callers that pass it state the reason.
enum class Reference { refuse, accept };

[[noreturn]] void throw_no_kernel(const std::string& what, const std::string& tried);

/// The first attempt without a reference kernel; usually the preferred layouts, then format_tag::any, then plain ones.
/// With Reference::accept, the first reference kernel if there is no other. Throws DeviceError with `what` (operation
/// and shapes) and the kernels that were offered.
template <class PrimitiveDesc>
PrimitiveDesc first_fast(const std::string& what, std::initializer_list<std::function<PrimitiveDesc()>> attempts,
                         Reference reference = Reference::refuse) {
    PrimitiveDesc slow;
    std::string tried;
    for (const auto& attempt : attempts) {
        try {
            PrimitiveDesc found = attempt();
            const std::string implementation = found.impl_info_str();
            if (!is_reference(implementation)) return found;
            tried += (tried.empty() ? "" : ", ") + implementation;
            if (!slow) slow = found;
        } catch (const dnnl::error& error) {
            tried += (tried.empty() ? "" : ", ") + std::string(error.what());
        }
    }
    if (reference == Reference::accept && slow) return slow;
    throw_no_kernel(what, tried);
}

#if DNNL_VERSION_MAJOR >= 3
using SoftmaxForward = dnnl::softmax_forward;
using SoftmaxBackward = dnnl::softmax_backward;
inline Dims dims(const Desc& desc) { return desc.get_dims(); }
inline dnnl::memory::data_type data_type(const Desc& desc) { return desc.get_data_type(); }

/// Creates a primitive descriptor: oneDNN 3 takes everything in one constructor.
template <class Primitive, class... Args>
typename Primitive::primitive_desc make_forward(const Args&... args) {
    return {cpu_engine(), args..., user_scratchpad()};
}
template <class Primitive, class Hint, class... Args>
typename Primitive::primitive_desc make_backward(const Hint& forward, const Args&... args) {
    return {cpu_engine(), args..., forward, user_scratchpad()};
}
#else
using SoftmaxForward = dnnl::softmax_v2_forward;
using SoftmaxBackward = dnnl::softmax_v2_backward;
inline Dims dims(const Desc& desc) { return desc.dims(); }
inline dnnl::memory::data_type data_type(const Desc& desc) { return desc.data_type(); }

/// Creates a primitive descriptor: oneDNN 2 needs an operation descriptor first.
template <class Primitive, class... Args>
typename Primitive::primitive_desc make_forward(const Args&... args) {
    return {typename Primitive::desc(args...), user_scratchpad(), cpu_engine()};
}
template <class Primitive, class Hint, class... Args>
typename Primitive::primitive_desc make_backward(const Hint& forward, const Args&... args) {
    return {typename Primitive::desc(args...), user_scratchpad(), cpu_engine(), forward};
}
#endif

/// Strides and zero padding of a convolution or pooling, per spatial dimension, and of a convolution the number of
/// elements between those that a window reads.
struct Window {
    Dims strides, pad_begin, pad_end, dilates = {0, 0};
};

/// Cross-correlation as PyTorch's conv2d; weights with five dimensions have groups. An empty Desc as bias means none.
inline dnnl::convolution_forward::primitive_desc convolution_forward(const Desc& src, const Desc& weights,
                                                                     const Desc& bias, const Desc& dst,
                                                                     const Window& window) {
    return make_forward<dnnl::convolution_forward>(dnnl::prop_kind::forward_training,
                                                   dnnl::algorithm::convolution_direct, src, weights, bias, dst,
                                                   window.strides, window.dilates, window.pad_begin, window.pad_end);
}
inline dnnl::convolution_backward_data::primitive_desc convolution_backward_data(
    const dnnl::convolution_forward::primitive_desc& forward, const Desc& diff_src, const Desc& weights,
    const Desc& diff_dst, const Window& window) {
    return make_backward<dnnl::convolution_backward_data>(forward, dnnl::algorithm::convolution_direct, diff_src,
                                                          weights, diff_dst, window.strides, window.dilates,
                                                          window.pad_begin, window.pad_end);
}
inline dnnl::convolution_backward_weights::primitive_desc convolution_backward_weights(
    const dnnl::convolution_forward::primitive_desc& forward, const Desc& src, const Desc& diff_weights,
    const Desc& diff_bias, const Desc& diff_dst, const Window& window) {
    return make_backward<dnnl::convolution_backward_weights>(forward, dnnl::algorithm::convolution_direct, src,
                                                             diff_weights, diff_bias, diff_dst, window.strides,
                                                             window.dilates, window.pad_begin, window.pad_end);
}

/// Maximum over kernel-sized windows. Training writes a workspace (workspace_desc()) that backward reads.
inline dnnl::pooling_forward::primitive_desc max_pool_forward(const Desc& src, const Desc& dst, const Dims& kernel,
                                                              const Window& window) {
#if DNNL_VERSION_MAJOR >= 3
    return make_forward<dnnl::pooling_forward>(dnnl::prop_kind::forward_training, dnnl::algorithm::pooling_max, src,
                                               dst, window.strides, kernel, Dims(kernel.size(), 0), window.pad_begin,
                                               window.pad_end);
#else
    return make_forward<dnnl::pooling_forward>(dnnl::prop_kind::forward_training, dnnl::algorithm::pooling_max, src,
                                               dst, window.strides, kernel, window.pad_begin, window.pad_end);
#endif
}
inline dnnl::pooling_backward::primitive_desc max_pool_backward(const dnnl::pooling_forward::primitive_desc& forward,
                                                                const Desc& diff_src, const Desc& diff_dst,
                                                                const Dims& kernel, const Window& window) {
#if DNNL_VERSION_MAJOR >= 3
    return make_backward<dnnl::pooling_backward>(forward, dnnl::algorithm::pooling_max, diff_src, diff_dst,
                                                 window.strides, kernel, Dims(kernel.size(), 0), window.pad_begin,
                                                 window.pad_end);
#else
    return make_backward<dnnl::pooling_backward>(forward, dnnl::algorithm::pooling_max, diff_src, diff_dst,
                                                 window.strides, kernel, window.pad_begin, window.pad_end);
#endif
}

/// dst (n, k) = src (n, ...) * weights (k, ...)^T + bias (k), PyTorch's linear; an empty Desc as bias means none.
inline dnnl::inner_product_forward::primitive_desc inner_product_forward(const Desc& src, const Desc& weights,
                                                                         const Desc& bias, const Desc& dst) {
    return make_forward<dnnl::inner_product_forward>(dnnl::prop_kind::forward_training, src, weights, bias, dst);
}
inline dnnl::inner_product_backward_data::primitive_desc inner_product_backward_data(
    const dnnl::inner_product_forward::primitive_desc& forward, const Desc& diff_src, const Desc& weights,
    const Desc& diff_dst) {
    return make_backward<dnnl::inner_product_backward_data>(forward, diff_src, weights, diff_dst);
}
inline dnnl::inner_product_backward_weights::primitive_desc inner_product_backward_weights(
    const dnnl::inner_product_forward::primitive_desc& forward, const Desc& src, const Desc& diff_weights,
    const Desc& diff_bias, const Desc& diff_dst) {
    return make_backward<dnnl::inner_product_backward_weights>(forward, src, diff_weights, diff_bias, diff_dst);
}

/// dst (..., m, n) = a (..., m, k) * b (..., k, n). Its gradients are matmuls with transposed strides.
inline dnnl::matmul::primitive_desc matmul(const Desc& a, const Desc& b, const Desc& dst) {
    return make_forward<dnnl::matmul>(a, b, dst);
}
/// With a bias that broadcasts to dst: (1, n) or (m, n).
inline dnnl::matmul::primitive_desc matmul(const Desc& a, const Desc& b, const Desc& bias, const Desc& dst) {
    return make_forward<dnnl::matmul>(a, b, bias, dst);
}

/// dst = max(src, 0), in the same layout; backward reads dst, so src may be overwritten.
inline dnnl::eltwise_forward::primitive_desc relu_forward(const Desc& data) {
    const auto kind = dnnl::prop_kind::forward_training;
    const auto relu = dnnl::algorithm::eltwise_relu_use_dst_for_bwd;
#if DNNL_VERSION_MAJOR >= 3
    return make_forward<dnnl::eltwise_forward>(kind, relu, data, data, 0.0F, 0.0F);
#else
    return make_forward<dnnl::eltwise_forward>(kind, relu, data, 0.0F, 0.0F);
#endif
}
/// Arguments: DNNL_ARG_DST, DNNL_ARG_DIFF_DST, DNNL_ARG_DIFF_SRC (which may be diff_dst's memory).
inline dnnl::eltwise_backward::primitive_desc relu_backward(const dnnl::eltwise_forward::primitive_desc& forward,
                                                            const Desc& gradient, const Desc& data) {
    const auto relu = dnnl::algorithm::eltwise_relu_use_dst_for_bwd;
#if DNNL_VERSION_MAJOR >= 3
    return make_backward<dnnl::eltwise_backward>(forward, relu, gradient, gradient, data, 0.0F, 0.0F);
#else
    return make_backward<dnnl::eltwise_backward>(forward, relu, gradient, data, 0.0F, 0.0F);
#endif
}

/// Softmax, or its logarithm, along one axis; backward reads DNNL_ARG_DST. Below AVX-512 oneDNN has only a reference
/// kernel for the gradient: Reference::accept fits the few classes of a classifier.
inline SoftmaxForward::primitive_desc softmax_forward(const Desc& src, const Desc& dst, int axis, bool logarithm) {
    return make_forward<SoftmaxForward>(dnnl::prop_kind::forward_training,
                                        logarithm ? dnnl::algorithm::softmax_log : dnnl::algorithm::softmax_accurate,
                                        src, dst, axis);
}
inline SoftmaxBackward::primitive_desc softmax_backward(const SoftmaxForward::primitive_desc& forward,
                                                        const Desc& diff_src, const Desc& diff_dst, const Desc& dst,
                                                        int axis, bool logarithm) {
    return make_backward<SoftmaxBackward>(forward,
                                          logarithm ? dnnl::algorithm::softmax_log : dnnl::algorithm::softmax_accurate,
                                          diff_src, diff_dst, dst, axis);
}

/// dst = a (op) b, b broadcast where its dimensions are 1.
inline dnnl::binary::primitive_desc binary(dnnl::algorithm operation, const Desc& a, const Desc& b, const Desc& dst) {
    return make_forward<dnnl::binary>(operation, a, b, dst);
}

/// Copies between layouts and element types.
inline dnnl::reorder::primitive_desc reorder(const Desc& from, const Desc& to) {
    return {cpu_engine(), from, cpu_engine(), to, user_scratchpad()};
}

}  // namespace lockstep::cpu::onednn
