// Options of an engine and of its steps, as passed to the wrappers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "lockstep/ops/adaptive_rates.h"
#include "lockstep/ops/clip_grad.h"
#include "lockstep/ops/grad_scaler.h"
#include "lockstep/runtime/device.h"
#include "lockstep/runtime/record.h"

namespace lockstep {

/// Reduction of the gradients over the devices.
enum class ReductionMode : std::uint8_t {
    root,        ///< sum and update on device 0, then broadcast the weights (PyTorch's DataParallel)
    slice_wise,  ///< each device sums and updates its slice, then all gather the weights; no device holds more than the
                 ///< others
    fast  ///< several processes: the backend's own all-reduce, in its own order; not bit-identical across device counts
};

/// Policy for a step whose loss is not finite.
enum class NanPolicy : std::uint8_t {
    stop,   ///< discard the step and throw StepError, at the latest two calls later
    ignore  ///< apply the step as usual, as PyTorch does
};

/// Options of a wrapper.
struct EngineOptions {
    int shards = 0;  ///< number of shards S; 0: number of devices. A fixed S fixes all bits for any number of devices
    int threads_per_shard = 0;   ///< CPU threads per shard; 0: one if `shards` is set, otherwise all cores
    bool deterministic = false;  ///< reproducible bits from run to run; implied by a fixed number of shards
    /// Algorithm of f32 convolutions on CPU devices; default: from LOCKSTEP_CONV. See docs/accuracy.md.
    std::optional<ConvAlgorithm> convolution = {};
    /// Allows f32 convolutions and f32 matrix products to be computed in TF32, on GPUs of compute capability 8.0 and
    /// later. TF32 is faster, but rounds operands to 10 bits of mantissa. Combines PyTorch's
    /// torch.backends.cudnn.allow_tf32 and torch.backends.cuda.matmul.allow_tf32. No effect on CPU devices and on other
    /// dtypes.
    bool allow_tf32 = false;
    /// f16 or bf16: traces forward and loss in an Autocast of this type (runtime/autocast.h), unless the caller is in
    /// one.
    std::optional<DType> autocast = {};
    ReductionMode reduction = ReductionMode::root;
    NanPolicy nan_policy = NanPolicy::stop;
    std::optional<std::uint64_t> seed = {};  ///< random seed for masks; default: that of manual_seed
    /// Approximate size of the ranges in which gradients are reduced; 0: see docs/reduction.md.
    std::size_t bucket_bytes = 0;
    std::optional<Device> output_device = {};  ///< device on which outputs are gathered; default: the first one
    /// Maximum number of cached programs, one per batch size, mode, loss and optimizer. The least recently used one is
    /// evicted, and is traced again on its next use. A program whose forward has a pending backward is not evicted. A
    /// new program frees the activations of all except the eight most recently used programs.
    int program_cache_size = 64;

    // The following options are for several processes only.
    /// Bytes of the first range of gradients that is reduced; 0: 1 MiB, and `bucket_bytes` then defaults to 25 MiB.
    std::size_t first_bucket_bytes = 0;
    /// Allows ranks to use different parameters. A parameter that only some ranks use gets zero gradients from the
    /// others. A parameter that no rank uses is not updated, and its gradient is unchanged. Without this option unused
    /// parameters are an error that names them. Costs a small collective between the hosts before each step (or forward
    /// that has a backward), and one program for every combination of used parameters.
    bool find_unused_parameters = false;
    /// Promises that all ranks use the same parameters in every step. Parameters that are not used are ignored. If a
    /// different set gets gradients later, that is an error that names one of them.
    bool static_graph = false;
    /// Broadcasts the parameters and buffers of rank 0 at construction. If false, all ranks must have equal ones.
    bool init_sync = true;
    /// Broadcasts the buffers of rank 0 before every forward. Running statistics are equal on all ranks without it. It
    /// is needed for models that write other buffers differently on each rank. Costs one collective, and each step
    /// waits for the previous one.
    bool broadcast_buffers = false;
};

/// Options of one step.
struct StepOptions {
    /// Number of microbatches per batch. They are computed one after another with the activation memory of one, and the
    /// parameters are updated once, after the last. Loss and gradients are those of the whole batch: the denominators
    /// of the loss are first summed over all microbatches. Every shard is cut into pieces of ceil(rows /
    /// accumulation_steps) rows. The last piece may be shorter, and there are fewer pieces if rows run out. For layers
    /// each microbatch is a separate forward: it has its own random masks, and BatchNorm normalises with its rows and
    /// updates the running statistics once.
    int accumulation_steps = 1;
    /// Clipping of the whole batch's gradients, in this order, when all of them are computed and before any update:
    /// `{.clip = {ClipGradNorm{.max_norm = 1}}}`. The norm is one number for all devices and ranks, with the same bits
    /// for any number of them. The limits are part of the program. Without clipping, parameters are updated while
    /// backward is running.
    std::vector<GradientClip> clip = {};
    /// Skips a step whose gradients are not all finite: nothing changes on any device or rank, and training continues
    /// (StepLoss::skipped). Checked after the last gradient is computed, before `clip`.
    bool skip_nonfinite = false;
    /// Starts backward with the loss times a scale, and divides the gradients by the scale before they are clipped. A
    /// step whose gradients are not all finite is skipped as above. The scale is updated on the devices. The loss
    /// itself is not checked (NanPolicy), as a loss that is not finite shows in the gradients. Cannot be combined with
    /// a communication hook.
    GradScaler* scaler = nullptr;
    /// Sets the optimizer before the step, based on the measurements of steps up to the one before the last. Receives
    /// this step's measurements: the squared norms of the shards' gradients and of their mean, unscaled and before
    /// clipping. Parameters are updated after all gradients are computed, as with `clip`. Requires at least two shards
    /// or microbatches. Cannot be combined with a communication hook. All ranks must pass rules with the same options.
    AdaptiveRates* rates = nullptr;
};

}  // namespace lockstep
