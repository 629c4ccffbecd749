// Which factory makes the CUDA kernel of which operation. To add one: a line in factories.h, a line here.
#include "lockstep/runtime/internal/kernel_registration.h"

#include "lockstep/ops/cuda/factories.h"
#include "lockstep/runtime/internal/core_operations.h"

namespace lockstep {

void register_cuda_kernels(KernelTable& table) {
    table.add<Binary, cuda::make_binary>();
    table.add<Accumulate, cuda::make_accumulate>();
    cuda::add_unary_functions(table);
    table.add<Affine, cuda::make_affine>();
    table.add<DropoutMask, cuda::make_dropout_mask>();

    table.add<Reorder, cuda::make_reorder>();
    table.add<Fill, cuda::make_fill>();
    table.add<Cat, cuda::make_cat>();

    table.add<Sum, cuda::make_sum>();
    table.add<ArgMax, cuda::make_argmax>();
    table.add<LogSoftmaxForward, cuda::make_log_softmax_forward>();
    table.add<LogSoftmaxBackward, cuda::make_log_softmax_backward>();

    table.add<NllForward, cuda::make_nll_forward>();
    table.add<NllBackward, cuda::make_nll_backward>();
    table.add<SquaredErrorForward, cuda::make_squared_error_forward>();
    table.add<SquaredErrorBackward, cuda::make_squared_error_backward>();
    table.add<CheckFinite, cuda::make_check_finite>();

    table.add<MatMul, cuda::make_matmul>();
    table.add<LinearForward, cuda::make_linear_forward>();
    table.add<LinearBackwardData, cuda::make_linear_backward_data>();
    table.add<LinearBackwardWeights, cuda::make_linear_backward_weights>();

    table.add<Conv2dForward, cuda::make_conv2d_forward>();
    table.add<Conv2dBackwardData, cuda::make_conv2d_backward_data>();
    table.add<Conv2dBackwardWeights, cuda::make_conv2d_backward_weights>();
    table.add<MaxPool2dForward, cuda::make_max_pool2d_forward>();
    table.add<MaxPool2dBackward, cuda::make_max_pool2d_backward>();

    table.add<BatchNormStats, cuda::make_batch_norm_stats>();
    table.add<BatchNormPoolStats, cuda::make_batch_norm_pool_stats>();
    table.add<BatchNormNormalize, cuda::make_batch_norm_normalize>();
    table.add<BatchNormBackwardSums, cuda::make_batch_norm_backward_sums>();
    table.add<BatchNormBackwardData, cuda::make_batch_norm_backward_data>();
    table.add<BatchNormUpdateRunning, cuda::make_batch_norm_update_running>();

    table.add<SumOverShards, cuda::make_sum_over_shards>();
    table.add<IncrementCounter, cuda::make_increment_counter>();

    cuda::add_fused_updates(table);
    table.add<ReadRows, cuda::make_read_rows>();
    table.add<StoreRange, cuda::make_store_range>();
    table.add<StoreRows, cuda::make_store_rows>();
    table.add<CountUpdates, cuda::make_count_updates>();

    table.add<MeasureGradients, cuda::make_measure_gradients>();
    table.add<CombineMeasures, cuda::make_combine_measures>();
    table.add<ClipCoefficient, cuda::make_clip_coefficient>();
    table.add<JudgeNorm, cuda::make_judge_norm>();
    table.add<ScaleGradients, cuda::make_scale_gradients>();
    table.add<ClampGradients, cuda::make_clamp_gradients>();

    table.add<TreeSum, cuda::make_tree_sum>();
    table.add<AgreeStatus, cuda::make_agree_status>();
    table.add<ForgetSkip, cuda::make_forget_skip>();
    table.add<AdvanceStep, cuda::make_advance_step>();
    table.add<TakeOver, cuda::make_take_over>();
}

}  // namespace lockstep
