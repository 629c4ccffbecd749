// The functions that hide oneDNN's versions: each selects a fast kernel with the caller's scratchpad and passes the
// arguments correctly.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <unordered_map>
#include <vector>

#include "lockstep/ops/cpu/onednn.h"
#include "lockstep/tests/catch.h"

using namespace lockstep;
using namespace lockstep::cpu;

namespace {

using onednn::Desc;
using onednn::Dims;
using Tag = dnnl::memory::format_tag;

Desc f32(const Dims& dims, Tag tag) { return {dims, dnnl::memory::data_type::f32, tag}; }

std::vector<float> ramp(std::size_t size, float step) {
    std::vector<float> values(size);
    for (std::size_t i = 0; i < size; ++i) values[i] = static_cast<float>(i * 7 % 13) * step - 3.0F * step;
    return values;
}

/// Runs a kernel on plain data; the scratchpad is the caller's.
template <class PrimitiveDesc, class Primitive>
void run(const PrimitiveDesc& desc, const Primitive& primitive, std::unordered_map<int, dnnl::memory> arguments,
         onednn::Reference reference = onednn::Reference::refuse) {
    if (reference == onednn::Reference::refuse) CHECK_FALSE(onednn::is_reference(desc.impl_info_str()));
    std::vector<std::byte> scratchpad(desc.scratchpad_desc().get_size() + 1);
    arguments[DNNL_ARG_SCRATCHPAD] = dnnl::memory(desc.scratchpad_desc(), onednn::cpu_engine(), scratchpad.data());
    primitive.execute(onednn::cpu_stream(), arguments);
    onednn::cpu_stream().wait();
}

dnnl::memory over(const Desc& desc, std::vector<float>& data) {
    REQUIRE(desc.get_size() == data.size() * sizeof(float));
    return {desc, onednn::cpu_engine(), data.data()};
}

}  // namespace

TEST_CASE("oneDNN: max pooling records the positions of maxima", "[onednn]") {
    const Desc large = f32({1, 8, 4, 4}, Tag::nChw8c), small = f32({1, 8, 2, 2}, Tag::nChw8c);
    const onednn::Window window{{2, 2}, {0, 0}, {0, 0}};
    const auto forward = onednn::max_pool_forward(large, small, {2, 2}, window);
    std::vector<float> x = ramp(128, 1.0F), y(32), dy = ramp(32, 1.0F), dx(128, -1.0F);
    std::vector<std::byte> workspace(forward.workspace_desc().get_size());
    const dnnl::memory where(forward.workspace_desc(), onednn::cpu_engine(), workspace.data());
    run(forward, dnnl::pooling_forward(forward),
        {{DNNL_ARG_SRC, over(large, x)}, {DNNL_ARG_DST, over(small, y)}, {DNNL_ARG_WORKSPACE, where}});
    const auto backward = onednn::max_pool_backward(forward, large, small, {2, 2}, window);
    run(backward, dnnl::pooling_backward(backward),
        {{DNNL_ARG_DIFF_DST, over(small, dy)}, {DNNL_ARG_DIFF_SRC, over(large, dx)}, {DNNL_ARG_WORKSPACE, where}});
    for (std::size_t c = 0; c < 8; ++c)
        for (std::size_t oy = 0; oy < 2; ++oy)
            for (std::size_t ox = 0; ox < 2; ++ox) {
                float maximum = -std::numeric_limits<float>::infinity(), gradient = 0;
                for (std::size_t i = 0; i < 4; ++i) {
                    const std::size_t at = ((2 * oy + i / 2) * 4 + 2 * ox + i % 2) * 8 + c;
                    maximum = std::max(maximum, x[at]);
                    gradient += dx[at];
                }
                CHECK(y[(oy * 2 + ox) * 8 + c] == maximum);
                CHECK(gradient == dy[(oy * 2 + ox) * 8 + c]);
            }
}

