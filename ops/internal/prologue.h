// How every function of tensors begins (functional.h, loss.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "lockstep/runtime/internal/public_call.h"
#include "lockstep/runtime/tensor.h"

namespace lockstep {

/// Names the call for messages while it lives, checks that the tensors that came with it are there, of a dtype that is
/// taken and on one device, and hands them over: a function works on what operator[] returns and never on what its
/// caller gave.
///
///     Tensor linear(const Tensor& given_x, const Tensor& given_weight) {
///         const Prologue call("linear", {takes::floating("input", given_x), takes::floating("weight", given_weight)});
///         const Tensor &x = call[0], &weight = call[1];
///
/// This is the one place through which all of them come, with the name of the function: whatever is done to operands by
/// function, as Autocast does, is done here, after the checks of each tensor and before those of them together.
class Prologue {
public:
    enum class Kind : std::uint8_t {
        floating,   ///< f32, f64, f16 or bf16, like the others
        optional,   ///< undefined, or like the others
        parameter,  ///< undefined, like the others, or f32 beside f16 and bf16
        number,     ///< anything but bool, like the others
        any         ///< there, of any dtype
    };
    struct Argument {
        Kind kind;
        const char* name;  ///< for messages: "weight"
        const Tensor& tensor;
    };

    enum class Dtypes : std::uint8_t { alike, any };

    /// Throws InvalidArgument for tensors that are undefined, of a dtype that is not taken, or on different devices.
    Prologue(const char* function, std::initializer_list<Argument> arguments);
    /// Floating tensors, each called `name`.
    Prologue(const char* function, const char* name, const std::vector<Tensor>& tensors, Dtypes dtypes);

    const Tensor& operator[](std::size_t argument) const { return tensors_[argument]; }
    const std::vector<Tensor>& tensors() const { return tensors_; }

private:
    void take(const Argument& argument);
    void convert();
    void require_alike(const Argument* arguments) const;
    void require_one_device() const;

    PublicCall call_;
    const char* function_;
    std::vector<Tensor> tensors_;
};

namespace takes {

inline Prologue::Argument floating(const char* name, const Tensor& tensor) {
    return {Prologue::Kind::floating, name, tensor};
}
inline Prologue::Argument optional(const char* name, const Tensor& tensor) {
    return {Prologue::Kind::optional, name, tensor};
}
inline Prologue::Argument parameter(const char* name, const Tensor& tensor) {
    return {Prologue::Kind::parameter, name, tensor};
}
inline Prologue::Argument number(const char* name, const Tensor& tensor) {
    return {Prologue::Kind::number, name, tensor};
}
inline Prologue::Argument any(const char* name, const Tensor& tensor) { return {Prologue::Kind::any, name, tensor}; }

}  // namespace takes

}  // namespace lockstep
