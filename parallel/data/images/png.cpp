// PNG by libpng.
#include <png.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "lockstep/parallel/data/images/codecs.h"
#include "lockstep/parallel/data/images/library_calls.h"

namespace lockstep::internal {
namespace {

/// Maximum compression of deflate: 258 bytes in two bits, with 8 pixels in a byte.
constexpr std::uint64_t png_pixels_per_byte = 1032 * 8;

[[noreturn]] void png_failed(png_structp png, png_const_charp message) {
    static_cast<LibraryCalls*>(png_get_error_ptr(png))->fail(message);
}
void png_warned(png_structp, png_const_charp) {}

ImageMode mode_of_png(int colour_type) {
    switch (colour_type) {
        case PNG_COLOR_TYPE_GRAY: return ImageMode::grey;
        case PNG_COLOR_TYPE_GRAY_ALPHA: return ImageMode::grey_alpha;
        case PNG_COLOR_TYPE_PALETTE: return ImageMode::palette;
        case PNG_COLOR_TYPE_RGB_ALPHA: return ImageMode::rgba;
        default: return ImageMode::rgb;
    }
}

int png_type_of(ImageMode mode) {
    switch (mode) {
        case ImageMode::grey: return PNG_COLOR_TYPE_GRAY;
        case ImageMode::grey_alpha: return PNG_COLOR_TYPE_GRAY_ALPHA;
        case ImageMode::palette: return PNG_COLOR_TYPE_PALETTE;
        case ImageMode::rgba: return PNG_COLOR_TYPE_RGB_ALPHA;
        case ImageMode::rgb: break;
    }
    return PNG_COLOR_TYPE_RGB;
}

/// Stores the upper 8 bits of each value of a row with 16 bits per channel, and records the largest value that is not
/// alpha.
void take_upper_bytes(png_structp png, png_row_infop row, png_bytep levels) {
    auto& peak = *static_cast<std::uint16_t*>(png_get_user_transform_ptr(png));
    const std::size_t channels = row->channels, count = channels * row->width;
    const bool has_alpha = (row->color_type & PNG_COLOR_MASK_ALPHA) != 0;
    for (std::size_t i = 0; i < count; ++i) {
        const auto value = static_cast<std::uint16_t>(levels[2 * i] << 8 | levels[2 * i + 1]);
        if (!has_alpha || (i + 1) % channels != 0) peak = std::max(peak, value);
        levels[i] = levels[2 * i];
    }
}

/// Addresses of the rows, as the library requires.
std::vector<png_bytep> rows_of(std::uint8_t* pixels, const HostImage& image) {
    std::vector<png_bytep> rows(static_cast<std::size_t>(image.height));
    const auto row_bytes = static_cast<std::size_t>(image.width) * static_cast<std::size_t>(image.channels());
    for (png_bytep& row : rows) {
        row = pixels;
        pixels += row_bytes;
    }
    return rows;
}

class PngReader {
public:
    /// Reads everything before the pixels.
    explicit PngReader(const ImageBytes& file) : file_(file) {
        const bool begun = calls_.succeeds([this] {
            png_ = png_create_read_struct(PNG_LIBPNG_VER_STRING, &calls_, png_failed, png_warned);
            if (png_ == nullptr) calls_.fail("libpng cannot be started");
            info_ = png_create_info_struct(png_);
            if (info_ == nullptr) calls_.fail("libpng cannot be started");
            // Text and colour profiles are skipped: 8 KB can decompress to 8 MB.
            png_set_keep_unknown_chunks(png_, PNG_HANDLE_CHUNK_NEVER, nullptr, -1);
            png_set_read_fn(png_, this, [](png_structp png, png_bytep to, std::size_t count) {
                static_cast<PngReader*>(png_get_io_ptr(png))->give(to, count);
            });
            png_read_info(png_, info_);
        });
        if (!begun) {
            png_destroy_read_struct(&png_, &info_, nullptr);
            fail();
        }
    }
    ~PngReader() { png_destroy_read_struct(&png_, &info_, nullptr); }
    PngReader(const PngReader&) = delete;
    PngReader& operator=(const PngReader&) = delete;

    ImageHeader header() const {
        const ImageHeader header{png_get_image_height(png_, info_), png_get_image_width(png_, info_),
                                 mode_of_png(png_get_color_type(png_, info_)), png_get_bit_depth(png_, info_)};
        const auto pixel_bits = static_cast<std::uint64_t>(header.bits * channels_of(header.mode));
        require_plausible_size(file_, offset_, header.width, header.height, png_pixels_per_byte / pixel_bits);
        return header;
    }

