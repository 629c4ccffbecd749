// Functions that run before and after the forward and the backward of a layer, to record or replace what it takes and
// returns.
#pragma once

#include <atomic>
#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/ops/layers.h"
#include "lockstep/ops/module.h"
#include "lockstep/runtime/signature.h"

namespace lockstep {

/// Identifies a hook in the layer that it was registered with, and in copies of that layer.
struct HookHandle {
    std::uint64_t number;
};

namespace detail {

/// A number that no other hook of the process has.
inline HookHandle new_hook() {
    static std::atomic<std::uint64_t> next{1};
    return {next++};
}

/// Hooks in the order of their registration. A member of their layer without tensors; its options are the hooks.
template <class Function>
struct HookList : PlainLayer {
    struct Entry {
        HookHandle handle;
        Function function;
    };
    std::vector<Entry> entries;

    HookHandle add(Function function) {
        entries.push_back({new_hook(), std::move(function)});
        return entries.back().handle;
    }
    bool remove(HookHandle handle) {
        return std::erase_if(entries, [&](const Entry& entry) { return entry.handle.number == handle.number; }) > 0;
    }
    std::vector<Function> functions() const {
        std::vector<Function> all;
        for (const Entry& entry : entries) all.push_back(entry.function);
        return all;
    }
    void describe(Signature& signature) const {
        for (const Entry& entry : entries) signature.add(entry.handle.number);
    }
};

/// The backward hooks of one call of a layer. Both results share the memory of the given tensor.
class BackwardHooks {
public:
    using Before = std::function<Tensor(const Tensor& grad_output)>;
    using After = std::function<Tensor(const Tensor& grad_input, const Tensor& grad_output)>;
    BackwardHooks(std::vector<std::shared_ptr<const Before>> before, std::vector<std::shared_ptr<const After>> after);
    /// The input to pass to forward, whose gradient passes through the hooks.
    Tensor input(const Tensor& x);
    /// The output to return. If the input requires no gradient, its gradient calls all hooks.
    Tensor output(const Tensor& y);

private:
    struct Call;
    std::shared_ptr<Call> call_;
};

/// `hook(arguments...)`; an undefined tensor if it returns nothing.
template <class Hook, class... Arguments>
Tensor result_of_hook(Hook& hook, const Arguments&... arguments) {
    if constexpr (std::is_void_v<std::invoke_result_t<Hook&, const Arguments&...>>) {
        hook(arguments...);
        return {};
    } else {
        return hook(arguments...);
    }
}

}  // namespace detail

/// A layer with hooks, whose parameters have the names of the layer. Its forward takes one tensor and returns one.
///
///     struct Net {
///         ls::Hooked<ls::Linear> fc{784, 10};   // "fc.weight"
///         LOCKSTEP_MEMBERS(fc)
///         ls::Tensor forward(ls::Tensor x) { return fc(x); }
///     };
///     net.fc.register_forward_hook([](const ls::Linear&, const ls::Tensor& x, const ls::Tensor& y) {
///         std::cout << y.shape().str() << '\n';
///     });
///
/// In eager use, hooks run in every forward. In a wrapper they are part of forward: they run when it is traced, with
/// tensors that have shapes but no values. Every step repeats their operations on tensors; effects on the host occur
/// only during tracing. To keep values of a step, a hook copies them to a buffer of the model with `copy_`. A hook that
/// is registered or removed takes effect in the next step. Copies of a layer have its hooks.
template <class Layer>
struct Hooked : Layer {
    static_assert(
        requires(Layer & layer, const Tensor& x) {
            { layer.forward(x) } -> std::convertible_to<Tensor>;
        },
        "Hooked holds layers whose forward takes one tensor and returns one");

    using Layer::Layer;
    explicit Hooked(Layer layer) : Layer(std::move(layer)) {}

