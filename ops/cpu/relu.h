// ReLU and its gradient in place, for kernels that fuse them with another operation.
#pragma once

#include <cstddef>

#include "lockstep/ops/cpu/loops.h"
#include "lockstep/ops/cpu/parallel.h"

namespace lockstep::cpu {

template <class T>
void relu_in_place(T* y, std::ptrdiff_t elements, int threads) {
    for_element_parts(threads, elements, [=](std::ptrdiff_t begin, std::ptrdiff_t end) {
        run_unary(functor::Relu(), y + begin, y + begin, end - begin);
    });
}

/// Sets dx to 0 where x, an output of ReLU, is 0.
template <class T>
void relu_backward_in_place(T* dx, const T* x, std::ptrdiff_t elements, int threads) {
    for_element_parts(threads, elements, [=](std::ptrdiff_t begin, std::ptrdiff_t end) {
        run_unary_backward(functor::Relu(), dx + begin, x + begin, dx + begin, end - begin);
    });
}

}  // namespace lockstep::cpu
