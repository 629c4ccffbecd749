#include "lockstep/parallel/engine/rank_agreement.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "lockstep/runtime/error.h"

namespace lockstep {

namespace {

/// Returns the text of rank 0 on all ranks.
std::string text_of_rank_0(Communicator& job, std::string text) {
    std::uint64_t size = text.size();
    job.broadcast(&size, sizeof size, 0);
    text.resize(size);
    job.broadcast(text.data(), size, 0);
    return text;
}

/// Returns on all ranks the text of the first rank whose text is not empty; empty if all are.
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

/// One line per tensor.
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
                "the model differs between ranks: rank {} has {} where rank 0 has {} ({} and {} tensors); expected the "
                "same model on all ranks",
                rank, here, there, own.size(), of_rank_0.size());
    }
    return {};
}

std::vector<char> values_of(const EngineParts& parts, const Buffer& arena) {
    Stream& stream = Stream::of(parts.topology.devices[0]);
    std::vector<char> values(arena.bytes());
    stream.copy(values.data(), Device::host(), arena.data(), parts.topology.devices[0], values.size());
    stream.synchronize();
    return values;
}

/// Broadcasts the values of an arena from one rank.
void broadcast_values(const EngineParts& parts, const Buffer& arena, int root = 0) {
    std::vector<char> values = values_of(parts, arena);
    parts.ranks.job()->broadcast(values.data(), values.size(), root);
    Stream& stream = Stream::of(parts.topology.devices[0]);
    stream.copy(arena.data(), parts.topology.devices[0], values.data(), Device::host(), values.size());
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

void agree_on_options(Communicator& job, const std::string& own) {
    const std::string of_rank_0 = text_of_rank_0(job, own);
    throw_together(
        job,
        own == of_rank_0
            ? std::string()
            : fmt::format(
                  "the options differ between ranks: rank {} has {}; rank 0 has {}; expected the same on all ranks",
                  job.rank(), own, of_rank_0));
}

void begin_alike(EngineParts& parts, StepCounters& state, bool values) {
    Communicator& job = *parts.ranks.job();
    const std::vector<std::string> own = describe(*parts.memory.store());
    std::string text;
    for (const std::string& line : own) text += line + "\n";
    throw_together(job, difference(own, lines_of(text_of_rank_0(job, text)), job.rank()));
    for (const auto* arenas :
         {&parts.memory.store()->replicas()[0].parameters, &parts.memory.store()->replicas()[0].buffers})
        for (const auto& arena : *arenas)
            if (values) broadcast_values(parts, *arena);
    job.broadcast(&state.seed, sizeof state.seed, 0);
}

void broadcast_buffers(const EngineParts& parts) {
    for (const auto& arena : parts.memory.store()->replicas()[0].buffers) broadcast_values(parts, *arena);
}

void broadcast_state(EngineParts& parts, const std::vector<Optimizer*>& optimizers, int root) {
    for (const auto& arena : parts.memory.store()->replicas()[0].parameters) broadcast_values(parts, *arena, root);
    for (const auto& arena : parts.memory.store()->replicas()[0].buffers) broadcast_values(parts, *arena, root);
    for (Optimizer* optimizer : optimizers) {
        const OptimizerState& state = parts.reduction.state(*optimizer, first_device);
        for (const auto& rows : state.rows) broadcast_values(parts, *rows, root);
        for (const auto& [name, elements] : state.elements)
            for (const auto& arena : elements) broadcast_values(parts, *arena, root);
    }
    broadcast_values(parts, parts.memory.control(first_device).memory(), root);
}

void require_same_values(const EngineParts& parts) {
    std::string found;
    const auto compare = [&](const std::vector<ArenaLayout>& layouts,
                             const std::vector<std::shared_ptr<Buffer>>& arenas) {
        for (std::size_t a = 0; a < layouts.size(); ++a) {
            const std::vector<char> own = values_of(parts, *arenas[a]);
            std::vector<char> of_rank_0 = own;
            parts.ranks.job()->broadcast(of_rank_0.data(), of_rank_0.size(), 0);
            if (found.empty()) found = difference(layouts[a], own, of_rank_0);
        }
    };
    compare(parts.memory.store()->parameters(), parts.memory.store()->replicas()[0].parameters);
    compare(parts.memory.store()->buffers(), parts.memory.store()->replicas()[0].buffers);
    if (!found.empty())
        found = fmt::format(
            "the replica of rank {} differs from that of rank 0 in {}; parameters must be written equally on all ranks",
            parts.topology.rank.number(), found);
    if (const std::string text = said_by_any(*parts.ranks.job(), found); !text.empty()) throw DeviceError(text);
}

}  // namespace lockstep
