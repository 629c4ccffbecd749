#include <fmt/format.h>

#include <bit>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/internal/checks.h"
#include "lockstep/ops/internal/operations.h"
#include "lockstep/ops/internal/reduce_to.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/public_call.h"
#include "lockstep/runtime/tape.h"

namespace lockstep {

std::string_view Binary::name() const {
    switch (kind) {
        case BinaryKind::sub: return "sub";
        case BinaryKind::mul: return "mul";
        case BinaryKind::div: return "div";
        case BinaryKind::add: break;
    }
    return "add";
}

std::string_view Unary::name() const {
    switch (kind) {
        case UnaryKind::neg: return "neg";
        case UnaryKind::exp: return "exp";
        case UnaryKind::log: return "log";
        case UnaryKind::sqrt: return "sqrt";
        case UnaryKind::square: return "square";
        case UnaryKind::relu: break;
    }
    return "relu";
}

namespace {

const char* name_of_kind(BinaryKind kind) { return Binary(kind).name().data(); }

/// Gradient of an input of a broadcast operation: `gradient` summed down to the shape of that input.
struct Origin {
    explicit Origin(const Tensor& tensor)
        : shape(tensor.shape()), batch(tensor.is_batch()), wanted(tensor.requires_grad()) {}
    Tensor reduce(const Tensor& gradient) const { return tagged(reduce_to(gradient, shape), batch); }
    Shape shape;
    bool batch;
    bool wanted;
};

Tensor binary(BinaryKind kind, const Tensor& a, const Tensor& b) {
    const char* name = name_of_kind(kind);
    const PublicCall call(name);
    for (const Tensor* tensor : {&a, &b}) {
        checks::defined(name, tensor == &a ? "the first tensor" : "the second tensor", *tensor);
        if (tensor->dtype() == DType::boolean)
            throw InvalidArgument(fmt::format("{}: a tensor of dtype bool; convert it with .to(dtype)", name));
    }
    checks::same_dtype(name, "the second tensor", b, a);
    const Shape shape = broadcast_shapes(a.shape(), b.shape(), name);
    // The tag holds for the result where its dimension 0 is that of a tagged input.
    const auto hands_on = [&](const Tensor& t) {
        return t.is_batch() && t.dims() == shape.dims() && t.size(0) == shape[0];
    };
    const Tensor y = apply_one(Binary(kind), {a, b}, shaped(a, shape, hands_on(a) || hands_on(b)));
    if (!needs_tape({a, b})) return y;

    const Origin from_a(a), from_b(b);
    const bool product = kind == BinaryKind::mul || kind == BinaryKind::div;
    SavedTensor first, second, result;
    if (kind == BinaryKind::mul && from_b.wanted) first = SavedTensor(a, name);
    if (kind == BinaryKind::mul ? from_a.wanted : product) second = SavedTensor(b, name);
    if (kind == BinaryKind::div && from_b.wanted) result = SavedTensor(y, name);
    put_on_tape(name, {a, b}, {y}, [=](const std::vector<Tensor>& gradients) {
        const Tensor& dy = gradients[0];
        std::vector<Tensor> result_gradients(2);
        Tensor& da = result_gradients[0];
        Tensor& db = result_gradients[1];
        switch (kind) {
            case BinaryKind::add:
            case BinaryKind::sub:
                if (from_a.wanted) da = from_a.reduce(dy);
                if (from_b.wanted) db = from_b.reduce(kind == BinaryKind::add ? dy : neg(dy));
                break;
            case BinaryKind::mul:
                if (from_a.wanted) da = from_a.reduce(mul(dy, second.get()));
                if (from_b.wanted) db = from_b.reduce(mul(dy, first.get()));
                break;
            case BinaryKind::div: {
                const Tensor share = div(dy, second.get());
                if (from_a.wanted) da = from_a.reduce(share);
                if (from_b.wanted) db = from_b.reduce(neg(mul(share, result.get())));
                break;
            }
        }
        return result_gradients;
    });
    return y;
}

/// scale * x + shift.
Tensor affine(const char* name, const Tensor& x, double scale, double shift) {
    const PublicCall call(name);
    checks::floating(name, "the tensor", x);
    const Tensor y = apply_one(Affine(scale, shift), {x}, like(x));
    if (needs_tape({x}))
        put_on_tape(name, {x}, {y}, [name, scale](const std::vector<Tensor>& gradients) {
            return std::vector<Tensor>{scale == 1 ? gradients[0] : affine(name, gradients[0], scale, 0)};
        });
    return y;
}

/// The number as a tensor that meets `like` in an operation.
Tensor number(const char* name, double value, const Tensor& other) {
    const PublicCall call(name);
    checks::defined(name, "the tensor", other);
    return Tensor::full({}, value, other.dtype(), other.device());
}

bool is_integral(const Tensor& x) { return x.defined() && !is_floating(x.dtype()); }

/// A function of one tensor whose gradient is that of y times what `slope` makes of x and y.
template <class Slope>
Tensor unary(UnaryKind kind, const Tensor& x, const char* name, bool save_x, bool save_y, Slope slope) {
    const PublicCall call(name);
    checks::floating(name, "the tensor", x);
    const Tensor y = apply_one(Unary(kind), {x}, like(x));
    if (!needs_tape({x})) return y;
    SavedTensor input, output;
    if (save_x) input = SavedTensor(x, name);
    if (save_y) output = SavedTensor(y, name);
    put_on_tape(name, {x}, {y}, [=](const std::vector<Tensor>& gradients) {
        return std::vector<Tensor>{slope(gradients[0], input.get(), output.get())};
    });
    return y;
}

}  // namespace

Tensor add(const Tensor& a, const Tensor& b) { return binary(BinaryKind::add, a, b); }
Tensor sub(const Tensor& a, const Tensor& b) { return binary(BinaryKind::sub, a, b); }
Tensor mul(const Tensor& a, const Tensor& b) { return binary(BinaryKind::mul, a, b); }
Tensor div(const Tensor& a, const Tensor& b) { return binary(BinaryKind::div, a, b); }

Tensor operator+(const Tensor& a, double b) {
    return is_integral(a) ? add(a, number("add", b, a)) : affine("add", a, 1, b);
}
Tensor operator-(const Tensor& a, double b) {
    return is_integral(a) ? sub(a, number("sub", b, a)) : affine("sub", a, 1, -b);
}
Tensor operator*(const Tensor& a, double b) {
    return is_integral(a) ? mul(a, number("mul", b, a)) : affine("mul", a, b, 0);
}
Tensor operator/(const Tensor& a, double b) {
    return is_integral(a) ? div(a, number("div", b, a)) : affine("div", a, 1 / b, 0);
}
Tensor operator-(double a, const Tensor& b) {
    return is_integral(b) ? sub(number("sub", a, b), b) : affine("sub", b, -1, a);
}
Tensor operator/(double a, const Tensor& b) { return div(number("div", a, b), b); }

Tensor neg(const Tensor& x) {
    return unary(UnaryKind::neg, x, "neg", false, false,
                 [](const Tensor& dy, const Tensor&, const Tensor&) { return neg(dy); });
}

Tensor exp(const Tensor& x) {
    return unary(UnaryKind::exp, x, "exp", false, true,
                 [](const Tensor& dy, const Tensor&, const Tensor& y) { return mul(dy, y); });
}

Tensor log(const Tensor& x) {
    return unary(UnaryKind::log, x, "log", true, false,
                 [](const Tensor& dy, const Tensor& input, const Tensor&) { return div(dy, input); });
}

Tensor sqrt(const Tensor& x) {
    return unary(UnaryKind::sqrt, x, "sqrt", false, true,
                 [](const Tensor& dy, const Tensor&, const Tensor& y) { return div(dy, y * 2); });
}

Tensor square(const Tensor& x) {
    return unary(UnaryKind::square, x, "square", true, false,
                 [](const Tensor& dy, const Tensor& input, const Tensor&) { return mul(dy, input * 2); });
}

Tensor relu(const Tensor& x) {
    return unary(UnaryKind::relu, x, "relu", false, true, [](const Tensor& dy, const Tensor&, const Tensor& y) {
        return apply_one(ReluBackward(), {dy, y}, like(y));
    });
}

}  // namespace lockstep
