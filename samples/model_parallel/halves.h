// U-Net in two halves, each on a device of its own, and a training step that goes through them: one after the other, or
// both at once on parts of the batch (Huang et al., "GPipe", 2019; the order is that of Narayanan et al., "PipeDream",
// 2019: a micro-batch goes back before the one after the next goes forward).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/loss.h"
#include "lockstep/ops/module.h"
#include "lockstep/runtime/transfer.h"
#include "lockstep/samples/unet/net.h"

namespace halves {

namespace ls = lockstep;

/// What the second half takes: the lowest level, and what the three levels above it left beside, lowest first.
constexpr std::size_t handed_over = 4;
using Features = std::array<ls::Tensor, handed_over>;

/// The way down and the first step up: about half of all arithmetic. (N, channels, H, W)
struct Encoder {
    explicit Encoder(const unet::Options& options)
        : inc(options.channels, options.width),
          down1(options.width, 2 * options.width),
          down2(2 * options.width, 4 * options.width),
          down3(4 * options.width, 8 * options.width),
          down4(8 * options.width, 16 * options.width),
          up1(16 * options.width, 8 * options.width, false) {}

    unet::DoubleConv inc;
    unet::Down down1, down2, down3, down4;
    unet::Up up1;
    LOCKSTEP_MEMBERS(inc, down1, down2, down3, down4, up1)

    Features operator()(const ls::Tensor& x) {
        const ls::Tensor x1 = inc(x), x2 = down1(x1), x3 = down2(x2), x4 = down3(x3);
        return {up1(down4(x4), x4), x3, x2, x1};
    }
};

/// The rest of the way up. -> logits (N, classes, H, W)
struct Decoder {
    explicit Decoder(const unet::Options& options)
        : up2(8 * options.width, 4 * options.width, false),
          up3(4 * options.width, 2 * options.width, false),
          up4(2 * options.width, options.width, false),
          outc(options.width, options.classes) {}

    unet::Up up2, up3, up4;
    unet::UNet::Out outc;
    LOCKSTEP_MEMBERS(up2, up3, up4, outc)

    ls::Tensor operator()(const Features& features) {
        return outc(up4(up3(up2(features[0], features[1]), features[2]), features[3]));
    }
    ls::Device device() const { return outc.conv.weight->device(); }
};

/// Both. Where each lies is said by `net.decoder.to(device)`; forward takes x where the encoder lies.
struct UNet {
    explicit UNet(const unet::Options& options) : encoder(options), decoder(options) {}

    Encoder encoder;
    Decoder decoder;
    LOCKSTEP_MEMBERS(encoder, decoder)

    ls::Tensor forward(const ls::Tensor& x) {
        Features features = encoder(x);
        for (ls::Tensor& feature : features) feature = feature.to(decoder.device());
        return decoder(features);
    }
};

/// Rows of a batch: images where the encoder lies, masks where the decoder does.
struct Part {
    ls::Tensor images, masks;
};

/// Adds the gradients of the mean over the parts of their losses, one part after the other. Returns that mean.
template <class LossFunction>
ls::Tensor backward_serial(UNet& net, const std::vector<Part>& parts, const LossFunction& loss) {
    const double share = 1.0 / static_cast<double>(parts.size());
    ls::Tensor sum;
    for (const Part& part : parts) {
        const ls::Tensor own = ls::Tensor(loss(net.forward(part.images), part.masks)) * share;
        own.backward();
        sum = sum.defined() ? sum + own.detach() : own.detach();
    }
    return sum;
}

/// The same numbers, with both devices at work: before the decoder is given a part, the encoder is given the next one.
/// The host only enqueues; a device waits for what it needs and for nothing else. At any time the encoder keeps two
/// parts for the way back, and the decoder one.
template <class LossFunction>
ls::Tensor backward_pipelined(UNet& net, const std::vector<Part>& parts, const LossFunction& loss) {
    const double share = 1.0 / static_cast<double>(parts.size());
    const auto sent = [&](const Part& part) {
        std::vector<ls::Transfer> transfers;
        for (const ls::Tensor& feature : net.encoder(part.images))
            transfers.emplace_back(feature, net.decoder.device());
        return transfers;
    };
    ls::Tensor sum;
    std::vector<ls::Transfer> next = sent(parts.front());
    for (std::size_t i = 0; i < parts.size(); ++i) {
        std::vector<ls::Transfer> now = std::move(next);
        if (i + 1 < parts.size()) next = sent(parts[i + 1]);
        Features features;
        for (std::size_t f = 0; f < handed_over; ++f) features[f] = now[f].tensor();
        now.clear();
        const ls::Tensor own = ls::Tensor(loss(net.decoder(features), parts[i].masks)) * share;
        features = {};
        own.backward();
        sum = sum.defined() ? sum + own.detach() : own.detach();
    }
    return sum;
}

}  // namespace halves
