// Extremes, norms and moments in the op table.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "lockstep/ops/functional.h"
#include "lockstep/tests/ops/op_table.h"

namespace lockstep::test {

namespace {

using Numbers = std::vector<double>;

/// A function of the elements over `dims`, in row-major order.
struct StatisticOp final : Op {
    std::string expression;
    Sizes shape, result;
    std::vector<std::size_t> dims;
    std::function<double(const Numbers&)> of;
    std::function<Tensor(const Tensor&)> function;
    bool differentiable = true;
    int classes = 0;  ///< the elements are integers below it; 0: any numbers

    std::string name() const override {
        return expression + " of " + std::to_string(shape.size()) + " dimensions" + (classes > 0 ? ", integers" : "");
    }
    std::string torch() const override { return expression; }
    std::vector<Input> inputs() const override {
        return {{shape, classes > 0 ? Values::classes : Values::any, differentiable, classes}};
    }
    Tensor run(const std::vector<Tensor>& in) const override { return function(in[0]); }
    Array reference(const std::vector<Array>& in) const override {
        Sizes kept = shape;
        for (const std::size_t d : dims) kept[d] = 1;
        Array y(kept);
        std::vector<Numbers> groups(y.v.size());
        std::ptrdiff_t next = 0;
        reference::for_each_index(shape, [&](const Sizes& at) {
            groups[static_cast<std::size_t>(reference::position(kept, at))].push_back(in[0][next++]);
        });
        std::transform(groups.begin(), groups.end(), y.v.begin(), of);
        return reference::reshape(y, result);
    }
    bool hands_on_batch(std::size_t) const override { return std::find(dims.begin(), dims.end(), 0) == dims.end(); }
};

struct OuterOp final : Op {
    std::string name() const override { return "outer"; }
    std::string torch() const override { return "torch.outer(a, b)"; }
    std::vector<Input> inputs() const override { return {{{5}}, {{7}}}; }
    Tensor run(const std::vector<Tensor>& in) const override { return outer(in[0], in[1]); }
    Array reference(const std::vector<Array>& in) const override {
        Array y(Sizes{5, 7});
        for (std::ptrdiff_t i = 0; i < y.size(); ++i) y[i] = in[0][i / 7] * in[1][i % 7];
        return y;
    }
    bool hands_on_batch(std::size_t input) const override { return input == 0; }
};

double total(const Numbers& x) { return std::accumulate(x.begin(), x.end(), 0.0); }
double largest(const Numbers& x) { return *std::max_element(x.begin(), x.end()); }
double smallest(const Numbers& x) { return *std::min_element(x.begin(), x.end()); }
double index_of_smallest(const Numbers& x) {
    return static_cast<double>(std::min_element(x.begin(), x.end()) - x.begin());
}
Numbers each(const Numbers& x, const std::function<double(double)>& f) {
    Numbers y = x;
    std::transform(y.begin(), y.end(), y.begin(), f);
    return y;
}
std::function<double(const Numbers&)> variance(double correction) {
    return [correction](const Numbers& x) {
        const auto n = static_cast<double>(x.size());
        const double mean = total(x) / n;
        return total(each(x, [mean](double value) { return (value - mean) * (value - mean); })) / (n - correction);
    };
}
double magnitude(double x) { return std::abs(x); }
double sum_of_exponentials(const Numbers& x) {
    return std::log(total(each(x, [](double value) { return std::exp(value); })));
}
double euclidean(const Numbers& x) {
    return std::sqrt(total(each(x, [](double value) { return value * value; })));
}

}  // namespace

void add_statistics(Table& table) {
    const auto add = [&table](const std::string& torch, const Sizes& shape, const std::vector<std::size_t>& dims,
                              const Sizes& result, const std::function<double(const Numbers&)>& of,
                              const std::function<Tensor(const Tensor&)>& function, bool differentiable = true) {
        auto op = std::make_unique<StatisticOp>();
        op->expression = torch;
        op->shape = shape;
        op->dims = dims;
        op->result = result;
        op->of = of;
        op->function = function;
        op->differentiable = differentiable;
        table.push_back(std::move(op));
    };
    const auto in_order = [](std::size_t place) {
        return [place](Numbers x) {
            std::sort(x.begin(), x.end());
            return x[place];
        };
    };
    add(
        "torch.aminmax(a, dim=1)[0]", {4, 9}, {1}, {4}, smallest, [](const Tensor& x) { return aminmax(x, 1).first; },
        false);
    add(
        "torch.aminmax(a)[1]", {4, 9}, {0, 1}, {}, largest, [](const Tensor& x) { return aminmax(x).second; }, false);
    add("torch.var_mean(a, 1)[0]", {4, 9}, {1}, {4}, variance(1), [](const Tensor& x) { return var_mean(x, 1).first; });
    add(
        "torch.std_mean(a, 1)[1]", {4, 9}, {1}, {4}, [](const Numbers& x) { return total(x) / 9; },
        [](const Tensor& x) { return std_mean(x, 1).second; });
    add(
        "torch.std_mean(a, 0)[0]", {4, 9}, {0}, {9}, [](const Numbers& x) { return std::sqrt(variance(1)(x)); },
        [](const Tensor& x) { return std_mean(x, 0).first; });
    add(
        "torch.count_nonzero(a > 0.5, 1)", {4, 9}, {1}, {4},
        [](const Numbers& x) {
            return static_cast<double>(std::count_if(x.begin(), x.end(), [](double value) { return value > 0.5; }));
        },
        [](const Tensor& x) { return count_nonzero(x > 0.5, 1); }, false);
    add("torch.nansum(a, 1)", {4, 9}, {1}, {4}, total, [](const Tensor& x) { return nansum(x, 1); });
    add(
        "torch.nanmean(a, 1)", {4, 9}, {1}, {4}, [](const Numbers& x) { return total(x) / 9; },
        [](const Tensor& x) { return nanmean(x, 1); });
    add("torch.kthvalue(a, 3, 1)[0]", {4, 9}, {1}, {4}, in_order(2),
        [](const Tensor& x) { return kthvalue(x, 3, 1).values; });
    add("torch.median(a, 1)[0]", {4, 8}, {1}, {4}, in_order(3), [](const Tensor& x) { return median(x, 1).values; });
    add("torch.median(a, 0, keepdim=True)[0]", {5, 3}, {0}, {1, 3}, in_order(2),
        [](const Tensor& x) { return median(x, 0, true).values; });
    add(
        "torch.quantile(a, 0.3, 1)", {4, 9}, {1}, {4},
        [=](const Numbers& x) { return in_order(2)(x) * 0.6 + in_order(3)(x) * 0.4; },
        [](const Tensor& x) {
            const Tensor wide = is_half_type(x.dtype()) ? x.to(DType::f32) : x;
            return quantile(wide, 0.3, 1).to(x.dtype());
        });
    add("torch.max(a, 1)[0]", {4, 9}, {1}, {4}, largest, [](const Tensor& x) { return (max)(x, 1).values; });
    add("torch.max(a, -2, keepdim=True)[0]", {2, 5, 3}, {1}, {2, 1, 3}, largest,
        [](const Tensor& x) { return (max)(x, -2, true).values; });
    add("torch.min(a, 0)[0]", {6, 5}, {0}, {5}, smallest, [](const Tensor& x) { return (min)(x, 0).values; });
    add(
        "torch.min(a, 1)[1]", {4, 9}, {1}, {4}, index_of_smallest, [](const Tensor& x) { return (min)(x, 1).indices; },
        false);
    add(
        "torch.argmin(a, 1)", {3, 7}, {1}, {3}, index_of_smallest, [](const Tensor& x) { return argmin(x, 1); }, false);
    add(
        "torch.argmin(a)", {3, 7}, {0, 1}, {}, index_of_smallest, [](const Tensor& x) { return argmin(x); }, false);
    add("torch.amax(a, (0, 2))", {3, 4, 5}, {0, 2}, {4}, largest, [](const Tensor& x) { return amax(x, {0, 2}); });
    add("torch.amax(a, (-1,), keepdim=True)", {2, 16, 3, 5}, {3}, {2, 16, 3, 1}, largest,
        [](const Tensor& x) { return amax(x, -1, true); });
    add(
        "torch.amax(a, 1)", {3, 301}, {1}, {3}, largest, [](const Tensor& x) { return amax(x, 1); }, false);
    add("torch.amin(a, ())", {4, 6}, {0, 1}, {}, smallest, [](const Tensor& x) { return amin(x); });
    const auto add_of_integers = [&](const std::string& torch, const Sizes& shape, const std::vector<std::size_t>& dims,
                                     const Sizes& result, const std::function<double(const Numbers&)>& of,
                                     const std::function<Tensor(const Tensor&)>& function) {
        add(torch, shape, dims, result, of, function, false);
        static_cast<StatisticOp&>(*table.back()).classes = 100;
    };
    const auto index_of_largest = [](const Numbers& x) {
        return static_cast<double>(std::max_element(x.begin(), x.end()) - x.begin());
    };
    add_of_integers("torch.amax(a, 1)", {4, 600}, {1}, {4}, largest, [](const Tensor& x) { return amax(x, 1); });
    add_of_integers("torch.amin(a, (0, 2))", {3, 4, 5}, {0, 2}, {4}, smallest, [](const Tensor& x) {
        return amin(x, {0, 2});
    });
    add_of_integers("torch.argmax(a, 1)", {4, 301}, {1}, {4}, index_of_largest,
                    [](const Tensor& x) { return argmax(x, 1); });
    add_of_integers("torch.argmax(a, 0)", {70, 33}, {0}, {33}, index_of_largest,
                    [](const Tensor& x) { return argmax(x, 0); });
    add_of_integers("torch.argmin(a, 1)", {4, 301}, {1}, {4}, index_of_smallest,
                    [](const Tensor& x) { return argmin(x, 1); });
    add_of_integers("torch.median(a, 1)[0]", {4, 8}, {1}, {4}, in_order(3),
                    [](const Tensor& x) { return median(x, 1).values; });
    add(
        "torch.any(a > 1.5, 1)", {16, 3}, {1}, {16}, [](const Numbers& x) { return largest(x) > 1.5 ? 1.0 : 0.0; },
        [](const Tensor& x) { return any(x > 1.5, 1); }, false);
    add(
        "torch.all(a > -1, 1, keepdim=True)", {16, 3}, {1}, {16, 1},
        [](const Numbers& x) { return smallest(x) > -1 ? 1.0 : 0.0; },
        [](const Tensor& x) { return all(x > -1, 1, true); }, false);
    add("torch.var(a, 1)", {4, 9}, {1}, {4}, variance(1), [](const Tensor& x) { return var(x, 1); });
    add("torch.var(a, (0, 2), correction=0, keepdim=True)", {3, 4, 5}, {0, 2}, {1, 4, 1}, variance(0),
        [](const Tensor& x) {
            return var(x, {0, 2}, 0, true);
        });
    add(
        "torch.std(a)", {5, 7}, {0, 1}, {}, [](const Numbers& x) { return std::sqrt(variance(1)(x)); },
        [](const Tensor& x) { return lockstep::std(x); });
    add("torch.norm(a)", {5, 7}, {0, 1}, {}, euclidean, [](const Tensor& x) { return norm(x); });
    add("torch.norm(a, 2, 1, True)", {5, 7}, {1}, {5, 1}, euclidean,
        [](const Tensor& x) { return norm(x, 2, 1, true); });
    add(
        "torch.norm(a, 1, 0)", {5, 7}, {0}, {7}, [](const Numbers& x) { return total(each(x, magnitude)); },
        [](const Tensor& x) { return norm(x, 1, 0); });
    add(
        "torch.norm(a, float('inf'), 1)", {5, 7}, {1}, {5},
        [](const Numbers& x) { return largest(each(x, magnitude)); },
        [](const Tensor& x) { return norm(x, std::numeric_limits<double>::infinity(), 1); });
    add("torch.logsumexp(a, 1)", {5, 7}, {1}, {5}, sum_of_exponentials,
        [](const Tensor& x) { return logsumexp(x, 1); });
    add("torch.logsumexp(a, (0, 2), True)", {3, 4, 5}, {0, 2}, {1, 4, 1}, sum_of_exponentials, [](const Tensor& x) {
        return logsumexp(x, {0, 2}, true);
    });
    table.push_back(std::make_unique<OuterOp>());
}

}  // namespace lockstep::test
