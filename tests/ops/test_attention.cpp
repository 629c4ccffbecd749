// scaled_dot_product_attention against double loops: values, gradients, masks, dropout, memory and threads.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/ops/functional.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/memory.h"
#include "lockstep/runtime/random.h"
#include "lockstep/runtime/record.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/messages.h"

using namespace lockstep;

namespace {

using Doubles = std::vector<double>;

constexpr double infinite = std::numeric_limits<double>::infinity();
constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

/// Fixed numbers in (-1, 1), exact in every dtype.
Tensor waves(const Shape& shape, int salt, DType dtype = DType::f32) {
    Doubles values;
    for (std::int64_t i = 0; i < shape.numel(); ++i)
        values.push_back(std::round(128 * std::sin(1.7 * static_cast<double>(i * (salt + 1)) + salt)) / 128);
    return Tensor::from(values, shape).to(dtype);
}

Doubles doubles_of(const Tensor& x) { return x.to(DType::f64).to_vector<double>(); }

/// Operands of (N, H, L, E), (N, G, S, E) and (N, G, S, Ev).
struct Sizes {
    std::int64_t n, heads, groups, queries, keys, width, value_width;
    Shape query() const { return {n, heads, queries, width}; }
    Shape key() const { return {n, groups, keys, width}; }
    Shape value() const { return {n, groups, keys, value_width}; }
    Shape result() const { return {n, heads, queries, value_width}; }
};

struct Expected {
    Doubles y, dquery, dkey, dvalue;
};

/// `bias`: number that is added to a score (n, h, i, j), -infinity to exclude it. `kept`: factor of a weight.
using OfScore = std::function<double(std::int64_t, std::int64_t, std::int64_t, std::int64_t)>;

Expected attention_by_loops(const Sizes& z, const Doubles& query, const Doubles& key, const Doubles& value,
                            const Doubles& dy, double scale, const OfScore& bias, const OfScore& kept) {
    const auto at = [](std::int64_t i) { return static_cast<std::size_t>(i); };
    Expected made;
    made.y.assign(at(z.result().numel()), 0);
    made.dquery.assign(query.size(), 0);
    made.dkey.assign(key.size(), 0);
    made.dvalue.assign(value.size(), 0);
    for (std::int64_t n = 0; n < z.n; ++n)
        for (std::int64_t h = 0; h < z.heads; ++h)
            for (std::int64_t i = 0; i < z.queries; ++i) {
                const std::int64_t group = n * z.groups + h / (z.heads / z.groups);
                const std::int64_t q = ((n * z.heads + h) * z.queries + i) * z.width;
                const std::int64_t o = ((n * z.heads + h) * z.queries + i) * z.value_width;
                Doubles weights;
                double largest = -infinite, total = 0;
                for (std::int64_t j = 0; j < z.keys; ++j) {
                    double sum = 0;
                    for (std::int64_t e = 0; e < z.width; ++e)
                        sum += query[at(q + e)] * key[at((group * z.keys + j) * z.width + e)];
                    const double added = bias(n, h, i, j);
                    weights.push_back(added == -infinite ? -infinite : sum * scale + added);
                    largest = std::max(largest, weights.back());
                }
                for (double& weight : weights) total += weight = weight == -infinite ? 0 : std::exp(weight - largest);
                Doubles slopes;
                double mean = 0;
                for (std::int64_t j = 0; j < z.keys; ++j) {
                    double& weight = weights[at(j)];
                    if (total != 0) weight /= total;
                    double slope = 0;
                    for (std::int64_t e = 0; e < z.value_width; ++e) {
                        const std::int64_t v = (group * z.keys + j) * z.value_width + e;
                        made.y[at(o + e)] += weight * kept(n, h, i, j) * value[at(v)];
                        made.dvalue[at(v)] += weight * kept(n, h, i, j) * dy[at(o + e)];
                        slope += dy[at(o + e)] * value[at(v)] * kept(n, h, i, j);
                    }
                    slopes.push_back(slope);
                    mean += weight * slope;
                }
                for (std::int64_t j = 0; j < z.keys; ++j)
                    for (std::int64_t e = 0; e < z.width; ++e) {
                        const std::int64_t k = (group * z.keys + j) * z.width + e;
                        const double of_score = weights[at(j)] * (slopes[at(j)] - mean) * scale;
                        made.dquery[at(q + e)] += of_score * key[at(k)];
                        made.dkey[at(k)] += of_score * query[at(q + e)];
                    }
            }
    return made;
}

double unmasked(std::int64_t, std::int64_t, std::int64_t, std::int64_t) { return 0; }
double undropped(std::int64_t, std::int64_t, std::int64_t, std::int64_t) { return 1; }
double causal(std::int64_t, std::int64_t, std::int64_t i, std::int64_t j) { return j > i ? -infinite : 0; }

void check_close(const Tensor& found, const Doubles& expected, double bound) {
    const Doubles values = doubles_of(found);
    REQUIRE(values.size() == expected.size());
    double largest = 1, error = 0;
    for (const double value : expected) largest = std::max(largest, std::abs(value));
    for (std::size_t i = 0; i < values.size(); ++i) {
        const double difference = std::abs(values[i] - expected[i]);
        error = difference <= error ? error : difference;  // also NaN
    }
    CHECK(error <= bound * largest);
}

double bound_of(DType dtype) {
    return dtype == DType::f64 ? 1e-13 : dtype == DType::f16 ? 4e-3 : dtype == DType::bf16 ? 3e-2 : 3e-6;
}

/// Compares y and all gradients with the loops; `heads_last`: the operands are (N, L, H, E), transposed.
void check_attention(const Sizes& z, const AttentionOptions& options, const OfScore& bias, const OfScore& kept,
                     DType dtype = DType::f32, bool heads_last = false) {
    INFO(z.query().str() << " " << z.key().str() << " " << z.value().str() << " " << name_of(dtype) << " "
                         << heads_last);
    const auto operand = [&](const Shape& shape, int salt) {
        const Tensor x = waves(shape, salt, dtype);
        return heads_last ? x.transpose(1, 2).contiguous().requires_grad_() : x.requires_grad_();
    };
    const Tensor query = operand(z.query(), 1), key = operand(z.key(), 2), value = operand(z.value(), 3);
    const auto by_heads = [&](const Tensor& x) { return heads_last ? x.transpose(1, 2) : x; };
    const Tensor q = by_heads(query), k = by_heads(key), v = by_heads(value), dy = waves(z.result(), 4, dtype);
    const double scale = options.scale.value_or(1 / std::sqrt(static_cast<double>(z.width)));
    const Expected expected = attention_by_loops(z, doubles_of(q.detach()), doubles_of(k.detach()),
                                                 doubles_of(v.detach()), doubles_of(dy), scale, bias, kept);
    manual_seed(7);
    const Tensor y = scaled_dot_product_attention(q, k, v, options);
    CHECK(y.dtype() == dtype);
    CHECK(y.shape() == z.result());
    check_close(y.detach(), expected.y, bound_of(dtype));
    y.backward(heads_last ? dy.transpose(1, 2).contiguous().transpose(1, 2) : dy);
    check_close(by_heads(query.grad()), expected.dquery, 2 * bound_of(dtype));
    check_close(by_heads(key.grad()), expected.dkey, 8 * bound_of(dtype));
    check_close(by_heads(value.grad()), expected.dvalue, 8 * bound_of(dtype));
}

/// The factor of a weight that dropout of all weights (n, heads, queries, keys) draws with this seed as first call.
OfScore dropped(const Sizes& z, double p) {
    return [z, p](std::int64_t n, std::int64_t h, std::int64_t i, std::int64_t j) {
        StepCounters state;
        state.seed = 7;
        const std::int64_t e = ((n * z.heads + h) * z.queries + i) * z.keys + j;
        const float drawn = to_uniform(random_bits(state, 0, static_cast<std::uint64_t>(e)));
        return drawn < static_cast<float>(p) ? 0 : 1 / (1 - p);
    };
}

}  // namespace

