// Optimizers. The base manages parameter groups with their options, stores named state for every element, and applies
// updates to ranges of an arena when and where its model needs them. There are two ways to define the update of an
// element:
//
// - CustomOptimizer: `update` computes with the library's functions on flat tensors. An optimizer takes about twenty
//   lines.
// - FusedOptimizer: a rule (update_rule.h) with a dedicated kernel. The library's own optimizers are defined this way.
//
// Neither handles replicas, slices, ranks, microbatches, frozen and unused parameters, or resuming: the library does.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/ops/arena.h"
#include "lockstep/ops/update_range.h"
#include "lockstep/ops/update_rule.h"
#include "lockstep/runtime/record.h"

namespace lockstep {

/// State of an optimizer on one device, in addition to the replica that it updates there. For a plain model on several
/// devices, each part is on the device of its arena.
struct OptimizerState {
    std::vector<std::shared_ptr<Buffer>> rows;  ///< one per arena: ParameterRow and options of every parameter
    /// By name, one per arena: state of the elements that the device updates.
    std::map<std::string, std::vector<std::shared_ptr<Buffer>>, std::less<>> elements;
    std::vector<std::shared_ptr<Buffer>> norms;  ///< one per arena: ParameterNorms, if the optimizer needs them
    std::uint64_t made_for = 0;                  ///< version of the settings for which all states exist
    std::uint64_t settings_version = 0;          ///< version of the settings in `rows`
    std::uint64_t trainable_version = 0;         ///< version of the parameters' flags in `rows`
};

/// The parameters that an optimizer updates.
struct OptimizedParameters {
    /// All parameters of a store.
    OptimizedParameters(std::shared_ptr<ParameterStore> all)  // NOLINT(google-explicit-constructor)
        : store(std::move(all)) {}
    /// Parameters of a plain module, or of a part of a model, wrapped or plain: `SGD(model->head)`.
    explicit OptimizedParameters(const std::vector<NamedTensor>& tensors);

    std::shared_ptr<ParameterStore> store;
    /// Names within the part; std::nullopt: all parameters of the store, under its names.
    std::optional<std::map<ParameterId, std::vector<std::string>>> part = {};
};

/// Base of all optimizers. It belongs to its model: both may be used by one thread at a time, and every call throws
/// InvalidArgument while another thread is inside one.
class Optimizer {
public:
    virtual ~Optimizer();
    Optimizer(const Optimizer&) = delete;
    Optimizer& operator=(const Optimizer&) = delete;

    /// PyTorch's name, for messages and checkpoints: "SGD".
    virtual const char* name() const = 0;

    /// PyTorch's manual step: updates the parameters that have a gradient. On a wrapper's parameters it throws
    /// InvalidArgument if none has one, and if the wrapper has been destroyed.
    void step();
    /// Discards all gradients: the next backward stores instead of adding.
    void zero_grad();

    int groups() const { return static_cast<int>(groups_.size()); }
    /// A number among the options of a group: "lr", "weight_decay", "betas.0". Flags are 0 and 1. Throws
    /// InvalidArgument for an unknown name or group.
    double setting(std::string_view name, int group = 0) const;
    /// Sets it from the next step on. Throws InvalidArgument for a value that the options do not allow.
    void set_setting(std::string_view name, double value, int group = 0);
    double lr(int group = 0) const { return setting("lr", group); }
    void set_lr(double lr, int group = 0) { set_setting("lr", lr, group); }

    /// The parameters of a group; -1: all that the optimizer updates.
    std::vector<Tensor> parameters(int group = -1) const;
    /// Whether the optimizer updates this parameter of its store.
    bool updates(ParameterId parameter) const { return group_of(parameter) != no_group; }

    // For schedules: the rates of the groups when the first schedule was created (PyTorch's initial_lr).

    void note_initial_lr();
    double initial_lr(int group) const { return initial_lr_.at(static_cast<std::size_t>(group)); }
    void set_initial_lr(double lr, int group) { initial_lr_.at(static_cast<std::size_t>(group)) = lr; }

    // For wrappers and checkpoints.

