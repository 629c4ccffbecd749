// The state of a run beside its checkpoint: momentum as tensors, the rest as JSON in the metadata.
#include <fmt/format.h>
#include <zlib.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "lockstep/ops/internal/operations.h"
#include "lockstep/parallel/checkpoint.h"
#include "lockstep/parallel/internal/arena_cut.h"
#include "lockstep/parallel/internal/file.h"
#include "lockstep/parallel/safetensors.h"
#include "lockstep/runtime/error.h"

namespace lockstep {

namespace {

using nlohmann::json;

/// Of the checkpoint's bytes: tells whether a state belongs to it.
std::uint32_t checksum(const std::filesystem::path& path) {
    const internal::InputFile file(path);
    std::vector<std::byte> piece(std::size_t{1} << 20);
    uLong sum = ::crc32(0, nullptr, 0);
    for (std::uint64_t at = 0; at < file.size(); at += piece.size()) {
        const auto bytes = static_cast<std::size_t>(std::min<std::uint64_t>(piece.size(), file.size() - at));
        file.read_at(at, std::span(piece).first(bytes));
        sum = ::crc32(sum, reinterpret_cast<const Bytef*>(piece.data()), static_cast<uInt>(bytes));
    }
    return static_cast<std::uint32_t>(sum);
}

json to_json(const SgdOptions& group) {
    return {{"lr", group.lr},
            {"momentum", group.momentum},
            {"dampening", group.dampening},
            {"weight_decay", group.weight_decay},
            {"nesterov", group.nesterov},
            {"maximize", group.maximize}};
}

SgdOptions group_from(const json& text) {
    SgdOptions group;
    group.lr = text.at("lr").get<double>();
    group.momentum = text.at("momentum").get<double>();
    group.dampening = text.at("dampening").get<double>();
    group.weight_decay = text.at("weight_decay").get<double>();
    group.nesterov = text.at("nesterov").get<bool>();
    group.maximize = text.at("maximize").get<bool>();
    return group;
}

bool sensible(const SgdOptions& group) {
    return group.lr >= 0 && group.momentum >= 0 && group.weight_decay >= 0 &&
           (!group.nesterov || (group.momentum > 0 && group.dampening == 0));
}

/// Which device keeps the momentum of what.
ArenaCut cut_of(const Engine& engine) {
    const bool by_slices = engine.options().reduction == ReductionMode::slice_wise;
    return {engine.store(), engine.options().bucket_bytes, by_slices ? engine.devices().size() : 1};
}

/// Copies behind everything that updates on `device`; waits for the copy.
void copy_now(Device device, void* to, Device to_device, const void* from, Device from_device, std::size_t bytes) {
    Stream& stream = Stream::of(device, StreamRole::commit);
    Stream& eager = Stream::of(device);  // state is zeroed there
    stream.wait(eager);
    stream.copy(to, to_device, from, from_device, bytes);
    eager.wait(stream);
    stream.synchronize();
}

/// Arena `arena` of the momentum, whole, from the devices that keep its parts.
std::vector<std::byte> gathered_momentum(const Engine& engine, SGD& optimizer, std::size_t arena) {
    const ArenaLayout& layout = engine.store()->parameters()[arena];
    std::vector<std::byte> whole(layout.bytes());
    const std::size_t size = size_of(layout.dtype);
    const ArenaCut cut = cut_of(engine);
    for (const OwnedSlice& slice : cut.slices(static_cast<int>(arena))) {
        const Device from = engine.devices()[slice.device];
        const OptimizerState& state = optimizer.state_on(from, cut.state_elements(slice.device));
        const auto* memory = static_cast<const std::byte*>(state.momentum[arena]->data());
        copy_now(from, whole.data() + static_cast<std::size_t>(slice.begin) * size, Device::host(),
                 memory + static_cast<std::size_t>(slice.place) * size, from,
                 static_cast<std::size_t>(slice.end - slice.begin) * size);
    }
    return whole;
}

std::vector<Segment> segments_in(const OptimizerState& state, Device device, std::size_t arena) {
    const auto& memory = state.segments[arena];
    std::vector<Segment> segments(memory->bytes() / sizeof(Segment));
    copy_now(device, segments.data(), Device::host(), memory->data(), device, memory->bytes());
    return segments;
}

[[noreturn]] void damaged(const std::filesystem::path& path, const std::string& why) {
    throw DataError(
        fmt::format("{}: offset 8: {}; delete it to begin anew from the weights alone", path.string(), why));
}

/// Momentum by parameter, read and checked.
struct Momentum {
    std::vector<std::vector<std::byte>> arenas;
    std::vector<std::vector<bool>> present;
};

Momentum read_momentum(const SafetensorsFile& file, const ParameterStore& store, const std::filesystem::path& path) {
    Momentum momentum;
    std::size_t used = 0;
    for (const ArenaLayout& layout : store.parameters()) {
        auto& bytes = momentum.arenas.emplace_back(layout.bytes());
        auto& present = momentum.present.emplace_back(layout.segments.size(), false);
        for (std::size_t i = 0; i < layout.segments.size(); ++i) {
            const ArenaSegment& segment = layout.segments[i];
            const SafetensorsEntry* entry = file.find(segment.name);
            if (!entry) continue;
            if (entry->dtype != layout.dtype ||
                !std::equal(entry->shape.begin(), entry->shape.end(), segment.shape.begin(), segment.shape.end()))
                damaged(path, fmt::format("the momentum of {} has another shape than the model", segment.name));
            file.read(segment.name, std::span(bytes).subspan(
                                        static_cast<std::size_t>(segment.begin) * size_of(layout.dtype), entry->bytes));
            present[i] = true;
            ++used;
        }
    }
    if (used != file.entries().size()) damaged(path, "it holds momentum of parameters that the model does not have");
    return momentum;
}

void write_momentum(const Engine& engine, SGD& optimizer, const Momentum& momentum) {
    const ArenaCut cut = cut_of(engine);
    for (int d = 0; d < cut.updating(); ++d) {
        const Device device = engine.devices()[d];
        OptimizerState& state = optimizer.state_on(device, cut.state_elements(d));
        for (std::size_t a = 0; a < momentum.arenas.size(); ++a) {
            const std::size_t size = size_of(engine.store()->parameters()[a].dtype);
            for (const OwnedSlice& slice : cut.slices(static_cast<int>(a)))
                if (slice.device == d && state.momentum[a])
                    copy_now(device,
                             static_cast<std::byte*>(state.momentum[a]->data()) +
                                 static_cast<std::size_t>(slice.place) * size,
                             device, momentum.arenas[a].data() + static_cast<std::size_t>(slice.begin) * size,
                             Device::host(), static_cast<std::size_t>(slice.end - slice.begin) * size);
            std::vector<Segment> segments = segments_in(state, device, a);
            for (std::size_t i = 0; i < segments.size(); ++i) segments[i].has_momentum = momentum.present[a][i] ? 1 : 0;
            copy_now(device, state.segments[a]->data(), device, segments.data(), Device::host(),
                     state.segments[a]->bytes());
        }
    }
}

}  // namespace

std::filesystem::path resume_path(const std::filesystem::path& checkpoint) { return checkpoint.string() + ".resume"; }

void detail::save_run(Engine& engine, SGD& optimizer, const RunState& run, const std::filesystem::path& checkpoint) {
    if (optimizer.store() != engine.store())
        throw InvalidArgument("save_resume: the optimizer belongs to another model; give this one's");
    engine.synchronize();
    json state = {{"version", 1},
                  {"checkpoint_crc32", checksum(checkpoint)},
                  {"epoch", run.epoch},
                  {"batch", run.batch},
                  {"batch_size", run.batch_size},
                  {"steps", run.steps},
                  {"seed", run.seed}};
    for (int group = 0; group < optimizer.groups(); ++group) state["sgd"].push_back(to_json(optimizer.options(group)));

    std::vector<std::vector<std::byte>> arenas;
    std::vector<SafetensorsTensor> entries;
    for (std::size_t a = 0; optimizer.has_momentum() && a < engine.store()->parameters().size(); ++a) {
        const ArenaLayout& layout = engine.store()->parameters()[a];
        arenas.push_back(gathered_momentum(engine, optimizer, a));
        const Device first = engine.devices()[0];
        const OptimizerState& kept = optimizer.state_on(first, cut_of(engine).state_elements(0));
        const std::vector<Segment> segments = segments_in(kept, first, a);
        for (std::size_t i = 0; i < segments.size(); ++i) {
            if (!segments[i].has_momentum) continue;  // begins with its first gradient
            const ArenaSegment& segment = layout.segments[i];
            entries.push_back({segment.name,
                               layout.dtype,
                               {segment.shape.begin(), segment.shape.end()},
                               arenas[a].data() + static_cast<std::size_t>(segment.begin) * size_of(layout.dtype)});
        }
    }
    write_safetensors(resume_path(checkpoint), entries, {{"lockstep", state.dump()}});
}

RunState detail::load_run(Engine& engine, SGD& optimizer, const std::filesystem::path& checkpoint) {
    if (optimizer.store() != engine.store())
        throw InvalidArgument("load_resume: the optimizer belongs to another model; give this one's");
    const std::filesystem::path path = resume_path(checkpoint);
    const SafetensorsFile file(path);
    RunState run;
    std::vector<SgdOptions> groups;
    try {
        const auto text = file.metadata().find("lockstep");
        if (text == file.metadata().end()) damaged(path, "there is no state of a run in it");
        const json state = json::parse(text->second);
        if (state.at("version").get<int>() != 1) damaged(path, "it was written by another version of Lockstep");
        if (state.at("checkpoint_crc32").get<std::uint32_t>() != checksum(checkpoint))
            damaged(path, fmt::format("it does not belong to {}", checkpoint.string()));
        run = {state.at("epoch").get<std::uint64_t>(), state.at("batch").get<std::int64_t>(),
               state.at("batch_size").get<std::int64_t>(), state.at("steps").get<std::uint64_t>(),
               state.at("seed").get<std::uint64_t>()};
        for (const json& group : state.at("sgd")) {
            groups.push_back(group_from(group));
            if (!sensible(groups.back())) damaged(path, "the optimizer's settings are out of range");
        }
    } catch (const json::exception&) {
        damaged(path, "the state of the run is not the JSON it should be");
    }
    if (static_cast<int>(groups.size()) != optimizer.groups())
        throw InvalidArgument(
            fmt::format("load_resume: {} has {} parameter groups, the optimizer {}; make the same groups before",
                        path.string(), groups.size(), optimizer.groups()));
    const Momentum momentum = read_momentum(file, *engine.store(), path);
    engine.synchronize();
    for (std::size_t group = 0; group < groups.size(); ++group)
        optimizer.set_options(groups[group], static_cast<int>(group));
    write_momentum(engine, optimizer, momentum);
    engine.set_steps_done(run.steps);
    return run;
}

}  // namespace lockstep
