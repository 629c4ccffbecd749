// Datasets: a number of rows that can be read in any order. A loader accepts any type with
//
//     std::int64_t size() const;
//     std::tuple<ls::Tensor, ...> get(std::int64_t row) const;
//
// `get` returns host tensors of one row, without the batch dimension, and may be called from several threads at once.
// All rows have the same shapes and dtypes. For augmentation `get` has a second parameter, `ls::RowContext&`, with the
// epoch and random numbers of the row. A type that also has `fields` and `read` (below) is read without creating a
// tensor for every row.
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/runtime/moved_from.h"
#include "lockstep/runtime/random.h"
#include "lockstep/runtime/tensor.h"

namespace lockstep {

// Context in which a dataset reads a row: the epoch, and the row's random numbers.

/// Common context of all rows of one epoch.
struct EpochKey {
    std::uint64_t seed = 0;
    std::uint64_t epoch = 0;
};

/// The second argument of a dataset's `get`, for augmentation. Its random numbers are Philox's. They depend on seed,
/// epoch, row and the number of earlier draws. They do not depend on the device, shard, rank or thread that reads the
/// row, or on its position in the order. A row that a sampler draws twice in an epoch gets the same numbers twice.
class RowContext {
public:
    RowContext(EpochKey epoch, std::int64_t row);

    std::uint64_t epoch() const { return epoch_; }
    /// The row of the underlying dataset: in a Subset, a row has the same number, and so the same random numbers.
    std::int64_t row() const { return row_; }
    /// 64 random bits, the same in every call, for seeding your own generator.
    std::uint64_t key() const { return key_; }

