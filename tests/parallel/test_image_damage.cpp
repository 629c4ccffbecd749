// Files that are not images, declare wrong sizes, end too early or are damaged: refused, with the file's name, and
// without other effects.
#include <stdexcept>
#include <utility>

#include "lockstep/parallel/data/image_file.h"
#include "lockstep/runtime/error.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/environment.h"
#include "lockstep/tests/fixtures/files.h"
#include "lockstep/tests/fixtures/images.h"
#include "lockstep/tests/fixtures/messages.h"
#include "lockstep/tests/fixtures/processes.h"

using namespace lockstep;
using namespace lockstep::test;

namespace {

std::string two_bytes(int number) { return {static_cast<char>(number >> 8), static_cast<char>(number & 255)}; }

/// All chunks with checksums of their current content, as far as the chunks are consistent.
std::string with_right_checksums(std::string png) {
    for (std::size_t at = 8; at + 12 <= png.size();) {
        std::size_t length = 0;
        for (std::size_t i = 0; i < 4; ++i) length = length << 8 | static_cast<std::uint8_t>(png[at + i]);
        if (length > png.size() - at - 12) break;
        const std::uint32_t sum = png_checksum(std::string_view(png).substr(at + 4, length + 4));
        for (std::size_t i = 0; i < 4; ++i) png[at + 8 + length + i] = static_cast<char>(sum >> (24 - 8 * i));
        at += length + 12;
    }
    return png;
}

/// With other sizes in the header: PNG, JPEG and GIF.
std::string png_claiming(std::string png, int width, int height) {
    return with_right_checksums(
        png.replace(16, 8, std::string(2, '\0') + two_bytes(width) + std::string(2, '\0') + two_bytes(height)));
}

std::string jpeg_claiming(std::string jpeg, int width, int height) {
    std::size_t frame = jpeg.find("\xff\xc0");
    if (frame == std::string::npos) frame = jpeg.find("\xff\xc2");
    REQUIRE(frame != std::string::npos);
    return jpeg.replace(frame + 5, 4, two_bytes(height) + two_bytes(width));
}

std::string gif_claiming(std::string gif, int width, int height) {
    const auto reversed = [](int number) { return std::string{two_bytes(number)[1], two_bytes(number)[0]}; };
    const std::string size = reversed(13) + reversed(9), claim = reversed(width) + reversed(height);
    for (std::size_t at = gif.find(size); at != std::string::npos; at = gif.find(size)) gif.replace(at, 4, claim);
    return gif;
}

std::string refusal_of_file(const std::string& bytes) {
    const TemporaryDirectory directory;
    put_bytes(directory / "file", bytes);
    const std::string message = refusal_of<DataError>([&] { read_image(directory / "file"); });
    CHECK_THAT(message, contains("/file: offset "));
    return message;
}

constexpr const char* some_files[] = {"rgb.jpg",     "grey.jpg",  "progressive.jpg", "RGB.png",   "few.png",
                                      "index4i.png", "wide3.png", "two.gif",         "levels.gif"};

}  // namespace

TEST_CASE("damaged images: a file that is not an image is rejected with its name") {
    const TemporaryDirectory directory;
    CHECK_THAT(refusal_of_file(""), contains("offset 0: the file is empty, expected a JPEG, PNG or GIF image"));
    CHECK_THAT(refusal_of_file("text"), contains("this is text that begins with 'text', expected a JPEG, PNG"));
    CHECK_THAT(refusal_of_file("\1\2\3\4"), contains("this is not a JPEG, PNG or GIF file"));
    CHECK_THAT(refusal_of_file("BM not this one either"),
               contains("this is a BMP image, expected a JPEG, PNG or GIF image"));
    CHECK_THAT(refusal_of<DataError>([&] { read_image(directory / "missing.png"); }), contains("missing.png: cannot"));
    CHECK_THAT(refusal_of<DataError>([&] { read_image(directory.path()); }), contains("is not a regular file"));
    CHECK_THAT(refusal_of<DataError>([&] { read_image_header(directory / "missing.png"); }), contains("cannot"));

    // four components, only a header
    const std::string cmyk = bytes_of_hex(
        "ffd8ffc0001408000800080401110002110003110004110"
        "0ffda000e0401000200030004000"
        "03f00");
    CHECK_THAT(refusal_of_file(cmyk), contains("its colours are CMYK; expected grey or RGB"));
    std::string empty_gif = recorded_file("two.gif").substr(0, 13) + ";";
    empty_gif[10] = 0;  // no palette
    CHECK_THAT(refusal_of_file(empty_gif), contains("it has no frame"));
}

