// Reductions, parts of tensors and matrix products of the op table.
#include <fmt/format.h>

#include <numeric>

#include "lockstep/ops/functional.h"
#include "lockstep/tests/ops/op_table.h"

namespace lockstep::test {

namespace {

std::string list_of(const std::vector<int>& numbers) {
    std::string text;
    for (const int number : numbers) text += std::to_string(number) + ", ";
    return text;
}

struct SumOp final : Op {
    SumOp(Sizes s, std::vector<int> d, bool keep, bool average)
        : shape(std::move(s)), dims(std::move(d)), keepdim(keep), is_mean(average) {}
    Sizes shape;
    std::vector<int> dims;
    bool keepdim, is_mean;

    std::string name() const override {
        return fmt::format("{} of {} dimensions over ({})", is_mean ? "mean" : "sum", shape.size(), list_of(dims));
    }
    std::string torch() const override {
        if (dims.empty() && !keepdim) return is_mean ? "a.mean()" : "a.sum()";
        return fmt::format("a.{}(({}), keepdim={})", is_mean ? "mean" : "sum", list_of(dims),
                           keepdim ? "True" : "False");
    }
    std::vector<Input> inputs() const override { return {{shape}}; }
    Tensor run(const std::vector<Tensor>& in) const override {
        return is_mean ? mean(in[0], dims, keepdim) : sum(in[0], dims, keepdim);
    }
    bool hands_on_batch(std::size_t) const override {
        return !dims.empty() && std::find(dims.begin(), dims.end(), 0) == dims.end();
    }
    std::vector<std::size_t> summed() const {
        std::vector<std::size_t> over;
        for (const int dim : dims)
            over.push_back(static_cast<std::size_t>(dim < 0 ? dim + static_cast<int>(shape.size()) : dim));
        if (dims.empty()) {
            over.resize(shape.size());
            std::iota(over.begin(), over.end(), std::size_t{0});
        }
        return over;
    }
    std::vector<Array> reference_gradients(const std::vector<Array>& in, const Array& dy) const override {
        Sizes kept = shape;
        for (const std::size_t d : summed()) kept[d] = 1;
        const double share = is_mean ? static_cast<double>(dy.size()) / static_cast<double>(in[0].size()) : 1;
        return {reference::combine(Array(shape), reference::reshape(dy, kept),
                                   [share](double, double gradient) { return gradient * share; })};
    }
    Array reference(const std::vector<Array>& in) const override {
        const std::vector<std::size_t> over = summed();
        Array y = reference::sum(in[0], over);
        if (is_mean)
            y = reference::map(y, [n = in[0].size() / y.size()](double x) { return x / static_cast<double>(n); });
        if (keepdim) return y;
        Sizes rest;
        for (std::size_t d = 0; d < shape.size(); ++d)
            if (std::find(over.begin(), over.end(), d) == over.end()) rest.push_back(shape[d]);
        return reference::reshape(y, rest);
    }
};

struct ArgMaxOp final : Op {
    ArgMaxOp(Sizes s, int d) : shape(std::move(s)), dim(d) {}
    Sizes shape;
    int dim;

    std::string name() const override { return fmt::format("argmax along {} of {} dimensions", dim, shape.size()); }
    std::string torch() const override { return fmt::format("a.argmax({}, keepdim=True)", dim); }
    std::vector<Input> inputs() const override { return {{shape, Values::any, false}}; }
    Tensor run(const std::vector<Tensor>& in) const override { return argmax(in[0], dim, true); }
    bool hands_on_batch(std::size_t) const override { return dim != 0; }
    Array reference(const std::vector<Array>& in) const override {
        return reference::argmax(in[0], static_cast<std::size_t>(dim < 0 ? dim + static_cast<int>(shape.size()) : dim));
    }
};

struct CatOp final : Op {
    CatOp(std::vector<Sizes> p, int d) : parts(std::move(p)), dim(d) {}
    std::vector<Sizes> parts;
    int dim;

    std::string name() const override { return fmt::format("cat of {} along {}", parts.size(), dim); }
    std::string torch() const override {
        return fmt::format("torch.cat([{}], {})", parts.size() == 2 ? "a, b" : "a, b, c", dim);
    }
    std::vector<Input> inputs() const override { return {parts.begin(), parts.end()}; }
    Tensor run(const std::vector<Tensor>& in) const override { return cat(in, dim); }
    /// Along dimension 0 rows of several batches follow one another.
    bool hands_on_batch(std::size_t) const override { return dim != 0; }
    Array reference(const std::vector<Array>& in) const override {
        return reference::cat(in, static_cast<std::size_t>(dim));
    }
};

/// Views: reshape, transpose, slice, flatten, and a product so that the gradient is not constant.
struct ViewOp final : Op {
    using Function = Tensor (*)(const Tensor&);
    ViewOp(std::string t, Function f, Sizes s, Sizes out, std::ptrdiff_t (*m)(const Sizes&, const Sizes&))
        : expression(std::move(t)), function(f), shape(std::move(s)), result(std::move(out)), source(m) {}
    std::string expression;
    Function function;
    Sizes shape, result;
    std::ptrdiff_t (*source)(const Sizes& shape, const Sizes& at);  ///< element of x at an index of y

