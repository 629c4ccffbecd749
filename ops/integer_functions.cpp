#include "lockstep/ops/internal/integer_functions.h"

#include <fmt/format.h>

#include "lockstep/ops/internal/broadcast.h"
#include "lockstep/ops/internal/checked_args.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/record.h"

namespace lockstep::integers {

bool is_one(const Tensor& x) {
    return x.defined() && (x.dtype() == DType::i32 || x.dtype() == DType::i64 || x.dtype() == DType::u8);
}

Tensor neg(const Tensor& x) { return 0 - x; }

Tensor abs(const Tensor& x) { return x.dtype() == DType::u8 ? x.clone() : maximum(x, integers::neg(x)); }

Tensor sign(const Tensor& x) { return (x > 0).to(x.dtype()) - (x < 0).to(x.dtype()); }

Tensor relu(const Tensor& x) { return integers::clamp(x, 0, std::nullopt); }

Tensor clamp(const Tensor& x, std::optional<Scalar> min, std::optional<Scalar> max) {
    const auto limit = [&](Scalar number) {
        checks::number_of("clamp", number.value(), x.dtype());
        return Tensor::full({}, number.value(), x.dtype(), x.device());
    };
    // `max` applies where it is less than `min`.
    Tensor y = x;
    if (min) y = maximum(y, limit(*min));
    if (max) y = minimum(y, limit(*max));
    return y;
}

/// Multiplications for every bit of the exponent.
Tensor pow(const Tensor& x, std::int64_t exponent) {
    if (exponent < 0)
        throw InvalidArgument(
            fmt::format("pow: a negative exponent ({}) with a tensor of {}; expected 0 or more, or a tensor of floats",
                        exponent, name_of(x.dtype())));
    Tensor result = Tensor::full(x.shape(), 1, x.dtype(), x.device());
    for (Tensor power = x; exponent > 0; exponent /= 2) {
        if (exponent % 2 == 1) result = result * power;
        if (exponent > 1) power = power * power;
    }
    return result;
}

Tensor reversed(const Tensor& x) {
    if (is_floating(x.dtype())) return lockstep::neg(x);
    return -1 - (x.dtype() == DType::boolean ? x.to(DType::i64) : x);
}

bool are_both(const Tensor& a, const Tensor& b) {
    return a.defined() && b.defined() && !is_floating(a.dtype()) && !is_floating(b.dtype());
}

Tensor bivariate(const char* name, const Tensor& given_a, const Tensor& given_b, IntegerBivariate::Function function) {
    using Function = IntegerBivariate::Function;
    const CheckedArgs call(name,
                           {arg::promoted("the first tensor", given_a), arg::promoted("the second tensor", given_b)});
    const DType dtype = call[0].dtype();
    const bool is_logical =
        function == Function::bit_and || function == Function::bit_or || function == Function::bit_xor;
    if (dtype == DType::boolean && !is_logical)
        throw InvalidArgument(fmt::format("{}: both tensors have dtype bool; expected numbers", name));
    const Tensor a = call[0].to(DType::i64), b = call[1].to(DType::i64);
    return apply_one(IntegerBivariate{function}, {a, b}, broadcast_meta(name, DType::i64, {a, b})).to(dtype);
}

Tensor number(const char* name, Scalar value, const Tensor& x) {
    checks::exact_number(name, value.value(), DType::i64);
    const DType dtype = x.dtype() == DType::boolean ? DType::i64 : x.dtype();
    checks::number_of(name, value.value(), dtype);
    return Tensor::full({}, value.value(), dtype, x.device());
}

}  // namespace lockstep::integers
