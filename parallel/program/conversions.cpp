#include "lockstep/parallel/program/passes.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "lockstep/runtime/internal/core_operations.h"

namespace lockstep {

namespace {

class Sharing {
public:
    explicit Sharing(ShardProgram& program)
        : program_(program), lasting_(program.lasting_results()), erased_(program.records.size(), false) {
        for (const Record& record : program.records)
            for (const Operand& out : record.out) ++writers_[out.buffer.get()];
        for (const Operand& input : program.inputs) inputs_.insert(input.buffer.get());
    }

    void run() {
        for (std::size_t i = 0; i < program_.records.size(); ++i) {
            for (Operand& in : program_.records[i].in)
                if (const auto found = moved_.find(in.buffer.get()); found != moved_.end()) in.buffer = found->second;
            if (!is_conversion(program_.records[i])) continue;
            if (const Record* const same = earlier(i)) {
                moved_[program_.records[i].out[0].buffer.get()] = same->out[0].buffer;
                erased_[i] = true;
                continue;
            }
            const Record& record = program_.records[i];
            made_.push_back(i);
            if (inputs_.contains(record.in[0].buffer.get())) inputs_.insert(record.out[0].buffer.get());
        }
        program_.erase_records(erased_);
    }

private:
    bool is_written_once(const Operand& operand) const {
        const auto found = writers_.find(operand.buffer.get());
        return found == writers_.end() || found->second <= 1;
    }
    /// Whether the record makes a tensor that only records of this shard read.
    bool is_conversion(const Record& record) const {
        if (op_cast<Reorder>(*record.operation) == nullptr) return false;
        const Operand &from = record.in[0], &to = record.out[0];
        return from.buffer && to.buffer && to.buffer->is_symbolic() && to.meta.offset == 0 && is_written_once(from) &&
               is_written_once(to) && !lasting_.contains(to.buffer.get());
    }
    /// An earlier record that makes the same tensor.
    const Record* earlier(std::size_t index) const {
        const Operand &from = program_.records[index].in[0], &to = program_.records[index].out[0];
        for (const std::size_t i : made_) {
            const Record& record = program_.records[i];
            const bool together = i >= program_.backward_begin || index < program_.commit_begin;
            if (!together && !inputs_.contains(from.buffer.get())) continue;
            if (record.in[0].buffer == from.buffer && record.in[0].meta.same_layout(from.meta) &&
                record.in[0].meta.offset == from.meta.offset && record.out[0].meta.same_layout(to.meta))
                return &record;
        }
        return nullptr;
    }

    ShardProgram& program_;
    std::set<const Buffer*> lasting_;
    std::set<const Buffer*> inputs_;  ///< inputs of the program, and conversions of these
    std::map<const Buffer*, int> writers_;
    std::map<const Buffer*, std::shared_ptr<Buffer>> moved_;
    std::vector<std::size_t> made_;  ///< conversions that are kept
    std::vector<bool> erased_;
};

}  // namespace

void share_conversions(ShardProgram& program) { Sharing(program).run(); }

}  // namespace lockstep
