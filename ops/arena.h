// Flat arenas: on every replica the parameters (and likewise gradients, optimizer state and buffers) of one dtype lie
// in one contiguous piece of memory, at the same offsets everywhere, in reversed member order: about the order in
// which backward finishes them. Replicating is one copy, reducing works on slices without packing, updating is one
// kernel.
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

/// A parameter of a store: that with this number in this arena.
struct ParameterId {
    int arena = 0, number = 0;
    friend auto operator<=>(const ParameterId&, const ParameterId&) = default;
};

/// One parameter or buffer in its arena; tied ones are one segment with several members.
struct ArenaSegment {
    std::string name;                    ///< of the first member in member order
    std::vector<ModuleTensor*> members;  ///< in the model; empty in a store, which may outlive the model
    std::vector<std::string> names;      ///< of all members
    Tensor tensor;                       ///< what the members hold
    Shape shape;
    std::int64_t begin = 0;  ///< first element in the arena, aligned to 64
    std::int64_t end = 0;    ///< one past the last element
};

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
    Device device;  ///< of all; of a plain model on several devices that of its first tensor
    std::vector<std::shared_ptr<Buffer>> parameters;  ///< one per arena
    std::vector<std::shared_ptr<Buffer>> buffers;
    std::vector<std::shared_ptr<Buffer>> gradients;
};

/// The parameters and buffers of one model, moved into arenas: one replica on each device. Replica 0 is the truth: the
/// model's members are views of it.
class ParameterStore {
public:
    /// Moves the tensors (they must lie on one device) into arenas on `devices`; where none is named, each into one
    /// where it lies, be that several devices. Throws InvalidArgument when they lie on several devices though some are
    /// named, or already belong to a store.
    ParameterStore(const std::vector<NamedTensor>& tensors, const std::vector<Device>& devices);
    ~ParameterStore();
    ParameterStore(const ParameterStore&) = delete;
    ParameterStore& operator=(const ParameterStore&) = delete;

    /// The store that holds some of `tensors`, or null.
    static std::shared_ptr<ParameterStore> find(const std::vector<NamedTensor>& tensors);
    /// The store that holds all parameters of `tensors`, among others perhaps; or a new one, on the devices where they
    /// are, if no store holds any. Throws InvalidArgument when a store holds some of them only.
    static std::shared_ptr<ParameterStore> of(const std::vector<NamedTensor>& tensors);

    /// Lets `of` find this store.
    void enlist(const std::shared_ptr<ParameterStore>& self);

    const std::vector<ArenaLayout>& parameters() const { return parameters_; }
    const std::vector<ArenaLayout>& buffers() const { return buffers_; }
    std::vector<Replica>& replicas() { return replicas_; }
    const std::vector<Replica>& replicas() const { return replicas_; }
    Device home() const { return replicas_.front().device; }
    /// Makes the gradient arena of a replica if it is not there; contents are undefined.
    void need_gradients(DeviceIndex device);

    const ArenaSegment& segment(ParameterId parameter) const {
        return parameters_[static_cast<std::size_t>(parameter.arena)]
            .segments[static_cast<std::size_t>(parameter.number)];
    }
    /// The tensor of a segment on replica 0.
    const Tensor& tensor(const ArenaSegment& segment) const { return segment.tensor; }
    /// Identities of the model's members, in member order.
    const std::vector<const void*>& members() const { return members_; }
    /// Throws InvalidArgument, in the name of `function`, if the members of the model are no longer those of the store:
    /// a layer was replaced, moved, added or removed. Every public call that uses the store makes this check.
    void require_members(const char* function) const;
    /// Makes the members that the model has now those of the store, with the values that they have, where they took the
    /// places of members that are gone: a vector that was assigned by move has other elements. False, with nothing
    /// changed, where the structure is another.
    bool adopt(const std::vector<NamedTensor>& present) const;
    /// Throws that; `present`: the members that the model has now.
    [[noreturn]] void refuse_members(const char* function, const std::vector<NamedTensor>& present) const;

    /// Grows with every write to a member from outside.
    std::uint64_t version() const {
        return parameter_group_->writes + parameter_group_->all_writes + buffer_group_->writes;
    }
    /// Counts a write to all parameters (an update).
    void touch_parameters() { ++parameter_group_->all_writes; }
    /// Which parameters are trained, as bytes for keys.
    const std::string& trainable_flags() const;
    /// Grows when `trainable_flags` may have changed.
    std::uint64_t trainable_version() const { return parameter_group_->flags; }

    /// Who uses the model now, through its wrapper or an optimizer. Every public call of these holds a Use.
    OneThreadAtATime& one_thread() { return one_thread_; }

    /// Performs an optimizer's update where a wrapper owns the replicas; empty for a plain model.
    std::function<void(Optimizer&)> update_hook;
    /// Makes the check of require_members if a wrapper knows the whole model; empty for a plain model, of which only
    /// members that are gone are noticed.
    std::function<void(const char* function)> member_check;
    /// Whether the optimizer of that id exists; optimizers enter and leave themselves.
    bool has_optimizer(std::uint64_t id) const { return optimizers_.contains(id); }
    /// All that exist, by id: in the order in which they were made.
    const std::map<std::uint64_t, Optimizer*>& optimizers() const { return optimizers_; }
    void enter_optimizer(std::uint64_t id, Optimizer& optimizer) { optimizers_.emplace(id, &optimizer); }
    void leave_optimizer(std::uint64_t id) { optimizers_.erase(id); }

private:
    void move_in(std::vector<ArenaLayout>& layouts, std::vector<std::shared_ptr<Buffer>>& home,
                 const std::shared_ptr<StorageGroup>& group);
    std::vector<ArenaLayout> parameters_, buffers_;
    std::vector<Replica> replicas_;
    std::shared_ptr<StorageGroup> parameter_group_ = std::make_shared<StorageGroup>();
    std::shared_ptr<StorageGroup> buffer_group_ = std::make_shared<StorageGroup>();
    std::vector<const void*> members_;       // in member order
    std::vector<std::string> member_names_;  // likewise
    std::vector<std::pair<std::string, detail::HeldValue>> held_;
    std::map<std::uint64_t, Optimizer*> optimizers_;
    OneThreadAtATime one_thread_{"this model"};
    mutable std::string trainable_flags_;
    mutable std::uint64_t trainable_flags_of_ = ~std::uint64_t{0};  // the trainable_version that they are of
};

}  // namespace lockstep