    /// The next 64 random bits.
    std::uint64_t bits();
    /// Uniform in [0, 1), with 53 bits.
    double uniform();
    /// Uniform in [low, high); `low` if both are equal. Throws InvalidArgument if low > high or a limit is not finite.
    double uniform(double low, double high);
    /// Uniform in 0 to count - 1. Throws InvalidArgument for a count below 1.
    std::int64_t integer(std::int64_t count);
    /// True with that probability. Throws InvalidArgument for a probability outside [0, 1].
    bool flip(double probability = 0.5);

private:
    std::uint64_t epoch_;
    std::int64_t row_;
    std::uint64_t key_;
    StepCounters state_;  ///< the row's Philox key
    std::uint64_t drawn_ = 0;
};

/// Dtype and shape of one of the tensors of a row.
struct RowField {
    DType dtype = DType::f32;
    Shape shape;  ///< shape of one row: (1, 28, 28)
    std::size_t row_bytes() const { return static_cast<std::size_t>(shape.numel()) * size_of(dtype); }
};

namespace detail {

template <class T>
concept Tuple = requires {
    std::tuple_size<std::remove_cvref_t<T>>::value;
};
template <class T>
concept Sized = requires(const T& data) {
    { data.size() } -> std::convertible_to<std::int64_t>;
};
template <class T>
concept GetsByNumber = requires(const T& data, std::int64_t row) {
    { data.get(row) } -> Tuple;
};
template <class T>
concept GetsInContext = requires(const T& data, std::int64_t row, RowContext& context) {
    { data.get(row, context) } -> Tuple;
};
template <class T>
concept HasFields = requires(const T& data) {
    { data.fields() } -> Tuple;
};
template <class T>
concept ReadsByNumber = requires(const T& data, std::span<const std::int64_t> rows, std::span<std::byte* const> to) {
    data.read(rows, to);
};
template <class T>
concept ReadsInContext = requires(const T& data, std::span<const std::int64_t> rows, std::span<std::byte* const> to,
                                  std::span<RowContext> contexts) {
    data.read(rows, to, contexts);
};

}  // namespace detail

/// A dataset that returns single rows: `get(row)` or `get(row, context)`. If both exist, the latter is called.
template <class T>
concept Dataset = detail::Sized<T> &&(detail::GetsByNumber<T> || detail::GetsInContext<T>);

/// A dataset that writes rows directly to memory. `fields()` returns an array; `read(rows, to)` writes row `rows[i]`
/// of field f to `to[f] + i * row_bytes` and may be called from several threads at once. `read(rows, to, contexts)`
/// also gets the context of `rows[i]` in `contexts[i]`; if both exist, it is the one that is called. If only `get` has
/// a context parameter, the dataset is read row by row.
template <class T>
concept RowReader = detail::Sized<T> && detail::HasFields<T> &&
    (detail::ReadsInContext<T> || (detail::ReadsByNumber<T> && !detail::GetsInContext<T>));

/// The number of `row` in the dataset underlying subsets and transforms, which determines its RowContext:
/// `data.origin(row)` if it exists, otherwise `row`.
template <class Data>
std::int64_t origin_of(const Data& data, std::int64_t row) {
    if constexpr (requires { data.origin(row); })
        return data.origin(row);
    else
        return row;
}

/// Returns a row by whichever `get` the dataset has.
template <Dataset Data>
auto get_row(const Data& data, std::int64_t row, RowContext& context) {
    if constexpr (detail::GetsInContext<Data>)
        return data.get(row, context);
    else
        return data.get(row);
}

/// Reads rows by whichever `read` the dataset has.
template <RowReader Data>
void read_rows(const Data& data, std::span<const std::int64_t> rows, std::span<std::byte* const> to,
               std::span<RowContext> contexts) {
    if constexpr (detail::ReadsInContext<Data>)
        data.read(rows, to, contexts);
    else
        data.read(rows, to);
}

namespace detail {

template <std::size_t, class T>
using repeated = T;
template <class T, class Indices>
struct TupleOf;
template <class T, std::size_t... i>
struct TupleOf<T, std::index_sequence<i...>> {
    using type = std::tuple<repeated<i, T>...>;
};
/// std::tuple of n T.
template <class T, std::size_t n>
using tuple_of = typename TupleOf<T, std::make_index_sequence<n>>::type;

/// Throws InvalidArgument for an empty list, scalars, differing numbers of rows and tensors that are not on the host.
/// Returns the tensors row-major.
std::vector<Tensor> checked_rows(std::vector<Tensor> tensors);
const std::byte* first_byte(const Tensor& contiguous);
RowField row_field(const Tensor& row);
/// Throws InvalidArgument if a dataset's fields() have changed: its `read` would write out of bounds.
void require_same_fields(std::span<const RowField> now, std::span<const RowField> before);
/// Writes the elements of `row`. Throws InvalidArgument, naming the row, if it does not match `field`.
void copy_row(const Tensor& row, const RowField& field, std::int64_t number, std::byte* to);

/// Interface of datasets for the loader.
class RowSource {
public:
    virtual ~RowSource() = default;
    virtual std::int64_t size() const = 0;
    virtual const std::vector<RowField>& fields() const = 0;
    virtual void read(std::span<const std::int64_t> rows, std::span<std::byte* const> to, EpochKey epoch) const = 0;
};

template <class Data>
constexpr std::size_t field_count() {
    if constexpr (RowReader<Data>)
        return std::tuple_size_v<std::remove_cvref_t<decltype(std::declval<const Data&>().fields())>>;
    else
        return std::tuple_size_v<decltype(get_row(std::declval<const Data&>(), 0, std::declval<RowContext&>()))>;
}

template <class Data>
class RowSourceOf final : public RowSource {
public:
    explicit RowSourceOf(Data data) : data_(std::move(data)) {
        if constexpr (RowReader<Data>) {
            for (const RowField& field : data_.fields()) fields_.push_back(field);
        } else if (size() > 0) {
            RowContext context({}, origin_of(data_, 0));
            std::apply([&](const auto&... row) { (fields_.push_back(row_field(row)), ...); },
                       get_row(data_, 0, context));
        }
    }
    std::int64_t size() const override { return data_.size(); }
    const std::vector<RowField>& fields() const override { return fields_; }
    void read(std::span<const std::int64_t> rows, std::span<std::byte* const> to, EpochKey epoch) const override {
        if constexpr (RowReader<Data>) {
            require_same_fields(data_.fields(), fields_);
            std::vector<RowContext> contexts;
            if constexpr (ReadsInContext<Data>) {
                contexts.reserve(rows.size());
                for (const std::int64_t row : rows) contexts.emplace_back(epoch, origin_of(data_, row));
            }
            read_rows(data_, rows, to, contexts);
        } else {
            for (std::size_t i = 0; i < rows.size(); ++i) {
                std::size_t f = 0;
                const auto copy = [&](const Tensor& row) {
                    copy_row(row, fields_[f], rows[i], to[f] + i * fields_[f].row_bytes());
                    ++f;
                };
                RowContext context(epoch, origin_of(data_, rows[i]));
                std::apply([&](const auto&... row) { (copy(row), ...); }, get_row(data_, rows[i], context));
            }
        }
    }

private:
    Data data_;
    std::vector<RowField> fields_;
};

}  // namespace detail

/// Rows of n tensors: torch.utils.data.TensorDataset.
template <std::size_t n>
class TensorDataset {
public:
    /// Shares the tensors (host, dimension 0 is the row). Throws InvalidArgument for scalars, differing numbers of rows
    /// and tensors on a device.
    template <std::same_as<Tensor>... Tensors>
    explicit TensorDataset(const Tensors&... tensors) : tensors_(detail::checked_rows({tensors...})) {}