TEST_CASE("attention: values and gradients of several blocks, and of few elements") {
    for (const Sizes& z : {Sizes{2, 2, 2, 3, 5, 4, 3}, Sizes{1, 1, 1, 1, 1, 1, 1}, Sizes{2, 1, 1, 150, 130, 8, 5},
                           Sizes{1, 3, 3, 65, 40, 16, 16}, Sizes{3, 4, 2, 70, 9, 4, 4}, Sizes{1, 6, 1, 64, 33, 4, 2}}) {
        AttentionOptions options{.enable_gqa = z.heads != z.groups};
        for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16})
            check_attention(z, options, unmasked, undropped, dtype);
        check_attention(z, options, unmasked, undropped, DType::f32, true);
        options.is_causal = true;
        for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16})
            check_attention(z, options, causal, undropped, dtype);
        check_attention(z, options, causal, undropped, DType::f32, true);
        options.scale = -0.7;
        check_attention(z, options, causal, undropped);
    }
}

TEST_CASE("attention: masks of every shape, of bool and of numbers") {
    const Sizes z{2, 3, 3, 70, 9, 4, 4};
    for (const Shape& shape : {Shape{2, 3, 70, 9}, Shape{2, 1, 1, 9}, Shape{70, 9}, Shape{3, 1, 9}, Shape{2, 1, 70, 1},
                               Shape{9}, Shape{1}}) {
        INFO(shape.str());
        const Tensor numbers = waves(shape, 5);
        const Tensor chosen = numbers > -0.5;  // some queries attend to nothing
        const auto whole = [&](const Tensor& mask) { return doubles_of(mask.expand({2, 3, 70, 9}).contiguous()); };
        const auto of = [](const Doubles& values, std::int64_t n, std::int64_t h, std::int64_t i, std::int64_t j) {
            return values[static_cast<std::size_t>(((n * 3 + h) * 70 + i) * 9 + j)];
        };
        const Doubles added = whole(numbers), attends = whole(chosen.to(DType::f32));
        const OfScore excluded = [&](auto... at) { return of(attends, at...) != 0 ? 0 : -infinite; };
        const OfScore both = [&](auto... at) { return of(attends, at...) != 0 ? of(added, at...) : -infinite; };
        check_attention(z, {.attn_mask = chosen}, excluded, undropped);
        check_attention(z, {.attn_mask = where(chosen, numbers, -infinite)}, both, undropped, DType::f64);
        check_attention(z, {.attn_mask = where(chosen, numbers, -infinite)}, both, undropped, DType::bf16, true);
        check_attention(z, {.attn_mask = chosen.expand({2, 3, 70, 9})}, excluded, undropped, DType::f16);
    }
    const Tensor steps = waves({9, 70}, 5);  // neither rows nor columns of it are adjacent
    const Doubles values = doubles_of(steps);
    check_attention(
        z, {.attn_mask = steps.transpose(0, 1)},
        [&](std::int64_t, std::int64_t, std::int64_t i, std::int64_t j) {
            return values[static_cast<std::size_t>(j * 70 + i)];
        },
        undropped);
}

