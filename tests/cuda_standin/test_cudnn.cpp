// cuDNN's stand-in against plain loops over (n, c, h, w).
#include <cudnn.h>

#include <cmath>
#include <random>

#include "lockstep/tests/cuda_standin/fixture.h"

using namespace standin;

namespace {

void ok(cudnnStatus_t status) { REQUIRE(status == CUDNN_STATUS_SUCCESS); }

constexpr float kOne = 1, kZero = 0;

// A float tensor on device 0 in NCHW or NHWC, as a plain array with an index function on the host.
struct Image {
    int n, c, h, w;
    bool last;
    std::vector<float> values;
    float* data = nullptr;
    cudnnTensorDescriptor_t desc = nullptr;

    Image(int n_, int c_, int h_, int w_, bool channels_last, unsigned seed)
        : n(n_), c(c_), h(h_), w(w_), last(channels_last), values(static_cast<std::size_t>(n_ * c_ * h_ * w_)) {
        std::mt19937 random(seed);
        std::uniform_real_distribution<float> range(-1, 1);
        for (float& each : values) each = range(random);
        data = on_device(values);
        ok(cudnnCreateTensorDescriptor(&desc));
        ok(cudnnSetTensor4dDescriptor(desc, last ? CUDNN_TENSOR_NHWC : CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, n, c, h,
                                      w));
    }
    std::size_t at(int i, int j, int y, int x) const {
        return static_cast<std::size_t>(last ? ((i * h + y) * w + x) * c + j : ((i * c + j) * h + y) * w + x);
    }
    bool holds(int y, int x) const { return y >= 0 && y < h && x >= 0 && x < w; }
    std::vector<float> result() const { return on_host(data, values.size()); }
};

double distance(const std::vector<float>& result, const std::vector<double>& expected) {
    double worst = 0;
    for (std::size_t i = 0; i < result.size(); ++i) worst = std::max(worst, std::abs(result[i] - expected[i]));
    return worst;
}

struct Handle {
    cudnnHandle_t handle = nullptr;
    cudaStream_t stream = nullptr;
    Handle() : stream(new_stream(0)) {
        ok(cudnnCreate(&handle));
        ok(cudnnSetStream(handle, stream));
    }
    void finish() const { ::ok(cudaStreamSynchronize(stream)); }
};

struct ConvCase {
    int n, c, h, w, k, r, s, pad, stride, dilation, groups;
    bool last;
};

void check_convolution(const ConvCase& test) {
    CAPTURE(test.n, test.c, test.k, test.r, test.pad, test.stride, test.dilation, test.groups, test.last);
    const Fresh fresh;
    const Handle cudnn;
    const int cg = test.c / test.groups, kg = test.k / test.groups;
    const Image x(test.n, test.c, test.h, test.w, test.last, 1), w(test.k, cg, test.r, test.s, test.last, 2);
    cudnnFilterDescriptor_t filter = nullptr;
    cudnnConvolutionDescriptor_t conv = nullptr;
    ok(cudnnCreateFilterDescriptor(&filter));
    ok(cudnnSetFilter4dDescriptor(filter, CUDNN_DATA_FLOAT, test.last ? CUDNN_TENSOR_NHWC : CUDNN_TENSOR_NCHW, test.k,
                                  cg, test.r, test.s));
    ok(cudnnCreateConvolutionDescriptor(&conv));
    ok(cudnnSetConvolution2dDescriptor(conv, test.pad, test.pad, test.stride, test.stride, test.dilation, test.dilation,
                                       CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT));
    ok(cudnnSetConvolutionMathType(conv, CUDNN_FMA_MATH));
    ok(cudnnSetConvolutionGroupCount(conv, test.groups));
    int yn = 0, yk = 0, p = 0, q = 0;
    ok(cudnnGetConvolution2dForwardOutputDim(conv, x.desc, filter, &yn, &yk, &p, &q));
    const Image y(yn, yk, p, q, test.last, 3), dx(test.n, test.c, test.h, test.w, test.last, 4);
    const Image dw(test.k, cg, test.r, test.s, test.last, 5), db(1, test.k, 1, 1, test.last, 6);

    std::vector<double> ey(y.values.size()), edx(dx.values.size()), edw(dw.values.size()), edb(db.values.size());
    for (int i = 0; i < yn; ++i)
        for (int k = 0; k < yk; ++k)
            for (int py = 0; py < p; ++py)
                for (int px = 0; px < q; ++px) {
                    const double dy = y.values[y.at(i, k, py, px)];
                    edb[db.at(0, k, 0, 0)] += dy;
                    for (int c = 0; c < cg; ++c)
                        for (int r = 0; r < test.r; ++r)
                            for (int s = 0; s < test.s; ++s) {
                                const int in_y = py * test.stride - test.pad + r * test.dilation;
                                const int in_x = px * test.stride - test.pad + s * test.dilation;
                                if (!x.holds(in_y, in_x)) continue;
                                const std::size_t from = x.at(i, k / kg * cg + c, in_y, in_x), tap = w.at(k, c, r, s);
                                ey[y.at(i, k, py, px)] += double{x.values[from]} * w.values[tap];
                                edx[from] += dy * w.values[tap];
                                edw[tap] += dy * x.values[from];
                            }
                }

    const auto with_workspace = [](std::size_t bytes) { return on_device(std::vector<char>(bytes)); };
    std::size_t bytes = 0;
    int count = 0;
    // Backward first: y still has the values used as dy.
    cudnnConvolutionBwdDataAlgoPerf_t data_algos[4];
    ok(cudnnGetConvolutionBackwardDataAlgorithm_v7(cudnn.handle, filter, y.desc, conv, dx.desc, 4, &count, data_algos));
    REQUIRE(count == 2);
    CHECK(data_algos[1].determinism == CUDNN_DETERMINISTIC);
    ok(cudnnGetConvolutionBackwardDataWorkspaceSize(cudnn.handle, filter, y.desc, conv, dx.desc, data_algos[1].algo,
                                                    &bytes));
    ok(cudnnConvolutionBackwardData(cudnn.handle, &kOne, filter, w.data, y.desc, y.data, conv, data_algos[1].algo,
                                    with_workspace(bytes), bytes, &kZero, dx.desc, dx.data));
    ok(cudnnGetConvolutionBackwardFilterWorkspaceSize(cudnn.handle, x.desc, y.desc, conv, filter,
                                                      CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1, &bytes));
    const float half = 0.5F;  // added to half of the previous values
    ok(cudnnConvolutionBackwardFilter(cudnn.handle, &kOne, x.desc, x.data, y.desc, y.data, conv,
                                      CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1, with_workspace(bytes), bytes, &half, filter,
                                      dw.data));
    for (std::size_t i = 0; i < edw.size(); ++i) edw[i] += 0.5 * dw.values[i];
    ok(cudnnConvolutionBackwardBias(cudnn.handle, &kOne, y.desc, y.data, &kZero, db.desc, db.data));
    ok(cudnnGetConvolutionForwardWorkspaceSize(cudnn.handle, x.desc, filter, conv, y.desc,
                                               CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM, &bytes));
    REQUIRE(bytes > 0);
    ok(cudnnConvolutionForward(cudnn.handle, &kOne, x.desc, x.data, filter, w.data, conv,
                               CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM, with_workspace(bytes), bytes, &kZero,
                               y.desc, y.data));
    cudnn.finish();
    const auto asked = counters().devices[0].arithmetic;
    CHECK(asked.size() == 3);
    for (const char* call :
         {"cudnnConvolutionForward", "cudnnConvolutionBackwardData", "cudnnConvolutionBackwardFilter"})
        CHECK(asked.contains(std::string(call) + " f32 CUDNN_FMA_MATH"));
    CHECK(distance(y.result(), ey) < 1e-5);
    CHECK(distance(dx.result(), edx) < 1e-5);
    CHECK(distance(dw.result(), edw) < 1e-5);
    CHECK(distance(db.result(), edb) < 1e-5);
}

}  // namespace

