#include "lockstep/runtime/placement.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/shard_tree.h"
#include "lockstep/runtime/round_up.h"

namespace lockstep {

std::int64_t BatchCut::rows_of(int shard) const {
    const std::int64_t next = std::min(rows, (shard - first_shard + 1) * spacing);
    return std::clamp<std::int64_t>(next - own_row(shard), 0, chunk);
}

BatchCut cut_batch(std::int64_t rows, int shards) {
    if (rows < 1) throw InvalidArgument("a batch of 0 rows cannot be split into shards; expected at least one row");
    if (shards < 1) throw InvalidArgument(fmt::format("invalid number of shards ({}); expected at least one", shards));
    BatchCut cut;
    cut.rows = rows;
    cut.shards = shards;
    cut.chunk = ceil_div(rows, shards);
    cut.present = static_cast<int>(ceil_div(rows, cut.chunk));
    cut.spacing = cut.chunk;
    cut.end = cut.present;
    return cut;
}

BatchCut cut_own_rows(std::int64_t rows, int shards, ShardRange held, RankIndex rank) {
    if (held.empty())
        throw InvalidArgument(fmt::format("{} shards leave none for rank {}; expected at least as many shards as ranks",
                                          shards, rank.number()));
    BatchCut cut = cut_batch(rows, held.size());
    cut.first_shard = held.first;
    cut.end = cut.present + held.first;
    cut.base_row = rank.number() * rows;
    cut.shards = cut.present = shards;
    return cut;
}

std::vector<BatchCut> cut_microbatches(const BatchCut& batch, int accumulation_steps) {
    if (accumulation_steps < 1)
        throw InvalidArgument(fmt::format(
            "invalid number of accumulation steps ({}); expected a positive number, 1 for the whole batch at once",
            accumulation_steps));
    const std::int64_t piece = ceil_div(batch.chunk, accumulation_steps);
    std::vector<BatchCut> cuts;
    for (std::int64_t begin = 0; begin < batch.chunk; begin += piece) {
        BatchCut& cut = cuts.emplace_back(batch);
        cut.begin = begin;
        cut.chunk = std::min(piece, batch.chunk - begin);
        if (cut.rows_of(batch.present - 1) == 0) --cut.present;
        cut.end = cut.present;
    }
    return cuts;
}

ShardRange run_of(int index, int count, int shards) {
    const int length = shards / count;
    const int longer = shards % count;
    const int first = index * length + std::min(index, longer);
    return {first, first + length + (index < longer ? 1 : 0)};
}

namespace {

void collect(ShardRange node, ShardRange run, std::vector<ShardRange>& found) {
    if (node.last <= run.first || node.first >= run.last) return;
    if (node.first >= run.first && node.last <= run.last) {
        found.push_back(node);
        return;
    }
    const int middle = node.first + shard_split(node.size());
    collect({node.first, middle}, run, found);
    collect({middle, node.last}, run, found);
}

}  // namespace

std::vector<ShardRange> tree_nodes(ShardRange run, int present) {
    std::vector<ShardRange> nodes;
    run.last = std::min(run.last, present);
    if (!run.empty()) collect({0, present}, run, nodes);
    return nodes;
}

std::vector<Lane> place_shards(const Devices& devices, ShardRange held, int threads_per_shard) {
    std::vector<Lane> lanes;
    for (int d = 0; d < devices.size(); ++d) {
        const ShardRange run = run_of(d, devices.size(), held.size());
        const int cores = devices.kind() == DeviceKind::cpu ? device_info(devices[d]).units : 1;
        const int count = std::max(1, std::min(cores / std::max(1, threads_per_shard), run.size()));
        for (int lane = 0; lane < count; ++lane) {
            const ShardRange part = run_of(lane, count, run.size());
            const int first = held.first + run.first;
            lanes.push_back({DeviceIndex(d), lane, {first + part.first, first + part.last}});
        }
    }
    return lanes;
}

}  // namespace lockstep
