// The second gate of a step: after all gradients, before any update. It runs all work that needs all gradients: norms,
// clipping, and the decision to skip or refuse the step.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/ops/adaptive_rates.h"
#include "lockstep/ops/clip_grad.h"
#include "lockstep/ops/grad_scaler.h"
#include "lockstep/ops/internal/optimizer_operations.h"
#include "lockstep/parallel/reduce/reduction_memory.h"
#include "lockstep/parallel/schedule/emitter.h"

namespace lockstep {

/// Work of the gate in a step. Empty by default: then the step does not wait.
struct GateRules {
    std::vector<GradientClip> clip = {};
    bool skip_nonfinite = false;
    GradScaler* scaler = nullptr;  ///< an enabled scaler on the model's devices
    AdaptiveRates* rates = nullptr;
    bool norms = false;  ///< whether the optimizer needs norms of parameters

    bool empty() const { return clip.empty() && !may_skip() && !rates && !norms; }
    bool may_skip() const { return skip_nonfinite || scaler; }
    /// Whether the norm is reported with the step.
    bool has_norm() const;
    /// For keys of programs, and for other ranks: everything except the identity of scaler and rates.
    void describe(Signature& signature) const;
    /// Throws InvalidArgument for invalid numbers, and groups that the optimizer does not have.
    void check(const Optimizer& optimizer) const;
};

/// Emits the gate for summed gradients in the arenas of the devices that update them, on the commit streams, which have
/// waited for the gradients.
class GateEmitter {
public:
    /// `parts`: for every updating device, its ranges.
    GateEmitter(Emitter& emitter, const ReductionMemory& reduction, Optimizer& optimizer,
                std::vector<std::vector<Bucket>> parts);
    void emit(const GateRules& rules);

private:
    /// The norm of the gradients of a group, on the first device.
    MemoryRef emit_norm(double order, int group);
    /// Divides all gradients by the scale.
    void emit_unscaling(const GradScaler& scaler);
    /// Updates the scale on every device.
    void emit_new_scale(const GradScaler& scaler);
    MemoryRef scale_on(const GradScaler& scaler, DeviceIndex device) const;
    void emit_clip(const ClipGradNorm& clip);
    void emit_clip(const ClipGradValue& clip);
    /// Measures the norms that the optimizer needs, on every device.
    void emit_parameter_norms();
    /// Decides on the first device about a non-finite norm, and copies the decision to the others.
    void emit_judgement(const MemoryRef& norm, bool refuses);
    /// Copies a word from the first device to `targets` of the others, which are given by device.
    void emit_notify(const MemoryRef& from, const std::vector<MemoryRef>& targets);
    template <class Make>
    void emit_change(int group, const std::vector<MemoryRef>* factors, const Make& make);
    std::vector<MemoryRef> factors() const;
    /// The elements of `part` that belong to a group.
    GradientRange meant(const Bucket& part, int group) const;
    MemoryRef rows(DeviceIndex device, const Bucket& part) const;
    MemoryRef measures(DeviceIndex device, const Bucket& part) const;
    IndexRange<DeviceIndex> devices() const { return {0, static_cast<int>(parts_.size())}; }

    Emitter& emitter_;
    const ReductionMemory& reduction_;
    Optimizer& optimizer_;
    std::vector<std::vector<Bucket>> parts_;
    std::vector<std::int64_t> first_grain_;          ///< by arena; the last entry is the number of grains
    std::vector<std::shared_ptr<Buffer>> measures_;  ///< by device: measures of all grains
    std::vector<std::shared_ptr<Buffer>> factors_;   ///< by device: factor of the gradients
    std::shared_ptr<Buffer> norm_;
    bool reported_ = false;  ///< whether the norm of a clip is in the memory that is reported
};

}  // namespace lockstep