TEST_CASE("convolutions and their gradients") {
    for (const bool last : {false, true}) {
        check_convolution({2, 3, 7, 6, 4, 3, 3, 0, 1, 1, 1, last});
        check_convolution({1, 4, 9, 8, 6, 3, 2, 2, 2, 1, 2, last});
        check_convolution({3, 1, 5, 5, 2, 1, 1, 0, 1, 1, 1, last});
        check_convolution({1, 2, 9, 9, 2, 3, 3, 1, 1, 2, 1, last});
    }
}

TEST_CASE("pooling, its gradient, and ReLU") {
    for (const bool last : {false, true}) {
        const Fresh fresh;
        const Handle cudnn;
        const Image x(2, 3, 7, 6, last, 1), y(2, 3, 4, 3, last, 2), dx(2, 3, 7, 6, last, 3);
        cudnnPoolingDescriptor_t pooling = nullptr;
        ok(cudnnCreatePoolingDescriptor(&pooling));
        ok(cudnnSetPooling2dDescriptor(pooling, CUDNN_POOLING_MAX_DETERMINISTIC, CUDNN_PROPAGATE_NAN, 3, 3, 1, 1, 2,
                                       2));
        int n = 0, c = 0, h = 0, w = 0;
        ok(cudnnGetPooling2dForwardOutputDim(pooling, x.desc, &n, &c, &h, &w));
        REQUIRE((n == 2 && c == 3 && h == 4 && w == 3));
        std::vector<double> ey(y.values.size()), edx(dx.values.size());
        for (int i = 0; i < n; ++i)
            for (int j = 0; j < c; ++j)
                for (int py = 0; py < h; ++py)
                    for (int px = 0; px < w; ++px) {
                        std::size_t best = x.at(i, j, py * 2, px * 2);
                        for (int iy = py * 2 - 1; iy <= py * 2 + 1; ++iy)
                            for (int ix = px * 2 - 1; ix <= px * 2 + 1; ++ix)
                                if (x.holds(iy, ix) && x.values[x.at(i, j, iy, ix)] > x.values[best])
                                    best = x.at(i, j, iy, ix);
                        ey[y.at(i, j, py, px)] = x.values[best];
                        edx[best] += y.values[y.at(i, j, py, px)];
                    }
        ok(cudnnPoolingBackward(cudnn.handle, pooling, &kOne, y.desc, y.data, y.desc, y.data, x.desc, x.data, &kZero,
                                dx.desc, dx.data));
        ok(cudnnPoolingForward(cudnn.handle, pooling, &kOne, x.desc, x.data, &kZero, y.desc, y.data));
        cudnn.finish();
        CHECK(distance(y.result(), ey) == 0);
        CHECK(distance(dx.result(), edx) < 1e-6);

        cudnnActivationDescriptor_t relu = nullptr;
        ok(cudnnCreateActivationDescriptor(&relu));
        ok(cudnnSetActivationDescriptor(relu, CUDNN_ACTIVATION_RELU, CUDNN_PROPAGATE_NAN, 0));
        const Image dy(2, 3, 7, 6, last, 5), out(2, 3, 7, 6, last, 6);
        ok(cudnnActivationForward(cudnn.handle, relu, &kOne, x.desc, x.data, &kZero, out.desc, out.data));
        ok(cudnnActivationBackward(cudnn.handle, relu, &kOne, out.desc, out.data, dy.desc, dy.data, x.desc, x.data,
                                   &kZero, dx.desc, dx.data));
        cudnn.finish();
        std::vector<double> positive(x.values.size()), passed(x.values.size());
        for (std::size_t i = 0; i < positive.size(); ++i) {
            positive[i] = std::max(x.values[i], 0.F);
            passed[i] = x.values[i] > 0 ? dy.values[i] : 0.F;
        }
        CHECK(distance(out.result(), positive) == 0);
        CHECK(distance(dx.result(), passed) == 0);
    }
}

