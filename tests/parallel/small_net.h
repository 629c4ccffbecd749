// The network that tests of DataParallel train, with helpers to compare it with its twin in double precision.
#pragma once

#include <cmath>
#include <cstdlib>
#include <vector>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/layers.h"
#include "lockstep/ops/optimizer.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/random.h"
#include "lockstep/tests/cpu_devices.h"
#include "lockstep/tests/reference/small_net.h"

namespace small_net {

namespace ls = lockstep;
using ls::reference::Array;

/// (N, 2, 7, 7) -> (N, 5); see tests/reference/small_net.h.
struct Net {
    ls::Conv2d conv{2, 4, 3, {.stride = 2}};
    ls::Linear fc1{36, 10}, fc2{10, 5};
    LOCKSTEP_MEMBERS(conv, fc1, fc2)

    ls::Tensor forward(const ls::Tensor& x) const {
        const ls::Tensor features = ls::relu(conv(x)).flatten(1);
        return ls::log_softmax(fc2(ls::relu(fc1(features))), 1);
    }
};

inline ls::Devices devices(int count) {
    std::vector<ls::Device> list;
    for (int i = 0; i < count; ++i) list.push_back(ls::Device::cpu(i));
    return ls::Devices(list);
}

inline Array array_of(const ls::Tensor& tensor) {
    ls::reference::Sizes shape;
    for (const std::int64_t size : tensor.shape()) shape.push_back(size);
    Array result(shape);
    const std::vector<float> values = tensor.detach().to_vector<float>();
    result.v.assign(values.begin(), values.end());
    return result;
}

template <class Model>
std::vector<Array> parameters_of(Model& model) {
    std::vector<Array> result;
    for (const ls::NamedTensor& named : ls::named_tensors(model))
        if (named.is_parameter) result.push_back(array_of(named.member->tensor()));
    return result;
}

template <class Model>
std::vector<Array> gradients_of(Model& model) {
    std::vector<Array> result;
    for (const ls::NamedTensor& named : ls::named_tensors(model))
        if (named.is_parameter) {
            const ls::Tensor gradient = named.member->tensor().grad();
            result.push_back(gradient.defined() ? array_of(gradient) : Array());
        }
    return result;
}

/// ||found - expected|| / ||expected|| over all arrays together.
inline double relative_error(const std::vector<Array>& found, const std::vector<Array>& expected) {
    double difference = 0, norm = 0;
    for (std::size_t k = 0; k < found.size(); ++k) {
        if (found[k].size() != expected[k].size()) return INFINITY;
        for (std::ptrdiff_t i = 0; i < found[k].size(); ++i) {
            difference += (found[k][i] - expected[k][i]) * (found[k][i] - expected[k][i]);
            norm += expected[k][i] * expected[k][i];
        }
    }
    return std::sqrt(difference / norm);
}

/// (a - b) * factor, array by array.
inline std::vector<Array> difference(std::vector<Array> a, const std::vector<Array>& b, double factor = 1) {
    for (std::size_t k = 0; k < a.size(); ++k)
        for (std::ptrdiff_t i = 0; i < a[k].size(); ++i) a[k][i] = (a[k][i] - b[k][i]) * factor;
    return a;
}

struct Batch {
    ls::Tensor images;  ///< (N, 2, 7, 7)
    ls::Tensor labels;  ///< (N) i64
    std::vector<std::int64_t> classes;
};

inline Batch make_batch(std::int64_t rows) {
    Batch batch;
    batch.images = ls::Tensor::randn({rows, 2, 7, 7});
    for (std::int64_t i = 0; i < rows; ++i) batch.classes.push_back((3 * i + i / 5) % 5);
    batch.labels = ls::Tensor::from(batch.classes, {rows});
    return batch;
}

inline const bool eight_devices = lockstep::test::set_cpu_devices(8);

}  // namespace small_net
