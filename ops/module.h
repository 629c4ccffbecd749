// Models are values: plain structs that list their members once.
//
//     struct Net {
//         ls::Linear fc1{784, 128}, fc2{128, 10};
//         LOCKSTEP_MEMBERS(fc1, fc2)
//         ls::Tensor forward(ls::Tensor x) { return fc2(ls::relu(fc1(x))); }
//     };
//
// Parameters are found by walking that list, under PyTorch's names ("fc1.weight"). Copying a model deep-copies its
// parameters; parameters that were tied stay tied in the copy.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "lockstep/runtime/signature.h"
#include "lockstep/runtime/tensor.h"

namespace lockstep {

struct BatchNorm2d;

namespace detail {
struct TieGroup;
class HeldValue;
}  // namespace detail

/// A tensor that belongs to a module. Copying copies the values; `tie` makes two tensors share one value. Assigning to
/// a member of a model that a wrapper or an optimizer holds writes the values and preserves its trainable flag and
/// gradient. A value of another shape replaces the member; the next call of the wrapper or the optimizer then throws
/// InvalidArgument, which names it.
class ModuleTensor {
public:
    /// Shares `value` (no copy): a value created inside the module.
    explicit ModuleTensor(Tensor value);
    ModuleTensor(const ModuleTensor& other);
    ModuleTensor& operator=(const ModuleTensor& other);
    ModuleTensor(ModuleTensor&& other) noexcept;
    ModuleTensor& operator=(ModuleTensor&& other);  // NOLINT(performance-noexcept-move-constructor): it writes values
    ~ModuleTensor();

