// Partition of the arenas: into fixed buckets that are reduced, updated and sent one by one, and of every bucket into a
// slice for each updating device.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "lockstep/ops/arena.h"

namespace lockstep {

/// A contiguous range of one arena that is reduced (and updated) together: a fixed bucket, or its included part.
struct Bucket {
    int arena = 0;
    int number = 0;                   ///< number of the fixed bucket
    std::int64_t begin = 0, end = 0;  ///< elements of the arena
    int first_segment = 0, last_segment = 0;
    std::int64_t elements() const { return end - begin; }
    bool contains(ParameterId parameter) const {
        return parameter.arena == arena && first_segment <= parameter.number && parameter.number < last_segment;
    }
};

/// Whether a parameter is included.
using ParameterFilter = std::function<bool(ParameterId)>;

/// Elements [begin, end) of an arena that one device sums and updates, and whose state it stores.
struct OwnedSlice {
    DeviceIndex device;
    std::int64_t begin = 0, end = 0;
    /// Element of the device's state for `begin`; slices are contiguous in the state.
    std::int64_t state_begin = 0;
};

/// The partition depends only on the layout of the arenas, the bucket size and the number of updating devices. So an
/// element is on the same device in every program, whatever parameters it trains.
class ArenaPartition {
public:
    /// Slices begin at multiples of this number of elements.
    static constexpr std::int64_t grain = 64;

    /// `bucket_bytes` 0: on GPUs 1/16 of all parameters, at least 8 MiB; on CPU devices 1/64, at least a quarter of the
    /// device's cache (64 KiB to 1 MiB); at most 25 MiB, and on a single GPU just that. Whole parameters are grouped
    /// until they have that many bytes; a parameter of more than one and a half times that size is cut into even
    /// pieces. `updating`: the number of updating devices, each with its slices; 1: device 0 updates all.
    /// `first_bucket_bytes`: size of the first bucket; 0: as for the others.
    ArenaPartition(std::shared_ptr<const ParameterStore> store, std::size_t bucket_bytes, int updating,
                   std::size_t first_bucket_bytes = 0);

    /// Ranges over the selected segments, in the order of the arenas. If some are excluded, a fixed bucket is cut to
    /// the contiguous runs of the others.
    std::vector<Bucket> buckets(const ParameterFilter& taken) const;
    /// The part of `bucket` that `device` updates. Parts begin at multiples of `grain`.
    Bucket slice(const Bucket& bucket, DeviceIndex device) const;
    /// Part `index` of `bucket`, cut into `count` even parts, as slices are.
    static Bucket part(const Bucket& bucket, int index, int count);
    /// The slices of an arena with the devices that update them.
    std::vector<OwnedSlice> slices(int arena) const;
    /// Number of state elements that `device` stores for each arena.
    const std::vector<std::int64_t>& state_elements(DeviceIndex device) const { return at(state_elements_, device); }
    /// Index of the state of the first element of `part`, which `device` updates.
    std::int64_t state_begin(const Bucket& part, DeviceIndex device) const;
    int updating() const { return updating_; }
    IndexRange<DeviceIndex> updating_devices() const { return {0, updating_}; }
    /// Bytes of the largest fixed bucket.
    std::size_t largest() const;

private:
    struct Range {
        std::int64_t begin, end;
    };
    static std::int64_t begin_of(Range bucket, int index, int count);
    std::int64_t slice_begin(Range bucket, DeviceIndex device) const {
        return begin_of(bucket, device.number(), updating_);
    }
    std::int64_t slice_end(Range bucket, DeviceIndex device) const {
        return begin_of(bucket, device.number() + 1, updating_);
    }

    std::shared_ptr<const ParameterStore> store_;
    int updating_;
    std::vector<std::vector<Range>> fixed_;                  ///< by arena
    std::vector<std::vector<std::int64_t>> state_elements_;  ///< by device and arena; needed in every step
};

}  // namespace lockstep
