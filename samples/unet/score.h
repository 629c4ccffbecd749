// How well a network finds masks.
#pragma once

#include <cmath>
#include <cstdint>
#include <map>
#include <vector>

#include "lockstep/ops/dice.h"
#include "lockstep/ops/summary.h"
#include "lockstep/parallel/loader.h"
#include "lockstep/runtime/autograd.h"

namespace unet {

/// Dice of every image of `loader`, by its row there, of those that this process holds. In evaluation mode; the model's
/// own mode is restored.
template <class Model, class Data>
std::map<std::int64_t, double> dice_of_images(Model& model, lockstep::Loader<Data>& loader) {
    const lockstep::NoGrad no_grad;
    const lockstep::detail::EvaluationScope evaluation(model.module());
    std::map<std::int64_t, double> dice;
    std::int64_t begun = 0;
    for (auto& [images, masks] : loader.epoch(0)) {
        const lockstep::Tensor logits = model.forward(images);
        const lockstep::ShardRange held = images.held().among(images.cut().present);
        if (!held.empty()) {
            std::int64_t row = begun + images.cut().first_row(held.first);
            const lockstep::Tensor true_masks = masks.gathered().to(logits.device());
            for (const float value : lockstep::dice_score(logits, true_masks).template to_vector<float>())
                dice[row++] = value;
        }
        begun += images.rows();
    }
    return dice;
}

/// Scores in units of which sums have the same bits in any order.
constexpr double score_unit = 1.0 / 4294967296.0;
inline std::int64_t sum_of(const std::map<std::int64_t, double>& dice) {
    std::int64_t sum = 0;
    for (const auto& [row, value] : dice) sum += std::llround(value / score_unit);
    return sum;
}

/// The mean over all images of `loader`, of all processes. Its bits do not depend on who computed what.
template <class Model, class Data>
double mean_dice(Model& model, lockstep::Loader<Data>& loader) {
    const std::int64_t sum = model.engine().sum_over_ranks(sum_of(dice_of_images(model, loader)));
    return static_cast<double>(sum) * score_unit / static_cast<double>(loader.rows());
}

}  // namespace unet
