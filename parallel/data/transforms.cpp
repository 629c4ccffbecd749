#include "lockstep/parallel/data/transforms.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/operands.h"

namespace lockstep {

namespace {

/// Height and width of the planes (height, width) that a row's tensors consist of.
struct PlaneExtent {
    std::int64_t height = 0, width = 0;
    bool operator==(const PlaneExtent&) const = default;
};

std::string described_tensor(const Tensor& tensor) {
    if (!tensor.defined()) return "undefined";
    if (!tensor.device().is_host()) return fmt::format("on {}", tensor.device().str());
    return fmt::format("{} {}", name_of(tensor.dtype()), tensor.shape().str());
}

bool has_planes(const Tensor& tensor) { return tensor.defined() && tensor.device().is_host() && tensor.dims() >= 2; }

PlaneExtent extent_of(const Tensor& tensor) { return {tensor.size(tensor.dims() - 2), tensor.size(tensor.dims() - 1)}; }

/// The common extent of image and masks.
PlaneExtent common_extent(const char* who, std::span<const Tensor> row) {
    if (!has_planes(row[0]) || row[0].numel() == 0)
        throw InvalidArgument(fmt::format("{}: the image is {}; expected a host tensor (..., height, width)", who,
                                          described_tensor(row[0])));
    const PlaneExtent extent = extent_of(row[0]);
    for (std::size_t i = 1; i < row.size(); ++i)
        if (has_planes(row[i]) && extent_of(row[i]) != extent)
            throw InvalidArgument(
                fmt::format("{}: the image is {}, tensor {} of the row {}; expected the same height and width in the "
                            "last two dimensions",
                            who, described_tensor(row[0]), i, described_tensor(row[i])));
    return extent;
}

std::byte* writable_bytes_of(const Tensor& fresh) { return static_cast<std::byte*>(first_element(fresh)); }

/// Replaces every plane (height, width) of image and masks by one of the extent `to`, which `make_row(line of the new
/// plane, its first byte, the old plane, bytes of an element)` fills line by line.
template <class MakeLine>
void replace_planes(std::span<Tensor> row, PlaneExtent from, PlaneExtent to, MakeLine&& make_line) {
    for (Tensor& tensor : row) {
        if (!has_planes(tensor)) continue;
        const Tensor source = tensor.detach().contiguous();
        Shape shape = source.shape();
        shape[shape.dims() - 2] = to.height;
        shape[shape.dims() - 1] = to.width;
        const Tensor result = Tensor::empty(shape, source.dtype());
        const std::size_t element = size_of(source.dtype());
        const auto old_plane = static_cast<std::size_t>(from.height * from.width) * element;
        const auto line = static_cast<std::size_t>(to.width) * element;
        const std::byte* read = detail::first_byte(source);
        std::byte* write = writable_bytes_of(result);
        for (std::int64_t left = source.numel() / (from.height * from.width); left > 0; --left, read += old_plane)
            for (std::int64_t y = 0; y < to.height; ++y, write += line) make_line(y, write, read, element);
        tensor = result;
    }
}

void crop_planes(std::span<Tensor> row, PlaneExtent from, PlaneExtent to, std::int64_t top, std::int64_t left) {
    replace_planes(row, from, to, [&](std::int64_t y, std::byte* line, const std::byte* plane, std::size_t element) {
        std::memcpy(line, plane + static_cast<std::size_t>((top + y) * from.width + left) * element,
                    static_cast<std::size_t>(to.width) * element);
    });
}

template <class Element>
void reverse_line(const std::byte* from, std::byte* to, std::int64_t count) {
    const auto* first = reinterpret_cast<const Element*>(from);
    std::reverse_copy(first, first + count, reinterpret_cast<Element*>(to));
}

void flip_line(const std::byte* from, std::byte* to, std::int64_t count, std::size_t element) {
    switch (element) {
        case 1: return reverse_line<std::uint8_t>(from, to, count);
        case 2: return reverse_line<std::uint16_t>(from, to, count);
        case 4: return reverse_line<std::uint32_t>(from, to, count);
        default: return reverse_line<std::uint64_t>(from, to, count);
    }
}

void require_probability(const char* who, double probability) {
    if (!(probability >= 0 && probability <= 1))
        throw InvalidArgument(fmt::format("{}: a probability of {}; expected 0 to 1", who, probability));
}

void require_crop(const char* who, std::int64_t height, std::int64_t width) {
    if (height < 1 || width < 1)
        throw InvalidArgument(fmt::format("{}: a crop of ({}, {}); expected at least one pixel", who, height, width));
}

/// The extent of the row, after checking that the crop fits.
PlaneExtent extent_for_crop(const char* who, std::span<const Tensor> row, PlaneExtent crop) {
    const PlaneExtent extent = common_extent(who, row);
    if (crop.height > extent.height || crop.width > extent.width)
        throw InvalidArgument(fmt::format("{}: Required crop size ({}, {}) is larger than input image size ({}, {})",
                                          who, crop.height, crop.width, extent.height, extent.width));
    return extent;
}

/// Half of it, rounded to even as in Python.
std::int64_t half_to_even(std::int64_t room) { return room / 2 + (room % 4 == 3 ? 1 : 0); }

Tensor scaled_image(const Tensor& image) {
    const std::int64_t height = image.size(0), width = image.size(1), channels = image.dims() == 3 ? image.size(2) : 1;
    const Tensor source = image.detach().contiguous();
    const Tensor result = Tensor::empty({channels, height, width});
    const auto* from = reinterpret_cast<const std::uint8_t*>(detail::first_byte(source));
    auto* to = reinterpret_cast<float*>(writable_bytes_of(result));
    const std::int64_t pixels = height * width;
    for (std::int64_t channel = 0; channel < channels; ++channel)
        for (std::int64_t pixel = 0; pixel < pixels; ++pixel)
            *to++ = static_cast<float>(from[pixel * channels + channel]) / 255.0f;
    return result;
}

Tensor class_indices(const Tensor& mask) {
    const Tensor source = mask.detach().contiguous();
    const Tensor result = Tensor::empty(source.shape(), DType::i64);
    const auto* from = reinterpret_cast<const std::uint8_t*>(detail::first_byte(source));
    std::copy_n(from, source.numel(), reinterpret_cast<std::int64_t*>(writable_bytes_of(result)));
    return result;
}

}  // namespace

void ToTensor::apply(std::span<Tensor> row, RowContext&) const {
    const Tensor& image = row[0];
    if (!has_planes(image) || image.dims() > 3 || image.dtype() != DType::u8)
        throw InvalidArgument(fmt::format(
            "ToTensor: the image is {}; expected a host tensor u8 (height, width, channels) or (height, width)",
            described_tensor(image)));
    row[0] = scaled_image(image);
    for (Tensor& mask : row.subspan(1))
        if (has_planes(mask) && mask.dims() == 2 && mask.dtype() == DType::u8) mask = class_indices(mask);
}

Normalize::Normalize(const std::vector<double>& mean, const std::vector<double>& deviation)
    : mean_(mean.begin(), mean.end()), deviation_(deviation.begin(), deviation.end()) {
    if (mean.empty() || mean.size() != deviation.size())
        throw InvalidArgument(
            fmt::format("Normalize: {} means and {} deviations; expected one of each for every channel", mean.size(),
                        deviation.size()));
    for (std::size_t i = 0; i < mean_.size(); ++i)
        if (!std::isfinite(mean_[i]) || !std::isfinite(deviation_[i]) || !(deviation_[i] > 0))
            throw InvalidArgument(fmt::format(
                "Normalize: mean {} and deviation {} of channel {}; expected finite numbers and a positive deviation",
                mean[i], deviation[i], i));
}

void Normalize::apply(std::span<Tensor> row, RowContext&) const {
    mark_.require("Normalize");
    const Tensor& image = row[0];
    if (!has_planes(image) || image.dims() != 3 || image.dtype() != DType::f32)
        throw InvalidArgument(fmt::format(
            "Normalize: the image is {}; expected a host tensor f32 (channels, height, width), as ToTensor returns",
            described_tensor(image)));
    const auto channels = static_cast<std::size_t>(image.size(0));
    if (mean_.size() != 1 && mean_.size() != channels)
        throw InvalidArgument(fmt::format("Normalize: {} means for an image {}; expected one, or one for every channel",
                                          mean_.size(), image.shape().str()));
    const Tensor source = image.detach().contiguous();
    const Tensor result = Tensor::empty(source.shape());
    const auto* from = reinterpret_cast<const float*>(detail::first_byte(source));
    auto* to = reinterpret_cast<float*>(writable_bytes_of(result));
    const std::int64_t pixels = image.size(1) * image.size(2);
    for (std::size_t channel = 0; channel < channels; ++channel) {
        const float mean = mean_[mean_.size() == 1 ? 0 : channel];
        const float deviation = deviation_[deviation_.size() == 1 ? 0 : channel];
        for (std::int64_t pixel = 0; pixel < pixels; ++pixel) *to++ = (*from++ - mean) / deviation;
    }
    row[0] = result;
}

CenterCrop::CenterCrop(std::int64_t height, std::int64_t width) : height_(height), width_(width) {
    require_crop("CenterCrop", height, width);
}

void CenterCrop::apply(std::span<Tensor> row, RowContext&) const {
    const PlaneExtent to{height_, width_}, from = extent_for_crop("CenterCrop", row, to);
    crop_planes(row, from, to, half_to_even(from.height - to.height), half_to_even(from.width - to.width));
}

RandomCrop::RandomCrop(std::int64_t height, std::int64_t width) : height_(height), width_(width) {
    require_crop("RandomCrop", height, width);
}

void RandomCrop::apply(std::span<Tensor> row, RowContext& context) const {
    const PlaneExtent to{height_, width_}, from = extent_for_crop("RandomCrop", row, to);
    const std::int64_t top = context.integer(from.height - to.height + 1);
    crop_planes(row, from, to, top, context.integer(from.width - to.width + 1));
}

RandomHorizontalFlip::RandomHorizontalFlip(double probability) : probability_(probability) {
    require_probability("RandomHorizontalFlip", probability);
}

void RandomHorizontalFlip::apply(std::span<Tensor> row, RowContext& context) const {
    const PlaneExtent extent = common_extent("RandomHorizontalFlip", row);
    if (!context.flip(probability_)) return;
    replace_planes(
        row, extent, extent, [&](std::int64_t y, std::byte* line, const std::byte* plane, std::size_t element) {
            flip_line(plane + static_cast<std::size_t>(y * extent.width) * element, line, extent.width, element);
        });
}

RandomVerticalFlip::RandomVerticalFlip(double probability) : probability_(probability) {
    require_probability("RandomVerticalFlip", probability);
}

void RandomVerticalFlip::apply(std::span<Tensor> row, RowContext& context) const {
    const PlaneExtent extent = common_extent("RandomVerticalFlip", row);
    if (!context.flip(probability_)) return;
    replace_planes(row, extent, extent,
                   [&](std::int64_t y, std::byte* line, const std::byte* plane, std::size_t element) {
                       const std::int64_t mirrored = extent.height - 1 - y;
                       std::memcpy(line, plane + static_cast<std::size_t>(mirrored * extent.width) * element,
                                   static_cast<std::size_t>(extent.width) * element);
                   });
}

}  // namespace lockstep
