// Prints the results of clipping for gradients, and for a small network in 100 steps on three devices, as JSON, for
// tests/pytorch/check_clipping.py.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "lockstep/ops/clip_grad.h"
#include "lockstep/ops/functional.h"
#include "lockstep/ops/layers.h"
#include "lockstep/ops/loss.h"
#include "lockstep/ops/sgd.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/error.h"

using namespace lockstep;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr int steps = 100, rows = 24;

/// JSON in Python's form, with NaN and infinities.
void print(double value) {
    if (std::isfinite(value))
        std::printf("%.17g", value);
    else
        std::printf("%s", std::isnan(value) ? "NaN" : value > 0 ? "Infinity" : "-Infinity");
}

void print(const std::vector<double>& values) {
    std::printf("[");
    for (std::size_t i = 0; i < values.size(); ++i) {
        if (i > 0) std::printf(", ");
        print(values[i]);
    }
    std::printf("]");
}

void print(const Tensor& tensor) { print(tensor.to(DType::f64).to_vector<double>()); }

/// A list of the output of `print_one` for each of `all`.
template <class All, class PrintOne>
void print_list(const All& all, PrintOne&& print_one) {
    std::printf("[");
    bool first = true;
    for (const auto& one : all) {
        if (!first) std::printf(",\n");
        first = false;
        print_one(one);
    }
    std::printf("]");
}

void print(const GradientClip& clip) {
    if (const auto* norm = std::get_if<ClipGradNorm>(&clip)) {
        std::printf("{\"max_norm\": ");
        print(norm->max_norm);
        std::printf(", \"norm_type\": ");
        print(norm->norm_type);
        std::printf(", \"error_if_nonfinite\": %s, \"group\": %d}", norm->error_if_nonfinite ? "true" : "false",
                    norm->group);
    } else {
        const auto& value = std::get<ClipGradValue>(clip);
        std::printf("{\"clip_value\": %.17g, \"group\": %d}", value.clip_value, value.group);
    }
}

const char* name_in_python(DType dtype) { return dtype == DType::f32 ? "float32" : "float64"; }

// ---- gradients alone --------------------------------------------------------------------------------------------

struct Parts {
    explicit Parts(DType dtype)
        : a(Tensor::zeros({7, 11}, dtype)), b(Tensor::zeros({70}, dtype)), unused(Tensor::zeros({3}, dtype)) {}
    Parameter a, b, unused;
    LOCKSTEP_MEMBERS(a, b, unused)
};

/// `spoiled`: replaces the number in the middle; 0: unchanged.
Tensor numbers(std::int64_t count, double pace, double spoiled) {
    std::vector<double> values;
    for (std::int64_t i = 0; i < count; ++i)
        values.push_back(std::cos(pace * static_cast<double>(i)) * std::pow(10.0, static_cast<double>(i % 5) - 2));
    if (spoiled != 0) values[static_cast<std::size_t>(count / 2)] = spoiled;
    return Tensor::from(values, {count});
}

void print_gradients(const GradientClip& clip, double spoiled, DType dtype) {
    Parts parts(dtype);
    parts.a->set_grad(numbers(77, 3, spoiled).to(dtype).reshape({7, 11}));
    parts.b->set_grad(numbers(70, 7, 0).to(dtype));
    std::printf("{\"dtype\": \"%s\", \"clip\": ", name_in_python(dtype));
    print(clip);
    std::printf(", \"gradients\": ");
    const std::vector<Parameter*> used{&parts.a, &parts.b};
    print_list(used, [](const Parameter* parameter) { print((*parameter)->grad()); });
    std::string error;
    double norm = 0;
    try {
        if (const auto* by_norm = std::get_if<ClipGradNorm>(&clip))
            norm = clip_grad_norm_(parts, *by_norm).item();
        else
            clip_grad_value_(parts, std::get<ClipGradValue>(clip));
    } catch (const InvalidArgument& thrown) {
        error = thrown.what();
    }
    std::printf(", \"error\": \"%s\", \"norm\": ", error.c_str());
    print(norm);
    std::printf(", \"clipped\": ");
    print_list(used, [](const Parameter* parameter) { print((*parameter)->grad()); });
    std::printf("}");
}

struct GradientCase {
    GradientClip clip;
    double spoiled = 0;
    DType dtype = DType::f32;
};

std::vector<GradientCase> gradient_cases() {
    std::vector<GradientCase> all;
    for (const DType dtype : {DType::f32, DType::f64})
        for (const double spoiled : {0.0, infinity, -infinity, std::nan("")}) {
            for (const double order : {1.0, 2.0, 3.5, infinity})
                for (const double most : {0.5, 1e6}) {
                    all.push_back({ClipGradNorm{.max_norm = most, .norm_type = order}, spoiled, dtype});
                    all.push_back({ClipGradNorm{.max_norm = most, .norm_type = order, .error_if_nonfinite = true},
                                   spoiled, dtype});
                }
            for (const double most : {0.0, 0.3, 1e6})
                all.push_back({ClipGradValue{.clip_value = most}, spoiled, dtype});
        }
    return all;
}

// ---- training ---------------------------------------------------------------------------------------------------

/// `still` is not trained, and `unused` is not used.
struct Net {
    Linear first{6, 16}, still{16, 16}, second{16, 3}, unused{4, 4};
    LOCKSTEP_MEMBERS(first, still, second, unused)
    Tensor forward(const Tensor& x) const { return second(tanh(still(tanh(first(x))))); }
};

