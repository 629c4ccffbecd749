// The same training of the same U-Net, in every form that two devices support.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/parallel/comm/process_group.h"
#include "lockstep/runtime/device.h"
#include "lockstep/samples/apps/model_parallel/halves.h"
#include "lockstep/samples/apps/program/options.h"
#include "lockstep/samples/apps/unet/net.h"

namespace forms {

struct Settings {
    /// Flags that all training programs share. An epoch of the schedule is a step.
    program::Options options;
    lockstep::Devices devices;  ///< two; in a rank, only its own. Those of `options`
    unet::Options net;
    halves::Cut cut = halves::Cut::arithmetic;
    std::int64_t batch_size = 0, image_size = 0, microbatches = 0;
    int steps = 0;  ///< measured steps, after those for warm-up
};
constexpr int warm_up_steps = 2;

struct Measured {
    std::string name;
    std::vector<double> milliseconds;     ///< time of each step
    std::vector<std::size_t> peak_bytes;  ///< on each device
    double loss = 0;                      ///< loss of the last step

    double median() const;
};

/// One device, without and with a wrapper.
Measured plain(const Settings& settings);
Measured none(const Settings& settings);
/// Half of the batch on each device, the model on both.
Measured data_parallel(const Settings& settings);
/// As data_parallel, with one process per device. Collective; the same on all ranks except for the milliseconds.
Measured distributed(const Settings& settings, lockstep::ProcessGroup& group);
/// A part of the model on each device: the whole batch passes through both parts in turn, or microbatches through both
/// at once.
Measured serial(const Settings& settings);
Measured pipelined(const Settings& settings);

}  // namespace forms
