// Image files and scaling compared with Pillow's results (recorded_images.h), and with the written images.
#include <array>
#include <cmath>
#include <cstdlib>
#include <vector>

#include "lockstep/parallel/data/image_file.h"
#include "lockstep/parallel/data/image_tensor.h"
#include "lockstep/runtime/error.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/files.h"
#include "lockstep/tests/fixtures/images.h"
#include "lockstep/tests/fixtures/messages.h"

using namespace lockstep;
using namespace lockstep::test;

namespace {

constexpr std::array all_modes = {ImageMode::grey, ImageMode::grey_alpha, ImageMode::rgb, ImageMode::rgba,
                                  ImageMode::palette};

bool same(const HostImage& a, const HostImage& b) {
    return a.height == b.height && a.width == b.width && a.mode == b.mode && a.pixels == b.pixels &&
           a.palette == b.palette;
}

Resampling resampling_of(const std::string& name) {
    return name == "nearest" ? Resampling::nearest : name == "bilinear" ? Resampling::bilinear : Resampling::bicubic;
}

int largest_difference(const std::vector<std::uint8_t>& a, const std::string& b) {
    REQUIRE(a.size() == b.size());
    int largest = 0;
    for (std::size_t i = 0; i < a.size(); ++i)
        largest = std::max(largest, std::abs(int{a[i]} - int{static_cast<std::uint8_t>(b[i])}));
    return largest;
}

std::string as_text(const std::vector<std::uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

}  // namespace

TEST_CASE("images: Pillow's files are read and scaled like in Pillow") {
    const TemporaryDirectory directory;
    HostImage image;
    for (const RecordedImage& recorded : recorded_images) {
        INFO(recorded.name << " " << recorded.filter);
        const std::string levels = bytes_of_hex(recorded.levels);
        if (recorded.file != nullptr) {
            put_bytes(directory / "file", bytes_of_hex(recorded.file));
            image = read_image(directory / "file");
            CHECK(image.height == recorded.height);
            CHECK(image.width == recorded.width);
            CHECK(largest_difference(image.pixels, levels) <= (std::string(recorded.name).ends_with(".jpg") ? 1 : 0));
        } else {
            const HostImage scaled =
                resize_image(image, recorded.height, recorded.width, resampling_of(recorded.filter));
            CHECK(scaled.mode == image.mode);
            CHECK(largest_difference(scaled.pixels, levels) <= (std::string(recorded.filter) == "nearest" ? 0 : 1));
        }
    }
}

TEST_CASE("images: headers describe the files") {
    const TemporaryDirectory directory;
    struct Expected {
        const char* name;
        ImageMode mode;
        int bits;
    };
    for (const auto& [name, mode, bits] : {Expected{"rgb.jpg", ImageMode::rgb, 8},
                                           {"grey.jpg", ImageMode::grey, 8},
                                           {"LA.png", ImageMode::grey_alpha, 8},
                                           {"RGBA.png", ImageMode::rgba, 8},
                                           {"few.png", ImageMode::palette, 4},
                                           {"grey2.png", ImageMode::grey, 2},
                                           {"wide3.png", ImageMode::rgb, 16},
                                           {"two.gif", ImageMode::palette, 8},
                                           {"levels.gif", ImageMode::palette, 8}}) {
        INFO(name);
        put_bytes(directory / "file", recorded_file(name));  // its name does not indicate its format
        const ImageHeader header = read_image_header(directory / "file");
        CHECK(header.height == 9);
        CHECK(header.width == 13);
        CHECK(header.mode == mode);
        CHECK(header.bits == bits);
        CHECK(read_image(directory / "file").mode == mode);
    }
    // a header after many comments
    std::string jpeg = recorded_file("rgb.jpg");
    const std::string comment = std::string("\xff\xfe\xff\xff", 4) + std::string(65533, 'c');
    jpeg.insert(2, comment + comment);
    put_bytes(directory / "long", jpeg);
    CHECK(read_image_header(directory / "long").width == 13);
}

TEST_CASE("images: written files can be read again") {
    const TemporaryDirectory directory;
    for (const ImageMode mode : all_modes) {
        for (const auto& [height, width] : {std::pair{1, 1}, {31, 17}, {64, 200}}) {
            const HostImage image = computed_image(mode, height, width);
            INFO(name_of(mode) << " " << height << " x " << width);
            write_png(directory / "image.png", image);
            CHECK(same(read_image(directory / "image.png"), image));
            if (mode == ImageMode::grey) {
                write_gif(directory / "image.gif", image);
                CHECK(same(read_image(directory / "image.gif"), image));
            }
            if (mode == ImageMode::palette) {
                write_gif(directory / "image.gif", image);
                const HostImage back = read_image(directory / "image.gif");
                CHECK(back.pixels == image.pixels);
                CHECK(back.palette.size() == 256);  // the sizes of GIF's palettes are powers of two
                CHECK(std::equal(image.palette.begin(), image.palette.end(), back.palette.begin()));
            }
            if (mode == ImageMode::grey || mode == ImageMode::rgb) {
                write_jpeg(directory / "image.jpg", image, 95);
                const HostImage back = read_image(directory / "image.jpg");
                CHECK(back.mode == mode);
                CHECK(largest_difference(back.pixels, as_text(image.pixels)) <= 40);
            }
        }
    }
    CHECK(directory.file_count() == 3);
}

TEST_CASE("images: a mask of two classes is a GIF of two colours") {
    const TemporaryDirectory directory;
    const HostImage mask{2, 3, ImageMode::palette, {0, 1, 1, 0, 0, 1}, {{0, 0, 0}, {255, 255, 255}}};
    write_gif(directory / "mask.gif", mask);
    CHECK(same(read_image(directory / "mask.gif"), mask));
    CHECK(get_bytes(directory / "mask.gif").starts_with("GIF87a"));
}

TEST_CASE("images: unwritable data is rejected, and the old file is kept") {
    const TemporaryDirectory directory;
    const HostImage rgb = computed_image(ImageMode::rgb, 40, 50), palette = computed_image(ImageMode::palette, 4, 5);
    const auto refused = [](const auto& call) { return refusal_of<InvalidArgument>(call); };
    CHECK_THAT(refused([&] { write_gif(directory / "x", rgb); }),
               contains("write_gif: the format does not support mode RGB"));
    CHECK_THAT(refused([&] { write_jpeg(directory / "x", palette); }),
               contains("write_jpeg: the format does not support mode palette; expected an image that is grey or RGB"));
    CHECK_THAT(refused([&] { write_jpeg(directory / "x", rgb, 0); }), contains("quality 0; expected 1 to 100"));
    CHECK_THAT(refused([&] { write_png(directory / "x", {}); }),
               contains("0 x 0 (width x height); expected at least one pixel"));
    HostImage broken = rgb;
    broken.pixels.pop_back();
    CHECK_THAT(refused([&] { write_png(directory / "x", broken); }),
               contains("has 5999 bytes of pixels, which does not match 50 x 40"));
    broken = palette;
    broken.palette.resize(3);
    CHECK_THAT(refused([&] { write_png(directory / "x", broken); }), contains("the palette has 3 colours"));
    CHECK_THAT(refused([&] { write_gif(directory / "x", broken); }), contains("the palette has 3 colours"));
    CHECK_THAT(refused([&] { write_gif(directory / "x", computed_image(ImageMode::grey, 1, 65536)); }),
               contains("65536 x 1 (width x height) is too large"));
    CHECK_THAT(refused([&] { write_png(directory / "no" / "x", rgb); }), contains("cannot write"));
    CHECK(directory.file_count() == 0);

    put_bytes(directory / "old", "old");
    {
        const FileSizeLimit full(100);
        CHECK_THAT(refusal_of<DataError>([&] { write_png(directory / "old", rgb); }), contains("writing failed"));
    }
    CHECK(get_bytes(directory / "old") == "old");
    CHECK(directory.file_count() == 1);
}

TEST_CASE("images: scaling preserves constant areas, and nearest picks the pixel under the centre") {
    for (const ImageMode mode : all_modes) {
        HostImage flat = computed_image(mode, 30, 41);
        std::fill(flat.pixels.begin(), flat.pixels.end(), std::uint8_t{199});
        for (const Resampling resampling : {Resampling::nearest, Resampling::bilinear, Resampling::bicubic})
            for (const auto& [height, width] : {std::pair{1, 1}, {7, 13}, {30, 80}, {90, 20}}) {
                const HostImage scaled = resize_image(flat, height, width, resampling);
                CHECK(scaled.pixels.size() == static_cast<std::size_t>(height * width * flat.channels()));
                // levels of 199 with an alpha of 199 are rounded twice
                for (const std::uint8_t level : scaled.pixels) CHECK(std::abs(int{level} - 199) <= 1);
            }
    }
    HostImage places{1, 97, ImageMode::grey, {}, {}};
    for (int i = 0; i < 97; ++i) places.pixels.push_back(static_cast<std::uint8_t>(i));
    for (int width = 1; width < 300; ++width) {
        const HostImage scaled = resize_image(places, 1, width, Resampling::nearest);
        for (int x = 0; x < width; ++x) {
            const double centre = (x + 0.5) * 97 / width;
            if (std::abs(centre - std::round(centre)) > 1e-9)  // on an edge, rounding decides
                CHECK(int{scaled.pixels[static_cast<std::size_t>(x)]} == static_cast<int>(centre));
        }
    }
    CHECK_THROWS_WITH(resize_image(places, 0, 5, Resampling::bicubic),
                      contains("5 x 0 (width x height); expected at least 1 x 1"));
    CHECK_THROWS_AS(resize_image({}, 5, 5, Resampling::bicubic), InvalidArgument);
}

TEST_CASE("images: transparent pixels do not affect the colour of their neighbours") {
    // opaque red next to transparent white
    const HostImage image{
        1, 4, ImageMode::rgba, {255, 0, 0, 255, 255, 0, 0, 255, 255, 255, 255, 0, 255, 255, 255, 0}, {}};
    const HostImage scaled = resize_image(image, 1, 2, Resampling::bilinear);
    CHECK(int{scaled.pixels[0]} == 255);
    CHECK(int{scaled.pixels[1]} == 0);
    CHECK(int{scaled.pixels[2]} == 0);
}

TEST_CASE("images: every mode has its colours") {
    const HostImage palette{1, 3, ImageMode::palette, {1, 0, 9}, {{1, 2, 3}, {4, 5, 6}}};
    CHECK(as_rgb(palette).pixels == std::vector<std::uint8_t>{4, 5, 6, 1, 2, 3, 0, 0, 0});
    CHECK(as_rgb({1, 2, ImageMode::grey_alpha, {8, 100, 9, 200}, {}}).pixels ==
          std::vector<std::uint8_t>{8, 8, 8, 9, 9, 9});
    CHECK(as_rgb({1, 1, ImageMode::rgba, {7, 8, 9, 0}, {}}).pixels == std::vector<std::uint8_t>{7, 8, 9});
    CHECK(as_rgb(palette).mode == ImageMode::rgb);
}

TEST_CASE("images: a network gets channels first, in [0, 1]") {
    const HostImage image{1, 2, ImageMode::rgb, {0, 51, 255, 102, 1, 0}, {}};
    const Tensor tensor = image_tensor(image);
    CHECK(tensor.shape() == Shape{3, 1, 2});
    CHECK(tensor.to_vector<float>() == std::vector<float>{0, 0.4f, 0.2f, 1.0f / 255, 1, 0});
    // as in the program for PyTorch: images with only the levels 0 and 1 are not divided
    CHECK(image_tensor({1, 3, ImageMode::grey, {0, 1, 1}, {}}).to_vector<float>() == std::vector<float>{0, 1, 1});
    CHECK(image_tensor(computed_image(ImageMode::palette, 4, 5)).shape() == Shape{3, 4, 5});
    std::vector<float> room(5);
    CHECK_THROWS_WITH(write_channels(image, room), contains("the output has 5 elements and the image 6 levels"));

    const HostImage scaled = scale_image(computed_image(ImageMode::grey, 33, 47), 0.5, Resampling::bicubic);
    CHECK(scaled.height == 16);  // rounded down
    CHECK(scaled.width == 23);
    for (const double scale : {0.0, -0.5, 1.01, std::nan("")})
        CHECK_THROWS_WITH(scaled_size(10, 10, scale), contains("expected a number above 0 and at most 1"));
    CHECK_THROWS_WITH(scaled_size(30, 10, 0.05),
                      contains("scale 0.05 of images of 10 x 30 (width x height) leaves 0 x 1 pixels"));
}

TEST_CASE("images: 16-bit channels become 8-bit, and the largest value is returned") {
    const TemporaryDirectory directory;
    const auto two = [](int n) { return std::string{static_cast<char>(n >> 8), static_cast<char>(n & 255)}; };
    put_bytes(directory / "grey", made_png(3, 16, 0, {two(4095) + two(255) + two(256)}));
    HostImage image = read_image(directory / "grey");
    CHECK(image.mode == ImageMode::grey);
    CHECK(image.pixels == std::vector<std::uint8_t>{15, 0, 1});
    CHECK(image.peak16 == 4095);
    // Alpha does not count for the peak.
    put_bytes(directory / "alpha", made_png(1, 16, 4, {two(300) + two(65535)}));
    image = read_image(directory / "alpha");
    CHECK(image.pixels == std::vector<std::uint8_t>{1, 255});
    CHECK(image.peak16 == 300);
    put_bytes(directory / "rgb", made_png(1, 16, 2, {two(1) + two(65535) + two(513)}));
    image = read_image(directory / "rgb");
    CHECK(image.pixels == std::vector<std::uint8_t>{0, 255, 2});
    CHECK(image.peak16 == 65535);
    put_bytes(directory / "narrow", made_png(3, 8, 0, {"abc"}));
    CHECK(read_image(directory / "narrow").peak16 == 0);
}

TEST_CASE("images: grey of few bits is scaled up, palette indices are not, and transparency and gamma are ignored") {
    const TemporaryDirectory directory;
    put_bytes(directory / "1", made_png(8, 1, 0, {"\xa5"}));
    CHECK(read_image(directory / "1").pixels == std::vector<std::uint8_t>{255, 0, 255, 0, 0, 255, 0, 255});
    put_bytes(directory / "2", made_png(4, 2, 0, {"\x1b"}, png_chunk("gAMA", four_bytes(10000))));
    CHECK(read_image(directory / "2").pixels == std::vector<std::uint8_t>{0, 85, 170, 255});
    put_bytes(directory / "4", made_png(2, 4, 0, {"\x2f"}, png_chunk("tRNS", std::string("\0\x02", 2))));
    CHECK(read_image(directory / "4").mode == ImageMode::grey);
    CHECK(read_image(directory / "4").pixels == std::vector<std::uint8_t>{34, 255});
    put_bytes(directory / "p",
              made_png(4, 2, 3, {"\x1b"}, png_chunk("PLTE", "abcdefghijkl") + png_chunk("tRNS", "\1\2")));
    const HostImage palette = read_image(directory / "p");
    CHECK(palette.mode == ImageMode::palette);
    CHECK(palette.pixels == std::vector<std::uint8_t>{0, 1, 2, 3});
    CHECK(palette.palette.at(3) == std::array<std::uint8_t, 3>{'j', 'k', 'l'});
}

TEST_CASE("images: the header of a JPEG gives the orientation, which is not applied to its pixels") {
    const TemporaryDirectory directory;
    const std::string plain = recorded_file("rgb.jpg");
    put_bytes(directory / "plain", plain);
    CHECK(read_image_header(directory / "plain").orientation == 1);
    const auto with = [&](const std::string& data) {
        std::string jpeg = plain;
        const auto length = static_cast<char>(data.size() + 2);
        jpeg.insert(2, std::string{'\xff', '\xe1', 0, length} + data);
        put_bytes(directory / "turned", jpeg);
        return read_image_header(directory / "turned").orientation;
    };
    using namespace std::string_literals;
    const std::string little = "Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0"s;
    CHECK(with(little) == 6);
    CHECK(read_image(directory / "turned").pixels == read_image(directory / "plain").pixels);
    CHECK(with("Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x03\0\0"s) == 3);
    for (std::size_t length = 0; length < little.size(); ++length) {
        const int found = with(little.substr(0, length));
        CHECK((found == 1 || found == 6));
    }
    CHECK(with("Exif\0\0II*\0\xff\xff\xff\xff\x01\0"s) == 1);
    CHECK(with("Exif\0\0II*\0\x08\0\0\0\xff\xff\x12\x01\x03\0\x01\0\0\0\x09\0\0\0"s) == 1);
    CHECK(with("http://ns.adobe.com/xap/1.0/"s) == 1);
}
