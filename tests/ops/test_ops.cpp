// Runs the op table on the host, a virtual CPU device and, if available, a GPU: every entry with its inputs in every
// memory layout of a tensor, in f32 and f64, values and gradients against double-precision loops. Also what holds for
// all entries: tags of batches, gradients on request, random masks.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "lockstep/ops/functional.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/random.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/ops/check_op.h"

using namespace lockstep;
using namespace lockstep::test;

TEST_CASE("every entry of the op table agrees with its loops") {
    for (const auto& [op, e] : expectations()) {
        for (const Device device : op_devices()) {
            check_op(*op, e, device, DType::f32, MemoryLayout::plain, 0, e.in.size());
            if (computes_f64(*op, device)) check_op(*op, e, device, DType::f64, MemoryLayout::plain, 0, e.in.size());
        }
    }
}

TEST_CASE("every entry has values and gradients in f16 and bf16") {
    const Device device = op_devices().back();
    for (const auto& [op, e] : expectations()) {
        if (op->is_special()) continue;
        for (const DType dtype : {DType::bf16, DType::f16}) {
            INFO(op->name() << " on " << device.str() << ", " << lockstep::name_of(dtype));
            std::vector<Tensor> rounded;  // the inputs, rounded to 16 bits
            std::vector<Array> exact;
            for (std::size_t i = 0; i < e.in.size(); ++i) {
                const Tensor x = to_tensor(e.in[i], e.inputs[i], DType::f32, device);
                rounded.push_back(is_floating(x.dtype()) ? x.to(dtype) : x);
                exact.push_back(to_array(rounded.back()));
            }
            const auto run = [&, &entry = *op, &expected = e](DType as) {
                std::vector<Tensor> in;
                for (std::size_t i = 0; i < rounded.size(); ++i) {
                    in.push_back(is_floating(rounded[i].dtype()) ? rounded[i].to(as).detach() : rounded[i]);
                    if (expected.inputs[i].gradient) in.back().requires_grad_();
                }
                manual_seed(seed);
                const Tensor y = entry.run(in);
                std::vector<Array> results{to_array(y)};
                if (!entry.has_gradient()) return results;
                y.backward(to_tensor(expected.dy, {expected.y.shape}, DType::f32, device).to(y.dtype()));
                for (const Tensor& x : in)
                    if (x.grad().defined()) {
                        CHECK(x.grad().dtype() == as);
                        results.push_back(to_array(x.grad()));
                    }
                return results;
            };
            // Some entries are several operations, each of which rounds.
            const double bound = 8 * (dtype == DType::bf16 ? 0x1p-9 : 0x1p-12);
            const auto found = run(dtype), wide = run(DType::f32);
            CHECK(largest_error(found[0], op->reference(exact)) <= bound);
            REQUIRE(found.size() == wide.size());
            for (std::size_t i = 1; i < found.size(); ++i) {
                INFO("gradient " << i);
                CHECK(largest_error(found[i], wide[i]) <= 2 * bound);
            }
        }
    }
}

TEST_CASE("inputs may have any memory layout") {
    for (const auto& [op, e] : expectations()) {
        for (const Device device : op_devices()) {
            if (device.is_host()) continue;
            for (const MemoryLayout layout : all_layouts) {
                std::size_t count = 0;
                for (std::size_t i = 0; i < e.in.size(); ++i) {
                    if (layout == MemoryLayout::plain ||
                        !applies(layout, to_tensor(e.in[i], e.inputs[i], DType::f32, device)))
                        continue;
                    ++count;
                    check_op(*op, e, device, DType::f32, layout, i, i + 1);
                }
                if (count > 1) check_op(*op, e, device, DType::f32, layout, 0, e.in.size());
                if (count > 0 && layout == MemoryLayout::transposed && computes_f64(*op, device))
                    check_op(*op, e, device, DType::f64, layout, 0, e.in.size());
            }
        }
    }
}

