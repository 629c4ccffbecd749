#include "lockstep/parallel/data/images/codecs.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "lockstep/runtime/error.h"

namespace lockstep::internal {

std::string ImageLibrary::build_hint() const { return fmt::format("install {} and configure again", package); }

std::span<const ImageLibrary> image_libraries() {
    static constexpr std::array<ImageLibrary, 3> all{{{"JPEG", "libjpeg", "libjpeg-dev", jpeg_codec},
                                                      {"PNG", "libpng", "libpng-dev", png_codec},
                                                      {"GIF", "giflib", "libgif-dev", gif_codec}}};
    return all;
}

ImageCodec require_codec(std::string_view call, std::string_view format) {
    const auto all = image_libraries();
    const auto found = std::find_if(all.begin(), all.end(), [&](const auto& one) { return one.format == format; });
    const ImageCodec codec = found->codec();
    if (codec.read == nullptr)
        throw InvalidArgument(fmt::format("{}: {} images need {}, which was not built in; {}", call, format,
                                          found->library, found->build_hint()));
    return codec;
}

void refuse_image(const std::string& name, std::uint64_t offset, const std::string& what) {
    throw DataError(fmt::format("{}: offset {}: {}", name, offset, what));
}

void fail_to_write(const std::string& name, const char* format, const std::string& why) {
    throw DataError(fmt::format("{}: the {} cannot be written: {}", name, format, why));
}

void require_plausible_size(const ImageBytes& file, std::uint64_t offset, std::int64_t width, std::int64_t height,
                            std::uint64_t pixels_per_byte) {
    if (width < 1 || height < 1)
        refuse_image(file.name, offset, fmt::format("its size is {} x {} (width x height)", width, height));
    if (width > max_image_pixels / height)
        refuse_image(file.name, offset,
                     fmt::format("it declares {} x {} pixels (width x height); expected at most {}", width, height,
                                 max_image_pixels));
    if (static_cast<std::uint64_t>(width * height) / pixels_per_byte > file.file_size)
        refuse_image(file.name, offset,
                     fmt::format("it declares {} x {} pixels (width x height), more than a file of {} bytes can hold",
                                 width, height, file.file_size));
}

HostImage image_of(const ImageHeader& header) {
    HostImage image{header.height, header.width, header.mode, {}, {}};
    image.pixels.resize(static_cast<std::size_t>(header.height * header.width * image.channels()));
    return image;
}

}  // namespace lockstep::internal
