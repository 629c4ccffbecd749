// Layers without parameters that apply an activation function or a softmax. Names and arguments are those of torch.nn.
#pragma once

#include "lockstep/ops/functional.h"
#include "lockstep/runtime/signature.h"

namespace lockstep {

/// A layer without parameters.
struct PlainLayer {
    template <class Visit>
    void lockstep_members(Visit&&) {}
};

/// torch.nn.ReLU.
struct ReLU : PlainLayer {
    Tensor forward(const Tensor& x) const { return relu(x); }
    Tensor operator()(const Tensor& x) const { return forward(x); }
};

/// torch.nn.Sigmoid.
struct Sigmoid : PlainLayer {
    Tensor forward(const Tensor& x) const { return sigmoid(x); }
    Tensor operator()(const Tensor& x) const { return forward(x); }
};

/// torch.nn.Tanh.
struct Tanh : PlainLayer {
    Tensor forward(const Tensor& x) const { return tanh(x); }
    Tensor operator()(const Tensor& x) const { return forward(x); }
};

/// torch.nn.GELU.
struct GELU : PlainLayer {
    explicit GELU(GeluForm how = GeluForm::exact) : form(how) {}

    GeluForm form;

    Tensor forward(const Tensor& x) const { return gelu(x, form); }
    Tensor operator()(const Tensor& x) const { return forward(x); }
    void describe(Signature& signature) const { signature.add(form); }
};

/// torch.nn.SiLU.
struct SiLU : PlainLayer {
    Tensor forward(const Tensor& x) const { return silu(x); }
    Tensor operator()(const Tensor& x) const { return forward(x); }
};

/// torch.nn.LogSigmoid.
struct LogSigmoid : PlainLayer {
    Tensor forward(const Tensor& x) const { return logsigmoid(x); }
    Tensor operator()(const Tensor& x) const { return forward(x); }
};

/// torch.nn.LeakyReLU.
struct LeakyReLU : PlainLayer {
    explicit LeakyReLU(double slope = 0.01) : negative_slope(slope) {}

    double negative_slope;

    Tensor forward(const Tensor& x) const { return leaky_relu(x, negative_slope); }
    Tensor operator()(const Tensor& x) const { return forward(x); }
    void describe(Signature& signature) const { signature.add(negative_slope); }
};

/// torch.nn.ReLU6.
struct ReLU6 : PlainLayer {
    Tensor forward(const Tensor& x) const { return relu6(x); }
    Tensor operator()(const Tensor& x) const { return forward(x); }
};

/// torch.nn.SELU.
struct SELU : PlainLayer {
    Tensor forward(const Tensor& x) const { return selu(x); }
    Tensor operator()(const Tensor& x) const { return forward(x); }
};

/// torch.nn.Hardsigmoid.
struct Hardsigmoid : PlainLayer {
    Tensor forward(const Tensor& x) const { return hardsigmoid(x); }
    Tensor operator()(const Tensor& x) const { return forward(x); }
};

/// torch.nn.Hardswish.
struct Hardswish : PlainLayer {
    Tensor forward(const Tensor& x) const { return hardswish(x); }
    Tensor operator()(const Tensor& x) const { return forward(x); }
};

/// torch.nn.Mish.
struct Mish : PlainLayer {
    Tensor forward(const Tensor& x) const { return mish(x); }
    Tensor operator()(const Tensor& x) const { return forward(x); }
};

/// torch.nn.Softsign.
struct Softsign : PlainLayer {
    Tensor forward(const Tensor& x) const { return softsign(x); }
    Tensor operator()(const Tensor& x) const { return forward(x); }
};

/// torch.nn.ELU.
struct ELU : PlainLayer {
    explicit ELU(double scale = 1) : alpha(scale) {}

    double alpha;

    Tensor forward(const Tensor& x) const { return elu(x, alpha); }
    Tensor operator()(const Tensor& x) const { return forward(x); }
    void describe(Signature& signature) const { signature.add(alpha); }
};

/// torch.nn.Softplus.
struct Softplus : PlainLayer {
    explicit Softplus(double sharpness = 1, double linear_from = 20) : beta(sharpness), threshold(linear_from) {}

    double beta, threshold;

    Tensor forward(const Tensor& x) const { return softplus(x, beta, threshold); }
    Tensor operator()(const Tensor& x) const { return forward(x); }
    void describe(Signature& signature) const { signature.add(beta).add(threshold); }
};

/// torch.nn.GLU.
struct GLU : PlainLayer {
    explicit GLU(int along = -1) : dim(along) {}