TEST_CASE("log-softmax, bias, layout conversion, reduction") {
    const Fresh fresh;
    const Handle cudnn;
    const Image x(4, 10, 1, 1, false, 1), y(4, 10, 1, 1, false, 2), dy(4, 10, 1, 1, false, 3),
        dx(4, 10, 1, 1, false, 4);
    ok(cudnnSoftmaxForward(cudnn.handle, CUDNN_SOFTMAX_LOG, CUDNN_SOFTMAX_MODE_CHANNEL, &kOne, x.desc, x.data, &kZero,
                           y.desc, y.data));
    ok(cudnnSoftmaxBackward(cudnn.handle, CUDNN_SOFTMAX_LOG, CUDNN_SOFTMAX_MODE_CHANNEL, &kOne, y.desc, y.data, dy.desc,
                            dy.data, &kZero, dx.desc, dx.data));
    cudnn.finish();
    std::vector<double> ey(40), edx(40);
    for (std::size_t row = 0; row < 40; row += 10) {
        double sum = 0, total = 0;
        for (std::size_t i = row; i < row + 10; ++i) sum += std::exp(double{x.values[i]}), total += dy.values[i];
        for (std::size_t i = row; i < row + 10; ++i) {
            ey[i] = x.values[i] - std::log(sum);
            edx[i] = dy.values[i] - std::exp(double{x.values[i]}) / sum * total;
        }
    }
    CHECK(distance(y.result(), ey) < 1e-6);
    CHECK(distance(dx.result(), edx) < 1e-6);

    const Image image(2, 3, 2, 4, false, 5), bias(1, 3, 1, 1, false, 6), last(2, 3, 2, 4, true, 7);
    ok(cudnnAddTensor(cudnn.handle, &kOne, bias.desc, bias.data, &kOne, image.desc, image.data));
    ok(cudnnTransformTensor(cudnn.handle, &kOne, image.desc, image.data, &kZero, last.desc, last.data));
    cudnnReduceTensorDescriptor_t reduce = nullptr;
    ok(cudnnCreateReduceTensorDescriptor(&reduce));
    ok(cudnnSetReduceTensorDescriptor(reduce, CUDNN_REDUCE_TENSOR_AVG, CUDNN_DATA_FLOAT, CUDNN_PROPAGATE_NAN,
                                      CUDNN_REDUCE_TENSOR_NO_INDICES, CUDNN_32BIT_INDICES));
    std::size_t bytes = 0;
    ok(cudnnGetReductionWorkspaceSize(cudnn.handle, reduce, last.desc, bias.desc, &bytes));
    ok(cudnnReduceTensor(cudnn.handle, reduce, nullptr, 0, on_device(std::vector<char>(bytes)), bytes, &kOne, last.desc,
                         last.data, &kZero, bias.desc, bias.data));
    cudnn.finish();
    std::vector<double> moved(last.values.size()), mean(3);
    for (int i = 0; i < 2; ++i)
        for (int j = 0; j < 3; ++j)
            for (int h = 0; h < 2; ++h)
                for (int w = 0; w < 4; ++w) {
                    const auto channel = static_cast<std::size_t>(j);
                    const double value = image.values[image.at(i, j, h, w)] + double{bias.values[channel]};
                    moved[last.at(i, j, h, w)] = value;
                    mean[channel] += value / 16;
                }
    CHECK(distance(last.result(), moved) < 1e-6);
    CHECK(distance(bias.result(), mean) < 1e-6);
}

