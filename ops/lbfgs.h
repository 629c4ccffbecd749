// L-BFGS (Liu and Nocedal, 1989), for small models and full batches.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/ops/optimizer.h"
#include "lockstep/runtime/tensor.h"

namespace lockstep {

/// none: steps of length lr.
enum class LineSearch : std::uint8_t { none, strong_wolfe };

/// Options of torch.optim.LBFGS, with its defaults.
struct LbfgsOptions {
    double lr = 1;
    int max_iter = 20;                 ///< iterations of one step()
    std::optional<int> max_eval = {};  ///< calls of the closure in one step(); by default 1.25 max_iter
    double tolerance_grad = 1e-7;      ///< ends at a gradient whose largest element is at most this
    double tolerance_change = 1e-9;    ///< ends at smaller changes of the loss or of the parameters
    int history_size = 100;            ///< changes of the parameters that the Hessian is estimated from
    LineSearch line_search = LineSearch::none;

    /// Throws InvalidArgument for values that are not allowed.
    void check() const;
};

/// torch.optim.LBFGS. Unlike other optimizers it evaluates the loss several times per step and waits for each value, so
/// it has no form inside `model.step`:
///
///     ls::LBFGS lbfgs(model, {.line_search = ls::LineSearch::strong_wolfe});
///     const double loss = lbfgs.step([&] {
///         lbfgs.zero_grad();
///         ls::Tensor loss = ls::mse_loss(model.forward(x), y);
///         loss.backward();
///         return loss;
///     });
///
/// All parameters are one group; they have one dtype and are on one device (of a wrapper: device 0). Parameters without
/// a gradient do not change. On several ranks, every rank makes the same calls with the same gradients, as
/// DistributedDataParallel reduces them, and the closure must return the same loss on all of them. It belongs to its
/// model like other optimizers: calls throw InvalidArgument while another thread is inside a call of either.
class LBFGS {
public:
    /// `model`: a wrapper, a plain module, or a part of one. Throws InvalidArgument for options that are not allowed,
    /// and for parameters of several dtypes or devices.
    template <class Model>
    explicit LBFGS(Model& model, const LbfgsOptions& options = {})
        : LBFGS(OptimizedParameters(parameters_to_optimize(model)), options) {}
    LBFGS(const LBFGS&) = delete;
    LBFGS& operator=(const LBFGS&) = delete;

    /// Clears the gradients, as the closure does before it computes the loss.
    void zero_grad();
    /// Minimises the loss that `closure` computes; it also computes the gradients. Returns the loss at the start. After
    /// an exception of the closure, parameters and state are those before the step.
    double step(const std::function<Tensor()>& closure);

    const LbfgsOptions& options() const { return options_; }
    /// Throws InvalidArgument for options that are not allowed.
    void set_options(const LbfgsOptions& options);
    /// Calls of the closure since the beginning.
    std::int64_t evaluations() const;

    /// All that later steps depend on, as tensors on the host.
    std::map<std::string, Tensor> state() const;
    /// Throws InvalidArgument, with nothing changed, unless state() of an optimizer of the same parameters made it.
    void load_state(const std::map<std::string, Tensor>& state);

private:
    LBFGS(OptimizedParameters parameters, const LbfgsOptions& options);

    struct State {
        std::int64_t iterations = 0, evaluations = 0;
        double step_length = 0, curvature = 1, loss = 0;  ///< curvature: the diagonal of the estimated inverse Hessian
        Tensor direction, gradient;                       ///< those of the last iteration; undefined before the first
        std::deque<Tensor> gradient_changes, parameter_changes;
        std::deque<double> weights;  ///< 1 / (gradient change . parameter change)
    };
    struct Point {
        double loss = 0;
        Tensor gradient;
    };
    struct Found {
        Point point;
        double length = 0;
        int evaluations = 0;
    };

    std::vector<Tensor> parameters() const;
    Tensor flat_gradient() const;
    Tensor flat_parameters() const;
    void set_parameters(const Tensor& flat);
    Point evaluate(const std::function<Tensor()>& closure);
    void iterate(State& state, Point point, const std::function<Tensor()>& closure);
    /// From `start` along `direction`, to a point that satisfies the strong Wolfe conditions.
    Found search(const std::function<Tensor()>& closure, const Point& start, const Tensor& direction, double slope,
                 double length);

    std::shared_ptr<ParameterStore> store_;
    std::optional<std::map<ParameterId, std::vector<std::string>>> part_;
    LbfgsOptions options_;
    State state_;
};

}  // namespace lockstep
