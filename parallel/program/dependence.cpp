#include "lockstep/parallel/program/dependence.h"

#include <algorithm>
#include <vector>

namespace lockstep {

namespace {

/// Whether two operands share memory.
bool overlap(const Operand& a, const Operand& b) {
    const auto whole = [](const Operand& operand) {
        return operand.buffer->whole() ? operand.buffer->whole().get() : operand.buffer.get();
    };
    if (!a.buffer || !b.buffer || whole(a) != whole(b)) return false;
    const auto begin = [](const Operand& operand) { return operand.buffer->offset_in_whole(); };
    return begin(a) < begin(b) + b.buffer->bytes() && begin(b) < begin(a) + a.buffer->bytes();
}

bool any_overlap(const std::vector<Operand>& some, const std::vector<Operand>& others) {
    return std::any_of(some.begin(), some.end(), [&](const Operand& a) {
        return std::any_of(others.begin(), others.end(), [&](const Operand& b) { return overlap(a, b); });
    });
}

}  // namespace

bool depend(const Record& a, const Record& b) {
    return any_overlap(a.out, b.out) || any_overlap(a.out, b.in) || any_overlap(a.in, b.out);
}

}  // namespace lockstep
