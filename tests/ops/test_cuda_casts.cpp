// The CUDA kernel that copies parameters in another dtype or order, on the stand-in and on GPUs.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "lockstep/ops/cuda/layout.h"
#include "lockstep/runtime/internal/core_operations.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/ops/cuda_kernel_call.h"

using namespace lockstep;
using namespace lockstep::test;

namespace {

/// Numbers that are exact in 16 bits.
double value_at(std::size_t piece, std::int64_t i) {
    return static_cast<double>((i * 7 + static_cast<std::int64_t>(piece) * 3) % 251 - 120);
}

TensorMeta channels_last(DType dtype, const Shape& shape) {
    TensorMeta meta = TensorMeta::contiguous(dtype, shape);
    cuda::set_channels_last(meta);
    return meta;
}

/// Position of element `i` of the arena's order in cuDNN's.
std::int64_t place(const Shape& shape, std::int64_t i) {
    const std::int64_t taps = shape[2] * shape[3], channels = shape[1];
    const std::int64_t tap = i % taps, channel = i / taps % channels, filter = i / (taps * channels);
    return (filter * taps + tap) * channels + channel;
}

/// Converts pieces of all kinds, of which there are more than one launch takes.
template <class From>
void check_casts(DType from, DType to) {
    const Shape shapes[] = {{1},          {7},          {1000},        {64},         {16, 8, 3, 3}, {5, 24, 2, 2},
                            {3, 5, 3, 3}, {4, 8, 5, 5}, {8, 16, 1, 1}, {6, 1, 3, 3}, {2, 3, 7, 7},  {40, 8, 2, 3}};
    std::vector<OnDevice<From>> given;
    std::vector<Tensor> made;
    Call call;
    for (std::size_t p = 0; p < 8 * std::size(shapes); ++p) {
        const Shape& shape = shapes[p % std::size(shapes)];
        std::vector<From> values;
        for (std::int64_t i = 0; i < shape.numel(); ++i) values.push_back(static_cast<From>(value_at(p, i)));
        given.emplace_back(values);
        made.push_back(Tensor::zeros({shape.numel()}, to, gpu));
        call.in_metas.push_back(TensorMeta::contiguous(from, shape));
        const bool reorders = shape.dims() == 4 && p % 3 != 0;
        call.out_metas.push_back(reorders ? channels_last(to, shape) : TensorMeta::contiguous(to, shape));
        call.in.push_back(given.back().data());
        call.out.push_back(made.back().impl()->storage->buffer->data());
    }
    call.run(CastParameters{});
    for (std::size_t p = 0; p < made.size(); ++p) {
        const Shape& shape = call.out_metas[p].shape;
        std::vector<double> expected(static_cast<std::size_t>(shape.numel()));
        for (std::int64_t i = 0; i < shape.numel(); ++i) {
            const std::int64_t at = call.out_metas[p].is_contiguous() ? i : place(shape, i);
            expected[static_cast<std::size_t>(at)] = value_at(p, i);
        }
        INFO("piece " << p << " of shape " << shape.str());
        CHECK(made[p].to(Device::host()).to(DType::f64).to_vector<double>() == expected);
    }
}

/// Converts gradients of 16 bits, of which there are more than one launch takes, from both orders.
void check_gradients(DType from) {
    const Shape shapes[] = {{7}, {1000}, {16, 8, 3, 3}, {5, 24, 2, 2}, {3, 5, 3, 3}, {4, 8, 5, 5}, {8, 16, 1, 1}};
    std::vector<Tensor> given, made;
    Call call;
    for (std::size_t p = 0; p < 12 * std::size(shapes); ++p) {
        const Shape& shape = shapes[p % std::size(shapes)];
        const bool reorders = shape.dims() == 4 && p % 3 != 0;
        call.in_metas.push_back(reorders ? channels_last(from, shape) : TensorMeta::contiguous(from, shape));
        call.out_metas.push_back(TensorMeta::contiguous(DType::f32, shape));
        std::vector<float> values(static_cast<std::size_t>(shape.numel()));
        for (std::int64_t i = 0; i < shape.numel(); ++i)
            values[static_cast<std::size_t>(reorders ? place(shape, i) : i)] = static_cast<float>(value_at(p, i));
        given.push_back(Tensor::from(values, {shape.numel()}).to(from).to(gpu));
        made.push_back(Tensor::zeros({shape.numel()}, DType::f32, gpu));
        call.in.push_back(given.back().impl()->storage->buffer->data());
        call.out.push_back(made.back().impl()->storage->buffer->data());
    }
    call.run(CastParameters{});
    for (std::size_t p = 0; p < made.size(); ++p) {
        std::vector<float> expected;
        for (std::int64_t i = 0; i < made[p].numel(); ++i) expected.push_back(static_cast<float>(value_at(p, i)));
        INFO("piece " << p << " of shape " << call.out_metas[p].shape.str());
        CHECK(made[p].to(Device::host()).to_vector<float>() == expected);
    }
}

}  // namespace

TEST_CASE("gradients of 16 bits are converted to f32, from cuDNN's order too") {
    const NoMistakes end;
    check_gradients(DType::f16);
    check_gradients(DType::bf16);
}

TEST_CASE("parameters are copied in other dtypes and in cuDNN's order") {
    const NoMistakes end;
    for (const DType to : {DType::f16, DType::bf16, DType::f32}) {
        INFO("to " << name_of(to));
        check_casts<float>(DType::f32, to);
        check_casts<double>(DType::f64, to);
    }
}
