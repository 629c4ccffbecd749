// Runs the op table on the host, a virtual CPU device and, if available, a GPU: every entry with its inputs in every
// memory layout of a tensor, in f32 and f64, values and gradients against double-precision loops.
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
