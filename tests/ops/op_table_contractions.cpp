// Matrix products of any dimensions, einsum and attention in the op table.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "lockstep/ops/functional.h"
#include "lockstep/tests/ops/function_op.h"

namespace lockstep::test {

namespace {

/// Sums of products over all values of all letters.
Array summed_products(const std::vector<std::string>& letters, const std::string& result,
                      const std::vector<Array>& in) {
    std::map<char, std::ptrdiff_t> sizes;
    for (std::size_t i = 0; i < letters.size(); ++i)
        for (std::size_t d = 0; d < letters[i].size(); ++d) sizes[letters[i][d]] = in[i].shape[d];
    std::string all;
    Sizes space, shape;
    for (const auto& [letter, size] : sizes) {
        all += letter;
        space.push_back(size);
    }
    for (const char letter : result) shape.push_back(sizes[letter]);
    Array y(shape);
    reference::for_each_index(space, [&](const Sizes& at) {
        const auto place = [&](const std::string& of, const Sizes& shape_of) {
            Sizes index;
            for (const char letter : of) index.push_back(at[all.find(letter)]);
            return reference::position(shape_of, index);
        };
        double product = 1;
        for (std::size_t i = 0; i < in.size(); ++i) product *= in[i][place(letters[i], in[i].shape)];
        y[place(result, shape)] += product;
    });
    return y;
}

/// `torch`: the expression in PyTorch. `broadcast`: sizes of operands before they are repeated along dimensions of
/// size 1.
void add_products(Table& table) {
    struct Case {
        Sizes a, b;
        std::vector<std::string> letters;
        std::string result;
        std::vector<bool> batch;
    };
    for (const Case& c :
         {Case{{5}, {5}, {"k", "k"}, "", {false, false}}, Case{{4, 5}, {5}, {"mk", "k"}, "m", {true, false}},
          Case{{5}, {5, 3}, {"k", "kn"}, "n", {false, false}}, Case{{5}, {2, 5, 3}, {"k", "bkn"}, "bn", {false, true}},
          Case{{2, 4, 5}, {5}, {"bmk", "k"}, "bm", {true, false}},
          Case{{2, 3, 4, 5}, {2, 3, 5, 2}, {"abmk", "abkn"}, "abmn", {true, true}},
          Case{{2, 3, 4, 5}, {5, 2}, {"abmk", "kn"}, "abmn", {true, false}},
          Case{{4, 5}, {2, 3, 5, 2}, {"mk", "abkn"}, "abmn", {false, true}},
          Case{{2, 3, 4, 5}, {3, 5, 2}, {"abmk", "bkn"}, "abmn", {true, false}}}) {
        FunctionOp& op = add_function(
            table, "a @ b", {{c.a}, {c.b}}, [](const auto& in) { return matmul(in[0], in[1]); },
            [c](const std::vector<Array>& in) { return summed_products(c.letters, c.result, in); });
        op.batch_inputs = c.batch;
    }
    // Batches of size 1 are repeated.
    add_function(
        table, "a @ b", {{{2, 1, 4, 5}}, {{1, 3, 5, 2}}}, [](const auto& in) { return matmul(in[0], in[1]); },
        [](const std::vector<Array>& in) {
            return summed_products({"amk", "bkn"}, "abmn",
                                   {reference::reshape(in[0], {2, 4, 5}), reference::reshape(in[1], {3, 5, 2})});
        })
        .batch_inputs = {true, false};

    struct Einsum {
        std::string equation;
        std::vector<Sizes> shapes;
        std::vector<std::string> letters;
        std::string result;
        std::vector<bool> batch;
    };
    for (const Einsum& c :
         {Einsum{"ij,jk->ik", {{3, 4}, {4, 2}}, {"ij", "jk"}, "ik", {true, false}},
          Einsum{"bhld,bhsd->bhls", {{2, 3, 4, 5}, {2, 3, 6, 5}}, {"bhld", "bhsd"}, "bhls", {true, true}},
          Einsum{"ij,j", {{3, 4}, {4}}, {"ij", "j"}, "i", {true, false}},
          Einsum{"ijk->kj", {{2, 3, 4}}, {"ijk"}, "kj", {false}},
          Einsum{"bi,ij,bj->b", {{3, 4}, {4, 5}, {3, 5}}, {"bi", "ij", "bj"}, "b", {true, false, true}},
          Einsum{"ij,kl->ki", {{2, 3}, {4, 2}}, {"ij", "kl"}, "ki", {false, true}}}) {
        std::vector<Input> inputs;
        std::string operands;
        for (std::size_t i = 0; i < c.shapes.size(); ++i) {
            inputs.push_back({c.shapes[i]});
            operands += std::string(", ") + static_cast<char>('a' + i);
        }
        FunctionOp& op = add_function(
            table, "torch.einsum('" + c.equation + "'" + operands + ")", inputs,
            [c](const auto& in) { return einsum(c.equation, in); },
            [c](const std::vector<Array>& in) { return summed_products(c.letters, c.result, in); });
        op.batch_inputs = c.batch;
    }
}

/// Attention of (N, H, L, E) with scores that `change` may change for (query, key).
Array attended(const std::vector<Array>& in, double scale, const std::function<double(double, Sizes)>& change) {
    Array scores = summed_products({"nhle", "nhse"}, "nhls", {in[0], in[1]});
    std::ptrdiff_t next = 0;
    reference::for_each_index(scores.shape, [&](const Sizes& at) {
        scores[next] = change(scores[next] * scale, at);
        ++next;
    });
    const Array weights = reference::map(reference::log_softmax(scores, 3), [](double x) { return std::exp(x); });
    return summed_products({"nhls", "nhse"}, "nhle", {weights, in[2]});
}

void add_attention(Table& table) {
    const std::vector<Input> operands{{{2, 2, 3, 4}}, {{2, 2, 5, 4}}, {{2, 2, 5, 3}}};
    const double none = -std::numeric_limits<double>::infinity();
    const auto same = [](double score, const Sizes&) { return score; };
    const std::string call = "F.scaled_dot_product_attention(a, b, c";
    add_function(
        table, call + ")", operands, [](const auto& in) { return scaled_dot_product_attention(in[0], in[1], in[2]); },
        [same](const std::vector<Array>& in) { return attended(in, 0.5, same); })
        .batch_inputs = {true, true, true};
    add_function(
        table, call + ", is_causal=True, scale=0.3)", operands,
        [](const auto& in) {
            return scaled_dot_product_attention(in[0], in[1], in[2], {.is_causal = true, .scale = 0.3});
        },
        [none](const std::vector<Array>& in) {
            return attended(in, 0.3, [none](double score, const Sizes& at) { return at[3] > at[2] ? none : score; });
        })
        .batch_inputs = {true, true, true};
    add_function(
        table, call + ", enable_gqa=True)", {{{2, 4, 3, 4}}, {{2, 2, 5, 4}}, {{2, 1, 5, 3}}},
        [](const auto& in) { return scaled_dot_product_attention(in[0], in[1], in[2], {.enable_gqa = true}); },
        [same](const std::vector<Array>& in) {
            const auto repeated = [](const Array& x) {  // for four heads
                Array y(Sizes{x.shape[0], 4, x.shape[2], x.shape[3]});
                std::ptrdiff_t next = 0;
                reference::for_each_index(y.shape, [&](const Sizes& at) {
                    y[next++] = x[reference::position(x.shape, {at[0], at[1] * x.shape[1] / 4, at[2], at[3]})];
                });
                return y;
            };
            return attended({in[0], repeated(in[1]), repeated(in[2])}, 0.5, same);
        })
        .batch_inputs = {true, true, true};
    std::vector<Input> with_bias = operands;
    with_bias.push_back({{3, 5}});
    add_function(
        table, call + ", attn_mask=d)", with_bias,
        [](const auto& in) { return scaled_dot_product_attention(in[0], in[1], in[2], {.attn_mask = in[3]}); },
        [](const std::vector<Array>& in) {
            return attended(in, 0.5, [&in](double score, const Sizes& at) { return score + in[3][at[2] * 5 + at[3]]; });
        })
        .batch_inputs = {true, true, true, false};
    with_bias.back().gradient = false;
    add_function(
        table, call + ", attn_mask=d > -0.5)", with_bias,
        [](const auto& in) { return scaled_dot_product_attention(in[0], in[1], in[2], {.attn_mask = in[3] > -0.5}); },
        [none](const std::vector<Array>& in) {
            return attended(in, 0.5, [&in, none](double score, const Sizes& at) {
                return in[3][at[2] * 5 + at[3]] > -0.5 ? score : none;
            });
        })
        .batch_inputs = {true, true, true, false};
}

}  // namespace

void add_contractions(Table& table) {
    add_products(table);
    add_attention(table);
}

}  // namespace lockstep::test
