// Rows of all shards on every shard.
#include <fmt/format.h>

#include <vector>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/internal/checked_args.h"
#include "lockstep/ops/internal/shard_rows.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/record.h"
#include "lockstep/runtime/trace.h"

namespace lockstep {

namespace {

Tensor taken(const Tensor& all, std::int64_t rows);

Shape with_first(const Tensor& x, std::int64_t rows) {
    Shape shape = x.shape();
    shape[0] = rows;
    return shape;
}

/// x (n, ...), the rows of this shard, among `all` rows, which are 0 elsewhere.
Tensor placed(const Tensor& x, std::int64_t all) {
    const Tensor y = apply_one(PlaceShardRows{}, {x}, shaped(x, with_first(x, all)));
    if (needs_autograd({x}))
        add_autograd_node("gather_shards", {x}, {y}, BackwardFunction::composed([rows = x.size(0)](const auto& dy) {
                              return std::vector<Tensor>{taken(dy[0], rows)};
                          }));
    return y;
}

/// The rows of this shard among those of the whole batch.
Tensor taken(const Tensor& all, std::int64_t rows) {
    const Tensor y = apply_one(TakeShardRows{}, {all}, shaped(all, with_first(all, rows), true));
    if (Trace* const trace = Trace::current()) trace->set_differs_by_shard(y, true);
    if (needs_autograd({all}))
        add_autograd_node("gather_shards", {all}, {y}, BackwardFunction::composed([of = all.size(0)](const auto& dy) {
                              return std::vector<Tensor>{placed(dy[0], of)};
                          }));
    return y;
}

/// Rows of the whole batch while a step is traced.
std::int64_t rows_of_batch(const char* name, Trace& trace, const Tensor& x) {
    if (x.dims() == 0 || !x.is_batch())
        throw InvalidArgument(
            fmt::format("{}: dimension 0 of the tensor {} is not the batch; expected a tensor of the "
                        "rows of a shard (see tag_batch())",
                        name, x.shape().str()));
    if (const auto rows = trace.use_batch_rows()) return *rows;
    throw InvalidArgument(
        fmt::format("{}: a microbatch has only some rows of the batch; expected one accumulation step", name));
}

}  // namespace

Tensor gather_shards(const Tensor& given) {
    constexpr const char* name = "gather_shards";
    const CheckedArgs call(name, {arg::floating("the tensor", given)});
    const Tensor& x = call[0];
    Trace* const trace = Trace::current();
    if (trace == nullptr) return sum_over_shards(tagged(x, false));
    return sum_over_shards(placed(x, rows_of_batch(name, *trace, x)));
}

Tensor row_numbers(const Tensor& given) {
    constexpr const char* name = "row_numbers";
    const CheckedArgs call(name, {arg::any("the tensor", given)});
    const Tensor& x = call[0];
    Trace* const trace = Trace::current();
    if (x.dims() == 0) throw InvalidArgument(fmt::format("{}: a scalar has no rows; expected a batch", name));
    const std::int64_t rows = trace ? rows_of_batch(name, *trace, x) : x.size(0);
    const Tensor all = Tensor::arange(0, static_cast<double>(rows), 1, DType::i64, x.device());
    return trace ? taken(all, x.size(0)) : tagged(all, x.is_batch());
}

}  // namespace lockstep
