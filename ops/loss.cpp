#include "lockstep/ops/loss.h"

#include <fmt/format.h>

#include <utility>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/internal/checked_args.h"
#include "lockstep/ops/internal/loss_terms.h"
#include "lockstep/ops/internal/nn_operations.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/api_scope.h"
#include "lockstep/runtime/internal/eager.h"
#include "lockstep/runtime/record.h"
#include "lockstep/runtime/trace.h"

namespace lockstep {

Tensor Loss::value() const {
    const ApiScope call("Loss::value");
    if (terms_.empty())
        throw InvalidArgument("Loss::value: the loss has no terms; expected one from nll_loss, mse_loss, ...");
    Tensor sum;
    for (const Term& term : terms_) {
        Tensor value = term.denominator.defined() ? div(term.numerator, term.denominator) : term.numerator;
        if (term.factor != 1) value = value * term.factor;
        if (term.dtype) value = value.to(*term.dtype);
        sum = sum.defined() ? add(sum, value) : value;
    }
    return sum;
}

Loss operator+(Loss a, const Loss& b) {
    a.terms_.insert(a.terms_.end(), b.terms_.begin(), b.terms_.end());
    return a;
}

Loss operator*(double factor, Loss loss) {
    for (Loss::Term& term : loss.terms_) term.factor *= factor;
    return loss;
}

namespace {

void require_classes(const char* name, const Tensor& input) {
    if (input.dims() < 2)
        throw InvalidArgument(
            fmt::format("{}: input has shape {}; expected a batch of rows, (N, C), or of maps, (N, C, H, W)", name,
                        input.shape().str()));
}

struct NllSums {
    Tensor numerator, denominator;
};

/// Sums of the costs and of the weights. The costs are linear in `input`.
NllSums nll_sums(const char* name, const Tensor& input, const Tensor& target, const Tensor& weight,
                 std::int64_t ignored);

/// The gradient of the numerator.
Tensor nll_gradient(const char* name, const Tensor& dy, const TensorMeta& dx, const Tensor& target,
                    const Tensor& weight, std::int64_t ignored) {
    const Tensor made = apply_one(NllBackward{ignored}, {dy, target, weight}, dx);
    if (needs_autograd({dy}))
        add_autograd_node(
            name, {dy}, {made},
            BackwardFunction::composed([name, ignored, classes = SavedTensor(target, name),
                                        w = SavedTensor(weight, name)](const auto& gradients) {
                return std::vector<Tensor>{nll_sums(name, gradients[0], classes.get(), w.get(), ignored).numerator};
            }));
    return made;
}

NllSums nll_sums(const char* name, const Tensor& input, const Tensor& target, const Tensor& weight,
                 std::int64_t ignored) {
    const TensorMeta scalar = shaped(input, {});
    const auto made = apply(make_operation(NllForward{ignored}), {input, target, weight}, {scalar, scalar});
    if (needs_autograd({input}))
        add_autograd_node(name, {input}, {made[0]},
                          BackwardFunction::composed([name, ignored, classes = SavedTensor(target, name),
                                                      w = SavedTensor(weight, name), numerator = made[0].detach(),
                                                      dx = like(input)](const auto& gradients) {
                              const Tensor d = nll_gradient(name, gradients[0], dx, classes.get(), w.get(), ignored);
                              eager_reports::carry(numerator,
                                                   d);  // positions whose target is not a class have no gradient
                              return std::vector<Tensor>{d};
                          }));
    return {made[0], made[1]};
}

/// Logarithms and classes of a loss, checked; 16-bit numbers as f32.
struct Classified {
    Tensor input, target, weight;
    DType dtype;  ///< dtype of the input
};

Classified classified(const char* name, const Tensor& given_input, const Tensor& given_target,
                      const Tensor& given_weight) {
    const CheckedArgs call(name,
                           {arg::floating("input", given_input), arg::any("target", given_target),
                            arg::optional("weight", OperandDevice(given_input, given_target).moved(given_weight))});
    const Tensor& target = call[1];
    const Tensor input = widened(call[0]);
    const Tensor weight = call[2].defined() ? widened(call[2]) : call[2];
    require_classes(name, input);
    if (target.dtype() != DType::i64)
        throw InvalidArgument(
            fmt::format("{}: target {} has dtype {}; expected i64, the number of a class for each row", name,
                        target.shape().str(), name_of(target.dtype())));
    Shape rows = input.shape();
    rows.erase(1);
    if (!(target.shape() == rows))
        throw InvalidArgument(fmt::format("{}: target {} does not match input {}; expected {}, a class for each {}",
                                          name, target.shape().str(), input.shape().str(), rows.str(),
                                          rows.dims() == 1 ? "row" : "position"));
    checks::vector_of(name, "weight", weight, input.size(1), "class");
    if (weight.defined() && weight.requires_grad())
        throw InvalidArgument(
            fmt::format("{}: class weights require a gradient; expected constants (use weight.detach())", name));
    return {input, target, weight, call[0].dtype()};
}

Loss nll(const char* name, const Classified& of, const NllOptions& options) {
    const auto [numerator, denominator] = nll_sums(name, of.input, of.target, of.weight, options.ignore_index);
    return Loss({numerator, options.reduction == Reduction::mean ? denominator : Tensor(), 1, of.dtype});
}

/// The loss of every position.
Tensor nll_elements(const Classified& of, std::int64_t ignore_index) {
    const Tensor ignored = eq(of.target, ignore_index), classes = where(ignored, 0, of.target);
    Tensor costs = neg(gather(of.input, 1, classes.unsqueeze(1)).squeeze(1));
    if (of.weight.defined())
        costs = costs * index_select(of.weight, 0, classes.reshape({classes.numel()})).reshape(classes.shape());
    return masked_fill(costs, ignored, 0);
}

/// Minus the logarithms of all classes, times their weights, added up for every position; 0 if it is ignored.
Tensor even_costs(const Classified& of, std::int64_t ignore_index) {
    Tensor costs = neg(of.input);
    if (of.weight.defined()) {
        Shape of_classes;
        for (int dim = 1; dim < of.input.dims(); ++dim) of_classes.push_back(dim == 1 ? of.input.size(1) : 1);
        costs = costs * of.weight.reshape(of_classes);
    }
    return where(eq(of.target, ignore_index), 0, sum(costs, 1));
}

}  // namespace

Loss NllLoss::operator()(const Tensor& input, const Tensor& target) const {
    const ApiScope call("nll_loss");
    const OperandDevice device(input, target);
    return nll("nll_loss", classified("nll_loss", device.moved(input), device.moved(target), options.weight), options);
}

Tensor NllLoss::elements(const Tensor& input, const Tensor& target) const {
    const ApiScope call("nll_loss");
    const OperandDevice device(input, target);
    const Classified of = classified("nll_loss", device.moved(input), device.moved(target), options.weight);
    return nll_elements(of, options.ignore_index).to(of.dtype);
}

namespace {

/// Checks the input and `label_smoothing`.
void require_logits(const Tensor& input, const CrossEntropyOptions& options) {
    require_classes("cross_entropy", input);
    if (!(options.label_smoothing >= 0 && options.label_smoothing <= 1))
        throw InvalidArgument(
            fmt::format("cross_entropy: invalid label_smoothing ({}); expected 0 to 1", options.label_smoothing));
}

bool are_probabilities(const Tensor& target) { return target.defined() && is_floating(target.dtype()); }

Classified log_probabilities(const Tensor& input, const Tensor& target, const CrossEntropyOptions& options) {
    const OperandDevice device(input, target);
    return classified("cross_entropy", log_softmax(device.moved(input), 1), device.moved(target), options.weight);
}

}  // namespace

Loss CrossEntropyLoss::operator()(const Tensor& given, const Tensor& target) const {
    const CheckedArgs call("cross_entropy", {arg::floating("input", given)});
    const Tensor& input = call[0];
    require_logits(input, options);
    if (are_probabilities(target)) {
        const Tensor costs = cross_entropies_of_probabilities(input, target, options);
        return reduced(costs, costs.numel(), options.reduction, input.dtype());
    }
    const Classified of = log_probabilities(input, target, options);
    const Loss hard = nll("cross_entropy", of, {{}, options.ignore_index, options.reduction});
    const double smoothing = options.label_smoothing;
    if (smoothing == 0) return hard;
    const Loss soft({sum(even_costs(of, options.ignore_index)), hard.terms()[0].denominator, 1, of.dtype});
    return (1 - smoothing) * hard + (smoothing / static_cast<double>(input.size(1))) * soft;
}

Tensor CrossEntropyLoss::elements(const Tensor& given, const Tensor& target) const {
    const CheckedArgs call("cross_entropy", {arg::floating("input", given)});
    const Tensor& input = call[0];
    require_logits(input, options);
    if (are_probabilities(target)) return cross_entropies_of_probabilities(input, target, options).to(input.dtype());
    const Classified of = log_probabilities(input, target, options);
    Tensor costs = nll_elements(of, options.ignore_index);
    if (const double smoothing = options.label_smoothing; smoothing > 0)
        costs = costs * (1 - smoothing) +
                even_costs(of, options.ignore_index) * (smoothing / static_cast<double>(input.size(1)));
    return costs.to(of.dtype);
}

namespace {

/// The loss of every element, and the dtype of the input; 16-bit numbers as f32.
std::pair<Tensor, DType> cross_entropies_of_logits(const Tensor& first, const Tensor& second,
                                                   const BceWithLogitsOptions& options) {
    constexpr const char* name = "binary_cross_entropy_with_logits";
    const ApiScope bringing(name);
    const OperandDevice device(first, second);
    const CheckedArgs call(name,
                           {arg::floating("input", device.moved(first)), arg::floating("target", device.moved(second)),
                            arg::optional("weight", device.moved(options.weight)),
                            arg::optional("pos_weight", device.moved(options.pos_weight))});
    const Tensor x = widened(call[0]), t = widened(call[1]);
    if (!(x.shape() == t.shape()))
        throw InvalidArgument(fmt::format("{}: input and target differ in shape, {} and {}; expected equal shapes",
                                          name, x.shape().str(), t.shape().str()));
    require_row_weights(name, "weight", call[2], x);
    require_row_weights(name, "pos_weight", call[3], x);
    const Tensor likelihood = logsigmoid(x);
    Tensor e = (1 - t) * x - (call[3].defined() ? (1 + (call[3] - 1) * t) * likelihood : likelihood);
    if (call[2].defined()) e = e * call[2];
    return {e, call[0].dtype()};
}

}  // namespace

Loss BceWithLogitsLoss::operator()(const Tensor& input, const Tensor& target) const {
    const auto [e, dtype] = cross_entropies_of_logits(input, target, options);
    return reduced(e, e.numel(), options.reduction, dtype);
}

Tensor BceWithLogitsLoss::elements(const Tensor& input, const Tensor& target) const {
    const auto [e, dtype] = cross_entropies_of_logits(input, target, options);
    return e.to(dtype);
}

namespace {

/// Operands of mse_loss, checked; 16-bit numbers as f32.
struct SquaredErrorOperands {
    Tensor input, target;
    DType dtype;  ///< dtype of the input
};

SquaredErrorOperands squared_error_operands(const char* name, const Tensor& first, const Tensor& second) {
    const OperandDevice device(first, second);
    const CheckedArgs call(
        name, {arg::floating("input", device.moved(first)), arg::floating("target", device.moved(second))});
    if (!(call[0].shape() == call[1].shape()))
        throw InvalidArgument(fmt::format("mse_loss: input {} and target {} differ in shape; expected equal shapes",
                                          call[0].shape().str(), call[1].shape().str()));
    return {widened(call[0]), widened(call[1]), call[0].dtype()};
}

}  // namespace

Loss MseLoss::operator()(const Tensor& first, const Tensor& second) const {
    constexpr const char* name = "mse_loss";
    const ApiScope bringing(name);
    const auto [input, target, dtype] = squared_error_operands(name, first, second);
    const Tensor numerator = apply_one(SquaredErrorForward{}, {input, target}, shaped(input, {}));
    if (needs_autograd({input, target}))
        add_autograd_node(
            name, {input, target}, {numerator},
            BackwardFunction::composed([a = SavedTensor(input, name), b = SavedTensor(target, name), dx = like(input),
                                        input_wanted = input.requires_grad(), target_wanted = target.requires_grad(),
                                        target_batch = target.is_batch()](const auto& gradients) {
                const Tensor x = a.get(), t = b.get();
                const Tensor da = grad_enabled() ? tagged((x - t) * (gradients[0] * 2), dx.batch)
                                                 : apply_one(SquaredErrorBackward{}, {gradients[0], x, t}, dx);
                return std::vector<Tensor>{input_wanted ? da : Tensor(),
                                           target_wanted ? tagged(neg(da), target_batch) : Tensor()};
            }));
    return reduced(numerator, input.numel(), reduction, dtype);
}

Tensor MseLoss::elements(const Tensor& first, const Tensor& second) const {
    constexpr const char* name = "mse_loss";
    const ApiScope bringing(name);
    const auto [input, target, dtype] = squared_error_operands(name, first, second);
    return square(input - target).to(dtype);
}

Loss mean_loss(const Tensor& given) {
    const CheckedArgs call("mean_loss", {arg::floating("the tensor", given)});
    const Tensor& e = call[0];
    if (e.dims() == 0)
        throw InvalidArgument(
            "mean_loss: a scalar has an unknown number of elements; expected the loss of every element");
    return reduced(e, e.numel(), Reduction::mean, e.dtype());
}

Loss sum_loss(const Tensor& given) {
    const CheckedArgs call("sum_loss", {arg::floating("the tensor", given)});
    const Tensor& e = call[0];
    if (e.dims() == 0 || (Trace::current() && !e.is_batch()))
        throw InvalidArgument(
            fmt::format("sum_loss: dimension 0 of {} is not the batch, so every shard would add the sum again; "
                        "expected the loss of every row, tagged with tag_batch() if a view lost the tag",
                        e.shape().str()));
    return reduced(e, e.numel(), Reduction::sum, e.dtype());
}

}  // namespace lockstep