    const std::shared_ptr<ParameterStore>& store() const { return store_; }
    /// Id that is unique among all optimizers of the process, used in program keys.
    std::uint64_t id() const { return id_; }
    /// Names of all settings, in the order of the options' members.
    std::vector<std::string> setting_names() const;
    /// Checks and sets all settings of all groups, or throws InvalidArgument with none changed.
    void set_all(const std::vector<std::map<std::string, double>>& groups);
    /// Grows when a setting changes.
    std::uint64_t settings_version() const { return version_; }
    /// Names of the state stored for each element with the present settings.
    virtual std::vector<std::string> states() const = 0;
    /// Whether some parameter's updates are counted.
    virtual bool counts_updates() const = 0;
    /// Cache key of programs: everything that the memory and the records of updates depend on.
    const std::string& program_key() const;
    std::size_t row_bytes() const { return layout_.row_bytes(); }
    /// The rows of an arena's parameters, to be copied to the devices.
    std::vector<std::byte> rows(int arena) const;
    /// State on `device`, created and zeroed on first use, with `elements` elements for each arena.
    OptimizerState& state_on(Device device, const std::vector<std::int64_t>& elements);
    /// Whether an update depends on norms of whole parameters, which are measured after the last gradient.
    virtual bool needs_norms() const { return false; }
    /// Measures a range for the norms: at once, or as records of the trace. `measures`: result of MeasureUpdate.
    virtual void measure_range(const ArenaRange& range, const UpdateOperands& operands, const Tensor& measures) const;
    /// Updates a range: at once, or as records of the trace.
    virtual void update_range(const ArenaRange& range, const UpdateOperands& operands) const = 0;

protected:
    Optimizer(const OptimizedParameters& parameters, const OptionsLayout& layout, const void* options);

    int add_group(const std::vector<std::string>& names, const void* options);
    const void* options_of(int group) const;
    void set_options_of(int group, const void* options);
    /// Whether the updates of a group's parameters are counted.
    virtual bool counts(int group) const = 0;

private:
    static constexpr int no_group = -1;  // group of parameters that the optimizer does not update
    int group_of(ParameterId parameter) const {
        return group_of_[static_cast<std::size_t>(parameter.arena)][static_cast<std::size_t>(parameter.number)];
    }
    bool matches(ParameterId parameter, const std::string& name) const;
    void step_plain();
    void check_group(int group) const;
    const OptionsLayout::Setting& find(std::string_view name) const;

    std::shared_ptr<ParameterStore> store_;
    std::map<ParameterId, std::vector<std::string>> part_names_;
    const OptionsLayout& layout_;
    std::uint64_t id_;
    std::vector<std::vector<std::byte>> groups_;  ///< options of each group
    std::vector<std::vector<int>> group_of_;      ///< by arena and parameter
    std::vector<double> initial_lr_;              ///< by group; empty before the first schedule
    std::uint64_t version_ = 1;
    mutable std::string program_key_;
    mutable std::uint64_t program_key_of_ = 0;  ///< settings version of the cached key
    std::vector<std::pair<Device, OptimizerState>> states_;
};

/// All parameters of a model or a wrapper.
template <class Model>
OptimizedParameters parameters_to_optimize(Model& model) {
    if constexpr (requires { model.parameter_store(); })
        return model.parameter_store();
    else
        return OptimizedParameters(named_tensors(model));
}

/// An optimizer whose groups have these options: an aggregate of numbers (double), flags (bool) and arrays of them,
/// listed with LOCKSTEP_MEMBERS, including `lr`. An optional member `void check() const` throws InvalidArgument for
/// values that are not allowed.
template <class Options>
class OptimizerWith : public Optimizer {
public:
    /// Moves the parameters whose name is in `names`, or begins with one of them followed by a dot, to a new group.
    /// Every parameter remains in one group. In an optimizer of a part, names are relative to the part or to the model.
    /// Returns the number of the group. Throws InvalidArgument for names without a match.
    int add_group(const std::vector<std::string>& names, const Options& options) {
        return Optimizer::add_group(names, &options);
    }
    Options options(int group = 0) const { return *static_cast<const Options*>(options_of(group)); }
    /// Sets the options from the next step on.
    void set_options(const Options& options, int group = 0) { set_options_of(group, &options); }

protected:
    OptimizerWith(const OptimizedParameters& parameters, const Options& options)
        : Optimizer(parameters, OptionsLayout::of<Options>(), &options) {}
};

/// Base of custom optimizers:
///
///     struct LionOptions {
///         double lr = 1e-4;
///         std::array<double, 2> betas{0.9, 0.99};
///         double weight_decay = 0;
///         LOCKSTEP_MEMBERS(lr, betas, weight_decay)
///     };
///     class Lion final : public ls::CustomOptimizer<LionOptions> {
///     public:
///         using CustomOptimizer::CustomOptimizer;
///         const char* name() const override { return "Lion"; }
///         std::vector<std::string> states() const override { return {"exp_avg"}; }
///         void update(ls::UpdateRange& range) const override {
///             const ls::Tensor lr = range.setting("lr"), g = range.gradient(), m = range.state("exp_avg");
///             const auto toward_g = [&](const ls::Tensor& beta) { return m * beta + g * (1 - beta); };
///             const ls::Tensor p = range.parameter() * (1 - lr * range.setting("weight_decay"));
///             range.set_parameter(p - lr * ls::sign(toward_g(range.setting("betas.0"))));
///             range.set_state("exp_avg", toward_g(range.setting("betas.1")));
///         }
///     };
template <class Options>
class CustomOptimizer : public OptimizerWith<Options> {
public:
    /// `model`: a wrapper, a plain module, or a part of one. Its parameters form group 0; others are not updated.
    template <class Model>
    explicit CustomOptimizer(Model& model, const Options& options = {})
        : OptimizerWith<Options>(parameters_to_optimize(model), options) {}

