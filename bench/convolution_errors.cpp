// Errors of f32 convolutions of 3x3 on CPU devices, with Winograd and direct kernels, relative to loops in double: the
// table of docs/accuracy.md. LOCKSTEP_CPU_ISA selects the instruction set.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <vector>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/instruction_set.h"
#include "lockstep/runtime/random.h"
#include "lockstep/runtime/record.h"
#include "lockstep/tests/reference/conv.h"

namespace ls = lockstep;

namespace {

const std::array<ls::reference::ConvShape, 5> shapes{{{8, 32, 26, 26, 64, 3, 3, 1, 0},
                                                      {2, 64, 28, 28, 64, 3, 3, 1, 1},
                                                      {1, 128, 28, 28, 128, 3, 3, 1, 1},
                                                      {1, 256, 14, 14, 256, 3, 3, 1, 1},
                                                      {1, 512, 14, 14, 512, 3, 3, 1, 1}}};

/// Normal data; the weights are scaled so that outputs are about 1.
struct Data {
    ls::Tensor x, w, dy;
    explicit Data(const ls::reference::ConvShape& s) {
        ls::manual_seed(1);
        x = ls::Tensor::randn({s.n, s.c, s.h, s.w});
        w = ls::Tensor::randn({s.k, s.c, s.kh, s.kw}) * (1 / std::sqrt(static_cast<double>(s.c * s.kh * s.kw)));
        dy = ls::Tensor::randn({s.n, s.k, s.out_h(), s.out_w()});
    }
};

/// Output, gradient of the input, gradient of the weights.
constexpr std::array passes{"output", "input's gradient", "weights' gradient"};
using Expected = std::array<std::vector<double>, passes.size()>;
using Found = std::array<std::vector<float>, passes.size()>;

Expected in_double(const ls::reference::ConvShape& s, const Data& data) {
    const auto x = data.x.to_vector<float>(), w = data.w.to_vector<float>(), dy = data.dy.to_vector<float>();
    return {ls::reference::conv_forward(s, x, w, {}), ls::reference::conv_backward_data(s, dy, w),
            ls::reference::conv_backward_weights(s, x, dy)};
}

Found on_device(const ls::reference::ConvShape& s, const Data& data, ls::ConvAlgorithm algorithm) {
    const ls::ComputeScope scope({.threads = 1, .deterministic = true, .convolution = algorithm});
    const ls::Device device = ls::Device::cpu(0);
    ls::Tensor x = data.x.to(device).detach(), w = data.w.to(device).detach();
    x.requires_grad_();
    w.requires_grad_();
    const ls::Tensor y = ls::conv2d(x, w, {}, 1, static_cast<int>(s.pad.h));
    y.backward(data.dy.to(device));
    return {y.detach().to_vector<float>(), x.grad().to_vector<float>(), w.grad().to_vector<float>()};
}

/// Errors of the elements, divided by the root mean square of the expected values.
struct Error {
    double rms = 0, largest = 0;
};

Error error_of(const std::vector<float>& found, const std::vector<double>& expected) {
    double squares = 0, norm = 0, largest = 0;
    for (std::size_t i = 0; i < expected.size(); ++i) {
        const double off = std::abs(static_cast<double>(found[i]) - expected[i]);
        squares += off * off;
        norm += expected[i] * expected[i];
        largest = std::max(largest, off);
    }
    return {std::sqrt(squares / norm), largest / std::sqrt(norm / static_cast<double>(expected.size()))};
}

void measure(const ls::reference::ConvShape& s) {
    const Data data(s);
    const Expected expected = in_double(s, data);
    const Found automatic = on_device(s, data, ls::ConvAlgorithm::automatic);
    const Found direct = on_device(s, data, ls::ConvAlgorithm::direct);
    for (std::size_t pass = 0; pass < passes.size(); ++pass) {
        const Error a = error_of(automatic[pass], expected[pass]), d = error_of(direct[pass], expected[pass]);
        std::printf("| (%td, %td, %td, %td), %td | %s | %.1e | %.1e | %.1e | %.1e |\n", s.n, s.c, s.h, s.w, s.k,
                    passes[pass], a.rms, a.largest, d.rms, d.largest);
    }
}

}  // namespace

int main(int argc, char** argv) {
    CLI::App app(
        "Errors of f32 3x3 convolutions on CPU devices, relative to the root mean square of the exact result.");
    std::size_t count = shapes.size();
    app.add_option("--shapes", count, "only the first N shapes")->check(CLI::Range(std::size_t{1}, shapes.size()));
    CLI11_PARSE(app, argc, argv);
    try {
        std::printf("instruction set: %s\n\n", ls::instruction_set().c_str());
        std::printf("| x, channels of the output | of | auto: RMS | largest | direct: RMS | largest |\n");
        std::printf("|---|---|---|---|---|---|\n");
        for (std::size_t i = 0; i < count; ++i) measure(shapes[i]);
        return 0;
    } catch (const std::exception& error) {
        std::fprintf(stderr, "convolution-errors: %s\n", error.what());
        return 1;
    }
}
