#include "lockstep/samples/apps/unet/evaluation_log.h"

#include "lockstep/samples/apps/unet/pictures.h"

namespace unet {

namespace ls = lockstep;

namespace {

/// u8 (H, W, C) of f32 (C, H, W) in [0, 1].
ls::Tensor pixels_of(const ls::Tensor& image) {
    const std::int64_t channels = image.size(0), positions = image.size(1) * image.size(2);
    const std::vector<float> values = image.to_vector<float>();
    std::vector<std::uint8_t> pixels;
    pixels.reserve(values.size());
    for (std::int64_t i = 0; i < positions; ++i)
        for (std::int64_t c = 0; c < channels; ++c)
            pixels.push_back(
                static_cast<std::uint8_t>(values[static_cast<std::size_t>(c * positions + i)] * 255 + 0.5F));
    return ls::Tensor::from(pixels, {image.size(1), image.size(2), channels});
}

}  // namespace

void log_evaluation(ls::EventLog& log, const UNet& net, const SegmentationLoss& loss,
                    const std::tuple<ls::Tensor, ls::Tensor>& row, std::int64_t step) {
    const auto& [image, mask] = row;
    UNet copy = net;
    ls::set_training(copy, false);
    const ls::Device device = copy.outc.conv.weight->device();
    const ls::Tensor logits = copy.forward(image.unsqueeze(0).to(device));
    log.image("image", pixels_of(image), step);
    std::vector<std::uint8_t> there;
    for (const std::int64_t number : mask.to_vector<std::int64_t>())
        there.push_back(number == ls::ignored_class ? 0 : static_cast<std::uint8_t>(number));
    log.mask("mask/true", ls::Tensor::from(there, mask.shape()), step);
    const ClassMap found = classes_of(logits.detach());
    log.mask("mask/predicted", ls::Tensor::from(found.classes, {found.height, found.width}), step);

    loss(logits, mask.unsqueeze(0).to(device)).backward();
    for (const ls::NamedTensor& named : ls::named_tensors(copy)) {
        if (!named.is_parameter) continue;
        log.histogram("weights/" + named.name, named.member->tensor().detach(), step);
        if (const ls::Tensor gradient = named.member->tensor().grad(); gradient.defined())
            log.histogram("gradients/" + named.name, gradient, step);
    }
}

}  // namespace unet
