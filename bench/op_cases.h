// The operations that ops-bench and compare_ops.py compare with PyTorch.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "lockstep/runtime/dtype.h"
#include "lockstep/runtime/tensor.h"

namespace lockstep::bench {

/// Values of the last input of a case.
struct LastInput {
    enum class Kind { numbers, classes, mask } kind = Kind::numbers;
    std::int64_t classes = 0;  ///< i64 numbers are below this
};

/// An operation with the PyTorch expression of its inputs a, b, c, ...
struct OpCase {
    const char* torch;
    std::vector<Shape> shapes;
    std::function<Tensor(const std::vector<Tensor>&)> run;
    LastInput last = {};
    DType dtype = DType::f32;
    const char* layer = "";                                ///< PyTorch expression of `m`, a layer of torch.nn
    std::function<std::vector<Tensor>()> parameters = {};  ///< those of the layer
};

const std::vector<OpCase>& op_cases();

}  // namespace lockstep::bench
