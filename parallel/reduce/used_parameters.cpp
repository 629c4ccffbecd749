#include "lockstep/parallel/reduce/used_parameters.h"

#include <algorithm>

#include "lockstep/parallel/comm/group/communicator.h"
#include "lockstep/parallel/reduce/readiness.h"

namespace lockstep {

namespace {

std::int64_t spans_until(const ShardProgram& program, long last) {
    std::int64_t spans = 0;
    for (auto i = static_cast<long>(program.backward_begin); i <= last; ++i)
        spans += is_cross_shard(program.records[static_cast<std::size_t>(i)]) ? 1 : 0;
    return spans;
}

}  // namespace

UsedParameters::UsedParameters(const EngineMemory& memory, const BatchProgram& batch) : first_{0} {
    const std::vector<ArenaLayout>& layouts = memory.store()->parameters();
    for (const ArenaLayout& layout : layouts) first_.push_back(first_.back() + layout.segments.size());
    numbers_.assign(2 * first_.back(), 0);
    if (!batch.held.empty())
        for (const Delivery& delivery : batch.full->deliveries) add(delivery.parameter);
    for (std::size_t a = 0; a < layouts.size(); ++a)
        for (std::size_t i = 0; i < layouts[a].segments.size(); ++i) {
            const ArenaSegment& segment = layouts[a].segments[i];
            const ParameterId parameter{static_cast<int>(a), static_cast<int>(i)};
            const RecordPair ready =
                ready_after(memory, batch,
                            {parameter.arena, 0, segment.begin, segment.end, parameter.number, parameter.number + 1});
            const std::int64_t spans =
                std::max(spans_until(*batch.full, ready.full), spans_until(*batch.last, ready.last));
            numbers_[first_.back() + index(parameter)] = (spans << bits_of_record) + ready.full + 1;
        }
}

void UsedParameters::use_none() { std::fill_n(numbers_.begin(), first_.back(), 0); }

void UsedParameters::bring_together(Communicator& ranks) {
    ranks.all_reduce(numbers_.data(), numbers_.size(), DType::i64, ReduceOp::max);
    for (std::size_t i = 0; i < first_.back(); ++i)  // an unused parameter's moment must not change the program
        if (numbers_[i] == 0) numbers_[first_.back() + i] = 0;
}

std::set<ParameterId> UsedParameters::parameters() const {
    std::set<ParameterId> found;
    for (std::size_t a = 0; a + 1 < first_.size(); ++a)
        for (std::size_t i = first_[a]; i < first_[a + 1]; ++i)
            if (numbers_[i] != 0) found.insert({static_cast<int>(a), static_cast<int>(i - first_[a])});
    return found;
}

std::int64_t UsedParameters::moment(const Bucket& bucket) const {
    const auto begin = numbers_.begin() + static_cast<std::ptrdiff_t>(first_.back());
    return *std::max_element(begin + static_cast<std::ptrdiff_t>(index({bucket.arena, bucket.first_segment})),
                             begin + static_cast<std::ptrdiff_t>(index({bucket.arena, bucket.last_segment})));
}

long record_of_span(const ShardProgram& program, int count) {
    long last = static_cast<long>(program.backward_begin) - 1;
    for (std::size_t i = program.backward_begin; i < program.records.size() && count > 0; ++i)
        if (is_cross_shard(program.records[i])) {
            last = static_cast<long>(i);
            --count;
        }
    return last;
}

}  // namespace lockstep
