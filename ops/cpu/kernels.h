// Groups of the CPU backend's kernels, and the checks that all kernels share.
#pragma once

#include <string>
#include <utility>

#include "lockstep/runtime/error.h"
#include "lockstep/runtime/record.h"

namespace lockstep::cpu {

/// One per source file; kernels.cpp calls them all.
void add_copy_kernels(KernelTable& table);
void add_concat_kernels(KernelTable& table);
void add_elementwise_kernels(KernelTable& table);
void add_half_elementwise_kernels(KernelTable& table);
void add_reduction_kernels(KernelTable& table);
void add_linear_kernels(KernelTable& table);
void add_attention_kernels(KernelTable& table);
void add_half_linear_kernels(KernelTable& table);
void add_convolution_kernels(KernelTable& table);
void add_half_convolution_kernels(KernelTable& table);
void add_pooling_kernels(KernelTable& table);
void add_selection_kernels(KernelTable& table);
void add_indexing_kernels(KernelTable& table);
void add_half_pooling_kernels(KernelTable& table);
void add_interpolate_kernels(KernelTable& table);
void add_batch_norm_kernels(KernelTable& table);
void add_layer_norm_kernels(KernelTable& table);
void add_loss_kernels(KernelTable& table);
void add_softmax_kernels(KernelTable& table);
void add_statistics_kernels(KernelTable& table);
void add_sorting_kernels(KernelTable& table);
void add_scan_kernels(KernelTable& table);
void add_shard_row_kernels(KernelTable& table);
void add_update_kernels(KernelTable& table);
void add_random_kernels(KernelTable& table);
void add_gradient_kernels(KernelTable& table);
void add_gate_kernels(KernelTable& table);
void add_step_kernels(KernelTable& table);

template <class Op>
[[noreturn]] void unsupported_dtype(const Op& operation, DType dtype) {
    throw InvalidArgument(std::string(operation_name(operation)) + " is not supported for " +
                          std::string(name_of(dtype)) + " on the CPU; expected another dtype (use .to(dtype))");
}

/// Calls make(float{}) or make(double{}) and returns its result; throws InvalidArgument for any other dtype.
template <class Op, class Make>
auto for_floating(const Op& operation, DType dtype, const Make& make) {
    if (dtype == DType::f32) return make(float{});
    if (dtype == DType::f64) return make(double{});
    unsupported_dtype(operation, dtype);
}

/// Throws InvalidArgument for an output written in place that is not contiguous, for kernels without support for
/// strides.
template <class Op>
void require_contiguous_output(const Op& operation, const KernelRequest& request, std::size_t output) {
    const TensorMeta& meta = request.out[output];
    if (meta.opaque == nullptr && meta.is_contiguous()) return;
    throw InvalidArgument(std::string(operation_name(operation)) + " cannot write " + meta.str() +
                          "; expected a contiguous tensor (use clone())");
}

}  // namespace lockstep::cpu