TEST_CASE("16-bit storage rounds to nearest even") {
    const Fresh fresh;
    const Handle cudnn;
    const Image x(1, 1, 1, 4, false, 1);
    const std::vector<float> values{1.0009765625F, 1.00146484375F, -65504, 6.103515625e-05F};
    const std::vector<std::uint16_t> halves{0x3c01, 0x3c02, 0xfbff, 0x0400}, bfloats{0x3f80, 0x3f80, 0xc780, 0x3880};
    for (const bool bfloat : {false, true}) {
        cudnnTensorDescriptor_t half = nullptr;
        ok(cudnnCreateTensorDescriptor(&half));
        ok(cudnnSetTensor4dDescriptor(half, CUDNN_TENSOR_NCHW, bfloat ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF, 1, 1, 1,
                                      4));
        float* from = on_device(values);
        auto* to = on_device(std::vector<std::uint16_t>(4));
        ok(cudnnTransformTensor(cudnn.handle, &kOne, x.desc, from, &kZero, half, to));
        cudnn.finish();
        CHECK(on_host(to, 4) == (bfloat ? bfloats : halves));
        ok(cudnnTransformTensor(cudnn.handle, &kOne, half, to, &kZero, x.desc, from));
        cudnn.finish();
        if (!bfloat) CHECK(on_host(from, 4) == std::vector<float>{1.0009765625F, 1.001953125F, -65504, values[3]});
    }
}

