// Scores of predicted masks.
#pragma once

#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "lockstep/ops/dice.h"
#include "lockstep/ops/functional.h"
#include "lockstep/ops/summary.h"
#include "lockstep/parallel/data/segmentation_folder.h"
#include "lockstep/parallel/loader.h"
#include "lockstep/runtime/autograd.h"

namespace unet {

/// Calls body(row, logits, masks) for the batches of `loader`, with the part of this process: its first row in the
/// loader, logits and masks on their device. In evaluation mode; the model's own mode is restored.
template <class Model, class Data, class Body>
void for_each_part(Model& model, lockstep::Loader<Data>& loader, Body body) {
    const lockstep::NoGrad no_grad;
    const lockstep::detail::EvaluationScope evaluation(model.module());
    std::int64_t begun = 0;
    for (auto& [images, masks] : loader.epoch(0)) {
        const lockstep::Tensor logits = model.forward(images);
        const lockstep::ShardRange held = images.held().among(images.cut().present);
        if (!held.empty())
            body(begun + images.cut().first_row(held.first), logits, masks.gathered().to(logits.device()));
        begun += images.rows();
    }
}

/// Dice of every image of `loader`, by row, for this process's images. `ignores`: whether pixels of ignored_class are
/// excluded.
template <class Model, class Data>
std::map<std::int64_t, double> dice_of_images(Model& model, lockstep::Loader<Data>& loader, bool ignores = false) {
    const std::optional<std::int64_t> ignored = ignores ? std::optional(lockstep::ignored_class) : std::nullopt;
    std::map<std::int64_t, double> dice;
    for_each_part(model, loader, [&](std::int64_t row, const lockstep::Tensor& logits, const lockstep::Tensor& masks) {
        for (const float value : lockstep::dice_score(logits, masks, 1e-6, ignored).template to_vector<float>())
            dice[row++] = value;
    });
    return dice;
}

/// Scores in units whose sums are bit-identical in any order.
constexpr double score_unit = 1.0 / 4294967296.0;
inline std::int64_t sum_of(const std::map<std::int64_t, double>& dice) {
    std::int64_t sum = 0;
    for (const auto& [row, value] : dice) sum += std::llround(value / score_unit);
    return sum;
}

/// The mean over all images of `loader`, of all processes. It is bit-identical for any assignment of images to
/// processes.
template <class Model, class Data>
double mean_dice(Model& model, lockstep::Loader<Data>& loader, bool ignores = false) {
    const std::int64_t sum = model.engine().sum_over_ranks(sum_of(dice_of_images(model, loader, ignores)));
    return static_cast<double>(sum) * score_unit / static_cast<double>(loader.rows());
}

/// Pixels of one class.
struct Pixels {
    std::int64_t common = 0;  ///< pixels in both masks
    std::int64_t found = 0, there = 0;

    double dice() const { return 2.0 * static_cast<double>(common) / static_cast<double>(found + there); }
    double iou() const { return static_cast<double>(common) / static_cast<double>(found + there - common); }
    bool occurs() const { return found + there > 0; }
};

/// Pixel counts of an image by class. `is_number`: no logit is NaN or infinite.
struct ImageScore {
    std::vector<Pixels> classes;
    bool is_number = true;

    /// The mean over the classes except the background, as dice_score computes it; NaN unless is_number.
    double dice() const {
        if (!is_number) return std::nan("");
        constexpr double epsilon = 1e-6;
        double sum = 0;
        for (std::size_t c = 1; c < classes.size(); ++c)
            sum += (2.0 * static_cast<double>(classes[c].common) + epsilon) /
                   (static_cast<double>(classes[c].found + classes[c].there) + epsilon);
        return sum / static_cast<double>(classes.size() - 1);
    }
};

/// Counts of pixels in every image of `loader`, by row, for this process's images. A network of a single class has two
/// here. Pixels of ignored_class are excluded.
template <class Model, class Data>
std::map<std::int64_t, ImageScore> scores_of_images(Model& model, lockstep::Loader<Data>& loader) {
    std::map<std::int64_t, ImageScore> scores;
    for_each_part(model, loader, [&](std::int64_t row, const lockstep::Tensor& logits, const lockstep::Tensor& masks) {
        const bool single = logits.size(1) == 1;
        const auto classes = static_cast<std::size_t>(single ? 2 : logits.size(1));
        std::vector<std::int64_t> found;
        if (single)
            for (const float probability : lockstep::sigmoid(logits).template to_vector<float>())
                found.push_back(probability > 0.5F ? 1 : 0);
        else
            found = lockstep::argmax(logits, 1).template to_vector<std::int64_t>();
        const auto there = masks.template to_vector<std::int64_t>();
        const auto positions = static_cast<std::size_t>(masks.size(1) * masks.size(2));
        std::size_t at = 0;
        for (const float zero : lockstep::sum(logits * 0.0, {1, 2, 3}).template to_vector<float>()) {
            ImageScore score{std::vector<Pixels>(classes), zero == 0};
            for (std::size_t i = 0; i < positions; ++i, ++at) {
                if (there[at] == lockstep::ignored_class) continue;
                ++score.classes[static_cast<std::size_t>(found[at])].found;
                ++score.classes[static_cast<std::size_t>(there[at])].there;
                if (found[at] == there[at]) ++score.classes[static_cast<std::size_t>(there[at])].common;
            }
            scores.emplace(row++, std::move(score));
        }
    });
    return scores;
}

}  // namespace unet
