// Time of single operations on the CPU, eager, forward and with backward: Lockstep's side of compare_ops.py.
//
//     ops-bench                  microseconds of every operation
//     ops-bench --list           for every operation, the fields of torch_ops.py's orders, separated by tabs
//     ops-bench --serve          answers lines of a number in the list and a pass, "3 forward", with microseconds
#include <CLI/CLI.hpp>
#include <cstdio>
#include <ctime>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "lockstep/bench/op_cases.h"
#include "lockstep/ops/elementwise.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/random.h"
#include "lockstep/runtime/record.h"

namespace ls = lockstep;

namespace {

using Case = ls::bench::OpCase;
using Tensors = std::vector<ls::Tensor>;

const std::vector<Case>& cases() { return ls::bench::op_cases(); }

/// Inputs of a case, on the host.
Tensors inputs_of(const Case& one) {
    ls::manual_seed(1);
    Tensors inputs;
    for (const ls::Shape& shape : one.shapes) {
        const auto last = inputs.size() + 1 == one.shapes.size() ? one.last : ls::bench::LastInput();
        switch (last.kind) {
            case ls::bench::LastInput::Kind::numbers:
                inputs.push_back(ls::Tensor::randn(shape).to(one.dtype).requires_grad_());
                break;
            case ls::bench::LastInput::Kind::classes:
                inputs.push_back((ls::Tensor::rand(shape) * static_cast<double>(last.classes)).to(ls::DType::i64));
                break;
            case ls::bench::LastInput::Kind::mask: inputs.push_back(ls::Tensor::rand(shape) < 0.5); break;
        }
    }
    return inputs;
}

struct Measurement {
    int threads = 1;
    double least = 0.05;    ///< seconds of a measurement
    bool cpu_time = false;  ///< processor time of all threads instead of elapsed time
};

double seconds(bool cpu_time) {
    timespec now{};
    clock_gettime(cpu_time ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &now);
    return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

/// Microseconds of one call.
double measured(const Case& one, bool backward, const Measurement& how) {
    const ls::ComputeScope scope({.threads = how.threads});
    const Tensors inputs = inputs_of(one);
    Tensors leaves = one.parameters ? one.parameters() : Tensors();
    leaves.insert(leaves.end(), inputs.begin(), inputs.end());
    ls::Tensor upstream;
    const auto call = [&] {
        if (!backward) {
            const ls::NoGrad no_grad;
            one.run(inputs);
            return;
        }
        const ls::Tensor y = one.run(inputs);
        if (!upstream.defined()) upstream = ls::Tensor::ones(y.shape(), y.dtype());
        y.backward(upstream);
        for (const ls::Tensor& leaf : leaves) leaf.set_grad(ls::Tensor());
    };
    if (how.least > 0)
        for (int i = 0; i < 3; ++i) call();  // warm up
    int calls = 0;
    const double begin = seconds(how.cpu_time);
    double passed = 0;
    do {
        call();
        ++calls;
        passed = seconds(how.cpu_time) - begin;
    } while (passed < how.least);
    return passed / calls * 1e6;
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

/// "a + b (1024,1024 1024)": an expression can occur with several shapes and dtypes.
std::string name_of(const Case& one) {
    std::string name = std::string(one.torch) + " (" + shapes_text(one);
    if (one.dtype != ls::DType::f32) name += " " + std::string(ls::name_of(one.dtype));
    return name + ")";
}

void print_list() {
    for (const Case& one : cases()) {
        const auto kind = one.last.kind;
        const std::string last = kind == ls::bench::LastInput::Kind::classes ? std::to_string(one.last.classes)
                                 : kind == ls::bench::LastInput::Kind::mask  ? "mask"
                                                                             : "";
        std::printf("%s\t%s\t%s\t%s\t%s\t%s\n", name_of(one).c_str(), one.torch, shapes_text(one).c_str(), last.c_str(),
                    std::string(ls::name_of(one.dtype)).c_str(), one.layer);
    }
}

void serve(const Measurement& how) {
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
        std::printf("%.3f\n", measured(cases()[number], pass == "training", how));
        std::fflush(stdout);
    }
}

}  // namespace

int main(int argc, char** argv) try {
    CLI::App app("Time of single operations on the CPU");
    bool list = false, serves = false;
    Measurement how;
    app.add_flag("--list", list, "print the operations and what PyTorch calls them");
    app.add_flag("--serve", serves, "answer orders from standard input");
    app.add_option("--threads", how.threads, "CPU threads")->check(CLI::Range(1, 256));
    app.add_option("--seconds", how.least, "shortest time of a measurement")->check(CLI::Range(0.0, 60.0));
    app.add_flag("--cpu-time", how.cpu_time, "measure processor time, which other programs affect less");
    CLI11_PARSE(app, argc, argv);
    if (list) {
        print_list();
    } else if (serves) {
        serve(how);
    } else {
        std::printf("%-72s %12s %12s\n", "microseconds", "forward", "training");
        for (const Case& one : cases())
            std::printf("%-72s %12.1f %12.1f\n", name_of(one).c_str(), measured(one, false, how),
                        measured(one, true, how));
    }
    return 0;
} catch (const std::exception& error) {
    std::fprintf(stderr, "ops-bench: %s\n", error.what());
    return 1;
}
