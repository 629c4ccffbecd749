#include "lockstep/parallel/internal/momentum.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <span>

#include "lockstep/ops/internal/operations.h"
#include "lockstep/parallel/internal/arena_cut.h"
#include "lockstep/parallel/internal/resume_file.h"

namespace lockstep::internal {
namespace {

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
std::vector<std::byte> gathered(const Engine& engine, SGD& optimizer, std::size_t arena) {
    const ArenaLayout& layout = engine.store()->parameters()[arena];
    std::vector<std::byte> whole(layout.bytes());
    const std::size_t size = size_of(layout.dtype);
    const ArenaCut& cut = engine.cut();
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

}  // namespace

HostMomentum::HostMomentum(const Engine& engine, SGD& optimizer) {
    const std::vector<ArenaLayout>& layouts = engine.store()->parameters();
    for (std::size_t a = 0; optimizer.has_momentum() && a < layouts.size(); ++a) {
        const ArenaLayout& layout = layouts[a];
        arenas_.push_back(gathered(engine, optimizer, a));
        const Device first = engine.devices()[0];
        const OptimizerState& kept = optimizer.state_on(first, engine.cut().state_elements(0));
        const std::vector<Segment> segments = segments_in(kept, first, a);
        for (std::size_t i = 0; i < segments.size(); ++i) {
            if (!segments[i].has_momentum) continue;  // begins with its first gradient
            const ArenaSegment& segment = layout.segments[i];
            tensors_.push_back({segment.name,
                                layout.dtype,
                                {segment.shape.begin(), segment.shape.end()},
                                arenas_[a].data() + static_cast<std::size_t>(segment.begin) * size_of(layout.dtype)});
        }
    }
}

StagedMomentum::StagedMomentum(const SafetensorsFile& file, const ParameterStore& store,
                               const std::filesystem::path& path) {
    std::size_t used = 0;
    for (const ArenaLayout& layout : store.parameters()) {
        auto& bytes = arenas_.emplace_back(layout.bytes());
        auto& present = present_.emplace_back(layout.segments.size(), false);
        for (std::size_t i = 0; i < layout.segments.size(); ++i) {
            const ArenaSegment& segment = layout.segments[i];
            const SafetensorsEntry* entry = file.find(segment.name);
            if (!entry) continue;
            if (entry->dtype != layout.dtype ||
                !std::equal(entry->shape.begin(), entry->shape.end(), segment.shape.begin(), segment.shape.end()))
                refuse_resume(path, fmt::format("the momentum of {} has another shape than the model", segment.name));
            file.read(segment.name, std::span(bytes).subspan(
                                        static_cast<std::size_t>(segment.begin) * size_of(layout.dtype), entry->bytes));
            present[i] = true;
            ++used;
        }
    }
    if (used != file.entries().size() || !file.unsupported().empty())
        refuse_resume(path, "it holds momentum of parameters that the model does not have");
}

void StagedMomentum::store(const Engine& engine, SGD& optimizer) const {
    const ArenaCut& cut = engine.cut();
    for (int d = 0; d < cut.updating(); ++d) {
        const Device device = engine.devices()[d];
        OptimizerState& state = optimizer.state_on(device, cut.state_elements(d));
        for (std::size_t a = 0; a < arenas_.size(); ++a) {
            const std::size_t size = size_of(engine.store()->parameters()[a].dtype);
            for (const OwnedSlice& slice : cut.slices(static_cast<int>(a)))
                if (slice.device == d && state.momentum[a])
                    copy_now(device,
                             static_cast<std::byte*>(state.momentum[a]->data()) +
                                 static_cast<std::size_t>(slice.place) * size,
                             device, arenas_[a].data() + static_cast<std::size_t>(slice.begin) * size, Device::host(),
                             static_cast<std::size_t>(slice.end - slice.begin) * size);
            std::vector<Segment> segments = segments_in(state, device, a);
            for (std::size_t i = 0; i < segments.size(); ++i) segments[i].has_momentum = present_[a][i] ? 1 : 0;
            copy_now(device, state.segments[a]->data(), device, segments.data(), Device::host(),
                     state.segments[a]->bytes());
        }
    }
}

}  // namespace lockstep::internal
