// Writes to existing tensors.
#include <fmt/format.h>

#include <cstdint>
#include <utility>

#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/api_scope.h"
#include "lockstep/runtime/internal/core_operations.h"
#include "lockstep/runtime/internal/operands.h"
#include "lockstep/runtime/trace.h"

namespace lockstep {

namespace {

/// Rejects writes that autograd would not see.
void check_writable(const Tensor& tensor, const char* what) {
    if (!tensor.defined())
        throw InvalidArgument(fmt::format("{}: the tensor is undefined; expected a defined tensor", what));
    if (grad_enabled() && tensor.requires_grad())
        throw InvalidArgument(
            fmt::format("{}: the tensor to write is tracked by autograd; expected a NoGrad scope", what));
}

/// First and last element, in memory, of a strided tensor that is not empty.
std::pair<std::int64_t, std::int64_t> extent(const TensorMeta& meta) {
    std::int64_t last = meta.offset;
    for (int i = 0; i < meta.shape.dims(); ++i) last += (meta.shape[i] - 1) * meta.strides[i];
    return {meta.offset, last};
}

enum class Overlap : std::uint8_t { none, partial, same, unknown };

/// How two views of one storage share memory, by PyTorch's rules; `unknown` if their elements interleave.
Overlap overlap(const TensorMeta& a, const TensorMeta& b) {
    if (a.numel() == 0 || b.numel() == 0) return Overlap::none;
    if (a.same_layout(b) && a.offset == b.offset) return Overlap::same;
    const auto [first, last] = extent(a);
    const auto [other_first, other_last] = extent(b);
    if (last < other_first || other_last < first) return Overlap::none;
    const auto dense = [](const TensorMeta& meta, std::int64_t begin, std::int64_t end) {
        return !repeats_elements(meta) && end - begin + 1 == meta.numel();
    };
    return dense(a, first, last) && dense(b, other_first, other_last) ? Overlap::partial : Overlap::unknown;
}

/// Whether `target` outlives the trace that writes it. Then it has its new values from the next step on: the step may
/// still be refused.
bool is_written_by_commit(const Tensor& target) { return Trace::current() != nullptr && !target.is_symbolic(); }

void write_by_commit(const Tensor& target, const Tensor& values) {
    if (!target.is_contiguous())
        throw InvalidArgument(
            fmt::format("{} inside forward writes a part of a buffer whose elements are not contiguous ({}); expected "
                        "the whole buffer",
                        ApiScope::name(), target.shape().str()));
    apply_one(CommitIfOk{}, {values.to(target.dtype()).contiguous()}, target);
}

}  // namespace

bool repeats_elements(const TensorMeta& meta) {
    if (meta.opaque || meta.numel() == 0) return false;
    for (int i = 0; i < meta.shape.dims(); ++i)
        if (meta.strides[i] == 0 && meta.shape[i] > 1) return true;
    return false;
}

const Tensor& Tensor::copy_(const Tensor& source) const {
    const ApiScope call("copy_");
    check_writable(*this, "copy_");
    const NoGrad no_grad;
    make_strided(*this);
    require_single_elements(*this, "copy_");
    Tensor values = source.detach();
    if (!Trace::current()) values = values.to(device());
    if (values.impl()->storage == impl_->storage) {
        const Overlap shared = overlap(impl_->meta, values.impl()->meta);
        if (shared == Overlap::partial)
            throw InvalidArgument(
                "copy_: the source shares memory with the target; expected separate memory (use clone())");
        if (shared == Overlap::unknown) values = values.clone();
    }
    if (!(values.shape() == shape())) values = values.expand(shape());
    if (is_written_by_commit(*this)) {
        write_by_commit(*this, values);
        return *this;
    }
    apply_one(Reorder{}, {values}, *this);
    return *this;
}

const Tensor& Tensor::fill_(double value) const {
    const ApiScope call("fill_");
    check_writable(*this, "fill_");
    const NoGrad no_grad;
    if (is_written_by_commit(*this)) {
        write_by_commit(*this, Tensor::full(shape(), value, dtype(), device()));
        return *this;
    }
    make_strided(*this);
    Tensor target = detach();
    for (int i = 0; i < dims(); ++i)  // all elements become the same, so elements that share memory are written once
        if (strides()[i] == 0 && size(i) > 1) target = target.slice(i, 0, 1);
    apply_one(Fill{value}, {}, target);
    return *this;
}

void require_single_elements(const Tensor& written, std::string_view what) {
    TensorMeta meta = written.impl()->meta;
    meta.opaque = written.impl()->storage->opaque;
    if (repeats_elements(meta))
        throw InvalidArgument(
            fmt::format("{}: several elements of the written tensor of shape {} share memory; expected separate "
                        "elements (use clone())",
                        what, written.shape().str()));
}

}  // namespace lockstep
