// Sums of the gradients of shards before they leave a device: the nodes of the tree on lanes and devices, and the
// memory of their sums.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "lockstep/parallel/reduce/reduction_memory.h"
#include "lockstep/parallel/schedule/emitter.h"

namespace lockstep {

/// A node of the tree of shards inside a lane's run. Its sum is in an arena or, bucket by bucket, in a slot, so that
/// memory is bounded by the bucket size. A node of one shard in an arena is that shard's gradient itself.
struct GradientNode {
    ShardRange range;
    DeviceIndex device;
    Stream* lane = nullptr;  ///< the lane that computes its shards
    int slot = -1;           ///< number of the device's slot; -1: in the arena
    std::vector<std::shared_ptr<Buffer>> arenas;
    bool in_arena() const { return slot < 0; }
};

/// A node inside a device's run: the sum of its lanes' nodes [first, last), in the memory of the first of them.
struct DeviceNode {
    DeviceIndex device;
    std::size_t first = 0, last = 0;
};

/// Location of the first node of a device.
enum class FirstNode : std::uint8_t {
    gradients,      ///< in its gradient arena
    separate_root,  ///< as `gradients`, but on device 0 in a separate arena: the sum is added later
    slots           ///< in a slot like the others: the gradient arenas hold sums that are added to
};

/// The sums that devices hold for `present` shards.
class PartialSums {
public:
    /// Buckets alternate between turns of a slot: while one is read the next is written.
    static constexpr int turns = 2;

    PartialSums(const Topology& topology, EngineMemory& memory, ReductionMemory& reduction, int present,
                FirstNode first_node);

    int present() const { return present_; }
    /// In order of shards.
    const std::vector<GradientNode>& nodes() const { return nodes_; }
    const std::vector<DeviceNode>& device_nodes() const { return device_nodes_; }
    const GradientNode& node_of(int shard) const;
    bool uses_slots() const;
    /// The shards that `node` sums, in the form of TreeSum.
    static std::pair<int, int> shards_of(const GradientNode& node) { return {node.range.first, node.range.last}; }
    std::pair<int, int> shards_of(const DeviceNode& node) const {
        return {nodes_[node.first].range.first, nodes_[node.last - 1].range.last};
    }
    /// Memory of the sum of `node` over elements [begin, end) of a bucket.
    MemoryRef ref(const GradientNode& node, const Bucket& bucket, int turn, std::int64_t begin, std::int64_t end) const;
    MemoryRef ref(const DeviceNode& node, const Bucket& bucket, int turn, std::int64_t begin, std::int64_t end) const {
        return ref(nodes_[node.first], bucket, turn, begin, end);
    }

private:
    ReductionMemory& reduction_;
    int present_;
    std::vector<GradientNode> nodes_;
    std::vector<DeviceNode> device_nodes_;
};

}  // namespace lockstep