    std::string name() const override { return expression; }
    std::string torch() const override { return expression; }
    std::vector<Input> inputs() const override { return {{shape}}; }
    Tensor run(const std::vector<Tensor>& in) const override { return function(in[0]); }
    Array reference(const std::vector<Array>& in) const override {
        Array y(result);
        std::ptrdiff_t i = 0;
        reference::for_each_index(result, [&](const Sizes& at) { y[i++] = in[0][source(shape, at)]; });
        return y;
    }
};

struct MatMulOp final : Op {
    MatMulOp(Sizes x, Sizes y) : a(std::move(x)), b(std::move(y)) {}
    Sizes a, b;

    std::string name() const override { return fmt::format("matmul of {} and {} dimensions", a.size(), b.size()); }
    std::string torch() const override { return "a @ b"; }
    std::vector<Input> inputs() const override { return {{a}, {b}}; }
    Tensor run(const std::vector<Tensor>& in) const override { return matmul(in[0], in[1]); }
    bool hands_on_batch(std::size_t input) const override { return input == 0 ? a.size() >= b.size() : b.size() == 3; }
    Array reference(const std::vector<Array>& in) const override { return reference::matmul(in[0], in[1]); }
    std::vector<Array> reference_gradients(const std::vector<Array>& in, const Array& dy) const override {
        std::vector<Array> result{Array(a), Array(b)};
        const std::ptrdiff_t m = a[a.size() - 2], k = a.back(), n = b.back();
        for (std::ptrdiff_t i = 0; i < dy.size(); ++i) {
            const std::ptrdiff_t matrix = i / (m * n), row = i / n % m, column = i % n;
            const std::ptrdiff_t of_a = a.size() == 3 ? matrix * m * k : 0, of_b = b.size() == 3 ? matrix * k * n : 0;
            for (std::ptrdiff_t l = 0; l < k; ++l) {
                result[0][of_a + row * k + l] += dy[i] * in[1][of_b + l * n + column];
                result[1][of_b + l * n + column] += dy[i] * in[0][of_a + row * k + l];
            }
        }
        return result;
    }
};

/// Eager use has one shard, so the sum is the value.
struct SumOverShardsOp final : Op {
    std::string name() const override { return "sum_over_shards"; }
    std::string torch() const override { return ""; }
    std::vector<Input> inputs() const override { return {{{3, 5}}}; }
    Tensor run(const std::vector<Tensor>& in) const override { return sum_over_shards(in[0]); }
    bool hands_on_batch(std::size_t) const override { return false; }
    Array reference(const std::vector<Array>& in) const override { return in[0]; }
};

}  // namespace

void add_reductions(Table& table) {
    const struct {
        Sizes shape;
        std::vector<int> dims;
    } sums[] = {{{}, {}},
                {{1}, {}},
                {{37}, {}},
                {{5, 7}, {0}},
                {{5, 7}, {-1}},
                {{3, 4, 5}, {0, 2}},
                {{3, 4, 5}, {1}},
                {{2, 16, 5, 3}, {}},
                {{2, 32, 3, 3}, {0, 2, 3}},
                {{1, 10, 3, 5}, {2, 3}},
                {{2, 20, 3, 5}, {1}},
                {{131, 33}, {0}},
                // Packs of adjacent elements, and of adjacent sums.
                {{7, 768}, {1}},
                {{300, 128}, {0}},
                {{2, 3, 8, 4}, {0, 2, 3}},
                // By blocks, in one part and in several; by single threads, in parts.
                {{2, 2049}, {1}},
                {{3, 9000}, {-1}},
                {{2100, 3}, {0}}};
    for (const auto& [shape, dims] : sums)
        for (const bool keepdim : {false, true})
            for (const bool is_mean : {false, true}) {
                if (keepdim && dims.empty()) continue;
                table.push_back(std::make_unique<SumOp>(shape, dims, keepdim, is_mean));
            }
    for (const auto& [shape, dim] : std::vector<std::pair<Sizes, int>>{{{7}, 0},
                                                                       {{5, 10}, 1},
                                                                       {{5, 10}, 0},
                                                                       {{1, 3, 4}, -1},
                                                                       {{2, 16, 5, 3}, 1},
                                                                       {{3, 1}, 1},
                                                                       {{2, 2049}, 1},
                                                                       {{7, 768}, 1},
                                                                       {{3, 9000}, -1},
                                                                       {{2100, 3}, 0}})
        table.push_back(std::make_unique<ArgMaxOp>(shape, dim));
    table.push_back(std::make_unique<CatOp>(std::vector<Sizes>{{3, 5}, {2, 5}}, 0));
    table.push_back(std::make_unique<CatOp>(std::vector<Sizes>{{3, 5}, {3, 1}, {3, 4}}, 1));
    table.push_back(std::make_unique<CatOp>(std::vector<Sizes>{{2, 16, 3, 5}, {2, 16, 3, 5}}, 1));
    table.push_back(std::make_unique<CatOp>(std::vector<Sizes>{{2, 16, 3, 5}, {1, 16, 3, 5}, {3, 16, 3, 5}}, 0));

    const auto same = [](const Sizes& shape, const Sizes& at) {
        (void)shape;
        return reference::position({4, 45}, at);
    };
    table.push_back(std::make_unique<ViewOp>(
        "a.reshape(4, 45)",
        [](const Tensor& x) {
            return x.reshape({4, -1});
        },
        Sizes{6, 5, 6}, Sizes{4, 45}, same));
    table.push_back(std::make_unique<ViewOp>(
        "a.flatten(1)", [](const Tensor& x) { return flatten(x, 1); }, Sizes{2, 16, 3, 3}, Sizes{2, 144},
        [](const Sizes&, const Sizes& at) { return at[0] * 144 + at[1]; }));
    table.push_back(std::make_unique<ViewOp>(
        "a.transpose(0, 2)", [](const Tensor& x) { return x.transpose(0, 2); }, Sizes{3, 4, 5}, Sizes{5, 4, 3},
        [](const Sizes& s, const Sizes& at) {
            return reference::position(s, {at[2], at[1], at[0]});
        }));
    table.push_back(std::make_unique<ViewOp>(
        "a.permute(0, 2, 3, 1)",
        [](const Tensor& x) {
            return permute(x, {0, 2, 3, 1});
        },
        Sizes{2, 16, 3, 4}, Sizes{2, 3, 4, 16},
        [](const Sizes& s, const Sizes& at) {
            return reference::position(s, {at[0], at[3], at[1], at[2]});
        }));
    table.push_back(std::make_unique<ViewOp>(
        "a.permute(-1, 0, 1)",
        [](const Tensor& x) {
            return permute(x, {-1, 0, 1});
        },
        Sizes{3, 4, 5}, Sizes{5, 3, 4},
        [](const Sizes& s, const Sizes& at) {
            return reference::position(s, {at[1], at[2], at[0]});
        }));
    table.push_back(std::make_unique<ViewOp>(
        "a[:, 1:6:2]", [](const Tensor& x) { return x.slice(1, 1, 6, 2); }, Sizes{3, 16, 2, 3}, Sizes{3, 3, 2, 3},
        [](const Sizes& s, const Sizes& at) {
            return reference::position(s, {at[0], 1 + 2 * at[1], at[2], at[3]});
        }));
    table.push_back(std::make_unique<ViewOp>(
        "a[:, 2]", [](const Tensor& x) { return x.select(1, 2); }, Sizes{3, 4, 5}, Sizes{3, 5},
        [](const Sizes& s, const Sizes& at) {
            return reference::position(s, {at[0], 2, at[1]});
        }));
    table.push_back(std::make_unique<ViewOp>(
        "a.expand(4, 3, 5)",
        [](const Tensor& x) {
            return x.expand({4, 3, 5});
        },
        Sizes{3, 1}, Sizes{4, 3, 5}, [](const Sizes&, const Sizes& at) { return at[1]; }));

    const struct {
        Sizes a, b;
    } products[] = {{{5, 7}, {7, 3}},       {{1, 1}, {1, 1}},    {{1, 33}, {33, 20}}, {{64, 50}, {50, 10}},
                    {{3, 5, 7}, {3, 7, 2}}, {{3, 5, 7}, {7, 2}}, {{5, 7}, {3, 7, 2}}, {{1, 4, 1}, {1, 1, 3}}};
    for (const auto& [a, b] : products) table.push_back(std::make_unique<MatMulOp>(a, b));
    table.push_back(std::make_unique<SumOverShardsOp>());
}

}  // namespace lockstep::test
