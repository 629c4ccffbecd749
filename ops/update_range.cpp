#include "lockstep/ops/update_range.h"

#include <fmt/format.h>

#include "lockstep/ops/internal/optimizer_operations.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/core_operations.h"
#include "lockstep/runtime/record.h"
#include "lockstep/runtime/trace.h"

namespace lockstep {

namespace {

/// Bytes of the distinct elements of a strided tensor.
std::size_t bytes_read(const TensorMeta& meta) {
    std::size_t bytes = size_of(meta.dtype);
    for (int d = 0; d < meta.shape.dims(); ++d)
        if (meta.strides[d] != 0) bytes *= static_cast<std::size_t>(meta.shape[d]);
    return bytes;
}

/// Throws unless the records of an update, starting at number `first`, are elementwise and read only the range.
void require_elementwise(const char* optimizer, const std::vector<Record>& records, std::size_t first) {
    for (std::size_t i = first; i < records.size(); ++i) {
        if (!records[i].operation->is_elementwise())
            throw InvalidArgument(
                fmt::format("{}: update calls {}, which mixes elements; expected elementwise functions, as ranges may "
                            "begin and end anywhere",
                            optimizer, records[i].operation->name()));
        for (const Operand& operand : records[i].in) {
            if (operand.storage)
                throw InvalidArgument(
                    fmt::format("{}: update reads a tensor of shape {} from outside; expected options for what "
                                "changes, and states for the values of elements",
                                optimizer, operand.meta.shape.str()));
            if (operand.buffer && bytes_read(operand.meta) < operand.buffer->bytes())
                throw InvalidArgument(
                    fmt::format("{}: update uses a part of a range, of shape {}; expected the whole range, as ranges "
                                "may begin and end anywhere",
                                optimizer, operand.meta.shape.str()));
        }
    }
}

/// Operands of the same shapes without values.
UpdateOperands symbols_of(const UpdateOperands& operands, Trace& trace) {
    const auto symbol = [&](const Tensor& tensor) {
        return trace.input(TensorMeta::contiguous(tensor.dtype(), tensor.shape()));
    };
    UpdateOperands symbols{symbol(operands.gradients), symbol(operands.parameters), symbol(operands.rows), {}};
    for (const auto& [name, tensor] : operands.states) symbols.states.emplace(name, symbol(tensor));
    return symbols;
}

}  // namespace

const Tensor& UpdateRange::state(std::string_view name) const {
    const auto found = operands_.states.find(name);
    if (found == operands_.states.end())
        throw InvalidArgument(fmt::format("{}: unknown state {}; expected a name from states()", optimizer_, name));
    return found->second;
}

Tensor UpdateRange::read(std::size_t offset, RowNumber number) const {
    const bool one = range_.last - range_.first == 1;
    const TensorMeta numbers =
        TensorMeta::contiguous(operands_.parameters.dtype(), one ? Shape{} : Shape{range_.elements()});
    return apply_one(ReadRows{range_, layout_.row_bytes(), offset, number}, {operands_.rows}, numbers);
}

Tensor UpdateRange::setting(std::string_view name) const {
    for (const OptionsLayout::Setting& setting : layout_.settings)
        if (setting.name == name)
            return read(sizeof(ParameterRow) + setting.offset, setting.is_flag ? RowNumber::flag : RowNumber::real);
    throw InvalidArgument(fmt::format("{}: unknown setting {}; expected a member of the options", optimizer_, name));
}

Tensor UpdateRange::updates() const { return read(0, RowNumber::updates); }

void UpdateRange::set_state(std::string_view name, const Tensor& value) {
    static_cast<void>(state(name));
    states_.insert_or_assign(std::string(name), value);
}

void UpdateRange::store(const char* what, const Tensor& value, const Tensor& target) const {
    if (!value.defined() || value.dtype() != target.dtype() || (value.numel() != 1 && value.shape() != target.shape()))
        throw InvalidArgument(fmt::format("{}: update sets {} to {}; expected a tensor of shape {} and dtype {}",
                                          optimizer_, what,
                                          value.defined() ? value.impl()->meta.str() : "an undefined tensor",
                                          target.shape().str(), name_of(target.dtype())));
    const Tensor whole = value.reshape(value.numel() == 1 ? Shape{1} : value.shape()).expand(target.shape());
    apply_one(StoreRange{range_, layout_.row_bytes()}, {operands_.rows, whole.contiguous()}, target);
}

void UpdateRange::perform(const char* optimizer, const OptionsLayout& layout, const ArenaRange& range,
                          const UpdateOperands& operands, const std::function<void(UpdateRange&)>& update) {
    if (!Trace::current()) {  // eager: rejects everything that a wrapper would reject
        Trace rehearsal({.prototype = operands.parameters.device()});
        const TraceScope scope(rehearsal);
        perform(optimizer, layout, range, symbols_of(operands, rehearsal), update);
    }
    const Trace* trace = Trace::current();
    const std::size_t first = trace ? trace->records().size() : 0;
    UpdateRange part(optimizer, layout, range, operands);
    update(part);
    // Compute all new values first: none of them may depend on stored results.
    if (part.parameter_) part.store("the parameter", *part.parameter_, operands.parameters);
    for (const auto& [name, value] : part.states_) part.store(name.c_str(), value, part.state(name));
    if (trace) require_elementwise(optimizer, trace->records(), first);
}

}  // namespace lockstep
