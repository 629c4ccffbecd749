// What U-Net is trained with: cross-entropy plus dice, or, of a single class, their binary forms.
#pragma once

#include "lockstep/ops/dice.h"
#include "lockstep/ops/functional.h"
#include "lockstep/ops/loss.h"

namespace unet {

/// logits (N, C, H, W) and the class of every position, i64 (N, H, W). Dice is that of the probabilities over the whole
/// batch, averaged over all classes.
struct SegmentationLoss {
    lockstep::Loss operator()(const lockstep::Tensor& logits, const lockstep::Tensor& masks) const {
        if (logits.size(1) > 1)
            return lockstep::cross_entropy(logits, masks) + lockstep::dice_loss(lockstep::softmax(logits, 1), masks);
        const lockstep::Tensor only = logits.squeeze(1), there = masks.to(lockstep::DType::f32);
        return lockstep::binary_cross_entropy_with_logits(only, there) +
               lockstep::dice_loss(lockstep::sigmoid(only), there);
    }
};

}  // namespace unet
