// Images in host memory, 8 bits per channel, and scaling as Pillow does it. image_file.h reads and writes them.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace lockstep {

/// What the channels of a pixel are: Pillow's modes L, LA, RGB, RGBA and P.
enum class ImageMode : std::uint8_t { grey, grey_alpha, rgb, rgba, palette };

/// "grey", "grey with alpha", "RGB", "RGBA", "palette".
std::string_view name_of(ImageMode mode);
/// 1 for grey and palette, 2, 3 or 4.
int channels_of(ImageMode mode);

struct HostImage {
    std::int64_t height = 0, width = 0;
    ImageMode mode = ImageMode::rgb;
    std::vector<std::uint8_t> pixels;                  ///< (height, width, channels), row-major
    std::vector<std::array<std::uint8_t, 3>> palette;  ///< of mode palette: the colour of each index; else empty
    /// For a file with 16 bits per channel, of which `pixels` has the upper 8: the largest value that is not alpha.
    std::uint16_t peak16 = 0;

    int channels() const { return channels_of(mode); }
};

namespace detail {
/// Throws InvalidArgument, which names `call`, unless the image has pixels, as many as it says.
void require_pixels(std::string_view call, const HostImage& image);
}  // namespace detail

/// Files that claim more pixels are refused (Pillow's limit against decompression bombs).
inline constexpr std::int64_t largest_image_pixels = 178'956'970;

/// What a file says of its image before the first pixel.
struct ImageHeader {
    std::int64_t height = 0, width = 0;
    ImageMode mode = ImageMode::rgb;
    int bits = 8;         ///< per channel in the file (1 to 16)
    int orientation = 1;  ///< EXIF's (1 to 8): how a viewer turns the pixels of a JPEG, which readers here do not
};

/// The colours of a palette, or grey as three equal channels; alpha is dropped. An index without a colour is black.
HostImage as_rgb(const HostImage& image);

/// nearest: the pixel under the centre. bilinear, bicubic: a = -0.5, over the area of a new pixel where it is shrunk.
enum class Resampling : std::uint8_t { nearest, bilinear, bicubic };

/// A scaled copy: Image.resize of Pillow, with its fixed-point arithmetic. Colours of images with alpha are weighted
/// with it. Palettes are always scaled by `nearest`, for there is nothing between two indices. Throws InvalidArgument
/// for sizes below 1 and for images that are empty or do not have as many pixels as they say.
HostImage resize_image(const HostImage& image, std::int64_t height, std::int64_t width, Resampling resampling);

}  // namespace lockstep
