// The smallest program: it must load no library that the addition of two tensors does not need.
#include <lockstep/ops/functional.h>
#include <lockstep/runtime/tensor.h>

#include <cstdio>

int main() {
    const lockstep::Tensor a = lockstep::Tensor::full({3}, 1.5), b = lockstep::Tensor::full({3}, 2);
    const lockstep::Tensor sum = a + b;
    std::printf("%g\n", static_cast<double>(sum.to_vector<float>()[2]));
    return sum.to_vector<float>() == std::vector<float>(3, 3.5F) ? 0 : 1;
}
