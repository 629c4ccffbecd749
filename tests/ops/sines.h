// Parameters and inputs of tests/pytorch/record_sequences.py, and comparison with what it recorded.
#pragma once

#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

#include "lockstep/ops/module.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/tensor.h"
#include "lockstep/tests/catch.h"

namespace lockstep::test {

inline Tensor sines(double number, const Shape& shape) {
    std::vector<double> values;
    for (std::int64_t i = 0; i < shape.numel(); ++i)
        values.push_back(0.5 * std::sin(1.3 * number + 0.7 * static_cast<double>(i) + 0.1));
    return Tensor::from(values, shape);
}

/// Converts a model to f64 and gives its parameters the recorded values.
void fill_with_sines(auto& model) {
    to(model, DType::f64);
    const NoGrad no_grad;
    double number = 0;
    for (const NamedTensor& named : named_tensors(model)) {
        named.member->tensor().copy_(sines(number, named.member->tensor().shape()));
        ++number;
    }
}

/// Appends the gradients of all parameters.
void append_gradients(auto& model, std::vector<Tensor>& tensors) {
    for (const NamedTensor& named : named_tensors(model)) tensors.push_back(named.member->tensor().grad());
}

/// Compares f64 tensors with two recorded numbers for each.
inline void check_recorded(const std::vector<Tensor>& tensors, const std::vector<double>& expected) {
    REQUIRE(expected.size() == 2 * tensors.size());
    for (std::size_t t = 0; t < tensors.size(); ++t) {
        INFO("tensor " << t);
        REQUIRE(tensors[t].defined());
        double sum = 0, product = 0, i = 0;
        for (const double value : tensors[t].to_vector<double>()) {
            sum += value;
            product += value * std::sin(++i);
        }
        CHECK(std::abs(sum - expected[2 * t]) < 1e-12);
        CHECK(std::abs(product - expected[2 * t + 1]) < 1e-12);
    }
}

}  // namespace lockstep::test
