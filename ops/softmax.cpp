#include "lockstep/ops/functional.h"
#include "lockstep/ops/internal/checks.h"
#include "lockstep/ops/internal/loss_operations.h"
#include "lockstep/runtime/internal/public_call.h"
#include "lockstep/runtime/record.h"
#include "lockstep/runtime/tape.h"

namespace lockstep {

Tensor log_softmax(const Tensor& x, int dim) {
    const PublicCall call("log_softmax");
    checks::floating("log_softmax", "input", x);
    const int along = wrap_dim(dim, x.dims(), "log_softmax");
    const Tensor y = apply_one(LogSoftmaxForward{along}, {x}, like(x));
    if (needs_tape({x}))
        put_on_tape(
            "log_softmax", {x}, {y},
            [along, output = SavedTensor(y, "log_softmax")](const std::vector<Tensor>& gradients) {
                const Tensor saved = output.get();
                return std::vector<Tensor>{apply_one(LogSoftmaxBackward{along}, {gradients[0], saved}, like(saved))};
            });
    return y;
}

}  // namespace lockstep