TEST_CASE("attention: dropout has the numbers of dropout of the weights") {
    for (const Sizes& z : {Sizes{2, 2, 2, 3, 5, 4, 3}, Sizes{1, 2, 1, 70, 130, 4, 4}}) {
        const bool in_groups = z.heads != z.groups;
        for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16})
            check_attention(z, {.dropout_p = 0.3, .enable_gqa = in_groups}, unmasked, dropped(z, 0.3), dtype);
        check_attention(z, {.dropout_p = 0.3, .is_causal = true, .enable_gqa = in_groups}, causal, dropped(z, 0.3));
        check_attention(z, {.dropout_p = 1, .enable_gqa = in_groups}, unmasked, [](auto...) { return 0; });
    }
    const Tensor x = waves({2, 3, 4}, 1);
    for (const double p : {-0.1, 1.5, not_a_number})
        CHECK(test::message_of<InvalidArgument>([&] {
                  scaled_dot_product_attention(x, x, x, {.dropout_p = p});
              }).starts_with("scaled_dot_product_attention: invalid dropout_p ("));
}

TEST_CASE("attention: other numbers of dimensions, and leading dimensions that are broadcast") {
    const Tensor query = waves({2, 3, 2, 7, 4}, 1), key = waves({2, 3, 2, 5, 4}, 2), value = waves({2, 3, 2, 5, 3}, 3);
    const auto slice = [](const Tensor& x, int a, int b) { return x.select(0, a).select(0, b); };
    const Tensor mask = waves({3, 1, 7, 5}, 4) > 0;
    const Tensor all = scaled_dot_product_attention(query, key, value, {.attn_mask = mask});
    for (int a = 0; a < 2; ++a)
        for (int b = 0; b < 3; ++b) {
            const AttentionOptions options{.attn_mask = mask.select(0, b)};
            const Tensor part =
                scaled_dot_product_attention(slice(query, a, b), slice(key, a, b), slice(value, a, b), options);
            CHECK(doubles_of(slice(all, a, b)) == doubles_of(part));
            const Tensor matrix = scaled_dot_product_attention(
                slice(query, a, b).select(0, 1), slice(key, a, b).select(0, 1), slice(value, a, b).select(0, 1),
                {.attn_mask = mask.select(0, b).select(0, 0)});
            CHECK(doubles_of(part.select(0, 1)) == doubles_of(matrix));
        }
    // One key and value for all rows, then one query, then one value for several keys: gradients are sums.
    const Tensor one_key = waves({5, 4}, 2).requires_grad_(), one_value = waves({5, 3}, 3).requires_grad_();
    const Tensor rows = waves({3, 7, 4}, 1).requires_grad_();
    const Tensor dy = waves({3, 7, 3}, 5);
    scaled_dot_product_attention(rows, one_key, one_value).backward(dy);
    const Sizes z{1, 1, 1, 21, 5, 4, 3};
    const Expected expected =
        attention_by_loops(z, doubles_of(rows.detach()), doubles_of(one_key.detach()), doubles_of(one_value.detach()),
                           doubles_of(dy), 0.5, unmasked, undropped);
    check_close(rows.grad(), expected.dquery, 1e-6);
    check_close(one_key.grad(), expected.dkey, 1e-6);
    check_close(one_value.grad(), expected.dvalue, 1e-6);
    const Tensor several = waves({2, 5, 3}, 3);
    const Tensor shared = scaled_dot_product_attention(rows.select(0, 0), one_key, several);
    for (int i = 0; i < 2; ++i)
        check_close(shared.select(0, i),
                    doubles_of(scaled_dot_product_attention(rows.select(0, 0), one_key, several.select(0, i))), 1e-6);
    CHECK_THROWS_AS(scaled_dot_product_attention(rows, waves({2, 5, 4}, 1), waves({2, 5, 4}, 1)), InvalidArgument);
}

