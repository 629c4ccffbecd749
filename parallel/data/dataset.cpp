#include "lockstep/parallel/data/dataset.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>

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

}  // namespace lockstep
