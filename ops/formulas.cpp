// Functions of every element that are formulas of others. 16-bit inputs are computed in f32 and rounded once.
#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <numbers>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/internal/checked_args.h"
#include "lockstep/ops/internal/integer_functions.h"
#include "lockstep/runtime/error.h"

namespace lockstep {

namespace {

template <class F>
Tensor formula(const char* name, const Tensor& given, F function) {
    const CheckedArgs call(name, {arg::real("the tensor", given)});
    return function(widened(call[0])).to(call[0].dtype());
}

template <class F>
Tensor formula(const char* name, const Tensor& given_a, const Tensor& given_b, F function) {
    const CheckedArgs call(name, {arg::real("the first tensor", given_a), arg::real("the second tensor", given_b)});
    return function(widened(call[0]), widened(call[1])).to(call[0].dtype());
}

/// The largest number of a floating dtype.
double largest(DType dtype) {
    switch (dtype) {
        case DType::f64: return std::numeric_limits<double>::max();
        case DType::f16: return 65504;
        case DType::bf16: return 0x1.FEp127;
        default: return static_cast<double>(std::numeric_limits<float>::max());
    }
}

void require_not_negative(const char* name, double lambd) {
    if (!(lambd >= 0)) throw InvalidArgument(fmt::format("{}: invalid lambd ({}); expected 0 or more", name, lambd));
}

}  // namespace

Tensor trunc(const Tensor& x) {
    if (integers::is_one(x)) return x.clone();
    return formula("trunc", x, [](const Tensor& wide) { return where(wide < 0, ceil(wide), floor(wide)); });
}

Tensor frac(const Tensor& x) {
    return formula("frac", x, [](const Tensor& wide) { return wide - trunc(wide.detach()); });
}

Tensor remainder(const Tensor& given, Scalar divisor) {
    const CheckedArgs call("remainder", {arg::any("the tensor", given)});
    if (!is_floating(call[0].dtype()) && divisor.is_integer())
        return remainder(call[0], integers::number("remainder", divisor, call[0]));
    const double number = divisor.value();
    return formula("remainder", call[0], [number](const Tensor& x) {
        const Tensor rest = fmod(x, number), other_sign = number < 0 ? rest > 0 : rest < 0;
        return where(other_sign, rest + number, rest);
    });
}

Tensor threshold(const Tensor& given, double threshold, double value) {
    const CheckedArgs call("threshold", {arg::floating("the tensor", given)});
    return where(call[0] <= threshold, value, call[0]);  // NaN remains
}

Tensor hardshrink(const Tensor& given, double lambd) {
    require_not_negative("hardshrink", lambd);
    const CheckedArgs call("hardshrink", {arg::floating("the tensor", given)});
    return where(logical_and(call[0] >= -lambd, call[0] <= lambd), 0, call[0]);
}

Tensor softshrink(const Tensor& x, double lambd) {
    require_not_negative("softshrink", lambd);
    return formula("softshrink", x, [=](const Tensor& wide) {
        return where(wide > lambd, wide - lambd, where(wide < -lambd, wide + lambd, where(isnan(wide), wide, 0)));
    });
}

Tensor tanhshrink(const Tensor& x) {
    return formula("tanhshrink", x, [](const Tensor& wide) { return wide - tanh(wide); });
}

Tensor logit(const Tensor& x, std::optional<double> eps) {
    return formula("logit", x, [=](const Tensor& wide) {
        const Tensor p = eps ? clamp(wide, *eps, 1 - *eps) : wide;
        return log(p / (1.0 - p));
    });
}

Tensor logaddexp(const Tensor& a, const Tensor& b) {
    return formula("logaddexp", a, b, [](const Tensor& x, const Tensor& y) {
        // Equal infinities have no difference.
        const Tensor larger = maximum(x, y), apart = where(isinf(larger), 0, minimum(x, y) - larger);
        return where(isinf(larger), larger, larger + log1p(exp(apart)));
    });
}

Tensor logaddexp2(const Tensor& a, const Tensor& b) {
    return formula("logaddexp2", a, b, [](const Tensor& x, const Tensor& y) {
        const Tensor larger = maximum(x, y), apart = where(isinf(larger), 0, minimum(x, y) - larger);
        return where(isinf(larger), larger, larger + log1p(exp2(apart)) / std::numbers::ln2);
    });
}

Tensor heaviside(const Tensor& given, const Tensor& given_values) {
    const CheckedArgs call("heaviside", {arg::promoted("the tensor", given), arg::promoted("values", given_values)});
    const Tensor x = call[0].detach(), values = call[1].detach();
    const Tensor step = (x > 0).to(x.dtype());
    return where(eq(x, 0), values, is_floating(x.dtype()) ? where(ne(x, x), x, step) : step);
}

Tensor deg2rad(const Tensor& x) {
    return formula("deg2rad", x, [](const Tensor& wide) { return wide * (std::numbers::pi / 180); });
}

Tensor rad2deg(const Tensor& x) {
    return formula("rad2deg", x, [](const Tensor& wide) { return wide * (180 / std::numbers::pi); });
}

Tensor isclose(const Tensor& given_a, const Tensor& given_b, double rtol, double atol, bool equal_nan) {
    constexpr const char* name = "isclose";
    const CheckedArgs call(name,
                           {arg::promoted("the first tensor", given_a), arg::promoted("the second tensor", given_b)});
    if (!(rtol >= 0 && atol >= 0))
        throw InvalidArgument(fmt::format("{}: rtol {} and atol {}; expected 0 or more", name, rtol, atol));
    const Tensor a = call[0].detach(), b = call[1].detach(), same = eq(a, b);
    if (!is_floating(a.dtype()) && rtol == 0 && atol == 0) return same;
    // Integers as f64: 2^53 and its successor differ.
    const DType wide = a.dtype() == DType::f64 || !is_floating(a.dtype()) ? DType::f64 : DType::f32;
    const Tensor x = a.to(wide), y = b.to(wide);
    const Tensor close = logical_and(isfinite(y), abs(x - y) <= abs(y) * rtol + atol);
    const Tensor either = logical_or(same, close);
    return equal_nan ? logical_or(either, logical_and(isnan(x), isnan(y))) : either;
}

Tensor xlogy(const Tensor& a, const Tensor& b) {
    return formula("xlogy", a, b, [](const Tensor& x, const Tensor& y) {
        const Tensor none = logical_and(eq(x, 0), logical_not(isnan(y)));
        return where(none, x * 0, x * log(where(none, 1, y)));
    });
}

Tensor lerp(const Tensor& given_start, const Tensor& given_end, const Tensor& given_weight) {
    const CheckedArgs call(
        "lerp", {arg::real("start", given_start), arg::real("end", given_end), arg::real("weight", given_weight)});
    const Tensor a = widened(call[0]), b = widened(call[1]), weight = widened(call[2]);
    const Tensor y = where(abs(weight) < 0.5, a + weight * (b - a), b - (b - a) * (1 - weight));
    return y.to(call[0].dtype());
}

Tensor addcmul(const Tensor& x, const Tensor& given_a, const Tensor& given_b, double value) {
    const CheckedArgs call("addcmul", {arg::real("input", x), arg::real("the first tensor", given_a),
                                       arg::real("the second tensor", given_b)});
    return (widened(call[0]) + widened(call[1]) * widened(call[2]) * value).to(call[0].dtype());
}

Tensor addcdiv(const Tensor& x, const Tensor& given_a, const Tensor& given_b, double value) {
    const CheckedArgs call("addcdiv", {arg::real("input", x), arg::real("the first tensor", given_a),
                                       arg::real("the second tensor", given_b)});
    return (widened(call[0]) + widened(call[1]) * value / widened(call[2])).to(call[0].dtype());
}

Tensor nan_to_num(const Tensor& given, double nan, std::optional<double> posinf, std::optional<double> neginf) {
    const CheckedArgs call("nan_to_num", {arg::floating("the tensor", given)});
    const Tensor& x = call[0];
    constexpr double infinity = std::numeric_limits<double>::infinity();
    const Tensor finite = where(eq(x, infinity), posinf.value_or(largest(x.dtype())),
                                where(eq(x, -infinity), neginf.value_or(-largest(x.dtype())), x));
    return where(isnan(x), nan, finite);
}

Tensor isnan(const Tensor& given) {
    const CheckedArgs call("isnan", {arg::real("the tensor", given)});
    return ne(call[0], call[0]);
}

Tensor isinf(const Tensor& given) {
    const CheckedArgs call("isinf", {arg::real("the tensor", given)});
    return eq(abs(call[0].detach()), std::numeric_limits<double>::infinity());
}

Tensor sgn(const Tensor& given) {
    const CheckedArgs call("sgn", {arg::number("the tensor", given)});
    return sign(call[0]);
}

Tensor signbit(const Tensor& given) {
    const CheckedArgs call("signbit", {arg::any("the tensor", given)});
    const Tensor x = call[0].detach();
    return is_floating(x.dtype()) ? copysign(ones_like(x), x) < 0 : x < 0;
}

Tensor clamp(const Tensor& given, const Tensor& given_min, const Tensor& given_max) {
    constexpr const char* name = "clamp";
    if (!given_min.defined() && !given_max.defined())
        throw InvalidArgument(fmt::format("{}: both limits are undefined; expected at least one", name));
    const CheckedArgs call(
        name, {arg::promoted("the tensor", given), arg::promoted("min", given_min.defined() ? given_min : given),
               arg::promoted("max", given_max.defined() ? given_max : given)});
    const auto wins = [](const Tensor& beyond, const Tensor& limit) { return logical_or(beyond, isnan(limit)); };
    Tensor y = call[0];
    if (given_min.defined()) y = where(wins(y < call[1], call[1]), call[1], y);
    if (given_max.defined()) y = where(wins(y > call[2], call[2]), call[2], y);
    return is_floating(y.dtype()) ? where(isnan(y), y.detach(), y) : y;  // NaN has a gradient of 0
}

}  // namespace lockstep
