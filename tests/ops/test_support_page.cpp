// docs/support.md names exactly the operations, layers, losses, optimizers, schedules, dtypes, backends and image
// formats of the headers, and states for each operation whether it takes integers. The README counts them.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/loss.h"
#include "lockstep/parallel/comm/process_group.h"
#include "lockstep/parallel/data/image_file.h"
#include "lockstep/runtime/error.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/messages.h"
#include "lockstep/tests/ops/op_table.h"

using namespace lockstep;

namespace {

using Names = std::set<std::string>;

std::string read(const std::string& name) {
    std::ifstream file(std::filesystem::path(LOCKSTEP_SOURCE_DIR) / name);
    REQUIRE(file);
    return {std::istreambuf_iterator<char>(file), {}};
}

/// Adds what the first group of `expression` captures.
void find_all(const std::string& text, const char* expression, Names& names) {
    const std::regex regex(expression);
    for (std::sregex_iterator match(text.begin(), text.end(), regex), end; match != end; ++match)
        names.insert((*match)[1].str());
}

Names declared(const std::string& header, const char* expression) {
    Names names;
    find_all(read(header), expression, names);
    return names;
}

/// Rows of the tables in a section of the page, as cells.
std::vector<std::vector<std::string>> rows(const std::string& page, const std::string& section) {
    std::vector<std::vector<std::string>> found;
    std::istringstream lines(page);
    bool inside = false, head = true;
    for (std::string line; std::getline(lines, line);) {
        if (line.starts_with("## ")) inside = line == "## " + section;
        if (!inside || !line.starts_with('|')) {
            head = true;
            continue;
        }
        if (std::exchange(head, false) || line.starts_with("|-")) continue;
        std::vector<std::string> cells;
        std::istringstream cut(line.substr(1));
        for (std::string cell; std::getline(cut, cell, '|');) {
            const auto begin = cell.find_first_not_of(' ');
            cells.push_back(begin == std::string::npos ? ""
                                                       : cell.substr(begin, cell.find_last_not_of(' ') + 1 - begin));
        }
        found.push_back(cells);
    }
    return found;
}

/// Names in backquotes in the first column.
Names shown(const std::string& page, const std::string& section) {
    Names names;
    for (const auto& cells : rows(page, section)) find_all(cells[0], "`([A-Za-z0-9_]+)`", names);
    return names;
}

/// "missing: a; unknown: b"; empty if the page names exactly the existing ones.
std::string difference(const Names& there, const Names& on_page) {
    std::string text;
    for (const std::string& name : there)
        if (!on_page.contains(name)) text += "missing: " + name + "; ";
    for (const std::string& name : on_page)
        if (!there.contains(name)) text += "unknown: " + name + "; ";
    return text;
}

Names operations() {
    Names all;
    for (const char* header : {"ops/functional.h", "ops/elementwise.h", "ops/pieces.h"})
        all.merge(declared(
            header,
            R"(\n(?:inline )?(?:std::vector<Tensor> |std::pair<Tensor, Tensor> |Tensor |bool |UniqueResult |ValuesAndIndices[ (])(\w+)\)?\()"));
    return all;
}

/// The functions that an entry of the op table calls.
Names functions_of(const test::Op& op) {
    Names names;
    const std::string expression = op.torch();
    find_all(expression, R"((?:torch\.|F\.|[a-e]\.)(\w+)\()", names);
    if (expression.find(" @ ") != std::string::npos) names.insert("matmul");
    const std::map<char, std::string> symbols{{'+', "add"}, {'-', "sub"}, {'*', "mul"}, {'/', "div"}};
    for (std::size_t i = 1; i + 1 < expression.size(); ++i)
        if (expression[i - 1] == ' ' && expression[i + 1] == ' ' && symbols.contains(expression[i]))
            names.insert(symbols.at(expression[i]));
    if (expression.empty()) names.insert(op.name().substr(0, op.name().find_first_of(" ,")));
    return names;
}

/// Calls of each operation with the given tensor as its first argument.
std::map<std::string, std::function<void(const Tensor&)>> calls() {
    const Shape image{1, 2, 4, 4};
    const auto as_image = [image](const Tensor& x) { return x.flatten().slice(0, 0, 32).reshape(image); };
    const auto as_matrix = [](const Tensor& x) { return x.flatten().slice(0, 0, 16).reshape({4, 4}); };
    const auto weights = [](const Tensor& x, const Shape& shape) { return Tensor::full(shape, 1, x.dtype()); };
    return {
        {"add", [](const Tensor& x) { add(x, x); }},
        {"sub", [](const Tensor& x) { sub(x, x); }},
        {"mul", [](const Tensor& x) { mul(x, x); }},
        {"div", [](const Tensor& x) { div(x, x); }},
        {"neg", [](const Tensor& x) { neg(x); }},
        {"exp", [](const Tensor& x) { exp(x); }},
        {"log", [](const Tensor& x) { log(x); }},
        {"sqrt", [](const Tensor& x) { sqrt(x); }},
        {"square", [](const Tensor& x) { square(x); }},
        {"sign", [](const Tensor& x) { sign(x); }},
        {"abs", [](const Tensor& x) { abs(x); }},
        {"reciprocal", [](const Tensor& x) { reciprocal(x); }},
        {"rsqrt", [](const Tensor& x) { rsqrt(x); }},
        {"floor", [](const Tensor& x) { floor(x); }},
        {"ceil", [](const Tensor& x) { ceil(x); }},
        {"round", [](const Tensor& x) { round(x); }},
        {"expm1", [](const Tensor& x) { expm1(x); }},
        {"log1p", [](const Tensor& x) { log1p(x); }},
        {"erf", [](const Tensor& x) { erf(x); }},
        {"sin", [](const Tensor& x) { sin(x); }},
        {"cos", [](const Tensor& x) { cos(x); }},
        {"log2", [](const Tensor& x) { lockstep::log2(x); }},
        {"log10", [](const Tensor& x) { lockstep::log10(x); }},
        {"exp2", [](const Tensor& x) { lockstep::exp2(x); }},
        {"tan", [](const Tensor& x) { lockstep::tan(x); }},
        {"asin", [](const Tensor& x) { lockstep::asin(x); }},
        {"acos", [](const Tensor& x) { lockstep::acos(x); }},
        {"atan", [](const Tensor& x) { lockstep::atan(x); }},
        {"sinh", [](const Tensor& x) { lockstep::sinh(x); }},
        {"cosh", [](const Tensor& x) { lockstep::cosh(x); }},
        {"asinh", [](const Tensor& x) { lockstep::asinh(x); }},
        {"acosh", [](const Tensor& x) { lockstep::acosh(x); }},
        {"atanh", [](const Tensor& x) { lockstep::atanh(x); }},
        {"trunc", [](const Tensor& x) { lockstep::trunc(x); }},
        {"frac", [](const Tensor& x) { frac(x); }},
        {"remainder", [](const Tensor& x) { lockstep::remainder(x, 2.0); }},
        {"threshold", [](const Tensor& x) { threshold(x, 0.5, 2); }},
        {"hardshrink", [](const Tensor& x) { hardshrink(x); }},
        {"softshrink", [](const Tensor& x) { softshrink(x); }},
        {"tanhshrink", [](const Tensor& x) { tanhshrink(x); }},
        {"logit", [](const Tensor& x) { logit(x); }},
        {"logaddexp", [](const Tensor& x) { logaddexp(x, x); }},
        {"xlogy", [](const Tensor& x) { xlogy(x, x); }},
        {"lerp", [](const Tensor& x) { lockstep::lerp(x, x, 0.5); }},
        {"addcmul", [](const Tensor& x) { addcmul(x, x, x); }},
        {"addcdiv", [](const Tensor& x) { addcdiv(x, x, x); }},
        {"nan_to_num", [](const Tensor& x) { nan_to_num(x); }},
        {"isnan", [](const Tensor& x) { lockstep::isnan(x); }},
        {"isinf", [](const Tensor& x) { lockstep::isinf(x); }},
        {"index_fill", [](const Tensor& x) { index_fill(x, 0, Tensor::zeros({2}, DType::i64), 3); }},
        {"index_add", [](const Tensor& x) { index_add(x, 0, Tensor::zeros({64}, DType::i64), x); }},
        {"embedding_bag",
         [as_matrix](const Tensor& x) {
             embedding_bag(Tensor::zeros({2, 2}, DType::i64), as_matrix(x));
         }},
        {"aminmax", [](const Tensor& x) { aminmax(x); }},
        {"var_mean", [](const Tensor& x) { var_mean(x); }},
        {"std_mean", [](const Tensor& x) { std_mean(x); }},
        {"count_nonzero", [](const Tensor& x) { count_nonzero(x); }},
        {"nansum", [](const Tensor& x) { nansum(x); }},
        {"nanmean", [](const Tensor& x) { nanmean(x); }},
        {"kthvalue", [](const Tensor& x) { kthvalue(x, 2); }},
        {"median", [](const Tensor& x) { median(x, 0); }},
        {"quantile", [](const Tensor& x) { quantile(is_half_type(x.dtype()) ? x.to(DType::f32) : x, 0.5, 0); }},
        {"kron", [](const Tensor& x) { kron(x, x); }},
        {"unbind", [](const Tensor& x) { unbind(x); }},
        {"narrow", [](const Tensor& x) { narrow(x, 0, 1, 2); }},
        {"movedim", [as_matrix](const Tensor& x) { movedim(as_matrix(x), 0, 1); }},
        {"unflatten",
         [](const Tensor& x) {
             unflatten(x, 0, {8, -1});
         }},
        {"hstack",
         [](const Tensor& x) {
             hstack({x, x});
         }},
        {"vstack",
         [](const Tensor& x) {
             vstack({x, x});
         }},
        {"tile", [](const Tensor& x) { tile(x, {2}); }},
        {"fliplr", [as_matrix](const Tensor& x) { fliplr(as_matrix(x)); }},
        {"flipud", [as_matrix](const Tensor& x) { flipud(as_matrix(x)); }},
        {"pad_sequence",
         [](const Tensor& x) {
             pad_sequence({x, x.slice(0, 0, 3)});
         }},
        {"rot90", [as_matrix](const Tensor& x) { rot90(as_matrix(x)); }},
        {"diag", [](const Tensor& x) { diag(x); }},
        {"diagonal", [as_matrix](const Tensor& x) { diagonal(as_matrix(x)); }},
        {"diag_embed", [](const Tensor& x) { diag_embed(x); }},
        {"trace", [as_matrix](const Tensor& x) { trace(as_matrix(x)); }},
        {"meshgrid",
         [](const Tensor& x) {
             meshgrid({x, x});
         }},
        {"bmm", [as_matrix](const Tensor& x) { bmm(as_matrix(x).unsqueeze(0), as_matrix(x).unsqueeze(0)); }},
        {"mv", [as_matrix](const Tensor& x) { mv(as_matrix(x), as_matrix(x).select(0, 0)); }},
        {"dot", [](const Tensor& x) { dot(x, x); }},
        {"addmm", [as_matrix](const Tensor& x) { addmm(as_matrix(x), as_matrix(x), as_matrix(x)); }},
        {"baddbmm",
         [as_matrix](const Tensor& x) {
             const Tensor matrices = as_matrix(x).unsqueeze(0);
             baddbmm(matrices, matrices, matrices);
         }},
        {"tensordot", [as_matrix](const Tensor& x) { tensordot(as_matrix(x), as_matrix(x)); }},
        {"cross", [](const Tensor& x) { cross(x.slice(0, 0, 3), x.slice(0, 0, 3)); }},
        {"cdist", [as_matrix](const Tensor& x) { cdist(as_matrix(x), as_matrix(x)); }},
        {"pairwise_distance", [as_matrix](const Tensor& x) { pairwise_distance(as_matrix(x), as_matrix(x)); }},
        {"bilinear",
         [as_matrix](const Tensor& x) {
             bilinear(as_matrix(x), as_matrix(x), x.slice(0, 0, 32).reshape({2, 4, 4}));
         }},
        {"adaptive_max_pool2d", [=](const Tensor& x) { adaptive_max_pool2d(as_image(x), 2); }},
        {"adaptive_max_pool1d", [=](const Tensor& x) { adaptive_max_pool1d(as_image(x).flatten(2), 2); }},
        {"local_response_norm", [=](const Tensor& x) { local_response_norm(as_image(x), 2); }},
        {"channel_shuffle", [=](const Tensor& x) { channel_shuffle(as_image(x), 2); }},
        {"conv_transpose1d",
         [=](const Tensor& x) {
             conv_transpose1d(as_image(x).flatten(2), weights(x, {2, 2, 3}));
         }},
        {"softmin", [](const Tensor& x) { softmin(x, 0); }},
        {"dropout1d", [=](const Tensor& x) { dropout1d(as_image(x)); }},
        {"dropout3d", [=](const Tensor& x) { dropout3d(as_image(x)); }},
        {"alpha_dropout", [](const Tensor& x) { alpha_dropout(x); }},
        {"gumbel_softmax", [](const Tensor& x) { gumbel_softmax(x); }},
        {"atan2", [](const Tensor& x) { atan2(x, x); }},
        {"hypot", [](const Tensor& x) { hypot(x, x); }},
        {"fmod", [](const Tensor& x) { fmod(x, 2.0); }},
        {"clamp", [](const Tensor& x) { clamp(x, 0.0, 1.0); }},
        {"pow", [](const Tensor& x) { pow(x, 2.0); }},
        {"relu", [](const Tensor& x) { relu(x); }},
        {"sigmoid", [](const Tensor& x) { sigmoid(x); }},
        {"tanh", [](const Tensor& x) { tanh(x); }},
        {"gelu", [](const Tensor& x) { gelu(x); }},
        {"silu", [](const Tensor& x) { silu(x); }},
        {"logsigmoid", [](const Tensor& x) { logsigmoid(x); }},
        {"leaky_relu", [](const Tensor& x) { leaky_relu(x); }},
        {"softplus", [](const Tensor& x) { softplus(x); }},
        {"elu", [](const Tensor& x) { elu(x); }},
        {"celu", [](const Tensor& x) { celu(x); }},
        {"selu", [](const Tensor& x) { selu(x); }},
        {"hardtanh", [](const Tensor& x) { hardtanh(x); }},
        {"relu6", [](const Tensor& x) { relu6(x); }},
        {"hardsigmoid", [](const Tensor& x) { hardsigmoid(x); }},
        {"hardswish", [](const Tensor& x) { hardswish(x); }},
        {"mish", [](const Tensor& x) { mish(x); }},
        {"softsign", [](const Tensor& x) { softsign(x); }},
        {"prelu", [weights](const Tensor& x) { prelu(x, weights(x, {1})); }},
        {"glu", [](const Tensor& x) { glu(x); }},
        {"normalize", [](const Tensor& x) { normalize(x, 2, 0); }},
        {"cosine_similarity", [](const Tensor& x) { cosine_similarity(x, x, 0); }},
        {"einsum",
         [](const Tensor& x) {
             einsum("i,i", {x, x});
         }},
        {"avg_pool2d", [=](const Tensor& x) { avg_pool2d(as_image(x), 2); }},
        {"adaptive_avg_pool2d", [=](const Tensor& x) { adaptive_avg_pool2d(as_image(x), 2); }},
        {"conv1d",
         [=](const Tensor& x) {
             conv1d(as_image(x).flatten(2), weights(x, {2, 2, 3}));
         }},
        {"max_pool1d", [=](const Tensor& x) { max_pool1d(as_image(x).flatten(2), 2); }},
        {"avg_pool1d", [=](const Tensor& x) { avg_pool1d(as_image(x).flatten(2), 2); }},
        {"adaptive_avg_pool1d", [=](const Tensor& x) { adaptive_avg_pool1d(as_image(x).flatten(2), 2); }},
        {"conv3d",
         [=](const Tensor& x) {
             conv3d(as_image(x).unsqueeze(2), weights(x, {2, 2, 1, 1, 1}));
         }},
        {"conv_transpose3d",
         [=](const Tensor& x) {
             conv_transpose3d(as_image(x).unsqueeze(2), weights(x, {2, 2, 1, 1, 1}));
         }},
        {"max_pool3d",
         [=](const Tensor& x) {
             max_pool3d(as_image(x).unsqueeze(2), {1, 2, 2});
         }},
        {"avg_pool3d",
         [=](const Tensor& x) {
             avg_pool3d(as_image(x).unsqueeze(2), {1, 2, 2});
         }},
        {"adaptive_avg_pool3d", [=](const Tensor& x) { adaptive_avg_pool3d(as_image(x).unsqueeze(2), 1); }},
        {"group_norm", [=](const Tensor& x) { group_norm(as_image(x), 2); }},
        {"instance_norm", [=](const Tensor& x) { instance_norm(as_image(x)); }},
        {"rms_norm", [as_matrix](const Tensor& x) { rms_norm(as_matrix(x), {4}); }},
        {"scaled_dot_product_attention",
         [as_matrix](const Tensor& x) { scaled_dot_product_attention(as_matrix(x), as_matrix(x), as_matrix(x)); }},
        {"isfinite", [](const Tensor& x) { isfinite(x); }},
        {"eq", [](const Tensor& x) { eq(x, x); }},
        {"ne", [](const Tensor& x) { ne(x, x); }},
        {"lt", [](const Tensor& x) { lt(x, x); }},
        {"le", [](const Tensor& x) { le(x, x); }},
        {"gt", [](const Tensor& x) { gt(x, x); }},
        {"ge", [](const Tensor& x) { ge(x, x); }},
        {"logical_not", [](const Tensor& x) { logical_not(x); }},
        {"logical_and", [](const Tensor& x) { logical_and(x, x); }},
        {"logical_or", [](const Tensor& x) { logical_or(x, x); }},
        {"logical_xor", [](const Tensor& x) { logical_xor(x, x); }},
        {"where", [](const Tensor& x) { where(x > 0, x, x); }},
        {"masked_fill", [](const Tensor& x) { masked_fill(x, x > 0, 2); }},
        {"maximum", [](const Tensor& x) { maximum(x, x); }},
        {"minimum", [](const Tensor& x) { minimum(x, x); }},
        {"embedding", [as_matrix](const Tensor& x) { embedding(Tensor::zeros({2}, DType::i64), as_matrix(x)); }},
        {"index_select", [](const Tensor& x) { index_select(x, 0, Tensor::zeros({2}, DType::i64)); }},
        {"gather", [](const Tensor& x) { gather(x, 0, Tensor::zeros({2}, DType::i64)); }},
        {"take_along_dim", [](const Tensor& x) { take_along_dim(x, Tensor::zeros({2}, DType::i64)); }},
        {"scatter", [](const Tensor& x) { scatter(x, 0, Tensor::zeros({2}, DType::i64), x); }},
        {"index_copy", [](const Tensor& x) { index_copy(x, 0, Tensor::zeros({x.size(0)}, DType::i64), x); }},
        {"scatter_add", [](const Tensor& x) { scatter_add(x, 0, Tensor::zeros({2}, DType::i64), x); }},
        {"sum", [](const Tensor& x) { sum(x); }},
        {"mean", [](const Tensor& x) { mean(x); }},
        {"argmax", [](const Tensor& x) { argmax(x); }},
        {"argmin", [](const Tensor& x) { argmin(x); }},
        {"max", [](const Tensor& x) { max(x, 0); }},
        {"min", [](const Tensor& x) { min(x, 0); }},
        {"amax", [](const Tensor& x) { amax(x); }},
        {"amin", [](const Tensor& x) { amin(x); }},
        {"any", [](const Tensor& x) { any(x); }},
        {"all", [](const Tensor& x) { all(x); }},
        {"var", [](const Tensor& x) { var(x); }},
        {"std", [](const Tensor& x) { lockstep::std(x); }},
        {"norm", [](const Tensor& x) { norm(x); }},
        {"logsumexp", [](const Tensor& x) { logsumexp(x, 0); }},
        {"prod", [](const Tensor& x) { prod(x); }},
        {"cumsum", [](const Tensor& x) { cumsum(x, 0); }},
        {"cumprod", [](const Tensor& x) { cumprod(x, 0); }},
        {"sort", [](const Tensor& x) { lockstep::sort(x); }},
        {"argsort", [](const Tensor& x) { argsort(x); }},
        {"topk", [](const Tensor& x) { topk(x, 2); }},
        {"pixel_shuffle",
         [](const Tensor& x) {
             pixel_shuffle(x.reshape({1, 16, 2, 2}), 2);
         }},
        {"pixel_unshuffle",
         [](const Tensor& x) {
             pixel_unshuffle(x.reshape({1, 4, 4, 4}), 2);
         }},
        {"outer", [](const Tensor& x) { outer(x.flatten(), x.flatten()); }},
        {"cat",
         [](const Tensor& x) {
             cat({x, x});
         }},
        {"stack",
         [](const Tensor& x) {
             stack({x, x});
         }},
        {"zeros_like", [](const Tensor& x) { zeros_like(x); }},
        {"ones_like", [](const Tensor& x) { ones_like(x); }},
        {"full_like", [](const Tensor& x) { full_like(x, 2); }},
        {"split", [](const Tensor& x) { split(x, 5); }},
        {"chunk", [](const Tensor& x) { chunk(x, 5); }},
        {"flip", [](const Tensor& x) { flip(x, 0); }},
        {"roll", [](const Tensor& x) { roll(x, 1, 0); }},
        {"repeat",
         [](const Tensor& x) {
             repeat(x, {2, 1});
         }},
        {"repeat_interleave", [](const Tensor& x) { repeat_interleave(x, 2, 0); }},
        {"tril", [as_matrix](const Tensor& x) { tril(as_matrix(x)); }},
        {"triu", [as_matrix](const Tensor& x) { triu(as_matrix(x)); }},
        {"pad",
         [](const Tensor& x) {
             pad(x, {1, 1});
         }},
        {"unfold",
         [](const Tensor& x) {
             unfold(x.reshape({1, 4, 4, 4}), 2);
         }},
        {"fold",
         [](const Tensor& x) {
             fold(x.reshape({1, 16, 4}), 3, 2);
         }},
        {"permute",
         [as_matrix](const Tensor& x) {
             permute(as_matrix(x), {1, 0});
         }},
        {"one_hot", [](const Tensor& x) { one_hot(x, 3); }},
        {"flatten", [](const Tensor& x) { flatten(x); }},
        {"matmul", [as_matrix](const Tensor& x) { matmul(as_matrix(x), as_matrix(x)); }},
        {"linear", [as_matrix](const Tensor& x) { linear(as_matrix(x), as_matrix(x)); }},
        {"conv2d",
         [=](const Tensor& x) {
             conv2d(as_image(x), weights(x, {2, 2, 3, 3}));
         }},
        {"conv_transpose2d",
         [=](const Tensor& x) {
             conv_transpose2d(as_image(x), weights(x, {2, 2, 3, 3}));
         }},
        {"max_pool2d", [=](const Tensor& x) { max_pool2d(as_image(x), 2); }},
        {"interpolate", [=](const Tensor& x) { interpolate(as_image(x), {.scale_factor = ScaleFactor(2)}); }},
        {"batch_norm", [=](const Tensor& x) { batch_norm(as_image(x), {}, {}); }},
        {"layer_norm", [as_matrix](const Tensor& x) { layer_norm(as_matrix(x), {4}); }},
        {"softmax", [](const Tensor& x) { softmax(x, 0); }},
        {"log_softmax", [](const Tensor& x) { log_softmax(x, 0); }},
        {"dropout", [](const Tensor& x) { dropout(x); }},
        {"dropout2d", [=](const Tensor& x) { dropout2d(as_image(x)); }},
        {"rand_like", [](const Tensor& x) { rand_like(x); }},
        {"randn_like", [](const Tensor& x) { randn_like(x); }},
        {"bernoulli", [](const Tensor& x) { bernoulli(x); }},
        {"normal", [](const Tensor& x) { normal(x, x); }},
        {"sum_over_shards", [](const Tensor& x) { sum_over_shards(x); }},
        {"erfc", [](const Tensor& x) { lockstep::erfc(x); }},
        {"erfinv", [](const Tensor& x) { erfinv(x); }},
        {"lgamma", [](const Tensor& x) { lockstep::lgamma(x); }},
        {"digamma", [](const Tensor& x) { digamma(x); }},
        {"polygamma", [](const Tensor& x) { polygamma(2, x); }},
        {"sinc", [](const Tensor& x) { sinc(x); }},
        {"deg2rad", [](const Tensor& x) { deg2rad(x); }},
        {"rad2deg", [](const Tensor& x) { rad2deg(x); }},
        {"copysign", [](const Tensor& x) { lockstep::copysign(x, x); }},
        {"fmax", [](const Tensor& x) { lockstep::fmax(x, x); }},
        {"fmin", [](const Tensor& x) { lockstep::fmin(x, x); }},
        {"floor_divide", [](const Tensor& x) { floor_divide(x, x); }},
        {"logaddexp2", [](const Tensor& x) { logaddexp2(x, x); }},
        {"heaviside", [](const Tensor& x) { heaviside(x, x); }},
        {"isclose", [](const Tensor& x) { isclose(x, x); }},
        {"scatter_reduce",
         [](const Tensor& x) { scatter_reduce(x, 0, Tensor::zeros({64}, DType::i64), x, ScatterReduction::amax); }},
        {"cummax", [](const Tensor& x) { cummax(x, 0); }},
        {"cummin", [](const Tensor& x) { cummin(x, 0); }},
        {"logcumsumexp", [](const Tensor& x) { logcumsumexp(x, 0); }},
        {"diff", [](const Tensor& x) { diff(x); }},
        {"searchsorted", [](const Tensor& x) { searchsorted(x, x); }},
        {"bucketize", [](const Tensor& x) { bucketize(x, x); }},
        {"mm", [as_matrix](const Tensor& x) { mm(as_matrix(x), as_matrix(x)); }},
        {"addmv",
         [as_matrix](const Tensor& x) { addmv(as_matrix(x).select(0, 0), as_matrix(x), as_matrix(x).select(0, 0)); }},
        {"addr",
         [as_matrix](const Tensor& x) { addr(as_matrix(x), as_matrix(x).select(0, 0), as_matrix(x).select(0, 0)); }},
        {"inner", [](const Tensor& x) { inner(x, x); }},
        {"vdot", [](const Tensor& x) { vdot(x, x); }},
        {"tensor_split", [](const Tensor& x) { tensor_split(x, 3); }},
        {"dstack",
         [](const Tensor& x) {
             dstack({x, x});
         }},
        {"grid_sample",
         [=](const Tensor& x) {
             grid_sample(as_image(x), weights(x, {1, 2, 2, 2}));
         }},
        {"affine_grid",
         [](const Tensor& x) {
             affine_grid(x.slice(0, 0, 6).reshape({1, 2, 3}), {1, 1, 2, 2});
         }},
        {"multinomial", [](const Tensor& x) { multinomial(x, 2); }},
        {"nonzero", [](const Tensor& x) { nonzero(x); }},
        {"masked_select", [](const Tensor& x) { masked_select(x, x > 0); }},
        {"unique", [](const Tensor& x) { unique(x); }},
        {"unique_consecutive", [](const Tensor& x) { unique_consecutive(x); }},
        {"bincount", [](const Tensor& x) { bincount(x); }},
        {"allclose", [](const Tensor& x) { allclose(x, x); }},
        {"equal", [](const Tensor& x) { lockstep::equal(x, x); }},
        {"max_pool2d_with_indices", [=](const Tensor& x) { max_pool2d_with_indices(as_image(x), 2); }},
        {"max_pool1d_with_indices", [=](const Tensor& x) { max_pool1d_with_indices(as_image(x).flatten(2), 2); }},
        {"max_pool3d_with_indices",
         [=](const Tensor& x) {
             max_pool3d_with_indices(as_image(x).unsqueeze(2), {1, 2, 2});
         }},
        {"max_unpool2d",
         [=](const Tensor& x) {
             max_unpool2d(as_image(x), Tensor::zeros({1, 2, 4, 4}, DType::i64), 2);
         }},
        {"max_unpool1d",
         [=](const Tensor& x) {
             max_unpool1d(as_image(x).flatten(2), Tensor::zeros({1, 2, 16}, DType::i64), 2);
         }},
        {"max_unpool3d",
         [=](const Tensor& x) {
             max_unpool3d(as_image(x).unsqueeze(2), Tensor::zeros({1, 2, 1, 4, 4}, DType::i64), 2);
         }},
        {"lp_pool1d", [=](const Tensor& x) { lp_pool1d(as_image(x).flatten(2), 2, 2); }},
        {"lp_pool2d", [=](const Tensor& x) { lp_pool2d(as_image(x), 2, 2); }},
        {"lp_pool3d",
         [=](const Tensor& x) {
             lp_pool3d(as_image(x).unsqueeze(2), 2, {1, 2, 2});
         }},
        {"adaptive_max_pool3d", [=](const Tensor& x) { adaptive_max_pool3d(as_image(x).unsqueeze(2), 1); }},
        {"swapaxes", [as_matrix](const Tensor& x) { swapaxes(as_matrix(x), 0, 1); }},
        {"atleast_1d", [](const Tensor& x) { atleast_1d(x); }},
        {"atleast_2d", [](const Tensor& x) { atleast_2d(x); }},
        {"atleast_3d", [](const Tensor& x) { atleast_3d(x); }},
        {"broadcast_to",
         [](const Tensor& x) {
             broadcast_to(x, {2, 64});
         }},
        {"broadcast_tensors",
         [](const Tensor& x) {
             broadcast_tensors({x, x});
         }},
        {"column_stack",
         [](const Tensor& x) {
             column_stack({x, x});
         }},
        {"block_diag",
         [](const Tensor& x) {
             block_diag({x, x});
         }},
        {"cartesian_prod",
         [](const Tensor& x) {
             cartesian_prod({x, x});
         }},
        {"tril_indices", [](const Tensor&) { tril_indices(2, 3); }},
        {"triu_indices", [](const Tensor&) { triu_indices(2, 3); }},
        {"nanmedian", [](const Tensor& x) { nanmedian(x, 0); }},
        {"mode", [](const Tensor& x) { mode(x); }},
        {"histc", [](const Tensor& x) { histc(x, 4); }},
        {"isin", [](const Tensor& x) { isin(x, x); }},
        {"take", [](const Tensor& x) { take(x, Tensor::zeros({2}, DType::i64)); }},
        {"index_put", [](const Tensor& x) { index_put(x, {Tensor::zeros({2}, DType::i64)}, x.slice(0, 0, 2)); }},
        {"bitwise_and", [](const Tensor& x) { bitwise_and(x, x); }},
        {"bitwise_or", [](const Tensor& x) { bitwise_or(x, x); }},
        {"bitwise_xor", [](const Tensor& x) { bitwise_xor(x, x); }},
        {"bitwise_not", [](const Tensor& x) { bitwise_not(x); }},
        {"bitwise_left_shift", [](const Tensor& x) { bitwise_left_shift(x, x); }},
        {"bitwise_right_shift", [](const Tensor& x) { bitwise_right_shift(x, x); }},
        {"nanquantile", [](const Tensor& x) { nanquantile(is_half_type(x.dtype()) ? x.to(DType::f32) : x, 0.5, 0); }},
        {"masked_scatter", [](const Tensor& x) { masked_scatter(x, x > 0, x); }},
        {"sgn", [](const Tensor& x) { sgn(x); }},
        {"signbit", [](const Tensor& x) { lockstep::signbit(x); }},
        {"addbmm",
         [as_matrix](const Tensor& x) { addbmm(as_matrix(x), as_matrix(x).unsqueeze(0), as_matrix(x).unsqueeze(0)); }},
        {"cov", [](const Tensor& x) { cov(x); }},
        {"corrcoef", [](const Tensor& x) { corrcoef(x); }},
        {"pdist", [as_matrix](const Tensor& x) { pdist(as_matrix(x)); }},
        {"trapezoid", [](const Tensor& x) { trapezoid(x); }},
        {"rrelu", [](const Tensor& x) { rrelu(x); }},
        {"feature_alpha_dropout", [=](const Tensor& x) { feature_alpha_dropout(as_image(x)); }},
        {"gather_shards", [](const Tensor& x) { gather_shards(x); }},
        {"row_numbers", [](const Tensor& x) { row_numbers(x); }},
    };
}

bool accepts(const std::function<void(const Tensor&)>& call, DType dtype) {
    const Tensor x = Tensor::full({64}, 1, dtype);
    try {
        call(x);
        return true;
    } catch (const InvalidArgument&) {
        return false;
    }
}

std::string page() { return read("docs/support.md"); }

}  // namespace

