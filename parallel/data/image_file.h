// Image files: JPEG, PNG and GIF. The format is detected by content, not by name. Memory is bounded: damaged and
// malicious files cost no more memory than a valid file of the same length.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "lockstep/parallel/data/image.h"

namespace lockstep {

/// A format that this version supports if its library was there when Lockstep was built. Calls for a format that was
/// not built in throw InvalidArgument, which names the library.
struct ImageFormat {
    std::string name;  ///< "JPEG"
    bool built_in = false;
    std::string build_hint;  ///< hint if it is not built in: "install libjpeg-dev and configure again"
};
std::vector<ImageFormat> image_formats();

/// Throws DataError, naming file and offset, if the file is missing, not an image, damaged before its first pixel, or
/// of an unsupported kind. It also throws if the file declares more pixels than max_image_pixels, or more than its
/// length can hold. JPEG files with colour spaces other than grey and colour (CMYK) are unsupported. So are JPEG files
/// whose number of scans times pixels, or whose pixels beyond 67 million, are out of proportion to the file's length.
ImageHeader read_image_header(const std::filesystem::path& path);

/// The image of a file, with the same pixels as Pillow. For a GIF: the first frame (grey if its palette is a ramp of
/// greys). 16 bits per channel become their upper 8, and HostImage::peak16 records the range that they use. Grey of 1,
/// 2 or 4 bits is scaled to 0 to 255. Palette indices are preserved, and a transparent colour is a colour. Orientation
/// tags, colour profiles and gamma are ignored. Throws as read_image_header, and if the file is truncated or corrupt.
HostImage read_image(const std::filesystem::path& path);

/// Warns, once for all files, of images with 16 bits per channel that use less than a tenth of their range. Only a few
/// of their levels remain in 8 bits. peaks[i]: HostImage::peak16 of files[i]. SegmentationFolder calls it for its
/// images.
void warn_of_unused_range(std::span<const std::filesystem::path> files, std::span<const std::uint16_t> peaks);

/// The following functions write files atomically. They throw InvalidArgument for images that are empty, inconsistent
/// or too large for the format, and for modes that the format lacks. They also throw it if the directory is not
/// writable, and DataError if writing fails.
/// All modes.
void write_png(const std::filesystem::path& path, const HostImage& image);
/// Grey and RGB; quality is 1 to 100.
void write_jpeg(const std::filesystem::path& path, const HostImage& image, int quality = 90);
/// Grey and palette.
void write_gif(const std::filesystem::path& path, const HostImage& image);

}  // namespace lockstep
