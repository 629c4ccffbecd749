// Optimizers: updates over whole arenas, one kernel a slice.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/ops/arena.h"
#include "lockstep/runtime/record.h"

namespace lockstep {

struct Segment;

/// What an optimizer keeps on one device, beside the replica that it updates there.
struct OptimizerState {
    std::vector<std::shared_ptr<Buffer>> segments;  ///< one an arena: Segment of every parameter
    std::vector<std::shared_ptr<Buffer>> momentum;  ///< one an arena, or of its slices; null where there is none
    std::uint64_t settings_version = 0;             ///< of the settings that `segments` holds
    std::uint64_t trainable_version = 0;            ///< likewise, of the parameters' flags
};

/// Base of all optimizers. It knows which parameters it has and what to do to a range of an arena; where and when that
/// happens is the wrapper's business. It belongs to its model: one thread at a time uses either, and every call throws
/// InvalidArgument while another thread is inside one.
class Optimizer {
public:
    explicit Optimizer(std::shared_ptr<ParameterStore> store);
    virtual ~Optimizer();
    Optimizer(const Optimizer&) = delete;
    Optimizer& operator=(const Optimizer&) = delete;

    /// PyTorch's longer form: updates the parameters that have a gradient. On a wrapper's parameters it throws
    /// InvalidArgument when none has one, and when the wrapper is gone.
    void step();
    /// Forgets all gradients: the next backward stores instead of adding.
    void zero_grad();

    const std::shared_ptr<ParameterStore>& store() const { return store_; }
    /// A number that no other optimizer of the process has or had: programs are kept by it.
    std::uint64_t id() const { return id_; }
    /// Settings of the segments of `arena`, to be copied to the devices; `settings_version` grows when they change.
    virtual std::vector<Segment> segments(int arena) const = 0;
    virtual std::uint64_t settings_version() const = 0;
    virtual bool has_momentum() const = 0;
    /// The update of elements [begin, end) of an arena, which touch segments [first, last).
    /// in: gradients, segments; out: parameters, momentum (may be missing)
    virtual std::shared_ptr<const Operation> update(std::int64_t begin, std::int64_t end, int first,
                                                    int last) const = 0;
    /// State on `device`, made on first use, with momentum for `elements` elements of each arena.
    OptimizerState& state_on(Device device, const std::vector<std::int64_t>& elements);

private:
    void step_plain();
    std::shared_ptr<ParameterStore> store_;
    std::uint64_t id_;
    std::vector<std::pair<Device, OptimizerState>> states_;
};

/// Settings of torch.optim.SGD, with its defaults.
struct SgdOptions {
    double lr = 1e-3;
    double momentum = 0;
    double dampening = 0;
    double weight_decay = 0;
    bool nesterov = false;
    bool maximize = false;
};

template <class Model>
std::shared_ptr<ParameterStore> parameter_store_of(Model& model) {
    if constexpr (requires { model.parameter_store(); })
        return model.parameter_store();
    else
        return ParameterStore::of(named_tensors(model));
}

/// Stochastic gradient descent (torch.optim.SGD) with momentum, dampening, weight decay, Nesterov and parameter groups.
class SGD final : public Optimizer {
public:
    /// `model`: a wrapper, or a plain module. All parameters form group 0. Throws InvalidArgument for negative rates
    /// and for Nesterov without momentum or with dampening.
    template <class Model>
    explicit SGD(Model& model, SgdOptions options = {}) : SGD(parameter_store_of(model), options) {}
    SGD(std::shared_ptr<ParameterStore> store, SgdOptions options);

    /// Moves the parameters whose name is in `names`, or begins with one of them followed by a dot, to a new group.
    /// Returns its number. Throws InvalidArgument for names that match nothing.
    int add_group(const std::vector<std::string>& names, SgdOptions options);
    int groups() const { return static_cast<int>(groups_.size()); }
    const SgdOptions& options(int group = 0) const;
    void set_options(SgdOptions options, int group = 0);
    /// Sets the learning rate of a group; takes effect with the next step.
    void set_lr(double lr, int group = 0);

    std::vector<Segment> segments(int arena) const override;
    std::uint64_t settings_version() const override { return version_; }
    bool has_momentum() const override;
    std::shared_ptr<const Operation> update(std::int64_t begin, std::int64_t end, int first, int last) const override;

private:
    std::vector<SgdOptions> groups_;
    std::vector<std::vector<int>> group_of_;  // by arena and segment
    std::uint64_t version_ = 1;
};

}  // namespace lockstep
