// GIF by giflib: the first frame, on its screen.
#include <gif_lib.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <new>

#include "lockstep/parallel/data/images/codecs.h"

namespace lockstep::internal {
namespace {

/// In the long run a code has at least 8 bits and encodes at most the 4096 pixels that the table can chain.
constexpr std::uint64_t gif_pixels_per_byte = 4096;

using Colours = std::vector<std::array<std::uint8_t, 3>>;

std::string why_gif_failed(int error) {
    const char* reason = GifErrorString(error);
    return reason != nullptr ? reason : "no reason given";
}

/// Whether every index is its own grey level.
bool is_ramp_of_greys(const Colours& colours) {
    for (std::size_t i = 0; i < colours.size(); ++i)
        if (colours[i][0] != i || colours[i][1] != i || colours[i][2] != i) return false;
    return true;
}

class GifReader {
public:
    /// Reads everything before the pixels of the first frame.
    explicit GifReader(const ImageBytes& file) : file_(file) {
        int error = 0;
        gif_.reset(DGifOpen(
            this,
            [](GifFileType* gif, GifByteType* to, int count) {
                return static_cast<GifReader*>(gif->UserData)->give(to, count);
            },
            &error));
        if (!gif_) refuse(error);
        find_frame();
        const ColorMapObject* map = gif_->Image.ColorMap != nullptr ? gif_->Image.ColorMap : gif_->SColorMap;
        for (int i = 0; map != nullptr && i < map->ColorCount; ++i)
            colours_.push_back({map->Colors[i].Red, map->Colors[i].Green, map->Colors[i].Blue});
    }

    ImageHeader header() const {
        const GifImageDesc& frame = gif_->Image;
        require_plausible_size(file_, offset_, frame.Width, frame.Height, gif_pixels_per_byte);
        // A frame that is larger than its screen enlarges the screen, as in Pillow.
        const ImageHeader header{std::max(gif_->SHeight, frame.Top + frame.Height),
                                 std::max(gif_->SWidth, frame.Left + frame.Width),
                                 is_ramp_of_greys(colours_) ? ImageMode::grey : ImageMode::palette, 8};
        require_plausible_size(file_, offset_, header.width, header.height, gif_pixels_per_byte);
        return header;
    }

    void read_pixels(HostImage& image) {
        const GifImageDesc& frame = gif_->Image;
        if (image.mode == ImageMode::palette) image.palette = colours_;
        std::fill(image.pixels.begin(), image.pixels.end(), outside_);
        struct Pass {
            int first, step;
        };
        static constexpr Pass interlaced[] = {{0, 8}, {4, 8}, {2, 4}, {1, 2}}, plain[] = {{0, 1}};
        for (const auto [first, step] : frame.Interlace ? std::span<const Pass>(interlaced) : std::span(plain)) {
            for (int y = first; y < frame.Height; y += step) {
                const auto at = static_cast<std::size_t>((frame.Top + y) * image.width + frame.Left);
                if (DGifGetLine(gif_.get(), image.pixels.data() + at, frame.Width) == GIF_ERROR) refuse(gif_->Error);
            }
        }
    }

private:
    struct Close {
        void operator()(GifFileType* gif) const {
            int ignored = 0;
            DGifCloseFile(gif, &ignored);
        }
    };

    int give(GifByteType* to, int count) {
        const std::size_t some = std::min(static_cast<std::size_t>(count), file_.bytes.size() - offset_);
        std::memcpy(to, file_.bytes.data() + offset_, some);
        offset_ += some;
        return static_cast<int>(some);
    }
    [[noreturn]] void refuse(int error) const {
        const bool ended = offset_ == file_.bytes.size();
        refuse_image(file_.name, offset_,
                     "the GIF cannot be read: " + (ended ? "the file ends too early" : why_gif_failed(error)));
    }
    void find_frame() {
        for (;;) {
            GifRecordType type = UNDEFINED_RECORD_TYPE;
            if (DGifGetRecordType(gif_.get(), &type) == GIF_ERROR) refuse(gif_->Error);
            if (type == TERMINATE_RECORD_TYPE)
                refuse_image(file_.name, offset_, "the GIF cannot be read: it has no frame");
            if (type == IMAGE_DESC_RECORD_TYPE) break;
            if (type == EXTENSION_RECORD_TYPE) read_extension();
        }
        if (DGifGetImageDesc(gif_.get()) == GIF_ERROR) refuse(gif_->Error);
        if (gif_->Image.Width < 1 || gif_->Image.Height < 1)
            refuse_image(file_.name, offset_, "the GIF cannot be read: its first frame has no pixels");
    }
    /// Pixels outside the frame are transparent, if the file has an index for that.
    void read_extension() {
        int code = 0;
        GifByteType* block = nullptr;
        if (DGifGetExtension(gif_.get(), &code, &block) == GIF_ERROR) refuse(gif_->Error);
        GraphicsControlBlock control{};
        if (code == GRAPHICS_EXT_FUNC_CODE && block != nullptr &&
            DGifExtensionToGCB(block[0], block + 1, &control) != GIF_ERROR && control.TransparentColor >= 0)
            outside_ = static_cast<std::uint8_t>(control.TransparentColor);
        while (block != nullptr)
            if (DGifGetExtensionNext(gif_.get(), &block) == GIF_ERROR) refuse(gif_->Error);
    }