    void read_pixels(HostImage& image) {
        std::vector<png_bytep> rows = rows_of(image.pixels.data(), image);
        const std::size_t row_bytes = image.pixels.size() / rows.size();
        png_colorp colours = nullptr;
        int colour_count = 0;
        const bool complete = calls_.succeeds([&] {
            if (png_get_bit_depth(png_, info_) == 16) {
                png_set_read_user_transform_fn(png_, take_upper_bytes);
                png_set_user_transform_info(png_, &image.peak16, 8, image.channels());
            }
            png_set_packing(png_);
            if (image.mode == ImageMode::grey) png_set_expand_gray_1_2_4_to_8(png_);
            png_set_interlace_handling(png_);
            png_read_update_info(png_, info_);
            if (png_get_rowbytes(png_, info_) != row_bytes) calls_.fail("its rows have an unexpected length");
            png_read_image(png_, rows.data());
            png_read_end(png_, nullptr);
            png_get_PLTE(png_, info_, &colours, &colour_count);
        });
        if (!complete) fail();
        if (image.mode != ImageMode::palette) return;
        for (int i = 0; i < colour_count; ++i)
            image.palette.push_back({colours[i].red, colours[i].green, colours[i].blue});
    }

private:
    void give(png_bytep to, std::size_t count) {
        if (count > file_.bytes.size() - offset_) calls_.fail("the file ends too early");
        std::memcpy(to, file_.bytes.data() + offset_, count);
        offset_ += count;
    }
    [[noreturn]] void fail() const {
        refuse_image(file_.name, offset_, std::string("the PNG cannot be read: ") + calls_.message());
    }

    const ImageBytes& file_;
    std::size_t offset_ = 0;
    LibraryCalls calls_;
    png_structp png_ = nullptr;
    png_infop info_ = nullptr;
};

class PngWriter {
public:
    PngWriter() = default;
    ~PngWriter() { png_destroy_write_struct(&png_, &info_); }
    PngWriter(const PngWriter&) = delete;
    PngWriter& operator=(const PngWriter&) = delete;

    bool write(const HostImage& image) {
        // the library only reads them
        std::vector<png_bytep> rows = rows_of(const_cast<std::uint8_t*>(image.pixels.data()), image);
        std::vector<png_color> palette;
        for (const auto& [red, green, blue] : image.palette) palette.push_back({red, green, blue});
        return calls_.succeeds([&] {
            png_ = png_create_write_struct(PNG_LIBPNG_VER_STRING, &calls_, png_failed, png_warned);
            if (png_ == nullptr) calls_.fail("libpng cannot be started");
            info_ = png_create_info_struct(png_);
            if (info_ == nullptr) calls_.fail("libpng cannot be started");
            png_set_write_fn(
                png_, this,
                [](png_structp png, png_bytep from, std::size_t count) {
                    static_cast<PngWriter*>(png_get_io_ptr(png))->take(from, count);
                },
                [](png_structp) {});
            png_set_IHDR(png_, info_, static_cast<png_uint_32>(image.width), static_cast<png_uint_32>(image.height), 8,
                         png_type_of(image.mode), PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT,
                         PNG_FILTER_TYPE_DEFAULT);
            if (image.mode == ImageMode::palette)
                png_set_PLTE(png_, info_, palette.data(), static_cast<int>(palette.size()));
            png_write_info(png_, info_);
            png_write_image(png_, rows.data());
            png_write_end(png_, nullptr);
        });
    }
    const char* message() const { return calls_.message(); }
    std::vector<std::byte> take_bytes() { return std::move(bytes_); }

private:
    void take(png_const_bytep from, std::size_t count) {
        bool taken = true;
        try {
            const auto* first = reinterpret_cast<const std::byte*>(from);
            bytes_.insert(bytes_.end(), first, first + count);
        } catch (const std::bad_alloc&) {
            taken = false;
        }
        if (!taken) calls_.fail("out of memory");
    }

    LibraryCalls calls_;
    png_structp png_ = nullptr;
    png_infop info_ = nullptr;
    std::vector<std::byte> bytes_;
};

ImageHeader read_png_header(const ImageBytes& file) { return PngReader(file).header(); }

HostImage read_png(const ImageBytes& file) {
    PngReader reader(file);
    HostImage image = image_of(reader.header());
    reader.read_pixels(image);
    return image;
}

std::vector<std::byte> png_bytes(const std::string& name, const HostImage& image, int /*quality*/) {
    PngWriter writer;
    if (!writer.write(image)) fail_to_write(name, "PNG", writer.message());
    return writer.take_bytes();
}

}  // namespace

ImageCodec png_codec() { return {read_png_header, read_png, png_bytes}; }

}  // namespace lockstep::internal
