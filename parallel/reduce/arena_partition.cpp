#include "lockstep/parallel/reduce/arena_partition.h"

#include <algorithm>

#include "lockstep/runtime/round_up.h"

namespace lockstep {

namespace {

constexpr std::int64_t grain = ArenaPartition::grain;  // segments begin at multiples of this as well

std::int64_t grains_in(std::int64_t elements) { return ceil_div(elements, grain); }

std::size_t chosen_bucket_bytes(const ParameterStore& store) {
    constexpr std::size_t kib = 1024, mib = 1024 * kib;
    std::size_t all = 0;
    for (const ArenaLayout& arena : store.parameters()) all += arena.bytes();
    const Device device = store.replicas().front().device;
    // A GPU moves 8 MiB in the time of a few launches. A single device reduces nothing during backward.
    if (device.kind() == DeviceKind::cuda)
        return store.replicas().size() == 1 ? 25 * mib : std::clamp(all / 16, 8 * mib, 25 * mib);
    // Two gradients, parameters and momentum of a bucket fit in the cache, so that an update finds the sums there.
    const std::size_t least = std::clamp(device_info(device).cache_bytes / 4, 64 * kib, mib);
    return std::clamp(all / 64, least, 25 * mib);
}

}  // namespace

ArenaPartition::ArenaPartition(std::shared_ptr<const ParameterStore> store, std::size_t bucket_bytes, int updating,
                               std::size_t first_bucket_bytes)
    : store_(std::move(store)), updating_(updating) {
    const std::size_t all_but_first = bucket_bytes > 0 ? bucket_bytes : chosen_bucket_bytes(*store_);
    for (const ArenaLayout& arena : store_->parameters()) {
        std::vector<Range>& ranges = fixed_.emplace_back();
        const std::size_t size = size_of(arena.dtype);
        for (std::size_t i = 0; i < arena.segments.size();) {
            const bool first = fixed_.size() == 1 && ranges.empty() && first_bucket_bytes > 0;
            bucket_bytes = first ? first_bucket_bytes : all_but_first;
            Range group{arena.segments[i].begin, 0};
            std::size_t bytes = 0;
            while (i < arena.segments.size() && bytes < bucket_bytes) {
                group.end = arena.segments[i++].end;
                bytes = static_cast<std::size_t>(group.end - group.begin) * size;
            }
            const std::int64_t grains = grains_in(group.end - group.begin);
            std::int64_t pieces = 1;
            if (2 * bytes > 3 * bucket_bytes)
                pieces = std::min(grains, static_cast<std::int64_t>(ceil_div(bytes, bucket_bytes)));
            for (std::int64_t piece = 0; piece < pieces; ++piece)
                ranges.push_back(
                    {group.begin + grains * piece / pieces * grain,
                     piece + 1 == pieces ? group.end : group.begin + grains * (piece + 1) / pieces * grain});
        }
    }
    state_elements_.assign(static_cast<std::size_t>(updating), std::vector<std::int64_t>(fixed_.size(), 0));
    for (std::size_t a = 0; a < fixed_.size(); ++a)
        for (const OwnedSlice& slice : slices(static_cast<int>(a)))
            at(state_elements_, slice.device)[a] = slice.state_begin + grains_in(slice.end - slice.begin) * grain;
}

std::vector<Bucket> ArenaPartition::buckets(const ParameterFilter& taken) const {
    std::vector<Bucket> result;
    for (std::size_t a = 0; a < fixed_.size(); ++a) {
        const std::vector<ArenaSegment>& segments = store_->parameters()[a].segments;
        std::size_t first = 0;
        for (std::size_t number = 0; number < fixed_[a].size(); ++number) {
            const Range range = fixed_[a][number];
            while (first < segments.size() && segments[first].end <= range.begin) ++first;
            bool open = false;
            for (std::size_t i = first; i < segments.size() && segments[i].begin < range.end; ++i) {
                const bool wanted = taken({static_cast<int>(a), static_cast<int>(i)});
                const std::int64_t begin = std::max(range.begin, segments[i].begin);
                const std::int64_t end = std::min(range.end, segments[i].end);
                if (wanted && !open)
                    result.push_back({static_cast<int>(a), static_cast<int>(number), begin, end, static_cast<int>(i),
                                      static_cast<int>(i) + 1});
                if (wanted && open) {
                    result.back().end = end;
                    result.back().last_segment = static_cast<int>(i) + 1;
                }
                open = wanted;
            }
        }
    }
    return result;
}

std::int64_t ArenaPartition::begin_of(Range bucket, int index, int count) {
    return std::min(bucket.end, bucket.begin + grains_in(bucket.end - bucket.begin) * index / count * grain);
}

Bucket ArenaPartition::part(const Bucket& bucket, int index, int count) {
    Bucket part = bucket;
    part.begin = begin_of({bucket.begin, bucket.end}, index, count);
    part.end = begin_of({bucket.begin, bucket.end}, index + 1, count);
    return part;
}

Bucket ArenaPartition::slice(const Bucket& bucket, DeviceIndex device) const {
    const auto arena = static_cast<std::size_t>(bucket.arena);
    const Range whole = fixed_[arena][static_cast<std::size_t>(bucket.number)];
    const std::vector<ArenaSegment>& segments = store_->parameters()[arena].segments;
    Bucket part = bucket;
    part.begin = std::clamp(slice_begin(whole, device), bucket.begin, bucket.end);
    part.end = std::clamp(slice_end(whole, device), bucket.begin, bucket.end);
    const auto segment = [&](int i) -> const ArenaSegment& { return segments[static_cast<std::size_t>(i)]; };
    while (part.first_segment + 1 < bucket.last_segment && segment(part.first_segment).end <= part.begin)
        ++part.first_segment;
    while (part.last_segment - 1 > part.first_segment && segment(part.last_segment - 1).begin >= part.end)
        --part.last_segment;
    return part;
}

std::vector<OwnedSlice> ArenaPartition::slices(int arena) const {
    std::vector<OwnedSlice> result;
    for (const DeviceIndex d : updating_devices()) {
        std::int64_t state = 0;
        for (const Range bucket : fixed_[static_cast<std::size_t>(arena)]) {
            const std::int64_t begin = slice_begin(bucket, d);
            const std::int64_t end = slice_end(bucket, d);
            result.push_back({d, begin, end, state});
            state += grains_in(end - begin) * grain;
        }
    }
    return result;
}

std::int64_t ArenaPartition::state_begin(const Bucket& part, DeviceIndex device) const {
    for (const OwnedSlice& slice : slices(part.arena))
        if (slice.device == device && slice.begin <= part.begin && part.begin < slice.end)
            return slice.state_begin + part.begin - slice.begin;
    return 0;  // an empty part
}

std::size_t ArenaPartition::largest() const {
    std::size_t bytes = 0;
    for (std::size_t a = 0; a < fixed_.size(); ++a)
        for (const Range range : fixed_[a])
            bytes = std::max(
                bytes, static_cast<std::size_t>(range.end - range.begin) * size_of(store_->parameters()[a].dtype));
    return bytes;
}

}  // namespace lockstep
