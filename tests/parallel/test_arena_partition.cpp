// Partition of arenas into buckets and slices: everything once, within the bounds in docs/reduction.md.
#include "lockstep/parallel/reduce/arena_partition.h"

#include <algorithm>

#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/nets.h"

using namespace lockstep;

namespace {

std::shared_ptr<ParameterStore> store_of(test::Cnn& net) { return ParameterStore::of(named_tensors(net)); }

bool every_parameter(ParameterId) { return true; }

}  // namespace

TEST_CASE("buckets cover every parameter once, in order, and are at most 1.5 times the requested size") {
    test::Cnn net;
    const auto store = store_of(net);
    const ArenaLayout& arena = store->parameters().front();
    for (const std::size_t bytes : {std::size_t{1}, std::size_t{4096}, std::size_t{100'000}, std::size_t{1} << 20,
                                    std::size_t{1} << 30, std::size_t{0}}) {
        INFO("buckets of " << bytes);
        const ArenaPartition cut(store, bytes, 1);
        std::vector<int> taken(static_cast<std::size_t>(arena.elements), 0);
        std::int64_t before = 0;
        const std::size_t asked =
            bytes == 0 ? std::size_t{1} << 20 : bytes;  // 4.8 MB in all: a 64th is less than 1 MiB
        std::size_t largest = 0;
        for (const Bucket& bucket : cut.buckets(every_parameter)) {
            CHECK(bucket.begin >= before);
            CHECK(bucket.begin % 64 == 0);
            before = bucket.end;
            for (std::int64_t i = bucket.begin; i < bucket.end; ++i) ++taken[static_cast<std::size_t>(i)];
            const auto size = static_cast<std::size_t>(bucket.elements()) * sizeof(float);
            largest = std::max(largest, size);
            CHECK(size <= std::max(asked + asked / 2, std::size_t{64 * sizeof(float)}));
            const auto segment = [&](int i) { return arena.segments[static_cast<std::size_t>(i)]; };
            CHECK(segment(bucket.first_segment).begin <= bucket.begin);
            CHECK(segment(bucket.first_segment).end > bucket.begin);
            CHECK(segment(bucket.last_segment - 1).end >= bucket.end);
            CHECK(segment(bucket.last_segment - 1).begin < bucket.end);
        }
        CHECK(largest == cut.largest());
        for (const ArenaSegment& segment : arena.segments)
            for (std::int64_t i = segment.begin; i < segment.end; ++i) REQUIRE(taken[static_cast<std::size_t>(i)] == 1);
    }
}

TEST_CASE("excluded parameters are in no bucket, and the others keep theirs") {
    test::Cnn net;
    const auto store = store_of(net);
    const ArenaPartition cut(store, 100'000, 3);
    const auto all = cut.buckets(every_parameter);
    const auto without_fc1 = [&](ParameterId parameter) { return store->segment(parameter).name != "fc1.weight"; };
    for (const Bucket& bucket : cut.buckets(without_fc1)) {
        for (int i = bucket.first_segment; i < bucket.last_segment; ++i) CHECK(without_fc1({bucket.arena, i}));
        const auto whole =
            std::find_if(all.begin(), all.end(), [&](const Bucket& other) { return other.number == bucket.number; });
        REQUIRE(whole != all.end());
        CHECK(whole->begin <= bucket.begin);
        CHECK(bucket.end <= whole->end);
        for (const DeviceIndex device : cut.updating_devices()) {  // the same elements on the same device
            const Bucket part = cut.slice(bucket, device), part_of_whole = cut.slice(*whole, device);
            if (part.elements() == 0) continue;
            CHECK(part.begin >= part_of_whole.begin);
            CHECK(part.end <= part_of_whole.end);
            CHECK(cut.state_begin(part, device) ==
                  cut.state_begin(part_of_whole, device) + part.begin - part_of_whole.begin);
        }
    }
}

TEST_CASE("every element of a slice belongs to one device, and the state of devices does not overlap") {
    test::Cnn net;
    const auto store = store_of(net);
    for (const int devices : {1, 2, 3, 8}) {
        const ArenaPartition cut(store, 300'000, devices);
        std::vector<std::vector<int>> used;
        for (const DeviceIndex d : cut.updating_devices())
            used.emplace_back(static_cast<std::size_t>(cut.state_elements(d).front()), 0);
        std::int64_t all = 0;
        for (const OwnedSlice& slice : cut.slices(0)) {
            all += slice.end - slice.begin;
            for (std::int64_t i = slice.begin; i < slice.end; ++i)
                ++at(used, slice.device)[static_cast<std::size_t>(slice.state_begin + i - slice.begin)];
        }
        for (const auto& of_device : used) CHECK(*std::max_element(of_device.begin(), of_device.end()) == 1);
        std::int64_t in_buckets = 0;
        for (const Bucket& bucket : cut.buckets(every_parameter)) in_buckets += bucket.elements();
        CHECK(all == in_buckets);
        // No device stores more than its share and 64 elements for each of the (at most 17) buckets.
        for (const auto& of_device : used)
            CHECK(static_cast<std::int64_t>(of_device.size()) <= all / devices + 17 * 2 * 64);
    }
}
