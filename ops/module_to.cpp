// Where the tensors of a plain module lie, and in which dtype.
#include <fmt/format.h>

#include <set>

#include "lockstep/ops/arena.h"
#include "lockstep/ops/module.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/error.h"

namespace lockstep::detail {

namespace {

/// Puts `change` of each value in its place, once where several members share it. None is changed when one cannot be.
template <class Change>
void replace_values(const std::vector<NamedTensor>& tensors, Change change) {
    for (const NamedTensor& named : tensors)
        if (ParameterStore::find({named}))
            throw InvalidArgument(
                fmt::format("to: the parameter {} belongs to a wrapper or an optimizer; expected a call before these "
                            "are created, or a copy of the model",
                            named.name));
    const NoGrad no_grad;
    std::vector<std::pair<const ModuleTensor*, Tensor>> changed;
    std::set<const void*> seen;
    for (const NamedTensor& named : tensors) {
        if (!seen.insert(named.member->identity()).second) continue;
        const Tensor& value = named.member->tensor();
        const Tensor fresh = change(value);
        if (fresh.impl() == value.impl()) continue;
        fresh.requires_grad_(value.requires_grad());
        if (const Tensor gradient = value.grad(); gradient.defined()) fresh.set_grad(change(gradient));
        changed.emplace_back(named.member, fresh);
    }
    for (const auto& [member, value] : changed) member->rebind(value);
}

}  // namespace

void move_tensors(const std::vector<NamedTensor>& tensors, Device device) {
    replace_values(tensors, [&](const Tensor& value) { return value.to(device); });
}

void convert_tensors(const std::vector<NamedTensor>& tensors, DType dtype) {
    if (!is_floating(dtype))
        throw InvalidArgument(fmt::format(
            "to: dtype {} is not a floating dtype; expected DType::f32, DType::f64, DType::f16 or DType::bf16",
            name_of(dtype)));
    replace_values(tensors, [&](const Tensor& value) { return is_floating(value.dtype()) ? value.to(dtype) : value; });
}

}  // namespace lockstep::detail
