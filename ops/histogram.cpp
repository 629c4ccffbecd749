#include "lockstep/ops/histogram.h"

#include <fmt/format.h>

#include <vector>

#include "lockstep/ops/internal/checked_args.h"
#include "lockstep/ops/internal/tensor_operations.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/record.h"

namespace lockstep {

HistogramCounts histogram(const Tensor& given, const Tensor& given_edges) {
    const CheckedArgs call("histogram", {arg::floating("input", given), arg::any("edges", given_edges)});
    const Tensor x = call[0].detach(), edges = call[1].detach();
    if (edges.dtype() != DType::f64 || edges.dims() != 1 || edges.size(0) < 2)
        throw InvalidArgument(
            fmt::format("histogram: edges of shape {} and dtype {}; expected a vector of at least two f64 numbers, one "
                        "more than bins",
                        edges.shape().str(), name_of(edges.dtype())));
    const std::vector<Tensor> made = apply(make_operation(CountInBins{}), {x, edges},
                                           {TensorMeta::contiguous(DType::i64, {edges.size(0) - 1}),
                                            TensorMeta::contiguous(DType::f64, {ValueSummary::count})});
    return {made[0], made[1]};
}

HistogramCounts::Summary HistogramCounts::read_summary() const {
    const std::vector<double> all = summary.to_vector<double>();
    const auto number = [&](std::size_t i) { return static_cast<std::int64_t>(all[i]); };
    return {number(0), number(5), number(6), all[1], all[2], all[3], all[4]};
}

}  // namespace lockstep
