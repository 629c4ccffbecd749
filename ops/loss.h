// Losses: sums of terms, each a numerator over a denominator, so that shards give the same loss as the whole batch.
// Tensors on the host are copied to the device of the other inputs. Wrong shapes and dtypes throw InvalidArgument at
// once. Only the device can detect a target out of range: outside of `step`, the first read of a value that depends on
// the loss throws it as InvalidArgument (Tensor); within `step` it is a StepError. docs/support.md lists the limits.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "lockstep/runtime/tensor.h"

namespace lockstep {

/// A sum of terms `factor * numerator / denominator`. Numerators and denominators are scalars that add up over shards;
/// the division happens after that sum. Terms with reduction "sum" have no denominator.
class Loss {
public:
    /// A numerator over a denominator.
    struct Term {
        Tensor numerator;    ///< scalar; sum over the rows of this shard
        Tensor denominator;  ///< scalar, no gradient; rows or class weights that count; undefined: divide by 1
        double factor = 1;
        std::optional<DType> dtype = std::nullopt;  ///< dtype of the loss; default: the numerator's
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

// `elements` of a loss returns the loss of every element, row or position, in the dtype of the input: reduction="none"
// of PyTorch. Multiply it for weights of rows or a focal loss:
//
//     const auto loss = [&](const ls::Tensor& output, const ls::Tensor& target) {
//         const ls::Tensor e = ls::cross_entropy.elements(output, target);
//         return ls::mean_loss(square(1 - exp(-e)) * e);
//     };

/// Reduction of the elements of a loss.
enum class Reduction : std::uint8_t { mean, sum };

/// Options of nll_loss.
struct NllOptions {
    Tensor weight = {};                ///< (C) class weights, or undefined
    std::int64_t ignore_index = -100;  ///< rows with this target count nothing
    Reduction reduction = Reduction::mean;
};

/// Negative log likelihood (torch.nn.NLLLoss). input: log-probabilities (N, C), or (N, C, H, W) and similar; target:
/// (N), or (N, H, W), i64 in 0..C-1; every position counts as a row. A function object: `nll_loss(output, target)`, or
/// `NllLoss{{.weight = w}}` as the loss of a step.
struct NllLoss {
    NllOptions options;
    Loss operator()(const Tensor& input, const Tensor& target) const;
    Tensor elements(const Tensor& input, const Tensor& target) const;
};
inline const NllLoss nll_loss{};

/// Options of cross_entropy.
struct CrossEntropyOptions {
    Tensor weight = {};                ///< (C) class weights, or undefined
    std::int64_t ignore_index = -100;  ///< rows with this target count nothing
    Reduction reduction = Reduction::mean;
    double label_smoothing = 0;  ///< part of every target that is spread evenly over all classes, in [0, 1]
};

/// Cross entropy of logits (torch.nn.CrossEntropyLoss): log-softmax over dimension 1, then NllLoss. A target of the
/// input's shape and a floating dtype has the probability of every class; then the mean is over rows, whatever their
/// weights, and `ignore_index` must be the default.
struct CrossEntropyLoss {
    CrossEntropyOptions options;
    Loss operator()(const Tensor& input, const Tensor& target) const;
    Tensor elements(const Tensor& input, const Tensor& target) const;
};
inline const CrossEntropyLoss cross_entropy{};

/// Options of binary_cross_entropy_with_logits.
struct BceWithLogitsOptions {
    Tensor weight = {};      ///< weight of each element, or undefined; broadcast to the input
    Tensor pos_weight = {};  ///< weight of targets that are 1, or undefined; broadcast to the input
    Reduction reduction = Reduction::mean;
};

/// Binary cross entropy of logits (torch.nn.BCEWithLogitsLoss): mean or sum over elements of -(t log(sigmoid(x)) + (1 -
/// t) log(1 - sigmoid(x))). input and target have one shape and dtype, targets are in [0, 1]. Weights are constants and
/// the same for every row: dimension 0 is 1 or missing.
struct BceWithLogitsLoss {
    BceWithLogitsOptions options;
    Loss operator()(const Tensor& input, const Tensor& target) const;
    Tensor elements(const Tensor& input, const Tensor& target) const;
};
inline const BceWithLogitsLoss binary_cross_entropy_with_logits{};

/// Squared error (torch.nn.MSELoss): mean or sum over elements. input and target have one shape and dtype.
struct MseLoss {
    Reduction reduction = Reduction::mean;
    Loss operator()(const Tensor& input, const Tensor& target) const;
    Tensor elements(const Tensor& input, const Tensor& target) const;
};
inline const MseLoss mse_loss{};

// Mean or sum over elements; input and target have one shape and dtype.

/// |input - target| (torch.nn.L1Loss).
struct L1Loss {
    Reduction reduction = Reduction::mean;
    Loss operator()(const Tensor& input, const Tensor& target) const;
    Tensor elements(const Tensor& input, const Tensor& target) const;
};
inline const L1Loss l1_loss{};

/// With d = |input - target|: d^2 / (2 beta) below beta, d - beta / 2 from there (torch.nn.SmoothL1Loss).
struct SmoothL1Loss {
    double beta = 1;  ///< 0: L1Loss
    Reduction reduction = Reduction::mean;
    Loss operator()(const Tensor& input, const Tensor& target) const;
    Tensor elements(const Tensor& input, const Tensor& target) const;
};
inline const SmoothL1Loss smooth_l1_loss{};

/// With d = |input - target|: d^2 / 2 up to delta, delta (d - delta / 2) above (torch.nn.HuberLoss).
struct HuberLoss {
    double delta = 1;
    Reduction reduction = Reduction::mean;
    Loss operator()(const Tensor& input, const Tensor& target) const;
    Tensor elements(const Tensor& input, const Tensor& target) const;
};
inline const HuberLoss huber_loss{};

/// Options of binary_cross_entropy.
struct BceOptions {
    Tensor weight = {};  ///< weight of each element, or undefined; broadcast to the input, the same for every row
    Reduction reduction = Reduction::mean;
};

/// Binary cross entropy of probabilities in [0, 1], whose logarithms are at least -100 (torch.nn.BCELoss).
/// BceWithLogitsLoss is more accurate.
struct BceLoss {
    BceOptions options;
    Loss operator()(const Tensor& input, const Tensor& target) const;
    Tensor elements(const Tensor& input, const Tensor& target) const;
};
inline const BceLoss binary_cross_entropy{};

/// Options of kl_div.
struct KlDivOptions {
    bool log_target = false;  ///< targets are logarithms of probabilities
    /// `batchmean` divides by the number of rows, which gives the divergence of a row.
    enum class Reduction : std::uint8_t { mean, batchmean, sum } reduction = Reduction::mean;
};

/// target (log(target) - input) for logarithms of probabilities `input` (torch.nn.KLDivLoss).
struct KlDivLoss {
    KlDivOptions options;
    Loss operator()(const Tensor& input, const Tensor& target) const;
    Tensor elements(const Tensor& input, const Tensor& target) const;
};
inline const KlDivLoss kl_div{};

/// Options of gaussian_nll_loss.
struct GaussianNllOptions {
    bool full = false;  ///< adds log(2 pi) / 2
    double eps = 1e-6;  ///< smallest variance
    Reduction reduction = Reduction::mean;
};

/// Negative log likelihood of targets under normal distributions: (log(var) + (input - target)^2 / var) / 2. `var`, of
/// the shape of the input, counts as `eps` where it is smaller; the gradient flows through as if it were not
/// (torch.nn.GaussianNLLLoss).
struct GaussianNllLoss {
    GaussianNllOptions options;
    Loss operator()(const Tensor& input, const Tensor& target, const Tensor& var) const;
    Tensor elements(const Tensor& input, const Tensor& target, const Tensor& var) const;
};
inline const GaussianNllLoss gaussian_nll_loss{};

/// Options of ctc_loss.
struct CtcOptions {
    std::int64_t blank = 0;  ///< class between labels
    Reduction reduction = Reduction::mean;
    bool zero_infinity = false;  ///< rows whose labels do not fit their input count as 0, not as infinite
};

/// Connectionist temporal classification (Graves et al. 2006): -log of the probability that predictions log_probs (N,
/// T, C) show the labels of targets (N, S, i64, not blank). Lengths (N, i64): 1 to T positions and 0 to S labels of
/// each row count. The mean is that of each row's loss divided by its number of labels. torch.nn.CTCLoss, which has (T,
/// N, C).
struct CtcLoss {
    CtcOptions options;
    Loss operator()(const Tensor& log_probs, const Tensor& targets, const Tensor& input_lengths,
                    const Tensor& target_lengths) const;
};
inline const CtcLoss ctc_loss{};

/// Options of cosine_embedding_loss.
struct CosineEmbeddingOptions {
    double margin = 0;
    Reduction reduction = Reduction::mean;
};

/// For rows of x1 and x2 (N, D) and targets (N) of 1 or -1: 1 - cos, or max(0, cos - margin)
/// (torch.nn.CosineEmbeddingLoss).
struct CosineEmbeddingLoss {
    CosineEmbeddingOptions options;
    Loss operator()(const Tensor& x1, const Tensor& x2, const Tensor& target) const;
    Tensor elements(const Tensor& x1, const Tensor& x2, const Tensor& target) const;
};
inline const CosineEmbeddingLoss cosine_embedding_loss{};

/// Options of triplet_margin_loss.
struct TripletMarginOptions {
    double margin = 1;
    double eps = 1e-6;  ///< added to differences
    bool swap = false;  ///< uses the distance of positive and negative if it is smaller
    Reduction reduction = Reduction::mean;
};

/// max(0, |anchor - positive| - |anchor - negative| + margin) for rows (N, D), with Euclidean distances
/// (torch.nn.TripletMarginLoss).
struct TripletMarginLoss {
    TripletMarginOptions options;
    Loss operator()(const Tensor& anchor, const Tensor& positive, const Tensor& negative) const;
    Tensor elements(const Tensor& anchor, const Tensor& positive, const Tensor& negative) const;
};
inline const TripletMarginLoss triplet_margin_loss{};

/// max(0, distance(anchor, positive) - distance(anchor, negative) + margin) for every number that `distance` returns,
/// one for each row; by default pairwise_distance. `options.eps` is not used
/// (torch.nn.functional.triplet_margin_with_distance_loss).
Loss triplet_margin_with_distance_loss(const Tensor& anchor, const Tensor& positive, const Tensor& negative,
                                       const std::function<Tensor(const Tensor&, const Tensor&)>& distance = {},
                                       const TripletMarginOptions& options = {});

/// Options of poisson_nll_loss.
struct PoissonNllOptions {
    bool log_input = true;  ///< inputs are logarithms of the expected numbers
    bool full = false;      ///< adds Stirling's approximation of log(target!) for targets above 1
    double eps = 1e-8;      ///< added to inputs before their logarithm, unless `log_input`
    Reduction reduction = Reduction::mean;
};

/// Negative log likelihood of counts under Poisson distributions: exp(input) - target input, or input - target
/// log(input) (torch.nn.PoissonNLLLoss).
struct PoissonNllLoss {
    PoissonNllOptions options;
    Loss operator()(const Tensor& input, const Tensor& target) const;
    Tensor elements(const Tensor& input, const Tensor& target) const;
};
inline const PoissonNllLoss poisson_nll_loss{};

/// Options of margin_ranking_loss, hinge_embedding_loss and multi_margin_loss.
struct MarginOptions {
    double margin = 0;
    Reduction reduction = Reduction::mean;
};

/// max(0, margin - target (x1 - x2)) for targets of 1, where x1 should be larger, or -1 (torch.nn.MarginRankingLoss).
struct MarginRankingLoss {
    MarginOptions options;
    Loss operator()(const Tensor& x1, const Tensor& x2, const Tensor& target) const;
    Tensor elements(const Tensor& x1, const Tensor& x2, const Tensor& target) const;
};
inline const MarginRankingLoss margin_ranking_loss{};

/// Distances: input where the target is 1, max(0, margin - input) where it is -1 (torch.nn.HingeEmbeddingLoss).
struct HingeEmbeddingLoss {
    MarginOptions options{.margin = 1};
    Loss operator()(const Tensor& input, const Tensor& target) const;
    Tensor elements(const Tensor& input, const Tensor& target) const;
};
inline const HingeEmbeddingLoss hinge_embedding_loss{};

/// log(1 + exp(-target input)) for targets of 1 or -1 (torch.nn.SoftMarginLoss).
struct SoftMarginLoss {
    Reduction reduction = Reduction::mean;
    Loss operator()(const Tensor& input, const Tensor& target) const;
    Tensor elements(const Tensor& input, const Tensor& target) const;
};
inline const SoftMarginLoss soft_margin_loss{};

/// Mean over the classes of binary cross entropies of logits (N, C), for targets (N, C) of 1 or 0
/// (torch.nn.MultiLabelSoftMarginLoss).
struct MultiLabelSoftMarginLoss {
    Reduction reduction = Reduction::mean;
    Loss operator()(const Tensor& input, const Tensor& target) const;
    Tensor elements(const Tensor& input, const Tensor& target) const;
};
inline const MultiLabelSoftMarginLoss multilabel_soft_margin_loss{};

/// For scores (N, C) and classes (N), i64: the mean over the C classes of max(0, margin - input[target] + input[i]),
/// in which the target's own is 0 (torch.nn.MultiMarginLoss with p = 1).
struct MultiMarginLoss {
    MarginOptions options{.margin = 1};
    Loss operator()(const Tensor& input, const Tensor& target) const;
    Tensor elements(const Tensor& input, const Tensor& target) const;
};
inline const MultiMarginLoss multi_margin_loss{};

/// For scores (N, C) and the classes of every row (N, C), i64, of which those before the first -1 count: the sum of
/// max(0, 1 - input[y] + input[i]) over these classes y and all others i, divided by C (torch.nn.MultiLabelMarginLoss).
struct MultiLabelMarginLoss {
    Reduction reduction = Reduction::mean;
    Loss operator()(const Tensor& input, const Tensor& target) const;
    Tensor elements(const Tensor& input, const Tensor& target) const;
};
inline const MultiLabelMarginLoss multilabel_margin_loss{};

/// A custom loss: the mean of `e`, the loss of every element of a batch (N, ...), over all shards. For instance
/// `mean_loss(sqrt(square(output - target) + 1.0))`. A tensor that is the same on all shards (a penalty on weights)
/// gives its mean. Throws InvalidArgument for a scalar.
Loss mean_loss(const Tensor& e);
/// A custom loss: the sum over all elements. Throws InvalidArgument if dimension 0 is not the batch (Tensor::is_batch):
/// such a sum would count once for each shard.
Loss sum_loss(const Tensor& e);

}  // namespace lockstep
