// Rules for all entries of the op table that do not depend on the device: tags of batches, gradients on request, random
// masks. Also the table's own gradients.
#include <algorithm>
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
