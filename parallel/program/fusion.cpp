#include "lockstep/parallel/program/passes.h"

#include <algorithm>
#include <map>
#include <optional>

#include "lockstep/ops/internal/fusion_rules.h"
#include "lockstep/runtime/record.h"

namespace lockstep {

namespace {

/// The records that write and use each buffer of a program.
class Uses {
public:
    explicit Uses(const ShardProgram& program) {
        for (std::size_t i = 0; i < program.records.size(); ++i) {
            for (const Operand& in : program.records[i].in) of_[in.buffer.get()].users.push_back(i);
            for (const Operand& out : program.records[i].out) of_[out.buffer.get()].writers.push_back(i);
        }
        for (const auto* side :
             {&program.inputs, &program.outputs, &program.output_gradients, &program.input_gradients})
            for (const Operand& operand : *side) of_[operand.buffer.get()].users.push_back(outside);
        for (const Operand* result : {&program.loss, &program.squares})
            of_[result->buffer.get()].users.push_back(outside);
        for (const Delivery& delivery : program.deliveries)
            of_[delivery.gradient.buffer.get()].users.push_back(outside);
    }

    /// The only record that writes `operand`, as a whole.
    std::optional<std::size_t> maker(const Operand& operand) const {
        const auto found = of_.find(operand.buffer.get());
        if (!operand.buffer || !operand.buffer->is_symbolic() || found == of_.end()) return std::nullopt;
        const auto& writers = found->second.writers;
        return writers.size() == 1 ? std::optional(writers.front()) : std::nullopt;
    }
    std::size_t writers(const Operand& operand) const { return of_.at(operand.buffer.get()).writers.size(); }
    bool used_once(const Operand& operand) const { return users(operand).size() == 1; }
    /// The records that use the buffer of `operand`, in order, once for each of their inputs; `outside` last.
    const std::vector<std::size_t>& users(const Operand& operand) const { return of_.at(operand.buffer.get()).users; }

    static constexpr std::size_t outside = static_cast<std::size_t>(-1);

private:
    struct Use {
        std::vector<std::size_t> writers, users;
    };
    std::map<const Buffer*, Use> of_;
};

class Fusion {
public:
    explicit Fusion(ShardProgram& program)
        : program_(program), uses_(program), removed_(program.records.size(), false) {}

    void fuse_neighbours() {
        for (std::size_t i = 0; i < program_.records.size(); ++i) fuse_with_maker(i);
        program_.erase_records(removed_);
    }
    void absorb() {
        for (std::size_t i = 0; i < program_.records.size(); ++i) absorb_into_users(i);
        program_.erase_records(removed_);
    }

private:
    Record& at(std::size_t index) { return program_.records[index]; }

    /// The record whose first and only result is `operand` and which has only one user.
    std::optional<std::size_t> sole_maker(const Operand& operand) const {
        const auto maker = uses_.maker(operand);
        if (!maker || removed_[*maker] || !uses_.used_once(operand)) return std::nullopt;
        const Record& record = program_.records[*maker];
        const bool only = std::all_of(record.out.begin() + 1, record.out.end(),
                                      [](const Operand& missing) { return !missing.buffer; });
        return only && same_memory(record.out[0], operand) ? maker : std::nullopt;
    }

    /// Fuses `later` with the record that creates its first input, if a rule describes their combination.
    void fuse_with_maker(std::size_t later) {
        if (at(later).in.empty()) return;
        const auto earlier = sole_maker(at(later).in[0]);
        if (!earlier) return;
        auto fused = fuse(neighbours(*earlier, later));
        if (fused && is_defined_before(*earlier, fused->in))
            replace(*earlier, later, std::move(fused->operation), std::move(fused->in));
    }

    Neighbours neighbours(std::size_t earlier, std::size_t later) {
        return {at(earlier), at(later), [this](const Operand& operand) {
                    const auto made_by = uses_.maker(operand);
                    return made_by ? &at(*made_by) : nullptr;
                }};
    }

    /// Lets all users of record `index` do its work, if rules describe that for each of them.
    void absorb_into_users(std::size_t index) {
        const Record& record = at(index);
        if (record.out.size() != 1 || uses_.maker(record.out[0]) != index) return;
        const std::vector<std::size_t>& users = uses_.users(record.out[0]);
        std::vector<Record> replaced;
        for (const std::size_t user : users) {
            if (user == Uses::outside) return;
            auto fused = lockstep::absorb(neighbours(index, user));
            if (!fused || !are_constant(fused->in)) return;
            auto made = make_record(std::move(fused->operation), std::move(fused->in), at(user).out, at(user).call,
                                    program_.trace->settings());
            if (!made) return;
            replaced.push_back(std::move(*made));
        }
        for (std::size_t i = 0; i < users.size(); ++i) at(users[i]) = std::move(replaced[i]);
        removed_[index] = !users.empty();
    }

    /// Whether a later record finds the same values in `operands`.
    bool are_constant(const std::vector<Operand>& operands) const {
        return std::all_of(operands.begin(), operands.end(),
                           [&](const Operand& operand) { return !operand.buffer || uses_.writers(operand) <= 1; });
    }

    /// Whether all operands that record `index` does not read itself are written before it runs.
    bool is_defined_before(std::size_t index, const std::vector<Operand>& operands) const {
        const std::vector<Operand>& read = program_.records[index].in;
        return std::all_of(operands.begin(), operands.end(), [&](const Operand& operand) {
            if (std::any_of(read.begin(), read.end(), [&](const Operand& in) { return same_memory(in, operand); }))
                return true;
            const auto made_by = uses_.maker(operand);
            return made_by && *made_by < index;
        });
    }

    /// Replaces record `first` by `operation`, which includes the work of record `second`.
    void replace(std::size_t first, std::size_t second, std::shared_ptr<const Operation> operation,
                 std::vector<Operand> in) {
        std::vector<Operand> out = at(first).out;
        out[0] = at(second).out[0];
        std::optional<Record> record = make_record(std::move(operation), std::move(in), std::move(out), at(first).call,
                                                   program_.trace->settings());
        if (!record) return;
        at(first) = std::move(*record);
        removed_[second] = true;
    }

    ShardProgram& program_;
    Uses uses_;
    std::vector<bool> removed_;  ///< records that are parts of others
};

}  // namespace

void fuse_neighbours(ShardProgram& program) {
    Fusion(program).fuse_neighbours();
    Fusion(program).absorb();
}

}  // namespace lockstep
