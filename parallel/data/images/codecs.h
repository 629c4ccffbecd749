// Codecs of image_file.cpp: one reader and one writer for each format, between bytes in memory and images.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lockstep/parallel/data/image.h"

namespace lockstep::internal {

/// A file and the first `bytes` read from it: all of them, except in read_*_header.
struct ImageBytes {
    const std::string& name;
    std::uint64_t file_size;
    std::span<const std::byte> bytes;
};

ImageHeader read_jpeg_header(const ImageBytes& file);
ImageHeader read_png_header(const ImageBytes& file);
ImageHeader read_gif_header(const ImageBytes& file);
HostImage read_jpeg(const ImageBytes& file);
HostImage read_png(const ImageBytes& file);
HostImage read_gif(const ImageBytes& file);

/// Their image has been checked: it has pixels, and the format has its mode. They throw DataError where the library
/// fails.
std::vector<std::byte> jpeg_bytes(const std::string& name, const HostImage& image, int quality);
std::vector<std::byte> png_bytes(const std::string& name, const HostImage& image);
std::vector<std::byte> gif_bytes(const std::string& name, const HostImage& image);

/// Throws DataError: "NAME: offset N: WHAT; ADVICE".
[[noreturn]] void refuse_image(const std::string& name, std::uint64_t offset, const std::string& what);
/// Throws DataError for an image that the library of `format` could not make a file of, which says `why`.
[[noreturn]] void fail_to_write(const std::string& name, const char* format, const std::string& why);
/// Throws DataError unless an honest file can hold `width` x `height` pixels: `pixels_per_byte` are the most that one
/// byte of the format stands for.
void require_honest_size(const ImageBytes& file, std::uint64_t offset, std::int64_t width, std::int64_t height,
                         std::uint64_t pixels_per_byte);

/// Memory for its pixels.
HostImage image_of(const ImageHeader& header);

}  // namespace lockstep::internal
