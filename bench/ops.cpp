// Time of single operations on the CPU, eager, forward and with backward: Lockstep's side of compare_ops.py.
//
//     ops-bench                  microseconds of every operation
//     ops-bench --list           name, PyTorch's expression and shapes of the inputs, separated by tabs
//     ops-bench --serve          answers lines of a number in the list and a pass, "3 forward", with microseconds
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/loss.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/random.h"
#include "lockstep/runtime/record.h"

namespace ls = lockstep;

namespace {

using Tensors = std::vector<ls::Tensor>;

/// `torch`: the same with inputs a, b, c. `classes`: the last input has i64 numbers below this; 0: it has floats.
struct Case {
    const char* torch;
    std::vector<ls::Shape> shapes;
    std::function<ls::Tensor(const Tensors&)> run;
    std::int64_t classes = 0;
};

const std::vector<Case>& cases() {
    const ls::Shape large{1024, 1024}, images{16, 64, 32, 32};
    static const std::vector<Case> all = {
        {"a + b", {large, large}, [](const Tensors& in) { return in[0] + in[1]; }},
        {"a * b", {large, large}, [](const Tensors& in) { return in[0] * in[1]; }},
        {"a / b", {large, large}, [](const Tensors& in) { return in[0] / in[1]; }},
        {"a * 2", {large}, [](const Tensors& in) { return in[0] * 2; }},
        {"torch.maximum(a, b)", {large, large}, [](const Tensors& in) { return ls::maximum(in[0], in[1]); }},
        {"torch.where(a > 0, a, b)",
         {large, large},
         [](const Tensors& in) { return ls::where(in[0] > 0, in[0], in[1]); }},
        {"torch.exp(a)", {large}, [](const Tensors& in) { return ls::exp(in[0]); }},
        {"torch.log(a.abs())", {large}, [](const Tensors& in) { return ls::log(ls::abs(in[0])); }},
        {"torch.sin(a)", {large}, [](const Tensors& in) { return ls::sin(in[0]); }},
        {"torch.erf(a)", {large}, [](const Tensors& in) { return ls::erf(in[0]); }},
        {"torch.tanh(a)", {large}, [](const Tensors& in) { return ls::tanh(in[0]); }},
        {"torch.sigmoid(a)", {large}, [](const Tensors& in) { return ls::sigmoid(in[0]); }},
        {"torch.relu(a)", {large}, [](const Tensors& in) { return ls::relu(in[0]); }},
        {"F.gelu(a)", {large}, [](const Tensors& in) { return ls::gelu(in[0]); }},
        {"F.gelu(a, approximate='tanh')",
         {large},
         [](const Tensors& in) { return ls::gelu(in[0], ls::GeluForm::tanh); }},
        {"F.silu(a)", {large}, [](const Tensors& in) { return ls::silu(in[0]); }},
        {"F.logsigmoid(a)", {large}, [](const Tensors& in) { return ls::logsigmoid(in[0]); }},
        {"torch.sqrt(a.abs())", {large}, [](const Tensors& in) { return ls::sqrt(ls::abs(in[0])); }},
        {"torch.pow(a, 3)", {large}, [](const Tensors& in) { return ls::pow(in[0], 3); }},
        {"torch.clamp(a, -1, 1)", {large}, [](const Tensors& in) { return ls::clamp(in[0], -1, 1); }},
        {"torch.softmax(a, 1)", {large}, [](const Tensors& in) { return ls::softmax(in[0], 1); }},
        {"torch.softmax(a, 0)", {large}, [](const Tensors& in) { return ls::softmax(in[0], 0); }},
        {"torch.log_softmax(a, 1)", {{4096, 10}}, [](const Tensors& in) { return ls::log_softmax(in[0], 1); }},
        {"a.sum()", {large}, [](const Tensors& in) { return ls::sum(in[0]); }},
        {"a.sum(1)", {large}, [](const Tensors& in) { return ls::sum(in[0], 1); }},
        {"a.mean(0)", {large}, [](const Tensors& in) { return ls::mean(in[0], 0); }},
        {"a.amax(1)", {large}, [](const Tensors& in) { return ls::amax(in[0], 1); }},
        {"a.cumsum(1)", {large}, [](const Tensors& in) { return ls::cumsum(in[0], 1); }},
        {"a.sort(1)[0]", {{256, 1024}}, [](const Tensors& in) { return ls::sort(in[0], 1).values; }},
        {"a.t().contiguous()", {large}, [](const Tensors& in) { return in[0].transpose(0, 1).contiguous(); }},
        {"torch.cat([a, b], 1)",
         {large, large},
         [](const Tensors& in) {
             return ls::cat({in[0], in[1]}, 1);
         }},
        {"F.layer_norm(a, (1024,))", {large}, [](const Tensors& in) { return ls::layer_norm(in[0], ls::Shape{1024}); }},
        {"F.batch_norm(a, None, None, b, c, True)",
         {images, {64}, {64}},
         [](const Tensors& in) { return ls::batch_norm(in[0], in[1], in[2]); }},
        {"F.conv2d(a, b, padding=1)",
         {images, {64, 64, 3, 3}},
         [](const Tensors& in) { return ls::conv2d(in[0], in[1], {}, 1, 1); }},
        {"F.max_pool2d(a, 2)", {images}, [](const Tensors& in) { return ls::max_pool2d(in[0], 2); }},
        {"F.avg_pool2d(a, 2)", {images}, [](const Tensors& in) { return ls::avg_pool2d(in[0], 2); }},
        {"F.linear(a, b)", {{64, 784}, {256, 784}}, [](const Tensors& in) { return ls::linear(in[0], in[1]); }},
        {"a @ b", {{512, 512}, {512, 512}}, [](const Tensors& in) { return ls::matmul(in[0], in[1]); }},
        {"F.scaled_dot_product_attention(a, b, c)",
         {{8, 4, 128, 32}, {8, 4, 128, 32}, {8, 4, 128, 32}},
         [](const Tensors& in) { return ls::scaled_dot_product_attention(in[0], in[1], in[2]); }},
        {"F.embedding(b, a)",
         {{1000, 256}, {4096}},
         [](const Tensors& in) { return ls::embedding(in[1], in[0]); },
         1000},
        {"F.cross_entropy(a, b)",
         {{4096, 10}, {4096}},
         [](const Tensors& in) { return ls::cross_entropy(in[0], in[1]).value(); },
         10},
        {"a.index_select(0, b)",
         {large, {512}},
         [](const Tensors& in) { return ls::index_select(in[0], 0, in[1]); },
         1024},
    };
    return all;
}

/// Inputs of a case, on the host.
Tensors inputs_of(const Case& one) {
    ls::manual_seed(1);
    Tensors inputs;
    for (const ls::Shape& shape : one.shapes) {
        if (one.classes > 0 && inputs.size() + 1 == one.shapes.size())
            inputs.push_back((ls::Tensor::rand(shape) * static_cast<double>(one.classes)).to(ls::DType::i64));
        else
            inputs.push_back(ls::Tensor::randn(shape).requires_grad_());
    }
    return inputs;
}

/// Microseconds of one call, at least `least` seconds long in total.
double measured(const Case& one, bool backward, int threads, double least) {
    const ls::ComputeScope scope({.threads = threads});
    const Tensors inputs = inputs_of(one);
    ls::Tensor upstream;
    const auto call = [&] {
        if (!backward) {
            const ls::NoGrad no_grad;
            one.run(inputs);
            return;
        }
        const ls::Tensor y = one.run(inputs);
        if (!upstream.defined()) upstream = ls::Tensor::ones(y.shape());
        y.backward(upstream);
        for (const ls::Tensor& input : inputs) input.set_grad(ls::Tensor());
    };
    if (least > 0)
        for (int i = 0; i < 3; ++i) call();  // warm up
    int calls = 0;
    const auto begin = std::chrono::steady_clock::now();
    std::chrono::duration<double> passed{};
    do {
        call();
        ++calls;
        passed = std::chrono::steady_clock::now() - begin;
    } while (passed.count() < least);
    return passed.count() / calls * 1e6;
}

std::string shapes_text(const Case& one) {
    std::string text;
    for (const ls::Shape& shape : one.shapes) {
        std::string sizes;
        for (const std::int64_t size : shape) sizes += (sizes.empty() ? "" : ",") + std::to_string(size);
        text += (text.empty() ? "" : " ") + sizes;
    }
    return text;
}

void serve(int threads, double least) {
    std::printf("ready\n");
    std::fflush(stdout);
    for (std::string line; std::getline(std::cin, line);) {
        std::istringstream order(line);
        std::size_t number = 0;
        std::string pass;
        order >> number >> pass;
        if (number >= cases().size() || (pass != "forward" && pass != "training"))
            throw ls::InvalidArgument("unknown order '" + line +
                                      "'; expected a number in --list and forward or training");
        std::printf("%.3f\n", measured(cases()[number], pass == "training", threads, least));
        std::fflush(stdout);
    }
}

}  // namespace

int main(int argc, char** argv) try {
    CLI::App app("Time of single operations on the CPU");
    bool list = false, serves = false;
    int threads = 1;
    double least = 0.05;
    app.add_flag("--list", list, "print the operations and what PyTorch calls them");
    app.add_flag("--serve", serves, "answer orders from standard input");
    app.add_option("--threads", threads, "CPU threads")->check(CLI::Range(1, 256));
    app.add_option("--seconds", least, "shortest time of a measurement")->check(CLI::Range(0.0, 60.0));
    CLI11_PARSE(app, argc, argv);
    if (list) {
        for (const Case& one : cases())
            std::printf("%s\t%s\t%d\n", one.torch, shapes_text(one).c_str(), static_cast<int>(one.classes));
    } else if (serves) {
        serve(threads, least);
    } else {
        std::printf("%-42s %12s %12s\n", "microseconds", "forward", "training");
        for (const Case& one : cases())
            std::printf("%-42s %12.1f %12.1f\n", one.torch, measured(one, false, threads, least),
                        measured(one, true, threads, least));
    }
    return 0;
} catch (const std::exception& error) {
    std::fprintf(stderr, "ops-bench: %s\n", error.what());
    return 1;
}
