// Pooling with gaps, rests and positions, and its reverse, in the op table.
#include <array>
#include <cmath>
#include <limits>

#include "lockstep/ops/functional.h"
#include "lockstep/tests/ops/function_op.h"

namespace lockstep::test {

namespace {

using Triplet = std::array<std::ptrdiff_t, 3>;

/// Windows over the last three dimensions of volumes; images and sequences have sizes of 1 before their own.
struct PoolSpec {
    Triplet size, stride, padding{0, 0, 0}, dilation{1, 1, 1};
    bool ceil = false;

    std::ptrdiff_t begin(std::ptrdiff_t window, std::size_t d) const { return window * stride[d] - padding[d]; }
    /// Windows are placed one after another until one does not fit.
    std::ptrdiff_t count(std::ptrdiff_t length, std::size_t d) const {
        std::ptrdiff_t windows = 0, last_end = 0;
        while (true) {
            const std::ptrdiff_t end = begin(windows, d) + dilation[d] * (size[d] - 1) + 1;
            const bool fits = end <= length + padding[d];
            const bool takes_rest = ceil && begin(windows, d) < length && last_end < length + padding[d];
            if (!fits && !takes_rest) return windows;
            last_end = end;
            ++windows;
        }
    }
};

struct WindowSums {
    double sum = 0, largest = -std::numeric_limits<double>::infinity(), powers = 0;
    std::ptrdiff_t position = -1;       ///< place of the largest element in the volume
    std::ptrdiff_t inside = 0;          ///< elements of the volume
    std::ptrdiff_t inside_padding = 0;  ///< these and elements of the padding
};

template <class Finish>
Array pooled_volumes(const Array& given, const PoolSpec& spec, double power, const Finish& finish) {
    Sizes wide = given.shape;
    while (wide.size() < 5) wide.insert(wide.begin() + 2, 1);
    Sizes shape = wide;
    for (std::size_t d = 0; d < 3; ++d) shape[d + 2] = spec.count(wide[d + 2], d);
    Array y(shape);
    std::ptrdiff_t next = 0;
    reference::for_each_index(shape, [&](const Sizes& at) {
        WindowSums sums;
        reference::for_each_index({spec.size[0], spec.size[1], spec.size[2]}, [&](const Sizes& tap) {
            bool inside = true, counts = true;
            Sizes from{at[0], at[1], 0, 0, 0};
            for (std::size_t d = 0; d < 3; ++d) {
                const std::ptrdiff_t place = spec.begin(at[d + 2], d) + tap[d] * spec.dilation[d];
                from[d + 2] = place;
                inside = inside && place >= 0 && place < wide[d + 2];
                counts = counts && place < wide[d + 2] + spec.padding[d];
            }
            sums.inside_padding += counts ? 1 : 0;
            if (!inside) return;
            ++sums.inside;
            const double value = given[reference::position(wide, from)];
            sums.sum += value;
            sums.powers += std::pow(value, power);
            if (value > sums.largest) {
                sums.largest = value;
                sums.position = (from[2] * wide[3] + from[3]) * wide[4] + from[4];
            }
        });
        y[next++] = finish(sums);
    });
    while (y.shape.size() > given.shape.size()) y.shape.erase(y.shape.begin() + 2);
    return y;
}

struct PoolEntries {
    Table& table;

