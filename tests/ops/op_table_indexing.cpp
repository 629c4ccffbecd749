// Selection by indices and sums at indices in the op table.
#include <fmt/format.h>
#include <algorithm>

#include <functional>
#include <optional>

#include "lockstep/ops/functional.h"
#include "lockstep/tests/ops/function_op.h"

namespace lockstep::test {

namespace {

std::ptrdiff_t position(const Sizes& shape, const Sizes& index) {
    std::ptrdiff_t at = 0;
    for (std::size_t d = 0; d < shape.size(); ++d) at = at * shape[d] + index[d];
    return at;
}

/// `index` with another coordinate along `dim`.
Sizes replaced(Sizes index, std::size_t dim, std::ptrdiff_t coordinate) {
    index[dim] = coordinate;
    return index;
}

struct EmbeddingOp final : Op {
    EmbeddingOp(Sizes s, int rows, std::ptrdiff_t columns, std::optional<std::int64_t> pad)
        : shape(std::move(s)), count(rows), features(columns), padding(pad) {}
    Sizes shape;
    int count;
    std::ptrdiff_t features;
    std::optional<std::int64_t> padding;

    std::string name() const override {
        return fmt::format("embedding of {} dimensions, {} of {}{}", shape.size(), count, features,
                           padding ? fmt::format(", padding {}", *padding) : "");
    }
    std::string torch() const override {
        return padding ? fmt::format("F.embedding(a, b, {})", *padding) : "F.embedding(a, b)";
    }
    std::vector<Input> inputs() const override { return {{shape, Values::classes, false, count}, {{count, features}}}; }
    Tensor run(const std::vector<Tensor>& in) const override { return embedding(in[0], in[1], padding); }
    Array reference(const std::vector<Array>& in) const override {
        Sizes to = shape;
        to.push_back(features);
        Array y(to);
        for (std::ptrdiff_t i = 0; i < in[0].size(); ++i)
            for (std::ptrdiff_t k = 0; k < features; ++k)
                y[i * features + k] = in[1][static_cast<std::ptrdiff_t>(in[0][i]) * features + k];
        return y;
    }
    std::vector<Array> reference_gradients(const std::vector<Array>& in, const Array& dy) const override {
        Array dweight(Sizes{count, features});
        for (std::ptrdiff_t i = 0; i < in[0].size(); ++i) {
            const auto row = static_cast<std::ptrdiff_t>(in[0][i]);
            if (padding && row == (*padding < 0 ? *padding + count : *padding)) continue;
            for (std::ptrdiff_t k = 0; k < features; ++k) dweight[row * features + k] += dy[i * features + k];
        }
        return {Array(), dweight};
    }
    bool hands_on_batch(std::size_t input) const override { return input == 0; }
};

struct IndexSelectOp final : Op {
    IndexSelectOp(Sizes s, int d, int n) : shape(std::move(s)), dim(d), count(n) {}
    Sizes shape;
    int dim, count;

    std::size_t along() const { return static_cast<std::size_t>(dim < 0 ? dim + static_cast<int>(shape.size()) : dim); }
    std::string name() const override {
        return fmt::format("index_select of {} dimensions along {}, {} indices", shape.size(), dim, count);
    }
    std::string torch() const override { return fmt::format("torch.index_select(a, {}, b)", dim); }
    std::vector<Input> inputs() const override {
        return {{shape}, {{count}, Values::classes, false, static_cast<int>(shape[along()])}};
    }
    Tensor run(const std::vector<Tensor>& in) const override { return index_select(in[0], dim, in[1]); }
    Array reference(const std::vector<Array>& in) const override {
        Array y(replaced(shape, along(), count));
        reference::for_each_index(y.shape, [&](const Sizes& at) {
            const auto j = static_cast<std::ptrdiff_t>(in[1][at[along()]]);
            y[position(y.shape, at)] = in[0][position(shape, replaced(at, along(), j))];
        });
        return y;
    }
    bool hands_on_batch(std::size_t input) const override { return (input == 0) == (along() != 0); }
};

/// gather and take_along_dim.
struct GatherOp final : Op {
    GatherOp(Sizes s, Sizes i, std::optional<int> d, bool broadcasts)
        : shape(std::move(s)), of_index(std::move(i)), dim(d), take_along(broadcasts) {}
    Sizes shape, of_index;
    std::optional<int> dim;
    bool take_along;

