#include "lockstep/parallel/program/parameter_casts.h"

#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "lockstep/runtime/internal/core_operations.h"

namespace lockstep {

namespace {

/// Whether `operand` is all of its buffer, row-major.
bool is_whole(const Operand& operand) {
    return operand.buffer && !operand.meta.opaque && operand.meta.is_contiguous() && operand.meta.offset == 0 &&
           operand.buffer->bytes() == operand.meta.bytes();
}

}  // namespace

std::vector<ParameterCast> take_parameter_casts(std::vector<Record>& records, const std::vector<Record>& commits,
                                                const std::vector<Operand>& outputs, const ParameterStore& store) {
    std::map<const Buffer*, ParameterId> parameters;
    for (std::size_t a = 0; a < store.parameters().size(); ++a)
        for (std::size_t i = 0; i < store.parameters()[a].segments.size(); ++i)
            parameters[store.tensor(store.parameters()[a].segments[i]).impl()->storage->buffer.get()] = {
                static_cast<int>(a), static_cast<int>(i)};
    std::set<const Buffer*> kept;
    for (const Operand& output : outputs) kept.insert(output.buffer.get());
    const auto keep_inputs = [&](const Record& record) {
        for (const Operand& in : record.in) kept.insert(in.buffer.get());
    };
    for (const Record& record : commits) keep_inputs(record);
    for (const Record& record : records)
        if (spans_shards(record)) keep_inputs(record);

    std::vector<ParameterCast> casts;
    std::erase_if(records, [&](const Record& record) {
        if (op_cast<Reorder>(*record.operation) == nullptr) return false;
        const Operand &from = record.in[0], &to = record.out[0];
        const auto parameter = parameters.find(from.buffer.get());
        if (parameter == parameters.end() || !is_whole(from) || !is_whole(to) || !to.buffer->is_symbolic() ||
            !is_half_type(to.meta.dtype) || kept.contains(to.buffer.get()))
            return false;
        casts.push_back({parameter->second, to.meta.dtype, to.buffer->trace_id()});
        return true;
    });
    return casts;
}

std::vector<CastRange> cast_ranges(const std::vector<const ShardProgram*>& programs,
                                   const std::vector<ArenaLayout>& arenas) {
    std::set<std::tuple<DType, int, int>> wanted;
    for (const ShardProgram* program : programs)
        for (const ParameterCast& cast : program->casts)
            wanted.emplace(cast.dtype, cast.parameter.arena, cast.parameter.number);
    // Elements that are converted in less time than another kernel takes to start.
    constexpr std::int64_t longest_gap = 16 * 1024;
    std::vector<CastRange> ranges;
    for (const auto& [dtype, arena, number] : wanted) {
        const ArenaSegment& segment =
            arenas[static_cast<std::size_t>(arena)].segments[static_cast<std::size_t>(number)];
        if (!ranges.empty() && ranges.back().dtype == dtype && ranges.back().arena == arena &&
            segment.begin - ranges.back().end <= longest_gap)
            ranges.back().end = segment.end;
        else
            ranges.push_back({arena, dtype, segment.begin, segment.end});
    }
    return ranges;
}

}  // namespace lockstep
