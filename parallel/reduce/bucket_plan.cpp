#include "lockstep/parallel/reduce/bucket_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/parallel/reduce/readiness.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/log.h"

namespace lockstep {

namespace {

void require_same_deliveries(const ParameterStore& store, const BatchProgram& batch) {
    const auto full = batch.full->delivered(), last = batch.last->delivered();
    for (const auto* side : {&full, &last})
        for (const ParameterId parameter : *side)
            if (!full.contains(parameter) || !last.contains(parameter))
                throw InvalidArgument(fmt::format(
                    "parameter {} gets a gradient in shards of {} rows or of {} rows, but not in both; forward "
                    "must use the same parameters for all shards of a batch",
                    store.segment(parameter).name, batch.cut.chunk, batch.cut.rows_of(batch.cut.end - 1)));
}

}  // namespace

BucketPlan::BucketPlan(const EngineMemory& memory, const ReductionMemory& reduction, Ranks& ranks,
                       const BatchProgram& batch, const UsedParameters* used) {
    require_same_deliveries(*memory.store(), batch);
    const std::set<ParameterId> own = batch.full->delivered();
    ranks.require_allowed(own, *memory.store());
    parameters = used ? used->parameters() : own;
    buckets = reduction.cut().buckets([&](ParameterId parameter) { return parameters.contains(parameter); });
    const auto moment = [&](const Bucket& bucket) -> std::int64_t {
        return used ? used->moment(bucket) : ready_after(memory, batch, bucket).full;
    };
    std::stable_sort(buckets.begin(), buckets.end(),
                     [&](const Bucket& a, const Bucket& b) { return moment(a) < moment(b); });
    // Each bucket after those before it. If ranks run different programs, also between the same operations over all
    // shards.
    RecordPair done;
    for (const Bucket& bucket : buckets) {
        const RecordPair own_records = ready_after(memory, batch, bucket);
        done = {std::max(done.full, own_records.full), std::max(done.last, own_records.last)};
        if (used) {
            const int spans = used->spans_before(bucket);
            done.full = std::max(done.full, record_of_span(*batch.full, spans));
            done.last = std::max(done.last, record_of_span(*batch.last, spans));
        }
        ready.push_back(done);
    }
    log_message(LogLevel::debug, [&] {
        return fmt::format("buckets for the gradients of {} parameters: {}", parameters.size(), buckets.size());
    });
}

}  // namespace lockstep