    std::size_t along() const {
        return dim ? static_cast<std::size_t>(*dim < 0 ? *dim + static_cast<int>(shape.size()) : *dim) : 0;
    }
    std::string name() const override {
        return fmt::format("{} of {} dimensions{}, first size {} of {}", take_along ? "take_along_dim" : "gather",
                           shape.size(), dim ? fmt::format(" along {}", *dim) : "", of_index[0], shape[0]);
    }
    std::string torch() const override {
        if (!take_along) return fmt::format("torch.gather(a, {}, b)", *dim);
        return dim ? fmt::format("torch.take_along_dim(a, b, {})", *dim) : "torch.take_along_dim(a, b)";
    }
    std::vector<Input> inputs() const override {
        return {{shape}, {of_index, Values::classes, false, static_cast<int>(shape[along()])}};
    }
    Tensor run(const std::vector<Tensor>& in) const override {
        return take_along ? take_along_dim(in[0], in[1], dim) : gather(in[0], *dim, in[1]);
    }
    Sizes of_result() const {
        Sizes to = of_index;
        for (std::size_t d = 0; take_along && d < to.size(); ++d)
            if (d != along() && to[d] == 1) to[d] = shape[d];
        return to;
    }
    /// Calls f(position in the result, position in x) for every element of the result.
    template <class F>
    void for_each_pair(const Array& index, F f) const {
        std::ptrdiff_t next = 0;
        reference::for_each_index(of_result(), [&](const Sizes& at) {
            Sizes in_index = at, in_x = at;
            for (std::size_t d = 0; d < at.size(); ++d) {
                if (of_index[d] == 1) in_index[d] = 0;
                if (take_along && shape[d] == 1) in_x[d] = 0;
            }
            in_x[along()] = static_cast<std::ptrdiff_t>(index[position(of_index, in_index)]);
            f(next++, position(shape, in_x));
        });
    }
    Array reference(const std::vector<Array>& in) const override {
        Array y(of_result());
        for_each_pair(in[1], [&](std::ptrdiff_t to, std::ptrdiff_t from) { y[to] = in[0][from]; });
        return y;
    }
    std::vector<Array> reference_gradients(const std::vector<Array>& in, const Array& dy) const override {
        Array dx(shape);
        for_each_pair(in[1], [&](std::ptrdiff_t to, std::ptrdiff_t from) { dx[from] += dy[to]; });
        return {dx, Array()};
    }
    bool hands_on_batch(std::size_t input) const override {
        if (input == 0) return along() != 0 && (shape[0] == of_index[0] || (take_along && of_index[0] == 1));
        return along() == 0 || !take_along || of_index[0] > 1 || shape[0] == 1;
    }
};

/// scatter_add, or scatter, whose last of equal indices counts.
struct ScatterOp final : Op {
    ScatterOp(Sizes x, Sizes i, Sizes s, int d, bool add)
        : shape(std::move(x)), of_index(std::move(i)), of_source(std::move(s)), dim(d), adds(add) {}
    Sizes shape, of_index, of_source;
    int dim;
    bool adds;

