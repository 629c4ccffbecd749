// Parts of a dataset, and several datasets together, as datasets.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/parallel/data/dataset.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/moved_from.h"

namespace lockstep {

namespace detail {

/// Throws InvalidArgument, naming index and position, unless all are in 0 to size - 1.
void require_rows_of(const char* who, std::span<const std::int64_t> indices, std::int64_t size);
/// The rows of each part. Throws as `random_split`.
std::vector<std::vector<std::int64_t>> split_rows(std::int64_t size, const std::vector<std::int64_t>& lengths,
                                                  std::uint64_t seed);
std::vector<std::vector<std::int64_t>> split_rows(std::int64_t size, const std::vector<double>& fractions,
                                                  std::uint64_t seed);

/// A row of one of several datasets.
struct RowOfPart {
    std::size_t part;
    std::int64_t row;
};
/// Cumulative numbers of rows: the end of each part. Throws InvalidArgument for an empty list and a negative size.
std::vector<std::int64_t> ends_of_parts(const std::vector<std::int64_t>& sizes);
RowOfPart row_of_part(const std::vector<std::int64_t>& ends, std::int64_t row);
/// Throws InvalidArgument if the parts of a ConcatDataset have different rows.
void require_equal_fields(std::span<const RowField> first, std::span<const RowField> other);

}  // namespace detail

/// torch.utils.data.Subset: row i is row indices[i] of the dataset. The RowContext of a row is that of the dataset,
/// so augmentation does not depend on the subset. Copies, and the parts of one random_split, share the dataset.
template <class Data>
class Subset {
    static_assert(RowReader<Data> || Dataset<Data>,
                  "a dataset has size() and get(row) that returns a tuple of tensors");

public:
    /// Throws InvalidArgument for an index that is not a row of the dataset, and for a null dataset.
    Subset(Data data, std::vector<std::int64_t> indices)
        : Subset(std::make_shared<const Data>(std::move(data)), std::move(indices)) {}
    Subset(std::shared_ptr<const Data> data, std::vector<std::int64_t> indices)
        : data_(std::move(data)), indices_(std::make_shared<const std::vector<std::int64_t>>(std::move(indices))) {
        if (!data_) throw InvalidArgument("Subset: the dataset is null");
        detail::require_rows_of("Subset", *indices_, data_->size());
    }

    std::int64_t size() const { return std::ssize(indices()); }
    const Data& data() const { return detail::content_of(data_, "Subset"); }
    const std::vector<std::int64_t>& indices() const { return detail::content_of(indices_, "Subset"); }
    std::int64_t origin(std::int64_t row) const { return origin_of(data(), index(row)); }

    auto get(std::int64_t row) const requires detail::GetsByNumber<Data> { return data().get(index(row)); }
    auto get(std::int64_t row, RowContext& context) const requires detail::GetsInContext<Data> {
        return data().get(index(row), context);
    }
    auto fields() const requires RowReader<Data> { return data().fields(); }
    void read(std::span<const std::int64_t> rows, std::span<std::byte* const> to) const
        requires(RowReader<Data> && !detail::ReadsInContext<Data>) {
        data().read(indices_of(rows), to);
    }
    void read(std::span<const std::int64_t> rows, std::span<std::byte* const> to,
              std::span<RowContext> contexts) const requires detail::ReadsInContext<Data> {
        data().read(indices_of(rows), to, contexts);
    }

private:
    std::int64_t index(std::int64_t row) const {
        detail::require_rows_of("Subset", {&row, 1}, size());
        return indices()[static_cast<std::size_t>(row)];
    }
    std::vector<std::int64_t> indices_of(std::span<const std::int64_t> rows) const {
        std::vector<std::int64_t> numbers;
        numbers.reserve(rows.size());
        for (const std::int64_t row : rows) numbers.push_back(index(row));
        return numbers;
    }

