// The same training of the same U-Net, in every form that two devices allow.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/parallel/comm/process_group.h"
#include "lockstep/runtime/device.h"
#include "lockstep/samples/apps/model_parallel/halves.h"
#include "lockstep/samples/apps/unet/net.h"

namespace forms {

struct Settings {
    lockstep::Devices devices;  ///< two; of a rank its own
    unet::Options net;
    halves::Cut cut = halves::Cut::arithmetic;
    std::int64_t batch_size = 0, image_size = 0, micro_batches = 0;
    int steps = 0;  ///< that are measured, after two that are not
    std::uint64_t seed = 0;
};

struct Measured {
    std::string name;
    std::vector<double> milliseconds;     ///< of each step
    std::vector<std::size_t> peak_bytes;  ///< on each device
    double loss = 0;                      ///< of the last step

    double median() const;
};

/// One device, without and with a wrapper.
Measured plain(const Settings& settings);
Measured none(const Settings& settings);
/// The batch cut, the model on both devices.
Measured data_parallel(const Settings& settings);
/// Likewise with a process for each. Collective; the same on all ranks but for the milliseconds.
Measured distributed(const Settings& settings, lockstep::ProcessGroup& group);
/// The model cut: the whole batch through one part after the other, or in microbatches through both.
Measured serial(const Settings& settings);
Measured pipelined(const Settings& settings);

}  // namespace forms
