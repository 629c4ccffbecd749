// Layers whose weight is computed from other parameters, and all parameters of a model as one vector: torch.nn.utils.
#pragma once

#include <concepts>
#include <cstdint>
#include <mutex>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/ops/clip_grad.h"
#include "lockstep/ops/layers.h"
#include "lockstep/ops/module.h"
#include "lockstep/ops/special_layers.h"
#include "lockstep/ops/volume_layers.h"
#include "lockstep/runtime/signature.h"
#include "lockstep/runtime/tensor.h"

namespace lockstep {

namespace detail {

/// Lets `weight` be `value` for the duration of a forward.
class SubstitutedWeight {
public:
    SubstitutedWeight(const Parameter& weight, Tensor value) : weight_(weight), before_(weight.tensor()) {
        weight_.rebind(std::move(value));
    }
    SubstitutedWeight(const SubstitutedWeight&) = delete;
    SubstitutedWeight& operator=(const SubstitutedWeight&) = delete;
    ~SubstitutedWeight() { weight_.rebind(before_); }

private:
    const Parameter& weight_;
    Tensor before_;
};

/// One forward of a layer at a time: other threads would use the substituted weight. A copy is independent.
class OneForward {
public:
    OneForward() = default;
    OneForward(const OneForward&) {}
    OneForward(OneForward&&) noexcept {}
    OneForward& operator=(const OneForward&) { return *this; }
    OneForward& operator=(OneForward&&) noexcept { return *this; }
    ~OneForward() = default;
    std::unique_lock<std::mutex> begin() const { return std::unique_lock(mutex_); }

private:
    mutable std::mutex mutex_;
};

/// A layer whose `weight` is computed in every forward. It is not a member of the model.
template <class Layer>
struct ComputedWeight : Layer {
    static_assert(std::same_as<decltype(Layer::weight), Parameter>, "expected a layer with a parameter `weight`");

protected:
    explicit ComputedWeight(Layer layer) : Layer(std::move(layer)) {
        // Only its shape is needed from now on.
        const Tensor shape_only = Tensor::zeros({}, weight->dtype()).expand(weight->shape());
        weight.rebind(shape_only);
    }
    using Layer::weight;
    Tensor forward_with(const Tensor& value, const Tensor& x) const {
        const std::unique_lock<std::mutex> alone = one_forward_.begin();
        const SubstitutedWeight substituted(weight, value);
        return Layer::forward(x);
    }
    /// Visits the other members of the layer.
    template <class Visit>
    void visit_others(Visit& visit) {
        Layer::lockstep_members([&]<class Name, class Member>(
            const Name& name, Member& member) requires std::is_invocable_v<Visit&, const Name&, Member&> {
            if (static_cast<const void*>(&member) != &weight) visit(name, member);
        });
    }

private:
    OneForward one_forward_;
};

/// A parameter with a copy of `value`, which is trainable if `weight` is.
Parameter parameter_in_place_of(const Parameter& weight, const Tensor& value);
/// The norm of v, or of each of its slices along `dim`.
Tensor norms_of_slices(const Tensor& v, std::optional<int> dim);
/// length direction / |direction|.
Tensor weight_of_direction(const Tensor& length, const Tensor& direction, std::optional<int> dim);

/// Length and direction of a weight.
struct LengthAndDirection {
    Parameter original0, original1;
    LOCKSTEP_MEMBERS(original0, original1)
};

/// Singular vectors of a weight as a matrix.
struct SingularVectors {
    ModuleBuffer _u, _v;  // NOLINT(readability-identifier-naming): PyTorch's names
    LOCKSTEP_MEMBERS(_u, _v)
};

}  // namespace detail

/// Options of SpectralNorm.
struct SpectralNormOptions {
    int n_power_iterations = 1;
    double eps = 1e-12;
    std::optional<int> dim = std::nullopt;  ///< that of the outputs: 0, and 1 for transposed convolutions
};

namespace detail {

/// A weight that is divided by its largest singular value.
struct SpectralWeight {
    SpectralWeight(const Parameter& weight, const SpectralNormOptions& options, int output_dim);

    Parameter original;
    SingularVectors vectors;
    int n_power_iterations, dim;
    double eps;

