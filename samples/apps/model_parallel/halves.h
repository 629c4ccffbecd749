// U-Net cut in two, each part on its own device, and training steps that run the parts one after the other, or both at
// once on parts of the batch (Huang et al., "GPipe", 2019; the order is that of Narayanan et al., "PipeDream", 2019: a
// microbatch runs backward before the one after the next runs forward).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/grad_scaler.h"
#include "lockstep/ops/loss.h"
#include "lockstep/ops/module.h"
#include "lockstep/runtime/transfer.h"
#include "lockstep/samples/apps/unet/net.h"

namespace halves {

namespace ls = lockstep;

/// Position of the cut. No cut halves both: the lowest levels have most of the parameters, the highest most of the
/// arithmetic.
enum class Cut : std::uint8_t {
    arithmetic,  ///< after the first step up
    parameters   ///< before it, at the lowest level
};

/// The decoder's input: the lowest level that the encoder has reached, and the skip connections above it, lowest first.
using Features = std::vector<ls::Tensor>;
/// Number of these tensors.
constexpr std::size_t handed_over(Cut cut) { return cut == Cut::arithmetic ? 4 : 5; }

/// The way down, and the first step up if the cut is by arithmetic. (N, channels, H, W)
struct Encoder {
    Encoder(const unet::Options& options, Cut cut)
        : inc(options.channels, options.width),
          down1(options.width, 2 * options.width),
          down2(2 * options.width, 4 * options.width),
          down3(4 * options.width, 8 * options.width),
          down4(8 * options.width, 16 * options.width) {
        if (cut == Cut::arithmetic) up1.emplace(16 * options.width, 8 * options.width, false);
    }

    unet::DoubleConv inc;
    unet::Down down1, down2, down3, down4;
    std::optional<unet::Up> up1;
    LOCKSTEP_MEMBERS(inc, down1, down2, down3, down4, up1)

    Features operator()(const ls::Tensor& x) {
        const ls::Tensor x1 = inc(x), x2 = down1(x1), x3 = down2(x2), x4 = down3(x3), x5 = down4(x4);
        if (up1) return {(*up1)(x5, x4), x3, x2, x1};
        return {x5, x4, x3, x2, x1};
    }
};

/// The rest of the way up. -> logits (N, classes, H, W)
struct Decoder {
    Decoder(const unet::Options& options, Cut cut)
        : up2(8 * options.width, 4 * options.width, false),
          up3(4 * options.width, 2 * options.width, false),
          up4(2 * options.width, options.width, false),
          outc(options.width, options.classes) {
        if (cut == Cut::parameters) up1.emplace(16 * options.width, 8 * options.width, false);
    }

    std::optional<unet::Up> up1;
    unet::Up up2, up3, up4;
    unet::UNet::Out outc;
    LOCKSTEP_MEMBERS(up1, up2, up3, up4, outc)

    ls::Tensor operator()(const Features& features) {
        auto skip = features.begin();
        ls::Tensor x = *skip++;
        if (up1) x = (*up1)(x, *skip++);
        x = up2(x, skip[0]);
        return outc(up4(up3(x, skip[1]), skip[2]));
    }
    ls::Device device() const { return outc.conv.weight->device(); }
};

/// Both parts. `net.decoder.to(device)` moves one of them; forward expects x on the encoder's device.
struct UNet {
    explicit UNet(const unet::Options& options, Cut cut = Cut::arithmetic)
        : encoder(options, cut), decoder(options, cut) {}

    Encoder encoder;
    Decoder decoder;
    LOCKSTEP_MEMBERS(encoder, decoder)

    ls::Tensor forward(const ls::Tensor& x) {
        Features features = encoder(x);
        for (ls::Tensor& feature : features) feature = feature.to(decoder.device());
        return decoder(features);
    }
};

/// The encoder's part of the whole network, from 0 to 1.
struct Shares {
    double parameters = 0;
    double multiply_adds = 0;  ///< convolutions in forward; backward has twice as many
};
inline Shares shares(const unet::Options& options, Cut cut) {
    double parameters[2] = {}, multiply_adds[2] = {};  // encoder, decoder
    // A block of two 3x3 convolutions, or the 2x2 convolution before one. `positions`: its size as a fraction of the
    // image's pixels.
    const auto add = [&](int half, std::int64_t weights, std::int64_t others, double positions) {
        parameters[half] += static_cast<double>(weights + others);
        multiply_adds[half] += static_cast<double>(weights) * positions;
    };
    const auto block = [&](int half, std::int64_t in, std::int64_t out, double positions) {
        add(half, 9 * in * out + 9 * out * out, 4 * out, positions);
    };
    const std::int64_t w = options.width;
    block(0, options.channels, w, 1);
    double positions = 1;
    for (std::int64_t level = 1; level <= 8; level *= 2, positions /= 4) {
        block(0, level * w, 2 * level * w, positions / 4);
        const int up = level == 8 && cut == Cut::arithmetic ? 0 : 1;
        // Each position of the larger map has one of the four 1x1 products.
        parameters[up] += static_cast<double>(8 * level * w * level * w + level * w);
        multiply_adds[up] += static_cast<double>(2 * level * w * level * w) * positions;
        block(up, 2 * level * w, level * w, positions);
    }
    add(1, w * options.classes, options.classes, 1);
    return {parameters[0] / (parameters[0] + parameters[1]), multiply_adds[0] / (multiply_adds[0] + multiply_adds[1])};
}

/// Rows of a batch: images on the encoder's device, masks on the decoder's.
struct Part {
    ls::Tensor images, masks;
};

/// Backward of a part of the loss; with a scaler, of a multiple of it.
inline void run_backward(const ls::Tensor& loss, ls::GradScaler* scaler) {
    (scaler ? scaler->scale(loss) : loss).backward();
}

/// Adds the gradients of the mean over the parts of their losses, one part after the other. Returns that mean.
template <class LossFunction>
ls::Tensor backward_serial(UNet& net, const std::vector<Part>& parts, const LossFunction& loss,
                           ls::GradScaler* scaler = nullptr) {
    const double share = 1.0 / static_cast<double>(parts.size());
    ls::Tensor sum;
    for (const Part& part : parts) {
        const ls::Tensor own = ls::Tensor(loss(net.forward(part.images), part.masks)) * share;
        run_backward(own, scaler);
        sum = sum.defined() ? sum + own.detach() : own.detach();
    }
    return sum;
}

/// The same result, with both devices at work: before the decoder gets a part, the encoder gets the next one. The host
/// only enqueues; a device waits only for its inputs. At any time the encoder stores two parts for backward, and the
/// decoder one.
template <class LossFunction>
ls::Tensor backward_pipelined(UNet& net, const std::vector<Part>& parts, const LossFunction& loss,
                              ls::GradScaler* scaler = nullptr) {
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
        for (ls::Transfer& transfer : now) features.push_back(transfer.tensor());
        now.clear();
        const ls::Tensor own = ls::Tensor(loss(net.decoder(features), parts[i].masks)) * share;
        features = {};
        run_backward(own, scaler);
        sum = sum.defined() ? sum + own.detach() : own.detach();
    }
    return sum;
}

}  // namespace halves