    /// Calls `hook(layer, input)` before forward. If it returns a defined tensor, that becomes the input. Hooks run in
    /// the order of their registration. torch.nn.Module.register_forward_pre_hook.
    template <class Hook>
    HookHandle register_forward_pre_hook(Hook hook) {
        return before_.add([hook = std::move(hook)](const Layer& layer, const Tensor& input) mutable {
            return detail::result_of_hook(hook, layer, input);
        });
    }
    /// Calls `hook(layer, input, output)` after forward. If it returns a defined tensor, that becomes the output.
    /// torch.nn.Module.register_forward_hook.
    template <class Hook>
    HookHandle register_forward_hook(Hook hook) {
        return after_.add(
            [hook = std::move(hook)](const Layer& layer, const Tensor& input, const Tensor& output) mutable {
                return detail::result_of_hook(hook, layer, input, output);
            });
    }
    /// Calls `hook(grad_output)` in backward, when the gradient of the output is known, before the backward of the
    /// layer. If it returns a defined tensor, that becomes the gradient. Backward may follow when the layer no longer
    /// exists, so hooks do not get it; copies of the layer share the function object.
    /// torch.nn.Module.register_full_backward_pre_hook.
    template <class Hook>
    HookHandle register_full_backward_pre_hook(Hook hook) {
        return before_backward_.add(std::make_shared<const detail::BackwardHooks::Before>(
            [hook = std::move(hook)](const Tensor& grad_output) mutable {
                return detail::result_of_hook(hook, grad_output);
            }));
    }
    /// Calls `hook(grad_input, grad_output)` in backward, when the gradient of the input is known, with the gradient
    /// that the layer computed. If it returns a defined tensor, that becomes the gradient of the input. If the input
    /// requires no gradient, grad_input is undefined, and a hook that returns a tensor is an error (InvalidArgument).
    /// torch.nn.Module.register_full_backward_hook.
    template <class Hook>
    HookHandle register_full_backward_hook(Hook hook) {
        return after_backward_.add(std::make_shared<const detail::BackwardHooks::After>(
            [hook = std::move(hook)](const Tensor& grad_input, const Tensor& grad_output) mutable {
                return detail::result_of_hook(hook, grad_input, grad_output);
            }));
    }
    /// Returns false if the layer does not have the hook.
    bool remove_hook(HookHandle handle) {
        return before_.remove(handle) || after_.remove(handle) || before_backward_.remove(handle) ||
               after_backward_.remove(handle);
    }

    Tensor forward(const Tensor& x) {
        return surrounded(x, [this](const Tensor& input) { return Layer::forward(input); });
    }
    Tensor forward(const Tensor& x) const requires requires(const Layer& layer) { layer.forward(x); }
    {
        return surrounded(x, [this](const Tensor& input) { return Layer::forward(input); });
    }
    Tensor operator()(const Tensor& x) { return forward(x); }
    Tensor operator()(const Tensor& x) const requires requires(const Layer& layer) { layer.forward(x); }
    { return forward(x); }

    template <class Visit>
    void lockstep_members(Visit&& visit) {
        Layer::lockstep_members(visit);
        detail::visit_named("forward_pre_hooks, forward_hooks, backward_pre_hooks, backward_hooks", visit, before_,
                            after_, before_backward_, after_backward_);
    }

private:
    template <class Forward>
    Tensor surrounded(const Tensor& x, const Forward& forward_of_layer) const {
        Tensor input = x;
        for (const auto& hook : before_.entries)
            if (const Tensor other = hook.function(*this, input); other.defined()) input = other;
        std::optional<detail::BackwardHooks> backward;
        if (!before_backward_.entries.empty() || !after_backward_.entries.empty()) {
            backward.emplace(before_backward_.functions(), after_backward_.functions());
            input = backward->input(input);
        }
        Tensor output = forward_of_layer(input);
        for (const auto& hook : after_.entries)
            if (const Tensor other = hook.function(*this, input, output); other.defined()) output = other;
        return backward ? backward->output(output) : output;
    }

    detail::HookList<std::function<Tensor(const Layer&, const Tensor&)>> before_;
    detail::HookList<std::function<Tensor(const Layer&, const Tensor&, const Tensor&)>> after_;
    detail::HookList<std::shared_ptr<const detail::BackwardHooks::Before>> before_backward_;
    detail::HookList<std::shared_ptr<const detail::BackwardHooks::After>> after_backward_;
};

}  // namespace lockstep
