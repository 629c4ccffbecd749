#include "lockstep/parallel/schedule/topology.h"

#include <algorithm>

namespace lockstep {

void Topology::assign_lanes() {
    for (const Lane& lane : place_shards(devices, held, arithmetic.threads))
        lanes.push_back(
            {lane.device, lane.shards, &Stream::of(devices[lane.device], StreamRole::compute, lane.stream)});
    for (const Device device : devices) {
        reduce_streams_.push_back(&Stream::of(device, StreamRole::reduce));
        commit_streams_.push_back(&Stream::of(device, StreamRole::commit));
    }
}

Stream& Topology::reduce(DeviceIndex device) const { return *at(reduce_streams_, device); }
Stream& Topology::commit(DeviceIndex device) const { return *at(commit_streams_, device); }

const ComputeLane& Topology::lane_of(int shard) const {
    return *std::find_if(lanes.begin(), lanes.end(),
                         [&](const ComputeLane& lane) { return lane.shards.contains(shard); });
}

Stream& Topology::first_compute(DeviceIndex device) const {
    return *std::find_if(lanes.begin(), lanes.end(), [&](const ComputeLane& lane) {
                return lane.device == device;
            })->stream;
}

RankIndex Topology::rank_of(int shard) const {
    for (const RankIndex other : every_rank())
        if (held_by(other, shards).contains(shard)) return other;
    return RankIndex(ranks - 1);
}

}  // namespace lockstep
