#include "lockstep/ops/dice.h"

#include <fmt/format.h>

#include <vector>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/internal/checked_args.h"
#include "lockstep/ops/internal/tensor_operations.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/record.h"

namespace lockstep {

namespace {

/// Masks and their predictions, both (N, C, positions ...) and floating.
struct Masks {
    Tensor predicted, target;
    Tensor kept;  ///< (N, 1, positions ...): 1, or 0 for ignored positions; undefined: all count
};

/// Class numbers as a mask for each class.
Tensor masks_of_classes(const Tensor& classes, const Tensor& like_input) {
    Shape shape = like_input.shape();
    if (shape[1] == 1) return tagged(classes.to(like_input.dtype()).reshape(shape), classes.is_batch());
    return apply_one(OneHot{1}, {classes}, shaped(like_input, shape, classes.is_batch()));
}

/// f16 and bf16 cannot represent the number of positions.
Tensor counted_in_f32(const Tensor& x) { return is_half_type(x.dtype()) ? x.to(DType::f32) : x; }

Masks take_masks(const char* name, const Tensor& given_input, const Tensor& given_target, double epsilon,
                 std::optional<std::int64_t> ignore_index) {
    const Tensor given = counted_in_f32(given_input), target = counted_in_f32(given_target);
    if (given.dims() != 3 && given.dims() != 4)
        throw InvalidArgument(fmt::format("{}: input has {} dimensions, {}; expected (N, C, H, W) or (N, H, W)", name,
                                          given.dims(), given.shape().str()));
    if (!(epsilon >= 0))
        throw InvalidArgument(fmt::format("{}: invalid epsilon ({}); expected 0 or more", name, epsilon));
    const bool single = given.dims() == 3;
    const Tensor input = single ? given.unsqueeze(1) : given;
    if (target.dtype() == DType::i64) {
        Shape positions = input.shape();
        positions.erase(1);
        if (!(target.shape() == positions))
            throw InvalidArgument(
                fmt::format("{}: target {} does not match input {}; expected {}, a class for each position, or a mask "
                            "for each class of the input's shape and dtype",
                            name, target.shape().str(), given.shape().str(), positions.str()));
        if (!ignore_index) return {input, masks_of_classes(target, input), {}};
        // Small integers are exact in f32. `kept` is 0 at the ignored class, which is treated as class 0, and 1
        // elsewhere.
        const Tensor numbers = target.to(input.dtype()),
                     kept = sign(square(numbers - static_cast<double>(*ignore_index)));
        return {input, masks_of_classes((numbers * kept).to(DType::i64), input), kept.unsqueeze(1)};
    }
    if (ignore_index)
        throw InvalidArgument(fmt::format("{}: ignore_index with a target of dtype {}; expected classes (i64)", name,
                                          name_of(target.dtype())));
    if (!(target.shape() == given.shape()) || target.dtype() != given.dtype())
        throw InvalidArgument(fmt::format(
            "{}: target {} of dtype {} does not match input {} of dtype {}; expected the input's shape and dtype, or "
            "classes of dtype i64",
            name, target.shape().str(), name_of(target.dtype()), given.shape().str(), name_of(given.dtype())));
    return {input, single ? target.unsqueeze(1) : target, {}};
}

/// The classes that count, in the last dimension.
Tensor counted_classes(const Tensor& x, bool include_background) {
    const std::int64_t classes = x.size(-1);
    const bool all = include_background || classes == 1;
    return all ? x : tagged(x.slice(-1, 1, classes), x.is_batch());
}

/// Dice of all classes according to the options: a scalar, or (N) per image.
Tensor coefficients(Masks masks, const DiceOptions& options) {
    if (masks.kept.defined()) {
        masks.predicted = masks.predicted * masks.kept;
        masks.target = masks.target * masks.kept;
    }
    const Dims dims = options.over == DiceOver::image ? Dims{2, 3} : Dims{0, 2, 3};
    Tensor common = sum(masks.predicted * masks.target, dims),
           both = sum(masks.predicted, dims) + sum(masks.target, dims);
    if (options.over == DiceOver::batch) {
        const std::vector<Tensor> sums = sum_over_shards({common, both});
        common = sums[0];
        both = sums[1];
    }
    if (options.pool_classes) {
        common = sum(counted_classes(common, options.include_background), {-1});
        both = sum(counted_classes(both, options.include_background), {-1});
        return (common * 2 + options.epsilon) / (both + options.epsilon);
    }
    return mean(counted_classes((common * 2 + options.epsilon) / (both + options.epsilon), options.include_background),
                -1);
}

}  // namespace

Loss DiceLoss::operator()(const Tensor& first, const Tensor& second) const {
    constexpr const char* name = "dice_loss";
    const ApiScope bringing(name);
    const OperandDevice device(first, second);
    const CheckedArgs call(name,
                           {arg::floating("input", device.moved(first)), arg::any("target", device.moved(second))});
    const Tensor loss =
        1 - coefficients(take_masks(name, call[0], call[1], options.epsilon, options.ignore_index), options);
    // The loss weights shards and microbatches by rows; the dice of a whole batch is equal on all shards.
    const auto rows = static_cast<double>(call[0].size(0));
    const Tensor numerator = options.over == DiceOver::image ? sum(loss) : loss * rows;
    return Loss({numerator, Tensor::full({}, rows, numerator.dtype(), numerator.device()), 1});
}

Tensor dice_score(const Tensor& logits, const Tensor& given_target, double epsilon,
                  std::optional<std::int64_t> ignore_index) {
    constexpr const char* name = "dice_score";
    const NoGrad no_grad;
    const ApiScope bringing(name);
    const OperandDevice device(logits, given_target);
    const CheckedArgs call(
        name, {arg::floating("input", device.moved(logits)), arg::any("target", device.moved(given_target))});
    Masks masks = take_masks(name, call[0], call[1], epsilon, ignore_index);
    masks.predicted = masks.predicted.size(1) > 1 ? masks_of_classes(argmax(masks.predicted, 1), masks.predicted)
                                                  : relu(sign(sigmoid(masks.predicted) - 0.5));
    return coefficients(masks, {.over = DiceOver::image, .include_background = false, .epsilon = epsilon});
}

}  // namespace lockstep
