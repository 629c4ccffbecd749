// `--parallel`: the same program on one device, on several, or as one of several processes.
#pragma once

#include <utility>

#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "lockstep/samples/apps/program/options.h"

namespace program {

/// Calls `body` with `net`, wrapped as the options specify, and returns its result.
template <class Net, class Body>
auto with_model(const Options& options, Net net, Body&& body) {
    const lockstep::Devices devices = options.chosen_devices();
    if (options.group) {
        lockstep::DistributedDataParallel model(std::move(net), *options.group, devices[0], options.engine_options());
        return body(model);
    } else {
        lockstep::DataParallel model(std::move(net), devices, options.engine_options());
        return body(model);
    }
}

}  // namespace program
