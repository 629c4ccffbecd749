// How an engine trains: what wrappers and their steps are given.
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

/// How gradients are brought together.
enum class ReductionMode : std::uint8_t {
    root,        ///< summed on device 0, updated there, weights broadcast (PyTorch's DataParallel)
    slice_wise,  ///< every device sums and updates its slice, weights are gathered by all: no device holds more
    fast  ///< several processes: the backend's own all-reduce, in its own order. Gives up the promise of equal bits
};

/// What happens to a step whose loss is not finite.
enum class NanPolicy : std::uint8_t {
    stop,  ///< it changes nothing and StepError is thrown, at the latest two calls later
    go_on  ///< it counts like any other, as in PyTorch
};

struct EngineOptions {
    int shards = 0;  ///< S; 0: the number of devices. Fixing it fixes all bits, whatever the devices
    int threads_per_shard =
        0;  ///< CPU threads that a shard is computed with; 0: one where shards are fixed, else all cores
    bool deterministic = false;  ///< same bits run after run; implied by fixed shards
    /// How f32 convolutions are computed on CPU devices: as LOCKSTEP_CONV says unless set. See docs/accuracy.md.
    std::optional<ConvAlgorithm> convolution = {};
    /// f16 or bf16: forward and loss are traced in an Autocast of it (runtime/autocast.h), where the caller is in none.
    std::optional<DType> autocast = {};
    ReductionMode reduction = ReductionMode::root;
    NanPolicy nan_policy = NanPolicy::stop;
    std::optional<std::uint64_t> seed = {};  ///< of random masks; that of manual_seed unless set
    std::size_t bucket_bytes = 0;  ///< gradients are reduced in ranges of about so many; 0: see docs/reduction.md
    std::optional<Device> output_device = {};  ///< where outputs are gathered; the first device unless set
    /// Programs kept, one per batch size, mode, loss and optimizer. The least recently used program is evicted, and made
    /// again when it is needed. A program whose forward still waits for its backward is not evicted. A new program frees
    /// the activations of all but the eight programs used last.
    int kept_programs = 64;

    // Several processes alone.
    /// Bytes of the first range of gradients that is reduced; 0: 1 MiB, and then `bucket_bytes` is 25 MiB unless set.
    std::size_t first_bucket_bytes = 0;
    /// Parameters that only some ranks use get zeros from the others; what none uses keeps its gradient, or has none,
    /// and is not updated. Otherwise unused ones are an error that names them. Costs a small collective between the
    /// hosts before each step, or forward that has a backward, and a program for every combination of what ranks use.
    bool find_unused_parameters = false;
    /// All ranks use the same parameters in every step: those that are not used are left alone, and it is an error,
    /// which names one, when others get gradients later.
    bool static_graph = false;
    /// The parameters and buffers of rank 0 become everybody's at the start. Otherwise all ranks must have the same.
    bool init_sync = true;
    /// The buffers of rank 0 become everybody's before every forward. Running statistics are the same on all ranks
    /// anyway; a model that writes other buffers, differently on each rank, needs it. Costs a collective, and each step
    /// waits for the one before it.
    bool broadcast_buffers = false;
};

/// How one step goes through its batch.
struct StepOptions {
    /// The batch is taken in so many microbatches, one after another, with the memory of one's activations; the
    /// parameters change once, after the last. Loss and gradients are those of the whole batch: the denominators of
    /// the loss are summed over all of them first. Every shard is cut in so many pieces of ceil(rows /
    /// accumulation_steps) rows, the last one shorter; where rows run out there are fewer. To layers every microbatch
    /// is a forward of its own: it has its own random masks, and BatchNorm normalises with its rows and moves the
    /// running statistics once for it.
    int accumulation_steps = 1;
    /// What is done to the gradients of the whole batch, in this order, after the last of them is there and before any
    /// parameter is updated: `{.clip = {ClipGradNorm{.max_norm = 1}}}`. The norm is one number for all devices and
    /// ranks, and has the same bits for any number of them. The numbers are part of the program. Without it parameters
    /// are updated while backward goes on.
    std::vector<GradientClip> clip = {};
    /// A step whose gradients are not all finite changes nothing, on any device or rank, and the next one goes on
    /// (StepLoss::skipped). Takes the same place as `clip`, and comes first.
    bool skip_nonfinite = false;
    /// Backward begins with a multiple of the loss, and gradients are divided by it before they are clipped; a step
    /// whose gradients are not all finite is skipped as above, and the scale is updated on the devices. Whether the
    /// loss is finite is not asked (NanPolicy): where it is not, the gradients tell. Not with a communication hook.
    GradScaler* scaler = nullptr;
    /// Sets the optimizer before the step, by what steps up to the one before the last have shown, and is told what
    /// this one shows: the squares of the shards' gradients and of their mean, unscaled and before they are clipped.
    /// Parameters are updated when all gradients are there, as with `clip`. Wants two shards or microbatches at least;
    /// not with a communication hook. All ranks have rules with the same options.
    AdaptiveRates* rates = nullptr;
};

}  // namespace lockstep
