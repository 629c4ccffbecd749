// Flat arenas: on every replica the parameters (and likewise gradients, optimizer state and buffers) of one dtype lie
// in one contiguous piece of memory, at the same offsets everywhere, in reversed member order: about the order in
// which backward finishes them. Replicating is one copy, reducing works on slices without packing, updating is one
// kernel.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/ops/module.h"
#include "lockstep/runtime/memory.h"

namespace lockstep {

class Optimizer;

/// One parameter or buffer in its arena; tied ones are one segment with several members.
struct ArenaSegment {
    std::string name;                    ///< of the first member in member order
    std::vector<ModuleTensor*> members;  ///< in the model that owns them
    std::vector<std::string> names;      ///< of all members
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

/// Arenas of one kind (parameters, or buffers) for a list of tensors: one layout a dtype.
std::vector<ArenaLayout> lay_out(const std::vector<NamedTensor>& tensors, bool parameters);

/// Memory of one replica.
struct Replica {
    Device device;
    std::vector<std::shared_ptr<Buffer>> parameters;  ///< one an arena
    std::vector<std::shared_ptr<Buffer>> buffers;
    std::vector<std::shared_ptr<Buffer>> gradients;
};

/// The parameters and buffers of one model, moved into arenas: one replica on each device. Replica 0 is the truth: the
/// model's members are views of it.
class ParameterStore {
public:
    /// Moves the tensors (they must lie on one device) into arenas on `devices`. Throws InvalidArgument when they lie
    /// on several devices, or already belong to a store.
    ParameterStore(std::vector<NamedTensor> tensors, std::vector<Device> devices);
    ~ParameterStore();
    ParameterStore(const ParameterStore&) = delete;
    ParameterStore& operator=(const ParameterStore&) = delete;

    /// The store that holds the parameters of `tensors`, or a new one on the device where they lie.
    static std::shared_ptr<ParameterStore> of(std::vector<NamedTensor> tensors);

    /// Lets `of` find this store.
    void enlist(const std::shared_ptr<ParameterStore>& self);

    const std::vector<NamedTensor>& tensors() const { return tensors_; }
    const std::vector<ArenaLayout>& parameters() const { return parameters_; }
    const std::vector<ArenaLayout>& buffers() const { return buffers_; }
    std::vector<Replica>& replicas() { return replicas_; }
    const std::vector<Replica>& replicas() const { return replicas_; }
    Device home() const { return replicas_.front().device; }
    /// Makes the gradient arena of replica `index` if it is not there; contents are undefined.
    void need_gradients(int index);

    /// The tensor of a segment on replica 0.
    const Tensor& tensor(const ArenaSegment& segment) const { return segment.members.front()->tensor(); }
    /// Grows with every write to a member from outside.
    std::uint64_t version() const;
    /// Counts a write to all parameters (an update).
    void touch_parameters();
    /// Which parameters are trained, as bytes for keys.
    std::string trainable_flags() const;

    /// Performs an optimizer's update where a wrapper owns the replicas; empty for a plain model.
    std::function<void(Optimizer&)> update_hook;

private:
    void move_in(const std::vector<ArenaLayout>& layouts, std::vector<std::shared_ptr<Buffer>>& home);
    std::vector<NamedTensor> tensors_;
    std::vector<ArenaLayout> parameters_, buffers_;
    std::vector<Replica> replicas_;
};

}  // namespace lockstep