Tensor waves(std::int64_t count, std::int64_t width, double pace) {
    std::vector<double> values;
    for (std::int64_t i = 0; i < count * width; ++i) values.push_back(std::sin(pace * static_cast<double>(i)));
    return Tensor::from(values, {count, width});
}
Tensor inputs() { return waves(rows, 6, 1.7); }
Tensor targets() { return waves(rows, 3, 0.3) * 3; }

Net fresh_net(DType dtype) {
    Net net;
    to(net, dtype);
    const NoGrad no_grad;
    double pace = 0.9;
    for (const NamedTensor& named : named_tensors(net)) {
        const Tensor& weight = named.member->tensor();
        weight.copy_((waves(1, weight.numel(), pace += 0.4) * 0.3).reshape(weight.shape()).to(dtype));
    }
    net.still.weight->requires_grad_(false);
    return net;
}

struct TrainingCase {
    std::string form;  ///< "step", "manual" or "micro"
    std::vector<GradientClip> clip;
    DType dtype;
};

void print_training(const TrainingCase& some) {
    DataParallel<Net> model(fresh_net(some.dtype), Devices({Device::cpu(0), Device::cpu(1), Device::cpu(2)}),
                            {.shards = 8, .reduction = ReductionMode::slice_wise});
    SGD sgd(model, {.lr = 0.1, .momentum = 0.9});
    sgd.add_group({"second"}, {.lr = 0.05, .momentum = 0.9});
    const Tensor x = inputs().to(some.dtype), y = targets().to(some.dtype);
    const bool has_norm = !some.clip.empty() && std::holds_alternative<ClipGradNorm>(some.clip.front());
    std::vector<double> losses, norms;
    for (int step = 0; step < steps; ++step) {
        if (some.form == "manual") {
            sgd.zero_grad();
            const Tensor output = model.forward(x), loss = mse_loss(output, y.to(output.device())).value();
            losses.push_back(loss.item());
            loss.backward();
            for (const GradientClip& clip : some.clip) {
                if (const auto* norm = std::get_if<ClipGradNorm>(&clip)) {
                    const double found = clip_grad_norm_(sgd, *norm).item();
                    if (&clip == some.clip.data()) norms.push_back(found);
                } else {
                    clip_grad_value_(sgd, std::get<ClipGradValue>(clip));
                }
            }
            sgd.step();
        } else {
            const StepLoss loss = model.step(sgd, x, y, mse_loss,
                                             {.accumulation_steps = some.form == "micro" ? 3 : 1, .clip = some.clip});
            losses.push_back(loss.item());
            if (has_norm) norms.push_back(loss.grad_norm());
        }
    }
    std::printf("{\"form\": \"%s\", \"dtype\": \"%s\", \"clip\": ", some.form.c_str(), name_in_python(some.dtype));
    print_list(some.clip, [](const GradientClip& clip) { print(clip); });
    std::printf(", \"losses\": ");
    print(losses);
    std::printf(", \"norms\": ");
    print(norms);
    std::printf(", \"weights\": ");
    print_list(named_tensors(*model), [](const NamedTensor& named) { print(named.member->tensor()); });
    std::printf("}");
}

std::vector<TrainingCase> training_cases() {
    const std::vector<std::vector<GradientClip>> clips{
        {},
        {ClipGradNorm{.max_norm = 0.5, .norm_type = 1}},
        {ClipGradNorm{.max_norm = 0.2}},
        {ClipGradNorm{.max_norm = 0.2, .error_if_nonfinite = true}},
        {ClipGradNorm{.max_norm = 0.1, .norm_type = 3.5}},
        {ClipGradNorm{.max_norm = 0.05, .norm_type = infinity}},
        {ClipGradNorm{.max_norm = 0.1, .group = 1}},
        {ClipGradNorm{.max_norm = 0.1, .norm_type = 3.5, .group = 0}, ClipGradNorm{.max_norm = 0.2, .group = 1}},
        {ClipGradValue{.clip_value = 0.02}},
        {ClipGradValue{.clip_value = 0.02, .group = 1}},
        {ClipGradValue{.clip_value = 0.05, .group = 0}, ClipGradNorm{.max_norm = 0.1}},
    };
    std::vector<TrainingCase> all;
    for (const DType dtype : {DType::f32, DType::f64})
        for (const char* form : {"step", "micro", "manual"})
            for (const auto& clip : clips) all.push_back({form, clip, dtype});
    return all;
}

}  // namespace

int main() {
    setenv("LOCKSTEP_CPU_DEVICES", "3", 1);
    try {
        std::printf("{\"gradients\": ");
        print_list(gradient_cases(),
                   [](const GradientCase& some) { print_gradients(some.clip, some.spoiled, some.dtype); });
        std::printf(",\n\"x\": ");
        print(inputs());
        std::printf(", \"y\": ");
        print(targets());
        std::printf(", \"weights\": ");
        Net net = fresh_net(DType::f64);
        print_list(named_tensors(net), [](const NamedTensor& named) { print(named.member->tensor()); });
        std::printf(",\n\"training\": ");
        print_list(training_cases(), print_training);
        std::printf("}\n");
    } catch (const std::exception& error) {
        std::fprintf(stderr, "dump_clipping: %s\n", error.what());
        return 1;
    }
    return 0;
}