    const ImageBytes& file_;
    std::size_t offset_ = 0;
    std::uint8_t outside_ = 0;
    Colours colours_;
    std::unique_ptr<GifFileType, Close> gif_;
};

struct FreeColours {
    void operator()(ColorMapObject* map) const { GifFreeMapObject(map); }
};

/// 2, 4, ... 256 colours, as the format requires.
std::unique_ptr<ColorMapObject, FreeColours> colours_for_gif(const HostImage& image) {
    std::array<GifColorType, 256> colours{};
    int count = 256;
    if (image.mode == ImageMode::grey) {
        for (std::size_t i = 0; i < colours.size(); ++i) {
            const auto level = static_cast<GifByteType>(i);
            colours[i] = {level, level, level};
        }
    } else {
        for (std::size_t i = 0; i < image.palette.size(); ++i)
            colours[i] = {image.palette[i][0], image.palette[i][1], image.palette[i][2]};
        count = 1 << std::max(GifBitSize(static_cast<int>(image.palette.size())), 1);
    }
    return std::unique_ptr<ColorMapObject, FreeColours>(GifMakeMapObject(count, colours.data()));
}

ImageHeader read_gif_header(const ImageBytes& file) { return GifReader(file).header(); }

HostImage read_gif(const ImageBytes& file) {
    GifReader reader(file);
    HostImage image = image_of(reader.header());
    reader.read_pixels(image);
    return image;
}

std::vector<std::byte> gif_bytes(const std::string& name, const HostImage& image, int /*quality*/) {
    std::vector<std::byte> bytes;
    const auto refuse = [&](int error) { fail_to_write(name, "GIF", why_gif_failed(error)); };
    int error = 0;
    GifFileType* gif = EGifOpen(
        &bytes,
        [](GifFileType* file, const GifByteType* from, int count) {
            const auto* first = reinterpret_cast<const std::byte*>(from);
            auto& to = *static_cast<std::vector<std::byte>*>(file->UserData);
            try {
                to.insert(to.end(), first, first + count);
            } catch (const std::bad_alloc&) {
                return 0;
            }
            return count;
        },
        &error);
    if (gif == nullptr) refuse(error);
    const auto colours = colours_for_gif(image);
    const int width = static_cast<int>(image.width), height = static_cast<int>(image.height);
    bool good = colours != nullptr && EGifPutScreenDesc(gif, width, height, 8, 0, colours.get()) != GIF_ERROR &&
                EGifPutImageDesc(gif, 0, 0, width, height, false, nullptr) != GIF_ERROR;
    std::vector<GifPixelType> line(static_cast<std::size_t>(width));  // the library may write to it
    for (int y = 0; good && y < height; ++y) {
        std::copy_n(image.pixels.begin() + static_cast<std::ptrdiff_t>(y) * width, width, line.begin());
        good = EGifPutLine(gif, line.data(), width) != GIF_ERROR;
    }
    error = gif->Error;
    int closing_error = 0;
    const bool closed = EGifCloseFile(gif, &closing_error) != GIF_ERROR;
    if (!good || !closed) refuse(good ? closing_error : error);
    return bytes;
}

}  // namespace

ImageCodec gif_codec() { return {read_gif_header, read_gif, gif_bytes}; }

}  // namespace lockstep::internal
