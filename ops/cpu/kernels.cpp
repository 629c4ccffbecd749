// All kernels of the CPU backend. To add one: a factory in the file it belongs to, and a line in that file's
// add_..._kernels.
#include "lockstep/ops/cpu/kernels.h"

#include "lockstep/runtime/internal/kernel_registration.h"

namespace lockstep {

void register_cpu_kernels(KernelTable& table) {
    cpu::add_copy_kernels(table);
    cpu::add_piece_kernels(table);
    cpu::add_elementwise_kernels(table);
    cpu::add_short_elementwise_kernels(table);
    cpu::add_reduction_kernels(table);
    cpu::add_linear_kernels(table);
    cpu::add_short_linear_kernels(table);
    cpu::add_convolution_kernels(table);
    cpu::add_short_convolution_kernels(table);
    cpu::add_pooling_kernels(table);
    cpu::add_short_pooling_kernels(table);
    cpu::add_interpolate_kernels(table);
    cpu::add_batch_norm_kernels(table);
    cpu::add_layer_norm_kernels(table);
    cpu::add_loss_kernels(table);
    cpu::add_inspection_kernels(table);
    cpu::add_update_kernels(table);
    cpu::add_gradient_kernels(table);
    cpu::add_step_kernels(table);
}

}  // namespace lockstep
