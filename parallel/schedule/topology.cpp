#include "lockstep/parallel/schedule/topology.h"

#include <algorithm>

namespace lockstep {

void Topology::lay_lanes() {
    for (const Lane& lane : place_shards(devices, held, arithmetic.threads))
        lanes.push_back(
            {lane.device, lane.shards, &Stream::of(devices[lane.device], StreamRole::compute, lane.stream)});
    for (const Device device : devices) {
        reduce_streams_.push_back(&Stream::of(device, StreamRole::reduce));
        commit_streams_.push_back(&Stream::of(device, StreamRole::commit));
    }
}

Stream& Topology::reduce(int device) const { return *reduce_streams_[static_cast<std::size_t>(device)]; }
Stream& Topology::commit(int device) const { return *commit_streams_[static_cast<std::size_t>(device)]; }

const ComputeLane& Topology::lane_of(int shard) const {
    return *std::find_if(lanes.begin(), lanes.end(),
                         [&](const ComputeLane& lane) { return lane.shards.contains(shard); });
}

int Topology::rank_of(int shard) const {
    for (int other = 0; other + 1 < ranks; ++other)
        if (held_by(other, shards).contains(shard)) return other;
    return ranks - 1;
}

}  // namespace lockstep
