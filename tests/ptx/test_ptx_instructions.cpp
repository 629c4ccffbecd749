// Single instructions in PTX written by hand, compared with formulas that share nothing with the interpreter.
#include <cmath>
#include <limits>

#include "lockstep/tests/ptx/fixture.h"

using namespace lockstep::ptx;

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity(), quiet_nan = std::numeric_limits<float>::quiet_NaN();

std::string register_type(const std::string& type) {
    return type.find("16x2") != std::string::npos ? "b32" : type.find("16") != std::string::npos ? "b16" : type;
}

/// Applies an opcode to lanes: inputs of the given types, one result.
template <class Out, class... In>
std::vector<Out> apply(const std::string& opcode, const std::string& out_type, const std::vector<std::string>& in_types,
                       const std::vector<In>&... inputs) {
    std::string parameter_list = ".param .u64 to", registers = fmt::format(".reg .{} %out;\n", register_type(out_type)),
                loads, operands;
    for (std::size_t i = 0; i < in_types.size(); ++i) {
        const std::string type = register_type(in_types[i]);
        parameter_list += fmt::format(", .param .u64 from{}", i);
        registers += fmt::format(".reg .{} %in{};\n", type, i);
        loads += fmt::format(
            "ld.param.u64 %rd1, [from{0}]; mad.wide.u32 %rd1, %r1, {1}, %rd1; ld.global.{2} %in{0}, [%rd1];\n", i,
            (std::vector<std::size_t>{sizeof(In)...})[i], type);
        operands += fmt::format(", %in{}", i);
    }
    Program program(
        fmt::format(".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry one({})\n{{\n.reg .b32 %r<2>;\n"
                    ".reg .b64 %rd<3>;\n{}mov.u32 %r1, %tid.x;\n{}{} %out{};\nld.param.u64 %rd2, [to];\n"
                    "mad.wide.u32 %rd2, %r1, {}, %rd2;\nst.global.{} [%rd2], %out;\nret;\n}}\n",
                    parameter_list, registers, loads, opcode, operands, sizeof(Out), register_type(out_type)));
    const std::size_t count = std::max({inputs.size()...});
    Out* const to = program.array<Out>(count);
    program.run_right("one", sized(1, static_cast<unsigned>(count)), to, program.copy(inputs)...);
    return std::vector<Out>(to, to + count);
}

std::vector<float> some_floats() {
    return {0.0f,     -0.0f,   1.0f,    -1.0f,   0.5f,       1.5f,       2.5f,        -2.5f,         3.75f,    1e-3f,
            1e10f,    -1e10f,  3e38f,   1e-40f,  infinity,   -infinity,  quiet_nan,   2147483647.0f, 65504.0f, 65519.0f,
            65520.0f, 6.1e-5f, 5.9e-8f, 2.9e-8f, 1.0009765f, 1.0004883f, 1.00390625f, 1.005f};
}

bool same(float a, float b) {
    return (std::isnan(a) && std::isnan(b)) || (a == b && std::signbit(a) == std::signbit(b));
}

/// The value of a 16-bit float by its definition.
double value_of(std::uint32_t bits, int exponent_bits, int mantissa_bits) {
    const int bias = (1 << (exponent_bits - 1)) - 1, most = (1 << exponent_bits) - 1;
    const int exponent = static_cast<int>(bits >> mantissa_bits) & most,
              mantissa = static_cast<int>(bits) & ((1 << mantissa_bits) - 1);
    const double sign = (bits >> 15 & 1) != 0 ? -1 : 1;
    if (exponent == most) return mantissa != 0 ? quiet_nan : sign * infinity;
    if (exponent == 0) return sign * mantissa * std::pow(2.0, 1 - bias - mantissa_bits);
    return sign * (1 + mantissa / std::pow(2.0, mantissa_bits)) * std::pow(2.0, exponent - bias);
}

/// The nearest 16-bit float, found by trying all; of two that are equally near the even one.
std::uint16_t nearest(double x, int exponent_bits, int mantissa_bits) {
    if (std::isnan(x)) return 0x7fff;
    const std::uint32_t sign = std::signbit(x) ? 0x8000u : 0u, end = ((1u << exponent_bits) - 1) << mantissa_bits;
    // Infinity takes the place of the next value that a larger exponent would have.
    const double beyond = std::pow(2.0, 1 << (exponent_bits - 1));
    std::uint32_t best = 0;
    double best_distance = std::fabs(x);
    for (std::uint32_t bits = 1; bits <= end && !std::isinf(x); ++bits) {
        const double distance =
            std::fabs(std::fabs(x) - (bits == end ? beyond : value_of(bits, exponent_bits, mantissa_bits)));
        if (distance < best_distance || (distance == best_distance && bits % 2 == 0))
            best = bits, best_distance = distance;
    }
    return static_cast<std::uint16_t>(sign | (std::isinf(x) ? end : best));
}

}  // namespace

