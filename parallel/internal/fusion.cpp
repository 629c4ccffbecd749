#include "lockstep/parallel/internal/fusion.h"

#include <algorithm>
#include <map>
#include <optional>

#include "lockstep/ops/internal/convolution_operations.h"
#include "lockstep/ops/internal/pooling_operations.h"
#include "lockstep/ops/internal/unary_functions.h"
#include "lockstep/runtime/record.h"

namespace lockstep {

namespace {

/// Who writes and who uses each buffer of a program.
class Uses {
public:
    explicit Uses(const ShardProgram& program) {
        for (std::size_t i = 0; i < program.records.size(); ++i) {
            for (const Operand& in : program.records[i].in) ++of_[in.buffer.get()].users;
            for (const Operand& out : program.records[i].out) of_[out.buffer.get()].writers.push_back(i);
        }
        for (const auto* side :
             {&program.inputs, &program.outputs, &program.output_gradients, &program.input_gradients})
            for (const Operand& operand : *side) ++of_[operand.buffer.get()].users;
        ++of_[program.loss.buffer.get()].users;
        for (const Delivery& delivery : program.deliveries) ++of_[delivery.gradient.buffer.get()].users;
    }

    /// The one record that writes what `operand` holds, as a whole.
    std::optional<std::size_t> maker(const Operand& operand) const {
        const auto found = of_.find(operand.buffer.get());
        if (!operand.buffer || !operand.buffer->is_symbolic() || found == of_.end()) return std::nullopt;
        const auto& writers = found->second.writers;
        return writers.size() == 1 ? std::optional(writers.front()) : std::nullopt;
    }
    bool used_once(const Operand& operand) const { return of_.at(operand.buffer.get()).users == 1; }

private:
    struct Use {
        std::vector<std::size_t> writers;
        int users = 0;
    };
    std::map<const Buffer*, Use> of_;
};

bool same_place(const Operand& a, const Operand& b) {
    return a.buffer == b.buffer && a.meta.same_layout(b.meta) && a.meta.offset == b.meta.offset;
}

class Fusion {
public:
    explicit Fusion(ShardProgram& program)
        : program_(program), uses_(program), removed_(program.records.size(), false) {}

    void run() {
        for (std::size_t i = 0; i < program_.records.size(); ++i) {
            const Record& record = program_.records[i];
            if (op_cast<Unary<functor::Relu>>(*record.operation) != nullptr)
                forward(i);
            else if (op_cast<UnaryBackward<functor::Relu>>(*record.operation) != nullptr)
                backward(i);
            else if (const auto* pool = op_cast<MaxPool2dBackward>(*record.operation))
                backward_of_pool(i, pool->geometry);
        }
        compact();
    }

private:
    Record& at(std::size_t index) { return program_.records[index]; }

    /// The record whose only result is `operand`, which nobody else uses.
    std::optional<std::size_t> sole_maker(const Operand& operand) const {
        const auto maker = uses_.maker(operand);
        if (!maker || removed_[*maker] || !uses_.used_once(operand)) return std::nullopt;
        const Record& record = program_.records[*maker];
        return record.out.size() == 1 && same_place(record.out[0], operand) ? maker : std::nullopt;
    }

    void forward(std::size_t relu) {
        const auto maker = sole_maker(at(relu).in[0]);
        if (!maker) return;
        if (const auto* conv = op_cast<Conv2dForward>(*at(*maker).operation))
            replace(*maker, relu, make_operation(Conv2dReluForward{conv->geometry}), at(*maker).in);
    }

    void backward(std::size_t relu) {
        const Operand made = at(relu).in[1];
        const auto maker = sole_maker(at(relu).in[0]);
        const auto made_by = uses_.maker(made);
        if (!maker || !made_by || *made_by > *maker) return;
        std::vector<Operand> in = at(*maker).in;
        const Operation* const operation = at(*maker).operation.get();
        if (const auto* conv = op_cast<Conv2dBackwardData>(*operation)) {
            in.push_back(made);
            replace(*maker, relu, make_operation(Conv2dReluBackwardData{conv->geometry}), std::move(in));
        } else if (const auto* pool = op_cast<MaxPool2dBackward>(*operation)) {
            // What the pooling picked of ReLU's result is positive just where the gradient goes on.
            const auto pooling = uses_.maker(in[1]);
            if (!pooling || !same_place(at(*pooling).in[0], made)) return;
            if (op_cast<MaxPool2dForward>(*at(*pooling).operation) == nullptr) return;
            if (uses_.maker(at(*pooling).out[0]) != pooling) return;
            in.push_back(at(*pooling).out[0]);
            replace(*maker, relu, make_operation(MaxPool2dReluBackward{pool->geometry}), std::move(in));
        }
    }

    /// ReLU's gradient before that of the pooling whose result ReLU took.
    void backward_of_pool(std::size_t pool, const PoolGeometry& geometry) {
        const Operand where = at(pool).in[1];
        const auto maker = sole_maker(at(pool).in[0]);
        const auto pooling = uses_.maker(where);
        if (!maker || !pooling || *pooling > *maker) return;
        const Record& relu = at(*maker);
        if (op_cast<UnaryBackward<functor::Relu>>(*relu.operation) == nullptr) return;
        replace(*maker, pool, make_operation(MaxPool2dReluBackward{geometry}), {relu.in[0], where, relu.in[1]});
    }

    /// Puts `operation` in place of record `first`; it does what record `second` did as well.
    void replace(std::size_t first, std::size_t second, std::shared_ptr<const Operation> operation,
                 std::vector<Operand> in) {
        const Trace& trace = *program_.trace;
        KernelTable& table = KernelTable::of(trace.prototype().kind());
        if (!table.has(*operation)) return;
        KernelRequest request{trace.prototype(),  trace.threads(), trace.deterministic(), 1, {}, {},
                              trace.convolution()};
        for (const Operand& operand : in) request.in.push_back(operand.meta);
        for (const Operand& operand : at(second).out) request.out.push_back(operand.meta);
        auto asked = std::make_shared<const KernelRequest>(request);
        std::shared_ptr<const Kernel> kernel = table.make(*operation, request);
        for (std::size_t i = 0; i < in.size(); ++i)
            if (in[i].buffer && !request.in[i].same_layout(in[i].meta)) return;
        if (!request.out[0].same_layout(at(second).out[0].meta)) return;
        at(first) = {std::move(operation), std::move(kernel), std::move(in), at(second).out, 0,
                     at(first).call,       std::move(asked)};
        removed_[second] = true;
    }

    /// Takes the records out whose work others do.
    void compact() {
        const auto kept_before = [this](std::size_t index) {
            return index - static_cast<std::size_t>(std::count(
                               removed_.begin(), removed_.begin() + static_cast<std::ptrdiff_t>(index), true));
        };
        for (Delivery& delivery : program_.deliveries) delivery.ready = kept_before(delivery.ready + 1) - 1;
        program_.commit_begin = kept_before(program_.commit_begin);
        program_.backward_begin = kept_before(program_.backward_begin);
        std::vector<Record> kept;
        for (std::size_t i = 0; i < removed_.size(); ++i)
            if (!removed_[i]) kept.push_back(std::move(program_.records[i]));
        program_.records = std::move(kept);
    }

    ShardProgram& program_;
    Uses uses_;
    std::vector<bool> removed_;
};

}  // namespace

void fuse_relu(ShardProgram& program) { Fusion(program).run(); }

}  // namespace lockstep
