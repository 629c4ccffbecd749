#include "lockstep/parallel/engine/rank_agreement.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "lockstep/runtime/error.h"

namespace lockstep {

namespace {

/// Text of rank 0, on all ranks.
std::string text_of_rank_0(Communicator& job, std::string text) {
    std::uint64_t size = text.size();
    job.broadcast(&size, sizeof size, 0);
    text.resize(size);
    job.broadcast(text.data(), size, 0);
    return text;
}

/// On all ranks what the first one has to say; empty when none has.
std::string said_by_any(Communicator& job, const std::string& own) {
    constexpr std::size_t longest = 512;
    std::vector<std::array<char, longest>> all(static_cast<std::size_t>(job.size()));
    auto& mine = all[static_cast<std::size_t>(job.rank())];
    mine.fill(0);
    own.copy(mine.data(), longest - 1);
    const std::vector<std::size_t> sizes(all.size(), longest);
    job.all_gather(mine.data(), all.data(), sizes);
    for (const auto& text : all)
        if (text[0] != 0) return text.data();
    return {};
}

void throw_together(Communicator& job, const std::string& own) {
    if (const std::string text = said_by_any(job, own); !text.empty()) throw InvalidArgument(text);
}

/// A line a tensor.
std::vector<std::string> describe(const ParameterStore& store) {
    std::vector<std::string> lines;
    for (const auto* layouts : {&store.parameters(), &store.buffers()})
        for (const ArenaLayout& layout : *layouts)
            for (const ArenaSegment& segment : layout.segments)
                lines.push_back(fmt::format("{} {} {}", segment.name, name_of(layout.dtype), segment.shape.str()));
    return lines;
}

std::vector<std::string> lines_of(const std::string& text) {
    std::vector<std::string> lines;
    for (std::size_t begin = 0; begin < text.size();) {
        const std::size_t end = text.find('\n', begin);
        lines.push_back(text.substr(begin, end - begin));
        begin = end + 1;
    }
    return lines;
}

std::string difference(const std::vector<std::string>& own, const std::vector<std::string>& of_rank_0, int rank) {
    for (std::size_t i = 0; i < std::max(own.size(), of_rank_0.size()); ++i) {
        const std::string here = i < own.size() ? own[i] : "nothing",
                          there = i < of_rank_0.size() ? of_rank_0[i] : "nothing";
        if (here != there)
            return fmt::format(
                "the model differs between ranks: rank {} has {} where rank 0 has {} ({} and {} tensors); make the "
                "same "
                "model on all ranks",
                rank, here, there, own.size(), of_rank_0.size());
    }
    return {};
}

std::vector<char> values_of(const EngineContext& context, const Buffer& arena) {
    Stream& stream = Stream::of(context.devices[0]);
    std::vector<char> values(arena.bytes());
    stream.copy(values.data(), Device::host(), arena.data(), context.devices[0], values.size());
    stream.synchronize();
    return values;
}

/// Values of an arena, from one rank.
void take_values(const EngineContext& context, const Buffer& arena, int root = 0) {
    std::vector<char> values = values_of(context, arena);
    context.job->broadcast(values.data(), values.size(), root);
    Stream& stream = Stream::of(context.devices[0]);
    stream.copy(arena.data(), context.devices[0], values.data(), Device::host(), values.size());
    stream.synchronize();
}

/// The first segment of an arena in which `own` and `other` differ.
std::string difference(const ArenaLayout& layout, const std::vector<char>& own, const std::vector<char>& other) {
    const std::size_t size = size_of(layout.dtype);
    for (const ArenaSegment& segment : layout.segments) {
        const auto begin = static_cast<std::size_t>(segment.begin) * size;
        const auto bytes = static_cast<std::size_t>(segment.end - segment.begin) * size;
        if (std::memcmp(own.data() + begin, other.data() + begin, bytes) != 0) return segment.name;
    }
    return {};
}

}  // namespace

void require_one_process_a_device(const Devices& devices, const EngineOptions& options) {
    if (devices.size() != 1)
        throw InvalidArgument(fmt::format(
            "{} devices in one of several processes; give each process one, or use DataParallel in one process",
            devices.size()));
    if (options.reduction == ReductionMode::slice_wise)
        throw InvalidArgument("slice-wise updates are for the devices of one process; leave the reduction as it is");
}

void agree_on_options(EngineContext& context, const EngineOptions& options) {
    Communicator& job = *context.job;
    const bool threads_given = options.threads_per_shard > 0 || context.deterministic;
    const std::string own =
        fmt::format("{} shards, {} and {} bytes a bucket, {}{}{}{}{}{}{}", context.shards, options.first_bucket_bytes,
                    options.bucket_bytes, options.reduction == ReductionMode::fast ? "the fast reduction, " : "",
                    context.deterministic ? "deterministic" : "not deterministic",
                    context.convolution == ConvAlgorithm::direct ? ", direct convolutions" : "",
                    options.nan_policy == NanPolicy::stop ? "" : ", steps that are not finite go on",
                    options.broadcast_buffers ? ", buffers are broadcast" : "",
                    options.find_unused_parameters ? ", unused parameters are found" : "",
                    threads_given ? fmt::format(", {} threads a shard", context.threads) : "");
    const std::string of_rank_0 = text_of_rank_0(job, own);
    throw_together(
        job, own == of_rank_0
                 ? std::string()
                 : fmt::format("the options differ between ranks: rank {} has {}; rank 0 has {}; give all the same",
                               job.rank(), own, of_rank_0));
    std::int32_t threads = context.threads;
    job.all_reduce(&threads, 1, DType::i32, ReduceOp::min);
    context.threads = threads;
}

void begin_alike(EngineContext& context, StepState& state, bool values) {
    Communicator& job = *context.job;
    const std::vector<std::string> own = describe(*context.store);
    std::string text;
    for (const std::string& line : own) text += line + "\n";
    throw_together(job, difference(own, lines_of(text_of_rank_0(job, text)), job.rank()));
    for (const auto* arenas : {&context.store->replicas()[0].parameters, &context.store->replicas()[0].buffers})
        for (const auto& arena : *arenas)
            if (values) take_values(context, *arena);
    job.broadcast(&state.seed, sizeof state.seed, 0);
}

void take_buffers(const EngineContext& context) {
    for (const auto& arena : context.store->replicas()[0].buffers) take_values(context, *arena);
}

void take_state(EngineContext& context, const std::vector<Optimizer*>& optimizers, int root) {
    for (const auto& arena : context.store->replicas()[0].parameters) take_values(context, *arena, root);
    for (const auto& arena : context.store->replicas()[0].buffers) take_values(context, *arena, root);
    for (Optimizer* optimizer : optimizers) {
        const OptimizerState& state = context.state(*optimizer, 0);
        for (const auto& rows : state.rows) take_values(context, *rows, root);
        for (const auto& [name, elements] : state.elements)
            for (const auto& arena : elements) take_values(context, *arena, root);
    }
    take_values(context, *context.control[0].memory(), root);
}

void require_same_values(const EngineContext& context) {
    std::string found;
    const auto compare = [&](const std::vector<ArenaLayout>& layouts,
                             const std::vector<std::shared_ptr<Buffer>>& arenas) {
        for (std::size_t a = 0; a < layouts.size(); ++a) {
            const std::vector<char> own = values_of(context, *arenas[a]);
            std::vector<char> of_rank_0 = own;
            context.job->broadcast(of_rank_0.data(), of_rank_0.size(), 0);
            if (found.empty()) found = difference(layouts[a], own, of_rank_0);
        }
    };
    compare(context.store->parameters(), context.store->replicas()[0].parameters);
    compare(context.store->buffers(), context.store->replicas()[0].buffers);
    if (!found.empty())
        found =
            fmt::format("the replica of rank {} differs from that of rank 0 in {}; write parameters alike on all ranks",
                        context.rank(), found);
    if (const std::string text = said_by_any(*context.job, found); !text.empty()) throw DeviceError(text);
}

}  // namespace lockstep
