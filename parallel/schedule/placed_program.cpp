#include "lockstep/parallel/schedule/placed_program.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <set>

#include "lockstep/parallel/schedule/program_placer.h"
#include "lockstep/runtime/error.h"

namespace lockstep {

namespace {

bool has_gradients(const BatchProgram& batch) { return batch.pass == Pass::training || batch.pass == Pass::step; }

FirstNode first_node(const UpdatePlan& update) {
    if (update.adds) return FirstNode::slots;
    return update.accumulate ? FirstNode::beside_root : FirstNode::gradients;
}

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
                    batch.cut.chunk, batch.cut.rows_of(batch.cut.end - 1)));
}

/// As DDP, unless told to find them.
void require_all_used(const EngineContext& context, const std::set<std::pair<int, int>>& used) {
    if (!context.job || context.find_unused || context.static_graph) return;
    std::string unused;
    for (std::size_t a = 0; a < context.store->parameters().size(); ++a) {
        const auto& segments = context.store->parameters()[a].segments;
        for (std::size_t i = 0; i < segments.size(); ++i)
            if (context.store->tensor(segments[i]).requires_grad() &&
                !used.contains({static_cast<int>(a), static_cast<int>(i)}))
                unused += (unused.empty() ? "" : ", ") + segments[i].name;
    }
    if (!unused.empty())
        throw InvalidArgument(
            fmt::format("rank {}: parameters that get no gradient: {}; use them in forward, freeze them "
                        "(requires_grad_(false)), or "
                        "set find_unused_parameters",
                        context.rank(), unused));
}

void require_static(EngineContext& context, const std::set<std::pair<int, int>>& used) {
    if (!context.job || !context.static_graph) return;
    if (!context.used_parameters) context.used_parameters = used;
    std::vector<std::pair<int, int>> changed;
    std::set_symmetric_difference(used.begin(), used.end(), context.used_parameters->begin(),
                                  context.used_parameters->end(), std::back_inserter(changed));
    if (changed.empty()) return;
    const auto [arena, segment] = changed.front();
    throw InvalidArgument(fmt::format(
        "rank {}: the training graph has changed: {} {} a gradient now and {} at first, which static_graph rules out; "
        "use the same parameters in every step, or set find_unused_parameters instead",
        context.rank(),
        context.store->parameters()[static_cast<std::size_t>(arena)].segments[static_cast<std::size_t>(segment)].name,
        used.contains(changed.front()) ? "gets" : "does not get", used.contains(changed.front()) ? "did not" : "did"));
}

std::set<std::pair<int, int>> parameters_of(EngineContext& context, const BatchProgram& batch,
                                            const UsedParameters* used) {
    if (!has_gradients(batch)) return {};
    require_same_deliveries(*context.store, batch);
    auto own = delivered(*batch.full);
    require_all_used(context, own);
    require_static(context, own);
    return used ? used->parameters() : own;
}

/// In the order in which backward finishes them.
std::vector<Bucket> buckets_of(const EngineContext& context, const BatchProgram& batch,
                               const std::set<std::pair<int, int>>& parameters, const UsedParameters* used) {
    auto buckets = context.cut->buckets([&](int arena, int segment) { return parameters.contains({arena, segment}); });
    const auto moment = [&](const Bucket& bucket) {
        return used ? used->moment(bucket) : ready_after(context, batch, bucket).full;
    };
    std::stable_sort(buckets.begin(), buckets.end(),
                     [&](const Bucket& a, const Bucket& b) { return moment(a) < moment(b); });
    return buckets;
}

/// Each behind those before it; where ranks run different programs, between the same operations over all shards, too.
std::vector<Readiness> readiness_of(const EngineContext& context, const BatchProgram& batch,
                                    const std::vector<Bucket>& buckets, const UsedParameters* used) {
    std::vector<Readiness> all;
    Readiness ready;
    for (const Bucket& bucket : buckets) {
        const Readiness own = ready_after(context, batch, bucket);
        ready = {std::max(ready.full, own.full), std::max(ready.last, own.last)};
        if (used) {
            const int spans = used->spans_before(bucket);
            ready.full = std::max(ready.full, record_of_span(*batch.full, spans));
            ready.last = std::max(ready.last, record_of_span(*batch.last, spans));
        }
        all.push_back(ready);
    }
    return all;
}

}  // namespace

PlacedProgram::PlacedProgram(EngineContext& context, const ConstantCache& constants,
                             std::shared_ptr<const BatchProgram> batch, UpdatePlan update, const UsedParameters* used)
    : batch_(std::move(batch)),
      sums_(has_gradients(*batch_)
                ? std::optional<PartialSums>(std::in_place, context, batch_->cut.present, first_node(update))
                : std::nullopt),
      parameters_(parameters_of(context, *batch_, used)),
      buckets_(buckets_of(context, *batch_, parameters_, used)),
      ready_(readiness_of(context, *batch_, buckets_, used)),
      memory_(context, constants, *batch_, sums_ ? &*sums_ : nullptr, buckets_, ready_),
      context_(context) {
    ProgramPlacer(*this, context, update).place();
    schedule_.put_off_calls(0, forward_end_);
    schedule_.put_off_calls(forward_end_, schedule_.size());
}

std::shared_ptr<Instance> PlacedProgram::acquire() {
    for (const auto& instance : instances_)
        if (instance.use_count() == 1) return instance;
    std::vector<std::shared_ptr<Buffer>> workspaces;
    workspaces.resize(static_cast<std::size_t>(batch_->held.first));  // of other processes
    for (int shard = batch_->held.first; shard < batch_->held.last; ++shard)
        workspaces.push_back(
            Buffer::allocate(context_.compute(context_.lane_of(shard)), memory_.workspace_bytes(shard), "activations"));
    return instances_.emplace_back(std::make_shared<Instance>(schedule_, std::move(workspaces)));
}

bool PlacedProgram::in_use() const {
    return std::any_of(instances_.begin(), instances_.end(),
                       [](const auto& instance) { return instance.use_count() > 1; });
}

}  // namespace lockstep