TEST_CASE("16-bit floats are rounded to nearest") {
    const std::vector<float> x = some_floats();
    const auto halves = apply<std::uint16_t>("cvt.rn.f16.f32", "f16", {"f32"}, x);
    const auto bfloats = apply<std::uint16_t>("cvt.rn.bf16.f32", "bf16", {"f32"}, x);
    const auto pairs = apply<std::uint32_t>("cvt.rn.bf16x2.f32", "bf16x2", {"f32", "f32"}, x,
                                            std::vector<float>(x.rbegin(), x.rend()));
    for (std::size_t i = 0; i < x.size(); ++i) {
        CAPTURE(x[i]);
        CHECK(halves[i] == nearest(static_cast<double>(x[i]), 5, 10));
        CHECK(bfloats[i] == nearest(static_cast<double>(x[i]), 8, 7));
        CHECK(pairs[i] == (static_cast<std::uint32_t>(bfloats[i]) << 16 | bfloats[x.size() - 1 - i]));
    }
    const auto back = apply<float>("cvt.f32.f16", "f32", {"f16"}, halves);
    for (std::size_t i = 0; i < x.size(); ++i) CHECK(same(back[i], static_cast<float>(value_of(halves[i], 5, 10))));
}

TEST_CASE("16-bit arithmetic is rounded once") {
    // In f64 the first sum is exactly between two values of f16: its last addend decides.
    const std::vector<std::uint16_t> a{0x3c01, 0x3c01, 0x3c01, 0x7bff, 0x0001, 0x5640, 0xbc00},
        b{0x3c01, 0x3c03, 0x3c01, 0x4000, 0x3800, 0x2e66, 0x3c00},
        c{0x0001, 0x8001, 0x3c00, 0xfbff, 0x0000, 0x3c00, 0x3c00};
    const auto products = apply<std::uint16_t>("mul.f16", "f16", {"f16", "f16"}, a, b);
    const auto sums = apply<std::uint16_t>("add.f16", "f16", {"f16", "f16"}, a, c);
    const auto fused = apply<std::uint16_t>("fma.rn.f16", "f16", {"f16", "f16", "f16"}, a, b, c);
    for (std::size_t i = 0; i < a.size(); ++i) {
        CAPTURE(i);
        const double x = value_of(a[i], 5, 10), y = value_of(b[i], 5, 10), z = value_of(c[i], 5, 10);
        CHECK(products[i] == nearest(x * y, 5, 10));
        CHECK(sums[i] == nearest(x + z, 5, 10));
        CHECK(fused[i] == nearest(x * y + z, 5, 10));  // these sums have at most 48 bits
    }
}

TEST_CASE("directed rounding encloses the exact result") {
    const std::vector<float> a{1.1f, -1.1f, 3.3333f, 1e-3f, 123.456f, -7.7f},
        b{1e-7f, 1e-7f, 1.25e-5f, 1.7f, -0.0123f, 1e-6f};
    const auto check = [&](const std::string& name, auto exact) {
        const auto down = apply<float>(name + ".rm.f32", "f32", {"f32", "f32"}, a, b),
                   up = apply<float>(name + ".rp.f32", "f32", {"f32", "f32"}, a, b),
                   to_zero = apply<float>(name + ".rz.f32", "f32", {"f32", "f32"}, a, b),
                   near = apply<float>(name + ".rn.f32", "f32", {"f32", "f32"}, a, b);
        for (std::size_t i = 0; i < a.size(); ++i) {
            CAPTURE(name, i);
            const double truth = exact(static_cast<double>(a[i]), static_cast<double>(b[i]));
            CHECK(static_cast<double>(down[i]) < truth);
            CHECK(static_cast<double>(up[i]) > truth);
            CHECK(std::nextafter(down[i], infinity) == up[i]);
            CHECK(to_zero[i] == (truth > 0 ? down[i] : up[i]));
            CHECK(near[i] == static_cast<float>(truth));
        }
    };
    check("add", [](double x, double y) { return x + y; });
    check("mul", [](double x, double y) { return x * y; });
    const auto fused = apply<float>("fma.rm.f32", "f32", {"f32", "f32", "f32"}, a, b, a);
    for (std::size_t i = 0; i < a.size(); ++i) {
        const double truth = static_cast<double>(a[i]) * static_cast<double>(b[i]) + static_cast<double>(a[i]);
        CHECK(static_cast<double>(fused[i]) <= truth);
        CHECK(static_cast<double>(std::nextafter(fused[i], infinity)) > truth);
    }
}

