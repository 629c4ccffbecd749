// JPEG by libjpeg-turbo, with its defaults, as Pillow uses it.
#include <cstdio>  // jpeglib.h requires it

#include <jerror.h>
#include <jpeglib.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <new>
#include <span>

#include "lockstep/parallel/data/images/codecs.h"
#include "lockstep/parallel/data/images/library_calls.h"

namespace lockstep::internal {
namespace {

/// A block of 8 x 8 pixels takes at least one bit.
constexpr std::uint64_t jpeg_pixels_per_byte = 512;
/// The coefficients of a file with several scans are all in memory before the first pixel, 6 bytes per pixel. Beyond
/// this many pixels such a file must have a plausible length.
constexpr std::uint64_t many_pixels = std::uint64_t{1} << 26, max_pixels_per_byte_of_many = 64;

/// A scan of a few bytes costs a pass over the whole image; encoders write about ten scans. The budget is ten passes
/// over 100 million pixels, plus one pass over the pixels that each byte can encode.
constexpr std::uint64_t free_scanned_pixels = 1'000'000'000;
constexpr std::uint64_t max_scans_of_any = 500;
struct ScanLimit {
    jpeg_progress_mgr manager{};  // first, because the library only knows this part
    int max_scans = 0;
};

[[noreturn]] void jpeg_failed(j_common_ptr info) {
    std::array<char, JMSG_LENGTH_MAX> message{};
    info->err->format_message(info, message.data());
    static_cast<LibraryCalls*>(info->client_data)->fail(message.data());
}

/// Ignores warnings, as Pillow does, except that the file ends too early: the library would invent the rest.
void jpeg_warned(j_common_ptr info, int level) {
    if (level < 0 && info->err->msg_code == JWRN_JPEG_EOF)
        static_cast<LibraryCalls*>(info->client_data)->fail("the file ends too early");
}

void ignore_jpeg_message(j_common_ptr) {}

void count_jpeg_scans(j_common_ptr info) {
    const int most = reinterpret_cast<const ScanLimit*>(info->progress)->max_scans;
    if (reinterpret_cast<j_decompress_ptr>(info)->input_scan_number <= most) return;
    std::array<char, 80> message{};
    std::snprintf(message.data(), message.size(), "it has more than %d scans, too many for its size", most);
    static_cast<LibraryCalls*>(info->client_data)->fail(message.data());
}

/// EXIF's orientation in the data of an APP1 marker: 1 to 8, or 1 if the marker does not contain it.
int orientation_in(std::span<const unsigned char> marker) {
    constexpr std::size_t tiff = 6;  // after "Exif\0\0"
    constexpr unsigned orientation_tag = 0x0112;
    if (marker.size() < tiff + 8 || std::memcmp(marker.data(), "Exif\0", tiff) != 0) return 1;
    const bool little = marker[tiff] == 'I';
    const auto number = [&](std::size_t at, std::size_t bytes) {
        unsigned value = 0;
        for (std::size_t i = 0; i < bytes; ++i) value = value << 8 | marker[at + (little ? bytes - 1 - i : i)];
        return value;
    };
    constexpr std::size_t entry_bytes = 12;
    std::size_t at = tiff + std::size_t{number(tiff + 4, 4)};
    if (at + 2 > marker.size()) return 1;
    const unsigned entries = number(at, 2);
    at += 2;
    for (unsigned i = 0; i < entries && at + entry_bytes <= marker.size(); ++i, at += entry_bytes)
        if (const unsigned value = number(at + 8, 2); number(at, 2) == orientation_tag && value >= 1 && value <= 8)
            return static_cast<int>(value);
    return 1;
}

void set_jpeg_errors(jpeg_error_mgr& errors) {
    jpeg_std_error(&errors);
    errors.error_exit = jpeg_failed;
    errors.emit_message = jpeg_warned;
    errors.output_message = ignore_jpeg_message;
}

class JpegReader {
public:
    /// Reads the header.
    explicit JpegReader(const ImageBytes& file) : file_(file) {
        set_jpeg_errors(errors_);
        info_.err = &errors_;
        info_.client_data = &calls_;
        limit_.manager.progress_monitor = count_jpeg_scans;
        const bool begun = calls_.succeeds([this] {
            jpeg_create_decompress(&info_);
            info_.progress = &limit_.manager;
            constexpr unsigned enough_for_orientation = 1024;
            jpeg_save_markers(&info_, JPEG_APP0 + 1, enough_for_orientation);
            jpeg_mem_src(&info_, reinterpret_cast<const unsigned char*>(file_.bytes.data()),
                         static_cast<unsigned long>(file_.bytes.size()));
            jpeg_read_header(&info_, TRUE);
        });
        if (!begun) {
            const std::string message = refusal();
            const std::uint64_t at = offset();
            jpeg_destroy_decompress(&info_);
            refuse_image(file_.name, at, message);
        }
        const std::uint64_t pixels = std::max<std::uint64_t>(std::uint64_t{info_.image_width} * info_.image_height, 1);
        limit_.max_scans = static_cast<int>(
            std::min((free_scanned_pixels + jpeg_pixels_per_byte * file_.file_size) / pixels + 1, max_scans_of_any));
    }
    ~JpegReader() { jpeg_destroy_decompress(&info_); }
    JpegReader(const JpegReader&) = delete;
    JpegReader& operator=(const JpegReader&) = delete;