    const Tensor& tensor() const;
    operator const Tensor&() const { return tensor(); }  // NOLINT(google-explicit-constructor): used as a tensor
    const Tensor* operator->() const { return &tensor(); }
    /// Makes the module use `value` from now on. Tied tensors follow. Throws InvalidArgument for another shape, and for
    /// a member of a model that a wrapper or an optimizer holds.
    void rebind(Tensor value) const;
    /// Identity of the value: equal for tied tensors.
    const void* identity() const { return group_.get(); }

private:
    friend void tie(ModuleTensor& a, ModuleTensor& b);
    friend class detail::HeldValue;
    bool writes(const ModuleTensor& other) const;
    std::shared_ptr<detail::TieGroup> group_;
    int member_ = 0;
};

/// A trained tensor: requires a gradient unless frozen with requires_grad_(false).
class Parameter : public ModuleTensor {
public:
    explicit Parameter(Tensor value);
};

namespace detail {
/// Keeps the value of a member alive for a store. While it lives, assigning to the member writes the value.
class HeldValue {
public:
    explicit HeldValue(const ModuleTensor& member);
    HeldValue(HeldValue&&) noexcept = default;
    HeldValue& operator=(HeldValue&&) = delete;
    ~HeldValue();
    /// Whether a member still has this value.
    bool in_use() const;
    const void* identity() const { return group_.get(); }
    /// Whether `adopt` may be called: the value of the member has this shape, and no store holds it.
    bool fits(const ModuleTensor& member) const;
    /// Copies the values of a member, and makes it share this value from now on.
    void adopt(ModuleTensor& member) const;

private:
    std::shared_ptr<TieGroup> group_;
};
}  // namespace detail

/// State that is saved but not trained (running statistics): PyTorch's register_buffer.
class ModuleBuffer : public ModuleTensor {
public:
    using ModuleTensor::ModuleTensor;
};

/// Makes `b` share the value of `a` from now on, also in copies of their model. Throws InvalidArgument if shape or
/// dtype differ, and for a `b` of a model that a wrapper or an optimizer holds. A model is copied member by member.
/// If you copy one tied member outside its model, read it or its copy before you copy the model. Otherwise its copy is
/// mistaken for a part of the model's copy.
void tie(ModuleTensor& a, ModuleTensor& b);

/// One parameter or buffer found in a model.
struct NamedTensor {
    std::string name;  ///< "conv1.weight"
    ModuleTensor* member;
    bool is_parameter;
};

template <class T>
concept HasMembers = requires(T& model) {
    model.lockstep_members([](std::string_view, auto&) {});
};

namespace detail {

/// Splits "a, b, c" as the macro's arguments were written.
std::string_view next_member_name(std::string_view& names);

/// Replaces names for visitors that need none: constructing names dominates the cost of a walk.
struct NoName {};

/// A visitor of all members at once, which returns a tuple of references to them.
struct TieMembers {
    template <class... Members>
    std::tuple<Members&...> operator()(Members&... members) const {
        return {members...};
    }
};

template <class Visit, class... Members>
auto visit_named(std::string_view names, Visit&& visit, Members&... members) {
    if constexpr (std::is_same_v<std::remove_cvref_t<Visit>, TieMembers>)
        return visit(members...);
    else if constexpr ((std::is_invocable_v<Visit&, NoName, Members&> && ...))
        (visit(NoName{}, members), ...);
    else
        (visit(next_member_name(names), members), ...);
}

template <class Name>
NoName join(NoName, const Name&) {
    return {};
}
inline std::string join(const std::string& prefix, std::string_view name) {
    return prefix.empty() ? std::string(name) : prefix + "." + std::string(name);
}

template <class T>
inline constexpr bool always_false = false;
template <class T>
inline constexpr bool is_owner = false;
template <class T>
inline constexpr bool is_owner<std::optional<T>> = true;
template <class T>
inline constexpr bool is_owner<std::unique_ptr<T>> = true;
template <class T>
inline constexpr bool is_variant = false;
template <class... Ts>
inline constexpr bool is_variant<std::variant<Ts...>> = true;

/// Tells a visitor with a member function `choice` which of several contents a member has.
template <class Visitor>
void visit_choice(Visitor& visitor, std::size_t which) {
    if constexpr (requires { visitor.choice(which); }) visitor.choice(which);
}

class ErasedVisitor;
/// A module whose type is not known at compile time (any_module.h).
template <class M>
concept IsErased = requires(M& member, ErasedVisitor& visitor) {
    member.visit(NoName(), visitor);
    member.visit(std::string(), visitor);
};
template <class Name, class M, class Visitor>
void visit_erased(const Name& name, M& member, Visitor& visitor);

/// Visits everything that `member` holds: calls the visitor's `tensor` and `training_flag`, and its `module` if it has
/// an overload for such a module. Names are NoName if `name` is.
template <class Name, class M, class Visitor>
void visit_module(const Name& name, M& member, Visitor& visitor) {
    if constexpr (std::is_base_of_v<Parameter, M>) {
        visitor.tensor(name, member, true);
    } else if constexpr (std::is_base_of_v<ModuleTensor, M>) {
        visitor.tensor(name, member, false);
    } else if constexpr (IsErased<M>) {
        visit_erased(name, member, visitor);
    } else if constexpr (HasMembers<M>) {
        if constexpr (requires { visitor.module(member); }) visitor.module(member);
        if constexpr (requires {
                          { member.training } -> std::same_as<bool&>;
                      })
            visitor.training_flag(name, member.training);
        if constexpr (std::is_same_v<Name, NoName>)
            member.lockstep_members([&](const auto&, auto& value) { visit_module(name, value, visitor); });
        else
            member.lockstep_members(
                [&](std::string_view child, auto& value) { visit_module(join(name, child), value, visitor); });
    } else if constexpr (is_owner<std::remove_const_t<M>>) {
        visit_choice(visitor, member ? 1 : 0);
        if (member) visit_module(name, *member, visitor);
    } else if constexpr (is_variant<std::remove_const_t<M>>) {
        visit_choice(visitor, member.index());
        std::visit(
            [&](auto& content) {
                if constexpr (!std::is_same_v<std::remove_cvref_t<decltype(content)>, std::monostate>)
                    visit_module(name, content, visitor);
            },
            member);
    } else if constexpr (requires { typename M::mapped_type; }) {
        visit_choice(visitor, member.size());
        for (auto& [key, value] : member) visit_module(join(name, key), value, visitor);
    } else if constexpr (requires {
                             member.begin();
                             member.end();
                         }) {
        visit_choice(visitor, member.size());
        std::size_t index = 0;
        for (auto& value : member) visit_module(join(name, std::to_string(index++)), value, visitor);
    } else if constexpr (requires { member.training; }) {
        visitor.training_flag(name, member.training);
    } else {
        static_assert(always_false<M>,
                      "a member listed in LOCKSTEP_MEMBERS must be a Parameter, a ModuleBuffer, a "
                      "module, an AnyModule, or a container, std::optional, std::unique_ptr or std::variant of them");
    }
}

/// A visitor for modules whose type is not known where they are visited.
class ErasedVisitor {
public:
    virtual ~ErasedVisitor() = default;
    virtual void tensor(const NoName& name, ModuleTensor& member, bool is_parameter) = 0;
    virtual void tensor(const std::string& name, ModuleTensor& member, bool is_parameter) = 0;
    virtual void training_flag(const NoName& name, bool& flag) = 0;
    virtual void training_flag(const std::string& name, bool& flag) = 0;
    virtual void choice(std::size_t which) = 0;
    virtual void module(BatchNorm2d& norm) = 0;

