// The common base of DataParallel and DistributedDataParallel: a model on an engine, its steps and its forward.
#pragma once

#include <cstddef>
#include <memory>
#include <stop_token>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/ops/loss.h"
#include "lockstep/ops/module.h"
#include "lockstep/ops/optimizer.h"
#include "lockstep/parallel/engine.h"
#include "lockstep/parallel/structure.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/moved_from.h"
#include "lockstep/runtime/stop_signals.h"

namespace lockstep {

namespace detail {
template <class T>
inline constexpr bool is_tuple = false;
template <class... Ts>
inline constexpr bool is_tuple<std::tuple<Ts...>> = true;

/// Calls `model.forward` with `input`, spreading a tuple over its parameters.
template <class Net, class Input>
decltype(auto) call_forward(Net& model, const Input& input) {
    if constexpr (is_tuple<Input>)
        return std::apply([&](const auto&... parts) -> decltype(auto) { return model.forward(parts...); }, input);
    else
        return model.forward(input);
}

/// Adds the modes and options of all modules, and the contents of members that vary, to a program's key.
struct ModuleState {
    Signature& key;
    bool training = false;  ///< true if any module is in training mode
    void tensor(NoName, ModuleTensor&, bool) {}
    void training_flag(NoName, bool& flag) {
        key.add(flag);
        training |= flag;
    }
    void choice(std::size_t which) { key.add(which); }
    template <class Module>
    void module(const Module& of) requires structure::Describes<Module> {
        of.describe(key);
    }
};

template <class T>
constexpr void require_walkable() {
    static_assert(structure::walkable<T>,
                  "the tensors in the inputs of forward or the loss cannot be found: pass tensors, values, and tuples, "
                  "pairs, vectors, arrays, maps and optionals of them, or a struct that lists its members with "
                  "LOCKSTEP_MEMBERS(a, b); a struct of sharded tensors must be a template of their type");
}

/// Number of parameters of a `forward` that takes only tensors; -1 for any other `forward`.
template <class Forward>
inline constexpr int tensors_taken = -1;
template <class Result, class Net, class... Inputs>
requires(std::is_same_v<std::remove_cvref_t<Inputs>, Tensor>&&...) inline constexpr int tensors_taken<
    Result (Net::*)(Inputs...)> = sizeof...(Inputs);
template <class Result, class Net, class... Inputs>
requires(std::is_same_v<std::remove_cvref_t<Inputs>, Tensor>&&...) inline constexpr int tensors_taken<
    Result (Net::*)(Inputs...) const> = sizeof...(Inputs);
}  // namespace detail

/// A model that is trained in shards. Base class of DataParallel and DistributedDataParallel.
///
/// Only one thread at a time may use a wrapper and its optimizers, loaders, losses, outputs and accessed members. A
/// call while another thread is inside a call throws InvalidArgument and has no effect. Successive calls may be made by
/// different threads. Different wrappers may be used by different threads concurrently, even on the same devices. This
/// also applies to a copy of the model (`Net copy = *model`, made between two calls). The tensors of a copy are on the
/// first device; `lockstep::to(copy, device)` moves them. Calls inside `forward` or a loss throw InvalidArgument.
template <class Net>
class ShardedModel {
public:
    /// The model of replica 0; `*` and `->` return the same.
    Net& module() {
        live().one_thread().require_free("a member of the model");
        return *model_;
    }
    Net& operator*() { return module(); }
    Net* operator->() { return &module(); }
    Engine& engine() { return live(); }
    const Devices& devices() const { return live().devices(); }
    int shards() const { return live().shards(); }
    const std::shared_ptr<ParameterStore>& parameter_store() const { return live().store(); }

    /// Sets the mode of all modules.
    void train(bool on = true) {
        const OneThreadAtATime::Use use(live().one_thread(), "train");
        set_training(*model_, on);
    }
    void eval() { train(false); }

