// Assignment of shards to devices and streams of this process, and to other processes.
#pragma once

#include <utility>
#include <vector>

#include "lockstep/runtime/placement.h"
#include "lockstep/runtime/stream.h"
#include "lockstep/runtime/trace.h"

namespace lockstep {

/// A run of shards with the stream that computes it.
struct ComputeLane {
    DeviceIndex device;
    ShardRange shards;
    Stream* stream = nullptr;
};

/// A DeviceIndex is an index in `devices`; the replica on that device has the same number.
struct Topology {
    Devices devices;
    int shards = 1;
    TraceSettings arithmetic;  ///< arithmetic settings of every shard
    RankIndex rank;            ///< rank of this process
    int ranks = 1;             ///< number of ranks that train together
    ShardRange held;           ///< the shards that this process computes
    std::vector<ComputeLane> lanes;
    /// The streams of collectives: all processes enqueue the same ones in the same order. Empty without a job.
    std::vector<Stream*> collective_streams;

    explicit Topology(Devices d) : devices(std::move(d)) {}
    /// Fills in `lanes`; everything else must be set.
    void assign_lanes();

    /// The stream on which a device sums gradients. Work enqueued there changes no persistent state.
    Stream& reduce(DeviceIndex device) const;
    /// The stream on which a device changes persistent state: parameters, optimizer state, buffers, counters, gradients
    /// that backward adds to.
    Stream& commit(DeviceIndex device) const;
    Stream& collective() const { return *collective_streams.front(); }

    const ComputeLane& lane_of(int shard) const;
    /// The stream of a device's first shards, on which work for all of its shards runs.
    Stream& first_compute(DeviceIndex device) const;
    Stream& compute(int shard) const { return *lane_of(shard).stream; }
    DeviceIndex replica_of(int shard) const { return lane_of(shard).device; }
    Device device_of(int shard) const { return devices[replica_of(shard)]; }
    IndexRange<RankIndex> every_rank() const { return {0, ranks}; }
    /// The process that computes a shard.
    RankIndex rank_of(int shard) const;
    /// Shards that a process computes, of those present.
    ShardRange held_by(RankIndex of, int present) const { return run_of(of.number(), ranks, shards).among(present); }

private:
    std::vector<Stream*> reduce_streams_, commit_streams_;  ///< one per device
};

}  // namespace lockstep
