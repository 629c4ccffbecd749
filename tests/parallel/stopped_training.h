// What tests of stops train.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/ops/layers.h"
#include "lockstep/parallel/data/dataset.h"
#include "lockstep/tests/parallel/test_operations.h"

namespace stopped_training {

namespace ls = lockstep;

struct Net {
    ls::Linear fc{3, 2};
    LOCKSTEP_MEMBERS(fc)
    ls::Tensor forward(const ls::Tensor& x) const { return fc(test_operations::touch(x)); }
};

inline ls::TensorDataset<2> rows(std::int64_t count) {
    std::vector<float> x, y;
    for (std::int64_t i = 0; i < 3 * count; ++i) x.push_back(static_cast<float>(i % 17) / 17);
    for (std::int64_t i = 0; i < 2 * count; ++i) y.push_back(static_cast<float>(i % 5) / 5);
    return ls::TensorDataset(ls::Tensor::from(x, {count, 3}), ls::Tensor::from(y, {count, 2}));
}

}  // namespace stopped_training
