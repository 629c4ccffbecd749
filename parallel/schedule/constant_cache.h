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
    /// Copies `storage` to all devices unless they have that version already. Waits for the copies.
    void refresh(const Topology& topology, const std::shared_ptr<Storage>& storage);
    const std::shared_ptr<Buffer>& on(const std::shared_ptr<Storage>& storage, DeviceIndex device) const;
    /// Drops all copies for which it returns false.
    void keep_only(const std::function<bool(const Storage&)>& wanted) {
        std::erase_if(copies_, [&](const auto& entry) { return !wanted(*entry.first); });
    }

private:
    struct Copies {
        std::shared_ptr<Storage> storage;      // owned, so that its address is not reused
        std::optional<std::uint64_t> version;  ///< the version on all devices
        std::vector<std::shared_ptr<Buffer>> buffers;
    };
    std::map<const Storage*, Copies> copies_;
};

}  // namespace lockstep
