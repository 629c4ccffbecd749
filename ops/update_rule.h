// Rules: the update of an element by an optimizer with a dedicated kernel. Every backend gets kernels for the rules
// that are listed in ops/internal/update_rules.h.
//
//     struct MyRule {
//         using Options = MyOptions;  // lr, ...: trivially copyable, lists its members with LOCKSTEP_MEMBERS
//         static constexpr const char* name = "my_update";
//         static constexpr std::array<std::string_view, 2> states{"exp_avg", "exp_avg_sq"};  // at most 3, per element
//         using Variants = std::integer_sequence<unsigned, 3>;  // the possible values of `used`
//
//         /// Values that depend only on the parameter and the step, in the compute type. `updates`: number of previous
//         /// updates of the parameter.
//         template <class T> struct Factors { T lr; ... };
//         template <class T> LOCKSTEP_HD_INLINE static Factors<T> factors(const Options&, std::int64_t updates);
//         /// Bit i: state i is read and written. Must not depend on `updates`.
//         template <class T> LOCKSTEP_HD_INLINE static unsigned used(const Factors<T>& factors);
//         /// `state`: the element's values; unused ones are 0.
//         template <class T>
//         LOCKSTEP_HD_INLINE static void update(const Factors<T>& factors, T gradient, T& parameter, T* state);
//     };
//
// A rule may depend on norms of whole parameters (NormRule). These are measured when all gradients are complete, with
// factors for norms of 0, before the first update.
//
//         static constexpr bool needs_norms = true;
//         template <class T>
//         LOCKSTEP_HD_INLINE static Factors<T> factors(const Options&, std::int64_t updates,
//                                                      const ParameterNorms& norms = {});
//         /// An element of the direction, whose norm is measured as well. `state`: before the update.
//         template <class T>
//         LOCKSTEP_HD_INLINE static T direction(const Factors<T>& factors, T gradient, T parameter, const T* state);
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "lockstep/runtime/host_device.h"
#include "lockstep/runtime/operation.h"

namespace lockstep {

/// A parameter as known to devices. In device memory, the options of its group follow it; the rows of an arena's
/// parameters are consecutive.
struct ParameterRow {
    std::int64_t begin = 0, end = 0;  ///< elements of the arena
    std::int64_t updates = 0;         ///< number of counted updates so far; devices maintain it themselves
    std::int32_t trainable = 1;
    std::int32_t counts = 1;  ///< whether an update counts
    std::int32_t group = 0;   ///< -1: the optimizer does not update the parameter
    std::int32_t unused = 0;  ///< padding: rows are copied as bytes
};

/// A row with its options.
template <class Options>
struct RowWith {
    ParameterRow row;
    Options options;
};

/// Elements [begin, end) of an arena, which belong to its parameters [first, last) and to the gaps between them.
struct ArenaRange {
    std::int64_t begin = 0, end = 0;
    int first = 0, last = 0;

    std::int64_t elements() const { return end - begin; }
};

/// 2-norms of a parameter before an update, and of a rule's direction.
struct ParameterNorms {
    double parameter = 0, direction = 0;
};

template <class Rule>
concept NormRule = requires {
    requires Rule::needs_norms;
};

/// Elements of one measure of a norm. Parameters and ranges begin at multiples of it, so sums do not depend on the
/// division of an arena.
constexpr std::int64_t norm_grain = 64;

/// Sums of squares of each norm_grain elements, for the norms of a NormRule.
/// in: gradients, parameters, rows (bytes, u8), the rule's states whose bits are set in `states`; out: f64 (2 *
/// elements / norm_grain, rounded up): of the parameter and of the direction, alternately; 0 for parameters that are
/// not trainable
template <class Rule>
struct MeasureUpdate {
    static constexpr const char* name = "measure_update";
    ArenaRange range;
    unsigned states;
};

/// The update of a range by a rule, for parameters that are trainable. Runs when the step is good.
/// in: gradients, rows (bytes, u8) and, for a NormRule, the norms of the arena's parameters (f64, two each); out (in
/// place): parameters, and the rule's states whose bits are set in `states`.
/// All but the rows have the elements of the range.
template <class Rule>
struct FusedUpdate {
    static constexpr const char* name = Rule::name;
    ArenaRange range;
    unsigned states;
    bool commits() const { return true; }
};

}  // namespace lockstep
