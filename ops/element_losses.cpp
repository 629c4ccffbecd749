// Losses that are means or sums over elements or rows, made of elementwise functions.
#include <fmt/format.h>

#include <cmath>
#include <numbers>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/internal/checked_args.h"
#include "lockstep/ops/internal/loss_terms.h"
#include "lockstep/ops/internal/piecewise.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/error.h"

namespace lockstep {

Loss reduced(const Tensor& e, std::int64_t count, Reduction reduction, DType dtype) {
    const Tensor wide = widened(e), total = wide.dims() == 0 ? wide : sum(wide);
    Loss::Term term{total, {}, 1, dtype};
    if (reduction == Reduction::mean)
        term.denominator = Tensor::full({}, static_cast<double>(count), total.dtype(), total.device());
    return Loss(std::move(term));
}

void require_row_weights(const char* name, const char* what, const Tensor& weight, const Tensor& x) {
    if (!weight.defined()) return;
    const bool of_rows = weight.dims() < x.dims() || (weight.dims() == x.dims() && weight.size(0) == 1);
    if (!(broadcast_shapes(x.shape(), weight.shape(), name) == x.shape()) || !of_rows)
        throw InvalidArgument(
            fmt::format("{}: {} {} does not broadcast over the rows of input {}; expected the same weights for "
                        "every row, without dimension 0",
                        name, what, weight.shape().str(), x.shape().str()));
    if (weight.requires_grad())
        throw InvalidArgument(
            fmt::format("{}: {} requires a gradient; expected a constant (use {}.detach())", name, what, what));
}

namespace {

void require_equal_shapes(const char* name, const char* what, const Tensor& a, const Tensor& b) {
    if (!(a.shape() == b.shape()))
        throw InvalidArgument(fmt::format("{}: {} differ in shape, {} and {}; expected equal shapes", name, what,
                                          a.shape().str(), b.shape().str()));
}

/// The loss of every element or row; 16-bit numbers as f32.
struct Costs {
    Tensor e;
    DType dtype;  ///< dtype of the input

