#include "lockstep/parallel/program/passes.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/ops/internal/nn_operations.h"
#include "lockstep/parallel/program/dependence.h"
#include "lockstep/runtime/internal/core_operations.h"
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

/// A conversion of a gradient that may run later.
struct GradientCast {
    Operand from, to;
    std::optional<Record> maker;  ///< replaces the record: computes `from`
};

class GatheredCasts {
public:
    explicit GatheredCasts(ShardProgram& program) : program_(program) {
        for (const Record& record : program.records) {
            for (const Operand& in : record.in) ++uses_[in.buffer.get()].reads;
            for (const Operand& out : record.out) ++uses_[out.buffer.get()].writes;
        }
        for (const Delivery& delivery : program.deliveries) ++uses_[delivery.gradient.buffer.get()].deliveries;
    }

    void run() {
        if (std::none_of(program_.records.begin(), program_.records.end(), is_widened)) return;
        for (std::size_t i = 0; i < program_.records.size(); ++i) {
            Record& record = program_.records[i];
            std::optional<GradientCast> cast;
            if (i >= program_.backward_begin) cast = take(record);
            if (!cast)
                made_.push_back(std::move(record));
            else if (cast->maker)
                made_.push_back(std::move(*cast->maker));
            places_.push_back(made_.size() - 1);
            if (cast) wait(std::move(*cast));
        }
        convert();
        program_.records = std::move(made_);
        for (Delivery& delivery : program_.deliveries) {
            const auto converted = converted_.find(delivery.gradient.buffer.get());
            delivery.ready = converted != converted_.end() ? converted->second : places_[delivery.ready];
        }
        std::stable_sort(program_.deliveries.begin(), program_.deliveries.end(),
                         [](const Delivery& a, const Delivery& b) { return a.ready < b.ready; });
    }

private:
    // A bucket of gradients, which waits for its conversions, has 25 MiB in f32.
    static constexpr std::size_t most_waiting = std::size_t{16} << 20;

    struct Uses {
        int reads = 0, writes = 0, deliveries = 0;
    };

    static bool is_widened(const Record& record) {
        const auto* weights = op_cast<Conv2dBackwardWeights>(*record.operation);
        return weights != nullptr && weights->widens;
    }
    bool is_written_once(const Operand& operand) const {
        return operand.buffer && operand.buffer->is_symbolic() && !operand.buffer->whole() &&
               uses_.at(operand.buffer.get()).writes == 1;
    }

    std::optional<GradientCast> take(const Record& record) const {
        if (!is_widened(record) && op_cast<Reorder>(*record.operation) == nullptr) return std::nullopt;
        const Operand& to = record.out[0];
        const Uses& uses = uses_.at(to.buffer.get());
        const bool is_gradient = is_written_once(to) && uses.reads == 0 && uses.deliveries == 1;
        if (!is_gradient || to.meta.dtype != DType::f32 || !to.meta.is_contiguous()) return std::nullopt;
        if (is_widened(record)) return take_weights(record);
        const Operand& from = record.in[0];
        if (!is_half_type(from.meta.dtype) || from.meta.opaque || !is_written_once(from)) return std::nullopt;
        if (!from.meta.is_contiguous() || !is_supported(from, to)) return std::nullopt;
        return GradientCast{from, to, std::nullopt};
    }
    /// Weights are computed in the order of the backend, which the conversion changes as well.
    std::optional<GradientCast> take_weights(const Record& record) const {
        const Operand& to = record.out[0];
        const Shape& shape = to.meta.shape;
        const std::int64_t taps = shape[2] * shape[3];
        TensorMeta rows = TensorMeta::contiguous(record.in[0].meta.dtype, shape), last = rows;
        last.strides = Shape{taps * shape[1], 1, shape[3] * shape[1], shape[1]};
        for (const TensorMeta& order : {last, rows}) {
            if (order.strides == last.strides && (taps == 1 || shape[1] == 1)) continue;
            const Operand from{program_.trace->buffer(order.bytes()), order, nullptr};
            if (!is_supported(from, to)) continue;
            std::vector<Operand> out = record.out;
            out[0] = from;
            const auto* weights = op_cast<Conv2dBackwardWeights>(*record.operation);
            auto maker = make_record(make_operation(Conv2dBackwardWeights{weights->geometry}), record.in,
                                     std::move(out), record.call, program_.trace->settings());
            if (maker) return GradientCast{from, to, std::move(maker)};
        }
        return std::nullopt;
    }
    bool is_supported(const Operand& from, const Operand& to) const {
        return make_record(make_operation(CastParameters{}), {from}, {to}, nullptr, program_.trace->settings())
            .has_value();
    }

    void wait(GradientCast cast) {
        if (!waiting_.empty() && waiting_.front().from.meta.dtype != cast.from.meta.dtype) convert();
        waiting_bytes_ += cast.from.meta.bytes();
        waiting_.push_back(std::move(cast));
        if (waiting_bytes_ >= most_waiting) convert();
    }
    /// Converts the gradients that wait.
    void convert() {
        if (waiting_.empty()) return;
        std::vector<Operand> in, out;
        for (const GradientCast& cast : waiting_) {
            in.push_back(cast.from);
            out.push_back(cast.to);
            converted_[cast.to.buffer.get()] = made_.size();
        }
        made_.push_back(*make_record(make_operation(CastParameters{}), std::move(in), std::move(out), nullptr,
                                     program_.trace->settings()));
        waiting_.clear();
        waiting_bytes_ = 0;
    }

    ShardProgram& program_;
    std::map<const Buffer*, Uses> uses_;
    std::vector<GradientCast> waiting_;
    std::size_t waiting_bytes_ = 0;
    std::vector<Record> made_;
    std::vector<std::size_t> places_;                 ///< index in made_ of the last record so far, by old record
    std::map<const Buffer*, std::size_t> converted_;  ///< records that write gradients
};

}  // namespace

void gather_gradient_casts(ShardProgram& program) { GatheredCasts(program).run(); }

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