    template <class Finish>
    FunctionOp& add(const std::string& torch, const Sizes& shape, const PoolSpec& spec, FunctionOp::Run run,
                    const Finish& finish, Values values = Values::any, bool gradient = true, double power = 1) const {
        return add_function(table, torch, {{shape, values, gradient}}, std::move(run),
                            [=](const std::vector<Array>& in) { return pooled_volumes(in[0], spec, power, finish); });
    }
    void largest(const std::string& torch, const Sizes& shape, const PoolSpec& spec, FunctionOp::Run run) const {
        add(torch, shape, spec, std::move(run), [](const WindowSums& sums) { return sums.largest; });
    }
    void place(const std::string& torch, const Sizes& shape, const PoolSpec& spec, FunctionOp::Run run) const {
        add(
            torch, shape, spec, std::move(run),
            [](const WindowSums& sums) { return static_cast<double>(sums.position); }, Values::any, false);
    }
    void powers(const std::string& torch, const Sizes& shape, const PoolSpec& spec, double p,
                FunctionOp::Run run) const {
        // PyTorch multiplies means of smaller windows by the number of elements of a whole one.
        const double area = static_cast<double>(spec.size[0] * spec.size[1] * spec.size[2]);
        add(
            torch, shape, spec, std::move(run),
            [=](const WindowSums& sums) {
                return std::pow(sums.powers * area / static_cast<double>(sums.inside), 1 / p);
            },
            Values::positive, true, p);
    }
};

void add_largest(const PoolEntries& pools) {
    pools.largest("F.max_pool2d(a, (2, 3), (1, 2), (1, 1), (2, 1))", {2, 3, 6, 7},
                  {{1, 2, 3}, {1, 1, 2}, {0, 1, 1}, {1, 2, 1}}, [](const auto& in) {
                      return max_pool2d(in[0], {2, 3}, Pair{1, 2}, {1, 1}, false, {2, 1});
                  });
    pools.largest("F.max_pool2d(a, 2, 3, 1, 2, ceil_mode=True)", {1, 2, 7, 6},
                  {{1, 2, 2}, {1, 3, 3}, {0, 1, 1}, {1, 2, 2}, true},
                  [](const auto& in) { return max_pool2d(in[0], 2, Pair(3), 1, true, 2); });
    pools.largest("F.max_pool1d(a, 3, 2, 1, 2, True)", {2, 3, 10}, {{1, 1, 3}, {1, 1, 2}, {0, 0, 1}, {1, 1, 2}, true},
                  [](const auto& in) { return max_pool1d(in[0], 3, 2, 1, true, 2); });
    pools.largest("F.max_pool3d(a, 2, (1, 2, 3), 1, (1, 2, 1), True)", {1, 2, 4, 5, 6},
                  {{2, 2, 2}, {1, 2, 3}, {1, 1, 1}, {1, 2, 1}, true}, [](const auto& in) {
                      return max_pool3d(in[0], 2, Triple{1, 2, 3}, 1, true, {1, 2, 1});
                  });
    pools.largest("F.max_pool2d_with_indices(a, 3, 2, 1)[0]", {2, 2, 5, 6}, {{1, 3, 3}, {1, 2, 2}, {0, 1, 1}},
                  [](const auto& in) { return max_pool2d_with_indices(in[0], 3, Pair(2), 1).values; });
    pools.place("F.max_pool2d_with_indices(a, 3, 2, 1)[1]", {2, 2, 5, 6}, {{1, 3, 3}, {1, 2, 2}, {0, 1, 1}},
                [](const auto& in) { return max_pool2d_with_indices(in[0], 3, Pair(2), 1).indices; });
    pools.place("F.max_pool2d_with_indices(a, 2, 3, 1, 2, ceil_mode=True)[1]", {1, 2, 7, 6},
                {{1, 2, 2}, {1, 3, 3}, {0, 1, 1}, {1, 2, 2}, true},
                [](const auto& in) { return max_pool2d_with_indices(in[0], 2, Pair(3), 1, true, 2).indices; });
    pools.place("F.max_pool1d_with_indices(a, 3, 2, 1)[1]", {2, 3, 9}, {{1, 1, 3}, {1, 1, 2}, {0, 0, 1}},
                [](const auto& in) { return max_pool1d_with_indices(in[0], 3, 2, 1).indices; });
    pools.largest("F.max_pool3d_with_indices(a, 2, 2, 1)[0]", {1, 2, 4, 5, 3}, {{2, 2, 2}, {2, 2, 2}, {1, 1, 1}},
                  [](const auto& in) { return max_pool3d_with_indices(in[0], 2, Triple(2), 1).values; });
    pools.place("F.max_pool3d_with_indices(a, 2, 2, 1)[1]", {1, 2, 4, 5, 3}, {{2, 2, 2}, {2, 2, 2}, {1, 1, 1}},
                [](const auto& in) { return max_pool3d_with_indices(in[0], 2, Triple(2), 1).indices; });
    // Parts of 3, 3 and 2, 3 and 2, 3, 2 and 3 elements, which overlap.
    add_function(
        pools.table, "F.adaptive_max_pool3d(a, (2, 2, 3))", {{{2, 2, 5, 4, 7}}},
        [](const auto& in) {
            return adaptive_max_pool3d(in[0], {2, 2, 3});
        },
        [](const std::vector<Array>& in) {
            const Sizes counts{2, 2, 3};
            Array y(Sizes{2, 2, 2, 2, 3}, -std::numeric_limits<double>::infinity());
            std::ptrdiff_t next = 0;
            reference::for_each_index(in[0].shape, [&](const Sizes& from) {
                const double value = in[0][next++];
                std::ptrdiff_t place = 0;
                reference::for_each_index(y.shape, [&](const Sizes& at) {
                    bool inside = at[0] == from[0] && at[1] == from[1];
                    for (std::size_t d = 0; d < 3; ++d) {
                        const double part = static_cast<double>(in[0].shape[d + 2]) / static_cast<double>(counts[d]);
                        const auto begin = std::floor(static_cast<double>(at[d + 2]) * part + 1e-9);
                        const auto end = std::ceil(static_cast<double>(at[d + 2] + 1) * part - 1e-9);
                        const auto here = static_cast<double>(from[d + 2]);
                        inside = inside && here >= begin && here < end;
                    }
                    if (inside && value > y[place]) y[place] = value;
                    ++place;
                });
            });
            return y;
        });
}

void add_means(const PoolEntries& pools) {
    const auto mean_with_padding = [](const WindowSums& sums) {
        return sums.sum / static_cast<double>(sums.inside_padding);
    };
    const auto mean_inside = [](const WindowSums& sums) { return sums.sum / static_cast<double>(sums.inside); };
    const PoolSpec rest{{1, 3, 2}, {1, 2, 3}, {0, 1, 1}, {1, 1, 1}, true};
    pools.add(
        "F.avg_pool2d(a, (3, 2), (2, 3), (1, 1), True)", {2, 2, 6, 6}, rest,
        [](const auto& in) {
            return avg_pool2d(in[0], {3, 2}, Pair{2, 3}, {1, 1}, true, true);
        },
        mean_with_padding);
    pools.add(
        "F.avg_pool2d(a, (3, 2), (2, 3), (1, 1), True, False)", {2, 2, 6, 6}, rest,
        [](const auto& in) {
            return avg_pool2d(in[0], {3, 2}, Pair{2, 3}, {1, 1}, false, true);
        },
        mean_inside);
    pools.add(
        "F.avg_pool2d(a, 2, divisor_override=3)", {2, 2, 4, 6}, {{1, 2, 2}, {1, 2, 2}},
        [](const auto& in) { return avg_pool2d(in[0], 2, std::nullopt, 0, true, false, 3); },
        [](const WindowSums& sums) { return sums.sum / 3; });
    pools.add(
        "F.avg_pool1d(a, 3, 2, 1, True, False)", {2, 3, 8}, {{1, 1, 3}, {1, 1, 2}, {0, 0, 1}, {1, 1, 1}, true},
        [](const auto& in) { return avg_pool1d(in[0], 3, 2, 1, false, true); }, mean_inside);
    const PoolSpec volumes{{2, 3, 2}, {2, 2, 3}, {1, 1, 0}, {1, 1, 1}, true};
    pools.add(
        "F.avg_pool3d(a, (2, 3, 2), (2, 2, 3), (1, 1, 0), True)", {1, 2, 5, 4, 6}, volumes,
        [](const auto& in) {
            return avg_pool3d(in[0], {2, 3, 2}, Triple{2, 2, 3}, {1, 1, 0}, true, true);
        },
        mean_with_padding);
    pools.add(
        "F.avg_pool3d(a, 2, 2, 1, divisor_override=-5)", {1, 2, 4, 3, 6}, {{2, 2, 2}, {2, 2, 2}, {1, 1, 1}},
        [](const auto& in) { return avg_pool3d(in[0], 2, Triple(2), 1, true, false, -5); },
        [](const WindowSums& sums) { return sums.sum / -5; });
    pools.powers("F.lp_pool1d(a, 3, 2)", {2, 3, 7}, {{1, 1, 2}, {1, 1, 2}}, 3,
                 [](const auto& in) { return lp_pool1d(in[0], 3, 2); });
    pools.powers("F.lp_pool2d(a, 2, (2, 3), 2, True)", {2, 2, 5, 6}, {{1, 2, 3}, {1, 2, 2}, {0, 0, 0}, {1, 1, 1}, true},
                 2, [](const auto& in) {
                     return lp_pool2d(in[0], 2, {2, 3}, Pair(2), true);
                 });
    pools.powers("F.lp_pool3d(a, 1.5, 2)", {1, 2, 4, 2, 5}, {{2, 2, 2}, {2, 2, 2}}, 1.5,
                 [](const auto& in) { return lp_pool3d(in[0], 1.5, 2); });
}

/// Different positions of the elements of x in volumes of `area` elements.
std::vector<double> scattered_positions(std::ptrdiff_t planes, std::ptrdiff_t count, std::ptrdiff_t area) {
    std::vector<double> all;
    for (std::ptrdiff_t plane = 0; plane < planes; ++plane)
        for (std::ptrdiff_t i = 0; i < count; ++i)
            all.push_back(static_cast<double>((plane + (count - 1 - i) * 2) % area));
    return all;
}

void add_unpool(Table& table, const std::string& torch, const Sizes& shape, const Sizes& result, FunctionOp::Run run) {
    std::ptrdiff_t count = 1, area = 1;
    for (std::size_t d = 2; d < shape.size(); ++d) {
        count *= shape[d];
        area *= result[d];
    }
    const Input indices{shape, Values::classes, false, static_cast<int>(area),
                        scattered_positions(shape[0] * shape[1], count, area)};
    add_function(table, torch, {{shape}, indices}, std::move(run), [=](const std::vector<Array>& in) {
        Array y(result);
        for (std::ptrdiff_t i = 0; i < in[0].size(); ++i)
            y[i / count * area + static_cast<std::ptrdiff_t>(in[1][i])] = in[0][i];
        return y;
    }).batch_inputs = {true, false};
}

}  // namespace

void add_pooling(Table& table) {
    const PoolEntries pools{table};
    add_largest(pools);
    add_means(pools);
    add_unpool(table, "F.max_unpool1d(a, b, 2)", {2, 3, 4}, {2, 3, 8},
               [](const auto& in) { return max_unpool1d(in[0], in[1], 2); });
    add_unpool(table, "F.max_unpool2d(a, b, 3, 2, 1)", {2, 2, 3, 4}, {2, 2, 5, 7},
               [](const auto& in) { return max_unpool2d(in[0], in[1], 3, Pair(2), 1); });
    add_unpool(table, "F.max_unpool2d(a, b, 2, output_size=(5, 7))", {1, 2, 2, 3}, {1, 2, 5, 7}, [](const auto& in) {
        return max_unpool2d(in[0], in[1], 2, std::nullopt, 0, Pair{5, 7});
    });
    add_unpool(table, "F.max_unpool3d(a, b, 2)", {1, 2, 2, 1, 2}, {1, 2, 4, 2, 4},
               [](const auto& in) { return max_unpool3d(in[0], in[1], 2); });
}

}  // namespace lockstep::test