    template <class Visit>
    auto lockstep_members(Visit&& visit) {
        return visit_named("original, 0", visit, original, vectors);
    }
    /// `iterations` improve the singular vectors before.
    Tensor normalized(int iterations) const;
};

/// Gives the parameters of a weight PyTorch's names.
template <class Weight>
struct Parametrizations {
    Weight weight;
    template <class Visit>
    auto lockstep_members(Visit&& visit) {
        return visit_named("weight", visit, weight);
    }
};

/// The dimension of the outputs in the weight of a layer.
template <class Layer>
inline constexpr int output_dim =
    std::derived_from<Layer, ConvTranspose1d> || std::derived_from<Layer, ConvTranspose2d> ||
    std::derived_from<Layer, ConvTranspose3d>;

}  // namespace detail

/// A layer whose weight is g v / |v|, with a length g for each slice along `dim`, or one for all elements if `dim` is
/// std::nullopt. The parameters are PyTorch's: parametrizations.weight.original0 is g, original1 is v. They are frozen
/// if the weight of the given layer is.
/// torch.nn.utils.parametrizations.weight_norm.
///
///     ls::WeightNorm<ls::Conv2d> conv{ls::Conv2d(3, 16, 3)};
template <class Layer>
struct WeightNorm : detail::ComputedWeight<Layer> {
    explicit WeightNorm(const Layer& layer, std::optional<int> along = 0)
        : detail::ComputedWeight<Layer>(layer),
          parametrizations{{detail::parameter_in_place_of(
                                layer.weight, detail::norms_of_slices(layer.weight.tensor().detach(), along)),
                            detail::parameter_in_place_of(layer.weight, layer.weight.tensor().detach())}},
          dim(along) {}

    detail::Parametrizations<detail::LengthAndDirection> parametrizations;
    std::optional<int> dim;

    template <class Visit>
    void lockstep_members(Visit&& visit) {
        this->visit_others(visit);
        detail::visit_named("parametrizations", visit, parametrizations);
    }
    template <class Place>
    auto& to(Place place) {
        return lockstep::to(*this, place);
    }

    /// The weight of the layer.
    Tensor computed_weight() const {
        return detail::weight_of_direction(parametrizations.weight.original0, parametrizations.weight.original1, dim);
    }
    Tensor forward(const Tensor& x) const { return this->forward_with(computed_weight(), x); }
    Tensor operator()(const Tensor& x) const { return forward(x); }
    void describe(Signature& signature) const {
        if constexpr (requires(const Layer& layer) { layer.describe(signature); }) Layer::describe(signature);
        signature.add(dim.has_value()).add(dim.value_or(0));
    }
};

/// A layer whose weight is divided by its largest singular value, as a matrix with the outputs as rows. In training,
/// every forward improves the estimate of that value by `n_power_iterations`; the singular vectors are buffers, which
/// change when the step commits. They have PyTorch's names: parametrizations.weight.original, parametrizations.weight.
/// 0._u and 0._v. The parameter is frozen if the weight of the given layer is.
/// torch.nn.utils.parametrizations.spectral_norm.
///
///     ls::SpectralNorm<ls::Linear> fc{ls::Linear(64, 1)};
template <class Layer>
struct SpectralNorm : detail::ComputedWeight<Layer> {
    explicit SpectralNorm(const Layer& layer, const SpectralNormOptions& options = {})
        : detail::ComputedWeight<Layer>(layer),
          parametrizations{detail::SpectralWeight(layer.weight, options, detail::output_dim<Layer>)} {}

    detail::Parametrizations<detail::SpectralWeight> parametrizations;
    bool training = true;

    template <class Visit>
    void lockstep_members(Visit&& visit) {
        this->visit_others(visit);
        detail::visit_named("parametrizations", visit, parametrizations);
    }
    template <class Place>
    auto& to(Place place) {
        return lockstep::to(*this, place);
    }

    Tensor forward(const Tensor& x) const {
        detail::require_listed("SpectralNorm", training);
        const detail::SpectralWeight& spectral = parametrizations.weight;
        return this->forward_with(spectral.normalized(training ? spectral.n_power_iterations : 0), x);
    }
    Tensor operator()(const Tensor& x) const { return forward(x); }
    void describe(Signature& signature) const {
        if constexpr (requires(const Layer& layer) { layer.describe(signature); }) Layer::describe(signature);
        signature.add(parametrizations.weight.n_power_iterations);
        signature.add(parametrizations.weight.dim).add(parametrizations.weight.eps);
    }
};

namespace detail {
/// Implementation of parameters_to_vector and vector_to_parameters.
Tensor vector_of(const std::vector<Tensor>& parameters);
void write_vector(const Tensor& vector, const std::vector<Tensor>& parameters);
}  // namespace detail

/// The elements of all parameters of a model, wrapped or plain, in member order; tied ones once. Differentiable.
/// torch.nn.utils.parameters_to_vector.
template <class Model>
Tensor parameters_to_vector(Model& model) {
    return detail::vector_of(detail::parameters_of(model));
}
/// Writes the elements of such a vector to the parameters. Throws InvalidArgument for another number of elements.
/// torch.nn.utils.vector_to_parameters.
template <class Model>
void vector_to_parameters(const Tensor& vector, Model& model) {
    detail::write_vector(vector, detail::parameters_of(model));
}

}  // namespace lockstep
