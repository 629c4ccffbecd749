// The last part of PyTorch's manual step: an optimizer's step() on a wrapper's parameters.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "lockstep/ops/optimizer.h"
#include "lockstep/parallel/engine/in_flight.h"
#include "lockstep/parallel/engine/parameter_gradients.h"
#include "lockstep/parallel/engine/recently_used.h"
#include "lockstep/parallel/engine/replicas.h"
#include "lockstep/parallel/schedule/instance.h"

namespace lockstep {

class ManualUpdate {
public:
    ManualUpdate(EngineParts& parts, InFlight& in_flight, ReplicaKeeper& replicas, ParameterGradients& gradients)
        : parts_(parts), in_flight_(in_flight), replicas_(replicas), gradients_(gradients) {}

    /// Updates all parameters that have a gradient. Throws InvalidArgument if none has one.
    void step(Optimizer& optimizer);

private:
    struct ScheduledUpdate {
        Schedule schedule = {};
        std::unique_ptr<Instance> instance = {};
        std::uint64_t optimizer = 0;  ///< its id
    };
    /// Cached like programs; a new one has no instance. `with_gradient`: a character per parameter.
    ScheduledUpdate& update_for(const Optimizer& optimizer, std::string_view with_gradient);
    void build(ScheduledUpdate& update, Optimizer& optimizer, std::string_view with_gradient);

    EngineParts& parts_;
    InFlight& in_flight_;
    ReplicaKeeper& replicas_;
    ParameterGradients& gradients_;
    RecentlyUsed<ScheduledUpdate> updates_;
};

}  // namespace lockstep
