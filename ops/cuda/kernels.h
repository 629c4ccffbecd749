// The groups of CUDA kernels.
#pragma once

#include "lockstep/runtime/record.h"

namespace lockstep::cuda {

using KernelPtr = std::unique_ptr<Kernel>;

/// One per source file; kernels.cpp calls them all.
void add_dropout_kernels(KernelTable& table);
void add_random_kernels(KernelTable& table);
void add_elementwise_kernels(KernelTable& table);
void add_copy_kernels(KernelTable& table);
void add_parameter_kernels(KernelTable& table);
void add_concat_kernels(KernelTable& table);
void add_sequence_kernels(KernelTable& table);
void add_reduction_kernels(KernelTable& table);
void add_softmax_kernels(KernelTable& table);
void add_loss_kernels(KernelTable& table);
void add_statistics_kernels(KernelTable& table);
void add_sorting_kernels(KernelTable& table);
void add_scan_kernels(KernelTable& table);
void add_shard_row_kernels(KernelTable& table);
void add_batch_norm_kernels(KernelTable& table);
void add_layer_norm_kernels(KernelTable& table);
void add_pooling_kernels(KernelTable& table);
void add_selection_kernels(KernelTable& table);
void add_indexing_kernels(KernelTable& table);
void add_interpolate_kernels(KernelTable& table);
void add_update_kernels(KernelTable& table);
void add_layer_state_kernels(KernelTable& table);
void add_optimizer_kernels(KernelTable& table);
void add_gradient_kernels(KernelTable& table);
void add_gate_kernels(KernelTable& table);
void add_step_kernels(KernelTable& table);
void add_linear_kernels(KernelTable& table);
void add_attention_kernels(KernelTable& table);
void add_convolution_kernels(KernelTable& table);

}  // namespace lockstep::cuda