TEST_CASE("the support page names every operation and no other") {
    CHECK(difference(operations(), shown(page(), "Operations")) == "");
    Names methods;
    for (const std::string& name : shown(page(), "Views and copies")) methods.insert(name);
    CHECK(methods.size() > 8);
    const std::string header = read("runtime/tensor.h");
    for (const std::string& name : methods) CHECK(header.find(" " + name + "(") != std::string::npos);
}

TEST_CASE("the README states how many functions and layers the support page lists") {
    Names functions = shown(page(), "Operations");
    functions.merge(shown(page(), "Losses"));
    functions.merge(shown(page(), "Other functions"));
    const Names layers = shown(page(), "Layers");
    CHECK_THAT(read("README.md"), test::contains("| functions and layers | " + std::to_string(functions.size()) +
                                                 " functions and " + std::to_string(layers.size()) + " layers,"));
}

TEST_CASE("the support page has the functions of all op table entries") {
    Names on_page = shown(page(), "Operations"), tested;
    on_page.merge(shown(page(), "Views and copies"));
    on_page.merge(shown(page(), "Losses"));
    on_page.merge(shown(page(), "Other functions"));
    on_page.merge(Names{"tensor"});  // a part of expressions in Python
    for (const auto& op : test::make_table())
        for (const std::string& name : functions_of(*op)) {
            INFO(op->name() << ": " << op->torch());
            tested.insert(name);
            CHECK(on_page.contains(name));
        }
    CHECK(tested.size() > 30);
}

