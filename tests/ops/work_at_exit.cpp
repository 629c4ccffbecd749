// Enqueues a convolution, its gradients and related operations on two devices and ends without reading any result.
#include "lockstep/ops/functional.h"
#include "lockstep/ops/layers.h"
#include "lockstep/runtime/tensor.h"

namespace ls = lockstep;

int main() {
    for (const ls::Device device : {ls::Device::cpu(0), ls::Device::cpu(1)}) {
        const ls::Tensor image = ls::Tensor::randn({2, 16, 9, 9}).to(device).requires_grad_();
        const ls::Tensor weight = ls::Tensor::randn({32, 16, 3, 3}).to(device).requires_grad_();
        const ls::Tensor columns = ls::Tensor::randn({7 * 7 * 32, 10}).to(device);
        const ls::Tensor out = ls::matmul(ls::relu(ls::conv2d(image, weight)).flatten(1), columns);
        ls::sum(ls::log_softmax(out, 1)).backward();
    }
}
