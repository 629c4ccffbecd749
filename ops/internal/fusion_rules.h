// Which operations can be done along with the one before them. Whoever holds a program (parallel/program/fusion.h)
// says which records are neighbours; only the rules here know what they do.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/runtime/record.h"

namespace lockstep {

/// Two records of a program: input 0 of the later one is the only result of the earlier one, and nothing else uses it.
struct Neighbours {
    const Record& earlier;
    const Record& later;
    /// The one record of the program that writes what an operand holds, as a whole; null where there is none.
    std::function<const Record*(const Operand&)> maker;
};

/// One operation that does the work of two records: `in` goes in, and what the later one made comes out.
struct Fused {
    std::shared_ptr<const Operation> operation;
    std::vector<Operand> in;
};

/// Whether both operands are the same elements, in the same arrangement.
bool same_memory(const Operand& a, const Operand& b);

/// What two neighbours are together, with the bits that they give one after the other; nothing where no rule joins
/// them. Whether a backend has a kernel for it is left to the caller.
std::optional<Fused> fuse(const Neighbours& neighbours);

}  // namespace lockstep
