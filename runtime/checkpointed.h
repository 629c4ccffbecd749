// Activation checkpointing: a part of forward stores its arguments instead of its activations, and runs again when
// backward needs the activations.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/tensor.h"

namespace lockstep {

namespace detail {

class CheckpointedCall;

/// While an instance exists, tensors that functions save for backward are not stored: `again` computes them.
class FirstRun {
public:
    using Part = std::function<void(const std::vector<Tensor>& arguments)>;
    FirstRun(const std::vector<Tensor>& arguments, Part again);
    ~FirstRun();
    FirstRun(const FirstRun&) = delete;
    FirstRun& operator=(const FirstRun&) = delete;

private:
    std::shared_ptr<CheckpointedCall> call_;
};

/// Position of a tensor among the arguments that are tensors.
struct TensorArgument {
    std::size_t index;
};

template <class Argument>
auto kept_argument(std::vector<Tensor>& tensors, Argument&& argument) {
    if constexpr (std::is_convertible_v<Argument&&, const Tensor&>) {
        tensors.push_back(static_cast<const Tensor&>(argument));
        return TensorArgument{tensors.size() - 1};
    } else {
        return std::decay_t<Argument>(std::forward<Argument>(argument));
    }
}
inline const Tensor& given_argument(const std::vector<Tensor>& tensors, TensorArgument kept) {
    return tensors[kept.index];
}
template <class Kept>
const Kept& given_argument(const std::vector<Tensor>&, const Kept& kept) {
    return kept;
}

/// A type that lists members or has a `forward`. Such a part is referenced, not copied.
template <class Part>
concept IsModule = requires {
    &Part::forward;
}
|| requires(Part& part) {
    part.lockstep_members([](const auto&, auto&) {});
};

/// A part with its arguments, except the tensors.
template <class Part, class Arguments>
struct PartCall {
    Part part;
    Arguments arguments;
    decltype(auto) operator()(const std::vector<Tensor>& tensors) {
        return std::apply(
            [&](const auto&... kept) -> decltype(auto) {
                if constexpr (requires { part.forward(given_argument(tensors, kept)...); })
                    return part.forward(given_argument(tensors, kept)...);
                else
                    return part(given_argument(tensors, kept)...);
            },
            arguments);
    }
};

}  // namespace detail

/// part(arguments...), or part.forward(arguments...), with less memory: the activations of `part` are not stored for
/// backward, which runs `part` again with the same arguments. Backward needs memory for the activations of one part at
/// a time, and a step takes longer by a second forward of the parts. torch.utils.checkpoint.checkpoint with
/// use_reentrant = False.
///
///     ls::Tensor forward(ls::Tensor x) {
///         for (Block& block : blocks) x = ls::checkpointed(block, x);
///         return head(x);
///     }
///
/// Results and gradients have the same bits as without it, in steps of wrappers on any number of devices and for plain
/// modules. Random numbers are repeated, running statistics are updated once, and parts may be nested. `part` is a
/// module, which must exist until backward has run, or a function object, which is copied: a lambda must capture local
/// variables by value. Arguments are tensors, which must not be written before backward, and values, which are copied.
/// `part` must make the same calls in both runs: backward throws InvalidArgument if it saves other tensors, or reads a
/// tensor that was written after the first run. `part` must not call backward() or grad() on functions that it
/// contains.
template <class Part, class... Arguments>
decltype(auto) checkpointed(Part&& part, Arguments&&... arguments) {
    constexpr bool is_module = detail::IsModule<std::remove_cvref_t<Part>>;
    static_assert(std::is_lvalue_reference_v<Part> || !is_module,
                  "checkpointed refers to the module until backward has run; expected an lvalue, such as a member");
    using Held = std::conditional_t<is_module, Part, std::decay_t<Part>>;
    std::vector<Tensor> tensors;
    auto kept = std::tuple{detail::kept_argument(tensors, std::forward<Arguments>(arguments))...};
    using Call = detail::PartCall<Held, decltype(kept)>;
    const auto call = std::make_shared<Call>(Call{std::forward<Part>(part), std::move(kept)});
    if (!grad_enabled()) return (*call)(tensors);
    const detail::FirstRun run(tensors, [call](const std::vector<Tensor>& again) { (void)(*call)(again); });
    return (*call)(tensors);
}

}  // namespace lockstep