    /// One training step: forward, `loss(output, target)`, backward, reduction, update. `input` is a tensor, or a tuple
    /// that is spread over forward's parameters. It may consist of tensors (or sharded tensors), containers, structs
    /// that list their members with LOCKSTEP_MEMBERS and plain values (structure.h). `target` has the same form and is
    /// passed to the loss. `loss` must return a Loss. Returns without waiting. Errors detected on devices are thrown at
    /// the latest two calls later or when the loss is read. Discards gradients that `backward` left. With `options` =
    /// `{.accumulation_steps = 4}` the batch is computed in four microbatches with one update (gradient accumulation).
    ///
    /// `forward` and the loss are called when a program is traced, not in every step. The program's key includes the
    /// modes and options of all layers, the loss with its by-value captures, and the arguments. All other numbers and
    /// flags that `forward` or the loss read (a reference, a member of the model, random numbers of the host) are
    /// frozen. To vary such a value, use a tensor, an argument, a by-value capture or a module's `void
    /// describe(Signature&) const`. Uses 1, 2, 3, 10, 100, ... of a cached program call `forward` again. If the result
    /// has changed, they throw InvalidArgument naming the operation and both values; with several processes this ends
    /// the job. With a loss that owns memory (a captured vector), every step calls `forward`, and a changed result gets
    /// another program. Throws InvalidArgument for a tensor that requires a gradient and is not a parameter of the
    /// model, for example in a layer that LOCKSTEP_MEMBERS does not list. Also throws it for a layer that updates
    /// running statistics or draws a dropout mask although the model does not list it. A step in which no parameter
    /// gets a gradient throws it as well.
    template <class Input, class Target, class LossFunction>
    StepLoss step(Optimizer& optimizer, const Input& input, const Target& target, const LossFunction& loss,
                  const StepOptions& options = {}) {
        detail::require_walkable<Input>();
        detail::require_walkable<Target>();
        using Result = decltype(detail::call_forward(*model_, std::declval<const structure::traced_t<Input>&>()));
        static_assert(
            std::is_same_v<std::invoke_result_t<const LossFunction&, Result, const structure::traced_t<Target>&>, Loss>,
            "step requires a loss that returns lockstep::Loss, a sum of terms that is exact on shards; for other "
            "losses use sum_over_shards, or a loss of gathered outputs (forward, then backward)");
        const OneThreadAtATime::Use use(live().one_thread(), "step");
        const auto both = std::tie(input, target);
        ModelCall& call = call_of(both);
        call.key.add(std::string_view(typeid(LossFunction).name()));
        call.identified = structure::describe_loss(loss, call.key);
        if constexpr (std::is_copy_constructible_v<LossFunction>)
            call.keep = [&loss] { return std::make_shared<const LossFunction>(loss); };
        call.function = [&](const std::vector<Tensor>& symbols) {
            auto next = symbols.begin();
            const auto take = [&] { return *next++; };
            const auto traced_input = structure::replaced(input, take);
            const auto traced_target = structure::replaced(target, take);
            ModelResult result;
            result.loss = loss(forward_of_model(traced_input), traced_target).terms();
            return result;
        };
        return live().step(optimizer, call, leaves_of(both), options);
    }

    /// Forward on all devices. Returns the outputs gathered along dimension 0 on the output device, in the containers
    /// and structs that forward returns. Scalars become a vector with one element per shard. Differentiable:
    /// `backward()` on a loss of the outputs adds the gradients to the parameters' `grad()`, once for each forward.
    /// Inside NoGrad no state is retained. `backward()` throws InvalidArgument, naming the tensor, if weights that it
    /// reads were written after the forward (by an optimizer step, a load or copy_). `forward` of the model is called
    /// as in `step`.
    template <class... Inputs>
    auto forward(const Inputs&... inputs) {
        (detail::require_walkable<Inputs>(), ...);
        using Result =
            std::remove_cvref_t<decltype(model_->forward(std::declval<const structure::traced_t<Inputs>&>()...))>;
        static_assert(
            structure::walkable<Result>,
            "the tensors in the result of forward cannot be found: return tensors, values, and tuples, pairs, vectors, "
            "arrays, maps and optionals of them, or a struct that lists its members with LOCKSTEP_MEMBERS(a, b)");
        const OneThreadAtATime::Use use(live().one_thread(), "forward");
        const auto all = std::tie(inputs...);
        ModelCall& call = call_of(all);
        call.function = [&](const std::vector<Tensor>& symbols) {
            auto next = symbols.begin();
            const auto take = [&] { return *next++; };
            // Braces fix the order of evaluation.
            return traced_forward(std::tuple<structure::traced_t<Inputs>...>{structure::replaced(inputs, take)...});
        };
        const ForwardResult result = live().forward(call, leaves_of(all));
        Result output = *static_cast<const Result*>(result.prototype.get());
        auto next = result.outputs.begin();
        structure::for_each_tensor(output, [&](Tensor& tensor) { tensor = *next++; });
        return output;
    }
    template <class... Inputs>
    auto operator()(const Inputs&... inputs) {
        return forward(inputs...);
    }