TEST_CASE("the support page lists the operations that accept integers") {
    const auto all = calls();
    Names called;
    for (const auto& [name, call] : all) called.insert(name);
    REQUIRE(difference(operations(), called) == "");
    for (const auto& cells : rows(page(), "Operations")) {
        Names names;
        find_all(cells[0], "`([A-Za-z0-9_]+)`", names);
        for (const std::string& name : names) {
            INFO(name);
            for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16})
                CHECK(accepts(all.at(name), dtype) == (cells.at(1) == "yes"));
            CHECK(accepts(all.at(name), DType::i64) == (cells.at(2) == "yes"));
        }
    }
}

TEST_CASE("the support page names layers, losses, optimizers, schedules, dtypes, backends and formats") {
    Names layers;
    for (const char* header : {"ops/layers.h", "ops/activation_layers.h", "ops/special_layers.h", "ops/recurrent.h",
                               "ops/transformer.h", "ops/volume_layers.h", "ops/window_layers.h"})
        layers.merge(declared(header, R"(\nstruct (\w+)(?: : \w+(?:<\d>)?)? \{)"));
    const std::regex others(
        "PlainLayer|PaddingLayer|Margins|RecurrentCell|CellParameters|\\w+(?:Options|Result|Masks|State)");
    for (auto name = layers.begin(); name != layers.end();)
        name = std::regex_match(*name, others) ? layers.erase(name) : std::next(name);
    CHECK(difference(layers, shown(page(), "Layers")) == "");

    Names losses;
    for (const char* header : {"ops/loss.h", "ops/dice.h"}) {
        losses.merge(declared(header, R"(\ninline const \w+ (\w+)\{\};)"));
        losses.merge(declared(header, R"(\n(?:Loss|Tensor) (\w+)\()"));
    }
    CHECK(difference(losses, shown(page(), "Losses")) == "");

    Names optimizers, schedules = declared("ops/lr_schedules.h", R"(\nclass (\w+) final : public LRSchedule)");
    schedules.insert("ReduceLROnPlateau");
    for (const auto& file : std::filesystem::directory_iterator(std::filesystem::path(LOCKSTEP_SOURCE_DIR) / "ops"))
        if (file.path().extension() == ".h")
            optimizers.merge(
                declared("ops/" + file.path().filename().string(), R"(\nclass (\w+) final : public FusedOptimizer)"));
    CHECK(difference(optimizers, shown(page(), "Optimizers")) == "");
    CHECK(difference(schedules, shown(page(), "Learning-rate schedules")) == "");

    Names dtypes, backends, formats;
    for (const DType dtype :
         {DType::f32, DType::f64, DType::f16, DType::bf16, DType::i32, DType::i64, DType::u8, DType::boolean})
        dtypes.insert(std::string(name_of(dtype)));
    CHECK(difference(dtypes, shown(page(), "Dtypes")) == "");
    for (const ProcessGroupBackend& backend : process_group_backends()) backends.insert(backend.name);
    CHECK(difference(backends, shown(page(), "Process-group backends")) == "");
    for (const ImageFormat& format : image_formats()) formats.insert(format.name);
    CHECK(difference(formats, shown(page(), "Image formats")) == "");
}

