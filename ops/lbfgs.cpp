#include "lockstep/ops/lbfgs.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "lockstep/ops/functional.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/error.h"

namespace lockstep {

namespace {

double inner_product(const Tensor& a, const Tensor& b) { return dot(a, b).item(); }

double largest_magnitude(const Tensor& x) { return x.numel() == 0 ? 0 : amax(abs(x)).item(); }

/// A point of a line search: its place, and there the loss, the gradient and its product with the direction.
struct Trial {
    double at = 0, loss = 0, slope = 0;
    Tensor gradient;
};

/// The place of the minimum of the cubic through both points with their slopes, limited to [low, high].
double cubic_minimum(const Trial& a, const Trial& b, double low, double high) {
    const double d1 = a.slope + b.slope - 3 * (a.loss - b.loss) / (a.at - b.at);
    const double square = d1 * d1 - a.slope * b.slope;
    if (!(square >= 0)) return (low + high) / 2;
    const double d2 = std::sqrt(square);
    const auto minimum = [&](const Trial& from, const Trial& to) {
        return to.at - (to.at - from.at) * ((to.slope + d2 - d1) / (to.slope - from.slope + 2 * d2));
    };
    return std::min(std::max(a.at <= b.at ? minimum(a, b) : minimum(b, a), low), high);
}
double cubic_minimum(const Trial& a, const Trial& b) {
    return cubic_minimum(a, b, std::min(a.at, b.at), std::max(a.at, b.at));
}

}  // namespace

void LbfgsOptions::check() const {
    const auto require = [](bool holds, const char* what, double value, const char* expected) {
        if (!holds) throw InvalidArgument(fmt::format("LBFGS: invalid {} ({}); expected {}", what, value, expected));
    };
    require(lr >= 0 && std::isfinite(lr), "lr", lr, "a number of 0 or more");
    require(max_iter >= 1, "max_iter", max_iter, "1 or more");
    require(!max_eval || *max_eval >= 1, "max_eval", max_eval.value_or(0), "1 or more");
    require(tolerance_grad >= 0, "tolerance_grad", tolerance_grad, "0 or more");
    require(tolerance_change >= 0, "tolerance_change", tolerance_change, "0 or more");
    require(history_size >= 1, "history_size", history_size, "1 or more");
}

LBFGS::LBFGS(OptimizedParameters parameters, const LbfgsOptions& options)
    : store_(std::move(parameters.store)), part_(std::move(parameters.part)), options_(options) {
    options.check();
    const OneThreadAtATime::Use use(store_->one_thread(), "LBFGS constructor");
    const std::vector<Tensor> all = this->parameters();
    for (const Tensor& parameter : all)
        if (parameter.dtype() != all[0].dtype() || !(parameter.device() == all[0].device()))
            throw InvalidArgument(fmt::format(
                "LBFGS: parameters of {} on {} and of {} on {}; expected one dtype and one "
                "device",
                name_of(all[0].dtype()), all[0].device().str(), name_of(parameter.dtype()), parameter.device().str()));
}

void LBFGS::set_options(const LbfgsOptions& options) {
    const OneThreadAtATime::Use use(store_->one_thread(), "LBFGS: set_options");
    options.check();
    options_ = options;
}

std::vector<Tensor> LBFGS::parameters() const {
    std::vector<Tensor> found;
    for (std::size_t arena = 0; arena < store_->parameters().size(); ++arena) {
        const std::vector<ArenaSegment>& segments = store_->parameters()[arena].segments;
        for (std::size_t i = 0; i < segments.size(); ++i)
            if (!part_ || part_->contains({static_cast<int>(arena), static_cast<int>(i)}))
                found.push_back(store_->tensor(segments[i]));
    }
    return found;
}

std::int64_t LBFGS::evaluations() const {
    const OneThreadAtATime::Use use(store_->one_thread(), "LBFGS: evaluations");
    return state_.evaluations;
}

void LBFGS::zero_grad() {
    const OneThreadAtATime::Use use(store_->one_thread(), "LBFGS: zero_grad");
    store_->require_members("LBFGS: zero_grad");
    for (const Tensor& parameter : parameters()) parameter.set_grad(Tensor());
}

Tensor LBFGS::flat_gradient() const {
    std::vector<Tensor> parts;
    for (const Tensor& parameter : parameters()) {
        const Tensor gradient = parameter.grad();
        parts.push_back(gradient.defined() ? gradient.detach().reshape({parameter.numel()})
                                           : Tensor::zeros({parameter.numel()}, parameter.dtype(), parameter.device()));
    }
    return parts.empty() ? Tensor::zeros({0}) : cat(parts);
}

Tensor LBFGS::flat_parameters() const {
    std::vector<Tensor> parts;
    for (const Tensor& parameter : parameters()) parts.push_back(parameter.detach().reshape({parameter.numel()}));
    return parts.empty() ? Tensor::zeros({0}) : cat(parts);
}

void LBFGS::set_parameters(const Tensor& flat) {
    const NoGrad no_grad;
    std::int64_t begin = 0;
    for (const Tensor& parameter : parameters()) {
        parameter.copy_(flat.slice(0, begin, begin + parameter.numel()).reshape(parameter.shape()));
        begin += parameter.numel();
    }
}

LBFGS::Point LBFGS::evaluate(const std::function<Tensor()>& closure) {
    Point point;
    point.loss = closure().item();
    point.gradient = flat_gradient();
    return point;
}

double LBFGS::step(const std::function<Tensor()>& closure) {
    const OneThreadAtATime::Use use(store_->one_thread(), "LBFGS: step");
    store_->require_members("LBFGS: step");
    const Tensor before = flat_parameters();
    State next = state_;
    try {
        Point point = evaluate(closure);
        ++next.evaluations;
        const double loss = point.loss;
        if (largest_magnitude(point.gradient) > options_.tolerance_grad) iterate(next, std::move(point), closure);
        state_ = std::move(next);
        return loss;
    } catch (...) {
        set_parameters(before);
        throw;
    }
}

/// PyTorch's loop, with its order of checks.
void LBFGS::iterate(State& state, Point point, const std::function<Tensor()>& closure) {
    const int most_evaluations = options_.max_eval.value_or(options_.max_iter * 5 / 4);
    int evaluations = 1;
    for (int iteration = 1;; ++iteration) {
        if (++state.iterations == 1) {
            state.direction = neg(point.gradient);
            state.curvature = 1;
        } else {
            const Tensor y = point.gradient - state.gradient, s = state.direction * state.step_length;
            const double ys = inner_product(y, s);
            if (ys > 1e-10) {
                if (std::ssize(state.weights) == options_.history_size) {
                    state.gradient_changes.pop_front();
                    state.parameter_changes.pop_front();
                    state.weights.pop_front();
                }
                state.gradient_changes.push_back(y);
                state.parameter_changes.push_back(s);
                state.weights.push_back(1 / ys);
                state.curvature = ys / inner_product(y, y);
            }
            // The two-loop recursion.
            const std::size_t count = state.weights.size();
            std::vector<double> alpha(count);
            Tensor q = neg(point.gradient);
            for (std::size_t i = count; i-- > 0;) {
                alpha[i] = inner_product(state.parameter_changes[i], q) * state.weights[i];
                q = q - state.gradient_changes[i] * alpha[i];
            }
            q = q * state.curvature;
            for (std::size_t i = 0; i < count; ++i) {
                const double beta = inner_product(state.gradient_changes[i], q) * state.weights[i];
                q = q + state.parameter_changes[i] * (alpha[i] - beta);
            }
            state.direction = q;
        }
        state.gradient = point.gradient;
        state.loss = point.loss;
        state.step_length =
            state.iterations == 1 ? std::min(1.0, 1 / sum(abs(point.gradient)).item()) * options_.lr : options_.lr;
        const double slope = inner_product(point.gradient, state.direction);
        if (slope > -options_.tolerance_change) return;

        int made = 0;
        if (options_.line_search == LineSearch::strong_wolfe) {
            Found found = search(closure, point, state.direction, slope, state.step_length);
            point = std::move(found.point);
            state.step_length = found.length;
            made = found.evaluations;
            set_parameters(flat_parameters() + state.direction * state.step_length);
        } else {
            set_parameters(flat_parameters() + state.direction * state.step_length);
            if (iteration != options_.max_iter) {
                point = evaluate(closure);
                made = 1;
            }
        }
        evaluations += made;
        state.evaluations += made;
        if (iteration == options_.max_iter || evaluations >= most_evaluations) return;
        if (largest_magnitude(point.gradient) <= options_.tolerance_grad) return;
        if (largest_magnitude(state.direction * state.step_length) <= options_.tolerance_change) return;
        if (std::abs(point.loss - state.loss) < options_.tolerance_change) return;
    }
}

LBFGS::Found LBFGS::search(const std::function<Tensor()>& closure, const Point& start, const Tensor& direction,
                           double slope, double length) {
    constexpr double sufficient_decrease = 1e-4, curvature = 0.9;
    constexpr int most_trials = 25;
    const Tensor origin = flat_parameters();
    int evaluations = 0;
    const auto trial_at = [&](double at) {
        set_parameters(origin + direction * at);
        Point point = evaluate(closure);
        set_parameters(origin);
        ++evaluations;
        const double found = inner_product(point.gradient, direction);
        return Trial{at, point.loss, found, point.gradient};
    };
    const auto too_high = [&](const Trial& trial) {
        return trial.loss > start.loss + sufficient_decrease * trial.at * slope;
    };
    const auto is_flat = [&](const Trial& trial) { return std::abs(trial.slope) <= -curvature * slope; };

    // First a bracket around such a point, then smaller ones.
    const Trial first{0, start.loss, slope, start.gradient};
    Trial before = first, now = trial_at(length);
    std::array<Trial, 2> bracket;
    bool done = false, bracketed = false;
    int trials = 0;
    for (; trials < most_trials && !bracketed; ++trials) {
        if (too_high(now) || (trials > 1 && now.loss >= before.loss)) {
            bracket = {before, now};
            bracketed = true;
            break;
        }
        if (is_flat(now)) {
            bracket = {now, now};
            done = bracketed = true;
            break;
        }
        if (now.slope >= 0) {
            bracket = {before, now};
            bracketed = true;
            break;
        }
        const double next = cubic_minimum(before, now, now.at + 0.01 * (now.at - before.at), now.at * 10);
        before = now;
        now = trial_at(next);
    }
    if (!bracketed) bracket = {first, now};

    std::size_t low = bracket[0].loss <= bracket[1].loss ? 0 : 1;
    const double largest = largest_magnitude(direction);
    for (bool little_progress = false; !done && trials < most_trials; ++trials) {
        Trial &a = bracket[0], &b = bracket[1];
        if (std::abs(b.at - a.at) * largest < 1e-9) break;
        double at = cubic_minimum(a, b);
        const double end = std::max(a.at, b.at), begin = std::min(a.at, b.at), margin = 0.1 * (end - begin);
        if (std::min(end - at, at - begin) < margin) {
            // Close to an end: the second time, or outside, a tenth away from it.
            if (little_progress || at >= end || at <= begin) {
                at = std::abs(at - end) < std::abs(at - begin) ? end - margin : begin + margin;
                little_progress = false;
            } else {
                little_progress = true;
            }
        } else {
            little_progress = false;
        }
        now = trial_at(at);
        const std::size_t high = 1 - low;
        if (too_high(now) || now.loss >= bracket[low].loss) {
            bracket[high] = now;
            low = bracket[0].loss <= bracket[1].loss ? 0 : 1;
        } else {
            if (is_flat(now))
                done = true;
            else if (now.slope * (bracket[high].at - bracket[low].at) >= 0)
                bracket[high] = bracket[low];
            bracket[low] = now;
        }
    }
    return {{bracket[low].loss, bracket[low].gradient}, bracket[low].at, evaluations};
}

std::map<std::string, Tensor> LBFGS::state() const {
    const OneThreadAtATime::Use use(store_->one_thread(), "LBFGS: state");
    std::map<std::string, Tensor> all;
    const auto numbers = [](const std::vector<double>& values) { return Tensor::from(values, {std::ssize(values)}); };
    all["numbers"] = numbers({static_cast<double>(state_.iterations), static_cast<double>(state_.evaluations),
                              state_.step_length, state_.curvature, state_.loss});
    all["weights"] = numbers({state_.weights.begin(), state_.weights.end()});
    if (state_.direction.defined()) {
        all["direction"] = state_.direction.to(Device::host());
        all["gradient"] = state_.gradient.to(Device::host());
    }
    for (std::size_t i = 0; i < state_.weights.size(); ++i) {
        all[fmt::format("gradient_changes.{}", i)] = state_.gradient_changes[i].to(Device::host());
        all[fmt::format("parameter_changes.{}", i)] = state_.parameter_changes[i].to(Device::host());
    }
    return all;
}

void LBFGS::load_state(const std::map<std::string, Tensor>& state) {
    const OneThreadAtATime::Use use(store_->one_thread(), "LBFGS: load_state");
    const Tensor like = flat_parameters();
    const auto tensor = [&](const std::string& name, const Shape& shape, DType dtype) {
        const auto found = state.find(name);
        if (found == state.end() || !found->second.defined() || !(found->second.shape() == shape) ||
            found->second.dtype() != dtype)
            throw InvalidArgument(
                fmt::format("LBFGS: load_state: {} is missing or not {} of shape {}; expected the state "
                            "of an optimizer of the same parameters",
                            name, name_of(dtype), shape.str()));
        return found->second;
    };
    const auto elements = [&](const std::string& name) {
        return tensor(name, like.shape(), like.dtype()).to(like.device()).clone();
    };
    State loaded;
    const std::vector<double> numbers = tensor("numbers", {5}, DType::f64).to_vector<double>();
    const auto count = [&](double number) {
        if (!(number >= 0 && number < 0x1p53 && std::trunc(number) == number))
            throw InvalidArgument(fmt::format("LBFGS: load_state: invalid count ({}); expected 0 or more", number));
        return static_cast<std::int64_t>(number);
    };
    loaded.iterations = count(numbers[0]);
    loaded.evaluations = count(numbers[1]);
    loaded.step_length = numbers[2];
    loaded.curvature = numbers[3];
    loaded.loss = numbers[4];
    const auto weights = state.find("weights");
    if (weights == state.end() || weights->second.dims() != 1)
        throw InvalidArgument("LBFGS: load_state: weights is missing; expected the state of an LBFGS");
    for (const double weight : tensor("weights", weights->second.shape(), DType::f64).to_vector<double>()) {
        const std::size_t i = loaded.weights.size();
        loaded.weights.push_back(weight);
        loaded.gradient_changes.push_back(elements(fmt::format("gradient_changes.{}", i)));
        loaded.parameter_changes.push_back(elements(fmt::format("parameter_changes.{}", i)));
    }
    if (loaded.iterations > 0) {
        loaded.direction = elements("direction");
        loaded.gradient = elements("gradient");
    }
    state_ = std::move(loaded);
}

}  // namespace lockstep
