#include "lockstep/ops/averaged_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "lockstep/ops/functional.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/error.h"

namespace lockstep::detail {

namespace {

void require_alike(const std::vector<NamedTensor>& averages, const std::vector<NamedTensor>& tensors) {
    const auto count = std::min(averages.size(), tensors.size());
    for (std::size_t i = 0; i < count; ++i) {
        const Tensor &average = averages[i].member->tensor(), &tensor = tensors[i].member->tensor();
        if (averages[i].name != tensors[i].name || !(average.shape() == tensor.shape()) ||
            average.dtype() != tensor.dtype())
            throw InvalidArgument(
                fmt::format("AveragedModel: the model has {} {} {}; expected {} {} {}, as in the model that was copied",
                            tensors[i].name, name_of(tensor.dtype()), tensor.shape().str(), averages[i].name,
                            name_of(average.dtype()), average.shape().str()));
    }
    if (averages.size() != tensors.size())
        throw InvalidArgument(
            fmt::format("AveragedModel: the model has {} tensors; expected {}, as in the model that was copied",
                        tensors.size(), averages.size()));
}

}  // namespace

void require_averaging(const AveragingOptions& options) {
    if (options.ema_decay && !(*options.ema_decay >= 0 && *options.ema_decay <= 1))
        throw InvalidArgument(
            fmt::format("AveragedModel: invalid ema_decay ({}); expected [0, 1]", *options.ema_decay));
}

void require_updates(std::int64_t updates) {
    if (updates < 0)
        throw InvalidArgument(
            fmt::format("AveragedModel: invalid number of updates ({}); expected 0 or more", updates));
}

void average_tensors(const std::vector<NamedTensor>& averages, const std::vector<NamedTensor>& tensors,
                     const AveragingOptions& options, std::int64_t before) {
    require_alike(averages, tensors);
    const double weight = options.ema_decay ? 1 - *options.ema_decay : 1 / static_cast<double>(before + 1);
    const NoGrad no_grad;
    std::set<const void*> done;  // tied tensors
    for (std::size_t i = 0; i < averages.size(); ++i) {
        if (!done.insert(averages[i].member->identity()).second) continue;
        const Tensor& average = averages[i].member->tensor();
        const Tensor tensor = tensors[i].member->tensor().detach().to(average.device());
        const bool averaged = (averages[i].is_parameter || options.use_buffers) && is_floating(tensor.dtype());
        average.copy_(averaged && before > 0 ? lerp(average.detach(), tensor, weight) : tensor);
    }
}

}  // namespace lockstep::detail
