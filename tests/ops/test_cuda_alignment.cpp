// Memory of any alignment passed to cuBLASLt, on the stand-in and on GPUs.
#include <cmath>
#include <vector>

#include "lockstep/ops/functional.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/gpu/machine.h"

using namespace lockstep;

namespace {

const Device gpu = Device::cuda(0);

std::vector<float> uneven(std::size_t count, double seed) {
    std::vector<float> values(count);
    for (std::size_t i = 0; i < count; ++i)
        values[i] = static_cast<float>(std::sin(seed + 1.7 * static_cast<double>(i)));
    return values;
}

Tensor on_gpu(const std::vector<float>& values, const Shape& shape) { return Tensor::from(values, shape).to(gpu); }

}  // namespace

TEST_CASE("a linear layer accepts inputs, weights and bias at any alignment") {
    const std::size_t rows = 3, in = 8, out = 4;
    const auto x = uneven(rows * in + 4, 1), w = uneven(out * in + 4, 2), b = uneven(out + 4, 3);
    const Tensor all_x = on_gpu(x, {rows * in + 4}), all_w = on_gpu(w, {out * in + 4}), all_b = on_gpu(b, {out + 4});
    for (const std::size_t x_at : {0, 1, 4})
        for (const std::size_t w_at : {0, 2, 4})
            for (const std::size_t b_at : {0, 1, 2, 3, 4}) {
                INFO("x from " << x_at << ", w from " << w_at << ", b from " << b_at);
                const auto part = [](const Tensor& whole, std::size_t at, std::size_t count) {
                    return whole.slice(0, static_cast<std::int64_t>(at), static_cast<std::int64_t>(at + count));
                };
                const Tensor y = linear(part(all_x, x_at, rows * in).reshape({rows, in}),
                                        part(all_w, w_at, out * in).reshape({out, in}), part(all_b, b_at, out));
                const std::vector<float> found = y.to_vector<float>();
                for (std::size_t row = 0; row < rows; ++row)
                    for (std::size_t o = 0; o < out; ++o) {
                        double sum = static_cast<double>(b[b_at + o]);
                        for (std::size_t k = 0; k < in; ++k)
                            sum +=
                                static_cast<double>(x[x_at + row * in + k]) * static_cast<double>(w[w_at + o * in + k]);
                        REQUIRE(static_cast<double>(found[row * out + o]) == Approx(sum).margin(1e-5));
                    }
            }
    test::check_no_mistakes();
}
