// Results of instructions without access to memory. New ones are added to make_operations() or what it calls. The
// default rounding, .rn, is left out of the names.
#include <algorithm>
#include <string>
#include <unordered_map>

#include "lockstep/tests/ptx/values.h"

namespace lockstep::ptx {

namespace {

using Operations = std::unordered_map<std::string, Operation>;

template <class F, class Out, class... In, std::size_t... index>
void apply(Slot* out, const Slot* const* in, LaneMask lanes, std::index_sequence<index...>) {
    const Slot* const inputs[] = {in[index]...};
    if (lanes == all_lanes) {
        // A lane reads and writes only its own slots, even if an input is the output.
#pragma GCC ivdep
        for (int lane = 0; lane < warp_size; ++lane) out[lane] = write<Out>(F{}(read<In>(inputs[index][lane])...));
    } else {
        for (; lanes != 0; lanes &= lanes - 1) {
            const int lane = std::countr_zero(lanes);
            out[lane] = write<Out>(F{}(read<In>(inputs[index][lane])...));
        }
    }
}

template <class F, class Signature>
struct Applied;
template <class F, class Out, class... In>
struct Applied<F, Out (F::*)(In...) const> {
    static void run(Slot* out, const Slot* const* in, LaneMask lanes) {
        apply<F, Out, In...>(out, in, lanes, std::index_sequence_for<In...>());
    }
    static constexpr int inputs = sizeof...(In);
};

/// Makes an operation of a lambda without captures; its parameters say how slots are read.
template <class F>
void add(Operations& all, const std::string& opcode, Issue issue, F) {
    using Function = Applied<F, decltype(&F::operator())>;
    all[opcode] = {Function::run, Function::inputs, issue};
}

template <class T>
std::string type_name() {
    if constexpr (std::is_same_v<T, bool>) return "pred";
    if constexpr (std::is_same_v<T, Half>) return "f16";
    if constexpr (std::is_same_v<T, BFloat>) return "bf16";
    if constexpr (std::is_same_v<T, Pair<Half>>) return "f16x2";
    if constexpr (std::is_same_v<T, Pair<BFloat>>) return "bf16x2";
    return (is_float<T> ? "f" : std::is_signed_v<T> ? "s" : "u") + std::to_string(8 * sizeof(T));
}

template <class T>
constexpr Issue issue_of() {
    if (std::is_same_v<T, float>) return Issue::f32;
    if (std::is_same_v<T, double>) return Issue::f64;
    if (is_half<T>) return Issue::half;
    return std::is_integral_v<T> && sizeof(T) == 8 ? Issue::integer64 : Issue::integer;
}

// ---- comparisons ----

template <class T>
void add_comparisons(Operations& all, const std::string& type) {
    const auto compare = [&](const std::string& how, auto f) {
        add(all, "setp." + how + "." + type, issue_of<T>(), f);
    };
    if constexpr (std::is_integral_v<T>) {
        compare("eq", [](T a, T b) { return a == b; });
        compare("ne", [](T a, T b) { return a != b; });
        compare("lt", [](T a, T b) { return a < b; });
        compare("le", [](T a, T b) { return a <= b; });
        compare("gt", [](T a, T b) { return a > b; });
        compare("ge", [](T a, T b) { return a >= b; });
    } else {
        // Without u they are false for NaN, with u true.
        compare("eq", [](T a, T b) { return upcast(a) == upcast(b); });
        compare("ne", [](T a, T b) { return upcast(a) < upcast(b) || upcast(a) > upcast(b); });
        compare("lt", [](T a, T b) { return upcast(a) < upcast(b); });
        compare("le", [](T a, T b) { return upcast(a) <= upcast(b); });
        compare("gt", [](T a, T b) { return upcast(a) > upcast(b); });
        compare("ge", [](T a, T b) { return upcast(a) >= upcast(b); });
        compare("equ", [](T a, T b) { return !(upcast(a) < upcast(b) || upcast(a) > upcast(b)); });
        compare("neu", [](T a, T b) { return !(upcast(a) == upcast(b)); });
        compare("ltu", [](T a, T b) { return !(upcast(a) >= upcast(b)); });
        compare("leu", [](T a, T b) { return !(upcast(a) > upcast(b)); });
        compare("gtu", [](T a, T b) { return !(upcast(a) <= upcast(b)); });
        compare("geu", [](T a, T b) { return !(upcast(a) < upcast(b)); });
        compare("num", [](T a, T b) { return !std::isnan(upcast(a)) && !std::isnan(upcast(b)); });
        compare("nan", [](T a, T b) { return std::isnan(upcast(a)) || std::isnan(upcast(b)); });
    }
}

// ---- integers ----

template <class T>
void add_integers(Operations& all) {
    using U = std::make_unsigned_t<T>;
    using Wide =
        std::conditional_t<sizeof(T) == 8, std::conditional_t<std::is_signed_v<T>, __int128, unsigned __int128>,
                           std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>>;
    const std::string type = "." + type_name<T>();
    constexpr Issue issue = issue_of<T>();
    // Unsigned, so that nothing overflows, and at least 32 bits, so that nothing is promoted to a signed type.
    using W = std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>;
    add(all, "add" + type, issue, [](T a, T b) { return static_cast<T>(W{static_cast<U>(a)} + W{static_cast<U>(b)}); });
    add(all, "sub" + type, issue, [](T a, T b) { return static_cast<T>(W{static_cast<U>(a)} - W{static_cast<U>(b)}); });
    // The decoder makes these of instructions with a carry.
    add(all, "add.extended" + type, issue, [](T a, T b, std::uint32_t carry) {
        return static_cast<T>(W{static_cast<U>(a)} + W{static_cast<U>(b)} + carry);
    });
    add(all, "sub.extended" + type, issue, [](T a, T b, std::uint32_t borrow) {
        return static_cast<T>(W{static_cast<U>(a)} - W{static_cast<U>(b)} - borrow);
    });
    using Sum = std::conditional_t<sizeof(T) == 8, unsigned __int128, std::uint64_t>;
    add(all, "add.carry" + type, issue, [](T a, T b, std::uint32_t carry) {
        return static_cast<std::uint32_t>((Sum{static_cast<U>(a)} + Sum{static_cast<U>(b)} + carry) >> (8 * sizeof(T)));
    });
    add(all, "sub.carry" + type, issue, [](T a, T b, std::uint32_t borrow) {
        return static_cast<std::uint32_t>(Sum{static_cast<U>(a)} < Sum{static_cast<U>(b)} + borrow);
    });
    add(all, "mul.lo" + type, issue,
        [](T a, T b) { return static_cast<T>(W{static_cast<U>(a)} * W{static_cast<U>(b)}); });
    add(all, "mad.lo" + type, issue, [](T a, T b, T c) {
        return static_cast<T>(W{static_cast<U>(a)} * W{static_cast<U>(b)} + W{static_cast<U>(c)});
    });
    add(all, "mul.hi" + type, issue, [](T a, T b) { return static_cast<T>((Wide{a} * Wide{b}) >> (8 * sizeof(T))); });
    constexpr Issue division = sizeof(T) == 8 ? Issue::division64 : Issue::division;
    // The machine reports divisions by zero; their result here is what cards compute.
    add(all, "div" + type, division, [](T a, T b) {
        if (b == 0) return static_cast<T>(-1);
        if (std::is_signed_v<T> && b == static_cast<T>(-1)) return static_cast<T>(W{0} - W{static_cast<U>(a)});
        return static_cast<T>(a / b);
    });
    add(all, "rem" + type, division, [](T a, T b) {
        if (b == 0) return a;
        return std::is_signed_v<T> && b == static_cast<T>(-1) ? T{0} : static_cast<T>(a % b);
    });
    add(all, "min" + type, issue, [](T a, T b) { return std::min(a, b); });
    add(all, "max" + type, issue, [](T a, T b) { return std::max(a, b); });
    add(all, "shr" + type, issue, [](T a, std::uint32_t by) {
        constexpr std::uint32_t most = 8 * sizeof(T) - 1;
        return by <= most ? static_cast<T>(a >> by) : static_cast<T>(a < 0 ? -1 : 0);
    });
    if constexpr (std::is_signed_v<T>) {
        add(all, "neg" + type, issue, [](T a) { return static_cast<T>(W{0} - W{static_cast<U>(a)}); });
        add(all, "abs" + type, issue, [](T a) { return a < 0 ? static_cast<T>(W{0} - W{static_cast<U>(a)}) : a; });
    }
    if constexpr (sizeof(T) < 8) {
        using Twice =
            std::conditional_t<sizeof(T) == 2, std::conditional_t<std::is_signed_v<T>, std::int32_t, std::uint32_t>,
                               std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>>;
        add(all, "mul.wide" + type, issue, [](T a, T b) { return static_cast<Twice>(Twice{a} * Twice{b}); });
        add(all, "mad.wide" + type, issue, [](T a, T b, Twice c) {
            return static_cast<Twice>(static_cast<std::uint64_t>(Twice{a} * Twice{b}) + static_cast<std::uint64_t>(c));
        });
    }
    add_comparisons<T>(all, type_name<T>());
}

template <class T>
void add_bits(Operations& all) {
    const bool is_predicate = std::is_same_v<T, bool>;
    const std::string type = is_predicate ? ".pred" : ".b" + std::to_string(8 * sizeof(T));
    constexpr Issue issue = issue_of<T>();
    add(all, "and" + type, issue, [](T a, T b) { return static_cast<T>(a & b); });
    add(all, "or" + type, issue, [](T a, T b) { return static_cast<T>(a | b); });
    add(all, "xor" + type, issue, [](T a, T b) { return static_cast<T>(a ^ b); });
    if constexpr (std::is_same_v<T, bool>) {
        add(all, "not" + type, issue, [](T a) { return !a; });
    } else {
        add(all, "not" + type, issue, [](T a) { return static_cast<T>(~a); });
        add(all, "cnot" + type, issue, [](T a) { return static_cast<T>(a == 0 ? 1 : 0); });
        add(all, "shl" + type, issue,
            [](T a, std::uint32_t by) { return by < 8 * sizeof(T) ? static_cast<T>(std::uint64_t{a} << by) : T{0}; });
        all["shr" + type] = all.at("shr." + type_name<T>());
        add_comparisons<T>(all, "b" + std::to_string(8 * sizeof(T)));
    }
    if constexpr (sizeof(T) >= 4) {
        using S = std::make_signed_t<T>;
        add(all, "popc" + type, issue, [](T a) { return static_cast<std::uint32_t>(std::popcount(a)); });
        add(all, "clz" + type, issue, [](T a) { return static_cast<std::uint32_t>(std::countl_zero(a)); });
        add(all, "brev" + type, issue, [](T a) {
            T reversed = 0;
            for (unsigned i = 0; i < 8 * sizeof(T); ++i)
                reversed |= static_cast<T>(((a >> i) & 1) << (8 * sizeof(T) - 1 - i));
            return reversed;
        });
        add(all, "bfind." + type_name<T>(), issue,
            [](T a) { return static_cast<std::uint32_t>(static_cast<int>(8 * sizeof(T)) - 1 - std::countl_zero(a)); });
        static constexpr auto low_bits = [](std::uint32_t n) {
            return n < 8 * sizeof(T) ? (T{1} << n) - 1 : static_cast<T>(~T{0});
        };
        add(all, "bfe." + type_name<T>(), issue, [](T a, std::uint32_t at, std::uint32_t n) {
            at &= 255, n &= 255;
            return at < 8 * sizeof(T) ? (a >> at) & low_bits(n) : T{0};
        });
        add(all, "bfe." + type_name<S>(), issue, [](S a, std::uint32_t at, std::uint32_t n) {
            at &= 255, n &= 255;
            if (n == 0) return S{0};
            const std::uint32_t most = 8 * sizeof(T) - 1, last = std::min(at + n - 1, most);  // position of the sign
            const S above = static_cast<S>(static_cast<T>(a) << (most - last));
            return static_cast<S>(above >> std::min(most, most - last + at));
        });
        add(all, "bfi" + type, issue, [](T a, T b, std::uint32_t at, std::uint32_t n) {
            at &= 255, n &= 255;
            const T mask = at < 8 * sizeof(T) ? static_cast<T>(low_bits(n) << at) : T{0};
            return static_cast<T>((b & ~mask) | (at < 8 * sizeof(T) ? (a << at) & mask : T{0}));
        });
        add(all, "cas" + type, issue, [](T old, T expected, T desired) { return old == expected ? desired : old; });
        add(all, "exch" + type, issue, [](T, T desired) { return desired; });
        add(all, "inc." + type_name<T>(), issue,
            [](T old, T last) { return old >= last ? T{0} : static_cast<T>(old + 1); });
    }
}

void add_words(Operations& all) {
    using u32 = std::uint32_t;
    using u64 = std::uint64_t;
    add(all, "lop3.b32", Issue::integer, [](u32 a, u32 b, u32 c, u32 table) {
        u32 result = 0;
        for (u32 k = 0; k < 8; ++k)
            if ((table >> k & 1) != 0)
                result |= ((k & 4) != 0 ? a : ~a) & ((k & 2) != 0 ? b : ~b) & ((k & 1) != 0 ? c : ~c);
        return result;
    });
    add(all, "prmt.b32", Issue::integer, [](u32 a, u32 b, u32 selector) {
        const u64 bytes = u64{b} << 32 | a;
        u32 result = 0;
        for (u32 k = 0; k < 4; ++k) {
            const u32 nibble = selector >> (4 * k) & 15, byte = static_cast<u32>(bytes >> (8 * (nibble & 7))) & 255;
            // Bit 3 repeats the byte's sign.
            result |= ((nibble & 8) == 0 ? byte : (byte & 128) != 0 ? 255u : 0u) << (8 * k);
        }
        return result;
    });
    add(all, "shf.l.wrap.b32", Issue::integer,
        [](u32 low, u32 high, u32 by) { return static_cast<u32>((u64{high} << 32 | low) << (by & 31) >> 32); });
    add(all, "shf.r.wrap.b32", Issue::integer,
        [](u32 low, u32 high, u32 by) { return static_cast<u32>((u64{high} << 32 | low) >> (by & 31)); });
    add(all, "shf.l.clamp.b32", Issue::integer, [](u32 low, u32 high, u32 by) {
        return by >= 32 ? low : static_cast<u32>((u64{high} << 32 | low) << by >> 32);
    });
    add(all, "shf.r.clamp.b32", Issue::integer,
        [](u32 low, u32 high, u32 by) { return by >= 32 ? high : static_cast<u32>((u64{high} << 32 | low) >> by); });
    // The decoder makes these of `mov` with a group.
    add(all, "pack", Issue::move,
        [](u64 packed, u64 part, u64 mask, u32 shift) { return packed | (part & mask) << shift; });
    add(all, "unpack", Issue::move, [](u64 packed, u64 mask, u32 shift) { return packed >> shift & mask; });
    for (const char* type :
         {"pred", "b16", "b32", "b64", "u16", "u32", "u64", "s16", "s32", "s64", "f16", "bf16", "f32", "f64"}) {
        add(all, std::string("mov.") + type, Issue::move, [](u64 a) { return a; });
        add(all, std::string("selp.") + type, Issue::integer, [](u64 a, u64 b, bool first) { return first ? a : b; });
    }
}

// ---- floats ----

template <class T>
void add_floats(Operations& all) {
    const std::string type = "." + type_name<T>();
    constexpr Issue issue = issue_of<T>();
    add(all, "add" + type, issue, [](T a, T b) { return a + b; });
    add(all, "sub" + type, issue, [](T a, T b) { return a - b; });
    add(all, "mul" + type, issue, [](T a, T b) { return a * b; });
    add(all, "fma" + type, issue, [](T a, T b, T c) { return std::fma(a, b, c); });
    add(all, "div" + type, Issue::precise, [](T a, T b) { return a / b; });
    add(all, "rcp" + type, Issue::precise, [](T a) { return T{1} / a; });
    add(all, "sqrt" + type, Issue::precise, [](T a) { return std::sqrt(a); });
    const auto directed = [&]<int mode>(const std::string& name, std::integral_constant<int, mode>) {
        add(all, "add." + name + type, issue,
            [](T a, T b) { return rounded<mode>([](T x, T y) { return x + y; }, a, b); });
        add(all, "sub." + name + type, issue,
            [](T a, T b) { return rounded<mode>([](T x, T y) { return x - y; }, a, b); });
        add(all, "mul." + name + type, issue,
            [](T a, T b) { return rounded<mode>([](T x, T y) { return x * y; }, a, b); });
        add(all, "div." + name + type, Issue::precise,
            [](T a, T b) { return rounded<mode>([](T x, T y) { return x / y; }, a, b); });
        add(all, "sqrt." + name + type, Issue::precise,
            [](T a) { return rounded<mode>([](T x) { return std::sqrt(x); }, a); });
        add(all, "fma." + name + type, issue,
            [](T a, T b, T c) { return rounded<mode>([](T x, T y, T z) { return std::fma(x, y, z); }, a, b, c); });
    };
    directed("rz", std::integral_constant<int, FE_TOWARDZERO>());
    directed("rm", std::integral_constant<int, FE_DOWNWARD>());
    directed("rp", std::integral_constant<int, FE_UPWARD>());
    add(all, "neg" + type, issue, [](T a) { return -a; });
    add(all, "abs" + type, issue, [](T a) { return std::fabs(a); });
    add(all, "copysign" + type, issue, [](T sign, T a) { return std::copysign(a, sign); });
    add_comparisons<T>(all, type_name<T>());
}

template <class T>
T least(T a, T b) {
    const double x = upcast(a), y = upcast(b);
    if (std::isnan(x) || std::isnan(y)) return std::isnan(x) ? b : a;
    return x < y || (x == y && std::signbit(x)) ? a : b;
}
template <class T>
T greatest(T a, T b) {
    const double x = upcast(a), y = upcast(b);
    if (std::isnan(x) || std::isnan(y)) return std::isnan(x) ? b : a;
    return x > y || (x == y && !std::signbit(x)) ? a : b;
}
template <class T>
void add_extremes(Operations& all) {
    add(all, "min." + type_name<T>(), issue_of<T>(), [](T a, T b) { return least(a, b); });
    add(all, "max." + type_name<T>(), issue_of<T>(), [](T a, T b) { return greatest(a, b); });
}

// Sums and products are exact in f64, or inexact in bits that do not reach 16; the sum of an fma needs care.
template <class T>
struct HalfMath {
    static T add(T a, T b) { return downcast<T>(sum_to_odd(upcast(a), upcast(b))); }
    static T sub(T a, T b) { return downcast<T>(sum_to_odd(upcast(a), -upcast(b))); }
    static T mul(T a, T b) { return downcast<T>(upcast(a) * upcast(b)); }
    static T fma(T a, T b, T c) { return downcast<T>(sum_to_odd(upcast(a) * upcast(b), upcast(c))); }
    static T neg(T a) { return T{static_cast<std::uint16_t>(a.bits ^ 0x8000u)}; }
    static T abs(T a) { return T{static_cast<std::uint16_t>(a.bits & 0x7fffu)}; }
};

template <class T>
void add_half_types(Operations& all) {
    using M = HalfMath<T>;
    using P = Pair<T>;
    const std::string one = "." + type_name<T>(), two = one + "x2";
    add(all, "add" + one, Issue::half, [](T a, T b) { return M::add(a, b); });
    add(all, "sub" + one, Issue::half, [](T a, T b) { return M::sub(a, b); });
    add(all, "mul" + one, Issue::half, [](T a, T b) { return M::mul(a, b); });
    add(all, "fma" + one, Issue::half, [](T a, T b, T c) { return M::fma(a, b, c); });
    add(all, "neg" + one, Issue::half, [](T a) { return M::neg(a); });
    add(all, "abs" + one, Issue::half, [](T a) { return M::abs(a); });
    add(all, "add" + two, Issue::half, [](P a, P b) { return P{M::add(a.low, b.low), M::add(a.high, b.high)}; });
    add(all, "sub" + two, Issue::half, [](P a, P b) { return P{M::sub(a.low, b.low), M::sub(a.high, b.high)}; });
    add(all, "mul" + two, Issue::half, [](P a, P b) { return P{M::mul(a.low, b.low), M::mul(a.high, b.high)}; });
    add(all, "fma" + two, Issue::half, [](P a, P b, P c) {
        return P{M::fma(a.low, b.low, c.low), M::fma(a.high, b.high, c.high)};
    });
    add(all, "neg" + two, Issue::half, [](P a) { return P{M::neg(a.low), M::neg(a.high)}; });
    add(all, "abs" + two, Issue::half, [](P a) { return P{M::abs(a.low), M::abs(a.high)}; });
    add(all, "min" + two, Issue::half, [](P a, P b) { return P{least(a.low, b.low), least(a.high, b.high)}; });
    add(all, "max" + two, Issue::half, [](P a, P b) { return P{greatest(a.low, b.low), greatest(a.high, b.high)}; });
    add(all, "cvt" + two + ".f32", Issue::conversion, [](float high, float low) {
        return P{downcast<T>(upcast(low)), downcast<T>(upcast(high))};
    });
    add(all, "cvt" + one + ".f32", Issue::conversion, [](float a) { return downcast<T>(upcast(a)); });
    add(all, "cvt" + one + ".f64", Issue::conversion, [](double a) { return downcast<T>(a); });
    constexpr int mantissa_bits = std::is_same_v<T, Half> ? 10 : 7;
    add(all, "cvt.rz" + one + ".f32", Issue::conversion,
        [](float a) { return downcast_to<mantissa_bits>(upcast(a), true); });
    add(all, "cvt.f32" + one, Issue::conversion, [](T a) { return static_cast<float>(upcast(a)); });
    add(all, "cvt.f64" + one, Issue::conversion, [](T a) { return upcast(a); });
    add_extremes<T>(all);
    add_comparisons<T>(all, type_name<T>());
}

// ---- approximations ----

float flushed(float a) { return std::fpclassify(a) == FP_SUBNORMAL ? std::copysign(0.0f, a) : a; }
double upper_word(double a) { return std::bit_cast<double>(std::bit_cast<std::uint64_t>(a) & 0xffffffff00000000u); }

/// Cards may be off by a few units in the last place; these are the rounded true values.
template <class F>
void add_approximation(Operations& all, const std::string& name, F) {
    add(all, name + ".approx.f32", Issue::special, [](float a) { return static_cast<float>(F{}(upcast(a))); });
    add(all, name + ".approx.ftz.f32", Issue::special,
        [](float a) { return flushed(static_cast<float>(F{}(upcast(flushed(a))))); });
}

void add_approximations(Operations& all) {
    add_approximation(all, "ex2", [](double a) { return std::exp2(a); });
    add_approximation(all, "lg2", [](double a) { return std::log2(a); });
    add_approximation(all, "rcp", [](double a) { return 1 / a; });
    add_approximation(all, "sqrt", [](double a) { return std::sqrt(a); });
    add_approximation(all, "rsqrt", [](double a) { return 1 / std::sqrt(a); });
    add_approximation(all, "sin", [](double a) { return std::sin(a); });
    add_approximation(all, "cos", [](double a) { return std::cos(a); });
    add(all, "tanh.approx.f32", Issue::special, [](float a) { return static_cast<float>(std::tanh(upcast(a))); });
    for (const char* division : {"div.approx.f32", "div.full.f32"})
        add(all, division, Issue::special, [](float a, float b) { return static_cast<float>(upcast(a) / upcast(b)); });
    add(all, "div.approx.ftz.f32", Issue::special,
        [](float a, float b) { return flushed(static_cast<float>(upcast(flushed(a)) / upcast(flushed(b)))); });
    // Only the upper word of the f64 is read, and the lower word of the result is zero.
    add(all, "rcp.approx.ftz.f64", Issue::special, [](double a) {
        const double input = upper_word(a);
        if (std::fpclassify(input) == FP_SUBNORMAL)
            return std::copysign(std::numeric_limits<double>::infinity(), input);
        const double result = upper_word(1 / input);
        return std::fpclassify(result) == FP_SUBNORMAL ? std::copysign(0.0, result) : result;
    });
    add(all, "rsqrt.approx.ftz.f64", Issue::special, [](double a) { return upper_word(1 / std::sqrt(upper_word(a))); });
}

// ---- conversions ----

template <class To, class From>
void add_conversion(Operations& all) {
    const std::string types = "." + type_name<To>() + "." + type_name<From>();
    constexpr Issue issue = Issue::conversion;
    if constexpr (std::is_integral_v<To> && std::is_integral_v<From>) {
        // Widening to 64 bits or narrowing from them takes no instruction or a move.
        add(all, "cvt" + types, Issue::move, [](From a) { return static_cast<To>(a); });
        add(all, "cvt.sat" + types, Issue::integer, [](From a) {
            const __int128 low = std::numeric_limits<To>::min(), high = std::numeric_limits<To>::max();
            return static_cast<To>(std::clamp<__int128>(a, low, high));
        });
    } else if constexpr (std::is_integral_v<To>) {
        add(all, "cvt.rzi" + types, issue, [](From a) { return to_integer<To>(std::trunc(a)); });
        add(all, "cvt.rni" + types, issue, [](From a) { return to_integer<To>(std::nearbyint(a)); });
        add(all, "cvt.rmi" + types, issue, [](From a) { return to_integer<To>(std::floor(a)); });
        add(all, "cvt.rpi" + types, issue, [](From a) { return to_integer<To>(std::ceil(a)); });
    } else {
        add(all, "cvt" + types, issue, [](From a) { return static_cast<To>(a); });
    }
}
template <class To, class... From>
void add_conversions_to(Operations& all) {
    (add_conversion<To, From>(all), ...);
}
template <class... Types>
void add_conversions(Operations& all) {
    (add_conversions_to<Types, Types...>(all), ...);
}
template <class T>
void add_integral_floats(Operations& all) {
    const std::string types = "." + type_name<T>() + "." + type_name<T>();
    add(all, "cvt.rzi" + types, Issue::conversion, [](T a) { return std::trunc(a); });
    add(all, "cvt.rni" + types, Issue::conversion, [](T a) { return std::nearbyint(a); });
    add(all, "cvt.rmi" + types, Issue::conversion, [](T a) { return std::floor(a); });
    add(all, "cvt.rpi" + types, Issue::conversion, [](T a) { return std::ceil(a); });
    add(all, "cvt.sat" + types, Issue::conversion, [](T a) { return a > T{0} ? std::min(a, T{1}) : T{0}; });  // NaN: 0
}

template <class... Types>
void add_integer_types(Operations& all) {
    (add_integers<Types>(all), ...);
}

Operations make_operations() {
    Operations all;
    add_integer_types<std::uint16_t, std::int16_t, std::uint32_t, std::int32_t, std::uint64_t, std::int64_t>(all);
    add_bits<bool>(all);
    add_bits<std::uint16_t>(all);
    add_bits<std::uint32_t>(all);
    add_bits<std::uint64_t>(all);
    add_words(all);
    add_floats<float>(all);
    add_floats<double>(all);
    add_extremes<float>(all);
    add_extremes<double>(all);
    add_half_types<Half>(all);
    add_half_types<BFloat>(all);
    add_approximations(all);
    add_conversions<std::uint8_t, std::int8_t, std::uint16_t, std::int16_t, std::uint32_t, std::int32_t, std::uint64_t,
                    std::int64_t, float, double>(all);
    add_integral_floats<float>(all);
    add_integral_floats<double>(all);
    return all;
}

}  // namespace

const Operation* find_operation(const std::string& opcode) {
    static const Operations all = make_operations();
    auto found = all.find(opcode);
    if (const auto nearest = opcode.find(".rn."); found == all.end() && nearest != std::string::npos)
        found = all.find(opcode.substr(0, nearest) + opcode.substr(nearest + 3));
    return found == all.end() ? nullptr : &found->second;
}

}  // namespace lockstep::ptx
