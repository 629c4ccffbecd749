// Images in host memory, 8 bits per channel, with Pillow's resizing. image_file.h reads and writes them.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "lockstep/runtime/language.h"

namespace lockstep {

/// Channels of a pixel: Pillow's modes L, LA, RGB, RGBA and P.
enum class ImageMode : std::uint8_t { grey, grey_alpha, rgb, rgba, palette };

/// "grey", "grey with alpha", "RGB", "RGBA", "palette".
std::string_view name_of(ImageMode mode);
/// 1 for grey and palette, otherwise 2, 3 or 4.
int channels_of(ImageMode mode);

/// A decoded image.
struct HostImage {
    std::int64_t height = 0, width = 0;
    ImageMode mode = ImageMode::rgb;
    std::vector<std::uint8_t> pixels;                  ///< (height, width, channels), row-major
    std::vector<std::array<std::uint8_t, 3>> palette;  ///< for mode palette: the colour of each index; otherwise empty
    /// For a file with 16 bits per channel, of which `pixels` has the upper 8: the largest value of the colour
    /// channels.
    std::uint16_t peak16 = 0;

    int channels() const { return channels_of(mode); }
};

namespace detail {
/// Throws InvalidArgument, naming `call`, unless the image is not empty and has height * width * channels values.
void require_pixels(std::string_view call, const HostImage& image);
}  // namespace detail

/// Maximum number of pixels; larger files are an error (Pillow's limit against decompression bombs).
inline constexpr std::int64_t max_image_pixels = 178'956'970;

/// Properties of the image in a file, which are read without decoding it.
struct ImageHeader {
    std::int64_t height = 0, width = 0;
    ImageMode mode = ImageMode::rgb;
    int bits = 8;         ///< bits per channel in the file (1 to 16)
    int orientation = 1;  ///< EXIF orientation (1 to 8) of a JPEG; the readers here do not apply it
};

/// The colours of a palette, or grey as three equal channels; alpha is dropped. An index without a colour is black.
HostImage as_rgb(const HostImage& image);

/// nearest: the pixel under the centre. bilinear, bicubic (a = -0.5): averaged over the area of the new pixel if the
/// image shrinks.
enum class Resampling : std::uint8_t { nearest, bilinear, bicubic };

/// A scaled copy: Image.resize of Pillow, with its fixed-point arithmetic. Colours of images with alpha are weighted by
/// alpha. Palette images always use `nearest`, as indices cannot be interpolated. Throws InvalidArgument for sizes
/// below 1 and for images that are empty or inconsistent.
HostImage resize_image(const HostImage& image, std::int64_t height, std::int64_t width, Resampling resampling);

}  // namespace lockstep
