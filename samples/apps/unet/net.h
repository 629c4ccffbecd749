// U-Net as it is trained on Carvana: the network, member names and parameter shapes of the public PyTorch program
// (Ronneberger et al., "U-Net: Convolutional Networks for Biomedical Image Segmentation", 2015, with BatchNorm).
#pragma once

#include <cstdint>
#include <optional>
#include <tuple>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/layers.h"
#include "lockstep/ops/module.h"

namespace unet {

namespace ls = lockstep;

/// (3x3 convolution, BatchNorm, ReLU) twice. (N, in, H, W) -> (N, out, H, W)
struct DoubleConv {
    /// `middle`: channels between the two convolutions.
    DoubleConv(std::int64_t in, std::int64_t out, std::int64_t middle)
        : double_conv(conv(in, middle), ls::BatchNorm2d(middle), ls::ReLU(), conv(middle, out), ls::BatchNorm2d(out),
                      ls::ReLU()) {}
    DoubleConv(std::int64_t in, std::int64_t out) : DoubleConv(in, out, out) {}

    ls::Sequential<ls::Conv2d, ls::BatchNorm2d, ls::ReLU, ls::Conv2d, ls::BatchNorm2d, ls::ReLU> double_conv;
    LOCKSTEP_MEMBERS(double_conv)

    ls::Tensor forward(const ls::Tensor& x) { return double_conv(x); }
    ls::Tensor operator()(const ls::Tensor& x) { return forward(x); }

private:
    static ls::Conv2d conv(std::int64_t in, std::int64_t out) {
        return ls::Conv2d(in, out, 3, {.padding = 1, .bias = false});
    }
};

/// Half the size. (N, in, H, W) -> (N, out, H / 2, W / 2)
struct Down {
    Down(std::int64_t in, std::int64_t out) : maxpool_conv(ls::MaxPool2d(2), DoubleConv(in, out)) {}

    ls::Sequential<ls::MaxPool2d, DoubleConv> maxpool_conv;
    LOCKSTEP_MEMBERS(maxpool_conv)

    ls::Tensor forward(const ls::Tensor& x) { return maxpool_conv(x); }
    ls::Tensor operator()(const ls::Tensor& x) { return forward(x); }
};

/// Twice the size, concatenated with the skip connection.
/// (N, in or, if bilinear, in / 2, h, w) and (N, in / 2, H, W) -> (N, out, H, W)
struct Up {
    Up(std::int64_t in, std::int64_t out, bool bilinear)
        : up(bilinear ? std::nullopt
                      : std::optional(ls::ConvTranspose2d(in, in / 2, 2, ls::ConvTranspose2dOptions{.stride = 2}))),
          conv(in, out, bilinear ? in / 2 : out) {}

    std::optional<ls::ConvTranspose2d> up;  ///< none: bilinear
    DoubleConv conv;
    LOCKSTEP_MEMBERS(up, conv)

    ls::Tensor operator()(const ls::Tensor& x, const ls::Tensor& skip) {
        const ls::Tensor upper = up ? (*up)(x) : ls::interpolate(x, twice());
        const std::int64_t dy = skip.size(2) - upper.size(2), dx = skip.size(3) - upper.size(3);
        return conv(ls::cat({skip, ls::pad(upper, {dx / 2, dx - dx / 2, dy / 2, dy - dy / 2})}, 1));
    }

private:
    static ls::InterpolateOptions twice() {
        return {.scale_factor = ls::ScaleFactor(2), .mode = ls::InterpolateMode::bilinear, .align_corners = true};
    }
};

struct Options {
    std::int64_t channels = 3;  ///< channels of an image
    std::int64_t classes = 2;
    bool bilinear = false;    ///< upsamples by interpolation instead of transposed convolutions
    std::int64_t width = 64;  ///< channels of the first level; each further one has twice as many
};

/// (N, channels, H, W) -> logits (N, classes, H, W)
struct UNet {
    explicit UNet(const Options& options = {})
        : inc(options.channels, options.width),
          down1(options.width, 2 * options.width),
          down2(2 * options.width, 4 * options.width),
          down3(4 * options.width, 8 * options.width),
          down4(8 * options.width, 16 * options.width / divisor(options)),
          up1(16 * options.width, 8 * options.width / divisor(options), options.bilinear),
          up2(8 * options.width, 4 * options.width / divisor(options), options.bilinear),
          up3(4 * options.width, 2 * options.width / divisor(options), options.bilinear),
          up4(2 * options.width, options.width, options.bilinear),
          outc(options.width, options.classes) {}

    /// The last layer: a 1x1 convolution.
    struct Out {
        Out(std::int64_t in, std::int64_t classes) : conv(in, classes, 1) {}
        ls::Conv2d conv;
        LOCKSTEP_MEMBERS(conv)
        ls::Tensor operator()(const ls::Tensor& x) { return conv(x); }
    };

    DoubleConv inc;
    Down down1, down2, down3, down4;
    Up up1, up2, up3, up4;
    Out outc;
    LOCKSTEP_MEMBERS(inc, down1, down2, down3, down4, up1, up2, up3, up4, outc)

    ls::Tensor forward(const ls::Tensor& x) {
        const ls::Tensor x1 = inc(x), x2 = down1(x1), x3 = down2(x2), x4 = down3(x3);
        return outc(up4(up3(up2(up1(down4(x4), x4), x3), x2), x1));
    }

    /// How all BatchNorm layers gather their statistics. Must be called before the network is wrapped.
    void set_statistics(ls::BatchNormStatistics statistics) {
        const auto in = [](Down& down) { return &std::get<1>(down.maxpool_conv.layers); };
        for (DoubleConv* block :
             {&inc, in(down1), in(down2), in(down3), in(down4), &up1.conv, &up2.conv, &up3.conv, &up4.conv}) {
            std::get<1>(block->double_conv.layers).options.statistics = statistics;
            std::get<4>(block->double_conv.layers).options.statistics = statistics;
        }
    }

private:
    static std::int64_t divisor(const Options& options) { return options.bilinear ? 2 : 1; }
};

}  // namespace unet
