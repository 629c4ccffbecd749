// Attention on the stand-in and on GPUs: masks, groups, strides, dropout and second derivatives.
#include <limits>
#include <vector>

#include "lockstep/runtime/autograd.h"
#include "lockstep/tests/ops/cuda_attention.h"

using namespace lockstep;
using namespace lockstep::test;

namespace {

constexpr DType all_floats[] = {DType::f32, DType::f64, DType::f16, DType::bf16};

}  // namespace

TEST_CASE("attention on GPUs: masks, groups, strides and dropout") {
    const NoMistakes end;
    const AttentionShapes plain{{2, 3, 5, 4}, {2, 3, 7, 4}, {2, 3, 7, 6}},
        groups{{2, 4, 5, 4}, {2, 2, 7, 4}, {2, 2, 7, 6}};
    for (const DType dtype : all_floats)
        for (const bool strided : {false, true}) {
            check_attention_on_gpu(plain, {}, dtype, strided);
            check_attention_on_gpu(plain, {.is_causal = true, .scale = -0.7}, dtype, strided);
            check_attention_on_gpu(plain, {.dropout_p = 0.3}, dtype, strided);
            check_attention_on_gpu(groups, {.dropout_p = 0.3, .is_causal = true, .enable_gqa = true}, dtype, strided);
        }
    for (const Shape& shape : {Shape{2, 3, 5, 7}, Shape{5, 7}, Shape{2, 1, 1, 7}, Shape{3, 5, 1}}) {
        const Tensor numbers = attention_values(shape, 5, DType::f32, Device::host());
        const Tensor chosen = numbers > -0.5;  // some queries attend to nothing
        for (const DType dtype : all_floats) {
            check_attention_on_gpu(plain, {.attn_mask = chosen}, dtype);
            check_attention_on_gpu(
                plain, {.attn_mask = where(chosen, numbers, -std::numeric_limits<double>::infinity())}, dtype);
        }
    }
    for (const DType dtype : all_floats)  // rows that a block shares
        check_attention_on_gpu({{1, 2, 3, 4}, {1, 2, 1100, 4}, {1, 2, 1100, 2}}, {.dropout_p = 0.1}, dtype);
    check_attention_on_gpu({{2, 3, 5, 4}, {2, 3, 0, 4}, {2, 3, 0, 2}}, {}, DType::f32);
    check_attention_on_gpu({{2, 3, 0, 4}, {2, 3, 5, 4}, {2, 3, 5, 2}}, {}, DType::f32);
    check_attention_on_gpu({{0, 3, 5, 4}, {0, 3, 5, 4}, {0, 3, 5, 2}}, {}, DType::f32);
}

TEST_CASE("attention on GPUs: second derivatives with dropout") {
    const NoMistakes end;
    const auto second = [](Device device, DType dtype) {
        const Tensor x = attention_values({2, 3, 4}, 1, dtype, device).requires_grad_();
        manual_seed(9);
        const Tensor y = scaled_dot_product_attention(x, x * 0.5, x, {.dropout_p = 0.3});
        const Tensor slope = grad({sum(y)}, {x}, {}, {.create_graph = true})[0];
        return on_host(grad({sum(square(slope))}, {x})[0]);
    };
    const std::vector<double> expected = second(Device::cpu(0), DType::f64);
    for (const DType dtype : {DType::f32, DType::f64}) {
        const std::vector<double> found = second(gpu, dtype);
        for (std::size_t i = 0; i < expected.size(); ++i) CHECK(found[i] == Approx(expected[i]).margin(1e-5));
    }
}
