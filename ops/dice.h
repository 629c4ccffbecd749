// Dice: overlap of probabilities, or classes, with the true masks, as a loss and as a score. The dice of a class is (2
// |A.B| + epsilon) / (|A| + |B| + epsilon), where A are probabilities (or ones and zeros) and B is the true mask.
#pragma once

#include <cstdint>
#include <optional>

#include "lockstep/ops/loss.h"

namespace lockstep {

/// The images over which |A.B|, |A| and |B| of a class are summed.
enum class DiceOver : std::uint8_t {
    batch,  ///< all images of all shards: gradients are those of the whole batch on one device
    shard,  ///< the images of a shard; the loss is the mean over shards, each counted by its rows
    image,  ///< every image by itself; the loss is the mean over images
};

/// Options of dice_loss.
struct DiceOptions {
    DiceOver over = DiceOver::batch;
    bool include_background = true;  ///< class 0 counts; always true if it is the only class
    double epsilon = 1e-6;
    /// Positions of this class are ignored; the target must hold classes (i64).
    std::optional<std::int64_t> ignore_index = std::nullopt;
    /// One dice over all classes: |A.B|, |A| and |B| are also summed over the classes. The default is the mean over
    /// classes.
    bool pool_classes = false;
};

/// 1 - dice, averaged over the classes. input: probabilities (N, C, H, W), from softmax over dimension 1 or from
/// sigmoid, or (N, H, W) of a single class. target: of that shape and dtype, or i64 (N, H, W) with the class of every
/// position, in 0..C-1 (with a single class: 0 or 1). A function object like the other losses. Losses can be
/// added:
///
///     cross_entropy(logits, masks) + dice_loss(softmax(logits, 1), masks)
/// In steps with several microbatches, "batch" is the microbatch, and the loss is their mean by rows.
struct DiceLoss {
    DiceOptions options;
    Loss operator()(const Tensor& input, const Tensor& target) const;
};
inline const DiceLoss dice_loss{};

/// Dice of every image, averaged over the classes without the background, or that of the only class: (N). Not
/// differentiable. logits (N, C, H, W): the largest one is the class of a position. For a single class, (N, 1, H, W) or
/// (N, H, W), a position belongs to it if sigmoid exceeds 0.5. target and ignore_index as for DiceLoss.
Tensor dice_score(const Tensor& logits, const Tensor& target, double epsilon = 1e-6,
                  std::optional<std::int64_t> ignore_index = std::nullopt);

}  // namespace lockstep