    std::shared_ptr<const Data> data_;
    std::shared_ptr<const std::vector<std::int64_t>> indices_;
};

/// torch.utils.data.random_split with `generator=torch.Generator().manual_seed(seed)`: the same rows in the same order.
/// Integer `lengths` are numbers of rows. Otherwise they are fractions, rounded as in PyTorch: each part gets the floor
/// of its share, and the first parts get one each of the remaining rows. Throws InvalidArgument for lengths whose sum
/// is not the size of the dataset, and for fractions whose sum is not 1. Negative numbers, an empty list and 2^32 / 20
/// or more rows are also errors. Warns of a fraction that gives no rows.
template <class Data, class Number>
requires(std::integral<Number> || std::floating_point<Number>) std::vector<Subset<Data>> random_split(
    Data data, const std::vector<Number>& lengths, std::uint64_t seed) {
    using Length = std::conditional_t<std::integral<Number>, std::int64_t, double>;
    const auto shared = std::make_shared<const Data>(std::move(data));
    std::vector<Subset<Data>> parts;
    for (auto& rows : detail::split_rows(shared->size(), std::vector<Length>(lengths.begin(), lengths.end()), seed))
        parts.emplace_back(shared, std::move(rows));
    return parts;
}
template <class Data, class Number>
std::vector<Subset<Data>> random_split(Data data, std::initializer_list<Number> lengths, std::uint64_t seed) {
    return random_split(std::move(data), std::vector<Number>(lengths), seed);
}

/// torch.utils.data.ConcatDataset: the rows of several datasets of one type, one dataset after another. All must have
/// rows of equal shapes and dtypes. The RowContext of a row has its number in the whole dataset.
/// Copies share the datasets.
template <class Data>
class ConcatDataset {
    static_assert(RowReader<Data> || Dataset<Data>,
                  "a dataset has size() and get(row) that returns a tuple of tensors");

public:
    /// Throws InvalidArgument for an empty list, and for datasets whose `fields()` differ.
    explicit ConcatDataset(std::vector<Data> parts)
        : parts_(std::make_shared<const std::vector<Data>>(std::move(parts))) {
        std::vector<std::int64_t> sizes;
        for (const Data& part : *parts_) sizes.push_back(part.size());
        ends_ = detail::ends_of_parts(sizes);
        if constexpr (RowReader<Data>)
            for (const Data& part : *parts_) detail::require_equal_fields(parts_->front().fields(), part.fields());
    }

    std::int64_t size() const {
        (void)parts();
        return ends_.back();
    }
    const std::vector<Data>& parts() const { return detail::content_of(parts_, "ConcatDataset"); }

    auto get(std::int64_t row) const requires detail::GetsByNumber<Data> {
        const detail::RowOfPart at = place(row);
        return parts()[at.part].get(at.row);
    }
    auto get(std::int64_t row, RowContext& context) const requires detail::GetsInContext<Data> {
        const detail::RowOfPart at = place(row);
        return parts()[at.part].get(at.row, context);
    }
    auto fields() const requires RowReader<Data> { return parts().front().fields(); }
    void read(std::span<const std::int64_t> rows, std::span<std::byte* const> to) const
        requires(RowReader<Data> && !detail::ReadsInContext<Data>) {
        read_runs(rows, to,
                  [&](const Data& part, std::span<const std::int64_t> numbers, std::size_t,
                      std::span<std::byte* const> places) { part.read(numbers, places); });
    }
    void read(std::span<const std::int64_t> rows, std::span<std::byte* const> to,
              std::span<RowContext> contexts) const requires detail::ReadsInContext<Data> {
        read_runs(rows, to,
                  [&](const Data& part, std::span<const std::int64_t> numbers, std::size_t first,
                      std::span<std::byte* const> places) {
                      part.read(numbers, places, contexts.subspan(first, numbers.size()));
                  });
    }

private:
    detail::RowOfPart place(std::int64_t row) const {
        detail::require_rows_of("ConcatDataset", {&row, 1}, size());
        return detail::row_of_part(ends_, row);
    }
    /// Calls `read` for each run of rows of one part.
    template <class Read>
    void read_runs(std::span<const std::int64_t> rows, std::span<std::byte* const> to, const Read& read) const {
        const auto all_fields = fields();
        for (std::size_t first = 0; first < rows.size();) {
            const std::size_t part = place(rows[first]).part;
            std::vector<std::int64_t> numbers;
            for (std::size_t i = first; i < rows.size() && place(rows[i]).part == part; ++i)
                numbers.push_back(place(rows[i]).row);
            std::vector<std::byte*> places;
            for (std::size_t field = 0; field < to.size(); ++field)
                places.push_back(to[field] + first * all_fields[field].row_bytes());
            read(parts()[part], numbers, first, places);
            first += numbers.size();
        }
    }

    std::shared_ptr<const std::vector<Data>> parts_;
    std::vector<std::int64_t> ends_;
};

}  // namespace lockstep