TEST_CASE("oneDNN: inner product and its gradients", "[onednn]") {
    const std::size_t n = 3, c = 20, k = 5;
    const Desc src = f32({3, 20}, Tag::nc), weights = f32({5, 20}, Tag::oi), bias = f32({5}, Tag::x),
               dst = f32({3, 5}, Tag::nc);
    std::vector<float> x = ramp(n * c, 0.5F), w = ramp(k * c, 0.25F), b = ramp(k, 1.0F), y(n * k),
                       dy = ramp(n * k, 1.0F), dx(n * c), dw(k * c), db(k);
    const auto forward = onednn::inner_product_forward(src, weights, bias, dst);
    run(forward, dnnl::inner_product_forward(forward),
        {{DNNL_ARG_SRC, over(src, x)},
         {DNNL_ARG_WEIGHTS, over(weights, w)},
         {DNNL_ARG_BIAS, over(bias, b)},
         {DNNL_ARG_DST, over(dst, y)}});
    const auto data = onednn::inner_product_backward_data(forward, src, weights, dst);
    run(data, dnnl::inner_product_backward_data(data),
        {{DNNL_ARG_DIFF_DST, over(dst, dy)}, {DNNL_ARG_WEIGHTS, over(weights, w)}, {DNNL_ARG_DIFF_SRC, over(src, dx)}});
    const auto gradient = onednn::inner_product_backward_weights(forward, src, weights, bias, dst);
    run(gradient, dnnl::inner_product_backward_weights(gradient),
        {{DNNL_ARG_SRC, over(src, x)},
         {DNNL_ARG_DIFF_DST, over(dst, dy)},
         {DNNL_ARG_DIFF_WEIGHTS, over(weights, dw)},
         {DNNL_ARG_DIFF_BIAS, over(bias, db)}});
    // Small multiples of 1/8: every sum is exact.
    for (std::size_t i = 0; i < n; ++i)
        for (std::size_t o = 0; o < k; ++o) {
            float sum = b[o];
            for (std::size_t j = 0; j < c; ++j) sum += x[i * c + j] * w[o * c + j];
            CHECK(y[i * k + o] == sum);
        }
    for (std::size_t j = 0; j < c; ++j) {
        for (std::size_t i = 0; i < n; ++i) {
            float sum = 0;
            for (std::size_t o = 0; o < k; ++o) sum += dy[i * k + o] * w[o * c + j];
            CHECK(dx[i * c + j] == sum);
        }
        for (std::size_t o = 0; o < k; ++o) {
            float sum = 0;
            for (std::size_t i = 0; i < n; ++i) sum += dy[i * k + o] * x[i * c + j];
            CHECK(dw[o * c + j] == sum);
        }
    }
    for (std::size_t o = 0; o < k; ++o) CHECK(db[o] == dy[o] + dy[k + o] + dy[2 * k + o]);
}

TEST_CASE("oneDNN: matrix product, with and without bias", "[onednn]") {
    const Desc a = f32({2, 3}, Tag::ab), b = f32({3, 4}, Tag::ab), bias = f32({1, 4}, Tag::ab),
               dst = f32({2, 4}, Tag::ab);
    std::vector<float> x = ramp(6, 1.0F), w = ramp(12, 1.0F), offset = ramp(4, 8.0F), plain(8), shifted(8);
    const auto product = onednn::matmul(a, b, dst);
    run(product, dnnl::matmul(product),
        {{DNNL_ARG_SRC, over(a, x)}, {DNNL_ARG_WEIGHTS, over(b, w)}, {DNNL_ARG_DST, over(dst, plain)}});
    const auto with_bias = onednn::matmul(a, b, bias, dst);
    run(with_bias, dnnl::matmul(with_bias),
        {{DNNL_ARG_SRC, over(a, x)},
         {DNNL_ARG_WEIGHTS, over(b, w)},
         {DNNL_ARG_BIAS, over(bias, offset)},
         {DNNL_ARG_DST, over(dst, shifted)}});
    for (std::size_t i = 0; i < 2; ++i)
        for (std::size_t j = 0; j < 4; ++j) {
            float sum = 0;
            for (std::size_t l = 0; l < 3; ++l) sum += x[i * 3 + l] * w[l * 4 + j];
            CHECK(plain[i * 4 + j] == sum);
            CHECK(shifted[i * 4 + j] == sum + offset[j]);
        }
}

