#include "lockstep/ops/functional.h"
#include "lockstep/ops/internal/checks.h"
#include "lockstep/ops/internal/prologue.h"
#include "lockstep/ops/internal/shard_operations.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/record.h"

namespace lockstep {

std::vector<Tensor> sum_over_shards(const std::vector<Tensor>& given) {
    const Prologue call("sum_over_shards", "a tensor", given, Prologue::Dtypes::any);
    const std::vector<Tensor>& tensors = call.tensors();
    if (tensors.empty()) throw InvalidArgument("sum_over_shards: an empty list of tensors; expected at least one");
    std::vector<Output> outputs;
    std::vector<bool> wanted, batch;
    for (const Tensor& tensor : tensors) {
        outputs.emplace_back(shaped(tensor, tensor.shape()));
        wanted.push_back(tensor.requires_grad());
        batch.push_back(tensor.is_batch());
    }
    const std::vector<Tensor> sums = apply(make_operation(SumOverShards{}), tensors, outputs);
    if (needs_autograd(tensors))
        add_autograd_node("sum_over_shards", tensors, sums, [wanted, batch](const std::vector<Tensor>& gradients) {
            // All shards have the same autograd graph, so the same gradients come on each of them.
            std::vector<Tensor> result(gradients.size());
            std::vector<Tensor> come;
            for (std::size_t i = 0; i < gradients.size(); ++i)
                if (wanted[i] && gradients[i].defined()) come.push_back(gradients[i]);
            if (come.empty()) return result;
            const std::vector<Tensor> added = sum_over_shards(come);
            std::size_t next = 0;
            for (std::size_t i = 0; i < gradients.size(); ++i)
                if (wanted[i] && gradients[i].defined()) result[i] = tagged(added[next++], batch[i]);
            return result;
        });
    return sums;
}

Tensor sum_over_shards(const Tensor& x) { return sum_over_shards(std::vector<Tensor>{x})[0]; }

}  // namespace lockstep
