#include "lockstep/parallel/data/dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "lockstep/parallel/data/idx.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/operands.h"

namespace lockstep {

namespace {

// Distinct from the ordinals of masks, which count from 0, and from that of shuffled_order.
constexpr std::uint32_t ordinal_of_keys = 0x726f776b, ordinal_of_draws = 0x726f7764;

std::uint64_t word_of(std::uint32_t upper, std::uint32_t lower) { return std::uint64_t{upper} << 32 | lower; }

}  // namespace

RowContext::RowContext(EpochKey epoch, std::int64_t row) : epoch_(epoch.epoch), row_(row) {
    StepCounters of_epoch;
    of_epoch.seed = epoch.seed;
    of_epoch.step = epoch.epoch;
    const auto bits = philox(of_epoch, ordinal_of_keys, static_cast<std::uint64_t>(row));
    state_.seed = key_ = word_of(bits[0], bits[1]);
    state_.step = word_of(bits[2], bits[3]);
}

std::uint64_t RowContext::bits() {
    const auto bits = philox(state_, ordinal_of_draws, drawn_++);
    return word_of(bits[0], bits[1]);
}

double RowContext::uniform() { return static_cast<double>(bits() >> 11) * 0x1p-53; }

double RowContext::uniform(double low, double high) {
    if (!(low <= high) || !std::isfinite(low) || !std::isfinite(high) || !std::isfinite(high - low))
        throw InvalidArgument(
            fmt::format("uniform: from {} to {}; expected finite bounds in ascending order", low, high));
    const double number = low + (high - low) * uniform();
    return number < high ? number : low;  // rounded up
}

std::int64_t RowContext::integer(std::int64_t count) {
    if (count < 1)
        throw InvalidArgument(fmt::format("integer: one of {} numbers; expected a count of at least 1", count));
    // 64 random bits scaled to `count`: each probability is off by less than 2^-64.
    __extension__ using Wide = unsigned __int128;
    return static_cast<std::int64_t>((Wide{bits()} * static_cast<std::uint64_t>(count)) >> 64);
}

bool RowContext::flip(double probability) {
    if (!(probability >= 0 && probability <= 1))
        throw InvalidArgument(fmt::format("flip: a probability of {}; expected 0 to 1", probability));
    return uniform() < probability;
}

namespace detail {

std::vector<Tensor> checked_rows(std::vector<Tensor> tensors) {
    if (tensors.empty()) throw InvalidArgument("a TensorDataset needs at least one tensor");
    for (std::size_t i = 0; i < tensors.size(); ++i) {
        Tensor& tensor = tensors[i];
        if (!tensor.defined() || tensor.is_symbolic() || tensor.dims() == 0)
            throw InvalidArgument(fmt::format("TensorDataset: tensor {} is a scalar; expected rows in dimension 0", i));
        if (!tensor.device().is_host())
            throw InvalidArgument(
                fmt::format("TensorDataset: tensor {} is on {}; expected a host tensor (to(Device::host()))", i,
                            tensor.device().str()));
        if (tensor.size(0) != tensors[0].size(0))
            throw InvalidArgument(
                fmt::format("TensorDataset: tensor 0 has {} rows, tensor {} has {}; expected the same number",
                            tensors[0].size(0), i, tensor.size(0)));
        tensor = tensor.detach().contiguous();
    }
    return tensors;
}

const std::byte* first_byte(const Tensor& contiguous) {
    return static_cast<const std::byte*>(first_element(contiguous));
}

RowField row_field(const Tensor& row) {
    if (!row.defined()) throw InvalidArgument("a dataset returned an undefined tensor for row 0");
    return {row.dtype(), row.shape()};
}

void require_same_fields(std::span<const RowField> now, std::span<const RowField> before) {
    for (std::size_t f = 0; f < before.size(); ++f)
        if (now[f].dtype != before[f].dtype || !(now[f].shape == before[f].shape))
            throw InvalidArgument(fmt::format(
                "fields() of the dataset: field {} is {} {}, but was {} {} when the loader was constructed; expected "
                "one shape for all rows",
                f, name_of(now[f].dtype), now[f].shape.str(), name_of(before[f].dtype), before[f].shape.str()));
}

void copy_row(const Tensor& row, const RowField& field, std::int64_t number, std::byte* to) {
    if (!row.defined() || !row.device().is_host() || row.dtype() != field.dtype || !(row.shape() == field.shape))
        throw InvalidArgument(fmt::format(
            "row {} of the dataset is {}, row 0 was a host tensor {} {}; expected the same for all rows", number,
            row.defined() ? fmt::format("{} {} on {}", name_of(row.dtype()), row.shape().str(), row.device().str())
                          : "undefined",
            name_of(field.dtype), field.shape.str()));
    const Tensor plain = row.detach().contiguous();
    std::memcpy(to, first_byte(plain), field.row_bytes());
}

}  // namespace detail

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