    std::size_t along() const { return static_cast<std::size_t>(dim < 0 ? dim + static_cast<int>(shape.size()) : dim); }
    std::string name() const override {
        return fmt::format("scatter{} of {} dimensions along {}, {} indices in the first", adds ? "_add" : "",
                           shape.size(), dim, of_index[0]);
    }
    /// PyTorch has the gradient only if index and source have equal sizes, and does not say which of equal indices
    /// counts.
    std::string torch() const override {
        return adds && of_index == of_source ? fmt::format("torch.scatter_add(a, {}, b, c)", dim) : "";
    }
    std::vector<Input> inputs() const override {
        return {{shape}, {of_index, Values::classes, false, static_cast<int>(shape[along()])}, {of_source}};
    }
    Tensor run(const std::vector<Tensor>& in) const override {
        return adds ? scatter_add(in[0], dim, in[1], in[2]) : scatter(in[0], dim, in[1], in[2]);
    }
    Array reference(const std::vector<Array>& in) const override {
        Array y = in[0];
        reference::for_each_index(of_index, [&](const Sizes& at) {
            const auto j = static_cast<std::ptrdiff_t>(in[1][position(of_index, at)]);
            double& to = y[position(shape, replaced(at, along(), j))];
            to = (adds ? to : 0) + in[2][position(of_source, at)];
        });
        return y;
    }
    std::vector<Array> reference_gradients(const std::vector<Array>& in, const Array& dy) const override {
        Array dx = dy, dsource(of_source), last(shape, -1);
        const auto for_each = [&](auto call) {
            reference::for_each_index(of_index, [&](const Sizes& at) {
                const auto j = static_cast<std::ptrdiff_t>(in[1][position(of_index, at)]);
                call(position(of_source, at), position(shape, replaced(at, along(), j)));
            });
        };
        for_each([&](std::ptrdiff_t from, std::ptrdiff_t to) { last[to] = static_cast<double>(from); });
        for_each([&](std::ptrdiff_t from, std::ptrdiff_t to) {
            if (adds || last[to] == static_cast<double>(from)) dsource[from] = dy[to];
            if (!adds) dx[to] = 0;
        });
        return {dx, Array(), dsource};
    }
    bool hands_on_batch(std::size_t input) const override { return input == 0; }
};

}  // namespace

void add_indexing(Table& table) {
    const auto embed = [&table](const Sizes& shape, int rows, std::ptrdiff_t columns,
                                std::optional<std::int64_t> padding = std::nullopt) {
        table.push_back(std::make_unique<EmbeddingOp>(shape, rows, columns, padding));
    };
    embed({7}, 5, 4);
    embed({3, 9}, 11, 8);
    // Large enough that their gradients are not compared with finite differences, which know no padding.
    embed({10, 3, 5}, 6, 5, 2);
    embed({40, 13}, 7, 64, -1);
    embed({300}, 3, 1);
    const auto select = [&table](const Sizes& shape, int dim, int count) {
        table.push_back(std::make_unique<IndexSelectOp>(shape, dim, count));
    };
    select({6}, 0, 9);
    select({5, 8}, 0, 3);
    select({5, 8}, 1, 11);
    select({2, 16, 5, 3}, 1, 7);
    select({3, 4, 33}, -1, 40);
    select({4, 3, 32}, -2, 5);
    const auto gathers = [&table](const Sizes& shape, const Sizes& index, std::optional<int> dim, bool take_along) {
        table.push_back(std::make_unique<GatherOp>(shape, index, dim, take_along));
    };
    gathers({6}, {9}, 0, false);
    gathers({5, 8}, {3, 8}, 0, false);
    gathers({5, 8}, {5, 11}, 1, false);
    gathers({5, 8}, {2, 3}, 1, false);
    gathers({2, 16, 5, 3}, {2, 7, 5, 2}, 1, false);
    gathers({3, 4, 33}, {3, 4, 1}, -1, false);
    gathers({40, 70}, {40, 70}, 1, false);
    gathers({5, 8}, {1, 3}, 1, true);
    gathers({1, 8}, {4, 3}, -1, true);
    gathers({3, 4, 5}, {3, 1, 2}, 2, true);
    gathers({6}, {9}, std::nullopt, true);
    const auto scatter = [&table](const Sizes& shape, const Sizes& index, const Sizes& source, int dim) {
        for (const bool adds : {true, false})
            table.push_back(std::make_unique<ScatterOp>(shape, index, source, dim, adds));
    };
    scatter({6}, {9}, {9}, 0);
    scatter({5, 8}, {3, 8}, {4, 8}, 0);
    scatter({5, 8}, {5, 11}, {5, 11}, 1);
    scatter({5, 8}, {2, 3}, {3, 4}, -1);
    scatter({2, 16, 5, 3}, {2, 7, 5, 2}, {2, 7, 5, 3}, 1);
    scatter({40, 3}, {40, 70}, {40, 70}, 1);
    const std::vector<double> places{2, 0, 2, 4};
    const Input index{.shape = {4}, .values = Values::classes, .gradient = false, .classes = 5, .exact = places};
    add_function(
        table, "torch.index_fill(a, 1, b, -1.5)", {{{3, 5}}, index},
        [](const auto& in) { return index_fill(in[0], 1, in[1], -1.5); },
        [](const std::vector<Array>& in) {
            Array y = in[0];
            for (std::ptrdiff_t i = 0; i < y.size(); ++i)
                if (std::find(in[1].v.begin(), in[1].v.end(), i % 5) != in[1].v.end()) y[i] = -1.5;
            return y;
        });
    add_function(
        table, "torch.index_add(a, 1, b, c, alpha=0.5)", {{{3, 5}}, index, {{3, 4}}},
        [](const auto& in) { return index_add(in[0], 1, in[1], in[2], 0.5); },
        [](const std::vector<Array>& in) {
            Array y = in[0];
            for (std::ptrdiff_t i = 0; i < 12; ++i)
                y[i / 4 * 5 + static_cast<std::ptrdiff_t>(in[1][i % 4])] += 0.5 * in[2][i];
            return y;
        })
        .batch_inputs = {true, false, true};
    const Input different{
        .shape = {4}, .values = Values::classes, .gradient = false, .classes = 5, .exact = {3, 0, 2, 4}};
    add_function(
        table, "torch.index_copy(a, 1, b, c)", {{{3, 5}}, different, {{3, 4}}},
        [](const auto& in) { return index_copy(in[0], 1, in[1], in[2]); },
        [](const std::vector<Array>& in) {
            Array y = in[0];
            for (std::ptrdiff_t i = 0; i < 12; ++i) y[i / 4 * 5 + static_cast<std::ptrdiff_t>(in[1][i % 4])] = in[2][i];
            return y;
        })
        .batch_inputs = {true, false, false};
    add_function(
        table, "torch.scatter(a, 1, b, 2.5)", {{{3, 5}}, {{3, 4}, Values::classes, false, 5}},
        [](const auto& in) { return lockstep::scatter(in[0], 1, in[1], 2.5); },
        [](const std::vector<Array>& in) {
            Array y = in[0];
            for (std::ptrdiff_t i = 0; i < 12; ++i) y[i / 4 * 5 + static_cast<std::ptrdiff_t>(in[1][i])] = 2.5;
            return y;
        });
    const Input bags{{3, 4}, Values::classes, false, 6};
    for (const EmbeddingBagMode mode : {EmbeddingBagMode::sum, EmbeddingBagMode::mean, EmbeddingBagMode::max}) {
        const char* const words[] = {"sum", "mean", "max"};
        add_function(
            table, std::string("F.embedding_bag(a, b, mode='") + words[static_cast<int>(mode)] + "')", {bags, {{6, 5}}},
            [mode](const auto& in) { return embedding_bag(in[0], in[1], mode); },
            [mode](const std::vector<Array>& in) {
                Array y(Sizes{3, 5}, mode == EmbeddingBagMode::max ? -10 : 0);
                for (std::ptrdiff_t i = 0; i < 60; ++i) {
                    const double x = in[1][static_cast<std::ptrdiff_t>(in[0][i / 5]) * 5 + i % 5];
                    double& to = y[i / 20 * 5 + i % 5];
                    if (mode == EmbeddingBagMode::max)
                        to = std::max(to, x);
                    else
                        to += mode == EmbeddingBagMode::mean ? x / 4 : x;
                }
                return y;
            });
    }
}

}  // namespace lockstep::test
