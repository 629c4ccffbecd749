// Image formats: those in a build, and the errors for missing ones.
#include <string>

#include "lockstep/parallel/data/image_file.h"
#include "lockstep/parallel/event_log.h"
#include "lockstep/runtime/error.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/files.h"
#include "lockstep/tests/fixtures/messages.h"

using namespace lockstep;
using namespace lockstep::test;

namespace {

void write(const std::string& format, const std::filesystem::path& path) {
    const HostImage image{2, 3, ImageMode::grey, {0, 50, 100, 150, 200, 250}, {}};
    if (format == "JPEG") return write_jpeg(path, image);
    if (format == "PNG") return write_png(path, image);
    REQUIRE(format == "GIF");
    write_gif(path, image);
}

std::string beginning_of(const std::string& format) {
    return format == "JPEG" ? "\xff\xd8\xff" : format == "PNG" ? "\x89PNG\r\n\x1a\n" : "GIF89a";
}

}  // namespace

TEST_CASE("a format is read and written, or is an error that names its library") {
    const TemporaryDirectory place;
    const auto path = place / "image";
    REQUIRE(image_formats().size() == 3);
    for (const ImageFormat& format : image_formats()) {
        CAPTURE(format.name);
        if (format.built_in) {
            write(format.name, path);
            CHECK(read_image_header(path).width == 3);
            CHECK(read_image(path).pixels.size() == 6);
            continue;
        }
        const std::string expected = ", which was not built in; " + format.build_hint;
        CHECK_THAT(message_of<InvalidArgument>([&] { write(format.name, path); }),
                   contains("write_") && contains(expected));
        put_bytes(path, beginning_of(format.name) + "and so on");
        CHECK_THAT(message_of<InvalidArgument>([&] { read_image(path); }),
                   contains("read_image: " + path.string()) && contains(expected));
        CHECK_THAT(message_of<InvalidArgument>([&] { read_image_header(path); }), contains(expected));
    }
}

TEST_CASE("images in a log need PNG") {
    const TemporaryDirectory place;
    EventLog log(place.path());
    if (image_formats()[1].built_in) return log.image("picture", Tensor::zeros({2, 2}, DType::u8), 0);
    const std::string expected = "PNG images need libpng, which was not built in; install libpng-dev";
    CHECK_THAT(message_of<InvalidArgument>([&] {
                   log.image("picture", Tensor::zeros({2, 2}, DType::u8), 0);
               }),
               contains("EventLog::image: " + expected));
    CHECK_THAT(message_of<InvalidArgument>([&] {
                   log.mask("mask", Tensor::zeros({2, 2}, DType::u8), 0);
               }),
               contains("EventLog::mask: " + expected));
}
