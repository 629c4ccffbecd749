// Operations that tensors themselves need. Their kernels lie with all others (ops/cpu, ops/cuda).
#pragma once

#include "lockstep/runtime/record.h"

namespace lockstep {

/// out = in, converted between dtypes and between layouts (strided with any strides, 0 included, and opaque).
struct Reorder final : Operation {
    std::string_view name() const override { return "reorder"; }
    bool is_elementwise() const override { return true; }
};

/// out = value, in any strided layout.
struct Fill final : Operation {
    explicit Fill(double v) : value(v) {}
    double value;
    std::string_view name() const override { return "fill"; }
    void describe(Signature& s) const override { s.add(value); }
    bool is_elementwise() const override { return true; }
};

/// out = a + b, same shape and dtype; the tape adds gradients with it. Takes a strided or an opaque layout that both
/// share without conversion.
struct Accumulate final : Operation {
    std::string_view name() const override { return "accumulate"; }
    bool is_elementwise() const override { return true; }
};

/// in: x; out: y, summed over the dims whose bit is set in `dims`, which are kept with size 1. Summation order depends
/// on the shape only.
struct Sum final : Operation {
    explicit Sum(std::uint32_t d) : dims(d) {}
    std::uint32_t dims;
    std::string_view name() const override { return "sum"; }
    void describe(Signature& s) const override { s.add(dims); }
};

}  // namespace lockstep
