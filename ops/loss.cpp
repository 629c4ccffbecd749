#include "lockstep/ops/loss.h"

#include <fmt/format.h>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/internal/checks.h"
#include "lockstep/ops/internal/operations.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/tape.h"

namespace lockstep {

Tensor Loss::value() const {
    if (terms_.empty())
        throw InvalidArgument("Loss::value: a loss without terms; make one with nll_loss, mse_loss, ...");
    Tensor sum;
    for (const Term& term : terms_) {
        Tensor value = term.weight.defined() ? div(term.numerator, term.weight) : term.numerator;
        if (term.factor != 1) value = value * term.factor;
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

Loss nll(const char* name, const Tensor& input, const Tensor& target, const NllOptions& options) {
    checks::floating(name, "input", input);
    checks::defined(name, "target", target);
    checks::dims(name, "input", input, 2, "a batch of rows, (N, C)");
    if (target.dtype() != DType::i64)
        throw InvalidArgument(
            fmt::format("{}: target {} is of dtype {} and must be i64, the number of a class for each row", name,
                        target.shape().str(), name_of(target.dtype())));
    if (!(target.shape() == Shape{input.size(0)}))
        throw InvalidArgument(fmt::format("{}: target {} and input {}: the target must be ({},), a class for each row",
                                          name, target.shape().str(), input.shape().str(), input.size(0)));
    const Tensor& weight = options.weight;
    checks::same_dtype(name, "weight", weight, input);
    checks::vector_of(name, "weight", weight, input.size(1), "class");
    if (weight.defined() && weight.requires_grad())
        throw InvalidArgument(fmt::format("{}: class weights are constants; pass weight.detach()", name));

    const TensorMeta scalar = shaped(input, {});
    const auto made =
        apply(std::make_shared<const NllForward>(options.ignore_index), {input, target, weight}, {scalar, scalar});
    if (needs_tape({input}))
        put_on_tape(
            name, {input}, {made[0]},
            [ignore = options.ignore_index, classes = SavedTensor(target, name), w = SavedTensor(weight, name),
             dx = like(input)](const std::vector<Tensor>& gradients) {
                return std::vector<Tensor>{apply_one(NllBackward(ignore), {gradients[0], classes.get(), w.get()}, dx)};
            });
    return Loss({made[0], options.reduction == Reduction::mean ? made[1] : Tensor()});
}

}  // namespace

Loss NllLoss::operator()(const Tensor& input, const Tensor& target) const {
    return nll("nll_loss", input, target, options);
}

Loss CrossEntropyLoss::operator()(const Tensor& input, const Tensor& target) const {
    checks::floating("cross_entropy", "input", input);
    checks::dims("cross_entropy", "input", input, 2, "a batch of rows, (N, C)");
    return nll("cross_entropy", log_softmax(input, 1), target, options);
}

Loss MseLoss::operator()(const Tensor& input, const Tensor& target) const {
    constexpr const char* name = "mse_loss";
    checks::floating(name, "input", input);
    checks::floating(name, "target", target);
    checks::same_dtype(name, "target", target, input);
    if (!(input.shape() == target.shape()))
        throw InvalidArgument(fmt::format("mse_loss: input {} and target {} must be of one shape", input.shape().str(),
                                          target.shape().str()));
    const Tensor numerator = apply_one(SquaredErrorForward(), {input, target}, shaped(input, {}));
    if (needs_tape({input, target}))
        put_on_tape(name, {input, target}, {numerator},
                    [a = SavedTensor(input, name), b = SavedTensor(target, name), dx = like(input),
                     input_wanted = input.requires_grad(),
                     target_wanted = target.requires_grad()](const std::vector<Tensor>& gradients) {
                        const Tensor da = apply_one(SquaredErrorBackward(), {gradients[0], a.get(), b.get()}, dx);
                        return std::vector<Tensor>{input_wanted ? da : Tensor(), target_wanted ? neg(da) : Tensor()};
                    });
    Loss::Term term{numerator, {}, 1};
    if (reduction == Reduction::mean)
        term.weight = Tensor::full({}, static_cast<double>(input.numel()), input.dtype(), input.device());
    return Loss(std::move(term));
}

}  // namespace lockstep
