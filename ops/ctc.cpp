// Connectionist temporal classification: the probability of all alignments of a sequence of labels with longer
// sequences of predictions, in steps over the positions.
#include <fmt/format.h>

#include <limits>
#include <vector>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/internal/checked_args.h"
#include "lockstep/ops/internal/loss_terms.h"
#include "lockstep/ops/loss.h"
#include "lockstep/runtime/error.h"

namespace lockstep {

namespace {

constexpr const char* ctc_name = "ctc_loss";
/// Logarithm of the probability of what cannot happen: finite, so that no difference is NaN.
constexpr double never = -1e30;

Tensor log_of_sum(const std::vector<Tensor>& terms) {
    Tensor most = terms[0].detach(), sum;
    for (std::size_t i = 1; i < terms.size(); ++i) most = maximum(most, terms[i].detach());
    for (const Tensor& term : terms) {
        const Tensor power = exp(term - most);
        sum = sum.defined() ? sum + power : power;
    }
    return most + log(sum);
}

/// x (N, L) moved by `distance` towards larger positions, with `value` at the beginning.
Tensor moved_on(const Tensor& x, std::int64_t distance, double value) {
    return pad(x.slice(1, 0, x.size(1) - distance), {distance, 0}, value);
}

void require_numbers(const char* what, const Tensor& x, const Shape& shape, const char* layout) {
    if (x.dtype() != DType::i64 || x.dims() != shape.dims() || x.size(0) != shape[0])
        throw InvalidArgument(fmt::format("{}: {} has dtype {} and shape {}; expected i64 {} with {} rows", ctc_name,
                                          what, name_of(x.dtype()), x.shape().str(), layout, shape[0]));
}

}  // namespace

Loss CtcLoss::operator()(const Tensor& log_probs, const Tensor& targets, const Tensor& input_lengths,
                         const Tensor& target_lengths) const {
    const OperandDevice device(log_probs, targets);
    const CheckedArgs call(
        ctc_name, {arg::floating("log_probs", device.moved(log_probs)), arg::any("targets", device.moved(targets)),
                   arg::any("input_lengths", device.moved(input_lengths)),
                   arg::any("target_lengths", device.moved(target_lengths))});
    checks::dims(ctc_name, "log_probs", call[0], 3, "(N, T, C)");
    const std::int64_t rows = call[0].size(0), length = call[0].size(1), classes = call[0].size(2);
    require_numbers("targets", call[1], {rows, 0}, "(N, S)");
    require_numbers("input_lengths", call[2], {rows}, "(N)");
    require_numbers("target_lengths", call[3], {rows}, "(N)");
    if (options.blank < 0 || options.blank >= classes)
        throw InvalidArgument(
            fmt::format("{}: invalid blank ({}); expected a class from 0 to {}", ctc_name, options.blank, classes - 1));
    if (length < 1)
        throw InvalidArgument(fmt::format("{}: log_probs {} has no positions; expected T of at least 1", ctc_name,
                                          call[0].shape().str()));
    const Tensor x = tagged(widened(call[0]), call[0].is_batch());
    const Tensor in_length = call[2].unsqueeze(1), label_length = call[3].unsqueeze(1);

    // Labels with a blank before and after each: (N, 2 S + 1).
    const auto blank = static_cast<double>(options.blank);
    const Tensor labels = pad(stack({full_like(call[1], blank), call[1]}, 2).flatten(1), {0, 1}, blank);
    const std::int64_t states = labels.size(1);
    const Tensor emitted = gather(x, 2, tagged(labels.unsqueeze(1).expand({rows, length, states}), labels.is_batch()));
    // A blank may be omitted between different labels.
    const Tensor skips =
        states < 3 ? Tensor() : logical_and(ne(labels, options.blank), ne(labels, moved_on(labels, 2, blank)));

    const auto at = [&](std::int64_t position) { return emitted.select(1, position); };
    Tensor paths = at(0);
    if (states > 2) paths = pad(paths.slice(1, 0, 2), {0, states - 2}, never);
    for (std::int64_t position = 1; position < length; ++position) {
        std::vector<Tensor> from;
        from.reserve(3);
        from.push_back(paths);
        if (states > 1) from.push_back(moved_on(paths, 1, never));
        if (states > 2) from.push_back(where(skips, moved_on(paths, 2, never), never));
        paths = where(in_length > position, log_of_sum(from) + at(position), paths);
    }
    const Tensor last = label_length * 2;
    const Tensor before = where(last > 0, last - 1, 0);
    const Tensor ends_in_label = where(last > 0, take_along_dim(paths, before, 1), never);
    Tensor costs = neg(log_of_sum({take_along_dim(paths, last, 1), ends_in_label}));
    const double impossible = options.zero_infinity ? 0 : std::numeric_limits<double>::infinity();
    costs = where(costs > -never / 10, impossible, costs);
    // Reports input lengths beyond T as indices out of range.
    costs = costs + take_along_dim(full_like(x.select(2, 0), 0), in_length - 1, 1);
    if (options.reduction == Reduction::mean)
        costs = costs / where(label_length > 1, label_length, 1).to(costs.dtype());
    return reduced(costs, rows, options.reduction, call[0].dtype());
}

}  // namespace lockstep
