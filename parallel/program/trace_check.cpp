#include "lockstep/parallel/program/trace_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "lockstep/runtime/error.h"

namespace lockstep {

namespace {

std::string described(const Record& record) {
    std::string text(record.operation->name());
    for (const Operand& operand : record.in)
        text += fmt::format(" {}", operand.buffer ? operand.meta.str() : "nothing");
    return text;
}

bool same_attributes(const Record& a, const Record& b) {
    Signature first, second;
    a.operation->describe(first);
    b.operation->describe(second);
    return first.bytes() == second.bytes() && a.ordinal == b.ordinal;
}

/// The same buffer of the trace, the same parameter, or a constant of the same value.
bool same_operand(const Operand& a, const Operand& b) {
    if (!a.buffer || !b.buffer) return !a.buffer && !b.buffer;
    if (!a.meta.same_layout(b.meta) || a.meta.offset != b.meta.offset) return false;
    if (a.buffer->is_symbolic() || b.buffer->is_symbolic())
        return a.buffer->is_symbolic() && b.buffer->is_symbolic() && a.buffer->trace_id() == b.buffer->trace_id();
    if (a.buffer == b.buffer) return true;
    // Constants that forward makes anew at every call.
    return a.buffer->device().is_host() && b.buffer->device().is_host() && a.buffer->bytes() == b.buffer->bytes() &&
           std::memcmp(a.buffer->data(), b.buffer->data(), a.buffer->bytes()) == 0;
}

bool same_operands(const std::vector<Operand>& a, const std::vector<Operand>& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), same_operand);
}

}  // namespace

void require_same_trace(const ShardProgram& kept, const ShardProgram& now) {
    const auto fail = [&](const std::string& what) {
        throw InvalidArgument(
            fmt::format("forward or loss changed for shards of input shape {}: {}; host state that they read is frozen "
                        "when they are "
                        "traced, so hand in what changes as an argument or a tensor",
                        kept.inputs.empty() ? std::string("()") : kept.inputs.front().meta.shape.str(), what));
    };
    const std::size_t common = std::min(kept.records.size(), now.records.size());
    for (std::size_t i = 0; i < common; ++i) {
        const Record& before = kept.records[i];
        const Record& after = now.records[i];
        if (before.operation->name() != after.operation->name())
            fail(fmt::format("record {} was {} and is {}", i, described(before), described(after)));
        if (!same_attributes(before, after))
            fail(fmt::format("record {}, {}, has other attributes", i, described(after)));
        if (!same_operands(before.in, after.in) || !same_operands(before.out, after.out))
            fail(fmt::format("record {} was {} and is {}, or reads other tensors", i, described(before),
                             described(after)));
    }
    if (kept.records.size() != now.records.size())
        fail(fmt::format("it had {} records and has {}", kept.records.size(), now.records.size()));
    if (kept.casts != now.casts) fail("it converts other parameters");
    if (kept.structure != now.structure || !same_operands(kept.outputs, now.outputs)) fail("it returns something else");
}

}  // namespace lockstep
