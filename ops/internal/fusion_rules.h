// Rules for fusing an operation with one before it. The caller (parallel/program/passes.h) finds neighbouring
// records; only the rules here depend on their operations.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/runtime/record.h"

namespace lockstep {

/// Two records of a program: the later one reads the only result of the earlier one.
struct Neighbours {
    const Record& earlier;
    const Record& later;
    /// The only record of the program that writes an operand, and writes it as a whole; null if there is no such
    /// record.
    std::function<const Record*(const Operand&)> maker;
};

/// One operation that replaces two records: its inputs are `in`, its outputs those of the later record.
struct Fused {
    std::shared_ptr<const Operation> operation;
    std::vector<Operand> in;
};

/// Whether both operands are the same elements in the same arrangement.
bool same_memory(const Operand& a, const Operand& b);

/// The operation that replaces two neighbours, with the same bits; nullopt if no rule applies. Input 0 of the later one
/// is the result of the earlier one, which nothing else uses. The caller checks whether a backend has a kernel for it.
std::optional<Fused> fuse(const Neighbours& neighbours);

/// As above, but other records may read the result of the earlier one: the operation replaces the later record only. If
/// all readers are replaced, the earlier record is not needed.
std::optional<Fused> absorb(const Neighbours& neighbours);

}  // namespace lockstep