TEST_CASE("attention: empty operands") {
    const auto shape_of = [](const Sizes& z) {
        const Tensor query = waves(z.query(), 1).requires_grad_(), key = waves(z.key(), 2).requires_grad_(),
                     value = waves(z.value(), 3).requires_grad_();
        const Tensor y = scaled_dot_product_attention(query, key, value);
        CHECK(y.shape() == z.result());
        for (const double element : doubles_of(y.detach())) CHECK(element == 0);
        y.backward(Tensor::ones(y.shape()));
        for (const Tensor& operand : {query, key, value}) {
            CHECK(operand.grad().shape() == operand.shape());
            for (const double element : doubles_of(operand.grad())) CHECK(element == 0);
        }
    };
    shape_of({0, 2, 2, 3, 5, 4, 3});
    shape_of({2, 2, 2, 0, 5, 4, 3});
    shape_of({2, 2, 2, 3, 0, 4, 3});
    shape_of({2, 2, 2, 3, 5, 4, 0});
    // Without a width, all scores are 0.
    const Tensor y = scaled_dot_product_attention(waves({1, 2, 0}, 1), waves({1, 4, 0}, 1), waves({1, 4, 1}, 3));
    const Doubles value = doubles_of(waves({1, 4, 1}, 3));
    CHECK(doubles_of(y)[0] == Approx(std::accumulate(value.begin(), value.end(), 0.0) / 4));
}

TEST_CASE("attention: infinities and NaN as in PyTorch") {
    const Tensor ones = Tensor::ones({1, 2, 1}), value = Tensor::from(std::vector<float>{1, 2, 3}, {1, 3, 1});
    const auto with_keys = [&](const std::vector<float>& keys, const AttentionOptions& options = {}) {
        return doubles_of(scaled_dot_product_attention(ones, Tensor::from(keys, {1, 3, 1}), value, options));
    };
    const auto inf = static_cast<float>(infinite), nan = static_cast<float>(not_a_number);
    CHECK(with_keys({-inf, -inf, -inf}) == Doubles{0, 0});
    CHECK(with_keys({0, -inf, 0}) == Doubles{2, 2});
    CHECK(std::isnan(with_keys({0, inf, 0})[1]));
    CHECK(std::isnan(with_keys({0, 0, nan})[0]));
    CHECK(std::isnan(with_keys({nan, 0, 0})[0]));
    CHECK(with_keys({0, 0, nan}, {.is_causal = true}) == Doubles{1, 1.5});
    CHECK(with_keys({1e4F, 1e4F, -1e4F}) == Doubles{1.5, 1.5});
    const Tensor bias = Tensor::from(std::vector<float>{0, nan, 0, 0, 0, -inf}, {2, 3});
    const Doubles biased = with_keys({0, 0, 0}, {.attn_mask = bias});
    CHECK(std::isnan(biased[0]));
    CHECK(biased[1] == 1.5);
}

