// Image files: JPEG, PNG and GIF. They are told apart by content, not by name, and read with bounds: damaged and
// hostile files cost no more memory than an honest file of their length.
#pragma once

#include <cstdint>
#include <filesystem>

#include "lockstep/parallel/data/image.h"

namespace lockstep {

/// Throws DataError, naming file and offset, when the file is missing, no image, damaged before its first pixel, claims
/// more pixels than largest_image_pixels or than a file of its length can hold, or is of a kind that is not read: JPEG
/// other than grey and colour (CMYK), or one of several scans whose number times pixels, or whose pixels beyond 67
/// million, are out of proportion to its length.
ImageHeader read_image_header(const std::filesystem::path& path);

/// The image of a file, with the pixels that Pillow reads: of a GIF the first frame (grey where its palette is a ramp
/// of greys); 16 bits per channel become their upper 8, and HostImage::peak16 says how much of the range they use; 1, 2
/// or 4 bits of grey are spread over 0 to 255; palettes keep their indices; a transparent colour is a colour.
/// Orientation tags, colour profiles and gamma are ignored. Throws as read_image_header, and when the file is truncated
/// or corrupt.
HostImage read_image(const std::filesystem::path& path);

/// These write a file that appears whole or not at all. They throw InvalidArgument for images that are empty, too large
/// for the format, do not have as many pixels as they say or have a mode that the format lacks, and where the directory
/// cannot be written; DataError when writing fails.
/// All modes.
void write_png(const std::filesystem::path& path, const HostImage& image);
/// Grey and RGB; quality is 1 to 100.
void write_jpeg(const std::filesystem::path& path, const HostImage& image, int quality = 90);
/// Grey and palette.
void write_gif(const std::filesystem::path& path, const HostImage& image);

}  // namespace lockstep
