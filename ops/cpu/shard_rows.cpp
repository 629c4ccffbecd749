// The rows of a shard among those of the whole batch.
#include "lockstep/ops/internal/shard_rows.h"

#include <cstddef>
#include <cstring>

#include "lockstep/ops/cpu/kernels.h"

namespace lockstep::cpu {

namespace {

std::size_t bytes_of_row(const TensorMeta& meta) {
    std::size_t bytes = size_of(meta.dtype);
    for (int dim = 1; dim < meta.shape.dims(); ++dim) bytes *= static_cast<std::size_t>(meta.shape[dim]);
    return bytes;
}

std::unique_ptr<Kernel> make_place_shard_rows(const PlaceShardRows& operation, KernelRequest& request) {
    request.want_contiguous(0);
    require_contiguous_output(operation, request, 0);
    const std::size_t row = bytes_of_row(request.in[0]);
    return make_kernel([own = row * static_cast<std::size_t>(request.in[0].shape[0]),
                        all = row * static_cast<std::size_t>(request.out[0].shape[0]), row](const KernelArgs& call) {
        auto* const to = call.output<std::byte>(0);
        const std::size_t before = row * static_cast<std::size_t>(call.first_row);
        std::memset(to, 0, before);
        std::memcpy(to + before, call.in[0], own);
        std::memset(to + before + own, 0, all - before - own);
    });
}

std::unique_ptr<Kernel> make_take_shard_rows(const TakeShardRows& operation, KernelRequest& request) {
    request.want_contiguous(0);
    require_contiguous_output(operation, request, 0);
    const std::size_t row = bytes_of_row(request.in[0]);
    return make_kernel([own = row * static_cast<std::size_t>(request.out[0].shape[0]), row](const KernelArgs& call) {
        std::memcpy(call.out[0], call.input<std::byte>(0) + row * static_cast<std::size_t>(call.first_row), own);
    });
}

}  // namespace

void add_shard_row_kernels(KernelTable& table) {
    table.add<PlaceShardRows, make_place_shard_rows>();
    table.add<TakeShardRows, make_take_shard_rows>();
    table.add_half_types<PlaceShardRows, make_place_shard_rows>();
    table.add_half_types<TakeShardRows, make_take_shard_rows>();
}

}  // namespace lockstep::cpu
