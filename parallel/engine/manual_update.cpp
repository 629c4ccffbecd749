#include "lockstep/parallel/engine/manual_update.h"

#include <string>
#include <vector>

#include "lockstep/ops/internal/control_operations.h"
#include "lockstep/parallel/engine/two_phases.h"
#include "lockstep/parallel/reduce/update_emitter.h"
#include "lockstep/parallel/schedule/retry_once.h"
#include "lockstep/runtime/error.h"

namespace lockstep {

ManualUpdate::ScheduledUpdate& ManualUpdate::update_for(const Optimizer& optimizer, std::string_view with_gradient) {
    Signature key;
    key.add(optimizer.id()).add(std::string_view(optimizer.program_key())).add(with_gradient);
    if (ScheduledUpdate* found = updates_.find(key.bytes())) return *found;
    const auto orphaned = [&](const ScheduledUpdate& update) {
        return !parts_.memory.store()->has_optimizer(update.optimizer);
    };
    if (updates_.full(parts_.program_cache_size) || updates_.any_of(orphaned)) {
        in_flight_.drain();  // the devices may be running programs that are dropped
        updates_.drop_if(orphaned);
        updates_.make_room(parts_.program_cache_size, [](const ScheduledUpdate&) { return true; });
    }
    return updates_.add(key.bytes(), ScheduledUpdate{.optimizer = optimizer.id()});
}

void ManualUpdate::build(ScheduledUpdate& update, Optimizer& optimizer, std::string_view with_gradient) {
    update.schedule = Schedule();  // an earlier attempt may have failed midway
    Emitter emitter(parts_.topology, parts_.memory, update.schedule);
    const UpdateEmitter updates(parts_.reduction, optimizer);
    std::vector<std::size_t> first{0};
    for (const ArenaLayout& layout : parts_.memory.store()->parameters())
        first.push_back(first.back() + layout.segments.size());
    const std::vector<Bucket> buckets = parts_.reduction.cut().buckets([&](ParameterId parameter) {
        return with_gradient[first[static_cast<std::size_t>(parameter.arena)] +
                             static_cast<std::size_t>(parameter.number)] == '1';
    });
    updates.emit_from_root(emitter, buckets);
    updates.emit_counts(emitter, buckets);
    for (const DeviceIndex d : parts_.topology.devices.indices())
        emitter.run_flat(parts_.topology.commit(d), d, make_operation(AdvanceStep{Counted::step}), {},
                         {{bytes_meta(sizeof(StepCounters))}, {parts_.memory.control(d).step_ref()}});
    update.instance = std::make_unique<Instance>(update.schedule, std::vector<std::shared_ptr<Buffer>>());
}

void ManualUpdate::step(Optimizer& optimizer) {
    const int slot = in_flight_.begin();
    const ParameterStore& store = *parts_.memory.store();
    std::string with_gradient;
    for (std::size_t a = 0; a < store.parameters().size(); ++a)
        for (std::size_t i = 0; i < store.parameters()[a].segments.size(); ++i) {
            const ParameterId id{static_cast<int>(a), static_cast<int>(i)};
            with_gradient += optimizer.updates(id) && store.tensor(store.segment(id)).grad().defined() ? '1' : '0';
        }
    if (with_gradient.find('1') == std::string::npos)
        throw InvalidArgument("optimizer step: no parameter has a gradient; call backward() on a loss first");
    gradients_.take_in();
    replicas_.refresh();
    replicas_.store_settings(optimizer);
    ScheduledUpdate& update = update_for(optimizer, with_gradient);
    if (!update.instance) build(update, optimizer, with_gradient);
    const auto wait_for_lanes = [&] {
        for (const ComputeLane& lane : parts_.topology.lanes) parts_.topology.commit(lane.device).wait(*lane.stream);
    };
    const StepScope logged(parts_.recorder.get(), StepScope::Part::last);
    in_two_phases(parts_, replicas_, wait_for_lanes, [&] {
        update.instance->enqueue(update.schedule, 0, update.schedule.size(), Phase::commit, parts_.recorder.get());
        retry_once([&] {
            for (const DeviceIndex d : parts_.topology.devices.others())
                parts_.topology.commit(first_device).wait(parts_.topology.commit(d));
        });
        retry_once([&] { in_flight_.end(slot, {}, nullptr); });
        retry_once([&] { replicas_.hand_back(); });
    });
    parts_.pass_on_eager_reports(false);
    auto has_gradient = with_gradient.begin();
    for (const ArenaLayout& layout : store.parameters())
        for (const ArenaSegment& segment : layout.segments)
            if (const Tensor& tensor = store.tensor(segment); *has_gradient++ == '1' && tensor.requires_grad())
                tensor.impl()->storage->count_write();
    replicas_.mark_current();
}

}  // namespace lockstep
