#include "lockstep/parallel/checkpoint/host_optimizer_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>

#include "lockstep/parallel/reduce/arena_partition.h"
#include "lockstep/runtime/error.h"

namespace lockstep::internal {
namespace {

/// Copies after all updates on `device`; waits for the copy.
void copy_now(Device device, void* to, Device to_device, const void* from, Device from_device, std::size_t bytes) {
    Stream& stream = Stream::of(device, StreamRole::commit);
    Stream& eager = Stream::of(device);  // state is zeroed on this stream
    stream.wait(eager);
    stream.copy(to, to_device, from, from_device, bytes);
    eager.wait(stream);
    stream.synchronize();
}

/// Gathers one whole optimizer state of an arena from the devices that hold its parts.
std::byte* gathered(const Engine& engine, Optimizer& optimizer, const std::string& name, std::size_t arena,
                    HostMemory& memory, std::vector<StateCopy>& copies) {
    const ArenaLayout& layout = engine.store()->parameters()[arena];
    std::byte* const whole = memory.take(layout.bytes());
    const std::size_t size = size_of(layout.dtype);
    const ArenaPartition& cut = engine.cut();
    for (const OwnedSlice& slice : cut.slices(static_cast<int>(arena))) {
        const Device from = engine.devices()[slice.device];
        const OptimizerState& state = optimizer.state_on(from, cut.state_elements(slice.device));
        const auto* elements = static_cast<const std::byte*>(state.elements.at(name)[arena]->data());
        copies.push_back({whole + static_cast<std::size_t>(slice.begin) * size,
                          elements + static_cast<std::size_t>(slice.state_begin) * size, from,
                          static_cast<std::size_t>(slice.end - slice.begin) * size});
    }
    return whole;
}

std::int64_t updates_in(const std::byte* rows, std::size_t row_bytes, std::size_t parameter) {
    ParameterRow row;
    std::memcpy(&row, rows + parameter * row_bytes, sizeof row);
    return row.updates;
}

/// The rows of an arena, without its options.
class HostRows {
public:
    HostRows(const Optimizer& optimizer, const OptimizerState& state, Device device, std::size_t arena)
        : row_bytes_(optimizer.row_bytes()),
          device_(device),
          memory_(state.rows[arena]->data()),
          bytes_(state.rows[arena]->bytes()) {
        copy_now(device, bytes_.data(), Device::host(), memory_, device, bytes_.size());
    }
    void set_updates(std::size_t parameter, std::int64_t updates) {
        std::memcpy(bytes_.data() + parameter * row_bytes_ + offsetof(ParameterRow, updates), &updates, sizeof updates);
    }
    void store() const { copy_now(device_, memory_, device_, bytes_.data(), Device::host(), bytes_.size()); }

private:
    std::size_t row_bytes_;
    Device device_;
    void* memory_;
    std::vector<std::byte> bytes_;
};

}  // namespace

HostOptimizerState::HostOptimizerState(const Engine& engine, Optimizer& optimizer, HostMemory& memory,
                                       std::vector<StateCopy>& copies)
    : row_bytes_(optimizer.row_bytes()) {
    saved_.name = optimizer.name();
    for (int group = 0; group < optimizer.groups(); ++group) {
        auto& settings = saved_.groups.emplace_back();
        for (const std::string& name : optimizer.setting_names()) settings[name] = optimizer.setting(name, group);
    }
    if (!optimizer.counts_updates()) return;
    const std::vector<ArenaLayout>& layouts = engine.store()->parameters();
    const Device first = engine.devices()[0];
    for (std::size_t a = 0; a < layouts.size(); ++a) {
        Arena& arena = arenas_.emplace_back(Arena{layouts[a].dtype, {}, nullptr, {}});
        for (const ArenaSegment& segment : layouts[a].segments) {
            arena.segments.push_back(segment);
            arena.segments.back().tensor = Tensor();
        }
        const Buffer& rows = *optimizer.state_on(first, engine.cut().state_elements(first_device)).rows[a];
        arena.rows = memory.take(rows.bytes());
        copies.push_back({arena.rows, rows.data(), first, rows.bytes()});
        for (const std::string& state : optimizer.states())
            arena.states.emplace_back(state, gathered(engine, optimizer, state, a, memory, copies));
    }
}

void HostOptimizerState::arrived() {
    for (const Arena& arena : arenas_) {
        for (std::size_t i = 0; i < arena.segments.size(); ++i)
            if (const std::int64_t updates = updates_in(arena.rows, row_bytes_, i); updates > 0)
                saved_.updates[arena.segments[i].name] = updates;
        for (const auto& [state, elements] : arena.states)
            for (const ArenaSegment& segment : arena.segments)
                if (saved_.updates.contains(segment.name))
                    tensors_.push_back({resume_tensor_name(state, segment.name),
                                        arena.dtype,
                                        {segment.shape.begin(), segment.shape.end()},
                                        elements + static_cast<std::size_t>(segment.begin) * size_of(arena.dtype)});
    }
}

std::vector<std::string> states_with(Optimizer& optimizer, const ResumeFile& file) {
    const SavedOptimizer& saved = file.optimizer();
    if (saved.name != optimizer.name())
        throw InvalidArgument(fmt::format(
            "{} holds the state of {}, the optimizer is {}; expected the same optimizer, or load only the weights",
            file.path().string(), saved.name, optimizer.name()));
    if (static_cast<int>(saved.groups.size()) != optimizer.groups())
        throw InvalidArgument(fmt::format("{} has {} parameter groups, the optimizer {}; expected the same groups",
                                          file.path().string(), saved.groups.size(), optimizer.groups()));
    const std::vector<ArenaLayout>& layouts = optimizer.store()->parameters();
    for (std::size_t a = 0; a < layouts.size(); ++a)
        for (std::size_t i = 0; i < layouts[a].segments.size(); ++i)
            if (const std::string& name = layouts[a].segments[i].name;
                saved.updates.contains(name) && !optimizer.updates({static_cast<int>(a), static_cast<int>(i)}))
                throw InvalidArgument(fmt::format(
                    "{} holds the state of {}, which the optimizer does not update; expected the same parameters",
                    file.path().string(), name));
    for (const auto& group : saved.groups)
        for (const auto& [name, value] : group)
            if (!std::isfinite(value))
                refuse_resume(file.path(), fmt::format("optimizer settings out of range ({} is not finite)", name));
    std::vector<std::map<std::string, double>> before;
    for (int group = 0; group < optimizer.groups(); ++group) {
        auto& settings = before.emplace_back();
        for (const std::string& name : optimizer.setting_names()) settings[name] = optimizer.setting(name, group);
    }
    try {
        optimizer.set_all(saved.groups);
    } catch (const InvalidArgument& error) {
        refuse_resume(file.path(), fmt::format("optimizer settings out of range ({})", error.what()));
    }
    std::vector<std::string> states = optimizer.states();
    optimizer.set_all(before);
    return states;
}

StagedOptimizerState::StagedOptimizerState(const ResumeFile& file, const ParameterStore& store,
                                           const std::vector<std::string>& states)
    : settings_(file.optimizer().groups) {
    const SafetensorsFile& tensors = file.tensors();
    std::size_t used = 0, counted = 0;
    for (const ArenaLayout& layout : store.parameters()) {
        auto& updates = updates_.emplace_back();
        for (const ArenaSegment& segment : layout.segments) {
            const auto found = file.optimizer().updates.find(segment.name);
            updates.push_back(found == file.optimizer().updates.end() ? 0 : found->second);
            counted += found == file.optimizer().updates.end() ? 0 : 1;
        }
        for (const std::string& state : states) {
            auto& bytes = arenas_[state].emplace_back(layout.bytes());
            for (const ArenaSegment& segment : layout.segments) {
                const std::string name = file.tensor_name(state, segment.name);
                const SafetensorsEntry* entry = tensors.find(name);
                if (!entry) continue;
                if (entry->dtype != layout.dtype ||
                    !std::equal(entry->shape.begin(), entry->shape.end(), segment.shape.begin(), segment.shape.end()))
                    refuse_resume(file.path(),
                                  fmt::format("the {} of {} has a different shape in the model", state, segment.name));
                tensors.read(name, std::span(bytes).subspan(
                                       static_cast<std::size_t>(segment.begin) * size_of(layout.dtype), entry->bytes));
                ++used;
            }
        }
    }
    if (used != tensors.entries().size() || counted != file.optimizer().updates.size() ||
        !tensors.unsupported().empty())
        refuse_resume(file.path(), "it holds the state of parameters that the model does not have");
}

void StagedOptimizerState::store(const Engine& engine, Optimizer& optimizer) const {
    const ArenaPartition& cut = engine.cut();
    for (const DeviceIndex d : cut.updating_devices()) {
        const Device device = engine.devices()[d];
        OptimizerState& state = optimizer.state_on(device, cut.state_elements(d));
        for (std::size_t a = 0; a < updates_.size(); ++a) {
            const std::size_t size = size_of(engine.store()->parameters()[a].dtype);
            for (const OwnedSlice& slice : cut.slices(static_cast<int>(a)))
                for (const auto& [name, arenas] : arenas_)
                    if (slice.device == d)
                        copy_now(device,
                                 static_cast<std::byte*>(state.elements.at(name)[a]->data()) +
                                     static_cast<std::size_t>(slice.state_begin) * size,
                                 device, arenas[a].data() + static_cast<std::size_t>(slice.begin) * size,
                                 Device::host(), static_cast<std::size_t>(slice.end - slice.begin) * size);
            HostRows rows(optimizer, state, device, a);
            for (std::size_t i = 0; i < updates_[a].size(); ++i) rows.set_updates(i, updates_[a][i]);
            rows.store();
        }
    }
}

}  // namespace lockstep::internal