TEST_CASE("damaged images: the size claimed by a header allocates no memory") {
    const TemporaryDirectory directory;
    const std::string liars[] = {png_claiming(recorded_file("RGB.png"), 65535, 65535),
                                 jpeg_claiming(recorded_file("rgb.jpg"), 65500, 65500),
                                 jpeg_claiming(recorded_file("progressive.jpg"), 65500, 65500),
                                 gif_claiming(recorded_file("two.gif"), 65535, 65535)};
    for (const std::string& liar : liars)
        CHECK_THAT(refusal_of_file(liar), contains("pixels (width x height); expected at most 178956970"));
    // libjpeg's own limit
    CHECK_THAT(refusal_of_file(jpeg_claiming(recorded_file("rgb.jpg"), 65535, 65535)), contains("dimension is 65500"));
    const std::string small_liars[] = {png_claiming(recorded_file("RGB.png"), 10000, 17000),
                                       jpeg_claiming(recorded_file("rgb.jpg"), 10000, 17000),
                                       jpeg_claiming(recorded_file("progressive.jpg"), 10000, 17000),
                                       gif_claiming(recorded_file("two.gif"), 10000, 17000)};
    const long nothing = megabytes_for([] {});
    for (const std::string& liar : small_liars) {
        CHECK_THAT(refusal_of_file(liar),
                   contains("it declares 10000 x 17000 pixels (width x height), more than a file of"));
        put_bytes(directory / "file", liar);
        CHECK(megabytes_for([&] {
                  try {
                      read_image(directory / "file");
                  } catch (const DataError&) {
                      return;
                  }
                  throw std::runtime_error("was accepted");
              }) < nothing + 100);
    }
    CHECK_THAT(refusal_of_file(gif_claiming(recorded_file("two.gif"), 0, 5)), contains("no pixels"));
}

TEST_CASE("damaged images: a file truncated anywhere is rejected") {
    for (const char* name : some_files) {
        const std::string whole = recorded_file(name);
        // Data after the last pixel may be missing: two bytes of JPEG, one of GIF.
        const std::size_t end = whole.size() - (whole.starts_with("\x89PNG") ? 0 : 2);
        const TemporaryDirectory directory;
        for (std::size_t length = 0; length < end; ++length) {
            INFO(name << ", " << length << " of " << whole.size());
            std::filesystem::remove(directory / "file");
            put_bytes(directory / "file", whole.substr(0, length));
            CHECK_THROWS_AS(read_image(directory / "file"), DataError);
        }
    }
    for (const char* name : {"rgb.jpg", "RGB.png", "levels.gif"}) {
        const std::string whole = recorded_file(name);
        CHECK_THAT(refusal_of_file(whole.substr(0, whole.size() - 20)), contains("the file ends too early"));
    }
}

TEST_CASE("damaged images: a file with thousands of scans is rejected") {
    std::string jpeg = recorded_file("progressive.jpg");
    const std::size_t last_scan = jpeg.rfind("\xff\xda");
    const std::string scan = jpeg.substr(last_scan, jpeg.size() - 2 - last_scan);
    for (int i = 0; i < 600; ++i) jpeg.insert(last_scan, scan);
    CHECK_THAT(refusal_of_file(jpeg), contains("it has more than 500 scans, too many for its size"));
}

