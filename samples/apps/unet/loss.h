// The losses that U-Net is trained with: cross-entropy plus dice, or, for a single class, their binary forms.
#pragma once

#include <cstdint>
#include <optional>

#include "lockstep/ops/dice.h"
#include "lockstep/ops/functional.h"
#include "lockstep/ops/loss.h"
#include "lockstep/parallel/data/segmentation_folder.h"

namespace unet {

/// How dice of several classes is reduced to one number.
enum class DiceOf : std::uint8_t {
    classes,  ///< the mean over all classes
    pooled,   ///< one dice for all classes together, as in the PyTorch program since the end of 2022
    none      ///< cross-entropy only
};

/// logits (N, C, H, W) and the class of every position, i64 (N, H, W). Dice is that of the probabilities over the whole
/// batch.
struct SegmentationLoss {
    DiceOf dice = DiceOf::classes;
    /// Weights of the classes (C) in cross-entropy, whose mean is weighted. Undefined: equal weights.
    lockstep::Tensor class_weights = {};
    /// For a single class: the weight of pixels that belong to it (1), which is torch's pos_weight; then class_weights
    /// are 1 and that.
    lockstep::Tensor pos_weight = {};
    bool ignores = false;  ///< whether pixels of lockstep::ignored_class are excluded

    lockstep::Loss operator()(const lockstep::Tensor& logits, const lockstep::Tensor& masks) const {
        namespace ls = lockstep;
        const ls::DiceLoss dice_loss{{.ignore_index = ignores ? std::optional(ls::ignored_class) : std::nullopt,
                                      .pool_classes = dice == DiceOf::pooled}};
        if (logits.size(1) > 1) {
            const ls::Loss entropy = ls::CrossEntropyLoss{{.weight = class_weights}}(logits, masks);
            return dice == DiceOf::none ? entropy : entropy + dice_loss(ls::softmax(logits, 1), masks);
        }
        const ls::Loss entropy = ignores ? kept_entropy(logits, masks) : binary_entropy(logits, masks);
        return dice == DiceOf::none ? entropy : entropy + dice_loss(ls::sigmoid(logits.squeeze(1)), masks);
    }

private:
    lockstep::Loss binary_entropy(const lockstep::Tensor& logits, const lockstep::Tensor& masks) const {
        return lockstep::BceWithLogitsLoss{{.pos_weight = pos_weight}}(logits.squeeze(1),
                                                                       masks.to(lockstep::DType::f32));
    }
    /// The same mean over the included pixels. It is the cross-entropy of two classes with logits 0 and x.
    lockstep::Loss kept_entropy(const lockstep::Tensor& logits, const lockstep::Tensor& masks) const {
        namespace ls = lockstep;
        const ls::Tensor both = ls::cat({logits.detach() * 0.0, logits}, 1);
        const ls::Loss plain = ls::cross_entropy(both, masks);
        if (!class_weights.defined()) return plain;
        const ls::Loss weighted =
            ls::CrossEntropyLoss{{.weight = class_weights, .reduction = ls::Reduction::sum}}(both, masks);
        return ls::Loss({weighted.terms()[0].numerator, plain.terms()[0].denominator, 1});
    }
};

}  // namespace unet
