// Codecs of image files, between bytes in memory and images. In builds without the library of a format, the stub
// absent_*.cpp replaces its codec.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/parallel/data/image.h"

namespace lockstep::internal {

/// A file and the first `bytes` read from it: all of them, except in read_*_header.
struct ImageBytes {
    const std::string& name;
    std::uint64_t file_size;
    std::span<const std::byte> bytes;
};

/// Reader and writer of a format; null in builds without its library.
struct ImageCodec {
    ImageHeader (*read_header)(const ImageBytes& file) = nullptr;
    HostImage (*read)(const ImageBytes& file) = nullptr;
    /// The caller has checked that the image has pixels and that the format supports its mode. Only JPEG has a quality.
    /// Throws DataError if the library fails.
    std::vector<std::byte> (*write)(const std::string& name, const HostImage& image, int quality) = nullptr;
};
ImageCodec jpeg_codec();
ImageCodec png_codec();
ImageCodec gif_codec();

struct ImageLibrary {
    std::string_view format;   ///< "JPEG"
    std::string_view library;  ///< "libjpeg"
    std::string_view package;  ///< "libjpeg-dev"
    ImageCodec (*codec)();

    std::string build_hint() const;  ///< "install libjpeg-dev and configure again"
};
/// One per format.
std::span<const ImageLibrary> image_libraries();

/// The codec of "JPEG", "PNG" or "GIF". If it was not built in, throws InvalidArgument with a message that begins with
/// `call`.
ImageCodec require_codec(std::string_view call, std::string_view format);

/// Throws DataError: "NAME: offset N: WHAT; ADVICE".
[[noreturn]] void refuse_image(const std::string& name, std::uint64_t offset, const std::string& what);
/// Throws DataError for an image that the library of `format` could not encode; `why` is the library's message.
[[noreturn]] void fail_to_write(const std::string& name, const char* format, const std::string& why);
/// Throws DataError unless a valid file can hold `width` x `height` pixels: one byte of the format encodes at most
/// `pixels_per_byte`.
void require_plausible_size(const ImageBytes& file, std::uint64_t offset, std::int64_t width, std::int64_t height,
                            std::uint64_t pixels_per_byte);

/// Allocates an image for the header's pixels.
HostImage image_of(const ImageHeader& header);

}  // namespace lockstep::internal