TEST_CASE("floats are converted to integers") {
    const std::vector<float> x = some_floats();
    const auto to_s32 = apply<std::int32_t>("cvt.rzi.s32.f32", "s32", {"f32"}, x);
    const auto to_u32 = apply<std::uint32_t>("cvt.rni.u32.f32", "u32", {"f32"}, x);
    const auto to_s64 = apply<std::int64_t>("cvt.rmi.s64.f32", "s64", {"f32"}, x);
    for (std::size_t i = 0; i < x.size(); ++i) {
        CAPTURE(x[i]);
        const auto v = static_cast<double>(x[i]);
        const double clamped = std::isnan(v) ? 0 : std::min(std::max(std::trunc(v), -2147483648.0), 2147483647.0);
        CHECK(to_s32[i] == static_cast<std::int32_t>(clamped));
        // Halves are rounded to even numbers.
        double rounded = std::floor(v + 0.5);
        if (rounded - v == 0.5 && std::fmod(rounded, 2) != 0) rounded -= 1;
        CHECK(to_u32[i] ==
              (std::isnan(v) ? 0u : static_cast<std::uint32_t>(std::min(std::max(rounded, 0.0), 4294967295.0))));
        if (std::isnan(v) || v < -9e18) {
            CHECK(to_s64[i] == std::numeric_limits<std::int64_t>::min());
        } else {
            CHECK(to_s64[i] ==
                  (v > 9e18 ? std::numeric_limits<std::int64_t>::max() : static_cast<std::int64_t>(std::floor(v))));
        }
    }
    const auto saturated = apply<float>("cvt.sat.f32.f32", "f32", {"f32"}, x);
    for (std::size_t i = 0; i < x.size(); ++i)
        CHECK(saturated[i] == (std::isnan(x[i]) || x[i] < 0 ? 0.0f : x[i] > 1 ? 1.0f : x[i]));
}

TEST_CASE("comparisons with NaN are ordered or unordered") {
    const std::vector<float> a{1, 2, 2, quiet_nan, quiet_nan, -0.0f, infinity},
        b{2, 1, 2, 1, quiet_nan, 0.0f, infinity};
    const auto compare = [&](const std::string& how) {
        // setp through selp: a predicate cannot be stored.
        return apply<std::uint32_t>(
            fmt::format("{{ .reg .pred p; setp.{}.f32 p, %in0, %in1; selp.u32 %out, 1, 0, p; }} mov.u32 %out, %out; //",
                        how),
            "u32", {"f32", "f32"}, a, b);
    };
    for (std::size_t i = 0; i < a.size(); ++i) {
        CAPTURE(i);
        const bool unordered = std::isnan(a[i]) || std::isnan(b[i]);
        CHECK(compare("lt")[i] == (!unordered && a[i] < b[i]));
        CHECK(compare("ltu")[i] == (unordered || a[i] < b[i]));
        CHECK(compare("ne")[i] == (!unordered && a[i] != b[i]));
        CHECK(compare("neu")[i] == (unordered || a[i] != b[i]));
        CHECK(compare("equ")[i] == (unordered || a[i] == b[i]));
        CHECK(compare("num")[i] == !unordered);
        CHECK(compare("nan")[i] == unordered);
    }
    const auto least = apply<float>("min.f32", "f32", {"f32", "f32"}, a, b),
               most = apply<float>("max.f32", "f32", {"f32", "f32"}, a, b);
    CHECK(least[3] == 1);
    CHECK(most[3] == 1);
    CHECK(std::isnan(least[4]));
    CHECK(std::signbit(least[5]));
    CHECK_FALSE(std::signbit(most[5]));
}

