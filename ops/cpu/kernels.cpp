// All kernels of the CPU backend. To add one: a factory in the source file of its group, and a line in that file's
// add_..._kernels.
#include "lockstep/ops/cpu/kernels.h"

#include "lockstep/runtime/internal/kernels.h"

namespace lockstep {

void register_cpu_kernels(KernelTable& table) {
    cpu::add_copy_kernels(table);
    cpu::add_concat_kernels(table);
    cpu::add_elementwise_kernels(table);
    cpu::add_half_elementwise_kernels(table);
    cpu::add_reduction_kernels(table);
    cpu::add_linear_kernels(table);
    cpu::add_attention_kernels(table);
    cpu::add_half_linear_kernels(table);
    cpu::add_convolution_kernels(table);
    cpu::add_half_convolution_kernels(table);
    cpu::add_pooling_kernels(table);
    cpu::add_selection_kernels(table);
    cpu::add_indexing_kernels(table);
    cpu::add_half_pooling_kernels(table);
    cpu::add_interpolate_kernels(table);
    cpu::add_batch_norm_kernels(table);
    cpu::add_layer_norm_kernels(table);
    cpu::add_loss_kernels(table);
    cpu::add_softmax_kernels(table);
    cpu::add_statistics_kernels(table);
    cpu::add_sorting_kernels(table);
    cpu::add_scan_kernels(table);
    cpu::add_shard_row_kernels(table);
    cpu::add_update_kernels(table);
    cpu::add_random_kernels(table);
    cpu::add_gradient_kernels(table);
    cpu::add_gate_kernels(table);
    cpu::add_step_kernels(table);
}

}  // namespace lockstep
