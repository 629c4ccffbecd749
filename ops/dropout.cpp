#include <fmt/format.h>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/internal/checked_args.h"
#include "lockstep/ops/internal/random_operations.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/record.h"

namespace lockstep {

namespace {

/// Every shard has its own mask, also of a parameter.
DrawBy draw_by(const Tensor& x) { return x.is_batch() ? DrawBy::row : DrawBy::shard; }

/// The gradient of dropped(), which is that of itself.
Tensor dropout_gradient(const Tensor& dy, const Tensor& kept, double p) {
    const Tensor dx = apply_one(DropoutBackward{p}, {dy, kept}, like(dy));
    if (needs_autograd({dy}))
        add_autograd_node("dropout", {dy}, {dx},
                          BackwardFunction::composed([p, saved = SavedTensor(kept, "dropout")](const auto& gradients) {
                              return std::vector<Tensor>{dropout_gradient(gradients[0], saved.get(), p)};
                          }));
    return dx;
}

/// x * a mask of the same shape; one byte per element is saved for backward.
Tensor dropped(const Tensor& given, double p) {
    const CheckedArgs call("dropout", {arg::floating("input", given)});
    const Tensor& x = call[0];
    const auto made = apply(make_operation(DropoutForward{p, draw_by(x)}), {x},
                            {like(x), TensorMeta::contiguous(DType::u8, x.shape(), x.is_batch())});
    if (needs_autograd({x}))
        add_autograd_node(
            "dropout", {x}, {made[0]},
            BackwardFunction::composed([p, kept = SavedTensor(made[1], "dropout")](const auto& gradients) {
                return std::vector<Tensor>{dropout_gradient(gradients[0], kept.get(), p)};
            }));
    return made[0];
}

/// x * a mask for its channels.
Tensor without_channels(const Tensor& given, double p) {
    const CheckedArgs call("dropout2d", {arg::floating("input", given)});
    const Tensor& x = call[0];
    Shape mask_shape{x.size(0), x.size(1)};
    for (int i = 2; i < x.dims(); ++i) mask_shape.push_back(1);
    // The mask is created on the device of x, because the operation has no input to determine it. It is f32 for f16 and
    // bf16, which cannot represent 1 / (1 - p).
    const bool is_half = is_half_type(x.dtype());
    const Tensor mask = Tensor::empty(mask_shape, is_half ? DType::f32 : x.dtype(), x.device());
    apply_one(RandomValues{Distribution::dropout, p, draw_by(x)}, {}, mask);
    return is_half ? mul(x.to(DType::f32), mask).to(x.dtype()) : mul(x, mask);
}

/// False if x is returned unchanged.
bool active(const char* name, const Tensor& x, double p, bool training) {
    const CheckedArgs call(name, {arg::any("input", x)});
    if (!(p >= 0 && p <= 1))
        throw InvalidArgument(fmt::format("{}: invalid probability ({}); expected [0, 1]", name, p));
    return training && p > 0;
}

}  // namespace

Tensor dropout(const Tensor& x, double p, bool training) {
    return active("dropout", x, p, training) ? dropped(x, p) : x;
}

Tensor dropout2d(const Tensor& x, double p, bool training) {
    if (!active("dropout2d", x, p, training)) return x;
    if (x.dims() < 2)
        throw InvalidArgument(fmt::format("dropout2d: input has shape {}; expected (N, C, ...)", x.shape().str()));
    return without_channels(x, p);
}

Tensor dropout1d(const Tensor& x, double p, bool training) {
    const ApiScope call("dropout1d");
    return dropout2d(x, p, training);
}

Tensor dropout3d(const Tensor& x, double p, bool training) {
    const ApiScope call("dropout3d");
    return dropout2d(x, p, training);
}

namespace {

/// `probabilities`: a tensor of the shape of one draw for each of its elements.
Tensor alpha_dropped(const Tensor& x, const Tensor& probabilities, double p) {
    constexpr double dropped_value = -1.7580993408473766;  // -alpha * scale of SELU
    const double scale = 1 / std::sqrt((1 - p) * (1 + p * dropped_value * dropped_value));
    const Tensor kept = bernoulli(probabilities, 1 - p);
    return (x * kept + (1.0 - kept) * dropped_value) * scale - scale * p * dropped_value;
}

}  // namespace

Tensor alpha_dropout(const Tensor& given, double p, bool training) {
    if (!active("alpha_dropout", given, p, training)) return given;
    const CheckedArgs call("alpha_dropout", {arg::floating("input", given)});
    const Tensor x = widened(call[0]);
    if (p == 1) return call[0] * 0;
    return alpha_dropped(x, x.detach(), p).to(call[0].dtype());
}

Tensor feature_alpha_dropout(const Tensor& given, double p, bool training) {
    constexpr const char* name = "feature_alpha_dropout";
    if (!active(name, given, p, training)) return given;
    const CheckedArgs call(name, {arg::floating("input", given)});
    const Tensor x = widened(call[0]);
    if (x.dims() < 2)
        throw InvalidArgument(fmt::format("{}: input has shape {}; expected (N, C, ...)", name, x.shape().str()));
    if (p == 1) return call[0] * 0;
    Tensor channels = x.detach();
    for (int dim = 2; dim < x.dims(); ++dim) channels = channels.slice(dim, 0, 1);
    return alpha_dropped(x, tagged(channels, x.is_batch()), p).to(call[0].dtype());
}

Tensor rrelu(const Tensor& given, double lower, double upper, bool training) {
    constexpr const char* name = "rrelu";
    const CheckedArgs call(name, {arg::floating("input", given)});
    const Tensor& x = call[0];
    if (!(lower >= 0 && lower <= upper))
        throw InvalidArgument(
            fmt::format("{}: invalid slopes from {} to {}; expected 0 <= lower <= upper", name, lower, upper));
    if (!training) return leaky_relu(x, (lower + upper) / 2);
    const Tensor slope = rand_like(x) * (upper - lower) + lower;
    return where(x > 0, x, x * slope);
}

}  // namespace lockstep
