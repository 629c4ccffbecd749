// The reduction within a process: devices read each other's sums.
#pragma once

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "lockstep/parallel/reduce/bucket_reduction.h"

namespace lockstep {

/// Gradients are summed on device 0 (root), or each device sums its slice.
class ProcessReduction : public BucketReduction {
public:
    using BucketReduction::BucketReduction;

protected:
    bool by_slices() const final { return spec_.optimizer && reduction_.cut().updating() > 1; }
    /// If only device 0 sums, it adds its lanes' sums together with those of the other devices.
    int first_combined() const final { return by_slices() ? 0 : 1; }
    std::vector<int> emit_sum(Emitter& emitter, DeviceIndex device, const Bucket& bucket, const Bucket& part,
                              const MemoryRef& target, const std::vector<int>& ready) final;
    /// The shards that each sum covers, in the form of TreeSum.
    virtual std::vector<std::pair<int, int>> ranges(std::vector<std::pair<int, int>> shards) const { return shards; }

private:
    /// The stream on which `device` sums: that of updates, so that the sum is still in the cache, unless lanes wait for
    /// sums to free their slots.
    Stream& summing(Emitter& emitter, DeviceIndex device);
    MemoryRef read_from_peer(Emitter& emitter, Stream& reader, int index, const MemoryRef& ref);

    std::map<std::pair<Stream*, int>, std::shared_ptr<Buffer>> staging_;
};

/// One of several processes sums only its own gradients (PyTorch's no_sync).
class OwnReduction final : public ProcessReduction {
public:
    using ProcessReduction::ProcessReduction;

private:
    /// This process's shards are only a part of the tree; they are added in order.
    std::vector<std::pair<int, int>> ranges(std::vector<std::pair<int, int>> shards) const override;
};

}  // namespace lockstep
