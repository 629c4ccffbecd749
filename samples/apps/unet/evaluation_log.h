// Values that `unet train` logs in addition to the score of an evaluation.
#pragma once

#include <cstdint>
#include <tuple>

#include "lockstep/parallel/event_log.h"
#include "lockstep/runtime/tensor.h"
#include "lockstep/samples/apps/unet/loss.h"
#include "lockstep/samples/apps/unet/net.h"

namespace unet {

/// An image with its true and its predicted mask, and histograms of all weights and of the gradients that the loss of
/// this image has with respect to them, in evaluation mode. `row`: row of a SegmentationFolder. Copies the
/// network, which is not modified.
void log_evaluation(lockstep::EventLog& log, const UNet& net, const SegmentationLoss& loss,
                    const std::tuple<lockstep::Tensor, lockstep::Tensor>& row, std::int64_t step);

}  // namespace unet