    Tensor elements() const { return e.to(dtype); }
    Loss reduced(Reduction reduction) const { return lockstep::reduced(e, e.numel(), reduction, dtype); }
};

/// Input and target of a loss, on one device; 16-bit numbers as f32.
class Pairs {
public:
    Pairs(const char* name, const Tensor& input, const Tensor& target)
        : device_(input, target),
          call_(name, {arg::floating("input", device_.moved(input)), arg::floating("target", device_.moved(target))}) {
        require_equal_shapes(name, "input and target", call_[0], call_[1]);
        input_ = widened(call_[0]);
        target_ = widened(call_[1]);
    }
    const Tensor& input() const { return input_; }
    const Tensor& target() const { return target_; }
    /// `e`: the loss of every element or row.
    Costs costs(const Tensor& e) const { return {e, call_[0].dtype()}; }
    /// Another tensor of the loss, of a floating dtype.
    Tensor like_input(const Tensor& tensor) const { return device_.moved(tensor).to(input_.dtype()); }
    Tensor moved(const Tensor& tensor) const { return device_.moved(tensor); }

private:
    OperandDevice device_;
    CheckedArgs call_;
    Tensor input_, target_;
};

/// The Euclidean length of the rows of x.
Tensor lengths(const Tensor& x) { return norm(x, 2, -1); }

Tensor positive_part(const Tensor& x) { return clamp(x, 0); }

}  // namespace

Tensor cross_entropies_of_probabilities(const Tensor& input, const Tensor& given, const CrossEntropyOptions& options) {
    constexpr const char* name = "cross_entropy";
    if (!(input.shape() == given.shape()))
        throw InvalidArgument(
            fmt::format("{}: target {} has dtype {}; expected numbers of classes (i64), or "
                        "probabilities of shape {}",
                        name, given.shape().str(), name_of(given.dtype()), input.shape().str()));
    const Pairs pair(name, input, given);
    if (options.ignore_index != CrossEntropyOptions().ignore_index)
        throw InvalidArgument(
            fmt::format("{}: ignore_index {} with probabilities as targets; expected numbers of classes (i64), or the "
                        "default",
                        name, options.ignore_index));
    const std::int64_t classes = pair.input().size(1);
    Tensor target = pair.target();
    if (options.label_smoothing > 0)
        target = target * (1 - options.label_smoothing) + options.label_smoothing / static_cast<double>(classes);
    Tensor costs = neg(log_softmax(pair.input(), 1)) * target;
    checks::vector_of(name, "weight", options.weight, classes, "class");
    if (options.weight.defined()) {
        if (options.weight.requires_grad())
            throw InvalidArgument(
                fmt::format("{}: class weights require a gradient; expected constants (use weight.detach())", name));
        Shape of_classes{classes};
        for (int dim = 2; dim < costs.dims(); ++dim) of_classes.push_back(1);
        costs = costs * pair.like_input(options.weight).reshape(of_classes);
    }
    return sum(costs, 1);
}

namespace {

/// Cross entropies of probabilities x and t.
Tensor cross_entropies(const Tensor& x, const Tensor& t) {
    const Tensor e = [&] {
        const NoGrad no_grad;
        return neg(t * clamp(log(x), -100) + (1 - t) * clamp(log(1 - x), -100));
    }();
    constexpr const char* name = "binary_cross_entropy";
    if (needs_autograd({x, t}))
        add_autograd_node(
            name, {x, t}, {e},
            BackwardFunction::composed([of_x = SavedTensor(x, name), of_t = SavedTensor(t, name), tag_x = x.is_batch(),
                                        tag_t = t.is_batch()](const auto& gradients) {
                const Tensor &dy = gradients[0], p = of_x.get(), q = of_t.get();
                // PyTorch's gradient, which is finite where x is 0 or 1.
                return std::vector<Tensor>{tagged(dy * ((p - q) / clamp(p * (1 - p), 1e-12)), tag_x),
                                           tagged(dy * (clamp(log(1 - p), -100) - clamp(log(p), -100)), tag_t)};
            }));
    return e;
}

Costs costs_of(const L1Loss&, const Tensor& input, const Tensor& target) {
    const Pairs pair("l1_loss", input, target);
    return pair.costs(abs(pair.input() - pair.target()));
}

Costs costs_of(const SmoothL1Loss& loss, const Tensor& input, const Tensor& target) {
    if (!(loss.beta >= 0))
        throw InvalidArgument(fmt::format("smooth_l1_loss: invalid beta ({}); expected 0 or more", loss.beta));
    const Pairs pair("smooth_l1_loss", input, target);
    const Tensor d = pair.input() - pair.target();
    if (loss.beta == 0) return pair.costs(abs(d));
    return pair.costs(piecewise("smooth_l1_loss", d, functor::Piecewise::huber, loss.beta, 0.5 / loss.beta, 1));
}

Costs costs_of(const HuberLoss& loss, const Tensor& input, const Tensor& target) {
    if (!(loss.delta > 0))
        throw InvalidArgument(fmt::format("huber_loss: invalid delta ({}); expected a positive number", loss.delta));
    const Pairs pair("huber_loss", input, target);
    const Tensor d = pair.input() - pair.target();
    return pair.costs(piecewise("huber_loss", d, functor::Piecewise::huber, loss.delta, 0.5, loss.delta));
}

Costs costs_of(const BceLoss& loss, const Tensor& input, const Tensor& target) {
    constexpr const char* name = "binary_cross_entropy";
    const Pairs pair(name, input, target);
    const Tensor& x = pair.input();
    Tensor e = cross_entropies(x, pair.target());
    if (loss.options.weight.defined()) {
        const Tensor weight = pair.like_input(loss.options.weight);
        require_row_weights(name, "weight", weight, x);
        e = e * weight;
    }
    return pair.costs(e);
}

Costs costs_of(const KlDivLoss& loss, const Tensor& input, const Tensor& target) {
    const Pairs pair("kl_div", input, target);
    const Tensor &x = pair.input(), &t = pair.target();
    Tensor e;
    if (loss.options.log_target) {
        e = exp(t) * (t - x);
    } else {
        const Tensor none = eq(t, 0);  // 0 log(0) is 0
        e = where(none, 0, t * log(where(none, 1, t))) - t * x;
    }
    return pair.costs(e);
}

Costs costs_of(const GaussianNllLoss& loss, const Tensor& input, const Tensor& target, const Tensor& given_var) {
    constexpr const char* name = "gaussian_nll_loss";
    if (!(loss.options.eps > 0))
        throw InvalidArgument(fmt::format("{}: invalid eps ({}); expected a positive number", name, loss.options.eps));
    const Pairs pair(name, input, target);
    const CheckedArgs call(name, {arg::floating("var", given_var)});
    const Tensor given = pair.like_input(call[0]);
    require_equal_shapes(name, "input and var", pair.input(), given);
    const Tensor var = given + (clamp(given.detach(), loss.options.eps) - given.detach());
    Tensor e = (log(var) + square(pair.input() - pair.target()) / var) * 0.5;
    if (loss.options.full) e = e + 0.5 * std::log(2 * std::numbers::pi);
    return pair.costs(e);
}

Costs costs_of(const CosineEmbeddingLoss& loss, const Tensor& x1, const Tensor& x2, const Tensor& target) {
    constexpr const char* name = "cosine_embedding_loss";
    const Pairs pair(name, x1, x2);
    checks::dims(name, "input", pair.input(), 2, "(N, D)");
    const CheckedArgs call(name, {arg::any("target", pair.moved(target))});
    if (!(call[0].shape() == Shape{pair.input().size(0)}))
        throw InvalidArgument(fmt::format("{}: target has shape {}; expected {}, a number for each row", name,
                                          call[0].shape().str(), Shape{pair.input().size(0)}.str()));
    // PyTorch's arithmetic, which is not that of cosine_similarity.
    constexpr double eps = 1e-12;
    const Tensor &a = pair.input(), &b = pair.target();
    const Tensor cosine = sum(a * b, 1) / sqrt((sum(square(a), 1) + eps) * (sum(square(b), 1) + eps));
    const Tensor alike = eq(call[0], 1), different = eq(call[0], -1);
    const Tensor e = where(alike, 1 - cosine, where(different, positive_part(cosine - loss.options.margin), 0));
    return pair.costs(e);
}

Costs costs_of(const TripletMarginLoss& loss, const Tensor& anchor, const Tensor& positive, const Tensor& negative) {
    constexpr const char* name = "triplet_margin_loss";
    if (!(loss.options.margin > 0))
        throw InvalidArgument(
            fmt::format("{}: invalid margin ({}); expected a positive number", name, loss.options.margin));
    const Pairs near(name, anchor, positive), far(name, anchor, negative);
    checks::dims(name, "anchor", near.input(), 2, "(N, D)");
    const Tensor closeness = lengths(near.input() - near.target() + loss.options.eps);
    Tensor distance = lengths(far.input() - far.target() + loss.options.eps);
    if (loss.options.swap) distance = minimum(distance, lengths(near.target() - far.target() + loss.options.eps));
    return near.costs(positive_part(closeness - distance + loss.options.margin));
}

Costs costs_of(const PoissonNllLoss& loss, const Tensor& input, const Tensor& target) {
    const Pairs pair("poisson_nll_loss", input, target);
    const Tensor &x = pair.input(), &t = pair.target();
    Tensor e = loss.options.log_input ? exp(x) - t * x : x - t * log(x + loss.options.eps);
    if (loss.options.full) {
        const Tensor counted = clamp(t, 1);
        e = e + where(t > 1, t * log(counted) - t + log(counted * (2 * std::numbers::pi)) * 0.5, 0);
    }
    return pair.costs(e);
}

Costs costs_of(const MarginRankingLoss& loss, const Tensor& x1, const Tensor& x2, const Tensor& target) {
    constexpr const char* name = "margin_ranking_loss";
    const Pairs pair(name, x1, x2);
    const CheckedArgs call(name, {arg::any("target", pair.moved(target))});
    require_equal_shapes(name, "input and target", pair.input(), call[0]);
    const Tensor lead = pair.like_input(call[0]) * (pair.input() - pair.target());
    return pair.costs(positive_part(loss.options.margin - lead));
}

Costs costs_of(const HingeEmbeddingLoss& loss, const Tensor& input, const Tensor& target) {
    const Pairs pair("hinge_embedding_loss", input, target);
    const Tensor &x = pair.input(), &t = pair.target();
    const Tensor apart = where(eq(t, 1), 0, positive_part(loss.options.margin - x)), near = where(eq(t, -1), 0, x);
    return pair.costs(apart + near);
}

Costs costs_of(const SoftMarginLoss&, const Tensor& input, const Tensor& target) {
    const Pairs pair("soft_margin_loss", input, target);
    return pair.costs(neg(logsigmoid(pair.input() * pair.target())));
}

Costs costs_of(const MultiLabelSoftMarginLoss&, const Tensor& input, const Tensor& target) {
    constexpr const char* name = "multilabel_soft_margin_loss";
    const Pairs pair(name, input, target);
    checks::dims(name, "input", pair.input(), 2, "(N, C)");
    const Tensor &x = pair.input(), &t = pair.target();
    return pair.costs(neg(mean(t * logsigmoid(x) + (1 - t) * logsigmoid(neg(x)), 1)));
}

Costs costs_of(const MultiMarginLoss& loss, const Tensor& input, const Tensor& target) {
    constexpr const char* name = "multi_margin_loss";
    const OperandDevice device(input, target);
    const CheckedArgs call(name,
                           {arg::floating("input", device.moved(input)), arg::any("target", device.moved(target))});
    checks::dims(name, "input", call[0], 2, "(N, C)");
    if (!(call[1].shape() == Shape{call[0].size(0)}))
        throw InvalidArgument(fmt::format("{}: target has shape {}; expected {}, a class for each row", name,
                                          call[1].shape().str(), Shape{call[0].size(0)}.str()));
    const Tensor x = widened(call[0]);
    const Tensor missing = positive_part(loss.options.margin - gather(x, 1, call[1].unsqueeze(1)) + x);
    const Tensor of_rows = mean(where(one_hot(call[1], x.size(1)) > 0, 0, missing), 1);
    return {of_rows, call[0].dtype()};
}

Costs costs_of(const MultiLabelMarginLoss&, const Tensor& input, const Tensor& target) {
    constexpr const char* name = "multilabel_margin_loss";
    const OperandDevice device(input, target);
    const CheckedArgs call(name,
                           {arg::floating("input", device.moved(input)), arg::any("target", device.moved(target))});
    checks::dims(name, "input", call[0], 2, "(N, C)");
    require_equal_shapes(name, "input and target", call[0], call[1]);
    if (call[1].dtype() != DType::i64)
        throw InvalidArgument(
            fmt::format("{}: target has dtype {}; expected i64 (use .to(DType::i64))", name, name_of(call[1].dtype())));
    const Tensor x = widened(call[0]);
    const std::int64_t classes = x.size(1);
    // 1 for the classes before the first -1.
    const Tensor counts = cumprod(ne(call[1], -1).to(DType::i64), 1) > 0;
    const Tensor target_classes = where(counts, call[1], 0);
    const Tensor own = sum(one_hot(target_classes, classes) * counts.to(DType::i64).unsqueeze(2), 1) > 0;
    // (N, target, class)
    const Tensor missing = positive_part(1.0 - gather(x, 1, target_classes).unsqueeze(2) + x.unsqueeze(1));
    const Tensor pairs = logical_and(counts.unsqueeze(2), logical_not(own).unsqueeze(1));
    return {sum(where(pairs, missing, 0), {1, 2}) / static_cast<double>(classes), call[0].dtype()};
}

}  // namespace

Loss MultiLabelMarginLoss::operator()(const Tensor& input, const Tensor& target) const {
    return costs_of(*this, input, target).reduced(reduction);
}
Tensor MultiLabelMarginLoss::elements(const Tensor& input, const Tensor& target) const {
    return costs_of(*this, input, target).elements();
}

Loss triplet_margin_with_distance_loss(const Tensor& anchor, const Tensor& positive, const Tensor& negative,
                                       const std::function<Tensor(const Tensor&, const Tensor&)>& distance,
                                       const TripletMarginOptions& options) {
    constexpr const char* name = "triplet_margin_with_distance_loss";
    if (!(options.margin > 0))
        throw InvalidArgument(fmt::format("{}: invalid margin ({}); expected a positive number", name, options.margin));
    const Pairs near(name, anchor, positive), far(name, anchor, negative);
    const auto between = [&](const Tensor& a, const Tensor& b) {
        return widened(distance ? distance(a, b) : pairwise_distance(a, b));
    };
    const Tensor closeness = between(near.input(), near.target());
    Tensor apart = between(far.input(), far.target());
    if (options.swap) apart = minimum(apart, between(near.target(), far.target()));
    return near.costs(positive_part(closeness - apart + options.margin)).reduced(options.reduction);
}

Loss L1Loss::operator()(const Tensor& input, const Tensor& target) const {
    return costs_of(*this, input, target).reduced(reduction);
}
Tensor L1Loss::elements(const Tensor& input, const Tensor& target) const {
    return costs_of(*this, input, target).elements();
}

Loss SmoothL1Loss::operator()(const Tensor& input, const Tensor& target) const {
    return costs_of(*this, input, target).reduced(reduction);
}
Tensor SmoothL1Loss::elements(const Tensor& input, const Tensor& target) const {
    return costs_of(*this, input, target).elements();
}

Loss HuberLoss::operator()(const Tensor& input, const Tensor& target) const {
    return costs_of(*this, input, target).reduced(reduction);
}
Tensor HuberLoss::elements(const Tensor& input, const Tensor& target) const {
    return costs_of(*this, input, target).elements();
}

Loss BceLoss::operator()(const Tensor& input, const Tensor& target) const {
    return costs_of(*this, input, target).reduced(options.reduction);
}
Tensor BceLoss::elements(const Tensor& input, const Tensor& target) const {
    return costs_of(*this, input, target).elements();
}

Loss KlDivLoss::operator()(const Tensor& input, const Tensor& target) const {
    const Costs costs = costs_of(*this, input, target);
    if (options.reduction == KlDivOptions::Reduction::mean) return costs.reduced(Reduction::mean);
    if (options.reduction == KlDivOptions::Reduction::sum) return costs.reduced(Reduction::sum);
    if (costs.e.dims() == 0) throw InvalidArgument("kl_div: a scalar has no rows; expected (N, ...)");
    return reduced(costs.e, costs.e.size(0), Reduction::mean, costs.dtype);
}
Tensor KlDivLoss::elements(const Tensor& input, const Tensor& target) const {
    return costs_of(*this, input, target).elements();
}

Loss GaussianNllLoss::operator()(const Tensor& input, const Tensor& target, const Tensor& given_var) const {
    return costs_of(*this, input, target, given_var).reduced(options.reduction);
}
Tensor GaussianNllLoss::elements(const Tensor& input, const Tensor& target, const Tensor& given_var) const {
    return costs_of(*this, input, target, given_var).elements();
}

Loss CosineEmbeddingLoss::operator()(const Tensor& x1, const Tensor& x2, const Tensor& target) const {
    return costs_of(*this, x1, x2, target).reduced(options.reduction);
}
Tensor CosineEmbeddingLoss::elements(const Tensor& x1, const Tensor& x2, const Tensor& target) const {
    return costs_of(*this, x1, x2, target).elements();
}

Loss TripletMarginLoss::operator()(const Tensor& anchor, const Tensor& positive, const Tensor& negative) const {
    return costs_of(*this, anchor, positive, negative).reduced(options.reduction);
}
Tensor TripletMarginLoss::elements(const Tensor& anchor, const Tensor& positive, const Tensor& negative) const {
    return costs_of(*this, anchor, positive, negative).elements();
}

Loss PoissonNllLoss::operator()(const Tensor& input, const Tensor& target) const {
    return costs_of(*this, input, target).reduced(options.reduction);
}
Tensor PoissonNllLoss::elements(const Tensor& input, const Tensor& target) const {
    return costs_of(*this, input, target).elements();
}

Loss MarginRankingLoss::operator()(const Tensor& x1, const Tensor& x2, const Tensor& target) const {
    return costs_of(*this, x1, x2, target).reduced(options.reduction);
}
Tensor MarginRankingLoss::elements(const Tensor& x1, const Tensor& x2, const Tensor& target) const {
    return costs_of(*this, x1, x2, target).elements();
}

Loss HingeEmbeddingLoss::operator()(const Tensor& input, const Tensor& target) const {
    return costs_of(*this, input, target).reduced(options.reduction);
}
Tensor HingeEmbeddingLoss::elements(const Tensor& input, const Tensor& target) const {
    return costs_of(*this, input, target).elements();
}

Loss SoftMarginLoss::operator()(const Tensor& input, const Tensor& target) const {
    return costs_of(*this, input, target).reduced(reduction);
}
Tensor SoftMarginLoss::elements(const Tensor& input, const Tensor& target) const {
    return costs_of(*this, input, target).elements();
}

Loss MultiLabelSoftMarginLoss::operator()(const Tensor& input, const Tensor& target) const {
    return costs_of(*this, input, target).reduced(reduction);
}
Tensor MultiLabelSoftMarginLoss::elements(const Tensor& input, const Tensor& target) const {
    return costs_of(*this, input, target).elements();
}

Loss MultiMarginLoss::operator()(const Tensor& input, const Tensor& target) const {
    return costs_of(*this, input, target).reduced(options.reduction);
}
Tensor MultiMarginLoss::elements(const Tensor& input, const Tensor& target) const {
    return costs_of(*this, input, target).elements();
}

}  // namespace lockstep