TEST_CASE("damaged images: the product of scans and pixels is bounded") {
    // A file of `bytes` that declares this many pixels and has `scans` additional scans of a few bytes each.
    const auto attack = [](int width, int height, std::size_t bytes, int scans) {
        std::string jpeg = jpeg_claiming(recorded_file("progressive.jpg"), width, height);
        const std::size_t last_scan = jpeg.rfind("\xff\xda");
        const std::string scan = jpeg.substr(last_scan, jpeg.size() - 2 - last_scan);
        for (int i = 0; i < scans; ++i) jpeg.insert(last_scan, scan);
        const std::string comment = std::string("\xff\xfe\x40\x00", 4) + std::string(0x4000 - 2, 'c');
        while (jpeg.size() < bytes) jpeg.insert(2, comment);
        return jpeg;
    };
    CHECK_THAT(refusal_of_file(attack(6000, 5000, 75'000, 200)),
               contains("it has more than 35 scans, too many for its size"));
    // The memory in use is proportional to the file.
    for (const std::size_t bytes : {std::size_t{300'000}, std::size_t{1'100'000}})
        CHECK_THAT(refusal_of_file(attack(12'000, 12'000, bytes, 0)),
                   contains("it declares 12000 x 12000 pixels (width x height), more than a file of"));
    // Encoders write ten scans.
    const TemporaryDirectory directory;
    put_bytes(directory / "file", attack(13, 9, 0, 40));
    CHECK(read_image(directory / "file").pixels.size() == 13 * 9 * 3);
}

TEST_CASE("damaged images: compressed text in a PNG is not unpacked") {
    // Zeros by deflate with fixed codes: a literal, then repetitions of 258 bytes, 13 bits each.
    constexpr std::uint32_t repetitions = 30'000, zeros = 1 + 258 * repetitions;
    std::string packed;
    unsigned held = 0, count = 0;
    const auto put = [&](unsigned bits, unsigned length) {  // the first bit of a code is its highest
        for (unsigned i = length; i-- > 0;) {
            held |= (bits >> i & 1) << count++;
            if (count == 8) packed += static_cast<char>(std::exchange(held, 0)), count = 0;
        }
    };
    put(1, 1), put(0b10, 2), put(0b00110000, 8);
    for (std::uint32_t i = 0; i < repetitions; ++i) put(0b11000101, 8), put(0, 5);
    put(0, 7), put(0, 8);
    const std::string stream = "\x78\x01" + packed + four_bytes((zeros % 65521) << 16 | 1);
    std::string chunks;
    for (const char* type : {"zTXt", "iCCP"})
        for (int i = 0; i < 40; ++i)
            chunks += png_chunk(type, std::string("name") + std::to_string(i) + std::string(2, '\0') + stream);
    const TemporaryDirectory directory;
    put_bytes(directory / "file", made_png(2, 8, 0, {"ab", "cd"}, chunks));
    const long nothing = megabytes_for([] {});
    CHECK(megabytes_for([&] {
              if (read_image(directory / "file").pixels != std::vector<std::uint8_t>{'a', 'b', 'c', 'd'})
                  throw std::runtime_error("the pixels differ");
          }) < nothing + 60);
}

TEST_CASE("damaged images: other formats are named") {
    struct Other {
        std::string bytes;
        const char* name;
    };
    using namespace std::string_literals;
    for (const Other& other : {Other{"BM123456"s, "a BMP image"},
                               {"II*\0\x08\0\0\0"s, "a TIFF image"},
                               {"MM\0*\0\0\0\x08"s, "a TIFF image"},
                               {"RIFF\x10\0\0\0WEBPVP8 "s, "a WebP image"},
                               {"\0\0\0\x1c"
                                "ftypheic"s,
                                "an HEIC image"},
                               {"<!DOCTYPE html>"s, "an HTML page"},
                               {"version https://git-lfs.github.com/spec/v1"s, "a Git LFS pointer"},
                               {"\x1f\x8b\x08"s, "a gzip file"}})
        CHECK_THAT(refusal_of_file(other.bytes),
                   contains(std::string("offset 0: this is ") + other.name + ", expected a JPEG, PNG or GIF image"));
}

TEST_CASE("damaged images: a wrong checksum is detected") {
    std::string png = recorded_file("RGB.png");
    png[png.find("IDAT") + 20] ^= 1;
    CHECK_THAT(refusal_of_file(png), contains("the PNG cannot be read: "));
}

TEST_CASE("damaged images: a file with any changed bytes is read or rejected") {
    const TemporaryDirectory directory;
    const int trials = number_from("LOCKSTEP_IMAGE_TRIALS", 700);
    for (const char* name : some_files) {
        const std::string whole = recorded_file(name);
        int refused = 0, accepted = 0;
        for (int trial = 0; trial < trials; ++trial) {
            std::filesystem::remove(directory / "file");  // some file systems sync a truncated file that is rewritten
            std::string damaged = Vandal(static_cast<std::uint32_t>(trial)).damage(whole);
            if (damaged.starts_with("\x89PNG") && trial % 2 == 0) damaged = with_right_checksums(std::move(damaged));
            put_bytes(directory / "file", damaged);
            try {
                const HostImage image = read_image(directory / "file");
                REQUIRE(image.pixels.size() == static_cast<std::size_t>(image.height * image.width * image.channels()));
                ++accepted;
            } catch (const DataError&) {
                ++refused;
            }
        }
        INFO(name << ": " << refused << " refused, " << accepted << " read");
        CHECK(refused > trials / 4);
    }
}
