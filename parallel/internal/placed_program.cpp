#include "lockstep/parallel/internal/placed_program.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "lockstep/parallel/internal/program_placer.h"
#include "lockstep/runtime/error.h"

namespace lockstep {

namespace {

bool has_gradients(const BatchProgram& batch) { return batch.pass == Pass::training || batch.pass == Pass::step; }

std::set<std::pair<int, int>> delivered(const ShardProgram& program) {
    std::set<std::pair<int, int>> places;
    for (const Delivery& delivery : program.deliveries) places.emplace(delivery.arena, delivery.segment);
    return places;
}

void require_same_deliveries(const ParameterStore& store, const BatchProgram& batch) {
    const auto full = delivered(*batch.full);
    const auto last = delivered(*batch.last);
    for (const auto* side : {&full, &last})
        for (const auto& [arena, segment] : *side)
            if (!full.contains({arena, segment}) || !last.contains({arena, segment}))
                throw InvalidArgument(fmt::format(
                    "parameter {} gets a gradient in shards of {} rows or of {} rows, but not in both; forward "
                    "must use the same parameters for all shards of a batch",
                    store.parameters()[static_cast<std::size_t>(arena)]
                        .segments[static_cast<std::size_t>(segment)]
                        .name,
                    batch.cut.chunk, batch.cut.rows_of(batch.cut.present - 1)));
}

}  // namespace

std::vector<Bucket> make_buckets(const ParameterStore& store, std::size_t bytes, const SegmentFilter& taken) {
    std::vector<Bucket> buckets;
    for (std::size_t a = 0; a < store.parameters().size(); ++a) {
        const ArenaLayout& arena = store.parameters()[a];
        std::size_t i = 0;
        while (i < arena.segments.size()) {
            Bucket whole;
            whole.arena = static_cast<int>(a);
            whole.whole_begin = arena.segments[i].begin;
            std::size_t end = i;
            do whole.whole_end = arena.segments[end++].end;
            while (end < arena.segments.size() &&
                   static_cast<std::size_t>(whole.whole_end - whole.whole_begin) * size_of(arena.dtype) < bytes);
            bool open = false;
            for (; i < end; ++i) {
                const ArenaSegment& segment = arena.segments[i];
                const bool wanted = taken(static_cast<int>(a), static_cast<int>(i));
                if (wanted && !open) {
                    buckets.push_back(whole);
                    buckets.back().begin = segment.begin;
                    buckets.back().first_segment = static_cast<int>(i);
                }
                if (wanted) {
                    buckets.back().end = segment.end;
                    buckets.back().last_segment = static_cast<int>(i) + 1;
                }
                open = wanted;
            }
        }
    }
    return buckets;
}

PlacedProgram::PlacedProgram(EngineContext& context, const ConstantCache& constants,
                             std::shared_ptr<const BatchProgram> batch, UpdatePlan update)
    : batch_(std::move(batch)),
      nodes_(has_gradients(*batch_) ? gradient_nodes(context, batch_->cut.present, !update.optimizer)
                                    : std::vector<GradientNode>()),
      memory_(context, constants, *batch_, nodes_),
      context_(context),
      has_momentum_(update.optimizer && update.optimizer->has_momentum()) {
    if (has_gradients(*batch_)) {
        require_same_deliveries(*context.store, *batch_);
        buckets_ = make_buckets(*context.store, context.bucket_bytes,
                                [places = delivered(*batch_->full)](int arena, int segment) {
                                    return places.contains({arena, segment});
                                });
    }
    ProgramPlacer(*this, context, update).place();
}

std::shared_ptr<Instance> PlacedProgram::acquire() {
    if (!free_.empty()) {
        auto instance = std::move(free_.back());
        free_.pop_back();
        return instance;
    }
    std::vector<std::shared_ptr<Buffer>> workspaces;
    for (int shard = 0; shard < batch_->cut.present; ++shard)
        workspaces.push_back(
            Buffer::allocate(context_.compute(context_.lane_of(shard)), memory_.workspace_bytes(shard), "activations"));
    return std::make_shared<Instance>(schedule_, std::move(workspaces));
}

}  // namespace lockstep
