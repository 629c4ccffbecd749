// All kernels of the CPU backend. To add one: a factory in the file it belongs to, and a line in that file's
// add_..._kernels.
#include "lockstep/ops/cpu/kernels.h"

#include "lockstep/runtime/internal/kernel_registration.h"

namespace lockstep {

void register_cpu_kernels(KernelTable& table) {
    add_copy_kernels(table);
    add_elementwise_kernels(table);
    add_reduction_kernels(table);
    add_linear_kernels(table);
    add_convolution_kernels(table);
    add_pooling_kernels(table);
    add_batch_norm_kernels(table);
    add_layer_norm_kernels(table);
    add_loss_kernels(table);
    add_update_kernels(table);
    add_gradient_kernels(table);
    add_step_kernels(table);
}

}  // namespace lockstep
