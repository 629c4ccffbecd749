// cuDNN: convolutions in two spatial dimensions by direct loops in double.
#include <array>

#include "lockstep/tests/cuda_standin/cudnn_state.h"

namespace standin {
namespace {

using Values = std::vector<double>;

// y (N, K, P, Q) = x (N, C, H, W) convolved with w (K, C / groups, R, S).
struct Shape {
    std::int64_t n, c, h, w, k, r, s, p, q, groups;
    ConvolutionDesc how;

    std::int64_t group_c() const { return c / groups; }
    std::int64_t group_k() const { return k / groups; }

    // Calls visit(x row, w row, y row) for every pair of an output pixel and a tap that reads an input pixel. A row is
    // a pixel's or tap's number: its channels are adjacent in the dense arrays below.
    template <class Visit>
    void for_each_tap(Visit&& visit) const {
        for (std::int64_t image = 0; image < n; ++image)
            for (std::int64_t py = 0; py < p; ++py)
                for (std::int64_t px = 0; px < q; ++px)
                    for (std::int64_t ty = 0; ty < r; ++ty)
                        for (std::int64_t tx = 0; tx < s; ++tx) {
                            const std::int64_t y = py * how.strides[0] - how.pads[0] + ty * how.dilations[0];
                            const std::int64_t x = px * how.strides[1] - how.pads[1] + tx * how.dilations[1];
                            if (y < 0 || y >= h || x < 0 || x >= w) continue;
                            const std::int64_t tap =
                                how.mode == CUDNN_CONVOLUTION ? r * s - 1 - (ty * s + tx) : ty * s + tx;
                            visit((image * h + y) * w + x, tap, (image * p + py) * q + px);
                        }
    }
};

constexpr std::array<std::size_t, 4> kChannelsLast{0, 2, 3, 1};
Strided channels_last(const Strided& tensor) { return tensor.permuted({kChannelsLast.begin(), kChannelsLast.end()}); }
// (K, C, R, S) as (R, S, C, K) or (R, S, K, C).
Strided taps_to_k(const Strided& filter) { return filter.permuted({2, 3, 1, 0}); }
Strided taps_to_c(const Strided& filter) { return filter.permuted({2, 3, 0, 1}); }

std::size_t index(std::int64_t value) { return static_cast<std::size_t>(value); }

std::int64_t out_size(std::int64_t in, std::int64_t pad, std::int64_t taps, std::int64_t dilation,
                      std::int64_t stride) {
    return (in + 2 * pad - dilation * (taps - 1) - 1) / stride + 1;
}

Shape shape_of(Call& call, const Strided& x, const Strided& w, cudnnConvolutionDescriptor_t convolution) {
    const auto& how = call.object<ConvolutionDesc>(convolution);
    if (how.pads.empty()) refuse(cudaErrorInvalidValue, Kind::invalid_argument, "the convolution was never set");
    if (x.dims.size() != 4 || w.dims.size() != 4 || how.pads.size() != 2)
        refuse(cudaErrorNotSupported, Kind::unsupported, "convolutions of other than two spatial dimensions");
    Shape shape{x.dims[0], x.dims[1], x.dims[2], x.dims[3], w.dims[0], w.dims[2], w.dims[3], 0, 0, how.groups, how};
    if (shape.c != w.dims[1] * how.groups || shape.k % how.groups != 0)
        refuse_shapes("input channels " + std::to_string(shape.c) + ", filter channels " + std::to_string(w.dims[1]) +
                      " in " + std::to_string(how.groups) + " group(s)");
    shape.p = out_size(shape.h, how.pads[0], shape.r, how.dilations[0], how.strides[0]);
    shape.q = out_size(shape.w, how.pads[1], shape.s, how.dilations[1], how.strides[1]);
    if (shape.p < 1 || shape.q < 1) refuse_shapes("the filter is larger than the padded input");
    return shape;
}

Shape shape_of(Call& call, const Strided& x, const Strided& w, const Strided& y,
               cudnnConvolutionDescriptor_t convolution) {
    Shape shape = shape_of(call, x, w, convolution);
    if (y.dims != std::vector<std::int64_t>{shape.n, shape.k, shape.p, shape.q})
        refuse_shapes("the output should be (" + std::to_string(shape.n) + ", " + std::to_string(shape.k) + ", " +
                      std::to_string(shape.p) + ", " + std::to_string(shape.q) + ")");
    return shape;
}

const char* name_of_math(cudnnMathType_t math) {
    switch (math) {
        case CUDNN_DEFAULT_MATH: return "CUDNN_DEFAULT_MATH";
        case CUDNN_FMA_MATH: return "CUDNN_FMA_MATH";
        case CUDNN_TENSOR_OP_MATH: return "CUDNN_TENSOR_OP_MATH";
        default: refuse(cudaErrorNotSupported, Kind::unsupported, "math type " + std::to_string(math));
    }
}

Values forward(const Shape& shape, const Values& x, const Values& w) {  // x NHWC, w RSCK -> y NPQK
    Values y(index(shape.n * shape.p * shape.q * shape.k));
    const std::int64_t cs = shape.group_c(), ks = shape.group_k();
    shape.for_each_tap([&](std::int64_t in, std::int64_t tap, std::int64_t out) {
        for (std::int64_t g = 0; g < shape.groups; ++g)
            for (std::int64_t c = 0; c < cs; ++c)
                add_scaled(&y[index(out * shape.k + g * ks)], &w[index((tap * cs + c) * shape.k + g * ks)],
                           x[index(in * shape.c + g * cs + c)], index(ks));
    });
    return y;
}

Values backward_data(const Shape& shape, const Values& dy, const Values& w) {  // dy NPQK, w RSKC -> dx NHWC
    Values dx(index(shape.n * shape.h * shape.w * shape.c));
    const std::int64_t cs = shape.group_c(), ks = shape.group_k();
    shape.for_each_tap([&](std::int64_t in, std::int64_t tap, std::int64_t out) {
        for (std::int64_t g = 0; g < shape.groups; ++g)
            for (std::int64_t k = g * ks; k < (g + 1) * ks; ++k)
                add_scaled(&dx[index(in * shape.c + g * cs)], &w[index((tap * shape.k + k) * cs)],
                           dy[index(out * shape.k + k)], index(cs));
    });
    return dx;
}

Values backward_filter(const Shape& shape, const Values& x, const Values& dy) {  // x NHWC, dy NPQK -> dw RSCK
    const std::int64_t cs = shape.group_c(), ks = shape.group_k();
    Values dw(index(shape.r * shape.s * cs * shape.k));
    shape.for_each_tap([&](std::int64_t in, std::int64_t tap, std::int64_t out) {
        for (std::int64_t g = 0; g < shape.groups; ++g)
            for (std::int64_t c = 0; c < cs; ++c)
                add_scaled(&dw[index((tap * cs + c) * shape.k + g * ks)], &dy[index(out * shape.k + g * ks)],
                           x[index(in * shape.c + g * cs + c)], index(ks));
    });
    return dw;
}

// Never zero, and different for each algorithm and each kind of GPU, so that a missing or wrong workspace is detected.
template <class Algorithm>
std::size_t workspace_bytes(Call& call, cudnnHandle_t handle, Algorithm algorithm) {
    const DeviceConfig& card = call.device(call.object<DnnHandle>(handle).device).config;
    return 512 + 256 * static_cast<std::size_t>(algorithm) + static_cast<std::size_t>(card.sm_count) +
           4 * static_cast<std::size_t>(card.compute_capability);
}

template <class Algorithm>
void check_algorithm(Algorithm algorithm, Algorithm count) {
    if (algorithm < 0 || algorithm >= count) refuse(cudaErrorInvalidValue, Kind::invalid_argument, "no such algorithm");
}

template <class Perf, class Algorithm>
void propose(Call& call, cudnnHandle_t handle, int requested, int* returned, Perf* results,
             std::initializer_list<std::pair<Algorithm, cudnnDeterminism_t>> algorithms) {
    int count = 0;
    for (const auto& [algorithm, determinism] : algorithms) {
        if (count == requested) break;
        Perf& perf = results[count++];
        perf = {};
        perf.algo = algorithm;
        perf.status = CUDNN_STATUS_SUCCESS;
        perf.time = static_cast<float>(count);
        perf.memory = workspace_bytes(call, handle, algorithm);
        perf.determinism = determinism;
        perf.mathType = CUDNN_DEFAULT_MATH;
    }
    *returned = count;
}

}  // namespace
}  // namespace standin

