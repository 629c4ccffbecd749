// Copies of constants (tensors that a model or a loss captured) on every device, refreshed when they change.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/parallel/schedule/topology.h"
#include "lockstep/runtime/tensor.h"

namespace lockstep {

class ConstantCache {
public:
    /// Copies `storage` to all devices unless that version is there already. Waits for the copies.
    void refresh(const Topology& topology, const std::shared_ptr<Storage>& storage);
    const std::shared_ptr<Buffer>& on(const std::shared_ptr<Storage>& storage, DeviceIndex device) const;
    /// Forgets the copies of all others.
    void keep_only(const std::function<bool(const Storage&)>& wanted) {
        std::erase_if(copies_, [&](const auto& entry) { return !wanted(*entry.first); });
    }

private:
    struct Copies {
        std::shared_ptr<Storage> storage;      // kept, so that its address stays its own
        std::optional<std::uint64_t> version;  ///< that all devices have
        std::vector<std::shared_ptr<Buffer>> buffers;
    };
    std::map<const Storage*, Copies> copies_;
};

}  // namespace lockstep
