// Functions of the bits of integers and bool.
#include <fmt/format.h>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/internal/checked_args.h"
#include "lockstep/ops/internal/integer_functions.h"
#include "lockstep/runtime/error.h"

namespace lockstep {

namespace {

using BitFunction = IntegerBivariate::Function;

void require_bits(const char* name, DType dtype) {
    if (is_floating(dtype))
        throw InvalidArgument(
            fmt::format("{}: a tensor has dtype {}; expected integers or bool", name, name_of(dtype)));
}

Tensor bitwise(const char* name, const Tensor& a, const Tensor& b, BitFunction function) {
    const CheckedArgs call(name, {arg::any("the first tensor", a), arg::any("the second tensor", b)});
    require_bits(name, call[0].dtype());
    require_bits(name, call[1].dtype());
    return integers::bivariate(name, call[0], call[1], function);
}

/// With a number, as a tensor of the dtype of x if that has integers, or of i64.
Tensor bitwise(const char* name, const Tensor& x, Scalar number, BitFunction function) {
    const CheckedArgs call(name, {arg::any("the tensor", x)});
    require_bits(name, call[0].dtype());
    if (!number.is_integer())
        throw InvalidArgument(fmt::format("{}: the number {} is not an integer; expected one", name, number.value()));
    const bool stays_bool = call[0].dtype() == DType::boolean && number.is_bool();
    const Tensor operand = stays_bool ? Tensor::full({}, number.value(), DType::boolean, x.device())
                                      : integers::number(name, number, call[0]);
    return bitwise(name, call[0], operand, function);
}

}  // namespace

Tensor bitwise_and(const Tensor& a, const Tensor& b) { return bitwise("bitwise_and", a, b, BitFunction::bit_and); }
Tensor bitwise_or(const Tensor& a, const Tensor& b) { return bitwise("bitwise_or", a, b, BitFunction::bit_or); }
Tensor bitwise_xor(const Tensor& a, const Tensor& b) { return bitwise("bitwise_xor", a, b, BitFunction::bit_xor); }
Tensor bitwise_and(const Tensor& a, Scalar b) { return bitwise("bitwise_and", a, b, BitFunction::bit_and); }
Tensor bitwise_or(const Tensor& a, Scalar b) { return bitwise("bitwise_or", a, b, BitFunction::bit_or); }
Tensor bitwise_xor(const Tensor& a, Scalar b) { return bitwise("bitwise_xor", a, b, BitFunction::bit_xor); }

Tensor bitwise_not(const Tensor& given) {
    constexpr const char* name = "bitwise_not";
    const CheckedArgs call(name, {arg::any("the tensor", given)});
    const Tensor& x = call[0];
    require_bits(name, x.dtype());
    if (x.dtype() == DType::boolean) return logical_not(x);
    const Tensor ones = Tensor::full({}, -1, DType::i64, x.device());
    return integers::bivariate(name, x.to(DType::i64), ones, BitFunction::bit_xor).to(x.dtype());
}

Tensor bitwise_left_shift(const Tensor& x, const Tensor& bits) {
    return bitwise("bitwise_left_shift", x, bits, BitFunction::left_shift);
}
Tensor bitwise_right_shift(const Tensor& x, const Tensor& bits) {
    return bitwise("bitwise_right_shift", x, bits, BitFunction::right_shift);
}
Tensor bitwise_left_shift(const Tensor& x, Scalar bits) {
    return bitwise("bitwise_left_shift", x, bits, BitFunction::left_shift);
}
Tensor bitwise_right_shift(const Tensor& x, Scalar bits) {
    return bitwise("bitwise_right_shift", x, bits, BitFunction::right_shift);
}

}  // namespace lockstep
