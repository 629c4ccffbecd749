// Checks of the op table's entries: inputs in every memory layout of a tensor, and the expected values and gradients.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/ops/functional.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/random.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/ops/op_table.h"

namespace lockstep::test {

enum class MemoryLayout {
    plain,           ///< row-major
    transposed,      ///< first and last dimension exchanged in memory
    strided,         ///< every second element of a larger tensor, not from its start
    opaque,          ///< as a convolution writes it: the backend's layout
    view_of_opaque,  ///< rows of a convolution's result
};
inline constexpr MemoryLayout all_layouts[] = {MemoryLayout::plain, MemoryLayout::transposed, MemoryLayout::strided,
                                               MemoryLayout::opaque, MemoryLayout::view_of_opaque};

inline const char* name_of(MemoryLayout layout) {
    constexpr const char* names[] = {"plain", "transposed", "strided", "opaque", "view of opaque"};
    return names[static_cast<int>(layout)];
}

/// Whether a convolution writes this number of channels in blocks; otherwise in channels-last order, unless they are
/// few.
inline bool blocked(const Tensor& x) { return x.size(1) % 16 == 0; }

/// Whether the layout differs from the plain one for this tensor.
inline bool applies(MemoryLayout layout, const Tensor& x) {
    if (!is_floating(x.dtype())) return layout == MemoryLayout::plain;
    switch (layout) {
        case MemoryLayout::transposed: return x.dims() >= 2;
        case MemoryLayout::strided: return x.dims() >= 1;
        case MemoryLayout::opaque:
        case MemoryLayout::view_of_opaque:
            return x.dims() == 4 && x.dtype() == DType::f32 &&
                   (blocked(x) || ((x.size(1) == 10 || x.size(1) == 20) && x.size(3) > 1));
        case MemoryLayout::plain: break;
    }
    return true;
}

/// The same values, convolved with the identity (which is exact).
inline Tensor convolved(const Tensor& x) {
    const std::int64_t channels = x.size(1), size = blocked(x) ? 1 : 3, taps = size * size;
    std::vector<float> identity(static_cast<std::size_t>(channels * channels * taps));
    for (std::int64_t c = 0; c < channels; ++c)
        identity[static_cast<std::size_t>((c * channels + c) * taps + taps / 2)] = 1;
    const int padding = static_cast<int>(size / 2);
    return conv2d(x, Tensor::from(identity, {channels, channels, size, size}, x.device()), Tensor(), 1, padding);
}

inline Tensor laid(const Tensor& x, MemoryLayout layout) {
    if (!applies(layout, x)) return x;
    const NoGrad no_grad;
    switch (layout) {
        case MemoryLayout::transposed: return x.transpose(0, -1).contiguous().transpose(0, -1);
        case MemoryLayout::strided: {
            Shape wide = x.shape();
            wide[x.dims() - 1] = 2 * x.size(-1) + 1;
            const Tensor result = Tensor::full(wide, 99, x.dtype(), x.device()).slice(-1, 1, wide[x.dims() - 1], 2);
            result.copy_(x);
            return result;
        }
        case MemoryLayout::opaque: return convolved(x);
        case MemoryLayout::view_of_opaque: {
            const std::int64_t rows = x.size(0);
            return convolved(cat({x, x})).slice(0, rows, 2 * rows);
        }
        case MemoryLayout::plain: break;
    }
    return x;
}

/// Largest difference relative to the largest finite element of `expected`, or to 1. NaN if one is NaN or infinite and
/// the other is not the same.
inline double largest_error(const Array& found, const Array& expected) {
    double difference = 0, scale = 1;
    for (const double value : expected.v)
        if (std::isfinite(value)) scale = std::max(scale, std::abs(value));
    for (std::size_t i = 0; i < expected.v.size(); ++i) {
        if (found.v[i] == expected.v[i] || (std::isnan(found.v[i]) && std::isnan(expected.v[i]))) continue;
        const double d = std::abs(found.v[i] - expected.v[i]);
        if (!(d <= difference)) difference = std::isinf(d) ? NAN : d;
        if (std::isnan(difference)) break;
    }
    return difference / scale;
}

struct Expectation {
    std::vector<Input> inputs;
    std::vector<Array> in;
    Array y, dy;
    std::vector<Array> gradients;
};

inline Expectation make_expectation(const Op& op) {
    Expectation e;
    e.inputs = op.inputs();
    for (std::size_t i = 0; i < e.inputs.size(); ++i)
        e.in.push_back(make_values(e.inputs[i], static_cast<std::uint32_t>(i)));
    e.y = op.reference(e.in);
    e.dy = make_values({e.y.shape}, 77);
    if (op.has_gradient()) e.gradients = op.reference_gradients(e.in, e.dy);
    return e;
}

/// Computed once: finite differences, for entries without loops for their gradients, take most of the time.
inline const std::vector<std::pair<std::unique_ptr<Op>, Expectation>>& expectations() {
    static const auto made = [] {
        std::vector<std::pair<std::unique_ptr<Op>, Expectation>> all;
        for (auto& op : make_table()) {
            Expectation expectation = make_expectation(*op);
            all.emplace_back(std::move(op), std::move(expectation));
        }
        return all;
    }();
    return made;
}

/// Runs `op` with the inputs [first, last) in the given layout, and the gradient as well if that is opaque.
inline void check_op(const Op& op, const Expectation& e, Device device, DType dtype, MemoryLayout layout,
                     std::size_t first, std::size_t last) {
    INFO(op.name() << " on " << device.str() << ", " << lockstep::name_of(dtype) << ", inputs " << first << " to "
                   << last << " " << name_of(layout));
    std::vector<Tensor> in;
    for (std::size_t i = 0; i < e.inputs.size(); ++i) {
        Tensor x = to_tensor(e.in[i], e.inputs[i], dtype, device);
        if (i >= first && i < last) x = laid(x, layout);
        if (layout == MemoryLayout::opaque && device.kind() == DeviceKind::cpu && i >= first && i < last &&
            applies(layout, x))
            REQUIRE(x.impl()->storage->opaque != nullptr);
        // A separate leaf, on the same memory.
        x = x.detach();
        if (e.inputs[i].gradient) x.requires_grad_();
        in.push_back(x);
    }
    manual_seed(seed);
    const Tensor y = op.run(in);
    REQUIRE(y.shape() == to_shape(e.y.shape));
    REQUIRE(y.device() == device);
    if (layout == MemoryLayout::opaque && first == 0 && op.keeps_layout() && in[0].impl()->storage->opaque) {
        const auto& opaque = y.impl()->storage->opaque;
        CHECK((opaque ? opaque->str() : "plain") == in[0].impl()->storage->opaque->str());
    }
    const double bound = dtype == DType::f64 ? 1e-12 : op.bound();
    CHECK(largest_error(to_array(y), e.y) <= bound);
    if (!op.has_gradient()) return;
    if (layout == MemoryLayout::plain) {  // without autograd, so that nothing is saved for backward
        const NoGrad no_grad;
        manual_seed(seed);
        CHECK(largest_error(to_array(op.run(in)), to_array(y)) == 0);
    }
    Tensor dy = to_tensor(e.dy, {e.y.shape}, dtype, device);
    if (layout == MemoryLayout::opaque) dy = laid(dy, layout);
    y.backward(dy);
    for (std::size_t i = 0; i < in.size(); ++i) {
        INFO("gradient of input " << i);
        REQUIRE(in[i].grad().defined() == e.inputs[i].gradient);
        if (!e.inputs[i].gradient) continue;
        REQUIRE(in[i].grad().shape() == in[i].shape());
        CHECK(largest_error(to_array(in[i].grad()), e.gradients[i]) <= (dtype == DType::f64 ? 1e-7 : op.bound()));
    }
}

/// Devices that a program runs the table on. test_ops has the CPU, and so the programs on the stand-in leave it out.
inline std::vector<Device> op_devices() {
    std::vector<Device> list;
#ifndef LOCKSTEP_CUDA_DEVICES_ONLY
    list = {Device::host(), Device::cpu(0)};
    if (device_count(DeviceKind::cuda) == 0) return list;
#endif
    list.push_back(Device::cuda(0));
    return list;
}

/// Whether there is an f64 kernel: on CUDA devices, convolutions have none.
inline bool computes_f64(const Op& op, Device device) {
    return device.kind() == DeviceKind::cpu || op.name().find("conv") == std::string::npos;
}

}  // namespace lockstep::test
