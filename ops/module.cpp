#include "lockstep/ops/module.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "lockstep/ops/arena.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/error.h"

namespace lockstep {

namespace detail {

/// One value and the module tensors that share it: one, unless some were tied.
///
/// A model is copied member by member, and a member does not know that its model is being copied. So a group of tied
/// tensors remembers its copy in progress: the first member to be copied starts it, the others join it. A member that
/// is copied a second time starts another copy. Any use of a module tensor closes the copy; such uses do not occur
/// while a model is being copied.
struct TieGroup {
    explicit TieGroup(Tensor v) : value(std::move(v)) {}

    Tensor value;
    int next_member = 1;  ///< number for the next tensor tied to these
    bool held = false;    ///< by a store: assigning writes the value

    std::weak_ptr<TieGroup> copy;  ///< the copy in progress
    std::vector<int> joined;       ///< members whose copies belong to it
    std::uint64_t started = 0;     ///< value of `uses` at its start
};

namespace {
/// Incremented by all operations on module tensors except copying. One thread at a time copies a model.
thread_local std::uint64_t uses = 1;
}  // namespace

}  // namespace detail

using detail::TieGroup;

namespace {

Tensor copy_of(const Tensor& value) {
    const NoGrad no_grad;
    return value.clone().requires_grad_(value.requires_grad());
}

/// The group that the copy of `member` of `group` belongs to.
std::shared_ptr<TieGroup> copied(const std::shared_ptr<TieGroup>& group, int member) {
    if (group->next_member == 1) return std::make_shared<TieGroup>(copy_of(group->value));
    std::shared_ptr<TieGroup> copy = group->copy.lock();
    const bool open = copy && group->started == detail::uses &&
                      std::find(group->joined.begin(), group->joined.end(), member) == group->joined.end();
    if (!open) {
        copy = std::make_shared<TieGroup>(copy_of(group->value));
        copy->next_member = group->next_member;
        group->copy = copy;
        group->joined.clear();
        group->started = detail::uses;
    }
    group->joined.push_back(member);
    return copy;
}

}  // namespace

ModuleTensor::ModuleTensor(Tensor value) {
    if (!value.defined())
        throw InvalidArgument("module tensor: the parameter or buffer is undefined; expected a defined tensor");
    ++detail::uses;
    group_ = std::make_shared<TieGroup>(std::move(value));
}

ModuleTensor::ModuleTensor(const ModuleTensor& other) : member_(other.member_) {
    if (other.group_) group_ = copied(other.group_, other.member_);
}

/// If assigning `other` changes only values: writes them and returns true.
bool ModuleTensor::writes(const ModuleTensor& other) const {
    if (!group_ || !group_->held || !other.group_) return false;
    if (!(group_->value.shape() == other.group_->value.shape())) return false;
    const NoGrad no_grad;
    group_->value.copy_(other.group_->value);
    return true;
}

// NOLINTNEXTLINE(bugprone-unhandled-self-assignment): the first line handles it
ModuleTensor& ModuleTensor::operator=(const ModuleTensor& other) {
    if (group_ == other.group_ || writes(other)) return *this;  // the first case: the same tensor, or one tied to it
    member_ = other.member_;
    group_ = other.group_ ? copied(other.group_, other.member_) : nullptr;
    return *this;
}

ModuleTensor::ModuleTensor(ModuleTensor&& other) noexcept = default;
ModuleTensor& ModuleTensor::operator=(ModuleTensor&& other) {  // NOLINT(performance-noexcept-move-constructor)
    if (group_ == other.group_ || writes(other)) return *this;
    member_ = other.member_;
    group_ = std::move(other.group_);
    return *this;
}
ModuleTensor::~ModuleTensor() = default;

detail::HeldValue::HeldValue(const ModuleTensor& member) : group_(member.group_) { group_->held = true; }
detail::HeldValue::~HeldValue() {
    if (group_) group_->held = false;
}
bool detail::HeldValue::in_use() const { return group_.use_count() > 1; }
bool detail::HeldValue::fits(const ModuleTensor& member) const {
    return member.group_ && !member.group_->held && member.group_->value.shape() == group_->value.shape();
}
void detail::HeldValue::adopt(ModuleTensor& member) const {
    const NoGrad no_grad;
    group_->value.copy_(member.group_->value);
    member.group_ = group_;
    member.member_ = group_->next_member > 1 ? group_->next_member++ : 0;
}

const Tensor& ModuleTensor::tensor() const {
    if (!group_)
        throw InvalidArgument(
            "module tensor: the parameter or buffer was moved from; expected the module it was moved to");
    ++detail::uses;
    return group_->value;
}

void ModuleTensor::rebind(Tensor value) const {
    const Tensor& present = tensor();
    if (!value.defined() || !(value.shape() == present.shape()))
        throw InvalidArgument(
            fmt::format("rebind: a module tensor of shape {} cannot become one of shape {}; expected the same shape",
                        present.shape().str(), value.defined() ? value.shape().str() : "undefined"));
    if (group_->held)
        throw InvalidArgument(
            "rebind: the tensor belongs to a wrapper or an optimizer; expected a write of its values with copy_");
    group_->value = std::move(value);
}

Parameter::Parameter(Tensor value) : ModuleTensor(std::move(value)) { tensor().requires_grad_(); }

void tie(ModuleTensor& a, ModuleTensor& b) {
    const Tensor& first = a.tensor();
    const Tensor& second = b.tensor();
    if (a.group_ == b.group_) return;
    if (b.group_->held)
        throw InvalidArgument(
            "tie: the second tensor belongs to a wrapper or an optimizer; expected tie before these are created");
    if (!(first.shape() == second.shape()) || first.dtype() != second.dtype())
        throw InvalidArgument(fmt::format("tie: {} {} and {} {} cannot be one value; expected the same shape and dtype",
                                          name_of(first.dtype()), first.shape().str(), name_of(second.dtype()),
                                          second.shape().str()));
    b.group_ = a.group_;
    b.member_ = a.group_->next_member++;
}

std::string_view detail::next_member_name(std::string_view& names) {
    constexpr std::string_view blanks = " \t\r\n";
    const std::size_t comma = std::min(names.find(','), names.size());
    std::string_view name = names.substr(0, comma);
    names.remove_prefix(std::min(comma + 1, names.size()));
    const std::size_t first = std::min(name.find_first_not_of(blanks), name.size());
    name.remove_prefix(first);
    return name.substr(0, name.find_last_not_of(blanks) + 1);
}

}  // namespace lockstep

namespace lockstep::detail {

namespace {
thread_local const ListedModules* listed_modules = nullptr;
}  // namespace

void ListedModules::enter() { outer_ = std::exchange(listed_modules, this); }

ListedModules::~ListedModules() { listed_modules = outer_; }

void require_listed(const char* layer, const bool& training) {
    if (!training || !listed_modules) return;
    for (const bool* flag : listed_modules->flags_)
        if (*flag || flag == &training) return;
    throw InvalidArgument(
        fmt::format("{}: the layer is in training mode, but no module that the model lists is; list it in "
                    "LOCKSTEP_MEMBERS, so that train() and eval() set its mode",
                    layer));
}

// Device and dtype of the tensors of a plain module.

namespace {

/// Replaces each value by its `change`, once per value that several members share. On failure, all are unchanged.
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
        fresh.impl()->leaf_hooks = value.impl()->leaf_hooks;
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
