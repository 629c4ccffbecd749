#include "lockstep/ops/arena.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <string_view>

#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/operands.h"
#include "lockstep/runtime/round_up.h"

namespace lockstep {

namespace {

constexpr std::int64_t arena_alignment = 64;  // elements; 256 bytes of f32: suits vector units and copies

/// Stores by the first buffer of each arena, so that a second optimizer finds the existing store.
struct Registry {
    std::mutex mutex;
    std::map<const Buffer*, std::weak_ptr<ParameterStore>> stores;
};
Registry& registry() {
    static auto* instance = new Registry;
    return *instance;
}

/// Device of the model's tensors in an arena, before they are moved into it.
Device device_of(const ArenaLayout& layout) { return layout.segments.front().members.front()->tensor().device(); }

void require_one_device(const std::vector<NamedTensor>& tensors) {
    if (tensors.empty()) return;
    const Device first = tensors.front().member->tensor().device();
    for (const NamedTensor& named : tensors)
        if (named.member->tensor().device() != first)
            throw InvalidArgument(fmt::format(
                "module: parameters and buffers are on several devices: {} is on {} and {} on {}; expected one device",
                tensors.front().name, first.str(), named.name, named.member->tensor().device().str()));
}

/// Zeroed memory of one replica, a buffer per arena: on `device` or, without one, on the tensors' devices.
std::vector<std::shared_ptr<Buffer>> arenas_on(std::optional<Device> device, const std::vector<ArenaLayout>& layouts,
                                               std::string_view tag) {
    std::vector<std::shared_ptr<Buffer>> arenas;
    for (const ArenaLayout& layout : layouts)
        arenas.push_back(Buffer::zeroed(device.value_or(device_of(layout)), layout.bytes(), tag));
    return arenas;
}

}  // namespace

std::vector<ArenaLayout> lay_out(const std::vector<NamedTensor>& tensors, bool parameters) {
    std::vector<ArenaSegment> segments;
    for (const NamedTensor& named : tensors) {
        if (named.is_parameter != parameters) continue;
        const auto same = std::find_if(segments.begin(), segments.end(), [&](const ArenaSegment& segment) {
            return segment.members.front()->identity() == named.member->identity();
        });
        ArenaSegment& segment = same == segments.end() ? segments.emplace_back() : *same;
        if (segment.members.empty()) {
            segment.name = named.name;
            segment.shape = named.member->tensor().shape();
        }
        segment.members.push_back(named.member);
        segment.names.push_back(named.name);
    }
    std::vector<ArenaLayout> arenas;
    for (auto segment = segments.rbegin(); segment != segments.rend(); ++segment) {
        const DType dtype = segment->members.front()->tensor().dtype();
        const Device device = segment->members.front()->tensor().device();
        auto arena = std::find_if(arenas.begin(), arenas.end(), [&](const ArenaLayout& layout) {
            return layout.dtype == dtype && device_of(layout) == device;
        });
        if (arena == arenas.end()) {
            arenas.emplace_back().dtype = dtype;
            arena = arenas.end() - 1;
        }
        segment->begin = arena->elements;
        segment->end = segment->begin + segment->shape.numel();
        arena->elements = round_up(segment->end, arena_alignment);
        arena->segments.push_back(std::move(*segment));
    }
    return arenas;
}

ParameterStore::ParameterStore(const std::vector<NamedTensor>& tensors, const std::vector<Device>& devices)
    : parameters_(lay_out(tensors, true)), buffers_(lay_out(tensors, false)) {
    if (!devices.empty()) require_one_device(tensors);
    for (const NamedTensor& named : tensors)
        if (find({named}))
            throw InvalidArgument(fmt::format(
                "the parameter {} already belongs to another wrapper or optimizer; expected a copy of the model",
                named.name));
    const auto add_replica = [&](Device device, std::optional<Device> all_on) {
        Replica replica;
        replica.device = device;
        replica.parameters = arenas_on(all_on, parameters_, "parameters");
        replica.buffers = arenas_on(all_on, buffers_, "buffers");
        replica.gradients.resize(parameters_.size());
        replicas_.push_back(std::move(replica));
    };
    for (const Device device : devices) add_replica(device, device);
    if (devices.empty()) add_replica(tensors.front().member->tensor().device(), std::nullopt);
    for (const NamedTensor& named : tensors) {
        members_.push_back(named.member->identity());
        member_names_.push_back(named.name);
    }
    move_to_arenas(parameters_, replicas_.front().parameters, parameter_group_);
    move_to_arenas(buffers_, replicas_.front().buffers, buffer_group_);
}

void ParameterStore::move_to_arenas(std::vector<ArenaLayout>& layouts, std::vector<std::shared_ptr<Buffer>>& home,
                                    const std::shared_ptr<StorageGroup>& group) {
    const NoGrad no_grad;
    for (std::size_t a = 0; a < layouts.size(); ++a) {
        ArenaLayout& layout = layouts[a];
        for (ArenaSegment& segment : layout.segments) {
            const Tensor inside =
                tensor_over(Buffer::part(home[a], static_cast<std::size_t>(segment.begin) * size_of(layout.dtype),
                                         static_cast<std::size_t>(segment.end - segment.begin) * size_of(layout.dtype)),
                            TensorMeta::contiguous(layout.dtype, segment.shape));
            inside.impl()->storage->group = group;
            const Tensor& outside = segment.members.front()->tensor();
            inside.copy_(outside);
            inside.requires_grad_(outside.requires_grad());
            inside.impl()->leaf_hooks = outside.impl()->leaf_hooks;
            if (const Tensor gradient = outside.grad(); gradient.defined())
                inside.set_grad(gradient.to(inside.device()));
            segment.members.front()->rebind(inside);
            held_.emplace_back(segment.name, detail::HeldValue(*segment.members.front()));
            segment.tensor = inside;
            segment.members.clear();
        }
    }
}

ParameterStore::~ParameterStore() {
    const std::scoped_lock lock(registry().mutex);
    std::erase_if(registry().stores, [](const auto& entry) { return entry.second.expired(); });
}

std::shared_ptr<ParameterStore> ParameterStore::find(const std::vector<NamedTensor>& tensors) {
    const std::scoped_lock lock(registry().mutex);
    for (const NamedTensor& named : tensors) {
        const auto& whole = named.member->tensor().impl()->storage->buffer->whole();
        if (!whole) continue;
        const auto found = registry().stores.find(whole.get());
        if (found != registry().stores.end())
            if (auto store = found->second.lock()) return store;
    }
    return nullptr;
}

std::shared_ptr<ParameterStore> ParameterStore::of(const std::vector<NamedTensor>& tensors) {
    if (tensors.empty())
        throw InvalidArgument("the model has no parameters; expected members listed with LOCKSTEP_MEMBERS");
    std::shared_ptr<ParameterStore> known;
    const NamedTensor *inside = nullptr, *outside = nullptr;
    for (const NamedTensor& named : tensors) {
        if (!named.is_parameter) continue;
        const std::shared_ptr<ParameterStore> own = find({named});
        if (own && (!known || own == known)) {
            known = own;
            inside = &named;
        } else {
            outside = &named;
        }
    }
    if (inside && outside)
        throw InvalidArgument(
            fmt::format("optimizer: an optimizer of another part has {}, but not {}; expected an optimizer of the "
                        "whole model first, which lives as long as those of parts",
                        inside->name, outside->name));
    if (known) return known;
    auto store = std::make_shared<ParameterStore>(tensors, std::vector<Device>{});
    store->register_self(store);
    return store;
}

void ParameterStore::register_self(const std::shared_ptr<ParameterStore>& self) {
    const std::scoped_lock lock(registry().mutex);
    for (const auto* arenas : {&replicas_.front().parameters, &replicas_.front().buffers})
        for (const auto& arena : *arenas) registry().stores[arena.get()] = self;
}

void ParameterStore::require_members(const char* function) const {
    if (member_check) return member_check(function);
    if (update_hook) return;  // the wrapper was destroyed, which its hook reports
    const auto in_use = [](const auto& one) { return one.second.in_use(); };
    // Arenas have reversed member order. An optimizer may outlive the whole model.
    const auto gone = std::find_if_not(held_.rbegin(), held_.rend(), in_use);
    if (gone != held_.rend() && std::any_of(held_.begin(), held_.end(), in_use))
        throw InvalidArgument(
            fmt::format("{}: {} is no longer part of the model (replaced or removed after the optimizer was created); "
                        "expected a new optimizer of the changed model",
                        function, gone->first));
}

namespace {
/// The value among `held` with this identity if `member` may adopt it; otherwise null.
template <class Held>
const detail::HeldValue* value_to_adopt(const Held& held, const void* identity, const ModuleTensor& member) {
    const auto found =
        std::find_if(held.begin(), held.end(), [&](const auto& one) { return one.second.identity() == identity; });
    return !found->second.in_use() && found->second.fits(member) ? &found->second : nullptr;
}
}  // namespace

bool ParameterStore::adopt(const std::vector<NamedTensor>& present) const {
    if (present.size() != members_.size()) return false;
    std::vector<std::pair<const detail::HeldValue*, ModuleTensor*>> adopted;
    for (std::size_t i = 0; i < present.size(); ++i) {
        if (present[i].name != member_names_[i]) return false;
        if (present[i].member->identity() == members_[i]) continue;
        const detail::HeldValue* const value = value_to_adopt(held_, members_[i], *present[i].member);
        if (!value) return false;
        adopted.emplace_back(value, present[i].member);
    }
    for (const auto& [value, member] : adopted) value->adopt(*member);
    return true;
}

void ParameterStore::refuse_members(const char* function, const std::vector<NamedTensor>& present) const {
    const auto is_there = [&](const std::string& name) {
        return std::any_of(present.begin(), present.end(), [&](const NamedTensor& one) { return one.name == name; });
    };
    // The first difference for which `adopt` refuses.
    std::size_t i = 0;
    while (i < std::min(members_.size(), present.size()) && present[i].name == member_names_[i] &&
           (present[i].member->identity() == members_[i] || value_to_adopt(held_, members_[i], *present[i].member)))
        ++i;
    const bool same_name = i < members_.size() && i < present.size() && present[i].name == member_names_[i];
    const bool added = !same_name && i < present.size() && (i == members_.size() || is_there(member_names_[i]));
    const char* what = "replaced";
    if (!same_name) what = added ? "added" : "removed";
    if (same_name && present[i].member->identity() == nullptr) what = "moved from";
    throw InvalidArgument(
        fmt::format("{}: {} was {} after the model was wrapped; expected values of the same shape, or a new wrapper of "
                    "the changed model",
                    function, added ? present[i].name : member_names_[i], what));
}

void ParameterStore::ensure_gradients(DeviceIndex device) {
    Replica& replica = at(replicas_, device);
    for (std::size_t a = 0; a < parameters_.size(); ++a)
        if (!replica.gradients[a])
            replica.gradients[a] = Buffer::zeroed(replica.parameters[a]->device(), parameters_[a].bytes(), "gradients");
}

const std::string& ParameterStore::trainable_flags() const {
    if (trainable_flags_of_ == trainable_version()) return trainable_flags_;
    trainable_flags_of_ = trainable_version();
    trainable_flags_.clear();
    for (const ArenaLayout& layout : parameters_)
        for (const ArenaSegment& segment : layout.segments) {
            const Tensor& parameter = tensor(segment);
            trainable_flags_ += parameter.requires_grad() ? '1' : '0';
            const std::size_t hooks = parameter.impl()->leaf_hooks.size();
            if (parameter.requires_grad() && hooks > 0) trainable_flags_ += fmt::format("h{};", hooks);
        }
    return trainable_flags_;
}

}  // namespace lockstep
