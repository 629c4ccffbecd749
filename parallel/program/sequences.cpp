#include "lockstep/parallel/program/passes.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/ops/internal/sequence.h"
#include "lockstep/parallel/program/dependence.h"

namespace lockstep {

namespace {

/// Small records that run one after the other in place of the first of them.
struct Run {
    std::vector<std::size_t> records;
    Sequence sequence;
    DType dtype;
};

class Gathering {
public:
    explicit Gathering(ShardProgram& program) : program_(program), erased_(program.records.size(), false) {}

    void run() {
        gather(0, program_.commit_begin);
        gather(program_.backward_begin, program_.records.size());
        program_.erase_records(erased_);
    }

private:
    void gather(std::size_t begin, std::size_t end) {
        std::optional<Run> open;
        for (std::size_t i = begin; i < end; ++i) {
            const std::optional<SequenceStep> step = step_of(program_.records[i]);
            if (!step) continue;
            const DType dtype = program_.records[i].out[0].meta.dtype;
            if (open && (open->dtype != dtype || !may_join(*open, i))) close(open);
            if (!open) open = Run{{}, {}, dtype};
            open->records.push_back(i);
            open->sequence.steps.push_back(*step);
        }
        close(open);
    }

    /// Whether the record may run before those that the run skips.
    bool may_join(const Run& run, std::size_t index) const {
        for (std::size_t i = run.records.front() + 1; i < index; ++i)
            if (!std::binary_search(run.records.begin(), run.records.end(), i) &&
                depend(program_.records[i], program_.records[index]))
                return false;
        return true;
    }

    void close(std::optional<Run>& run) {
        if (run && run->records.size() > 1) {
            std::vector<Operand> in, out;
            for (const std::size_t i : run->records) {
                const Record& record = program_.records[i];
                in.insert(in.end(), record.in.begin(), record.in.end());
                out.push_back(record.out[0]);
            }
            Record& first = program_.records[run->records.front()];
            if (auto made = make_record(make_operation(std::move(run->sequence)), std::move(in), std::move(out),
                                        first.call, program_.trace->settings())) {
                first = std::move(*made);
                for (std::size_t i = 1; i < run->records.size(); ++i) erased_[run->records[i]] = true;
            }
        }
        run.reset();
    }

    ShardProgram& program_;
    std::vector<bool> erased_;
};

}  // namespace

void gather_sequences(ShardProgram& program) { Gathering(program).run(); }

}  // namespace lockstep