TEST_CASE("bit manipulation") {
    const std::vector<std::uint32_t> a{0x12345678, 0xffffffff, 0x80000001, 0, 0xdeadbeef, 7},
        b{0x9abcdef0, 1, 0x7fffffff, 0, 0xcafebabe, 35}, at{4, 0, 31, 8, 12, 40}, n{8, 32, 1, 0, 25, 3};
    const auto extracted = apply<std::uint32_t>("bfe.u32", "u32", {"u32", "u32", "u32"}, a, at, n);
    const auto extended = apply<std::int32_t>("bfe.s32", "s32", {"s32", "u32", "u32"}, a, at, n);
    const auto inserted = apply<std::uint32_t>("bfi.b32", "b32", {"b32", "b32", "u32", "u32"}, a, b, at, n);
    const auto merged = apply<std::uint32_t>("lop3.b32", "b32", {"b32", "b32", "b32", "u32"}, a, b, at,
                                             std::vector<std::uint32_t>(6, 0xca));
    const auto left = apply<std::uint32_t>("shl.b32", "b32", {"b32", "u32"}, a, at);
    const auto right = apply<std::int32_t>("shr.s32", "s32", {"s32", "u32"}, a, at);
    // Bytes 2, 5 and 1, and the sign of byte 3.
    const auto permuted =
        apply<std::uint32_t>("prmt.b32", "b32", {"b32", "b32", "u32"}, a, b, std::vector<std::uint32_t>(6, 0xb152));
    const auto funnel = apply<std::uint32_t>("shf.r.wrap.b32", "b32", {"b32", "b32", "u32"}, a, b, at);
    for (std::size_t i = 0; i < a.size(); ++i) {
        CAPTURE(i);
        const auto bit = [](std::uint32_t value, std::uint32_t k) { return k < 32 ? value >> k & 1 : 0; };
        std::uint32_t field = 0, signed_field = 0, into = b[i], choice = 0, shifted_left = 0, shifted_right = 0,
                      both = 0;
        const std::uint32_t sign = bit(a[i], std::min(at[i] + n[i] - 1, 31u));
        for (std::uint32_t k = 0; k < 32; ++k) {
            if (k < n[i]) field |= bit(a[i], at[i] + k) << k;
            if (n[i] != 0) signed_field |= (k < n[i] && at[i] + k < 32 ? bit(a[i], at[i] + k) : sign) << k;
            if (k >= at[i] && k < at[i] + n[i]) into = (into & ~(1u << k)) | bit(a[i], k - at[i]) << k;
            choice |= (bit(a[i], k) != 0 ? bit(b[i], k) : bit(at[i], k)) << k;  // 0xca: a ? b : c
            if (k >= at[i]) shifted_left |= bit(a[i], k - at[i]) << k;
            shifted_right |= bit(a[i], std::min(k + at[i], 31u)) << k;
            const std::uint32_t from = k + at[i] % 32;
            both |= (from < 32 ? bit(a[i], from) : bit(b[i], from - 32)) << k;
        }
        CHECK(extracted[i] == field);
        CHECK(extended[i] == static_cast<std::int32_t>(signed_field));
        CHECK(inserted[i] == into);
        CHECK(merged[i] == choice);
        CHECK(left[i] == shifted_left);
        CHECK(right[i] == static_cast<std::int32_t>(shifted_right));
        CHECK(funnel[i] == both);
        CHECK(permuted[i] == ((a[i] >> 16 & 255) | (b[i] >> 8 & 255) << 8 | (a[i] >> 8 & 255) << 16 |
                              (bit(a[i], 31) != 0 ? 0xff000000u : 0u)));
    }
}

