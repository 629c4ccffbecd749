// Functions for tests/pytorch/check_dlpack.py, which loads this library into Python.
#include <cstdint>
#include <exception>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "lockstep/ops/functional.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/external_memory.h"

namespace ls = lockstep;

namespace {

std::optional<ls::Tensor> held;
std::string error;

ls::DType dtype_called(std::string_view name) {
    for (const ls::DType dtype : {ls::DType::f32, ls::DType::f64, ls::DType::f16, ls::DType::bf16, ls::DType::i32,
                                  ls::DType::i64, ls::DType::u8, ls::DType::boolean})
        if (ls::name_of(dtype) == name) return dtype;
    throw ls::InvalidArgument("no such dtype: " + std::string(name));
}

}  // namespace

extern "C" {

/// Message of the last function that returned null or -1.
const char* last_error() { return error.c_str(); }

/// 0, 1, ... in `shape`, with the last two dimensions swapped if `transposed`.
DLManagedTensor* numbered(const char* dtype, const std::int64_t* shape, int dims, int transposed) try {
    const ls::Shape sizes(std::span<const std::int64_t>(shape, static_cast<std::size_t>(dims)));
    ls::Tensor tensor = ls::Tensor::arange(sizes.numel(), dtype_called(dtype)).reshape(sizes);
    if (transposed) tensor = tensor.transpose(-2, -1);
    return ls::to_dlpack(tensor);
} catch (const std::exception& caught) {
    error = caught.what();
    return nullptr;
}

/// Takes `source`, adds 1 to its elements in place and returns their former sum.
int take(DLManagedTensor* source, double* sum) try {
    held = ls::from_dlpack(source);
    *sum = ls::sum(held->to(ls::DType::f64)).item();
    held->copy_(held->to(ls::DType::f64) + 1);
    return 0;
} catch (const std::exception& caught) {
    error = caught.what();
    return -1;
}

/// Releases what `take` has taken.
void drop() { held.reset(); }
}