    ImageHeader header() const {
        const bool colour = info_.jpeg_color_space == JCS_YCbCr || info_.jpeg_color_space == JCS_RGB;
        if (!colour && info_.jpeg_color_space != JCS_GRAYSCALE)
            refuse_image(file_.name, offset(),
                         info_.num_components == 4 ? "its colours are CMYK; expected grey or RGB"
                                                   : "its colours are neither grey nor RGB nor YCbCr");
        const bool all_at_once = std::uint64_t{info_.image_width} * info_.image_height > many_pixels &&
                                 jpeg_has_multiple_scans(const_cast<jpeg_decompress_struct*>(&info_)) != FALSE;
        require_plausible_size(file_, offset(), info_.image_width, info_.image_height,
                               all_at_once ? max_pixels_per_byte_of_many : jpeg_pixels_per_byte);
        return {info_.image_height, info_.image_width, colour ? ImageMode::rgb : ImageMode::grey, 8, orientation()};
    }

    void read_pixels(HostImage& image) {
        const auto row_bytes = static_cast<std::size_t>(image.width) * static_cast<std::size_t>(image.channels());
        const bool complete = calls_.succeeds([&] {
            info_.out_color_space = image.mode == ImageMode::grey ? JCS_GRAYSCALE : JCS_RGB;
            jpeg_start_decompress(&info_);
            while (info_.output_scanline < info_.output_height) {
                JSAMPROW row = image.pixels.data() + info_.output_scanline * row_bytes;
                jpeg_read_scanlines(&info_, &row, 1);
            }
        });
        if (!complete) refuse_image(file_.name, offset(), refusal());
    }

private:
    int orientation() const {
        for (const jpeg_marker_struct* marker = info_.marker_list; marker != nullptr; marker = marker->next)
            if (const int found = orientation_in({marker->data, marker->data_length}); found != 1) return found;
        return 1;
    }
    std::string refusal() const { return std::string("the JPEG cannot be read: ") + calls_.message(); }
    /// Offset that the library has reached.
    std::uint64_t offset() const {
        const bool inside = info_.src != nullptr && info_.src->bytes_in_buffer <= file_.bytes.size();
        return inside ? file_.bytes.size() - info_.src->bytes_in_buffer : 0;
    }

    const ImageBytes& file_;
    LibraryCalls calls_;
    jpeg_error_mgr errors_{};
    ScanLimit limit_;
    jpeg_decompress_struct info_{};
};

class JpegWriter {
public:
    JpegWriter() {
        set_jpeg_errors(errors_);
        info_.err = &errors_;
        info_.client_data = &calls_;
        to_.writer = this;
        to_.manager.init_destination = [](j_compress_ptr info) { writer_of(info).offer_buffer(); };
        to_.manager.empty_output_buffer = [](j_compress_ptr info) -> boolean {
            writer_of(info).take(writer_of(info).room_.size());
            writer_of(info).offer_buffer();
            return TRUE;
        };
        to_.manager.term_destination = [](j_compress_ptr info) {
            writer_of(info).take(writer_of(info).room_.size() - info->dest->free_in_buffer);
        };
    }
    ~JpegWriter() { jpeg_destroy_compress(&info_); }
    JpegWriter(const JpegWriter&) = delete;
    JpegWriter& operator=(const JpegWriter&) = delete;

    bool write(const HostImage& image, int quality) {
        return calls_.succeeds([&] {
            jpeg_create_compress(&info_);
            info_.dest = &to_.manager;
            info_.image_width = static_cast<JDIMENSION>(image.width);
            info_.image_height = static_cast<JDIMENSION>(image.height);
            info_.input_components = image.channels();
            info_.in_color_space = image.mode == ImageMode::grey ? JCS_GRAYSCALE : JCS_RGB;
            jpeg_set_defaults(&info_);
            jpeg_set_quality(&info_, quality, TRUE);
            jpeg_start_compress(&info_, TRUE);
            const auto row_bytes = static_cast<std::size_t>(image.width) * static_cast<std::size_t>(image.channels());
            while (info_.next_scanline < info_.image_height) {
                JSAMPROW row = const_cast<JSAMPROW>(image.pixels.data() + info_.next_scanline * row_bytes);
                jpeg_write_scanlines(&info_, &row, 1);
            }
            jpeg_finish_compress(&info_);
        });
    }
    const char* message() const { return calls_.message(); }
    std::vector<std::byte> take_bytes() { return std::move(bytes_); }

private:
    struct Destination {
        jpeg_destination_mgr manager{};  // first, because the library only knows this part
        JpegWriter* writer = nullptr;
    };
    static JpegWriter& writer_of(j_compress_ptr info) { return *reinterpret_cast<Destination*>(info->dest)->writer; }
    void offer_buffer() {
        to_.manager.next_output_byte = room_.data();
        to_.manager.free_in_buffer = room_.size();
    }
    void take(std::size_t count) {
        bool taken = true;
        try {
            const auto* first = reinterpret_cast<const std::byte*>(room_.data());
            bytes_.insert(bytes_.end(), first, first + count);
        } catch (const std::bad_alloc&) {
            taken = false;
        }
        if (!taken) calls_.fail("out of memory");
    }

    LibraryCalls calls_;
    jpeg_error_mgr errors_{};
    jpeg_compress_struct info_{};
    Destination to_;
    std::array<unsigned char, 1 << 14> room_;
    std::vector<std::byte> bytes_;
};

ImageHeader read_jpeg_header(const ImageBytes& file) { return JpegReader(file).header(); }

HostImage read_jpeg(const ImageBytes& file) {
    JpegReader reader(file);
    HostImage image = image_of(reader.header());
    reader.read_pixels(image);
    return image;
}

std::vector<std::byte> jpeg_bytes(const std::string& name, const HostImage& image, int quality) {
    JpegWriter writer;
    if (!writer.write(image, quality)) fail_to_write(name, "JPEG", writer.message());
    return writer.take_bytes();
}

}  // namespace

ImageCodec jpeg_codec() { return {read_jpeg_header, read_jpeg, jpeg_bytes}; }

}  // namespace lockstep::internal
