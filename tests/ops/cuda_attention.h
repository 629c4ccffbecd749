// Attention on a GPU or the stand-in, compared with CPU devices in f64.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "lockstep/ops/functional.h"
#include "lockstep/runtime/random.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/ops/cuda_kernel_call.h"

namespace lockstep::test {

/// AttentionShapes of query, key and value.
struct AttentionShapes {
    Shape query, key, value;
};

/// Fixed numbers in (-1, 1), exact in 16 bits.
inline Tensor attention_values(const Shape& shape, int salt, DType dtype, Device device) {
    std::vector<double> values;
    for (std::int64_t i = 0; i < shape.numel(); ++i)
        values.push_back(std::round(64 * std::sin(1.7 * static_cast<double>(i) + salt)) / 64);
    return Tensor::from(values, shape).to(dtype).to(device);
}

inline std::vector<double> on_host(const Tensor& x) {
    return x.detach().to(Device::host()).to(DType::f64).to_vector<double>();
}

/// Result and gradients. The operands are transposed views if `strided`.
inline std::vector<std::vector<double>> attention_on(Device device, DType dtype, const AttentionShapes& shapes,
                                                     AttentionOptions options, bool strided = false) {
    const auto operand = [&](const Shape& shape, int salt) {
        const Tensor x = attention_values(shape, salt, dtype, device);
        return (strided ? x.transpose(1, 2).contiguous() : x).requires_grad_();
    };
    const Tensor query = operand(shapes.query, 1), key = operand(shapes.key, 2), value = operand(shapes.value, 3);
    const auto seen = [&](const Tensor& x) { return strided ? x.transpose(1, 2) : x; };
    if (options.attn_mask.defined()) options.attn_mask = options.attn_mask.to(device);
    manual_seed(9);
    const Tensor y = scaled_dot_product_attention(seen(query), seen(key), seen(value), options);
    y.backward(attention_values(y.shape(), 4, dtype, device));
    return {on_host(y), on_host(query.grad()), on_host(key.grad()), on_host(value.grad())};
}

inline void check_attention_on_gpu(const AttentionShapes& shapes, const AttentionOptions& options, DType dtype,
                                   bool strided = false) {
    INFO(shapes.query.str() << " " << shapes.key.str() << " " << name_of(dtype));
    const double bound = dtype == DType::f64 ? 1e-12 : dtype == DType::f16 ? 1e-2 : dtype == DType::bf16 ? 8e-2 : 1e-5;
    const auto expected = attention_on(Device::cpu(0), DType::f64, shapes, options, strided);
    const auto found = attention_on(gpu, dtype, shapes, options, strided);
    for (std::size_t i = 0; i < found.size(); ++i) {
        REQUIRE(found[i].size() == expected[i].size());
        double largest = 1, error = 0;
        for (const double value : expected[i]) largest = std::max(largest, std::abs(value));
        for (std::size_t e = 0; e < found[i].size(); ++e) {
            const double difference = std::abs(found[i][e] - expected[i][e]);
            error = difference <= error ? error : difference;  // also NaN
        }
        INFO("result " << i);
        CHECK(error <= bound * largest);
    }
}

}  // namespace lockstep::test
