// Attention on the stand-in with more scores than fit into one chunk of scratch memory.
#include <cstddef>
#include <vector>

#include "lockstep/ops/internal/attention_operations.h"
#include "lockstep/runtime/record.h"
#include "lockstep/tests/ops/cuda_attention.h"

using namespace lockstep;
using namespace lockstep::test;

TEST_CASE("attention on GPUs: scores in chunks of whole matrices, and of their rows") {
    const NoMistakes end;
    // 64 MiB are 1024 rows of 4096 scores in f64, twice in backward: 2 matrices of 500 rows, and then 1.
    check_attention_on_gpu({{1, 3, 500, 1}, {1, 3, 4096, 1}, {1, 3, 4096, 1}}, {.dropout_p = 0.2}, DType::f64);
    // 299 rows, and then 1; both heads share a matrix.
    check_attention_on_gpu({{1, 2, 150, 1}, {1, 1, 14000, 1}, {1, 1, 14000, 1}},
                           {.is_causal = true, .enable_gqa = true}, DType::f64);
}

TEST_CASE("attention on GPUs: scratch memory does not grow with the scores") {
    const Shape query{1, 16, 8192, 64}, statistics{2, 1, 16, 8192};  // scores of 4 GiB
    const TensorMeta operand = TensorMeta::contiguous(DType::f32, query), missing;
    const TensorMeta saved = TensorMeta::contiguous(DType::f32, statistics);
    const auto scratch_of = [](const auto& operation, const std::vector<TensorMeta>& in,
                               const std::vector<TensorMeta>& out) {
        KernelRequest request;
        request.device = gpu;
        request.in.assign(in.begin(), in.end());
        request.out.assign(out.begin(), out.end());
        return KernelTable::of(DeviceKind::cuda).make(*make_operation(operation), request)->scratch_bytes();
    };
    // A chunk has 64 MiB, and cuBLASLt up to 32 MiB.
    constexpr std::size_t most = std::size_t{97} << 20;
    CHECK(scratch_of(AttentionForward<false>{false, 1, 0, DrawBy::row, 0}, {operand, operand, operand, missing},
                     {operand, saved, missing}) < most);
    CHECK(scratch_of(AttentionBackward{false, 1, 0}, {operand, operand, operand, operand, missing, saved, missing},
                     {operand, operand, operand}) < most);
}
