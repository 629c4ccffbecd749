// Transforms of rows, modelled on torchvision. A transform is a function of a row, the tuple of tensors that a dataset
// returns, and of its RowContext, the source of its random numbers. `Transformed` is a dataset that applies one:
//
//     ls::Transformed train(photos, ls::Compose(ls::ToTensor(), ls::RandomCrop(160, 240), ls::RandomHorizontalFlip(),
//                                               ls::Normalize({0.5, 0.5, 0.5}, {0.2, 0.2, 0.2})));
//
// Here the first tensor of a row is the image. Crops and flips draw once per row and are applied to every tensor of two
// or more dimensions (..., height, width), so to image and mask alike; these must have the same size (InvalidArgument).
// Tensors with fewer dimensions, such as labels, are unchanged. Transforms return new tensors and do not write to their
// arguments.
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/parallel/data/dataset.h"
#include "lockstep/runtime/moved_from.h"

namespace lockstep {

namespace detail {

/// A transform of all tensors of a row, whatever their number: `derived.apply(tensors, context)`.
template <class Derived>
class RowTransform {
public:
    template <std::same_as<Tensor>... Tensors>
    std::tuple<Tensors...> operator()(std::tuple<Tensors...> row, RowContext& context) const {
        static_assert(sizeof...(Tensors) > 0, "a row has at least one tensor");
        return std::apply(
            [&](Tensors&... tensors) {
                std::array<Tensor, sizeof...(Tensors)> all{std::move(tensors)...};
                static_cast<const Derived&>(*this).apply(all, context);
                return std::apply([](auto&... changed) { return std::tuple<Tensors...>(std::move(changed)...); }, all);
            },
            row);
    }
};

}  // namespace detail

/// Transforms one after another: torchvision.transforms.Compose. Accepts any callable of (row, RowContext&) that
/// returns a row.
template <class... Transforms>
class Compose {
public:
    explicit Compose(Transforms... transforms) : transforms_(std::move(transforms)...) {}

    template <class Row>
    auto operator()(Row row, RowContext& context) const {
        return from<0>(std::move(row), context);
    }

private:
    template <std::size_t next, class Row>
    auto from(Row row, RowContext& context) const {
        if constexpr (next == sizeof...(Transforms))
            return row;
        else
            return from<next + 1>(std::invoke(std::get<next>(transforms_), std::move(row), context), context);
    }
    std::tuple<Transforms...> transforms_;
};

/// The rows of a dataset, transformed. `transform` is called from several threads at once. The RowContext is that of
/// the dataset's row.
template <class Data, class Transform>
class Transformed {
    static_assert(Dataset<Data>, "a dataset has size() and get(row) that returns a tuple of tensors");

public:
    Transformed(Data data, Transform transform) : data_(std::move(data)), transform_(std::move(transform)) {}

    std::int64_t size() const { return data_.size(); }
    std::int64_t origin(std::int64_t row) const { return origin_of(data_, row); }
    auto get(std::int64_t row, RowContext& context) const {
        return std::invoke(transform_, get_row(data_, row, context), context);
    }

private:
    Data data_;
    Transform transform_;
};

/// Converts the image, u8 (height, width, channels) or (height, width), to f32 (channels, height, width) in [0, 1], as
/// torchvision does. Converts every other u8 tensor (height, width), a mask, to i64 with the same values, which are
/// classes for cross_entropy. Throws InvalidArgument for another image.
class ToTensor : public detail::RowTransform<ToTensor> {
public:
    void apply(std::span<Tensor> row, RowContext& context) const;
};

/// Converts an image f32 (channels, height, width) to (image - mean[channel]) / deviation[channel]; a single number
/// applies to all channels. Masks are unchanged.
class Normalize : public detail::RowTransform<Normalize> {
public:
    /// Throws InvalidArgument for lists that are empty or of different lengths, numbers that are not finite, and
    /// deviations that are not positive. The call throws it for another image.
    Normalize(const std::vector<double>& mean, const std::vector<double>& deviation);
    void apply(std::span<Tensor> row, RowContext& context) const;

private:
    std::vector<float> mean_, deviation_;
    detail::MoveMark mark_;
};

/// Crops the centre, as torchvision does. Throws InvalidArgument for a size below 1; the call throws it for rows that
/// are smaller (torchvision pads them).
class CenterCrop : public detail::RowTransform<CenterCrop> {
public:
    CenterCrop(std::int64_t height, std::int64_t width);
    void apply(std::span<Tensor> row, RowContext& context) const;

private:
    std::int64_t height_, width_;
};

/// Crops at a position drawn uniformly. Throws as CenterCrop.
class RandomCrop : public detail::RowTransform<RandomCrop> {
public:
    RandomCrop(std::int64_t height, std::int64_t width);
    void apply(std::span<Tensor> row, RowContext& context) const;

private:
    std::int64_t height_, width_;
};

/// Flips left and right, with that probability. Throws InvalidArgument for a probability outside [0, 1].
class RandomHorizontalFlip : public detail::RowTransform<RandomHorizontalFlip> {
public:
    explicit RandomHorizontalFlip(double probability = 0.5);
    void apply(std::span<Tensor> row, RowContext& context) const;

private:
    double probability_;
};

/// Flips top and bottom, with that probability. Throws InvalidArgument for a probability outside [0, 1].
class RandomVerticalFlip : public detail::RowTransform<RandomVerticalFlip> {
public:
    explicit RandomVerticalFlip(double probability = 0.5);
    void apply(std::span<Tensor> row, RowContext& context) const;

private:
    double probability_;
};

}  // namespace lockstep
