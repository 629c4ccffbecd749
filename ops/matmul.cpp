// Matrix products, and sums of products that einsum describes.
#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/internal/broadcast.h"
#include "lockstep/ops/internal/checked_args.h"
#include "lockstep/ops/internal/nn_operations.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/record.h"

namespace lockstep {

namespace {

Tensor transposed(const Tensor& x) { return x.transpose(-2, -1); }

/// Product of two matrices, or of two batches of equal size.
Tensor product(const Tensor& a, const Tensor& b) {
    Shape shape = a.shape();
    shape[shape.dims() - 1] = b.size(-1);
    const bool batch = a.is_batch() || (b.dims() == 3 && b.is_batch());
    const Tensor y = apply_one(MatMul{}, {a, b}, shaped(a, shape, batch));
    if (!needs_autograd({a, b})) return y;
    SavedTensor first, second;
    if (b.requires_grad()) first = SavedTensor(a, "matmul");
    if (a.requires_grad()) second = SavedTensor(b, "matmul");
    add_autograd_node(
        "matmul", {a, b}, {y},
        BackwardFunction::composed([first, second, a_wanted = a.requires_grad(), b_wanted = b.requires_grad(),
                                    tag_a = a.is_batch(), tag_b = b.is_batch()](const auto& gradients) {
            std::vector<Tensor> result(2);
            if (a_wanted) result[0] = tagged(product(gradients[0], transposed(second.get())), tag_a);
            if (b_wanted) result[1] = tagged(product(transposed(first.get()), gradients[0]), tag_b);
            return result;
        }));
    return y;
}

/// The leading sizes of a tensor of matrices.
Shape batch_shape(const Tensor& x) {
    Shape shape;
    for (int dim = 0; dim < x.dims() - 2; ++dim) shape.push_back(x.size(dim));
    return shape;
}

Shape joined(Shape shape, std::int64_t rows, std::int64_t columns) {
    shape.push_back(rows);
    shape.push_back(columns);
    return shape;
}

/// `x` as a batch of matrices, (B, M, N), with its leading dimensions expanded to `batch`.
Tensor as_batch(const Tensor& x, const Shape& batch) {
    if (x.dims() == 3 && batch.dims() == 1 && x.size(0) == batch[0]) return x;
    return x.expand(joined(batch, x.size(-2), x.size(-1))).reshape({batch.numel(), x.size(-2), x.size(-1)});
}

/// Products of matrices of at least two dimensions each, whose sizes fit.
Tensor products(const Tensor& a, const Tensor& b) {
    if (a.dims() == 2 && b.dims() == 2) return product(a, b);
    if (b.dims() == 2) {
        const Tensor rows = product(a.reshape({batch_shape(a).numel() * a.size(-2), a.size(-1)}), b);
        return rows.reshape(joined(batch_shape(a), a.size(-2), b.size(-1)));
    }
    const Shape batch = broadcast_shapes(batch_shape(a), batch_shape(b), "matmul");
    if (a.dims() == 2) {
        const Tensor each = as_batch(b, batch);
        return product(a.expand(joined({each.size(0)}, a.size(0), a.size(1))), each)
            .reshape(joined(batch, a.size(-2), b.size(-1)));
    }
    if (a.dims() == 3 && b.dims() == 3 && a.size(0) == b.size(0)) return product(a, b);
    return product(as_batch(a, batch), as_batch(b, batch)).reshape(joined(batch, a.size(-2), b.size(-1)));
}

}  // namespace

Tensor matmul(const Tensor& given_a, const Tensor& given_b) {
    const CheckedArgs call("matmul",
                           {arg::floating("the first tensor", given_a), arg::floating("the second tensor", given_b)});
    const Tensor &a = call[0], &b = call[1];
    const auto refuse = [&](const char* why) {
        throw InvalidArgument(
            fmt::format("matmul: cannot multiply {} by {}; {}", a.shape().str(), b.shape().str(), why));
    };
    if (a.dims() == 0 || b.dims() == 0) refuse("expected at least one dimension each");
    if (a.dims() == 1 || b.dims() == 1) {  // a row or a column, whose dimension is not in the result
        if (a.size(-1) != b.size(b.dims() == 1 ? 0 : -2)) refuse("expected vectors as long as the sums");
        Tensor y = products(a.dims() == 1 ? a.unsqueeze(0) : a, b.dims() == 1 ? b.unsqueeze(1) : b);
        if (b.dims() == 1) y = y.squeeze(-1);
        if (a.dims() == 1) y = y.squeeze(b.dims() == 1 ? -1 : -2);
        return tagged(y, (a.is_batch() && a.dims() > 1) || (b.is_batch() && b.dims() > 2));
    }
    if (a.size(-1) != b.size(-2)) refuse("expected as many columns of the first as rows of the second");
    for (int dim = 3; dim <= std::min(a.dims(), b.dims()); ++dim)
        if (a.size(-dim) != b.size(-dim) && a.size(-dim) != 1 && b.size(-dim) != 1)
            refuse("expected batches of equal size, or of size 1");
    const Tensor y = products(a, b);
    const auto hands_on = [&](const Tensor& x) {
        return x.is_batch() && x.dims() == y.dims() && y.dims() > 2 && x.size(0) == y.size(0);
    };
    return tagged(y, hands_on(a) || hands_on(b) || (a.is_batch() && y.dims() == 2));
}

namespace {

/// A tensor with a letter for each of its dimensions.
struct Labelled {
    Tensor tensor;
    std::string labels;
};

bool has(const std::string& labels, char label) { return labels.find(label) != std::string::npos; }

/// `x` summed over the dimensions whose letters are not in `wanted`.
Labelled without_others(const Labelled& x, const std::string& wanted) {
    std::vector<int> dims;
    std::string rest;
    for (std::size_t i = 0; i < x.labels.size(); ++i)
        if (has(wanted, x.labels[i]))
            rest += x.labels[i];
        else
            dims.push_back(static_cast<int>(i));
    return {dims.empty() ? x.tensor : sum(x.tensor, dims), rest};
}

/// The dimensions in the order of `labels`, which are those of `x`.
Tensor ordered(const Labelled& x, const std::string& labels) {
    std::vector<int> dims;
    for (const char label : labels) dims.push_back(static_cast<int>(x.labels.find(label)));
    return labels == x.labels ? x.tensor : permute(x.tensor, dims);
}

/// The product of two tensors, summed over the letters that are in both and not in `wanted`.
Labelled contracted(const Labelled& first, const Labelled& second, const std::string& wanted) {
    const Labelled a = without_others(first, second.labels + wanted), b = without_others(second, first.labels + wanted);
    std::string batch, rows, columns, sums;
    for (const char label : a.labels) (!has(b.labels, label) ? rows : has(wanted, label) ? batch : sums) += label;
    for (const char label : b.labels)
        if (!has(a.labels, label)) columns += label;
    const auto sizes = [](const Labelled& x, const std::string& labels) {
        Shape shape;
        for (const char label : labels) shape.push_back(x.tensor.size(static_cast<int>(x.labels.find(label))));
        return shape;
    };
    const Shape of_batch = sizes(a, batch), of_rows = sizes(a, rows), of_columns = sizes(b, columns);
    const std::int64_t count = of_batch.numel(), length = sizes(a, sums).numel();
    const Tensor y = matmul(ordered(a, batch + rows + sums).reshape({count, of_rows.numel(), length}),
                            ordered(b, batch + sums + columns).reshape({count, length, of_columns.numel()}));
    Shape shape = of_batch;
    for (const std::int64_t size : of_rows) shape.push_back(size);
    for (const std::int64_t size : of_columns) shape.push_back(size);
    return {y.reshape(shape), batch + rows + columns};
}

/// "ij,jk->ik": the letters of each operand and of the result.
struct Equation {
    std::vector<std::string> operands;
    std::string result;
};

[[noreturn]] void refuse_equation(const std::string& equation, const std::string& why) {
    throw InvalidArgument(fmt::format("einsum: invalid equation \"{}\": {}", equation, why));
}

Equation parsed(const std::string& text, std::size_t tensors) {
    Equation equation{{""}, ""};
    std::string* labels = &equation.operands.back();
    bool explicit_result = false;
    for (std::size_t i = 0; i < text.size(); ++i) {
        if (text[i] == ' ') continue;
        if (text[i] == ',' && !explicit_result) {
            equation.operands.emplace_back();
            labels = &equation.operands.back();
        } else if (text.substr(i, 2) == "->" && !explicit_result) {
            explicit_result = true;
            labels = &equation.result;
            ++i;
        } else if ((text[i] >= 'a' && text[i] <= 'z') || (text[i] >= 'A' && text[i] <= 'Z')) {
            if (has(*labels, text[i]))
                refuse_equation(text, fmt::format("the letter {} is twice in one list; expected different letters "
                                                  "(diagonals are not supported)",
                                                  text[i]));
            *labels += text[i];
        } else {
            refuse_equation(text, fmt::format("unexpected \"{}\"; expected letters, commas and one \"->\"", text[i]));
        }
    }
    if (equation.operands.size() != tensors)
        refuse_equation(text, fmt::format("it has {} operands; expected {}, as many as tensors",
                                          equation.operands.size(), tensors));
    std::string all;
    for (const std::string& operand : equation.operands) all += operand;
    if (!explicit_result) {  // the letters that appear once, in alphabetic order
        for (const char label : all)
            if (std::count(all.begin(), all.end(), label) == 1) equation.result += label;
        std::sort(equation.result.begin(), equation.result.end());
    }
    for (const char label : equation.result)
        if (!has(all, label)) refuse_equation(text, fmt::format("the letter {} of the result is in no operand", label));
    return equation;
}

}  // namespace

Tensor einsum(const std::string& text, const std::vector<Tensor>& tensors) {
    if (tensors.empty()) throw InvalidArgument("einsum: an empty list of tensors; expected at least one");
    const CheckedArgs call("einsum", "a tensor", tensors, CheckedArgs::Dtypes::floating_alike);
    const Equation equation = parsed(text, tensors.size());
    std::vector<Labelled> operands;
    std::string batch_labels;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
        const Tensor& x = call.tensors()[i];
        const std::string& labels = equation.operands[i];
        if (static_cast<int>(labels.size()) != x.dims())
            refuse_equation(text, fmt::format("operand {} has {} letters for a tensor of shape {}", i, labels.size(),
                                              x.shape().str()));
        for (const Labelled& other : operands)
            for (std::size_t d = 0; d < labels.size(); ++d) {
                const std::size_t at = other.labels.find(labels[d]);
                if (at != std::string::npos && other.tensor.size(static_cast<int>(at)) != x.size(static_cast<int>(d)))
                    refuse_equation(text,
                                    fmt::format("the letter {} has the sizes {} and {}", labels[d],
                                                other.tensor.size(static_cast<int>(at)), x.size(static_cast<int>(d))));
            }
        if (x.is_batch() && !labels.empty()) batch_labels += labels[0];
        operands.push_back({x, labels});
    }
    Labelled made = operands[0];
    for (std::size_t i = 1; i < operands.size(); ++i) {
        std::string wanted = equation.result;
        for (std::size_t later = i + 1; later < operands.size(); ++later) wanted += operands[later].labels;
        made = contracted(made, operands[i], wanted);
    }
    const Tensor y = ordered(without_others(made, equation.result), equation.result);
    return tagged(y, !equation.result.empty() && has(batch_labels, equation.result[0]));
}

}  // namespace lockstep
