// Dice: how well probabilities, or classes, cover the true masks, as a loss and as a score. Of a class it is
// (2 |A.B| + epsilon) / (|A| + |B| + epsilon), where A are probabilities (or ones and zeros) and B is the true mask.
#pragma once

#include <cstdint>
#include <optional>

#include "lockstep/ops/loss.h"

namespace lockstep {

/// Over what |A.B|, |A| and |B| of a class are summed.
enum class DiceOver : std::uint8_t {
    batch,  ///< all images of all shards: gradients are those of the whole batch on one device
    shard,  ///< the images of a shard; the loss is the mean over shards, each counted by its rows
    image,  ///< every image by itself; the loss is the mean over images
};

struct DiceOptions {
    DiceOver over = DiceOver::batch;
    bool include_background = true;  ///< class 0 counts; it always does where it is the only one
    double epsilon = 1e-6;
    /// Positions of this class count nothing; the target must hold classes (i64).
    std::optional<std::int64_t> ignore_index = std::nullopt;
    /// One dice over all classes: |A.B|, |A| and |B| are summed over the classes, too. The default is the mean over
    /// classes.
    bool pool_classes = false;
};

/// 1 - dice, averaged over the classes. input: probabilities (N, C, H, W), from softmax over dimension 1 or from
/// sigmoid, or (N, H, W) of a single class. target: of that shape and dtype, or i64 (N, H, W) with the class of every
/// position, in 0..C-1 (with a single class: 0 or 1). A function object, as losses are; it adds up with others:
///
///     cross_entropy(logits, masks) + dice_loss(softmax(logits, 1), masks)
///
/// In steps with several microbatches "batch" is the microbatch, and the loss their mean by rows. Not supported:
/// weights of classes.
struct DiceLoss {
    DiceOptions options;
    Loss operator()(const Tensor& input, const Tensor& target) const;
};
inline const DiceLoss dice_loss{};

/// Dice of every image, averaged over the classes without the background, or of the only class: (N). Not
/// differentiable. logits (N, C, H, W), of which the largest is the class of a position; of a single class, (N, 1, H,
/// W) or (N, H, W), it is there where sigmoid exceeds 0.5. target and ignore_index as for DiceLoss.
Tensor dice_score(const Tensor& logits, const Tensor& target, double epsilon = 1e-6,
                  std::optional<std::int64_t> ignore_index = std::nullopt);

}  // namespace lockstep
