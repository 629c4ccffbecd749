// Flat arenas: every replica stores the parameters of one dtype in one contiguous block of memory, at the same offsets.
// Their order is reversed member order, about the order in which backward finishes them. Gradients, optimizer
// state and buffers are stored the same way. Replication is one copy, reduction uses slices without packing, and an
// update is one kernel.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/ops/module.h"
#include "lockstep/runtime/memory.h"
#include "lockstep/runtime/one_thread.h"

namespace lockstep {

class Optimizer;

/// Identifies a parameter of a store by arena and position.
struct ParameterId {
    int arena = 0, number = 0;
    friend auto operator<=>(const ParameterId&, const ParameterId&) = default;
};

/// One parameter or buffer in its arena; tied ones share a segment with several members.
struct ArenaSegment {
    std::string name;                    ///< name of the first member in member order
    std::vector<ModuleTensor*> members;  ///< members of the model; empty in a store, which may outlive the model
    std::vector<std::string> names;      ///< names of all members
    Tensor tensor;                       ///< value of the members
    Shape shape;
    std::int64_t begin = 0;  ///< first element in the arena, aligned to 64
    std::int64_t end = 0;    ///< one past the last element
};

/// Positions of all parameters in an arena.
struct ArenaLayout {
    DType dtype = DType::f32;
    std::vector<ArenaSegment> segments;
    std::int64_t elements = 0;
    std::size_t bytes() const { return static_cast<std::size_t>(elements) * size_of(dtype); }
};

/// Arenas of one kind (parameters, or buffers) for a list of tensors: one layout per dtype and device.
std::vector<ArenaLayout> lay_out(const std::vector<NamedTensor>& tensors, bool parameters);

/// Memory of one replica.
struct Replica {
    Device device;  ///< device of all memory; for a plain model on several devices, that of its first tensor
    std::vector<std::shared_ptr<Buffer>> parameters;  ///< one per arena
    std::vector<std::shared_ptr<Buffer>> buffers;
    std::vector<std::shared_ptr<Buffer>> gradients;
};

/// The parameters and buffers of one model, moved into arenas: one replica on each device. Replica 0 is authoritative:
/// the model's members are views of it.
class ParameterStore {
public:
    /// Moves the tensors, which must be on one device, into arenas on `devices`. If `devices` is empty, each tensor is
    /// moved into an arena on its current device; several devices are then allowed. Throws InvalidArgument if the
    /// tensors are on several devices although `devices` is not empty, or already belong to a store.
    ParameterStore(const std::vector<NamedTensor>& tensors, const std::vector<Device>& devices);
    ~ParameterStore();
    ParameterStore(const ParameterStore&) = delete;
    ParameterStore& operator=(const ParameterStore&) = delete;

    /// The store that holds some of `tensors`, or null.
    static std::shared_ptr<ParameterStore> find(const std::vector<NamedTensor>& tensors);
    /// The store that holds all parameters of `tensors`, and possibly others; or a new one on their current devices, if
    /// no store holds any. Throws InvalidArgument if a store holds only some of them.
    static std::shared_ptr<ParameterStore> of(const std::vector<NamedTensor>& tensors);

    /// Registers this store, so that `of` finds it.
    void register_self(const std::shared_ptr<ParameterStore>& self);

    const std::vector<ArenaLayout>& parameters() const { return parameters_; }
    const std::vector<ArenaLayout>& buffers() const { return buffers_; }
    std::vector<Replica>& replicas() { return replicas_; }
    const std::vector<Replica>& replicas() const { return replicas_; }
    Device home() const { return replicas_.front().device; }
    /// Creates the gradient arena of a replica if it does not exist. All streams may then write it.
    void ensure_gradients(DeviceIndex device);

    const ArenaSegment& segment(ParameterId parameter) const {
        return parameters_[static_cast<std::size_t>(parameter.arena)]
            .segments[static_cast<std::size_t>(parameter.number)];
    }
    /// The tensor of a segment on replica 0.
    const Tensor& tensor(const ArenaSegment& segment) const { return segment.tensor; }
    /// Identities of the model's members, in member order.
    const std::vector<const void*>& members() const { return members_; }
    /// Throws InvalidArgument, in the name of `function`, if the members of the model are no longer those of the store.
    /// This happens if a layer was replaced, moved, added or removed. Every public call that uses the store makes this
    /// check.
    void require_members(const char* function) const;
    /// Adopts the model's present members, with their values, if they replace destroyed members at the same positions:
    /// a vector that was assigned by move has other elements. Returns false, with nothing changed, if the structure
    /// differs.
    bool adopt(const std::vector<NamedTensor>& present) const;
    /// Throws the exception of require_members; `present`: the members that the model has now.
    [[noreturn]] void refuse_members(const char* function, const std::vector<NamedTensor>& present) const;

    /// Grows with every write to a member from outside.
    std::uint64_t version() const {
        return parameter_group_->writes + parameter_group_->all_writes + buffer_group_->writes;
    }
    /// Counts a write to all parameters (an update).
    void touch_parameters() { ++parameter_group_->all_writes; }
    /// Trainable flags of the parameters, and their numbers of hooks, as bytes for keys.
    const std::string& trainable_flags() const;
    /// Grows when `trainable_flags` may have changed.
    std::uint64_t trainable_version() const { return parameter_group_->flags; }

    /// Guard of the model against concurrent use through its wrapper or an optimizer. Every public call of these holds
    /// a Use.
    OneThreadAtATime& one_thread() { return one_thread_; }

    /// Whether this process prints warnings about the model: not on ranks other than 0.
    bool warns = true;
    /// Performs an optimizer's update if a wrapper owns the replicas; empty for a plain model.
    std::function<void(Optimizer&)> update_hook;
    /// Makes the check of require_members if a wrapper knows the whole model; empty for a plain model, in which only
    /// destroyed members are detected.
    std::function<void(const char* function)> member_check;
    /// Whether the optimizer with that id exists; optimizers register and unregister themselves.
    bool has_optimizer(std::uint64_t id) const { return optimizers_.contains(id); }
    /// All existing optimizers by id, which is the order of their creation.
    const std::map<std::uint64_t, Optimizer*>& optimizers() const { return optimizers_; }
    void attach_optimizer(std::uint64_t id, Optimizer& optimizer) { optimizers_.emplace(id, &optimizer); }
    void detach_optimizer(std::uint64_t id) { optimizers_.erase(id); }

private:
    void move_to_arenas(std::vector<ArenaLayout>& layouts, std::vector<std::shared_ptr<Buffer>>& home,
                        const std::shared_ptr<StorageGroup>& group);
    std::vector<ArenaLayout> parameters_, buffers_;
    std::vector<Replica> replicas_;
    std::shared_ptr<StorageGroup> parameter_group_ = std::make_shared<StorageGroup>();
    std::shared_ptr<StorageGroup> buffer_group_ = std::make_shared<StorageGroup>();
    std::vector<const void*> members_;       // in member order
    std::vector<std::string> member_names_;  // in member order
    std::vector<std::pair<std::string, detail::HeldValue>> held_;
    std::map<std::uint64_t, Optimizer*> optimizers_;
    OneThreadAtATime one_thread_{"this model"};
    mutable std::string trainable_flags_;
    mutable std::uint64_t trainable_flags_of_ = ~std::uint64_t{0};  // trainable_version() of the cached flags
};

}  // namespace lockstep
