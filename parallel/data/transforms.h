// Transforms of rows, after those of torchvision: functions of a row, the tuple of tensors that a data set returns, and
// of its RowContext, from which they draw. `Transformed` is a data set whose rows go through one:
//
//     ls::Transformed train(photos, ls::Compose(ls::ToTensor(), ls::RandomCrop(160, 240), ls::RandomHorizontalFlip(),
//                                               ls::Normalize({0.5, 0.5, 0.5}, {0.2, 0.2, 0.2})));
//
// Here the first tensor of a row is the image. Crops and flips draw once for a row and act on every tensor of two or
// more dimensions (..., height, width), so on image and mask alike; these must be of one size (InvalidArgument).
// Tensors with fewer dimensions, as labels, stay as they are. They return tensors of their own and write to none they
// are given.
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
#include "lockstep/parallel/data/row_context.h"

namespace lockstep {

namespace detail {

/// A transform of all tensors of a row, however many: `derived.apply(tensors, context)`.
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

/// Transforms one after another: torchvision.transforms.Compose. Any callable of (row, RowContext&) that returns a row
/// will do.
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

/// The rows of a data set, transformed. `transform` is called from several threads at once. A row keeps its RowContext.
template <class Data, class Transform>
class Transformed {
    static_assert(Dataset<Data>, "a data set has size() and get(row) that returns a tuple of tensors");

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

/// Image u8 (height, width, channels), or (height, width), to f32 (channels, height, width) in [0, 1], as
/// torchvision's; of the other tensors every u8 (height, width), a mask, to i64 of the same values, classes as
/// cross_entropy takes them. Throws InvalidArgument for another image.
class ToTensor : public detail::RowTransform<ToTensor> {
public:
    void apply(std::span<Tensor> row, RowContext& context) const;
};

/// Image f32 (channels, height, width) to (image - mean[channel]) / deviation[channel]; one number of each is for all
/// channels. Masks stay.
class Normalize : public detail::RowTransform<Normalize> {
public:
    /// Throws InvalidArgument for lists that are empty or of different lengths, numbers that are not finite, and
    /// deviations that are not positive; when it is called, for another image.
    Normalize(const std::vector<double>& mean, const std::vector<double>& deviation);
    void apply(std::span<Tensor> row, RowContext& context) const;

private:
    std::vector<float> mean_, deviation_;
};

/// The part in the middle, where torchvision has it. Throws InvalidArgument for a size below 1 and, when it is called,
/// for rows that are smaller (torchvision pads them).
class CenterCrop : public detail::RowTransform<CenterCrop> {
public:
    CenterCrop(std::int64_t height, std::int64_t width);
    void apply(std::span<Tensor> row, RowContext& context) const;

private:
    std::int64_t height_, width_;
};

/// A part of that size from anywhere, all places alike. Throws as CenterCrop.
class RandomCrop : public detail::RowTransform<RandomCrop> {
public:
    RandomCrop(std::int64_t height, std::int64_t width);
    void apply(std::span<Tensor> row, RowContext& context) const;

private:
    std::int64_t height_, width_;
};

/// Left and right exchanged, with that probability. Throws InvalidArgument for one outside [0, 1].
class RandomHorizontalFlip : public detail::RowTransform<RandomHorizontalFlip> {
public:
    explicit RandomHorizontalFlip(double probability = 0.5);
    void apply(std::span<Tensor> row, RowContext& context) const;

private:
    double probability_;
};

/// Above and below exchanged, with that probability. Throws InvalidArgument for one outside [0, 1].
class RandomVerticalFlip : public detail::RowTransform<RandomVerticalFlip> {
public:
    explicit RandomVerticalFlip(double probability = 0.5);
    void apply(std::span<Tensor> row, RowContext& context) const;

private:
    double probability_;
};

}  // namespace lockstep
