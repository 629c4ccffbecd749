// The op table: one entry for every operation and set of attributes and shapes. test_ops.cpp runs each on every kind of
// device against double-precision loops, values and gradients, with inputs in every memory layout and tagged as a
// batch; dump_ops.cpp writes it out for PyTorch
// (tests/pytorch/check_ops.py). To add an operation: a struct in one of the op_table_*.cpp and its entries at the end
// of that file.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lockstep/runtime/tensor.h"
#include "lockstep/tests/reference/ops.h"

namespace lockstep::test {

using reference::Array;
using reference::Sizes;

/// Kind of values of an input.
enum class Values {
    any,       ///< distinct, in (-2, 2), none closer to 0 or to each other than their spacing
    positive,  ///< distinct, in (0.5, 2.5)
    classes,   ///< i64 in [0, classes); no gradient
};

struct Input {
    Sizes shape;
    Values values = Values::any;
    bool gradient = true;
    int classes = 0;
    std::vector<double> exact = {};  ///< given values, in place of generated ones
};

/// Maximum error of a result, relative to the largest element of the reference (at least 1).
constexpr double f32_bound = 2e-6;

class Op {
public:
    virtual ~Op() = default;
    /// With the attributes: "conv2d 3x3 stride 2".
    virtual std::string name() const = 0;
    virtual std::vector<Input> inputs() const = 0;
    virtual Tensor run(const std::vector<Tensor>& in) const = 0;
    virtual Array reference(const std::vector<Array>& in) const = 0;
    /// The same in PyTorch, of tensors a, b, c, ...; empty: no PyTorch equivalent.
    virtual std::string torch() const = 0;
    virtual double bound() const { return f32_bound; }
    /// Entries with infinities, NaN etc., for which finite differences are meaningless.
    virtual bool is_special() const { return false; }
    /// Whether the result is tagged as a batch if only this input is: its dimension 0 is that of the result. By default
    /// true for the first input if the sizes are equal.
    virtual bool hands_on_batch(std::size_t input) const;
    /// Whether the result has the layout of the first input, including backend-specific layouts, without a reorder.
    virtual bool keeps_layout() const { return false; }
    /// Gradients of sum(dy * y); finite differences of the reference unless there is a faster way.
    virtual std::vector<Array> reference_gradients(const std::vector<Array>& in, const Array& dy) const;
    bool has_gradient() const;

protected:
    /// reference_gradients() of functions whose elements each depend on one element of every input, in linear time.
    std::vector<Array> elementwise_gradients(const std::vector<Array>& in, const Array& dy) const;

private:
    std::vector<bool> differentiable() const;
};

using Table = std::vector<std::unique_ptr<Op>>;

void add_elementwise(Table& table);
void add_selections(Table& table);
void add_indexing(Table& table);
void add_pieces(Table& table);
void add_arrangements_and_products(Table& table);
void add_formulas(Table& table);
void add_reductions(Table& table);
void add_statistics(Table& table);
void add_sorts_and_scans(Table& table);
void add_windows(Table& table);
void add_volumes(Table& table);
void add_layers(Table& table);
void add_activation_functions(Table& table);
void add_contractions(Table& table);
void add_images(Table& table);
void add_losses(Table& table);
void add_element_losses(Table& table);
void add_special_functions(Table& table);
void add_searches(Table& table);
void add_sampling(Table& table);
void add_pooling(Table& table);
void add_rarer_functions(Table& table);
void add_special_values(Table& table);
/// All entries.
Table make_table();

/// Seed under which every entry is run: the first random operation has ordinal 0.
constexpr std::uint64_t seed = 5;

/// Values for an input, the same in every run; exact in f32.
Array make_values(const Input& input, std::uint32_t salt);
/// The values as a tensor of `dtype` (classes: i64) on `device`.
Tensor to_tensor(const Array& values, const Input& input, DType dtype, Device device);
/// The values of a tensor of any dtype.
Array to_array(const Tensor& tensor);
Shape to_shape(const Sizes& sizes);

}  // namespace lockstep::test