    int dim;

    Tensor forward(const Tensor& x) const { return glu(x, dim); }
    Tensor operator()(const Tensor& x) const { return forward(x); }
    void describe(Signature& signature) const { signature.add(dim); }
};

/// torch.nn.Softmax.
struct Softmax : PlainLayer {
    explicit Softmax(int along) : dim(along) {}

    int dim;

    Tensor forward(const Tensor& x) const { return softmax(x, dim); }
    Tensor operator()(const Tensor& x) const { return forward(x); }
    void describe(Signature& signature) const { signature.add(dim); }
};

/// torch.nn.LogSoftmax.
struct LogSoftmax : PlainLayer {
    explicit LogSoftmax(int along) : dim(along) {}

    int dim;

    Tensor forward(const Tensor& x) const { return log_softmax(x, dim); }
    Tensor operator()(const Tensor& x) const { return forward(x); }
    void describe(Signature& signature) const { signature.add(dim); }
};

/// torch.nn.Softmin.
struct Softmin : PlainLayer {
    explicit Softmin(int along) : dim(along) {}

    int dim;

    Tensor forward(const Tensor& x) const { return softmin(x, dim); }
    Tensor operator()(const Tensor& x) const { return forward(x); }
    void describe(Signature& signature) const { signature.add(dim); }
};

/// torch.nn.CELU.
struct CELU : PlainLayer {
    explicit CELU(double scale = 1) : alpha(scale) {}

    double alpha;

    Tensor forward(const Tensor& x) const { return celu(x, alpha); }
    Tensor operator()(const Tensor& x) const { return forward(x); }
    void describe(Signature& signature) const { signature.add(alpha); }
};

/// torch.nn.Hardtanh.
struct Hardtanh : PlainLayer {
    explicit Hardtanh(double low = -1, double high = 1) : min_val(low), max_val(high) {}

    double min_val, max_val;

    Tensor forward(const Tensor& x) const { return hardtanh(x, min_val, max_val); }
    Tensor operator()(const Tensor& x) const { return forward(x); }
    void describe(Signature& signature) const { signature.add(min_val).add(max_val); }
};

/// torch.nn.Hardshrink.
struct Hardshrink : PlainLayer {
    explicit Hardshrink(double limit = 0.5) : lambd(limit) {}

    double lambd;

    Tensor forward(const Tensor& x) const { return hardshrink(x, lambd); }
    Tensor operator()(const Tensor& x) const { return forward(x); }
    void describe(Signature& signature) const { signature.add(lambd); }
};

/// torch.nn.Softshrink.
struct Softshrink : PlainLayer {
    explicit Softshrink(double limit = 0.5) : lambd(limit) {}

    double lambd;

    Tensor forward(const Tensor& x) const { return softshrink(x, lambd); }
    Tensor operator()(const Tensor& x) const { return forward(x); }
    void describe(Signature& signature) const { signature.add(lambd); }
};

/// torch.nn.Tanhshrink.
struct Tanhshrink : PlainLayer {
    Tensor forward(const Tensor& x) const { return tanhshrink(x); }
    Tensor operator()(const Tensor& x) const { return forward(x); }
};

/// torch.nn.Threshold.
struct Threshold : PlainLayer {
    explicit Threshold(double limit, double below) : threshold(limit), value(below) {}

    double threshold, value;

    Tensor forward(const Tensor& x) const { return lockstep::threshold(x, threshold, value); }
    Tensor operator()(const Tensor& x) const { return forward(x); }
    void describe(Signature& signature) const { signature.add(threshold).add(value); }
};

/// torch.nn.Softmax2d: softmax over the channels of x (N, C, H, W).
struct Softmax2d : PlainLayer {
    Tensor forward(const Tensor& x) const;
    Tensor operator()(const Tensor& x) const { return forward(x); }
};

/// torch.nn.RReLU.
struct RReLU : PlainLayer {
    explicit RReLU(double low = 1.0 / 8, double high = 1.0 / 3) : lower(low), upper(high) {}

    double lower, upper;
    bool training = true;

    Tensor forward(const Tensor& x) const;
    Tensor operator()(const Tensor& x) const { return forward(x); }
    void describe(Signature& signature) const { signature.add(lower).add(upper); }
};

}  // namespace lockstep
