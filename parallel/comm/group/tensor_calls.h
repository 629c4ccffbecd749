// The operations of a ProcessGroup on tensors, checked: invalid calls are rejected here, before anything is sent.
#pragma once

#include <cstdint>
#include <span>

#include "lockstep/parallel/comm/group/operation_queue.h"
#include "lockstep/runtime/tensor.h"

namespace lockstep::calls {

using Tensors = std::span<const Tensor>;

/// The calling rank.
struct Caller {
    int rank = 0, size = 1;
};

// As the functions of ProcessGroup of these names. All throw InvalidArgument.
Collective all_reduce(Caller caller, const Tensor& tensor, ReduceOp op);
Collective reduce(Caller caller, const Tensor& tensor, int root, ReduceOp op);
Collective broadcast(Caller caller, const Tensor& tensor, int root);
Collective all_gather(Caller caller, const Tensor& out, const Tensor& in);
Collective all_gather(Caller caller, Tensors out, const Tensor& in);
Collective gather(Caller caller, const Tensor& in, Tensors out, int root);
Collective scatter(Caller caller, const Tensor& out, Tensors in, int root);
Collective reduce_scatter(Caller caller, const Tensor& out, const Tensor& in, ReduceOp op);
Collective reduce_scatter(Caller caller, const Tensor& out, Tensors in, ReduceOp op);
Collective all_to_all(Caller caller, const Tensor& out, const Tensor& in);
Collective all_to_all(Caller caller, const Tensor& out, const Tensor& in, std::span<const std::int64_t> out_rows,
                      std::span<const std::int64_t> in_rows);
Collective all_to_all(Caller caller, Tensors out, Tensors in);
Collective barrier();
MessageCall send(Caller caller, const Tensor& tensor, int to, int tag);
MessageCall receive(Caller caller, const Tensor& tensor, int from, int tag);

}  // namespace lockstep::calls
