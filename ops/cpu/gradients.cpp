// Norms and clipping of gradients.
#include "lockstep/ops/internal/optimizer_operations.h"

#include <algorithm>
#include <cmath>

#include "lockstep/ops/cpu/half_types.h"
#include "lockstep/ops/cpu/kernels.h"
#include "lockstep/ops/cpu/parameter_rows.h"
#include "lockstep/ops/internal/gradient_arithmetic.h"

namespace lockstep::cpu {
namespace {

/// Calls work(first element within the range, elements) for every selected parameter. `rows`: null without rows.
template <class Work>
void for_meant(const GradientRange& meant, const void* rows, const Work& work) {
    if (rows == nullptr) return work(std::int64_t{0}, meant.range.elements());
    for_parameters(meant.range, rows, meant.row_bytes,
                   [&](const ParameterRow& row, std::int64_t first, std::int64_t count) {
                       if (row.group >= 0 && (meant.group == GradientRange::all_groups || meant.group == row.group))
                           work(first, count);
                   });
}

std::unique_ptr<Kernel> make_measure_gradients(const MeasureGradients& operation, KernelRequest& request) {
    request.want_contiguous(0);
    require_contiguous_output(operation, request, 0);
    return for_floating(operation, request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_kernel([meant = operation.range, order = operation.order](const KernelArgs& call) {
            constexpr std::int64_t grain = MeasureGradients::grain;
            auto* measures = call.output<double>(0);
            std::fill_n(measures, MeasureGradients::grains(meant.range.elements()), 0.0);
            for_meant(meant, call.in[1], [&](std::int64_t first, std::int64_t count) {
                // Parameters begin at multiples of a grain.
                for (std::int64_t at = first; at < first + count; at += grain)
                    measures[at / grain] =
                        element::measure(call.input<T>(0) + at, std::min(grain, first + count - at), order);
            });
        });
    });
}

std::unique_ptr<Kernel> make_combine_measures(const CombineMeasures& operation, KernelRequest& request) {
    return make_kernel([grains = request.in[0].numel(), order = operation.order](const KernelArgs& call) {
        const auto* measures = call.input<double>(0);
        double all = 0;
        for (std::int64_t i = 0; i < grains; ++i) all = element::join_measures(all, measures[i], order);
        *call.output<double>(0) = element::norm_of(all, order);
    });
}

std::unique_ptr<Kernel> make_clip_coefficient(const ClipCoefficient& operation, KernelRequest&) {
    return make_kernel([most = operation.max_norm](const KernelArgs& call) {
        *call.output<double>(0) = element::clip_coefficient(*call.input<double>(0), most);
    });
}

std::unique_ptr<Kernel> make_check_grad_norm(const CheckGradNorm& operation, KernelRequest&) {
    return make_kernel([refuses = operation.refuses](const KernelArgs& call) {
        element::check_norm(*call.input<double>(0), refuses, *call.step, *call.output<StatusWord>(0));
    });
}

std::unique_ptr<Kernel> make_unscale_factor(const UnscaleFactor&, KernelRequest&) {
    return make_kernel(
        [](const KernelArgs& call) { *call.output<double>(0) = element::unscale_factor(*call.input<LossScale>(0)); });
}

std::unique_ptr<Kernel> make_update_loss_scale(const UpdateLossScale& operation, KernelRequest&) {
    return make_kernel([operation](const KernelArgs& call) {
        element::update_loss_scale(*call.output<LossScale>(0), *call.agreed, operation.growth_factor,
                                   operation.backoff_factor, operation.growth_interval);
    });
}

/// Calls change(gradients, count) for the selected elements. `rows`: number of the input with the rows.
template <class Op, class Change>
std::unique_ptr<Kernel> make_change(const Op& operation, const GradientRange& meant, KernelRequest& request, int rows,
                                    const Change& change) {
    require_contiguous_output(operation, request, 0);
    return for_stored(operation, request.out[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_kernel([meant, rows, change](const KernelArgs& call) {
            for_meant(meant, call.in[rows],
                      [&](std::int64_t first, std::int64_t count) { change(call, call.output<T>(0) + first, count); });
        });
    });
}

std::unique_ptr<Kernel> make_scale_gradients(const ScaleGradients& operation, KernelRequest& request) {
    return make_change(operation, operation.range, request, 1, [](const KernelArgs& call, auto* gradients, auto count) {
        using Stored = std::remove_reference_t<decltype(*gradients)>;
        using T = Arithmetic<Stored>;
        const auto factor = static_cast<T>(*call.input<double>(0));
        for (std::int64_t i = 0; i < count; ++i)
            gradients[i] = static_cast<Stored>(static_cast<T>(gradients[i]) * factor);
    });
}

std::unique_ptr<Kernel> make_clamp_gradients(const ClampGradients& operation, KernelRequest& request) {
    return make_change(operation, operation.range, request, 0,
                       [limit = operation.limit](const KernelArgs&, auto* gradients, auto count) {
                           using Stored = std::remove_reference_t<decltype(*gradients)>;
                           using T = Arithmetic<Stored>;
                           const auto most = static_cast<T>(limit);
                           for (std::int64_t i = 0; i < count; ++i)
                               gradients[i] = static_cast<Stored>(element::clamp(static_cast<T>(gradients[i]), most));
                       });
}

}  // namespace

void add_gradient_kernels(KernelTable& table) {
    table.add<MeasureGradients, make_measure_gradients>();
    table.add<CombineMeasures, make_combine_measures>();
    table.add<ClipCoefficient, make_clip_coefficient>();
    table.add<CheckGradNorm, make_check_grad_norm>();
    table.add<UnscaleFactor, make_unscale_factor>();
    table.add<UpdateLossScale, make_update_loss_scale>();
    table.add<ScaleGradients, make_scale_gradients>();
    table.add<ClampGradients, make_clamp_gradients>();
    // Native kernels are necessary: conversions around an f32 kernel would not read the output that it updates in
    // place.
    table.add_half_types<ScaleGradients, make_scale_gradients>();
    table.add_half_types<ClampGradients, make_clamp_gradients>();
}

}  // namespace lockstep::cpu