    /// Computes the new parameters and states of a range, with elementwise functions. It is called once for each range
    /// and program, like a traced `forward`; settings are tensors, so that they may change later.
    virtual void update(UpdateRange& range) const = 0;

    bool counts_updates() const final { return true; }
    void update_range(const ArenaRange& range, const UpdateOperands& operands) const final {
        UpdateRange::perform(this->name(), OptionsLayout::of<Options>(), range, operands,
                             [this](UpdateRange& part) { update(part); });
    }

protected:
    bool counts(int) const final { return true; }
};

/// An optimizer with a rule (update_rule.h), which must be in the list of all rules.
template <class Rule>
class FusedOptimizer : public OptimizerWith<typename Rule::Options> {
public:
    using Options = typename Rule::Options;

    /// `model`: a wrapper, a plain module, or a part of one. Its parameters form group 0; others are not updated.
    /// Throws InvalidArgument for options that the optimizer does not allow.
    template <class Model>
    requires(!std::is_same_v<std::remove_const_t<Model>, std::shared_ptr<ParameterStore>>) explicit FusedOptimizer(
        Model& model, const Options& options = {})
        : OptimizerWith<Options>(parameters_to_optimize(model), options) {}
    explicit FusedOptimizer(std::shared_ptr<ParameterStore> store, const Options& options)
        : OptimizerWith<Options>(std::move(store), options) {}

    std::vector<std::string> states() const override {
        std::vector<std::string> names;
        for (std::size_t i = 0; i < Rule::states.size(); ++i)
            if ((used() >> i & 1u) != 0) names.emplace_back(Rule::states[i]);
        return names;
    }
    bool counts_updates() const override { return used() != 0; }
    void update_range(const ArenaRange& range, const UpdateOperands& operands) const override {
        std::vector<Output> written{operands.parameters};
        for (const std::string& state : states()) written.emplace_back(operands.states.at(state));
        std::vector<Tensor> read{operands.gradients, operands.rows};
        if (needs_norms()) read.push_back(operands.norms);
        apply(make_operation(FusedUpdate<Rule>{range, used()}), read, written);
    }
    bool needs_norms() const override { return NormRule<Rule>; }
    void measure_range([[maybe_unused]] const ArenaRange& range, [[maybe_unused]] const UpdateOperands& operands,
                       [[maybe_unused]] const Tensor& measures) const override {
        if constexpr (NormRule<Rule>) {
            std::vector<Tensor> read{operands.gradients, operands.parameters, operands.rows};
            for (const std::string& state : states()) read.push_back(operands.states.at(state));
            apply(make_operation(MeasureUpdate<Rule>{range, used()}), read, {measures});
        }
    }

protected:
    /// A group without state for its elements needs no count either.
    bool counts(int group) const override { return used_by(group) != 0; }

private:
    /// The states that a group uses, and those that at least one group uses, as bits.
    unsigned used_by(int group) const {
        return Rule::template used<double>(Rule::template factors<double>(this->options(group), 0));
    }
    unsigned used() const {
        unsigned all = 0;
        for (int group = 0; group < this->groups(); ++group) all |= used_by(group);
        return all;
    }
};

}  // namespace lockstep