TEST_CASE("instructions with a carry compute numbers of several words") {
    // (high, low) of 64-bit numbers by words of 32 bits; a thread's carry does not reach its neighbours.
    const std::vector<std::uint64_t> a{0, 1, 0xffffffff, 0xffffffffffffffff, 0x123456789abcdef0, 0x80000000ffffffff},
        b{0, 0xffffffff, 1, 1, 0xfedcba9876543210, 0x80000000ffffffff};
    Program program(R"(.version 8.0
        .target sm_80
        .address_size 64
        .visible .entry words(.param .u64 to, .param .u64 from_a, .param .u64 from_b)
        {
        .reg .b32 %r<16>;
        .reg .b64 %rd<6>;
        mov.u32 %r0, %tid.x;
        ld.param.u64 %rd0, [from_a]; mad.wide.u32 %rd0, %r0, 8, %rd0; ld.global.u32 %r1, [%rd0]; ld.global.u32 %r2, [%rd0+4];
        ld.param.u64 %rd1, [from_b]; mad.wide.u32 %rd1, %r0, 8, %rd1; ld.global.u32 %r3, [%rd1]; ld.global.u32 %r4, [%rd1+4];
        add.cc.u32 %r5, %r1, %r3;
        addc.u32 %r6, %r2, %r4;
        sub.cc.u32 %r7, %r1, %r3;
        subc.cc.u32 %r8, %r2, %r4;
        subc.u32 %r9, 0, 0;
        mul.lo.u32 %r10, %r1, %r3;
        mul.hi.u32 %r11, %r1, %r3;
        mad.lo.cc.u32 %r11, %r1, %r4, %r11;
        madc.hi.u32 %r12, %r1, %r4, 0;
        mad.lo.cc.u32 %r11, %r2, %r3, %r11;
        madc.hi.cc.u32 %r12, %r2, %r3, %r12;
        addc.u32 %r13, 0, 0;
        mad.lo.cc.u32 %r12, %r2, %r4, %r12;
        madc.hi.u32 %r13, %r2, %r4, %r13;
        ld.param.u64 %rd2, [to]; mad.wide.u32 %rd2, %r0, 36, %rd2;
        st.global.u32 [%rd2], %r5; st.global.u32 [%rd2+4], %r6;
        st.global.u32 [%rd2+8], %r7; st.global.u32 [%rd2+12], %r8; st.global.u32 [%rd2+16], %r9;
        st.global.u32 [%rd2+20], %r10; st.global.u32 [%rd2+24], %r11;
        st.global.u32 [%rd2+28], %r12; st.global.u32 [%rd2+32], %r13;
        ret;
        }
)");
    auto* const to = program.array<std::uint32_t>(9 * a.size());
    program.run_right("words", sized(1, static_cast<unsigned>(a.size())), to, program.copy(a), program.copy(b));
    const auto pair = [&](std::size_t i) { return std::uint64_t{to[i + 1]} << 32 | to[i]; };
    for (std::size_t i = 0; i < a.size(); ++i) {
        CAPTURE(i);
        CHECK(pair(9 * i) == a[i] + b[i]);
        CHECK(pair(9 * i + 2) == a[i] - b[i]);
        CHECK(to[9 * i + 4] == (a[i] < b[i] ? 0xffffffff : 0));
        const unsigned __int128 product = static_cast<unsigned __int128>(a[i]) * b[i];
        CHECK(pair(9 * i + 5) == static_cast<std::uint64_t>(product));
        CHECK(pair(9 * i + 7) == static_cast<std::uint64_t>(product >> 64));
    }
}

TEST_CASE("an unknown instruction is listed and ends a launch") {
    Program program(
        ".version 8.0\n.target sm_80\n.address_size 64\n.entry good() { ret; }\n"
        ".entry bad() {\n.reg .f32 %f<2>;\nfrobnicate.rn.f32 %f1, %f0;\nld.global.sideways.f32 %f0, [%f1];\nret; }\n");
    CHECK(program.module.kernel("good").unknown.empty());
    const auto& unknown = program.module.kernel("bad").unknown;
    REQUIRE(unknown.size() == 2);
    CHECK(unknown[0].find("\"frobnicate.rn.f32\"") != std::string::npos);
    CHECK(unknown[0].find("PTX line 7") != std::string::npos);
    CHECK(unknown[0].find("make_operations() in tests/ptx/arithmetic.cpp") != std::string::npos);
    CHECK(unknown[0].find("Decoder::instruction() in tests/ptx/decode.cpp") != std::string::npos);
    CHECK(unknown[1].find("modifier .sideways") != std::string::npos);
    program.run_right("good", sized(1, 1));
    CHECK_THROWS_AS(program.run("bad", sized(1, 1)), std::runtime_error);
}

TEST_CASE("malformed text is rejected with its line") {
    const auto message = [](std::string_view text) {
        try {
            parse_module(text);
        } catch (const std::runtime_error& error) {
            return std::string(error.what());
        }
        return std::string();
    };
    CHECK(message(".entry k() {\nadd.s32 %r1, [%r2;\n}") == "PTX line 2: unexpected \";\"; expected \"]\"");
    CHECK(message(".entry k() {\nbra nowhere;\n}") == "PTX line 2: label not found: nowhere");
    CHECK(message(".entry k() {\nmov.u32 %r1, 12x;\n}") == "PTX line 2: \"12x\" is not a number");
    CHECK(message(".entry k() {\n.branchtargets a, b;\n}") ==
          "PTX line 2: unknown directive \".branchtargets\"; add it to Parser::statement() in tests/ptx/syntax.cpp");
    CHECK(message(".entry k(.param .u128 x) {\nret;\n}") ==
          "PTX line 1: unknown word \".u128\"; add it to Parser::variable() in tests/ptx/syntax.cpp");
    CHECK(message(".entry k() {\nret;\n") == "PTX line 2: unexpected end of the text");
}