    /// A module with options: `describe` adds those of `of` to a signature.
    struct Described {
        const void* of;
        void (*add)(const void* of, Signature& signature);
        void describe(Signature& signature) const { add(of, signature); }
    };
    virtual void module(const Described& module) = 0;
    template <class M>
    void module(const M& of) requires(!std::is_convertible_v<M&, BatchNorm2d&> &&
                                      requires(Signature & signature) { of.describe(signature); }) {
        module(Described{
            &of, [](const void* self, Signature& signature) { static_cast<const M*>(self)->describe(signature); }});
    }
};

template <class Name, class M, class Visitor>
void visit_erased(const Name& name, M& member, Visitor& visitor) {
    if constexpr (std::is_base_of_v<ErasedVisitor, Visitor>) {
        member.visit(name, visitor);
    } else {
        struct Forwarding final : ErasedVisitor {
            explicit Forwarding(Visitor& to) : visitor(to) {}
            void tensor(const NoName& of, ModuleTensor& found, bool is_parameter) override {
                if constexpr (std::is_same_v<Name, NoName>) visitor.tensor(of, found, is_parameter);
            }
            void tensor(const std::string& of, ModuleTensor& found, bool is_parameter) override {
                if constexpr (std::is_same_v<Name, std::string>) visitor.tensor(of, found, is_parameter);
            }
            void training_flag(const NoName& of, bool& flag) override {
                if constexpr (std::is_same_v<Name, NoName>) visitor.training_flag(of, flag);
            }
            void training_flag(const std::string& of, bool& flag) override {
                if constexpr (std::is_same_v<Name, std::string>) visitor.training_flag(of, flag);
            }
            void choice(std::size_t which) override { visit_choice(visitor, which); }
            void module(BatchNorm2d& norm) override {
                if constexpr (requires { visitor.module(norm); }) visitor.module(norm);
            }
            void module(const Described& options) override {
                if constexpr (requires { visitor.module(options); }) visitor.module(options);
            }
            Visitor& visitor;
        } forwarding(visitor);
        member.visit(name, forwarding);
    }
}

}  // namespace detail

/// Lists the members of a module: parameters, buffers, modules and containers of them (vector, array, map,
/// std::optional, std::unique_ptr, std::variant; AnyModule for a module of any type).
/// In a struct that `forward` takes or returns (parallel/structure.h), lists its tensors, values and containers. Also
/// defines `to`: `model.encoder.to(Device::cuda(1))` is `ls::to(model.encoder, Device::cuda(1))`.
#define LOCKSTEP_MEMBERS(...)                                                              \
    template <class LockstepVisit>                                                         \
    auto lockstep_members(LockstepVisit&& lockstep_visit) {                                \
        return ::lockstep::detail::visit_named(#__VA_ARGS__, lockstep_visit, __VA_ARGS__); \
    }                                                                                      \
    template <class LockstepVisit>                                                         \
    auto lockstep_members(LockstepVisit&& lockstep_visit) const {                          \
        return ::lockstep::detail::visit_named(#__VA_ARGS__, lockstep_visit, __VA_ARGS__); \
    }                                                                                      \
    template <class LockstepPlace>                                                         \
    auto& to(LockstepPlace lockstep_place) {                                               \
        return ::lockstep::to(*this, lockstep_place);                                      \
    }

/// All tensors of `model` in member order, tied ones under each of their names.
template <class Model>
std::vector<NamedTensor> named_tensors(Model& model) {
    struct {
        std::vector<NamedTensor> found;
        void tensor(const std::string& name, ModuleTensor& member, bool is_parameter) {
            found.push_back({name, &member, is_parameter});
        }
        void training_flag(const std::string&, bool&) {}
    } collect;
    detail::visit_module(std::string(), model, collect);
    return std::move(collect.found);
}

namespace detail {
/// Compares the members of a model, in member order, with the expected identities.
struct MemberComparison {
    const std::vector<const void*>& expected;
    std::size_t found = 0;
    bool same = true;

    void tensor(NoName, ModuleTensor& member, bool) {
        same = same && found < expected.size() && expected[found] == member.identity();
        ++found;
    }
    void training_flag(NoName, bool&) {}
};
template <class Model>
bool has_members(Model& model, const std::vector<const void*>& expected) {
    MemberComparison comparison{expected};
    visit_module(NoName(), model, comparison);
    return comparison.same && comparison.found == expected.size();
}

/// The training flags of the modules that a model lists. While it lives, `require_listed` on this thread uses it.
class ListedModules {
public:
    template <class Model>
    explicit ListedModules(Model& model) {
        visit_module(NoName(), model, *this);
        enter();
    }
    ListedModules(const ListedModules&) = delete;
    ListedModules& operator=(const ListedModules&) = delete;
    ~ListedModules();

    // For visit_module.
    void tensor(NoName, ModuleTensor&, bool) {}
    void training_flag(NoName, bool& flag) { flags_.push_back(&flag); }

private:
    friend void require_listed(const char* layer, const bool& training);
    void enter();
    std::vector<const bool*> flags_;
    const ListedModules* outer_ = nullptr;
};
/// Checks a layer that is called by the forward of a wrapped model and that the model does not list. Throws
/// InvalidArgument if it is in training mode while all listed modules are in evaluation mode: eval() has not reached
/// it. `training`: the flag in the layer.
void require_listed(const char* layer, const bool& training);

/// Implementation of `to` for the tensors of a module.
void move_tensors(const std::vector<NamedTensor>& tensors, Device device);
void convert_tensors(const std::vector<NamedTensor>& tensors, DType dtype);
}  // namespace detail

/// Moves parameters and buffers of a plain module to `device`, with their gradients, in place; tied tensors remain
/// tied. Returns the module: `ls::to(net, device).forward(x)`. torch.nn.Module.to. Call it before a wrapper or an
/// optimizer is created: throws InvalidArgument, with nothing changed, if one of these holds the tensors. To move a
/// wrapped model, copy it (`Net copy = *model`): the copy is on the first of its devices.
template <class Model>
Model& to(Model& model, Device device) {
    static_assert(
        !requires { model.parameter_store(); },
        "a wrapped model cannot be moved; expected a copy of it, Net copy = *model");
    detail::move_tensors(named_tensors(model), device);
    return model;
}
/// Converts floating parameters and buffers to `dtype`, which must be floating; otherwise as for a device.
template <class Model>
Model& to(Model& model, DType dtype) {
    static_assert(
        !requires { model.parameter_store(); },
        "a wrapped model cannot be converted; expected a copy of it, Net copy = *model");
    detail::convert_tensors(named_tensors(model), dtype);
    return model;
}

/// Puts every module of `model` in training (true) or evaluation mode.
template <class Model>
void set_training(Model& model, bool training) {
    struct {
        bool value;
        void tensor(detail::NoName, ModuleTensor&, bool) {}
        void training_flag(detail::NoName, bool& flag) { flag = value; }
    } set{training};
    detail::visit_module(detail::NoName(), model, set);
}

/// The training flags of all modules in member order, as a part of program keys: 't' or 'e' for each.
template <class Model>
std::string training_modes(Model& model) {
    struct {
        std::string modes;
        void tensor(detail::NoName, ModuleTensor&, bool) {}
        void training_flag(detail::NoName, bool& flag) { modes += flag ? 't' : 'e'; }
    } read;
    detail::visit_module(detail::NoName(), model, read);
    return std::move(read.modes);
}

}  // namespace lockstep
