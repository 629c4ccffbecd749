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
#include "lockstep/runtime/log.h"

namespace lockstep {

using internal::InputFile;

namespace {

/// First bytes of an image format.
struct Signature {
    std::string_view bytes, format;
};

constexpr std::array<Signature, 4> signatures = {
    {{"\xff\xd8\xff", "JPEG"}, {"\x89PNG\r\n\x1a\n", "PNG"}, {"GIF87a", "GIF"}, {"GIF89a", "GIF"}}};

/// No valid image needs more, whatever follows it.
constexpr std::uint64_t largest_file = std::uint64_t{1} << 31;
/// Headers end before this offset, except with large colour profiles and thumbnails.
constexpr std::uint64_t usual_header = 1 << 16;

std::vector<std::byte> first_bytes(const InputFile& file, std::uint64_t count) {
    std::vector<std::byte> bytes(static_cast<std::size_t>(std::min(file.size(), count)));
    file.read_at(0, bytes);
    return bytes;
}

internal::ImageCodec codec_of(const char* call, const InputFile& file) {
    const std::vector<std::byte> begin = first_bytes(file, 16);
    const std::string_view text(reinterpret_cast<const char*>(begin.data()), begin.size());
    for (const Signature& signature : signatures)
        if (text.starts_with(signature.bytes))
            return internal::require_codec(fmt::format("{}: {}", call, file.name()), signature.format);
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

/// Throws unless every index has a colour.
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

std::vector<ImageFormat> image_formats() {
    std::vector<ImageFormat> all;
    for (const internal::ImageLibrary& one : internal::image_libraries())
        all.push_back({std::string(one.format), one.codec().read != nullptr, one.build_hint()});
    return all;
}

ImageHeader read_image_header(const std::filesystem::path& path) {
    const InputFile file(path);
    const internal::ImageCodec codec = codec_of("read_image_header", file);
    if (file.size() > usual_header) {
        try {
            return codec.read_header({file.name(), file.size(), first_bytes(file, usual_header)});
        } catch (const DataError&) {  // the header may be longer
        }
    }
    return codec.read_header({file.name(), file.size(), all_bytes(file)});
}

HostImage read_image(const std::filesystem::path& path) {
    const InputFile file(path);
    return codec_of("read_image", file).read({file.name(), file.size(), all_bytes(file)});
}

void warn_of_unused_range(std::span<const std::filesystem::path> files, std::span<const std::uint16_t> peaks) {
    constexpr int tenth = 65535 / 10;
    std::vector<std::size_t> narrow;
    bool alike = true;
    for (std::size_t i = 0; i < files.size(); ++i) {
        if (peaks[i] == 0) continue;  // black, or of 8 bits
        if (peaks[i] < tenth) narrow.push_back(i);
        alike = alike && peaks[i] < tenth && files[i].parent_path() == files[narrow[0]].parent_path();
    }
    if (narrow.empty()) return;
    constexpr const char* advice = "scale the values to the range of 0 to 65535";
    if (alike && narrow.size() > 1) {
        const int peak = *std::max_element(peaks.begin(), peaks.end());
        return warn(
            fmt::format("{}: images have 16 bits per channel and no value above {}; 8 bits hold only {} levels of "
                        "them: {}",
                        files[narrow[0]].parent_path().string(), peak, peak / 256 + 1, advice));
    }
    const int peak = peaks[narrow[0]];
    warn(fmt::format(
        "{}: the image has 16 bits per channel and no value above {}; 8 bits hold only {} of its levels{}: "
        "unless the image is dark, {}",
        files[narrow[0]].string(), peak, peak / 256 + 1,
        narrow.size() > 1
            ? fmt::format(", and as few of {} more {}", narrow.size() - 1, narrow.size() == 2 ? "image" : "images")
            : "",
        advice));
}

void write_png(const std::filesystem::path& path, const HostImage& image) {
    const internal::ImageCodec codec = internal::require_codec("write_png", "PNG");
    detail::require_pixels("write_png", image);
    require_side("write_png", image, 1'000'000);
    require_colours("write_png", image);
    write_image(path, codec.write(path.string(), image, 0));
}

void write_jpeg(const std::filesystem::path& path, const HostImage& image, int quality) {
    const internal::ImageCodec codec = internal::require_codec("write_jpeg", "JPEG");
    detail::require_pixels("write_jpeg", image);
    require_side("write_jpeg", image, 65'500);
    require_mode("write_jpeg", image, image.mode == ImageMode::grey || image.mode == ImageMode::rgb, "grey or RGB");
    if (quality < 1 || quality > 100)
        throw InvalidArgument(fmt::format("write_jpeg: quality {}; expected 1 to 100", quality));
    write_image(path, codec.write(path.string(), image, quality));
}

void write_gif(const std::filesystem::path& path, const HostImage& image) {
    const internal::ImageCodec codec = internal::require_codec("write_gif", "GIF");
    detail::require_pixels("write_gif", image);
    require_side("write_gif", image, 65'535);
    require_mode("write_gif", image, image.mode == ImageMode::grey || image.mode == ImageMode::palette,
                 "grey or has a palette");
    require_colours("write_gif", image);
    write_image(path, codec.write(path.string(), image, 0));
}

}  // namespace lockstep
