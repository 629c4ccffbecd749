#include "lockstep/parallel/engine/make_engine_context.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/parallel/engine/rank_agreement.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/random.h"

namespace lockstep {

EngineContext make_engine_context(std::vector<NamedTensor> tensors, Devices devices, const EngineOptions& wanted,
                                  std::shared_ptr<Communicator> job) {
    if (wanted.shards < 0)
        throw InvalidArgument(fmt::format("{} shards: give a positive number, or 0 for one a device", wanted.shards));
    if (wanted.threads_per_shard < 0)
        throw InvalidArgument(
            fmt::format("{} threads a shard: give a positive number, or 0 to choose", wanted.threads_per_shard));
    if (wanted.kept_programs < 1)
        throw InvalidArgument(fmt::format("{} programs to keep: give at least 1", wanted.kept_programs));
    if (wanted.output_device && !wanted.output_device->is_host()) require_visible(*wanted.output_device);
    if (!job && wanted.reduction == ReductionMode::fast)
        throw InvalidArgument("the fast reduction is for several processes; leave it as it is in one");
    if (tensors.empty()) throw InvalidArgument("the model has no parameters: list its members with LOCKSTEP_MEMBERS");
    EngineContext context(std::move(devices));
    const bool fixed_shards = wanted.shards > 0;
    context.job = std::move(job);
    if (context.job) require_one_process_a_device(context.devices, wanted);
    context.shards = fixed_shards ? wanted.shards : context.devices.size() * context.ranks();
    context.held = context.held_by(context.rank(), context.shards);
    context.deterministic = wanted.deterministic || fixed_shards;
    context.convolution = wanted.convolution.value_or(default_conv_algorithm());
    context.reduction = wanted.reduction;
    context.kept_programs = static_cast<std::size_t>(wanted.kept_programs);
    if (wanted.threads_per_shard > 0 || context.devices.kind() == DeviceKind::cuda || fixed_shards) {
        context.threads = std::max(1, wanted.threads_per_shard);
    } else {
        context.threads = device_info(context.devices[0]).units;
        for (const Device device : context.devices)
            context.threads = std::min(context.threads, device_info(device).units);
    }
    if (context.job) agree_on_options(context, wanted);
    if (context.job) context.gpu_job = context.job->on(context.devices[0], &context.exchange());
    context.lanes = place_shards(context.devices, context.held, context.threads);
    for (const Lane& lane : context.lanes)
        context.compute_streams.push_back(&Stream::of(context.devices[lane.device], StreamRole::compute, lane.stream));
    for (const Device device : context.devices) {
        context.communication_streams.push_back(&Stream::of(device, StreamRole::communicate));
        context.commit_streams.push_back(&Stream::of(device, StreamRole::commit));
    }
    context.store = std::make_shared<ParameterStore>(
        std::move(tensors), std::vector<Device>(context.devices.begin(), context.devices.end()));
    context.store->enlist(context.store);
    const bool by_slices = wanted.reduction == ReductionMode::slice_wise;
    if (context.job && wanted.bucket_bytes == 0 && wanted.first_bucket_bytes == 0)
        context.cut.emplace(context.store, std::size_t{25} << 20, 1, std::size_t{1} << 20);
    else
        context.cut.emplace(context.store, wanted.bucket_bytes, by_slices ? context.devices.size() : 1,
                            wanted.first_bucket_bytes);
    context.find_unused = wanted.find_unused_parameters;
    if (context.find_unused && context.ranks() > 1) context.agreement = context.job->duplicate("used parameters");
    context.static_graph = wanted.static_graph;
    for (const Device device : context.devices) context.control.emplace_back(device, context.shards);
    StepState state;
    state.seed = wanted.seed.value_or(current_seed());
    if (context.job) begin_alike(context, state, wanted.init_sync);
    for (int d = 0; d < context.devices.size(); ++d) write_step_state(context, d, state);
    return context;
}

void write_step_state(const EngineContext& context, int device, const StepState& state) {
    Stream& stream = context.commit(device);
    stream.copy(context.control[static_cast<std::size_t>(device)].step(), context.devices[device], &state,
                Device::host(), sizeof state);
    stream.synchronize();
}

StepState read_step_state(const EngineContext& context) {
    StepState state;
    Stream& stream = context.commit(0);
    stream.copy(&state, Device::host(), context.control[0].step(), context.devices[0], sizeof state);
    stream.synchronize();
    return state;
}

}  // namespace lockstep
