// Functions that cut, repeat and rearrange tensors in the op table.
#include <functional>

#include "lockstep/ops/functional.h"
#include "lockstep/tests/ops/op_table.h"

namespace lockstep::test {

namespace {

/// The source of an element of the result: an index in the input, or an empty one for 0.
using Source = std::function<Sizes(const Sizes&)>;

struct PieceOp final : Op {
    PieceOp(std::string t, Sizes from, Sizes to, Source s, std::function<Tensor(const Tensor&)> f, bool batch)
        : expression(std::move(t)),
          shape(std::move(from)),
          result(std::move(to)),
          source(std::move(s)),
          function(std::move(f)),
          keeps_batch(batch) {}
    std::string expression;
    Sizes shape, result;
    Source source;
    std::function<Tensor(const Tensor&)> function;
    bool keeps_batch;

    std::string name() const override { return expression + " of " + std::to_string(shape.size()) + " dimensions"; }
    std::string torch() const override { return expression; }
    std::vector<Input> inputs() const override { return {{shape}}; }
    Tensor run(const std::vector<Tensor>& in) const override { return function(in[0]); }
    Array reference(const std::vector<Array>& in) const override {
        Array y(result);
        std::ptrdiff_t next = 0;
        reference::for_each_index(result, [&](const Sizes& at) {
            const Sizes from = source(at);
            std::ptrdiff_t place = 0;
            for (std::size_t d = 0; d < from.size(); ++d) place = place * shape[d] + from[d];
            y[next++] = from.empty() ? 0 : in[0][place];
        });
        return y;
    }
    bool hands_on_batch(std::size_t) const override { return keeps_batch; }
};

struct StackOp final : Op {
    StackOp(Sizes s, int d, std::size_t n) : shape(std::move(s)), dim(d), count(n) {}
    Sizes shape;
    int dim;
    std::size_t count;