TEST_CASE("oneDNN: ReLU, whose gradient may overwrite its input", "[onednn]") {
    const Desc data = f32({2, 16, 3, 3}, Tag::nChw16c);
    std::vector<float> x = ramp(288, 1.0F), y(288), gradient = ramp(288, 2.0F);
    const std::vector<float> dy = gradient;
    const auto forward = onednn::relu_forward(data);
    run(forward, dnnl::eltwise_forward(forward), {{DNNL_ARG_SRC, over(data, x)}, {DNNL_ARG_DST, over(data, y)}});
    const auto backward = onednn::relu_backward(forward, data, data);
    run(backward, dnnl::eltwise_backward(backward),
        {{DNNL_ARG_DST, over(data, y)},
         {DNNL_ARG_DIFF_DST, over(data, gradient)},
         {DNNL_ARG_DIFF_SRC, over(data, gradient)}});
    for (std::size_t i = 0; i < x.size(); ++i) {
        CHECK(y[i] == std::max(x[i], 0.0F));
        CHECK(gradient[i] == (x[i] > 0 ? dy[i] : 0.0F));
    }
}

TEST_CASE("oneDNN: softmax and log-softmax", "[onednn]") {
    const bool logarithm = GENERATE(false, true);
    const std::size_t n = 3, c = 10;
    const Desc data = f32({3, 10}, Tag::ab);
    std::vector<float> x = ramp(n * c, 0.5F), y(n * c), dy = ramp(n * c, 0.25F), dx(n * c);
    const auto forward = onednn::softmax_forward(data, data, 1, logarithm);
    run(forward, onednn::SoftmaxForward(forward), {{DNNL_ARG_SRC, over(data, x)}, {DNNL_ARG_DST, over(data, y)}});
    const auto backward = onednn::softmax_backward(forward, data, data, data, 1, logarithm);
    run(backward, onednn::SoftmaxBackward(backward),
        {{DNNL_ARG_DST, over(data, y)}, {DNNL_ARG_DIFF_DST, over(data, dy)}, {DNNL_ARG_DIFF_SRC, over(data, dx)}},
        onednn::Reference::accept);  // the only one below AVX-512
    // oneDNN's exponential is accurate to about 1e-6 of the largest term.
    const double margin = 2e-5;
    for (std::size_t i = 0; i < n; ++i) {
        double sum = 0, weighted = 0, total = 0;
        for (std::size_t j = 0; j < c; ++j) sum += std::exp(static_cast<double>(x[i * c + j]));
        const auto p = [&](std::size_t j) { return std::exp(static_cast<double>(x[i * c + j])) / sum; };
        for (std::size_t j = 0; j < c; ++j) {
            weighted += p(j) * static_cast<double>(dy[i * c + j]);
            total += static_cast<double>(dy[i * c + j]);
        }
        for (std::size_t j = 0; j < c; ++j) {
            const double g = static_cast<double>(dy[i * c + j]);
            CHECK(static_cast<double>(y[i * c + j]) == Approx(logarithm ? std::log(p(j)) : p(j)).margin(margin));
            CHECK(static_cast<double>(dx[i * c + j]) ==
                  Approx(logarithm ? g - p(j) * total : p(j) * (g - weighted)).margin(margin));
        }
    }
}

TEST_CASE("oneDNN: binary operations and reorders", "[onednn]") {
    const Desc plain = f32({1, 10, 2, 2}, Tag::nchw), blocked = f32({1, 10, 2, 2}, Tag::nChw8c);
    std::vector<float> a = ramp(40, 1.0F), b = ramp(40, 2.0F), sum(40), inside(64, -1.0F), back(40);
    const auto add = onednn::binary(dnnl::algorithm::binary_add, plain, plain, plain);
    run(add, dnnl::binary(add),
        {{DNNL_ARG_SRC_0, over(plain, a)}, {DNNL_ARG_SRC_1, over(plain, b)}, {DNNL_ARG_DST, over(plain, sum)}});
    for (std::size_t i = 0; i < 40; ++i) CHECK(sum[i] == a[i] + b[i]);
    const auto there = onednn::reorder(plain, blocked), home = onednn::reorder(blocked, plain);
    run(there, dnnl::reorder(there), {{DNNL_ARG_FROM, over(plain, sum)}, {DNNL_ARG_TO, over(blocked, inside)}});
    run(home, dnnl::reorder(home), {{DNNL_ARG_FROM, over(blocked, inside)}, {DNNL_ARG_TO, over(plain, back)}});
    CHECK(back == sum);
    // Channel 9 of the first pixel is lane 1 of the second block; lanes beyond channel 9 are zeros.
    CHECK(inside[4 * 8 + 1] == sum[9 * 4]);
    CHECK(inside[4 * 8 + 2] == 0.0F);
    CHECK(onednn::describe(plain) == "f32 (1, 10, 2, 2)");
}
