// Argument checks of all functions of tensors (functional.h, loss.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string_view>
#include <vector>

#include "lockstep/runtime/internal/api_scope.h"
#include "lockstep/runtime/recycled.h"
#include "lockstep/runtime/tensor.h"

namespace lockstep::checks {

// Checks of shapes, with messages that name the function and the shapes. Dtypes and devices: see CheckedArgs.

/// Throws InvalidArgument unless `tensor` has as many dimensions as `layout` names: "(N, C, H, W)".
void dims(const char* operation, const char* argument, const Tensor& tensor, int count, const char* layout);
/// Throws InvalidArgument unless `tensor` is undefined or of shape (`size`).
void vector_of(const char* operation, const char* argument, const Tensor& tensor, std::int64_t size, const char* what);
/// Whether `dtype`, of integers or bool, has this integer.
bool holds(DType dtype, double value);
/// Throws InvalidArgument unless `number`, to be combined with integers of `dtype`, is below 2^53, so that f64 has it.
void exact_number(const char* operation, double number, DType dtype);
/// Throws InvalidArgument unless `dtype` has `number`. Floats have all, rounded.
void number_of(const char* operation, double number, DType dtype);
/// A bit for every dimension in `dims`; all of `tensor` if the list is empty. Throws InvalidArgument for a dimension
/// that is out of range or listed twice.
std::uint32_t dim_bits(const char* operation, const Tensor& tensor, const std::vector<int>& dims);
/// Throws InvalidArgument while a step is traced if `dim` is dimension 0 of a batch.
void not_rows(const char* operation, const Tensor& tensor, int dim);

}  // namespace lockstep::checks

namespace lockstep {

/// Meta of a new tensor with the shape, dtype and batch tag of `tensor`.
inline TensorMeta like(const Tensor& tensor) {
    return TensorMeta::contiguous(tensor.dtype(), tensor.shape(), tensor.is_batch());
}
/// Meta of a new tensor of `shape` with the dtype of `tensor`.
inline TensorMeta shaped(const Tensor& tensor, const Shape& shape, bool batch = false) {
    return TensorMeta::contiguous(tensor.dtype(), shape, batch);
}

/// 16-bit numbers as f32, in which functions that consist of several operations compute.
inline Tensor widened(const Tensor& tensor) { return is_half_type(tensor.dtype()) ? tensor.to(DType::f32) : tensor; }

/// `tensor` with the given batch tag.
inline Tensor tagged(const Tensor& tensor, bool batch) {
    return tensor.is_batch() == batch ? tensor : tensor.tag_batch(batch);
}

// Dtypes of functions under Autocast.

/// Dtype to which `function` converts its tensors of f32, f16 and bf16 in the current scope; nullopt if it does not
/// convert them. The lists are PyTorch's "Autocast Op Reference", with those for CUDA and for the CPU merged;
/// docs/mixed-precision.md lists the differences.
std::optional<DType> autocast_dtype(std::string_view function, TensorList tensors);

/// Whether Autocast converts tensors of `dtype`.
constexpr bool autocast_converts(DType dtype) { return dtype == DType::f32 || is_half_type(dtype); }

/// While it lives, names the call for messages. Checks that the given tensors are defined, of a supported dtype and on
/// one device, and converts them: a function uses only the results of operator[], never the caller's tensors.
///
///     Tensor linear(const Tensor& given_x, const Tensor& given_weight) {
///         const CheckedArgs call("linear", {arg::floating("input", given_x), arg::floating("weight", given_weight)});
///         const Tensor &x = call[0], &weight = call[1];
///
/// All functions pass their operands through this class, with the name of the function: changes of operands by
/// function, such as those of Autocast, belong here, after the checks of each tensor and before the joint checks.
class CheckedArgs {
public:
    enum class Kind : std::uint8_t {
        floating,   ///< f32, f64, f16 or bf16, like the others
        optional,   ///< undefined, or like the others
        parameter,  ///< undefined, like the others, or f32 if the others are f16 or bf16
        number,     ///< anything but bool, like the others
        any,        ///< defined, of any dtype
        promoted,   ///< converted to the common dtype of all arguments of this kind (torch.result_type)
        real        ///< as promoted, and to f32 if the common dtype is not floating
    };
    struct Argument {
        Kind kind;
        const char* name;  ///< for messages: "weight"
        const Tensor& tensor;
    };

    enum class Dtypes : std::uint8_t {
        floating_alike,  ///< one floating dtype
        floating,        ///< floating dtypes
        promoted         ///< converted to their common dtype
    };

    /// Throws InvalidArgument for tensors that are undefined, of an unsupported dtype, or on different devices.
    CheckedArgs(const char* function, std::initializer_list<Argument> arguments);
    /// Tensors, each called `name`.
    CheckedArgs(const char* function, const char* name, TensorList tensors, Dtypes dtypes);

    const Tensor& operator[](std::size_t argument) const { return tensors_[argument]; }
    TensorList tensors() const { return tensors_; }

private:
    void take(const Argument& argument);
    void convert();
    void promote(const Argument* arguments);
    void require_alike(const Argument* arguments) const;
    void require_one_device() const;

    ApiScope call_;
    const char* function_;
    recycled::Vector<Tensor> tensors_;
};

namespace arg {

inline CheckedArgs::Argument floating(const char* name, const Tensor& tensor) {
    return {CheckedArgs::Kind::floating, name, tensor};
}
inline CheckedArgs::Argument optional(const char* name, const Tensor& tensor) {
    return {CheckedArgs::Kind::optional, name, tensor};
}
inline CheckedArgs::Argument parameter(const char* name, const Tensor& tensor) {
    return {CheckedArgs::Kind::parameter, name, tensor};
}
inline CheckedArgs::Argument number(const char* name, const Tensor& tensor) {
    return {CheckedArgs::Kind::number, name, tensor};
}
inline CheckedArgs::Argument any(const char* name, const Tensor& tensor) {
    return {CheckedArgs::Kind::any, name, tensor};
}
inline CheckedArgs::Argument real(const char* name, const Tensor& tensor) {
    return {CheckedArgs::Kind::real, name, tensor};
}
inline CheckedArgs::Argument promoted(const char* name, const Tensor& tensor) {
    return {CheckedArgs::Kind::promoted, name, tensor};
}

}  // namespace arg

// Common device of the tensors of a loss.

/// Tensors on the host are copied to the device of the other tensors of a loss, like a wrapper's inputs.
class OperandDevice {
public:
    OperandDevice(const Tensor& a, const Tensor& b) {
        for (const Tensor* tensor : {&a, &b})
            if (tensor->defined() && device_.is_host()) device_ = tensor->device();
    }
    Tensor moved(const Tensor& tensor) const {
        const bool comes = tensor.defined() && tensor.device().is_host() && !device_.is_host();
        return comes ? tensor.to(device_) : tensor;
    }

private:
    Device device_ = Device::host();
};

}  // namespace lockstep
