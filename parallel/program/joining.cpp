#include "lockstep/parallel/program/passes.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/parallel/program/dependence.h"
#include "lockstep/runtime/record.h"
#include "lockstep/runtime/signature.h"

namespace lockstep {

namespace {

/// Equal for records that can be performed as one: operation, attributes and types.
std::string kind_of(const Record& record) {
    Signature kind;
    kind.add(record.operation->name());
    record.operation->describe(kind);
    for (const auto* side : {&record.in, &record.out}) {
        kind.add(side->size());
        for (const Operand& operand : *side) kind.add(operand.buffer != nullptr).add(operand.meta.dtype);
    }
    return kind.bytes();
}

/// Records that become one.
struct Group {
    std::string kind;
    std::vector<Record> records;
};

/// Groups the records [first, last) of `records` so that they may run group by group.
std::vector<Group> grouped(std::vector<Record>& records, std::size_t first, std::size_t last) {
    std::vector<Group> groups;
    for (std::size_t i = first; i < last; ++i) {
        Record& record = records[i];
        std::string kind = record.operation->joins() ? kind_of(record) : std::string();
        // The first group of its kind that is after every group with a record that must run before.
        std::size_t place = groups.size();
        for (std::size_t g = groups.size(); g-- > 0;) {
            const bool waits = std::any_of(groups[g].records.begin(), groups[g].records.end(),
                                           [&](const Record& earlier) { return depend(earlier, record); });
            if (waits) break;
            if (!kind.empty() && groups[g].kind == kind) place = g;
        }
        if (place == groups.size()) groups.push_back({std::move(kind), {}});
        groups[place].records.push_back(std::move(record));
    }
    return groups;
}

/// One record that does the work of all, or all of them if the backend has no kernel for their layouts.
std::vector<Record> joined(std::vector<Record> all, const TraceSettings& settings) {
    if (all.size() < 2) return all;
    std::vector<Operand> in, out;
    for (const Record& each : all) {
        in.insert(in.end(), each.in.begin(), each.in.end());
        out.insert(out.end(), each.out.begin(), each.out.end());
    }
    std::optional<Record> record =
        make_record(all.front().operation, std::move(in), std::move(out), all.front().call, settings);
    if (!record) return all;
    return {std::move(*record)};
}

/// Joins within [first, last) of the program's records; returns the new end.
std::size_t join_range(ShardProgram& program, std::size_t first, std::size_t last) {
    std::vector<Record>& records = program.records;
    std::vector<Record> made;
    for (Group& group : grouped(records, first, last))
        for (Record& record : joined(std::move(group.records), program.trace->settings()))
            made.push_back(std::move(record));
    const auto begin = records.begin() + static_cast<std::ptrdiff_t>(first);
    records.erase(begin, records.begin() + static_cast<std::ptrdiff_t>(last));
    records.insert(records.begin() + static_cast<std::ptrdiff_t>(first), std::make_move_iterator(made.begin()),
                   std::make_move_iterator(made.end()));
    return first + made.size();
}

}  // namespace

void join_alike(ShardProgram& program) {
    const std::size_t commits = program.commit_begin;
    std::size_t spanning = commits;  // the records before the commits that span shards
    while (spanning > 0 && is_cross_shard(program.records[spanning - 1])) --spanning;
    const std::size_t backward = join_range(program, commits, program.backward_begin);
    const std::size_t end_of_spanning = join_range(program, spanning, commits);
    const std::size_t removed = (program.backward_begin - backward) + (commits - end_of_spanning);
    program.commit_begin = end_of_spanning;
    program.backward_begin = backward - (commits - end_of_spanning);
    for (Delivery& delivery : program.deliveries) delivery.ready -= removed;
}

}  // namespace lockstep