    std::size_t along() const {
        return static_cast<std::size_t>(dim < 0 ? dim + static_cast<int>(shape.size()) + 1 : dim);
    }
    std::string name() const override {
        return "stack of " + std::to_string(count) + " along " + std::to_string(dim) + ", " +
               std::to_string(shape.size()) + " dimensions";
    }
    std::string torch() const override {
        return std::string("torch.stack([") + (count == 2 ? "a, b" : "a, b, c") + "], " + std::to_string(dim) + ")";
    }
    std::vector<Input> inputs() const override { return std::vector<Input>(count, Input{shape}); }
    Tensor run(const std::vector<Tensor>& in) const override { return stack(in, dim); }
    Array reference(const std::vector<Array>& in) const override {
        Sizes to = shape;
        to.insert(to.begin() + static_cast<std::ptrdiff_t>(along()), static_cast<std::ptrdiff_t>(count));
        Array y(to);
        std::ptrdiff_t next = 0;
        reference::for_each_index(to, [&](const Sizes& at) {
            std::ptrdiff_t place = 0;
            for (std::size_t d = 0; d < at.size(); ++d)
                if (d != along()) place = place * to[d] + at[d];
            y[next++] = in[static_cast<std::size_t>(at[along()])][place];
        });
        return y;
    }
    bool hands_on_batch(std::size_t) const override { return along() != 0; }
};

}  // namespace

void add_pieces(Table& table) {
    const auto add = [&table](const std::string& torch, const Sizes& from, const Sizes& to, const Source& source,
                              const std::function<Tensor(const Tensor&)>& function, bool batch = true) {
        table.push_back(std::make_unique<PieceOp>(torch, from, to, source, function, batch));
    };
    add(
        "torch.split(a, 3, 1)[2]", {4, 8}, {4, 2},
        [](const Sizes& i) {
            return Sizes{i[0], i[1] + 6};
        },
        [](const Tensor& x) { return split(x, 3, 1)[2]; });
    add(
        "torch.split(a, [1, 0, 4], -1)[2]", {2, 3, 5}, {2, 3, 4},
        [](const Sizes& i) {
            return Sizes{i[0], i[1], i[2] + 1};
        },
        [](const Tensor& x) {
            return split(x, {1, 0, 4}, -1)[2];
        });
    add(
        "torch.chunk(a, 3, 1)[1]", {4, 8}, {4, 3},
        [](const Sizes& i) {
            return Sizes{i[0], i[1] + 3};
        },
        [](const Tensor& x) { return chunk(x, 3, 1)[1]; });
    add(
        "a + torch.zeros_like(a)", {4, 9}, {4, 9}, [](const Sizes& i) { return i; },
        [](const Tensor& x) { return x + zeros_like(x); });
    add(
        "a[:, -5:-1]", {4, 8}, {4, 4},
        [](const Sizes& i) {
            return Sizes{i[0], i[1] + 3};
        },
        [](const Tensor& x) { return x.slice(1, -5, -1); });
    add(
        "a[:, -100:100:3]", {4, 8}, {4, 3},
        [](const Sizes& i) {
            return Sizes{i[0], i[1] * 3};
        },
        [](const Tensor& x) { return x.slice(1, -100, 100, 3); });
    add(
        "torch.flip(a, [1])", {4, 9}, {4, 9},
        [](const Sizes& i) {
            return Sizes{i[0], 8 - i[1]};
        },
        [](const Tensor& x) { return flip(x, 1); });
    add(
        "torch.flip(a, [-1, 1])", {2, 16, 3, 5}, {2, 16, 3, 5},
        [](const Sizes& i) {
            return Sizes{i[0], 15 - i[1], i[2], 4 - i[3]};
        },
        [](const Tensor& x) {
            return flip(x, {-1, 1});
        });
    // Long runs of consecutive indices.
    add(
        "torch.flip(a, (1,))", {3, 50}, {3, 50},
        [](const Sizes& i) {
            return Sizes{i[0], 49 - i[1]};
        },
        [](const Tensor& x) { return flip(x, 1); });
    add(
        "torch.roll(a, 20, 1)", {3, 50}, {3, 50},
        [](const Sizes& i) {
            return Sizes{i[0], (i[1] + 30) % 50};
        },
        [](const Tensor& x) { return roll(x, 20, 1); });
    add(
        "a.repeat(1, 2)", {3, 30}, {3, 60},
        [](const Sizes& i) {
            return Sizes{i[0], i[1] % 30};
        },
        [](const Tensor& x) {
            return repeat(x, {1, 2});
        });
    for (const std::int64_t shift : {2, -3, 19})
        add(
            "torch.roll(a, " + std::to_string(shift) + ", 1)", {4, 7}, {4, 7},
            [shift](const Sizes& i) {
                return Sizes{i[0], ((i[1] - shift) % 7 + 7) % 7};
            },
            [shift](const Tensor& x) { return roll(x, shift, 1); });
    add(
        "a.repeat(1, 3)", {4, 5}, {4, 15},
        [](const Sizes& i) {
            return Sizes{i[0], i[1] % 5};
        },
        [](const Tensor& x) {
            return repeat(x, {1, 3});
        });
    add(
        "a.repeat(2, 1, 3)", {4, 5}, {2, 4, 15},
        [](const Sizes& i) {
            return Sizes{i[1], i[2] % 5};
        },
        [](const Tensor& x) {
            return repeat(x, {2, 1, 3});
        },
        false);
    add(
        "torch.repeat_interleave(a, 3, -1)", {4, 5}, {4, 15},
        [](const Sizes& i) {
            return Sizes{i[0], i[1] / 3};
        },
        [](const Tensor& x) { return repeat_interleave(x, 3, -1); });
    for (const std::int64_t diagonal : {0, 2, -1}) {
        const std::string number = std::to_string(diagonal);
        add(
            "torch.tril(a, " + number + ")", {3, 4, 6}, {3, 4, 6},
            [diagonal](const Sizes& i) { return i[2] - i[1] <= diagonal ? i : Sizes{}; },
            [diagonal](const Tensor& x) { return tril(x, diagonal); });
        add(
            "torch.triu(a, " + number + ")", {5, 5}, {5, 5},
            [diagonal](const Sizes& i) { return i[1] - i[0] >= diagonal ? i : Sizes{}; },
            [diagonal](const Tensor& x) { return triu(x, diagonal); });
    }
    table.push_back(std::make_unique<StackOp>(Sizes{4, 5}, 1, 3));
    table.push_back(std::make_unique<StackOp>(Sizes{4, 5}, 0, 2));
    table.push_back(std::make_unique<StackOp>(Sizes{7}, -1, 2));
}

}  // namespace lockstep::test
