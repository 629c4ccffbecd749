// Compiled kernels as the interpreter executes them. decode.cpp makes them from PTX text, warp.cpp runs them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::ptx {

inline constexpr int warp_size = 32;
/// One register of one lane. Its type is the type of the instruction that reads it; unused high bits are unspecified.
using Slot = std::uint64_t;
/// Bit n is lane n.
using LaneMask = std::uint32_t;
inline constexpr LaneMask all_lanes = ~LaneMask{0};

enum class Kind : std::uint8_t {
    compute,
    branch,
    load,
    store,
    atomic,
    shuffle,
    vote,
    warp_barrier,
    block_barrier,
    fence,
    active_mask,
    exit,
    trap,
};

/// Address spaces. Generic addresses of shared, local and parameter memory carry a tag (`window`); global addresses are
/// addresses of the host.
enum class Space : std::uint8_t { global, shared, local, param, generic };
inline constexpr Slot window_bits = 56;
inline Slot window(Space space) {
    return space == Space::global ? 0 : Slot{static_cast<unsigned>(space)} << window_bits;
}

/// Classes for counting. Moves are counted apart because ptxas removes most of them, integer divisions because it makes
/// some 20 instructions of one of 32 bits and some 70 of one of 64.
enum class Issue : std::uint8_t {
    move,
    integer,
    integer64,
    division,
    division64,
    f32,
    f64,
    half,
    special,  ///< approximations, one instruction each
    precise,  ///< divisions and roots, for which ptxas makes a sequence
    conversion,
    branch,
    global,
    shared,
    local,
    param,
    atomic,
    exchange,
    barrier,
    count
};
std::string_view name_of(Issue issue);

/// Computes `out` from the inputs for the lanes of a mask. Every pointer is to warp_size slots.
using Compute = void (*)(Slot* out, const Slot* const* in, LaneMask lanes);
struct Operation {
    Compute run;
    int inputs;
    Issue issue;
};
/// The operation of an opcode such as "add.s32" or "cvt.rzi.s32.f32"; null if it is unknown.
const Operation* find_operation(const std::string& opcode);

enum class Exchange : std::uint8_t { up, down, butterfly, index, all, any, uniform, ballot };

struct Instruction {
    Kind kind = Kind::compute;
    Issue issue = Issue::move;
    Space space = Space::global;
    Exchange exchange = Exchange::up;
    std::uint8_t bytes = 0;  ///< size of an element of a memory access
    bool extends_sign = false;
    bool selects = false;  ///< in[2] says which of the two other inputs counts
    bool divides = false;  ///< by the integer in[1]
    /// Only the low half of in[0] counts, and other inputs are constants: conversions from 64 to fewer bits.
    bool reads_low_half = false;
    bool keeps_low_half = false;  ///< the result has the low half of in[0]
    bool guard_negated = false;
    int guard = -1;  ///< register of the predicate
    std::array<int, 4> out{-1, -1, -1, -1};
    std::array<int, 5> in{-1, -1, -1, -1, -1};  ///< memory accesses: address, then values
    std::uint8_t elements = 0;
    std::int64_t offset = 0;  ///< addend of an address, or target of a branch
    const Operation* operation = nullptr;
    int line = 0;  ///< in the PTX text
};

/// Registers that every kernel has, in this order.
enum Special { tid_x, tid_y, tid_z, ntid_x, ntid_y, ntid_z, ctaid_x, ctaid_y, ctaid_z, nctaid_x, nctaid_y, nctaid_z };
inline constexpr int laneid = 12, warpid = 13, lanemask_lt = 14, lanemask_le = 15, lanemask_gt = 16, lanemask_ge = 17,
                     lanemask_eq = 18, special_registers = 19;

struct Parameter {
    std::size_t offset, bytes;
};

struct Kernel {
    std::string name;
    std::vector<Parameter> parameters;
    std::size_t parameter_bytes = 0, shared_bytes = 0, local_bytes = 0;
    unsigned max_threads = 1024;
    int registers = special_registers;
    std::vector<std::pair<int, Slot>> constants;  ///< registers that hold them
    std::vector<Instruction> code;
    std::vector<std::string> unknown;  ///< one message for every instruction that could not be decoded
};

struct Module {
    std::map<std::string, Kernel, std::less<>> kernels;
    std::map<std::string, std::vector<std::byte>, std::less<>> globals;
    std::vector<std::string> locations;  ///< "file.cu:12" by line of the PTX text

    /// The kernel of that name, or the only one whose name contains it. Throws std::runtime_error if there is not one.
    const Kernel& kernel(std::string_view name) const;
    std::string where(int line) const;
};

/// Arguments as the kernel expects them in its parameter memory. Throws std::invalid_argument if sizes differ.
std::vector<std::byte> parameters_from(const Kernel& kernel, const std::vector<const void*>& arguments,
                                       const std::vector<std::size_t>& sizes);
template <class... Arguments>
std::vector<std::byte> parameters(const Kernel& kernel, const Arguments&... arguments) {
    return parameters_from(kernel, {&arguments...}, {sizeof(arguments)...});
}

/// Throws std::runtime_error if the text is malformed. Unknown instructions are listed in their kernels.
Module parse_module(std::string_view text);

}  // namespace lockstep::ptx
