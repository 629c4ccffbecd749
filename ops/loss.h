// Losses: sums of terms, each a numerator over a denominator, so that they come out on shards as on the whole batch.
// Tensors on the host that meet others in one go to the device of those. Wrong shapes and dtypes throw InvalidArgument
// at once. A target out of range only the device can find: outside of `step` it is thrown, as InvalidArgument, when a
// value that depends on the loss is read first (Tensor), within `step` as StepError (step).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "lockstep/runtime/tensor.h"

namespace lockstep {

/// A sum of terms `factor * numerator / denominator`. Numerators and denominators are scalars that add up over shards;
/// the division happens after that sum. Terms with reduction "sum" have no denominator.
class Loss {
public:
    struct Term {
        Tensor numerator;    ///< scalar; sum over the rows of this shard
        Tensor denominator;  ///< scalar, no gradient; rows or class weights that count; undefined: divide by 1
        double factor = 1;
    };

    Loss() = default;
    explicit Loss(Term term) : terms_{std::move(term)} {}

    const std::vector<Term>& terms() const { return terms_; }
    /// The loss as a tensor, for use outside `step`: sum of factor * numerator / denominator.
    Tensor value() const;
    operator Tensor() const { return value(); }  // NOLINT(google-explicit-constructor): losses are used as tensors
    double item() const { return value().item(); }
    void backward() const { value().backward(); }

    friend Loss operator+(Loss a, const Loss& b);
    friend Loss operator*(double factor, Loss loss);
    friend Loss operator*(Loss loss, double factor) { return factor * std::move(loss); }

private:
    std::vector<Term> terms_;
};

enum class Reduction : std::uint8_t { mean, sum };

struct NllOptions {
    Tensor weight = {};                ///< (C) class weights, or undefined
    std::int64_t ignore_index = -100;  ///< rows with this target count nothing
    Reduction reduction = Reduction::mean;
};

/// Negative log likelihood (torch.nn.NLLLoss). input: log-probabilities (N, C), or (N, C, H, W) of maps and the like;
/// target: (N), or (N, H, W), i64 in 0..C-1, where every position counts as a row of its own. A function object:
/// `nll_loss(output, target)`, or `NllLoss{{.weight = w}}` as the loss of a step. Not there: (C), for which there is
/// reshape, and reduction "none".
struct NllLoss {
    NllOptions options;
    Loss operator()(const Tensor& input, const Tensor& target) const;
};
inline const NllLoss nll_loss{};

/// Cross entropy of logits (torch.nn.CrossEntropyLoss): log-softmax over dimension 1, then NllLoss, with its
/// restrictions. Not there: targets that are probabilities, and label_smoothing.
struct CrossEntropyLoss {
    NllOptions options;
    Loss operator()(const Tensor& input, const Tensor& target) const;
};
inline const CrossEntropyLoss cross_entropy{};

struct BceWithLogitsOptions {
    Tensor weight = {};      ///< of each element, or undefined; broadcast to the input
    Tensor pos_weight = {};  ///< of targets that are 1, or undefined; broadcast to the input
    Reduction reduction = Reduction::mean;
};

/// Binary cross entropy of logits (torch.nn.BCEWithLogitsLoss): of -(t log(sigmoid(x)) + (1 - t) log(1 - sigmoid(x)))
/// the mean over elements, or the sum. input and target of one shape and dtype, targets in [0, 1]. Weights are
/// constants and the same for every row: of a size of 1 in dimension 0, or without it. Not there: reduction "none".
struct BceWithLogitsLoss {
    BceWithLogitsOptions options;
    Loss operator()(const Tensor& input, const Tensor& target) const;
};
inline const BceWithLogitsLoss binary_cross_entropy_with_logits{};

/// Squared error (torch.nn.MSELoss): mean over elements, or sum. input and target of one shape (torch broadcasts) and
/// dtype. Not there: reduction "none", which is square(input - target).
struct MseLoss {
    Reduction reduction = Reduction::mean;
    Loss operator()(const Tensor& input, const Tensor& target) const;
};
inline const MseLoss mse_loss{};

/// A loss of one's own from `e`, the loss of every element of a batch (N, ...): the mean over all its elements, of all
/// shards. For instance `mean_loss(sqrt(square(output - target) + 1.0))`. Of a tensor that is the same on all shards (a
/// penalty on weights) likewise its mean. Throws InvalidArgument for a scalar.
Loss mean_loss(const Tensor& e);
/// Likewise the sum over all elements. Throws InvalidArgument where dimension 0 is not the batch (Tensor::is_batch):
/// such a sum would count once for each shard.
Loss sum_loss(const Tensor& e);

}  // namespace lockstep
