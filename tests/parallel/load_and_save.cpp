// Loads weights into a small U-Net with PyTorch's names and saves them, so that tests/pytorch/check_pth.py can compare
// output and input.
#include <exception>
#include <iostream>
#include <tuple>

#include "lockstep/ops/layers.h"
#include "lockstep/parallel/checkpoint.h"

namespace ls = lockstep;

namespace {

using Convolutions = ls::Sequential<ls::Conv2d, ls::BatchNorm2d, ls::ReLU, ls::Conv2d, ls::BatchNorm2d, ls::ReLU>;

struct DoubleConv {
    DoubleConv(std::int64_t in, std::int64_t out)
        : double_conv(ls::Conv2d{in, out, 3, {.padding = 1, .bias = false}}, ls::BatchNorm2d(out), ls::ReLU(),
                      ls::Conv2d{out, out, 3, {.padding = 1, .bias = false}}, ls::BatchNorm2d(out), ls::ReLU()) {}
    Convolutions double_conv;
    LOCKSTEP_MEMBERS(double_conv)
    ls::Tensor forward(const ls::Tensor& x) { return double_conv(x); }
};

struct Down {
    Down(std::int64_t in, std::int64_t out) : maxpool_conv(ls::MaxPool2d(2), DoubleConv(in, out)) {}
    ls::Sequential<ls::MaxPool2d, DoubleConv> maxpool_conv;
    LOCKSTEP_MEMBERS(maxpool_conv)
};

struct Up {
    Up(std::int64_t in, std::int64_t out) : up(in, out, 2, {.stride = 2}), conv(in, out) {}
    ls::ConvTranspose2d up;
    DoubleConv conv;
    LOCKSTEP_MEMBERS(up, conv)
};

struct OutConv {
    ls::Conv2d conv{8, 2, 1};
    LOCKSTEP_MEMBERS(conv)
};

struct UNet {
    DoubleConv inc{3, 8};
    Down down1{8, 16}, down2{16, 32};
    Up up1{32, 16}, up2{16, 8};
    OutConv outc;
    LOCKSTEP_MEMBERS(inc, down1, down2, up1, up2, outc)
};

}  // namespace

int main(int argc, char** argv) {
    if (argc != 3) {
        std::cerr << "usage: load-and-save FROM TO\n";
        return 2;
    }
    try {
        UNet net;
        ls::load(net, argv[1]);
        ls::save(net, argv[2]);
    } catch (const std::exception& error) {
        std::cerr << "load-and-save: " << error.what() << '\n';
        return 1;
    }
    return 0;
}
