#include "lockstep/parallel/program/trace_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/api_scope.h"
#include "lockstep/runtime/internal/process.h"

namespace lockstep {

namespace {

std::string called(const Record& record) { return call_and_operation(record.call, record.operation->name()); }

std::string described(const Record& record) {
    std::string text = called(record);
    for (const Operand& operand : record.in)
        text += fmt::format(" {}", operand.buffer ? operand.meta.str() : "nothing");
    return text;
}

bool same_attributes(const Record& a, const Record& b) {
    Signature first, second;
    a.operation->describe(first);
    b.operation->describe(second);
    return first.bytes() == second.bytes();
}

/// The bytes of a tensor outside the trace.
std::vector<char> bytes_of(const Buffer& buffer) {
    std::vector<char> bytes(buffer.bytes());
    if (buffer.device().is_host()) {
        std::memcpy(bytes.data(), buffer.data(), bytes.size());
        return bytes;
    }
    Stream& stream = Stream::of(buffer.device());
    stream.copy(bytes.data(), Device::host(), buffer.data(), buffer.device(), bytes.size());
    stream.synchronize();
    return bytes;
}

/// The same buffer of the trace, the same parameter, or a constant of equal value.
bool same_operand(const Operand& a, const Operand& b) {
    if (!a.buffer || !b.buffer) return !a.buffer && !b.buffer;
    if (!a.meta.same_layout(b.meta) || a.meta.offset != b.meta.offset) return false;
    if (a.buffer->is_symbolic() || b.buffer->is_symbolic())
        return a.buffer->is_symbolic() && b.buffer->is_symbolic() && a.buffer->trace_id() == b.buffer->trace_id();
    if (a.buffer == b.buffer) return true;
    if (a.buffer->whole() || b.buffer->whole()) return false;  // parameters
    // Constants that forward creates again in every call.
    return a.buffer->bytes() == b.buffer->bytes() && bytes_of(*a.buffer) == bytes_of(*b.buffer);
}

bool same_operands(const std::vector<Operand>& a, const std::vector<Operand>& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), same_operand);
}

template <class T>
std::string element_text(const char* bytes, std::size_t offset) {
    T value;
    std::memcpy(&value, bytes + offset, sizeof value);
    return fmt::format("{}", value);
}

std::string element_text(DType dtype, const char* bytes, std::size_t offset) {
    switch (dtype) {
        case DType::f32: return element_text<float>(bytes, offset);
        case DType::f64: return element_text<double>(bytes, offset);
        case DType::i64: return element_text<std::int64_t>(bytes, offset);
        default: return "another value";
    }
}

/// Old and new state of an operand.
std::string difference(const Operand& before, const Operand& after, const ParameterStore& store) {
    const auto name = [&store](const Operand& operand) -> std::string {
        if (!operand.buffer) return "nothing";
        if (operand.buffer->is_symbolic()) return fmt::format("result {} of the trace", operand.buffer->trace_id());
        const std::string member = operand.storage ? name_of_member(store, *operand.storage) : std::string();
        return member.empty() ? fmt::format("a constant of shape {}", operand.meta.shape.str()) : member;
    };
    const bool constants = before.buffer && after.buffer && !before.buffer->is_symbolic() &&
                           !after.buffer->is_symbolic() && !before.buffer->whole() && !after.buffer->whole() &&
                           before.meta.same_layout(after.meta) && before.buffer->bytes() == after.buffer->bytes();
    if (constants) {
        const std::vector<char> then = bytes_of(*before.buffer), now = bytes_of(*after.buffer);
        const std::size_t size = size_of(before.meta.dtype);
        const auto at =
            static_cast<std::size_t>(std::mismatch(then.begin(), then.end(), now.begin()).first - then.begin()) / size *
            size;
        if (at < then.size())
            return fmt::format("a constant whose element {} was {} and is {}", at / size,
                               element_text(before.meta.dtype, then.data(), at),
                               element_text(before.meta.dtype, now.data(), at));
    }
    const std::string then = name(before), now = name(after);
    if (then != now) return fmt::format("{} instead of {}", now, then);
    const auto view = [](const TensorMeta& meta) {
        return fmt::format("shape {}, strides {} and offset {}", meta.shape.str(), meta.strides.str(), meta.offset);
    };
    return fmt::format("another part of {}: {} instead of {}", now, view(after.meta), view(before.meta));
}

}  // namespace

bool TraceChecks::due() {
    static const bool always = environment::flag("LOCKSTEP_CHECK_TRACE");
    return ++uses_ >= next_ || always;
}

std::uint64_t TraceChecks::next_after(std::uint64_t uses) {
    std::uint64_t next = 100;
    while (next <= uses) next *= 10;
    return next;
}

std::string difference_of_traces(const ShardProgram& kept, const ForwardTrace& now, const ParameterStore& store) {
    const ForwardTrace& before = *kept.forward;
    const std::size_t common = std::min(before.records.size(), now.records.size());
    for (std::size_t i = 0; i < common; ++i) {
        const Record &was = before.records[i], &is = now.records[i];
        if (was.operation->name() != is.operation->name())
            return fmt::format("record {} was {} and is {}", i, described(was), described(is));
        if (!same_attributes(was, is))
            return fmt::format("record {}, {}, had the attributes {} and has {}", i, called(is),
                               was.operation->attributes(), is.operation->attributes());
        if (was.ordinal != is.ordinal)
            return fmt::format("record {}, {}, drew random numbers as call {} and now as call {}", i, called(is),
                               was.ordinal, is.ordinal);
        for (std::size_t k = 0; k < std::min(was.in.size(), is.in.size()); ++k)
            if (!same_operand(was.in[k], is.in[k]))
                return fmt::format("record {}, {}, reads {}", i, called(is), difference(was.in[k], is.in[k], store));
        if (was.in.size() != is.in.size() || !same_operands(was.out, is.out))
            return fmt::format("record {} was {} and is {}, or writes other tensors", i, described(was), described(is));
    }
    if (before.records.size() != now.records.size())
        return fmt::format("it had {} records and has {}", before.records.size(), now.records.size());
    if (before.structure != now.structure || !same_operands(before.outputs, now.outputs))
        return "it returns a different result";
    if (before.graph != now.graph)
        return "gradients are propagated differently, because of detach(), NoGrad or requires_grad_()";
    return {};
}

void require_same_trace(const ShardProgram& kept, const ForwardTrace& now, const ParameterStore& store) {
    const std::string difference = difference_of_traces(kept, now, store);
    if (difference.empty()) return;
    throw InvalidArgument(
        fmt::format("forward or loss changed for shards of input shape {}: {}; numbers and flags that they read "
                    "are frozen when they are traced: use a tensor, an argument or a by-value capture of the loss",
                    kept.inputs.empty() ? std::string("()") : kept.inputs.front().meta.shape.str(), difference));
}

}  // namespace lockstep
