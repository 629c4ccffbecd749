// An entry of the op table from functions: the operation, and the same in doubles.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/tests/ops/op_table.h"

namespace lockstep::test {

struct FunctionOp final : Op {
    using Run = std::function<Tensor(const std::vector<Tensor>&)>;
    using Reference = std::function<Array(const std::vector<Array>&)>;

    FunctionOp(std::string of_torch, std::vector<Input> in, Run call, Reference exact)
        : expression(std::move(of_torch)), operands(std::move(in)), function(std::move(call)), of(std::move(exact)) {}

    std::string expression;
    std::vector<Input> operands;
    Run function;
    Reference of;
    bool elementwise = false;          ///< every element of the result depends on one element of each input
    std::vector<bool> batch_inputs{};  ///< as hands_on_batch; empty: the default
    double error = f32_bound;

    std::string name() const override {
        std::string text = expression + " of";
        for (const Input& input : operands) {
            text += " (";
            for (const std::ptrdiff_t size : input.shape) text += std::to_string(size) + ",";
            text += ")";
        }
        return text;
    }
    std::string torch() const override { return expression; }
    std::vector<Input> inputs() const override { return operands; }
    Tensor run(const std::vector<Tensor>& in) const override { return function(in); }
    Array reference(const std::vector<Array>& in) const override { return of(in); }
    double bound() const override { return error; }
    bool hands_on_batch(std::size_t input) const override {
        return batch_inputs.empty() ? Op::hands_on_batch(input) : batch_inputs[input];
    }
    std::vector<Array> reference_gradients(const std::vector<Array>& in, const Array& dy) const override {
        return elementwise ? elementwise_gradients(in, dy) : Op::reference_gradients(in, dy);
    }
};

/// Adds an entry and returns it for further settings.
inline FunctionOp& add_function(Table& table, std::string torch, std::vector<Input> inputs, FunctionOp::Run run,
                                FunctionOp::Reference reference) {
    auto op = std::make_unique<FunctionOp>(std::move(torch), std::move(inputs), std::move(run), std::move(reference));
    FunctionOp& added = *op;
    table.push_back(std::move(op));
    return added;
}

}  // namespace lockstep::test
