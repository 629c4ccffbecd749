// Numbers whose values are the elements of a tensor: a function's gradient (unary_functions.h), computed on them,
// is a tensor that can be differentiated again.
#pragma once

#include <cmath>
#include <utility>

#include "lockstep/ops/functional.h"
#include "lockstep/runtime/tensor.h"

namespace lockstep {

/// A tensor of floats, or one number for all elements.
class TensorNumber {
public:
    explicit TensorNumber(Tensor tensor) : tensor_(std::move(tensor)) {}
    explicit TensorNumber(double number) : number_(number) {}

    /// With the shape, dtype and device of `like`.
    Tensor tensor(const Tensor& like) const {
        return tensor_.defined() ? tensor_ : Tensor::full(like.shape(), number_, like.dtype(), like.device());
    }

    friend TensorNumber operator-(const TensorNumber& a) {
        return a.tensor_.defined() ? TensorNumber(neg(a.tensor_)) : TensorNumber(-a.number_);
    }
    friend TensorNumber operator+(const TensorNumber& a, const TensorNumber& b) {
        return combined(a, b, [](const auto& x, const auto& y) { return x + y; });
    }
    friend TensorNumber operator-(const TensorNumber& a, const TensorNumber& b) {
        return combined(a, b, [](const auto& x, const auto& y) { return x - y; });
    }
    friend TensorNumber operator*(const TensorNumber& a, const TensorNumber& b) {
        return combined(a, b, [](const auto& x, const auto& y) { return x * y; });
    }
    friend TensorNumber operator/(const TensorNumber& a, const TensorNumber& b) {
        return combined(a, b, [](const auto& x, const auto& y) { return x / y; });
    }

    /// A tensor of bool, which is true if the relation holds. The left side is a tensor, the right side a number.
    friend Tensor operator<(const TensorNumber& a, const TensorNumber& b) { return lt(a.tensor_, b.number_); }
    friend Tensor operator>(const TensorNumber& a, const TensorNumber& b) { return gt(a.tensor_, b.number_); }
    friend Tensor operator<=(const TensorNumber& a, const TensorNumber& b) { return le(a.tensor_, b.number_); }
    friend Tensor operator>=(const TensorNumber& a, const TensorNumber& b) { return ge(a.tensor_, b.number_); }
    friend TensorNumber choose(const Tensor& condition, const TensorNumber& a, const TensorNumber& b) {
        if (a.tensor_.defined() && b.tensor_.defined()) return TensorNumber(where(condition, a.tensor_, b.tensor_));
        if (a.tensor_.defined()) return TensorNumber(where(condition, a.tensor_, b.number_));
        return TensorNumber(where(condition, a.number_, b.tensor_));
    }

    friend TensorNumber exp(const TensorNumber& x) { return TensorNumber(exp(x.tensor_)); }
    friend TensorNumber sin(const TensorNumber& x) { return TensorNumber(sin(x.tensor_)); }
    friend TensorNumber cos(const TensorNumber& x) { return TensorNumber(cos(x.tensor_)); }
    friend TensorNumber exp2(const TensorNumber& x) { return TensorNumber(exp2(x.tensor_)); }
    friend TensorNumber tan(const TensorNumber& x) { return TensorNumber(tan(x.tensor_)); }
    friend TensorNumber sinh(const TensorNumber& x) { return TensorNumber(sinh(x.tensor_)); }
    friend TensorNumber cosh(const TensorNumber& x) { return TensorNumber(cosh(x.tensor_)); }
    friend TensorNumber sqrt(const TensorNumber& x) { return TensorNumber(sqrt(x.tensor_)); }
    friend TensorNumber erf(const TensorNumber& x) { return TensorNumber(erf(x.tensor_)); }
    friend TensorNumber normal_cdf(const TensorNumber& x) {
        return TensorNumber((erf(x.tensor_ * M_SQRT1_2) + 1) * 0.5);
    }
    friend TensorNumber tanh(const TensorNumber& x) { return TensorNumber(tanh(x.tensor_)); }
    friend TensorNumber pow(const TensorNumber& x, const TensorNumber& exponent) {
        return TensorNumber(pow(x.tensor_, exponent.number_));
    }

private:
    template <class Function>
    static TensorNumber combined(const TensorNumber& a, const TensorNumber& b, const Function& function) {
        if (a.tensor_.defined() && b.tensor_.defined()) return TensorNumber(function(a.tensor_, b.tensor_));
        if (a.tensor_.defined()) return TensorNumber(function(a.tensor_, b.number_));
        if (b.tensor_.defined()) return TensorNumber(function(a.number_, b.tensor_));
        return TensorNumber(function(a.number_, b.number_));
    }

    Tensor tensor_;
    double number_ = 0;
};

}  // namespace lockstep