    std::int64_t size() const { return tensors().front().size(0); }
    detail::tuple_of<Tensor, n> get(std::int64_t row) const { return get(row, std::make_index_sequence<n>()); }
    std::array<RowField, n> fields() const {
        std::array<RowField, n> fields;
        for (std::size_t f = 0; f < n; ++f) {
            fields[f] = {tensors()[f].dtype(), tensors()[f].shape()};
            fields[f].shape.erase(0);
        }
        return fields;
    }
    void read(std::span<const std::int64_t> rows, std::span<std::byte* const> to) const {
        const auto fields = this->fields();
        for (std::size_t f = 0; f < n; ++f) {
            const std::size_t bytes = fields[f].row_bytes();
            const std::byte* from = detail::first_byte(tensors()[f]);
            for (std::size_t i = 0; i < rows.size(); ++i)
                std::copy_n(from + static_cast<std::size_t>(rows[i]) * bytes, bytes, to[f] + i * bytes);
        }
    }

private:
    template <std::size_t... f>
    detail::tuple_of<Tensor, n> get(std::int64_t row, std::index_sequence<f...>) const {
        return {tensors()[f].select(0, row)...};
    }
    const std::vector<Tensor>& tensors() const {
        mark_.require("TensorDataset");
        return tensors_;
    }
    std::vector<Tensor> tensors_;  // row-major
    detail::MoveMark mark_;
};
template <class... Tensors>
TensorDataset(const Tensors&...) -> TensorDataset<sizeof...(Tensors)>;

/// Options of Mnist.
struct MnistOptions {
    bool train = true;  ///< true: the training set, false: the test set
    double mean = 0;    ///< pixels become (pixel / 255 - mean) / stddev
    double stddev = 1;
};

/// MNIST, or another dataset with the same file names (see find_mnist): image f32 (1, rows, columns), for MNIST (1,
/// 28, 28), and label i64 scalar in 0..9.
class Mnist {
public:
    /// Reads both files. Throws DataError if they are missing, damaged, of different lengths or have other labels,
    /// InvalidArgument for a stddev that is not positive.
    explicit Mnist(const std::filesystem::path& directory, const MnistOptions& options = {});

    std::int64_t size() const { return static_cast<std::int64_t>(content().labels.size()); }
    std::tuple<Tensor, Tensor> get(std::int64_t row) const;
    std::array<RowField, 2> fields() const;
    void read(std::span<const std::int64_t> rows, std::span<std::byte* const> to) const;

private:
    struct Content {
        std::vector<std::byte> pixels;  // size() images, row-major
        std::vector<std::int64_t> labels;
        Shape image;
        std::array<float, 256> value_of;
    };
    const Content& content() const { return detail::content_of(content_, "Mnist"); }
    std::shared_ptr<const Content> content_;  // copies share it
};

}  // namespace lockstep
