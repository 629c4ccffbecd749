// Writes the op table as JSON lines for tests/pytorch/check_ops.py: expression, inputs, result and gradients of every
// entry with a PyTorch equivalent, computed in f32 on the device named by the argument (default cpu:0).
#include <fmt/format.h>

#include <cmath>
#include <cstdio>

#include "lockstep/runtime/error.h"
#include "lockstep/runtime/random.h"
#include "lockstep/tests/ops/op_table.h"

using namespace lockstep;
using namespace lockstep::test;

namespace {

/// Number format of Python's json module.
std::string json(double value) {
    if (std::isnan(value)) return "NaN";
    if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
    if (value == 0 && std::signbit(value)) return "-0.0";  // "-0" would be an integer, which has no sign
    return fmt::format("{}", value);
}

std::string json(const Array& array) {
    std::string text = "{\"shape\": [";
    for (std::size_t i = 0; i < array.shape.size(); ++i) text += fmt::format("{}{}", i > 0 ? ", " : "", array.shape[i]);
    text += "], \"values\": [";
    for (std::size_t i = 0; i < array.v.size(); ++i) text += (i > 0 ? ", " : "") + json(array.v[i]);
    return text + "]}";
}

std::string json(const std::vector<std::string>& items) {
    std::string text = "[";
    for (std::size_t i = 0; i < items.size(); ++i) text += fmt::format("{}{}", i > 0 ? ", " : "", items[i]);
    return text + "]";
}

void dump(const Op& op, Device device) {
    const std::vector<Input> inputs = op.inputs();
    std::vector<Tensor> in;
    std::vector<std::string> values, gradients, kinds;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
        const Array array = make_values(inputs[i], static_cast<std::uint32_t>(i));
        in.push_back(to_tensor(array, inputs[i], DType::f32, device).detach());
        if (inputs[i].gradient) in.back().requires_grad_();
        values.push_back(json(array));
        kinds.push_back(inputs[i].values == Values::classes ? "\"classes\""
                        : inputs[i].gradient                ? "\"leaf\""
                                                            : "\"constant\"");
    }
    const Tensor y = op.run(in);
    const Array dy = make_values({Sizes(y.shape().begin(), y.shape().end())}, 77);
    if (op.has_gradient()) y.backward(to_tensor(dy, {dy.shape}, DType::f32, device));
    for (const Tensor& x : in) gradients.push_back(x.grad().defined() ? json(to_array(x.grad())) : "null");
    fmt::print(
        "{{\"name\": \"{}\", \"torch\": \"{}\", \"bound\": {}, \"kinds\": {}, \"inputs\": {}, \"dy\": {}, \"y\": {}, "
        "\"gradients\": {}}}\n",
        op.name(), op.torch(), op.bound(), json(kinds), json(values), json(dy), json(to_array(y)), json(gradients));
}

}  // namespace

int main(int argc, char** argv) {
    try {
        const Device device = Device::parse(argc > 1 ? argv[1] : "cpu:0");
        require_visible(device);
        for (const auto& op : make_table()) {
            manual_seed(seed);
            if (!op->torch().empty()) dump(*op, device);
        }
    } catch (const Error& error) {
        fmt::print(stderr, "dump_ops: {}\n", error.what());
        return 1;
    }
    return 0;
}