using namespace standin;

extern "C" {

cudnnStatus_t cudnnGetConvolution2dForwardOutputDim(const cudnnConvolutionDescriptor_t convolution,
                                                    const cudnnTensorDescriptor_t x, const cudnnFilterDescriptor_t w,
                                                    int* n, int* k, int* p, int* q) {
    return cudnn_call("cudnnGetConvolution2dForwardOutputDim", [&](Call& call) {
        const Shape shape = shape_of(call, view_of(call, x), view_of(call, w), convolution);
        *n = static_cast<int>(shape.n);
        *k = static_cast<int>(shape.k);
        *p = static_cast<int>(shape.p);
        *q = static_cast<int>(shape.q);
    });
}

cudnnStatus_t cudnnGetConvolutionForwardWorkspaceSize(cudnnHandle_t handle, const cudnnTensorDescriptor_t x,
                                                      const cudnnFilterDescriptor_t w,
                                                      const cudnnConvolutionDescriptor_t convolution,
                                                      const cudnnTensorDescriptor_t y,
                                                      cudnnConvolutionFwdAlgo_t algorithm, size_t* bytes) {
    return cudnn_call("cudnnGetConvolutionForwardWorkspaceSize", [&](Call& call) {
        call.object<DnnHandle>(handle);
        shape_of(call, view_of(call, x), view_of(call, w), view_of(call, y), convolution);
        check_algorithm(algorithm, CUDNN_CONVOLUTION_FWD_ALGO_COUNT);
        *bytes = workspace_bytes(call, handle, algorithm);
    });
}

cudnnStatus_t cudnnGetConvolutionBackwardDataWorkspaceSize(cudnnHandle_t handle, const cudnnFilterDescriptor_t w,
                                                           const cudnnTensorDescriptor_t dy,
                                                           const cudnnConvolutionDescriptor_t convolution,
                                                           const cudnnTensorDescriptor_t dx,
                                                           cudnnConvolutionBwdDataAlgo_t algorithm, size_t* bytes) {
    return cudnn_call("cudnnGetConvolutionBackwardDataWorkspaceSize", [&](Call& call) {
        call.object<DnnHandle>(handle);
        shape_of(call, view_of(call, dx), view_of(call, w), view_of(call, dy), convolution);
        check_algorithm(algorithm, CUDNN_CONVOLUTION_BWD_DATA_ALGO_COUNT);
        *bytes = workspace_bytes(call, handle, algorithm);
    });
}

cudnnStatus_t cudnnGetConvolutionBackwardFilterWorkspaceSize(cudnnHandle_t handle, const cudnnTensorDescriptor_t x,
                                                             const cudnnTensorDescriptor_t dy,
                                                             const cudnnConvolutionDescriptor_t convolution,
                                                             const cudnnFilterDescriptor_t dw,
                                                             cudnnConvolutionBwdFilterAlgo_t algorithm, size_t* bytes) {
    return cudnn_call("cudnnGetConvolutionBackwardFilterWorkspaceSize", [&](Call& call) {
        call.object<DnnHandle>(handle);
        shape_of(call, view_of(call, x), view_of(call, dw), view_of(call, dy), convolution);
        check_algorithm(algorithm, CUDNN_CONVOLUTION_BWD_FILTER_ALGO_COUNT);
        *bytes = workspace_bytes(call, handle, algorithm);
    });
}

cudnnStatus_t cudnnGetConvolutionForwardAlgorithm_v7(cudnnHandle_t handle, const cudnnTensorDescriptor_t x,
                                                     const cudnnFilterDescriptor_t w,
                                                     const cudnnConvolutionDescriptor_t convolution,
                                                     const cudnnTensorDescriptor_t y, const int requested,
                                                     int* returned, cudnnConvolutionFwdAlgoPerf_t* results) {
    return cudnn_call("cudnnGetConvolutionForwardAlgorithm_v7", [&](Call& call) {
        call.object<DnnHandle>(handle);
        shape_of(call, view_of(call, x), view_of(call, w), view_of(call, y), convolution);
        propose<cudnnConvolutionFwdAlgoPerf_t, cudnnConvolutionFwdAlgo_t>(
            call, handle, requested, returned, results,
            {{CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM, CUDNN_DETERMINISTIC},
             {CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM, CUDNN_DETERMINISTIC}});
    });
}

// The fastest backward algorithms add in any order: callers that need reproducible bits must check `determinism`.
cudnnStatus_t cudnnGetConvolutionBackwardDataAlgorithm_v7(cudnnHandle_t handle, const cudnnFilterDescriptor_t w,
                                                          const cudnnTensorDescriptor_t dy,
                                                          const cudnnConvolutionDescriptor_t convolution,
                                                          const cudnnTensorDescriptor_t dx, const int requested,
                                                          int* returned, cudnnConvolutionBwdDataAlgoPerf_t* results) {
    return cudnn_call("cudnnGetConvolutionBackwardDataAlgorithm_v7", [&](Call& call) {
        call.object<DnnHandle>(handle);
        shape_of(call, view_of(call, dx), view_of(call, w), view_of(call, dy), convolution);
        propose<cudnnConvolutionBwdDataAlgoPerf_t, cudnnConvolutionBwdDataAlgo_t>(
            call, handle, requested, returned, results,
            {{CUDNN_CONVOLUTION_BWD_DATA_ALGO_0, CUDNN_NON_DETERMINISTIC},
             {CUDNN_CONVOLUTION_BWD_DATA_ALGO_1, CUDNN_DETERMINISTIC}});
    });
}

cudnnStatus_t cudnnGetConvolutionBackwardFilterAlgorithm_v7(cudnnHandle_t handle, const cudnnTensorDescriptor_t x,
                                                            const cudnnTensorDescriptor_t dy,
                                                            const cudnnConvolutionDescriptor_t convolution,
                                                            const cudnnFilterDescriptor_t dw, const int requested,
                                                            int* returned,
                                                            cudnnConvolutionBwdFilterAlgoPerf_t* results) {
    return cudnn_call("cudnnGetConvolutionBackwardFilterAlgorithm_v7", [&](Call& call) {
        call.object<DnnHandle>(handle);
        shape_of(call, view_of(call, x), view_of(call, dw), view_of(call, dy), convolution);
        propose<cudnnConvolutionBwdFilterAlgoPerf_t, cudnnConvolutionBwdFilterAlgo_t>(
            call, handle, requested, returned, results,
            {{CUDNN_CONVOLUTION_BWD_FILTER_ALGO_0, CUDNN_NON_DETERMINISTIC},
             {CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1, CUDNN_DETERMINISTIC}});
    });
}

cudnnStatus_t cudnnConvolutionForward(cudnnHandle_t handle, const void* alpha, const cudnnTensorDescriptor_t x_desc,
                                      const void* x, const cudnnFilterDescriptor_t w_desc, const void* w,
                                      const cudnnConvolutionDescriptor_t convolution,
                                      cudnnConvolutionFwdAlgo_t algorithm, void* workspace, size_t workspace_size,
                                      const void* beta, const cudnnTensorDescriptor_t y_desc, void* y) {
    return cudnn_call("cudnnConvolutionForward", [&](Call& call) {
        const Strided xs = view_of(call, x_desc), ws = view_of(call, w_desc), ys = view_of(call, y_desc);
        const Shape shape = shape_of(call, xs, ws, ys, convolution);
        const double a = scaling(alpha, ys), b = scaling(beta, ys);
        std::vector<Access> accesses{reads(x, xs), reads(w, ws), writes(y, ys)};
        check_algorithm(algorithm, CUDNN_CONVOLUTION_FWD_ALGO_COUNT);
        check_workspace(workspace, workspace_size, workspace_bytes(call, handle, algorithm), accesses);
        enqueue(
            call, handle,
            [=] {
                const Values result = forward(shape, load(channels_last(xs), x), load(taps_to_k(ws), w));
                store(channels_last(ys), y, result, a, b);
            },
            accesses);
        call.count_arithmetic(name_of(xs.type), name_of_math(shape.how.math));
    });
}

cudnnStatus_t cudnnConvolutionBiasActivationForward(
    cudnnHandle_t handle, const void* alpha, const cudnnTensorDescriptor_t x_desc, const void* x,
    const cudnnFilterDescriptor_t w_desc, const void* w, const cudnnConvolutionDescriptor_t convolution,
    cudnnConvolutionFwdAlgo_t algorithm, void* workspace, size_t workspace_size, const void* alpha_z,
    const cudnnTensorDescriptor_t z_desc, const void* z, const cudnnTensorDescriptor_t bias_desc, const void* bias,
    const cudnnActivationDescriptor_t activation_desc, const cudnnTensorDescriptor_t y_desc, void* y) {
    return cudnn_call("cudnnConvolutionBiasActivationForward", [&](Call& call) {
        const Strided xs = view_of(call, x_desc), ws = view_of(call, w_desc), ys = view_of(call, y_desc);
        const Strided zs = view_of(call, z_desc), bs = view_of(call, bias_desc).broadcast(ys.dims);
        const Shape shape = shape_of(call, xs, ws, ys, convolution);
        check_same_dims(zs, ys, "z and y");
        if (bs.dims.empty()) refuse_shapes("the bias does not spread over y");
        const ActivationDesc activation = call.object<ActivationDesc>(activation_desc);
        const double a = scaling(alpha, ys), az = scaling(alpha_z, ys);
        std::vector<Access> accesses{reads(x, xs), reads(w, ws), reads(bias, bs), writes(y, ys)};
        if (az != 0) accesses.push_back(reads(z, zs));
        check_algorithm(algorithm, CUDNN_CONVOLUTION_FWD_ALGO_COUNT);
        check_workspace(workspace, workspace_size, workspace_bytes(call, handle, algorithm), accesses);
        enqueue(
            call, handle,
            [=] {
                Values result = forward(shape, load(channels_last(xs), x), load(taps_to_k(ws), w));
                const Values shift = load(channels_last(bs), bias);
                const Values other = az == 0 ? Values(result.size()) : load(channels_last(zs), z);
                for (std::size_t i = 0; i < result.size(); ++i)
                    result[i] = activate(activation, a * result[i] + az * other[i] + shift[i]);
                store(channels_last(ys), y, result);
            },
            accesses);
        call.count_arithmetic(name_of(xs.type), name_of_math(shape.how.math));
    });
}

cudnnStatus_t cudnnConvolutionBackwardData(cudnnHandle_t handle, const void* alpha,
                                           const cudnnFilterDescriptor_t w_desc, const void* w,
                                           const cudnnTensorDescriptor_t dy_desc, const void* dy,
                                           const cudnnConvolutionDescriptor_t convolution,
                                           cudnnConvolutionBwdDataAlgo_t algorithm, void* workspace,
                                           size_t workspace_size, const void* beta,
                                           const cudnnTensorDescriptor_t dx_desc, void* dx) {
    return cudnn_call("cudnnConvolutionBackwardData", [&](Call& call) {
        const Strided ws = view_of(call, w_desc), ys = view_of(call, dy_desc), xs = view_of(call, dx_desc);
        const Shape shape = shape_of(call, xs, ws, ys, convolution);
        const double a = scaling(alpha, xs), b = scaling(beta, xs);
        std::vector<Access> accesses{reads(w, ws), reads(dy, ys), writes(dx, xs)};
        check_algorithm(algorithm, CUDNN_CONVOLUTION_BWD_DATA_ALGO_COUNT);
        check_workspace(workspace, workspace_size, workspace_bytes(call, handle, algorithm), accesses);
        const bool unsteady = algorithm == CUDNN_CONVOLUTION_BWD_DATA_ALGO_0;
        enqueue(
            call, handle,
            [=] {
                const Values result = backward_data(shape, load(channels_last(ys), dy), load(taps_to_c(ws), w));
                store(channels_last(xs), dx, result, a, b, unsteady);
            },
            accesses);
        call.count_arithmetic(name_of(xs.type), name_of_math(shape.how.math));
    });
}

cudnnStatus_t cudnnConvolutionBackwardFilter(cudnnHandle_t handle, const void* alpha,
                                             const cudnnTensorDescriptor_t x_desc, const void* x,
                                             const cudnnTensorDescriptor_t dy_desc, const void* dy,
                                             const cudnnConvolutionDescriptor_t convolution,
                                             cudnnConvolutionBwdFilterAlgo_t algorithm, void* workspace,
                                             size_t workspace_size, const void* beta,
                                             const cudnnFilterDescriptor_t dw_desc, void* dw) {
    return cudnn_call("cudnnConvolutionBackwardFilter", [&](Call& call) {
        const Strided xs = view_of(call, x_desc), ys = view_of(call, dy_desc), ws = view_of(call, dw_desc);
        const Shape shape = shape_of(call, xs, ws, ys, convolution);
        const double a = scaling(alpha, ws), b = scaling(beta, ws);
        std::vector<Access> accesses{reads(x, xs), reads(dy, ys), writes(dw, ws)};
        check_algorithm(algorithm, CUDNN_CONVOLUTION_BWD_FILTER_ALGO_COUNT);
        check_workspace(workspace, workspace_size, workspace_bytes(call, handle, algorithm), accesses);
        const bool unsteady =
            algorithm == CUDNN_CONVOLUTION_BWD_FILTER_ALGO_0 || algorithm == CUDNN_CONVOLUTION_BWD_FILTER_ALGO_3;
        enqueue(
            call, handle,
            [=] {
                const Values result = backward_filter(shape, load(channels_last(xs), x), load(channels_last(ys), dy));
                store(taps_to_k(ws), dw, result, a, b, unsteady);
            },
            accesses);
        call.count_arithmetic(name_of(xs.type), name_of_math(shape.how.math));
    });
}

cudnnStatus_t cudnnConvolutionBackwardBias(cudnnHandle_t handle, const void* alpha,
                                           const cudnnTensorDescriptor_t dy_desc, const void* dy, const void* beta,
                                           const cudnnTensorDescriptor_t db_desc, void* db) {
    return cudnn_call("cudnnConvolutionBackwardBias", [&](Call& call) {
        const Strided ys = view_of(call, dy_desc), bs = view_of(call, db_desc);
        if (ys.dims.size() != 4 || bs.dims != std::vector<std::int64_t>{1, ys.dims[1], 1, 1})
            refuse_shapes("the bias gradient should be (1, channels, 1, 1)");
        const double a = scaling(alpha, bs), b = scaling(beta, bs);
        enqueue(call, handle,
                [=] {
                    const Values values = load(channels_last(ys), dy);
                    Values sums(index(ys.dims[1]));
                    for (std::size_t i = 0; i < values.size(); ++i) sums[i % sums.size()] += values[i];
                    store(bs, db, sums, a, b);
                },
                {reads(dy, ys), writes(db, bs)});
    });
}

}  // extern "C"
