#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "lockstep/parallel/data/dataset.h"
#include "lockstep/parallel/data/idx.h"
#include "lockstep/runtime/error.h"

namespace lockstep {

namespace {

/// Throws DataError unless one file holds images and the other one the same number of labels.
void require_pair(const std::filesystem::path& image_file, const IdxHeader& images,
                  const std::filesystem::path& label_file, const IdxHeader& labels) {
    if (images.dtype != DType::u8 || images.shape.size() != 3)
        throw DataError(fmt::format(
            "{}: offset 0: images must be bytes in 3 dimensions (count, rows, columns); expected a file of MNIST",
            image_file.string()));
    if (labels.dtype != DType::u8 || labels.shape.size() != 1)
        throw DataError(fmt::format("{}: offset 0: labels must be bytes in 1 dimension; expected a file of MNIST",
                                    label_file.string()));
    if (images.shape[0] != labels.shape[0])
        throw DataError(fmt::format("{}: offset 4: {} labels, but {} has {} images; expected the same number",
                                    label_file.string(), labels.shape[0], image_file.string(), images.shape[0]));
    if (std::find(images.shape.begin(), images.shape.end(), 0) != images.shape.end())
        throw DataError(fmt::format("{}: offset 4: the file has no pixels", image_file.string()));
}

}  // namespace

Mnist::Mnist(const std::filesystem::path& directory, const MnistOptions& options) {
    if (!(options.stddev > 0) || !std::isfinite(options.stddev) || !std::isfinite(options.mean))
        throw InvalidArgument(
            fmt::format("Mnist: mean {} and deviation {}; expected finite numbers and a positive deviation",
                        options.mean, options.stddev));
    const MnistFiles files = find_mnist(directory);
    const auto& image_file = options.train ? files.train_images : files.test_images;
    const auto& label_file = options.train ? files.train_labels : files.test_labels;
    // Headers first, so that files that do not match are not decompressed.
    require_pair(image_file, read_idx_header(image_file), label_file, read_idx_header(label_file));
    IdxArray images = read_idx(image_file);
    const IdxArray labels = read_idx(label_file);
    require_pair(image_file, {images.dtype, images.shape}, label_file, {labels.dtype, labels.shape});

    auto content = std::make_shared<Content>();
    content->image = {1, images.shape[1], images.shape[2]};
    content->pixels = std::move(images.data);
    content->labels.reserve(labels.data.size());
    for (std::size_t i = 0; i < labels.data.size(); ++i) {
        const auto label = static_cast<std::int64_t>(labels.data[i]);
        if (label > 9)
            throw DataError(fmt::format("{}: offset {}: label {} of image {} is not a digit", label_file.string(),
                                        8 + i, label, i));
        content->labels.push_back(label);
    }
    for (std::size_t v = 0; v < content->value_of.size(); ++v)
        content->value_of[v] = static_cast<float>((static_cast<double>(v) / 255 - options.mean) / options.stddev);
    content_ = std::move(content);
}

std::array<RowField, 2> Mnist::fields() const {
    return {RowField{DType::f32, content().image}, RowField{DType::i64, {}}};
}

void Mnist::read(std::span<const std::int64_t> rows, std::span<std::byte* const> to) const {
    const Content& content = this->content();
    const auto pixels = static_cast<std::size_t>(content.image.numel());
    auto* image = reinterpret_cast<float*>(to[0]);
    auto* label = reinterpret_cast<std::int64_t*>(to[1]);
    for (const std::int64_t row : rows) {
        const std::byte* from = content.pixels.data() + static_cast<std::size_t>(row) * pixels;
        for (std::size_t p = 0; p < pixels; ++p) image[p] = content.value_of[static_cast<std::size_t>(from[p])];
        image += pixels;
        *label++ = content.labels[static_cast<std::size_t>(row)];
    }
}

std::tuple<Tensor, Tensor> Mnist::get(std::int64_t row) const {
    if (row < 0 || row >= size())
        throw InvalidArgument(fmt::format("Mnist: row {} of {}; rows are counted from 0", row, size()));
    std::vector<float> image(static_cast<std::size_t>(content().image.numel()));
    std::int64_t label = 0;
    std::byte* const to[] = {reinterpret_cast<std::byte*>(image.data()), reinterpret_cast<std::byte*>(&label)};
    read({&row, 1}, to);
    return {Tensor::from(image, content().image), Tensor::from(std::span<const std::int64_t>(&label, 1), {})};
}

}  // namespace lockstep
