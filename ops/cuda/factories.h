// Factories of the CUDA kernels, one per operation, by the file they lie in.
#pragma once

#include <memory>

#include "lockstep/ops/internal/gradient_operations.h"
#include "lockstep/ops/internal/step_operations.h"
#include "lockstep/ops/internal/update_operations.h"

namespace lockstep::cuda {

using KernelPtr = std::unique_ptr<Kernel>;

// elementwise.cu
KernelPtr make_binary(const Binary&, KernelRequest&);
KernelPtr make_accumulate(const Accumulate&, KernelRequest&);
void add_unary_functions(KernelTable& table);
KernelPtr make_affine(const Affine&, KernelRequest&);
KernelPtr make_squared_error_backward(const SquaredErrorBackward&, KernelRequest&);
KernelPtr make_dropout_mask(const DropoutMask&, KernelRequest&);

// movement.cu
KernelPtr make_reorder(const Reorder&, KernelRequest&);
KernelPtr make_fill(const Fill&, KernelRequest&);
KernelPtr make_cat(const Cat&, KernelRequest&);

// reductions.cu
KernelPtr make_sum(const Sum&, KernelRequest&);
KernelPtr make_argmax(const ArgMax&, KernelRequest&);
KernelPtr make_log_softmax_forward(const LogSoftmaxForward&, KernelRequest&);
KernelPtr make_log_softmax_backward(const LogSoftmaxBackward&, KernelRequest&);
KernelPtr make_squared_error_forward(const SquaredErrorForward&, KernelRequest&);

// losses.cu
KernelPtr make_nll_forward(const NllForward&, KernelRequest&);
KernelPtr make_nll_backward(const NllBackward&, KernelRequest&);
KernelPtr make_check_finite(const CheckFinite&, KernelRequest&);

// batch_norm.cu
KernelPtr make_batch_norm_stats(const BatchNormStats&, KernelRequest&);
KernelPtr make_batch_norm_normalize(const BatchNormNormalize&, KernelRequest&);
KernelPtr make_batch_norm_backward_sums(const BatchNormBackwardSums&, KernelRequest&);
KernelPtr make_batch_norm_backward_data(const BatchNormBackwardData&, KernelRequest&);
KernelPtr make_batch_norm_update_running(const BatchNormUpdateRunning&, KernelRequest&);

// pooling.cu
KernelPtr make_max_pool2d_forward(const MaxPool2dForward&, KernelRequest&);
KernelPtr make_max_pool2d_backward(const MaxPool2dBackward&, KernelRequest&);

// updates.cu
KernelPtr make_increment_counter(const IncrementCounter&, KernelRequest&);
KernelPtr make_sum_over_shards(const SumOverShards&, KernelRequest&);
KernelPtr make_batch_norm_pool_stats(const BatchNormPoolStats&, KernelRequest&);

// optimizers.cu
void add_fused_updates(KernelTable& table);
KernelPtr make_read_rows(const ReadRows&, KernelRequest&);
KernelPtr make_store_range(const StoreRange&, KernelRequest&);
KernelPtr make_store_rows(const StoreRows&, KernelRequest&);
KernelPtr make_count_updates(const CountUpdates&, KernelRequest&);

// gradients.cu
KernelPtr make_measure_gradients(const MeasureGradients&, KernelRequest&);
KernelPtr make_combine_measures(const CombineMeasures&, KernelRequest&);
KernelPtr make_clip_coefficient(const ClipCoefficient&, KernelRequest&);
KernelPtr make_judge_norm(const JudgeNorm&, KernelRequest&);
KernelPtr make_scale_gradients(const ScaleGradients&, KernelRequest&);
KernelPtr make_clamp_gradients(const ClampGradients&, KernelRequest&);

// steps.cu
KernelPtr make_tree_sum(const TreeSum&, KernelRequest&);
KernelPtr make_agree_status(const AgreeStatus&, KernelRequest&);
KernelPtr make_forget_skip(const ForgetSkip&, KernelRequest&);
KernelPtr make_advance_step(const AdvanceStep&, KernelRequest&);
KernelPtr make_take_over(const TakeOver&, KernelRequest&);

// matmul.cpp
KernelPtr make_matmul(const MatMul&, KernelRequest&);
KernelPtr make_linear_forward(const LinearForward&, KernelRequest&);
KernelPtr make_linear_backward_data(const LinearBackwardData&, KernelRequest&);
KernelPtr make_linear_backward_weights(const LinearBackwardWeights&, KernelRequest&);

// convolution.cpp
KernelPtr make_conv2d_forward(const Conv2dForward&, KernelRequest&);
KernelPtr make_conv2d_backward_data(const Conv2dBackwardData&, KernelRequest&);
KernelPtr make_conv2d_backward_weights(const Conv2dBackwardWeights&, KernelRequest&);

}  // namespace lockstep::cuda
