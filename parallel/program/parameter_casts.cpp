#include "lockstep/parallel/program/parameter_casts.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <tuple>
#include <utility>

#include "lockstep/runtime/internal/core_operations.h"

namespace lockstep {

namespace {

/// Whether `operand` is all of its buffer and strided, in any order of elements.
bool fills_buffer(const Operand& operand) {
    const TensorMeta& meta = operand.meta;
    return operand.buffer && !meta.opaque && meta.offset == 0 && operand.buffer->bytes() == meta.bytes() &&
           meta.bytes() == static_cast<std::size_t>(meta.numel()) * size_of(meta.dtype);
}

class Taking {
public:
    Taking(ShardProgram& program, const ParameterStore& store)
        : program_(program), kept_(program.lasting_results()), removed_(program.records.size(), false) {
        for (std::size_t a = 0; a < store.parameters().size(); ++a)
            for (std::size_t i = 0; i < store.parameters()[a].segments.size(); ++i)
                parameters_[store.tensor(store.parameters()[a].segments[i]).impl()->storage->buffer.get()] = {
                    static_cast<int>(a), static_cast<int>(i)};
    }

    void run() {
        for (std::size_t i = 0; i < program_.records.size(); ++i) take(i);
        redirect();
        for (Taken& cast : casts_) reorder(cast);
        redirect();
        for (const Taken& cast : casts_)
            program_.casts.push_back({cast.parameter, cast.made.meta, cast.made.buffer->trace_id()});
        program_.erase_records(removed_);
    }

private:
    struct Taken {
        ParameterId parameter;
        Operand from, made;
    };

    bool is_commit(std::size_t record) const {
        return record >= program_.commit_begin && record < program_.backward_begin;
    }
    /// Whether the record does nothing but convert, and only this shard's work reads its result.
    bool is_conversion(std::size_t index) const {
        const Record& record = program_.records[index];
        if (is_commit(index) || op_cast<Reorder>(*record.operation) == nullptr) return false;
        const Operand& to = record.out[0];
        return fills_buffer(record.in[0]) && fills_buffer(to) && to.buffer->is_symbolic() &&
               !kept_.contains(to.buffer.get());
    }
    /// Whether the backend can make the copy together with others.
    bool is_supported(const Operand& from, const Operand& to) const {
        return make_record(make_operation(CastParameters{}), {from}, {to}, nullptr, program_.trace->settings())
            .has_value();
    }

    void take(std::size_t index) {
        if (!is_conversion(index)) return;
        const Operand &from = program_.records[index].in[0], &to = program_.records[index].out[0];
        const auto parameter = parameters_.find(from.buffer.get());
        if (parameter == parameters_.end() || !from.meta.is_contiguous()) return;
        if (!is_half_type(to.meta.dtype) && to.meta.is_contiguous()) return;
        const auto other = std::find_if(casts_.begin(), casts_.end(), [&](const Taken& cast) {
            return cast.parameter == parameter->second && cast.made.meta.dtype == to.meta.dtype;
        });
        if (other == casts_.end()) {
            if (!is_supported(from, to)) return;
            casts_.push_back({parameter->second, from, to});
        } else {
            const bool in_order = other->made.meta.is_contiguous() && to.meta.is_contiguous();
            if (!in_order && !other->made.meta.same_layout(to.meta)) return;
            moved_[to.buffer.get()] = other->made.buffer;
        }
        removed_[index] = true;
    }

    /// Makes the copy in the order in which all of its users read it, if they read it in one order.
    void reorder(Taken& cast) {
        std::vector<std::size_t> users;
        for (std::size_t i = 0; i < program_.records.size(); ++i)
            for (const Operand& in : program_.records[i].in)
                if (in.buffer == cast.made.buffer) users.push_back(i);
        if (users.empty()) return;
        const Operand wanted = program_.records[users.front()].out[0];
        const bool all = std::all_of(users.begin(), users.end(), [&](std::size_t i) {
            return is_conversion(i) && program_.records[i].out[0].meta.same_layout(wanted.meta);
        });
        if (!all || wanted.meta.dtype != cast.made.meta.dtype) return;
        const Operand made{cast.made.buffer, wanted.meta, nullptr};
        Operand from = cast.from;
        from.meta = TensorMeta::contiguous(from.meta.dtype, wanted.meta.shape);
        if (!is_supported(from, made)) return;
        cast.made = made;
        for (const std::size_t i : users) {
            moved_[program_.records[i].out[0].buffer.get()] = made.buffer;
            removed_[i] = true;
        }
    }

    /// Lets the users of dropped copies read those that are kept.
    void redirect() {
        if (moved_.empty()) return;
        for (std::size_t i = 0; i < program_.records.size(); ++i)
            for (Operand& in : program_.records[i].in)
                if (const auto found = moved_.find(in.buffer.get()); found != moved_.end()) in.buffer = found->second;
        moved_.clear();
    }

    ShardProgram& program_;
    std::set<const Buffer*> kept_;
    std::map<const Buffer*, ParameterId> parameters_;
    std::vector<Taken> casts_;
    std::map<const Buffer*, std::shared_ptr<Buffer>> moved_;
    std::vector<bool> removed_;
};

}  // namespace

void take_parameter_casts(ShardProgram& program, const ParameterStore& store) { Taking(program, store).run(); }

std::vector<CastRange> cast_ranges(const std::vector<const ShardProgram*>& programs,
                                   const std::vector<ArenaLayout>& arenas) {
    std::map<std::tuple<DType, int, int>, TensorMeta> wanted;
    for (const ShardProgram* program : programs)
        for (const ParameterCast& cast : program->casts)
            wanted.emplace(std::tuple(cast.meta.dtype, cast.parameter.arena, cast.parameter.number), cast.meta);
    // Elements that are converted in less time than another kernel takes to start.
    constexpr std::int64_t longest_gap = 16 * 1024;
    std::vector<CastRange> ranges;
    for (const auto& [key, meta] : wanted) {
        const auto [dtype, arena, number] = key;
        const ArenaSegment& segment =
            arenas[static_cast<std::size_t>(arena)].segments[static_cast<std::size_t>(number)];
        CastRange range{arena, dtype, segment.begin, segment.end};
        if (!meta.is_contiguous()) range.arranged = meta;
        CastRange* const last = ranges.empty() ? nullptr : &ranges.back();
        if (last && !last->arranged && !range.arranged && last->dtype == dtype && last->arena == arena &&
            range.begin - last->end <= longest_gap)
            last->end = range.end;
        else
            ranges.push_back(std::move(range));
    }
    return ranges;
}

bool casts_agree(const ShardProgram& a, const ShardProgram& b) {
    return std::all_of(a.casts.begin(), a.casts.end(), [&](const ParameterCast& one) {
        return std::all_of(b.casts.begin(), b.casts.end(), [&](const ParameterCast& other) {
            return one.parameter != other.parameter || one.meta.dtype != other.meta.dtype ||
                   one.meta.same_layout(other.meta);
        });
    });
}

}  // namespace lockstep
