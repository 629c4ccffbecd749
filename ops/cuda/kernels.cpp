// All CUDA kernels. Each source file registers its kernels; a new file is one more line here.
#include "lockstep/ops/cuda/kernels.h"

#include "lockstep/runtime/internal/kernels.h"

namespace lockstep {

void lockstep_cuda_kernels(KernelTable& table) {
    cuda::add_dropout_kernels(table);
    cuda::add_random_kernels(table);
    cuda::add_elementwise_kernels(table);
    cuda::add_copy_kernels(table);
    cuda::add_parameter_kernels(table);
    cuda::add_concat_kernels(table);
    cuda::add_sequence_kernels(table);
    cuda::add_reduction_kernels(table);
    cuda::add_softmax_kernels(table);
    cuda::add_loss_kernels(table);
    cuda::add_statistics_kernels(table);
    cuda::add_sorting_kernels(table);
    cuda::add_scan_kernels(table);
    cuda::add_shard_row_kernels(table);
    cuda::add_batch_norm_kernels(table);
    cuda::add_layer_norm_kernels(table);
    cuda::add_pooling_kernels(table);
    cuda::add_selection_kernels(table);
    cuda::add_indexing_kernels(table);
    cuda::add_interpolate_kernels(table);
    cuda::add_update_kernels(table);
    cuda::add_layer_state_kernels(table);
    cuda::add_optimizer_kernels(table);
    cuda::add_gradient_kernels(table);
    cuda::add_gate_kernels(table);
    cuda::add_step_kernels(table);
    cuda::add_linear_kernels(table);
    cuda::add_attention_kernels(table);
    cuda::add_convolution_kernels(table);
}

}  // namespace lockstep
