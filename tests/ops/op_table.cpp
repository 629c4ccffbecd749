#include "lockstep/tests/ops/op_table.h"

#include <algorithm>
#include <random>

namespace lockstep::test {

bool Op::has_gradient() const {
    const std::vector<Input> list = inputs();
    return std::any_of(list.begin(), list.end(), [](const Input& input) { return input.gradient; });
}

bool Op::hands_on_batch(std::size_t input) const {
    const std::vector<Input> list = inputs();
    std::vector<Array> in;
    for (std::size_t i = 0; i < list.size(); ++i) in.push_back(make_values(list[i], static_cast<std::uint32_t>(i)));
    const Sizes &from = list[input].shape, to = reference(in).shape;
    return input == 0 && !to.empty() && from[0] == to[0];
}

std::vector<Array> Op::reference_gradients(const std::vector<Array>& in, const Array& dy) const {
    return reference::finite_differences([this](const std::vector<Array>& at) { return reference(at); }, in,
                                         differentiable(), dy);
}

std::vector<Array> Op::elementwise_gradients(const std::vector<Array>& in, const Array& dy) const {
    return reference::elementwise_differences([this](const std::vector<Array>& at) { return reference(at); }, in,
                                              differentiable(), dy);
}

std::vector<bool> Op::differentiable() const {
    std::vector<bool> wanted;
    for (const Input& input : inputs()) wanted.push_back(input.gradient);
    return wanted;
}

Table make_table() {
    Table table;
    add_elementwise(table);
    add_selections(table);
    add_indexing(table);
    add_pieces(table);
    add_arrangements_and_products(table);
    add_formulas(table);
    add_reductions(table);
    add_statistics(table);
    add_sorts_and_scans(table);
    add_windows(table);
    add_volumes(table);
    add_layers(table);
    add_activation_functions(table);
    add_contractions(table);
    add_images(table);
    add_losses(table);
    add_element_losses(table);
    add_special_functions(table);
    add_searches(table);
    add_sampling(table);
    add_pooling(table);
    add_rarer_functions(table);
    add_special_values(table);
    return table;
}

Array make_values(const Input& input, std::uint32_t salt) {
    Array array(input.shape);
    if (!input.exact.empty()) {
        array.v = input.exact;
        return array;
    }
    std::mt19937 generator(1234 + salt);
    if (input.values == Values::classes) {
        for (double& value : array.v)
            value = static_cast<double>(generator() % static_cast<std::uint32_t>(input.classes));
        return array;
    }
    // Evenly spaced numbers in random order: no two are equal and none is 0, so kinks are far away.
    const double count = static_cast<double>(array.size());
    const double low = input.values == Values::positive ? 0.5 : -2;
    const double high = input.values == Values::positive ? 2.5 : 2;
    for (std::ptrdiff_t i = 0; i < array.size(); ++i)
        array[i] =
            static_cast<double>(static_cast<float>(low + (high - low) * (static_cast<double>(i) + 0.37) / count));
    std::shuffle(array.v.begin(), array.v.end(), generator);
    return array;
}

Shape to_shape(const Sizes& sizes) {
    Shape shape;
    for (const std::ptrdiff_t size : sizes) shape.push_back(size);
    return shape;
}

Tensor to_tensor(const Array& values, const Input& input, DType dtype, Device device) {
    if (input.values != Values::classes) return Tensor::from(values.v, to_shape(values.shape)).to(dtype).to(device);
    std::vector<std::int64_t> classes;
    for (const double value : values.v) classes.push_back(static_cast<std::int64_t>(value));
    return Tensor::from(classes, to_shape(values.shape), device);
}

Array to_array(const Tensor& tensor) {
    Array array(Sizes(tensor.shape().begin(), tensor.shape().end()));
    array.v = tensor.detach().to(DType::f64).to_vector<double>();
    return array;
}

}  // namespace lockstep::test
