#include "lockstep/ops/summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/internal/core_operations.h"
#include "lockstep/runtime/trace.h"

namespace lockstep {
namespace {

std::string layer_of(const std::string& parameter) {
    const std::size_t dot = parameter.rfind('.');
    return dot == std::string::npos ? std::string() : parameter.substr(0, dot);
}

/// 1234567 as "1,234,567".
std::string grouped(std::int64_t number) {
    std::string digits = std::to_string(number);
    for (auto at = std::ssize(digits) - 3; at > 0; at -= 3) digits.insert(static_cast<std::size_t>(at), 1, ',');
    return digits;
}

std::string in_mib(std::uint64_t bytes) { return fmt::format("{:.2f} MiB", static_cast<double>(bytes) / (1 << 20)); }

/// Converts the records of a trace to rows.
class RowMaker {
public:
    explicit RowMaker(const std::vector<NamedTensor>& tensors) {
        for (const NamedTensor& named : tensors)
            if (named.is_parameter) parameters_.emplace(named.member->tensor().impl()->storage.get(), &named);
    }

    void take(const Record& record) {
        std::set<const NamedTensor*> used = parameters_of(record);
        if (op_cast<Reorder>(*record.operation)) {  // the same values in another layout, for the following call
            copies_[record.out.front().buffer.get()] = std::move(used);
            return;
        }
        if (!continues(record)) {
            summary_.rows.emplace_back().call = record.call ? record.call : std::string(record.operation->name());
            results_.clear();
            operations_.clear();
        }
        call_ = record.call;
        operations_.insert(record.operation->name());
        SummaryRow& row = summary_.rows.back();
        row.output = record.out.front().meta.shape;
        row.bytes = static_cast<std::uint64_t>(row.output.numel()) * size_of(record.out.front().meta.dtype);
        for (const Operand& out : record.out)
            if (out.buffer) results_.insert(out.buffer.get());
        for (const NamedTensor* parameter : used) {
            if (row.layer.empty()) row.layer = layer_of(parameter->name);
            if (seen_.insert(parameter).second)
                row.parameters += parameter->member->tensor().numel();
            else
                row.shared = true;
        }
    }

    /// The rows, their sizes, and the parameters that no row uses.
    ModelSummary finish() && {
        for (const auto& [storage, parameter] : parameters_)
            if (!seen_.contains(parameter)) summary_.unused.push_back(parameter->name);
        std::sort(summary_.unused.begin(), summary_.unused.end());
        for (const SummaryRow& row : summary_.rows) summary_.result_bytes += row.bytes;
        return std::move(summary_);
    }

private:
    std::set<const NamedTensor*> parameters_of(const Record& record) const {
        std::set<const NamedTensor*> used;
        for (const Operand& in : record.in) {
            if (const auto found = parameters_.find(in.storage.get()); in.storage && found != parameters_.end())
                used.insert(found->second);
            if (const auto found = copies_.find(in.buffer.get()); in.buffer && found != copies_.end())
                used.insert(found->second.begin(), found->second.end());
        }
        return used;
    }
    /// A call may consist of several different operations; each uses results of the previous ones.
    bool continues(const Record& record) const {
        return record.call != nullptr && record.call == call_ && !operations_.contains(record.operation->name()) &&
               std::any_of(record.in.begin(), record.in.end(),
                           [&](const Operand& in) { return results_.contains(in.buffer.get()); });
    }

    ModelSummary summary_;
    std::set<std::string_view> operations_;  ///< operations of the last row
    const char* call_ = nullptr;             ///< call of the last row
    std::set<const Buffer*> results_;        ///< results of the last row
    std::set<const NamedTensor*> seen_;      ///< used by the rows so far
    std::map<const Storage*, const NamedTensor*> parameters_;
    std::map<const Buffer*, std::set<const NamedTensor*>> copies_;
};

}  // namespace

namespace detail {

ModelSummary summarise(const std::vector<NamedTensor>& tensors, const std::vector<SummaryInput>& inputs,
                       const std::function<void(const std::vector<Tensor>&)>& forward) {
    TraceSettings settings;
    if (!tensors.empty()) settings.prototype = tensors.front().member->tensor().device();
    Trace trace(settings);
    {
        const NoGrad no_grad;
        const TraceScope scope(trace);
        std::vector<Tensor> given;
        for (const SummaryInput& input : inputs)
            given.push_back(trace.input(TensorMeta::contiguous(input.dtype, input.shape, true)));
        forward(given);
    }
    RowMaker rows(tensors);
    for (const Record& record : trace.records()) rows.take(record);
    ModelSummary summary = std::move(rows).finish();
    for (const SummaryInput& input : inputs)
        summary.input_bytes += TensorMeta::contiguous(input.dtype, input.shape).bytes();
    std::set<const void*> counted;
    for (const NamedTensor& named : tensors) {
        if (!counted.insert(named.member->identity()).second) continue;
        const Tensor& tensor = named.member->tensor();
        const std::uint64_t bytes = static_cast<std::uint64_t>(tensor.numel()) * size_of(tensor.dtype());
        (named.is_parameter ? summary.parameter_bytes : summary.buffer_bytes) += bytes;
        if (!named.is_parameter) continue;
        summary.parameters += tensor.numel();
        if (tensor.requires_grad()) summary.trainable += tensor.numel();
    }
    return summary;
}

}  // namespace detail

std::string ModelSummary::str() const {
    std::vector<std::array<std::string, 3>> cells{{"Call (layer)", "Output", "Parameters"}};
    for (const SummaryRow& row : rows)
        cells.push_back({row.layer.empty() ? row.call : fmt::format("{} ({})", row.call, row.layer), row.output.str(),
                         row.shared            ? "shared"
                         : row.parameters == 0 ? "-"
                                               : grouped(row.parameters)});
    std::array<std::size_t, 3> widths{};
    for (const auto& line : cells)
        for (std::size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
    const std::string rule = std::string(widths[0] + widths[1] + widths[2] + 4, '-') + '\n';
    std::string text;
    for (const auto& [call, output, count] : cells) {
        text += fmt::format("{:{}}  {:{}}  {:>{}}\n", call, widths[0], output, widths[1], count, widths[2]);
        if (text.find('\n') == text.size() - 1) text += rule;
    }
    text += rule;
    for (const std::string& name : unused) text += fmt::format("Not used in forward: {}\n", name);
    text += fmt::format("Parameters: {} ({} trainable), {}; buffers: {}\n", grouped(parameters), grouped(trainable),
                        in_mib(parameter_bytes), in_mib(buffer_bytes));
    return text + fmt::format("Inputs: {}; results of forward: {}\n", in_mib(input_bytes), in_mib(result_bytes));
}

}  // namespace lockstep
