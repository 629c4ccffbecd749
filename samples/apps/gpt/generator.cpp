#include "lockstep/samples/apps/gpt/generator.h"

#include <utility>

#include "lockstep/ops/functional.h"
#include "lockstep/runtime/autograd.h"

namespace gpt {

namespace ls = lockstep;

namespace {

/// x (1, 1, E) as (1, heads, 1, E / heads).
ls::Tensor by_heads(const ls::Tensor& x, std::int64_t heads) { return x.reshape({1, heads, 1, x.size(2) / heads}); }

ls::Tensor extended(const ls::Tensor& before, const ls::Tensor& last) {
    return before.defined() ? ls::cat({before, last}, 2) : last;
}

}  // namespace

ls::Tensor Generator::append(std::int64_t character) {
    const ls::NoGrad no_grad;
    const std::int64_t context = net_.positions.weight->size(0);
    if (std::ssize(text_) == context) {
        const std::vector<std::int64_t> before = std::exchange(text_, {});
        cache_.assign(cache_.size(), {});
        for (auto at = before.end() - (context - context / 2); at != before.end(); ++at)
            if (std::ssize(text_) + 1 < context) predict(*at);
    }
    return predict(character);
}

ls::Tensor Generator::predict(std::int64_t character) {
    const ls::Tensor number = ls::Tensor::from(std::vector<std::int64_t>{character}, {1, 1});
    const auto position = static_cast<std::int64_t>(text_.size());
    text_.push_back(character);
    const ls::Tensor& positions = net_.positions.weight;
    ls::Tensor x = net_.tokens(number) + positions.slice(0, position, position + 1);
    for (std::size_t i = 0; i < net_.blocks.size(); ++i) {
        const ls::TransformerEncoderLayer& block = net_.blocks[i];
        const ls::MultiheadAttention& attention = block.self_attn;
        const auto parts =
            ls::chunk(ls::linear(block.norm1(x), attention.in_proj_weight, *attention.in_proj_bias), 3, 2);
        Cache& cache = cache_[i];
        cache.keys = extended(cache.keys, by_heads(parts[1], attention.num_heads));
        cache.values = extended(cache.values, by_heads(parts[2], attention.num_heads));
        const ls::Tensor found =
            ls::scaled_dot_product_attention(by_heads(parts[0], attention.num_heads), cache.keys, cache.values);
        x = x + attention.out_proj(found.reshape({1, 1, x.size(2)}));
        x = x + block.linear2(ls::gelu(block.linear1(block.norm2(x))));
    }
    return net_.head(net_.norm(x)).flatten();
}

}  // namespace gpt
