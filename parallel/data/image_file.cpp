#include "lockstep/parallel/data/image_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "lockstep/parallel/data/atomic_file.h"
#include "lockstep/parallel/data/files/file.h"
#include "lockstep/parallel/data/files/other_kind.h"
#include "lockstep/parallel/data/images/codecs.h"
#include "lockstep/runtime/error.h"

namespace lockstep {

using internal::ImageBytes;
using internal::InputFile;

namespace {

struct ImageFormat {
    std::string_view signature;  ///< first bytes of such files
    ImageHeader (*read_header)(const ImageBytes&);
    HostImage (*read)(const ImageBytes&);
};

constexpr std::array<ImageFormat, 4> image_formats = {
    {{"\xff\xd8\xff", internal::read_jpeg_header, internal::read_jpeg},
     {"\x89PNG\r\n\x1a\n", internal::read_png_header, internal::read_png},
     {"GIF87a", internal::read_gif_header, internal::read_gif},
     {"GIF89a", internal::read_gif_header, internal::read_gif}}};

/// No image that is read takes more, whatever follows it.
constexpr std::uint64_t largest_file = std::uint64_t{1} << 31;
/// Headers end before, but for large colour profiles and thumbnails.
constexpr std::uint64_t usual_header = 1 << 16;

std::vector<std::byte> first_bytes(const InputFile& file, std::uint64_t count) {
    std::vector<std::byte> bytes(static_cast<std::size_t>(std::min(file.size(), count)));
    file.read_at(0, bytes);
    return bytes;
}

const ImageFormat& format_of(const InputFile& file) {
    const std::vector<std::byte> begin = first_bytes(file, 16);
    const std::string_view text(reinterpret_cast<const char*>(begin.data()), begin.size());
    for (const ImageFormat& format : image_formats)
        if (text.starts_with(format.signature)) return format;
    internal::refuse_other_kind(file, "a JPEG, PNG or GIF image");
    throw DataError(
        fmt::format("{}: offset 0: this is not a JPEG, PNG or GIF file; expected one of these", file.name()));
}

std::vector<std::byte> all_bytes(const InputFile& file) {
    if (file.size() > largest_file)
        throw DataError(
            fmt::format("{}: offset {}: the file is longer than 2 GiB; expected an image", file.name(), largest_file));
    return first_bytes(file, largest_file);
}

void require_mode(const char* call, const HostImage& image, bool exists, const char* modes) {
    if (!exists)
        throw InvalidArgument(fmt::format("{}: the format does not support mode {}; expected an image that is {}", call,
                                          name_of(image.mode), modes));
}

void require_side(const char* call, const HostImage& image, std::int64_t most) {
    if (image.width > most || image.height > most)
        throw InvalidArgument(fmt::format("{}: {} x {} (width x height) is too large; expected at most {} each", call,
                                          image.width, image.height, most));
}

/// Every index has a colour.
void require_colours(const char* call, const HostImage& image) {
    if (image.mode != ImageMode::palette) return;
    const unsigned largest = *std::max_element(image.pixels.begin(), image.pixels.end());
    if (image.palette.size() > 256 || largest >= image.palette.size())
        throw InvalidArgument(fmt::format(
            "{}: the palette has {} colours, but pixels use index {}; expected a colour for every index, at most 256",
            call, image.palette.size(), largest));
}

void write_image(const std::filesystem::path& path, std::span<const std::byte> bytes) {
    AtomicFile file(path);
    file.write(bytes);
    file.commit();
}

}  // namespace

ImageHeader read_image_header(const std::filesystem::path& path) {
    const InputFile file(path);
    const ImageFormat& format = format_of(file);
    if (file.size() > usual_header) {
        try {
            return format.read_header({file.name(), file.size(), first_bytes(file, usual_header)});
        } catch (const DataError&) {  // perhaps the header is longer
        }
    }
    return format.read_header({file.name(), file.size(), all_bytes(file)});
}

HostImage read_image(const std::filesystem::path& path) {
    const InputFile file(path);
    const ImageFormat& format = format_of(file);
    return format.read({file.name(), file.size(), all_bytes(file)});
}

void write_png(const std::filesystem::path& path, const HostImage& image) {
    detail::require_pixels("write_png", image);
    require_side("write_png", image, 1'000'000);
    require_colours("write_png", image);
    write_image(path, internal::png_bytes(path.string(), image));
}

void write_jpeg(const std::filesystem::path& path, const HostImage& image, int quality) {
    detail::require_pixels("write_jpeg", image);
    require_side("write_jpeg", image, 65'500);
    require_mode("write_jpeg", image, image.mode == ImageMode::grey || image.mode == ImageMode::rgb, "grey or RGB");
    if (quality < 1 || quality > 100)
        throw InvalidArgument(fmt::format("write_jpeg: quality {}; expected 1 to 100", quality));
    write_image(path, internal::jpeg_bytes(path.string(), image, quality));
}

void write_gif(const std::filesystem::path& path, const HostImage& image) {
    detail::require_pixels("write_gif", image);
    require_side("write_gif", image, 65'535);
    require_mode("write_gif", image, image.mode == ImageMode::grey || image.mode == ImageMode::palette,
                 "grey or has a palette");
    require_colours("write_gif", image);
    write_image(path, internal::gif_bytes(path.string(), image));
}

}  // namespace lockstep
