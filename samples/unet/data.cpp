#include "lockstep/samples/unet/data.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/samples/program/command_line.h"

namespace unet {

namespace ls = lockstep;

ls::SegmentationFolder open_images(const DataOptions& options) {
    const auto folder = options.directory / "imgs";
    ls::SegmentationFolder images(
        folder, options.directory / "masks",
        {.scale = options.scale, .mask_values = options.mask_values, .classes = std::max(options.classes, 2)});
    if (options.channels && *options.channels != images.channels())
        throw program::UsageError(fmt::format(
            "{}: the images have {} {}, and the network was made for {}; give images of the kind that it "
            "was trained on",
            folder.string(), images.channels(), images.channels() == 1 ? "channel" : "channels", *options.channels));
    return images;
}

Split split(const ls::SegmentationFolder& images, double percent) {
    const std::int64_t size = images.size();
    // As int(len(dataset) * val_percent) with val_percent = percent / 100.
    const auto validation = static_cast<std::int64_t>(static_cast<double>(size) * (percent / 100));
    if (validation == size || (validation == 0 && percent > 0))
        throw program::UsageError(
            fmt::format("--validation {}: of {} {} that leaves none to {} on; {}", percent, size,
                        size == 1 ? "image" : "images", validation == size ? "train" : "validate",
                        validation == size ? "give less" : "give more, or 0 to train without validation"));
    const std::vector<std::int64_t> sizes{size - validation, validation};
    if (validation == 0) return {ls::random_split(images, {size}, 0)[0], std::nullopt};
    auto parts = ls::random_split(images, sizes, 0);
    return {std::move(parts[0]), std::move(parts[1])};
}

}  // namespace unet
