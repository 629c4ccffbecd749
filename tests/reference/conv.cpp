#include "lockstep/tests/reference/conv.h"

namespace lockstep::reference {

std::vector<double> conv_forward(const ConvShape& s, const std::vector<float>& x, const std::vector<float>& w,
                                 const std::vector<float>& bias) {
    std::vector<double> y(static_cast<std::size_t>(s.y_size()));
    const std::size_t plane = static_cast<std::size_t>(s.out_h() * s.out_w());
    if (!bias.empty())
        for (std::size_t i = 0; i < y.size(); ++i) y[i] = static_cast<double>(bias[i / plane % bias.size()]);
    for_each_product(s, [&](std::ptrdiff_t ix, std::ptrdiff_t iw, std::ptrdiff_t iy) {
        y[static_cast<std::size_t>(iy)] +=
            static_cast<double>(x[static_cast<std::size_t>(ix)]) * static_cast<double>(w[static_cast<std::size_t>(iw)]);
    });
    return y;
}

std::vector<double> conv_backward_data(const ConvShape& s, const std::vector<float>& dy, const std::vector<float>& w) {
    std::vector<double> dx(static_cast<std::size_t>(s.x_size()));
    for_each_product(s, [&](std::ptrdiff_t ix, std::ptrdiff_t iw, std::ptrdiff_t iy) {
        dx[static_cast<std::size_t>(ix)] += static_cast<double>(dy[static_cast<std::size_t>(iy)]) *
                                            static_cast<double>(w[static_cast<std::size_t>(iw)]);
    });
    return dx;
}

std::vector<double> conv_backward_weights(const ConvShape& s, const std::vector<float>& x,
                                          const std::vector<float>& dy) {
    std::vector<double> dw(static_cast<std::size_t>(s.w_size()));
    for_each_product(s, [&](std::ptrdiff_t ix, std::ptrdiff_t iw, std::ptrdiff_t iy) {
        dw[static_cast<std::size_t>(iw)] += static_cast<double>(x[static_cast<std::size_t>(ix)]) *
                                            static_cast<double>(dy[static_cast<std::size_t>(iy)]);
    });
    return dw;
}

std::vector<double> conv_backward_bias(const ConvShape& s, const std::vector<float>& dy) {
    std::vector<double> db(static_cast<std::size_t>(s.k));
    const std::size_t plane = static_cast<std::size_t>(s.out_h() * s.out_w());
    for (std::size_t i = 0; i < dy.size(); ++i) db[i / plane % db.size()] += static_cast<double>(dy[i]);
    return db;
}

}  // namespace lockstep::reference