TEST_CASE("attention: equal bits with any number of threads") {
    for (const Sizes& z :
         {Sizes{1, 1, 1, 300, 200, 16, 16}, Sizes{3, 2, 1, 130, 70, 8, 8}, Sizes{2, 5, 5, 64, 64, 16, 8}})
        for (const bool is_causal : {false, true}) {
            std::vector<Doubles> first;
            for (const int threads : {1, 2, 3, 8}) {
                const ComputeScope scope({.threads = threads});
                manual_seed(3);
                const Tensor query = waves(z.query(), 1).requires_grad_(), key = waves(z.key(), 2).requires_grad_(),
                             value = waves(z.value(), 3).requires_grad_();
                const Tensor y = scaled_dot_product_attention(
                    query, key, value, {.dropout_p = 0.2, .is_causal = is_causal, .enable_gqa = true});
                y.backward(waves(z.result(), 4));
                const std::vector<Doubles> found{doubles_of(y.detach()), doubles_of(query.grad()),
                                                 doubles_of(key.grad()), doubles_of(value.grad())};
                if (first.empty()) first = found;
                CHECK(found == first);
            }
        }
}

TEST_CASE("attention: forward and backward hold no matrix of all scores") {
    constexpr std::int64_t length = 2048;
    const Device device = Device::cpu(0);
    const auto peak_of = [&](const AttentionOptions& options) {
        const auto operand = [&](int salt) { return waves({1, 2, length, 8}, salt).to(device).requires_grad_(); };
        const Tensor query = operand(1), key = operand(2), value = operand(3);
        const Tensor dy = waves({1, 2, length, 8}, 4).to(device);
        reset_peak_memory(device);
        const std::size_t before = memory_stats(device).current;
        scaled_dot_product_attention(query, key, value, options).backward(dy);
        return memory_stats(device).peak - before;
    };
    // One matrix of one byte per score would be more.
    constexpr std::size_t bytes_of_scores = std::size_t{2} * length * length;
    const ComputeScope scope({.threads = 2});
    CHECK(peak_of({}) < bytes_of_scores);
    CHECK(peak_of({.is_causal = true}) < bytes_of_scores);
    CHECK(peak_of({.attn_mask = Tensor::ones({1, length}, DType::f32, device) > 0}) < bytes_of_scores);
    CHECK(peak_of({.dropout_p = 0.1}) < bytes_of_scores);
}

TEST_CASE("attention: gradients of a mask, and second derivatives with dropout and groups") {
    const Tensor query = waves({2, 4, 3, 4}, 1, DType::f64), key = waves({2, 2, 5, 4}, 2, DType::f64);
    const Tensor value = waves({2, 2, 5, 3}, 3, DType::f64), dy = waves({2, 4, 3, 3}, 4, DType::f64);
    const Tensor mask = waves({3, 5}, 5, DType::f64), direction = waves({2, 2, 5, 4}, 6, DType::f64);
    const AttentionOptions options{.attn_mask = mask, .dropout_p = 0.3, .enable_gqa = true};
    const auto attention = [&](const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& o) {
        manual_seed(11);
        return scaled_dot_product_attention(q, k, v, o);
    };
    SECTION("the gradients of a mask are differences of results") {
        const Tensor leaf = mask.clone().requires_grad_();
        AttentionOptions learned = options;
        learned.attn_mask = leaf;
        attention(query, key, value, learned).backward(dy);
        const auto moved = [&](double distance) {
            AttentionOptions to = options;
            to.attn_mask = mask + waves({3, 5}, 8, DType::f64) * distance;
            return sum(attention(query, key, value, to) * dy).item();
        };
        const double difference = (moved(1e-6) - moved(-1e-6)) / 2e-6;
        CHECK(sum(leaf.grad() * waves({3, 5}, 8, DType::f64)).item() == Approx(difference).epsilon(1e-7));
    }
    SECTION("both ways to the gradients agree, and so do the second derivatives with differences") {
        const auto gradients = [&](const Tensor& k, bool create_graph) {
            const Tensor q = query.clone().requires_grad_(), v = value.clone().requires_grad_();
            return grad({attention(q, k, v, options)}, {q, k, v}, {dy}, {.create_graph = create_graph});
        };
        const Tensor leaf = key.clone().requires_grad_();
        const std::vector<Tensor> plain = gradients(leaf, false), composed = gradients(leaf, true);
        for (std::size_t i = 0; i < 3; ++i) check_close(composed[i].detach(), doubles_of(plain[i]), 1e-13);
        const auto total = [](const std::vector<Tensor>& all) {
            return sum(all[0] * 0.3) + sum(square(all[1])) + sum(all[2] * 0.7);
        };
        const Tensor second = grad({total(composed)}, {leaf})[0];
        const auto moved = [&](double distance) {
            return total(gradients((key + direction * distance).requires_grad_(), false)).item();
        };
        CHECK(sum(second * direction).item() == Approx((moved(1e-5) - moved(-1e-5)) / 2e-5).epsilon(1e-6));
    }
}
