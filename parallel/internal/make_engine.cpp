#include "lockstep/parallel/internal/make_engine.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/parallel/comm/group/shared_choices.h"
#include "lockstep/parallel/engine/rank_agreement.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/random.h"

namespace lockstep {

namespace {

/// Far more than the devices or cores of a machine; every shard takes memory, every thread a stack.
constexpr int max_shards = 65536, max_threads = 4096;

void check(const EngineOptions& options, const std::vector<NamedTensor>& tensors, bool alone) {
    if (options.shards < 0 || options.shards > max_shards)
        throw InvalidArgument(
            fmt::format("shards: {}; expected 1 to {}, or 0 for one per device", options.shards, max_shards));
    if (options.threads_per_shard < 0 || options.threads_per_shard > max_threads)
        throw InvalidArgument(fmt::format("threads_per_shard: {}; expected 1 to {}, or 0 for the default",
                                          options.threads_per_shard, max_threads));
    if (options.program_cache_size < 1)
        throw InvalidArgument(fmt::format("{} programs to cache; expected at least 1", options.program_cache_size));
    if (options.autocast && !is_half_type(*options.autocast))
        throw InvalidArgument(
            fmt::format("autocast to {}; expected f16 or bf16, or no autocast", name_of(*options.autocast)));
    if (options.output_device && !options.output_device->is_host()) require_visible(*options.output_device);
    if (alone && options.reduction == ReductionMode::fast)
        throw InvalidArgument("the fast reduction requires several processes");
    if (tensors.empty()) throw InvalidArgument("the model has no parameters: list its members with LOCKSTEP_MEMBERS");
    for (const NamedTensor& named : tensors)
        if (!alone && named.member->tensor().grad().defined())  // those of the ranks may differ
            throw InvalidArgument(
                fmt::format("the parameter {} has a gradient, which is not reduced over the ranks; expected none "
                            "(use set_grad(ls::Tensor()) or a copy of the model)",
                            named.name));
}

/// Throws InvalidArgument for options that only one process with several devices supports.
void require_one_device(const Devices& devices, const EngineOptions& options) {
    if (devices.size() != 1)
        throw InvalidArgument(
            fmt::format("{} devices in one of several processes; expected one per process (for several, use "
                        "DataParallel in one process)",
                        devices.size()));
    if (options.reduction == ReductionMode::slice_wise)
        throw InvalidArgument("slice-wise updates are for the devices of one process; expected the default reduction");
}

int threads_of(const Devices& devices, const EngineOptions& options) {
    if (options.threads_per_shard > 0 || devices.kind() == DeviceKind::cuda || options.shards > 0)
        return std::max(1, options.threads_per_shard);
    int threads = device_info(devices[0]).units;
    for (const Device device : devices) threads = std::min(threads, device_info(device).units);
    return threads;
}

const char* convolutions(ConvAlgorithm algorithm) {
    if (algorithm == ConvAlgorithm::automatic) return "";
    return algorithm == ConvAlgorithm::direct ? ", direct convolutions" : ", convolutions by benchmarking";
}

/// Options that must be equal on all ranks.
std::string described(const EngineOptions& options, const Topology& topology) {
    const TraceSettings& arithmetic = topology.arithmetic;
    const bool threads_given = options.threads_per_shard > 0 || arithmetic.deterministic;
    return fmt::format("{} shards, {} and {} bytes per bucket, {}{}{}{}{}{}{}{}{}{}{}", topology.shards,
                       options.first_bucket_bytes, options.bucket_bytes,
                       options.reduction == ReductionMode::fast ? "the fast reduction, " : "",
                       arithmetic.deterministic ? "deterministic" : "not deterministic",
                       convolutions(arithmetic.convolution), arithmetic.allow_tf32 ? ", TF32 is allowed" : "",
                       options.autocast ? fmt::format(", autocast to {}", name_of(*options.autocast)) : "",
                       options.nan_policy == NanPolicy::stop ? "" : ", steps that are not finite are applied",
                       options.broadcast_buffers ? ", buffers are broadcast" : "",
                       options.find_unused_parameters ? ", unused parameters are detected" : "",
                       options.static_graph ? ", the graph is static" : "",
                       options.init_sync ? "" : ", values are not broadcast from rank 0",
                       threads_given ? fmt::format(", {} threads per shard", arithmetic.threads) : "");
}

Topology make_topology(Devices devices, const EngineOptions& options, Communicator* job) {
    Topology topology(devices);
    if (job) {
        topology.rank = RankIndex(job->rank());
        topology.ranks = job->size();
        topology.collective_streams = {&Stream::of(topology.devices[0], StreamRole::collective)};
    }
    const bool fixed_shards = options.shards > 0;
    topology.shards = fixed_shards ? options.shards : topology.devices.size() * topology.ranks;
    topology.held = topology.held_by(topology.rank, topology.shards);
    topology.arithmetic = {.prototype = topology.devices[0],
                           .threads = threads_of(topology.devices, options),
                           .deterministic = options.deterministic || fixed_shards,
                           .shards = topology.shards,
                           .convolution = options.convolution.value_or(default_conv_algorithm()),
                           .allow_tf32 = options.allow_tf32,
                           .autocast = options.autocast};
    if (job) {
        agree_on_options(*job, described(options, topology));
        // The minimum number of threads, if the options leave it open.
        std::int32_t threads = topology.arithmetic.threads;
        job->all_reduce(&threads, 1, DType::i32, ReduceOp::min);
        topology.arithmetic.threads = threads;
    }
    topology.assign_lanes();
    return topology;
}

ArenaPartition cut_of(const std::shared_ptr<ParameterStore>& store, const Topology& topology,
                      const EngineOptions& options, bool alone) {
    const bool by_slices = options.reduction == ReductionMode::slice_wise;
    if (!alone && options.bucket_bytes == 0 && options.first_bucket_bytes == 0)
        return {store, std::size_t{25} << 20, 1, std::size_t{1} << 20};
    // One shard on one GPU has nothing to sum while backward runs: fewer buckets are fewer launches.
    if (alone && options.bucket_bytes == 0 && topology.shards == 1 &&
        topology.devices[first_device].kind() == DeviceKind::cuda) {
        std::size_t all = 1;
        for (const ArenaLayout& arena : store->parameters()) all += arena.bytes();
        return {store, all, 1, options.first_bucket_bytes};
    }
    return {store, options.bucket_bytes, by_slices ? topology.devices.size() : 1, options.first_bucket_bytes};
}

}  // namespace

std::unique_ptr<EngineParts> make_engine(const std::vector<NamedTensor>& tensors, Devices devices,
                                         const EngineOptions& options, std::shared_ptr<Communicator> job) {
    check(options, tensors, !job);
    if (job) require_one_device(devices, options);
    Topology topology = make_topology(devices, options, job.get());
    Ranks ranks(job, {options.find_unused_parameters, options.static_graph});
    if (job) ranks.connect(topology.devices[0], topology.collective());
    const auto cut = [&](const EngineMemory& memory, const Topology& where) {
        return cut_of(memory.store(), where, options, !job);
    };
    auto parts = std::make_unique<EngineParts>(std::move(topology), tensors, std::move(ranks),
                                               static_cast<std::size_t>(options.program_cache_size), cut,
                                               options.reduction == ReductionMode::fast);
    if (parts->topology.arithmetic.convolution == ConvAlgorithm::benchmark)
        parts->algorithms = std::make_unique<AlgorithmChoices>(
            job && job->info().store ? decided_together(*job->info().store, job->info().name)
                                     : AlgorithmChoices::Decide());
    StepCounters state;
    state.seed = options.seed.value_or(current_seed());
    if (job) begin_alike(*parts, state, options.init_sync);
    for (const DeviceIndex d : parts->topology.devices.indices()) write_step_state(*parts, d, state);
    return parts;
}

}  // namespace lockstep