TEST_CASE("the loops' own gradients agree with finite differences") {
    for (const auto& [op, e] : expectations()) {
        if (!op->has_gradient() || op->is_special()) continue;
        std::ptrdiff_t work = e.y.size();
        for (const Array& in : e.in) work = std::max(work, in.size());
        if (work > 700) continue;  // finite differences take quadratic time
        INFO(op->name());
        const std::vector<Array> differences = op->Op::reference_gradients(e.in, e.dy);
        for (std::size_t i = 0; i < e.in.size(); ++i)
            if (e.inputs[i].gradient) CHECK(largest_error(e.gradients[i], differences[i]) < 1e-8);
    }
}

TEST_CASE("the output of a convolution on a CPU device is opaque, and a view makes it strided") {
    const Tensor x = convolved(Tensor::randn({2, 16, 6, 6}).to(Device::cpu(0)));
    REQUIRE(x.impl()->storage->opaque != nullptr);
    const Tensor last = convolved(Tensor::randn({2, 10, 6, 6}).to(Device::cpu(0)));
    REQUIRE(last.impl()->storage->opaque != nullptr);
    CHECK(last.impl()->storage->opaque->str() == "nhwc");
    const std::vector<float> values = x.clone().to_vector<float>();
    const std::uint64_t version = x.version();
    const Tensor view = x.transpose(1, 2);
    CHECK(x.impl()->storage->opaque == nullptr);
    CHECK(x.version() == version);
    CHECK(x.to_vector<float>() == values);
    CHECK(view.transpose(1, 2).to_vector<float>() == values);
}

TEST_CASE("gradients are computed only for tensors that require them") {
    const Tensor x = Tensor::randn({2, 16, 6, 6});
    const Tensor w = Tensor::randn({32, 16, 3, 3});
    w.requires_grad_();
    conv2d(x, w).backward(Tensor::randn({2, 32, 4, 4}));
    CHECK(w.grad().defined());
    CHECK_FALSE(x.grad().defined());
    const NoGrad no_grad;
    CHECK_FALSE(conv2d(x, w).requires_grad());
}

TEST_CASE("operations keep the batch tag if dimension 0 still counts rows, in outputs and gradients") {
    for (const auto& [op, e] : expectations()) {
        if (op->is_special()) continue;  // the same functions
        for (std::size_t tagged = 0; tagged < e.in.size(); ++tagged) {
            if (e.inputs[tagged].shape.empty()) continue;
            INFO(op->name() << ", input " << tagged);
            std::vector<Tensor> in;
            for (std::size_t i = 0; i < e.in.size(); ++i) {
                in.push_back(to_tensor(e.in[i], e.inputs[i], DType::f32, Device::host()).tag_batch(i == tagged));
                if (e.inputs[i].gradient) in.back().requires_grad_();
            }
            const Tensor y = op->run(in);
            CHECK(y.is_batch() == op->hands_on_batch(tagged));
            if (!op->has_gradient()) continue;
            y.backward(to_tensor(e.dy, {e.y.shape}, DType::f32, Device::host()).tag_batch(y.is_batch()));
            for (std::size_t i = 0; i < in.size(); ++i) {
                const bool parameter = i == tagged && i > 0 && !op->hands_on_batch(i);  // never tagged
                if (in[i].grad().defined() && !parameter) CHECK(in[i].grad().is_batch() == in[i].is_batch());
            }
        }
    }
}

TEST_CASE("every call draws new masks, and the same seed repeats them") {
    const Tensor x = Tensor::full({64, 64}, 1);
    manual_seed(3);
    const auto first = dropout(x).to_vector<float>();
    const auto second = dropout(x).to_vector<float>();
    CHECK(first != second);
    manual_seed(3);
    CHECK(dropout(x).to_vector<float>() == first);
    manual_seed(4);
    CHECK(dropout(x).to_vector<float>() != first);
    double kept = 0;
    for (const float value : first) kept += value > 0;
    CHECK(kept / 4096 == Approx(0.5).margin(0.05));
    CHECK(dropout(x, 0.5, false).to_vector<float>() == x.to_vector<float>());
    CHECK(sum(dropout(x, 1.0)).item() == 0);
}
