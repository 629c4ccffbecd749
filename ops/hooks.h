// Functions that run before and after the forward of a layer, to record or replace what it takes and returns.
#pragma once

#include <atomic>
#include <concepts>
#include <cstdint>
#include <functional>
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
    void describe(Signature& signature) const {
        for (const Entry& entry : entries) signature.add(entry.handle.number);
    }
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
    /// Calls `hook(layer, input, output)` after forward. If it returns a defined tensor, that becomes the output. For
    /// the gradient of the output, call its `register_hook`. torch.nn.Module.register_forward_hook.
    template <class Hook>
    HookHandle register_forward_hook(Hook hook) {
        return after_.add(
            [hook = std::move(hook)](const Layer& layer, const Tensor& input, const Tensor& output) mutable {
                return detail::result_of_hook(hook, layer, input, output);
            });
    }
    /// Returns false if the layer does not have the hook.
    bool remove_hook(HookHandle handle) { return before_.remove(handle) || after_.remove(handle); }

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
        detail::visit_named("forward_pre_hooks, forward_hooks", visit, before_, after_);
    }

private:
    template <class Forward>
    Tensor surrounded(const Tensor& x, const Forward& forward_of_layer) const {
        Tensor input = x;
        for (const auto& hook : before_.entries)
            if (const Tensor other = hook.function(*this, input); other.defined()) input = other;
        Tensor output = forward_of_layer(input);
        for (const auto& hook : after_.entries)
            if (const Tensor other = hook.function(*this, input, output); other.defined()) output = other;
        return output;
    }

    detail::HookList<std::function<Tensor(const Layer&, const Tensor&)>> before_;
    detail::HookList<std::function<Tensor(const Layer&, const Tensor&, const Tensor&)>> after_;
};

}  // namespace lockstep