    /// Whether training ends before the next step because this or another process received one of the signals. All
    /// processes call it before each of their steps and get the same answer before the same step
    /// (Engine::poll_stop).
    bool should_stop(const StopSignals& stop) { return live().poll_stop(stop.signal()).has_value(); }
    /// The same for a request by any thread of any process, with the source of the token. A step that has been enqueued
    /// is completed.
    bool should_stop(const std::stop_token& stop) {
        return live().poll_stop(stop.stop_requested() ? std::optional(stopped_by_token) : std::nullopt).has_value();
    }
    /// Waits for all steps and throws their errors.
    void synchronize() { live().synchronize(); }

protected:
    /// `type`: name of the wrapper, for messages.
    ShardedModel(const char* type, Net model, Devices devices, const EngineOptions& options,
                 std::shared_ptr<Communicator> job)
        : type_(type),
          model_(std::make_unique<Net>(std::move(model))),
          engine_(std::make_unique<Engine>(named_tensors(*model_), std::move(devices), options, std::move(job))) {
        static_assert(
            !requires { model.parameter_store(); }, "this model is already wrapped");
        ParameterStore& store = *engine_->store();
        store.member_check = [net = model_.get(), &store](const char* function) {
            if (detail::has_members(*net, store.members())) return;
            const std::vector<NamedTensor> present = named_tensors(*net);
            if (!store.adopt(present)) store.refuse_members(function, present);
        };
    }
    ShardedModel(ShardedModel&&) noexcept = default;
    ShardedModel& operator=(ShardedModel&& other) noexcept {
        if (this == &other) return *this;
        engine_ = std::move(other.engine_);  // the old engine must be destroyed before its model
        model_ = std::move(other.model_);
        call_ = std::move(other.call_);
        return *this;
    }
    ~ShardedModel() = default;

    /// The call of `forward` with `given` tensors. Throws InvalidArgument if the model takes other inputs or overloads
    /// forward.
    ModelCall forward_of_tensors(std::size_t given) {
        if constexpr (requires { &Net::forward; }) {
            constexpr int taken = detail::tensors_taken<decltype(&Net::forward)>;
            if constexpr (taken > 0)
                if (given == static_cast<std::size_t>(taken))
                    return forward_of_tensors(std::make_index_sequence<static_cast<std::size_t>(taken)>());
        }
        throw InvalidArgument(
            "join: this rank has had no batch, and forward has inputs other than tensors; expected a batch on every "
            "rank");
    }

private:
    Engine& live() const { return detail::content_of(engine_, type_); }

    template <class Input>
    decltype(auto) forward_of_model(const Input& input) {
        const detail::ListedModules listed(*model_);
        return detail::call_forward(*model_, input);
    }

    template <std::size_t... i>
    ModelCall forward_of_tensors(std::index_sequence<i...>) {
        ModelCall call = call_of(std::tuple{(static_cast<void>(i), Tensor())...});
        call.function = [this](const std::vector<Tensor>& symbols) {
            return traced_forward(std::tuple{symbols[i]...});
        };
        return call;
    }

    template <class Inputs>
    ModelResult traced_forward(const Inputs& inputs) {
        auto output =
            std::make_shared<std::remove_cvref_t<decltype(forward_of_model(inputs))>>(forward_of_model(inputs));
        ModelResult traced;
        structure::for_each_tensor(*output, [&](Tensor& tensor) { traced.outputs.push_back(tensor); });
        Signature signature;
        structure::describe(*output, signature);
        traced.structure = signature.bytes();
        structure::for_each_tensor(*output, [&](Tensor& tensor) { tensor = Tensor(); });
        traced.prototype = std::move(output);
        return traced;
    }

    /// A call with these inputs and without a function; valid until the next call.
    template <class Values>
    ModelCall& call_of(const Values& values) {
        call_.key.clear();
        detail::ModuleState state{call_.key};
        detail::visit_module(detail::NoName(), *model_, state);
        call_.training = state.training;
        call_.key.add(std::string_view(typeid(Values).name()));
        structure::describe(values, call_.key);
        call_.identified = true;
        call_.keep = nullptr;
        return call_;
    }

    template <class Values>
    static std::vector<BatchInput> leaves_of(const Values& values) {
        std::vector<BatchInput> leaves;
        leaves.reserve(4);
        structure::for_each_tensor(values, [&](const auto& tensor) { leaves.emplace_back(tensor); });
        return leaves;
    }

    const char* type_;
    std::unique_ptr<Net> model_;
    std::unique_ptr<Engine> engine_;  // after the model, so that it is destroyed first
    ModelCall call_;                  // the last call; its memory is reused
};

}  // namespace lockstep