TEST_CASE("cuDNN handles are bound to their device, workspaces are checked, and shapes must match") {
    const Fresh fresh;
    const Handle cudnn;
    const Image x(1, 2, 4, 4, false, 1), y(1, 2, 4, 4, false, 2), small(1, 2, 3, 4, false, 3);
    const cudaStream_t other = new_stream(1);
    CHECK(cudnnSetStream(cudnn.handle, other) != CUDNN_STATUS_SUCCESS);
    CHECK(only_mistake() == Kind::wrong_device);
    CHECK(cudnnTransformTensor(cudnn.handle, &kOne, x.desc, x.data, &kZero, y.desc, y.data) != CUDNN_STATUS_SUCCESS);
    CHECK(only_mistake() == Kind::wrong_device);
    use(0);
    CHECK(cudnnTransformTensor(cudnn.handle, &kOne, x.desc, x.data, &kZero, small.desc, small.data) ==
          CUDNN_STATUS_BAD_PARAM);
    CHECK(only_mistake() == Kind::invalid_argument);
    CHECK(cudnnTransformTensor(cudnn.handle, &kOne, x.desc, x.data + 8, &kZero, y.desc, y.data) !=
          CUDNN_STATUS_SUCCESS);
    CHECK(only_mistake() == Kind::out_of_bounds);

    cudnnFilterDescriptor_t filter = nullptr;
    cudnnConvolutionDescriptor_t conv = nullptr;
    ok(cudnnCreateFilterDescriptor(&filter));
    ok(cudnnCreateConvolutionDescriptor(&conv));
    const auto convolve = [&] {
        return cudnnConvolutionForward(cudnn.handle, &kOne, x.desc, x.data, filter, y.data, conv,
                                       CUDNN_CONVOLUTION_FWD_ALGO_GEMM, nullptr, 0, &kZero, y.desc, y.data);
    };
    CHECK(convolve() == CUDNN_STATUS_BAD_PARAM);
    CHECK(only_mistake() == Kind::invalid_argument);  // never set
    ok(cudnnSetFilter4dDescriptor(filter, CUDNN_DATA_FLOAT, CUDNN_TENSOR_NCHW, 2, 2, 1, 1));
    ok(cudnnSetConvolution2dDescriptor(conv, 0, 0, 1, 1, 1, 1, CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT));
    CHECK(convolve() == CUDNN_STATUS_BAD_PARAM);
    CHECK(only_mistake() == Kind::workspace);
    CHECK(cudnnSetTensor4dDescriptor(x.desc, CUDNN_TENSOR_NCHW, CUDNN_DATA_INT8, 1, 2, 4, 4) ==
          CUDNN_STATUS_NOT_SUPPORTED);
    CHECK(only_mistake() == Kind::unsupported);
}

TEST_CASE("a nondeterministic algorithm gives different bits in each run") {
    const Fresh fresh;
    const Handle cudnn;
    const Image x(1, 8, 8, 8, false, 1), y(1, 8, 8, 8, false, 2), w(8, 8, 1, 1, false, 3);
    cudnnFilterDescriptor_t filter = nullptr;
    cudnnConvolutionDescriptor_t conv = nullptr;
    ok(cudnnCreateFilterDescriptor(&filter));
    ok(cudnnSetFilter4dDescriptor(filter, CUDNN_DATA_FLOAT, CUDNN_TENSOR_NCHW, 8, 8, 1, 1));
    ok(cudnnCreateConvolutionDescriptor(&conv));
    ok(cudnnSetConvolution2dDescriptor(conv, 0, 0, 1, 1, 1, 1, CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT));
    char* workspace = on_device(std::vector<char>(4096));
    const auto run = [&](cudnnConvolutionBwdFilterAlgo_t algorithm) {
        ok(cudnnConvolutionBackwardFilter(cudnn.handle, &kOne, x.desc, x.data, y.desc, y.data, conv, algorithm,
                                          workspace, 4096, &kZero, filter, w.data));
        cudnn.finish();
        return w.result();
    };
    CHECK(run(CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1) == run(CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1));
    CHECK(run(CUDNN_CONVOLUTION_BWD_FILTER_ALGO_0) != run(CUDNN_CONVOLUTION_BWD_FILTER_ALGO_0));
}

TEST_CASE("a convolution's workspace size depends on the card model") {
    Config config = devices(3);
    config.devices[1].sm_count = 64;
    config.devices[2].compute_capability = 90;
    const Fresh fresh(config);
    const Image x(1, 2, 4, 4, true, 1), y(1, 3, 4, 4, true, 2);
    cudnnFilterDescriptor_t filter = nullptr;
    cudnnConvolutionDescriptor_t convolution = nullptr;
    ok(cudnnCreateFilterDescriptor(&filter));
    ok(cudnnSetFilter4dDescriptor(filter, CUDNN_DATA_FLOAT, CUDNN_TENSOR_NHWC, 3, 2, 3, 3));
    ok(cudnnCreateConvolutionDescriptor(&convolution));
    ok(cudnnSetConvolution2dDescriptor(convolution, 1, 1, 1, 1, 1, 1, CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT));
    std::set<std::size_t> sizes;
    for (const int device : {0, 1, 2}) {
        use(device);
        cudnnHandle_t handle = nullptr;
        ok(cudnnCreate(&handle));
        std::size_t bytes = 0;
        ok(cudnnGetConvolutionForwardWorkspaceSize(handle, x.desc, filter, convolution, y.desc,
                                                   CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM, &bytes));
        sizes.insert(bytes);
    }
    CHECK(sizes.size() == 3);
}