TEST_CASE("the support page counts the PyTorch names that exist and those that are missing") {
    const std::string text = page();
    Names present;
    for (const char* section : {"Operations", "Views and copies", "Other functions", "Layers", "Losses", "Optimizers",
                                "Learning-rate schedules"})
        present.merge(shown(text, section));
    for (const char* folder : {"runtime", "ops", "parallel", "parallel/comm", "parallel/data"})
        for (const auto& file :
             std::filesystem::directory_iterator(std::filesystem::path(LOCKSTEP_SOURCE_DIR) / folder))
            if (file.path().extension() == ".h") {
                const std::string header = std::string(folder) + "/" + file.path().filename().string();
                present.merge(declared(header, R"(\n *(?:class|struct) (\w+))"));
                present.merge(declared(header, R"( (\w+)\()"));
            }
    std::size_t existing = 0, missing = 0;
    for (const auto& cells : rows(text, "PyTorch names")) {
        const auto names_in = [&](std::size_t column) {
            std::vector<std::string> names;
            const std::regex regex("`(\\w+)`");
            const std::string& cell = cells.at(column);
            for (std::sregex_iterator match(cell.begin(), cell.end(), regex), end; match != end; ++match)
                names.push_back((*match)[1].str());
            return names;
        };
        for (const std::string& name : names_in(1)) {
            INFO(name);
            CHECK(present.contains(name));
            ++existing;
        }
        for (const std::string& name : names_in(2)) {
            INFO(name);
            CHECK_FALSE(present.contains(name));
            ++missing;
        }
    }
    CHECK_THAT(text, test::contains("The table lists " + std::to_string(existing + missing) +
                                    " names that programs use most: " + std::to_string(existing) + " exist here, " +
                                    std::to_string(missing) + " are missing."));
}

TEST_CASE("a name that is missing from the support page, or does not exist, is found") {
    const Names there{"add", "gelu"};
    const std::string changed =
        "## Operations\n\n| operation | floats |\n|---|---|\n| `add`, `gelo` | yes |\n\n## Other\n\n"
        "| x |\n|---|\n| `gelu` |\n";
    CHECK(difference(there, shown(changed, "Operations")) == "missing: gelu; unknown: gelo; ");
    CHECK(difference(there, there) == "");
}
