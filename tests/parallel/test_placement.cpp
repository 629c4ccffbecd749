// Placement of shards: compared with torch.chunk's table, and with the definition of the tree by brute force.
#include "lockstep/runtime/placement.h"

#include <cmath>
#include <set>
#include <type_traits>

#include "lockstep/runtime/error.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/eight_devices.h"
#include "lockstep/tests/fixtures/messages.h"

using namespace lockstep;

namespace {

std::vector<std::int64_t> lengths(std::int64_t rows, int shards) {
    const BatchCut cut = cut_batch(rows, shards);
    std::vector<std::int64_t> result;
    for (int shard = 0; shard < cut.present; ++shard) result.push_back(cut.rows_of(shard));
    return result;
}

/// All nodes of the tree over [first, last).
void all_nodes(int first, int last, std::set<std::pair<int, int>>& nodes) {
    nodes.emplace(first, last);
    if (last - first == 1) return;
    int split = 1;
    while (2 * split < last - first) split *= 2;
    all_nodes(first, first + split, nodes);
    all_nodes(first + split, last, nodes);
}

}  // namespace

TEST_CASE("a batch is cut like torch.chunk") {
    using Lengths = std::vector<std::int64_t>;
    CHECK(lengths(32, 4) == Lengths{8, 8, 8, 8});
    CHECK(lengths(10, 4) == Lengths{3, 3, 3, 1});
    CHECK(lengths(9, 4) == Lengths{3, 3, 3});
    CHECK(lengths(5, 4) == Lengths{2, 2, 1});
    CHECK(lengths(3, 4) == Lengths{1, 1, 1});
    CHECK(lengths(36, 7) == Lengths{6, 6, 6, 6, 6, 6});
    CHECK(lengths(20, 8) == Lengths{3, 3, 3, 3, 3, 3, 2});
    CHECK(lengths(1, 8) == Lengths{1});
    for (std::int64_t rows = 1; rows < 70; ++rows)
        for (int shards = 1; shards < 20; ++shards) {
            const BatchCut cut = cut_batch(rows, shards);
            std::int64_t next = 0;
            for (int shard = 0; shard < cut.present; ++shard) {
                CHECK(cut.first_row(shard) == next);
                CHECK(cut.rows_of(shard) > 0);
                next += cut.rows_of(shard);
            }
            CHECK(next == rows);
            for (int shard = cut.present; shard < shards; ++shard) CHECK(cut.rows_of(shard) == 0);
        }
    CHECK_THROWS_AS(cut_batch(0, 4), InvalidArgument);
    CHECK_THROWS_AS(cut_batch(4, 0), InvalidArgument);
}

TEST_CASE("shard runs are contiguous, longest first, and differ by at most one") {
    CHECK(run_of(0, 3, 8) == ShardRange{0, 3});
    CHECK(run_of(1, 3, 8) == ShardRange{3, 6});
    CHECK(run_of(2, 3, 8) == ShardRange{6, 8});
    for (int shards = 0; shards < 30; ++shards)
        for (int count = 1; count < 12; ++count) {
            int next = 0;
            for (int i = 0; i < count; ++i) {
                const ShardRange run = run_of(i, count, shards);
                CHECK(run.first == next);
                CHECK(run.size() >= shards / count);
                CHECK(run.size() <= (shards + count - 1) / count);
                if (i > 0) CHECK(run.size() <= run_of(i - 1, count, shards).size());
                next = run.last;
            }
            CHECK(next == shards);
        }
}

TEST_CASE("a shard run needs the fewest tree nodes that cover it: at most 2 log2 of the number of shards") {
    CHECK(tree_nodes({0, 3}, 8) == std::vector<ShardRange>{{0, 2}, {2, 3}});
    CHECK(tree_nodes({3, 6}, 8) == std::vector<ShardRange>{{3, 4}, {4, 6}});
    CHECK(tree_nodes({6, 8}, 8) == std::vector<ShardRange>{{6, 8}});
    CHECK(tree_nodes({6, 8}, 7) == std::vector<ShardRange>{{6, 7}});
    CHECK(tree_nodes({6, 8}, 5).empty());
    for (int present = 1; present <= 33; ++present) {
        std::set<std::pair<int, int>> nodes;
        all_nodes(0, present, nodes);
        for (int first = 0; first < present; ++first)
            for (int last = first + 1; last <= present + 2; ++last) {
                const std::vector<ShardRange> found = tree_nodes({first, last}, present);
                int next = first;
                for (const ShardRange& node : found) {
                    CHECK(node.first == next);
                    CHECK(nodes.contains({node.first, node.last}));
                    next = node.last;
                }
                CHECK(next == std::min(last, present));
                // Minimum number of nodes: from every position on, the longest node that fits.
                std::size_t fewest = 0;
                for (int at = first; at < std::min(last, present); ++fewest)
                    for (int end = std::min(last, present); end > at; --end)
                        if (nodes.contains({at, end})) {
                            at = end;
                            break;
                        }
                CHECK(found.size() == fewest);
                if (present > 1) CHECK(static_cast<double>(found.size()) <= 2 * std::log2(present));
            }
    }
}

TEST_CASE("indices of devices and ranks convert to nothing else, and counts are those of their list") {
    static_assert(!std::is_convertible_v<int, DeviceIndex> && !std::is_convertible_v<DeviceIndex, int>);
    static_assert(!std::is_constructible_v<DeviceIndex, RankIndex> && !std::is_constructible_v<RankIndex, DeviceIndex>);
    const auto numbers = [](IndexRange<DeviceIndex> range) {
        std::vector<int> found;
        for (const DeviceIndex device : range) found.push_back(device.number());
        return found;
    };
    const Devices devices = test::cpu_devices(3);
    CHECK(numbers(devices.indices()) == std::vector<int>{0, 1, 2});
    CHECK(numbers(devices.others()) == std::vector<int>{1, 2});
    CHECK(numbers(test::cpu_devices(1).others()).empty());
    CHECK(numbers({1, 0}).empty());
    CHECK(devices[*devices.others().begin()] == devices[1]);
}

TEST_CASE("lanes cover all shards in order, one after another on their device") {
    for (int devices = 1; devices <= 8; ++devices)
        for (const int shards : {1, 2, 5, 8, 13}) {
            int next = 0;
            for (const Lane& lane : place_shards(test::cpu_devices(devices), {0, shards}, 1)) {
                CHECK(lane.shards.first == next);
                next = lane.shards.last;
                const ShardRange run = run_of(lane.device.number(), devices, shards);
                CHECK(lane.shards.first >= run.first);
                CHECK(lane.shards.last <= run.last);
            }
            CHECK(next == shards);
        }
}
