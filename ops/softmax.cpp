#include "lockstep/ops/functional.h"
#include "lockstep/ops/internal/checked_args.h"
#include "lockstep/ops/internal/nn_operations.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/record.h"

namespace lockstep {

namespace {

template <bool logarithm>
Tensor softmax_along(const char* name, const Tensor& given, int dim) {
    const CheckedArgs call(name, {arg::floating("input", given)});
    const Tensor& x = call[0];
    const int along = wrap_dim(dim, x.dims(), name);
    const Tensor y = apply_one(SoftmaxForward<logarithm>{along}, {x}, like(x));
    if (needs_autograd({x}))
        add_autograd_node(name, {x}, {y}, [along, output = SavedTensor(y, name)](const std::vector<Tensor>& gradients) {
            const Tensor saved = output.get();
            return std::vector<Tensor>{
                apply_one(SoftmaxBackward<logarithm>{along}, {gradients[0], saved}, like(saved))};
        });
    return y;
}

}  // namespace

Tensor softmax(const Tensor& x, int dim) { return softmax_along<false>("softmax", x, dim); }
Tensor log_softmax(const Tensor& x, int dim) { return softmax_along<true>("log_softmax", x, dim); }

}  // namespace lockstep
