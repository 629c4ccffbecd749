// The drawn shapes: the same on every machine, different from each other, and a folder for training.
#include "lockstep/samples/data/shapes.h"

#include <cmath>
#include <set>
#include <vector>

#include "lockstep/parallel/data/image_file.h"
#include "lockstep/parallel/data/segmentation_folder.h"
#include "lockstep/runtime/error.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/files.h"
#include "lockstep/tests/fixtures/messages.h"

using namespace lockstep;
using namespace lockstep::test;
using namespace samples;

namespace {

/// FNV-1a, 64 bits.
std::uint64_t hash_of(std::uint64_t hash, const std::vector<std::uint8_t>& levels) {
    for (const std::uint8_t level : levels) hash = (hash ^ level) * 0x100000001b3u;
    return hash;
}

std::vector<std::string> files_of(const std::filesystem::path& folder) {
    std::set<std::filesystem::path> paths;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder))
        if (entry.is_regular_file()) paths.insert(entry.path());
    std::vector<std::string> contents;
    for (const auto& path : paths) {
        contents.push_back(path.filename());
        contents.push_back(get_bytes(path));
    }
    return contents;
}

}  // namespace

TEST_CASE("shapes: seed, index and size determine every drawing") {
    std::set<std::vector<std::uint8_t>> images, masks;
    for (std::uint64_t seed = 0; seed < 2; ++seed)
        for (std::uint64_t index = 0; index < 15; ++index) {
            const ShapeDrawing drawing = draw_shape(seed, index, 60, 40);
            CHECK(drawing.image.pixels == draw_shape(seed, index, 60, 40).image.pixels);
            images.insert(drawing.image.pixels);
            masks.insert(drawing.mask.pixels);
        }
    CHECK(images.size() == 30);
    CHECK(masks.size() == 30);
}

// The number was taken from the first machine; the test checks that all other machines and compilers agree with it.
TEST_CASE("shapes: the pixels are the same on every machine") {
    std::uint64_t hash = 0xcbf29ce484222325u;
    for (std::uint64_t index = 0; index < 20; ++index) {
        const ShapeDrawing drawing = draw_shape(7, index, 120, 80);
        hash = hash_of(hash_of(hash, drawing.image.pixels), drawing.mask.pixels);
    }
    CHECK(hash == 0x6874511d6f002efcu);
}

TEST_CASE("shapes: a vehicle is inside the image, and no brightness threshold finds it") {
    double found_by_threshold = 0;
    for (std::uint64_t index = 0; index < 60; ++index) {
        const ShapeDrawing drawing = draw_shape(1, index, 120, 80);
        std::size_t vehicle = 0, at_rim = 0;
        std::array<std::size_t, 256> vehicle_levels{}, other_levels{};
        for (std::size_t i = 0; i < drawing.mask.pixels.size(); ++i) {
            const std::size_t x = i % 120, y = i / 120, level = drawing.image.pixels[3 * i + 1];
            REQUIRE(drawing.mask.pixels[i] <= 1);
            const bool is_vehicle = drawing.mask.pixels[i] == 1;
            vehicle += is_vehicle;
            at_rim += is_vehicle && (x == 0 || y == 0 || x == 119 || y == 79);
            ++(is_vehicle ? vehicle_levels : other_levels)[level];
        }
        INFO("index " << index);
        CHECK(vehicle > 120 * 80 / 25);
        CHECK(vehicle < 120 * 80 / 2);
        CHECK(at_rim == 0);
        // the best dice of "brighter than" and "darker than" any level
        double best = 0;
        std::size_t vehicle_below = 0, other_below = 0;
        for (std::size_t level = 0; level < 256; ++level) {
            vehicle_below += vehicle_levels[level];
            other_below += other_levels[level];
            const std::size_t others = drawing.mask.pixels.size() - vehicle;
            const auto dice = [&](std::size_t hits, std::size_t misses) {
                return 2.0 * static_cast<double>(hits) / static_cast<double>(hits + misses + vehicle);
            };
            best =
                std::max({best, dice(vehicle_below, other_below), dice(vehicle - vehicle_below, others - other_below)});
        }
        found_by_threshold += best / 60;
    }
    CHECK(found_by_threshold < 0.8);
}

TEST_CASE("shapes: a set is a folder of images and one of masks, the same in every run") {
    const TemporaryDirectory directory;
    const ShapesOptions options{.count = 12, .width = 96, .height = 64, .seed = 5};
    write_shapes(directory / "new" / "a", options);
    write_shapes(directory / "b", options);
    write_shapes(directory / "b", options);  // over itself
    CHECK(files_of(directory / "new" / "a") == files_of(directory / "b"));
    const SegmentationFolder data(directory / "b" / "imgs", directory / "b" / "masks", {.scale = 0.5});
    REQUIRE(data.size() == 12);
    CHECK(data.classes() == 2);
    CHECK(data.mask_values() == std::vector<MaskValue>{{0}, {1}});
    CHECK(data.image_file(3).filename() == "shape_00003.jpg");
    CHECK(data.mask_file(3).filename() == "shape_00003_mask.gif");
    CHECK(std::get<0>(data.get(3)).shape() == Shape{3, 32, 48});

    const ShapeDrawing drawing = draw_shape(5, 3, 96, 64);
    CHECK(read_image(data.mask_file(3)).pixels == drawing.mask.pixels);
    const HostImage image = read_image(data.image_file(3));
    double difference = 0;
    for (std::size_t i = 0; i < image.pixels.size(); ++i)
        difference += std::abs(int{image.pixels[i]} - int{drawing.image.pixels[i]});
    CHECK(difference / static_cast<double>(image.pixels.size()) < 6);  // JPEG loses little
}

TEST_CASE("shapes: bad arguments are rejected, and other files are unchanged") {
    const TemporaryDirectory directory;
    CHECK_THROWS_AS(draw_shape(1, 1, 31, 100), InvalidArgument);
    CHECK_THROWS_AS(draw_shape(1, 1, 100, 4097), InvalidArgument);
    CHECK_THROWS_AS(write_shapes(directory / "x", {.count = 0}), InvalidArgument);
    CHECK_THROWS_AS(write_shapes(directory / "x", {.count = 100'001}), InvalidArgument);
    CHECK_THROWS_AS(write_shapes(directory / "x", {.count = 1, .width = 5}), InvalidArgument);
    CHECK(directory.file_count() == 0);
    put_bytes(directory / "file", "");
    CHECK_THROWS_WITH(write_shapes(directory / "file", {.count = 1}), contains("cannot create the directory"));

    const ShapesOptions two{.count = 2, .width = 32, .height = 32};
    write_shapes(directory / "set", two);
    CHECK_THROWS_WITH(write_shapes(directory / "set", {.count = 1, .width = 32, .height = 32}),
                      contains("imgs holds another file, shape_00001.jpg"));
    put_bytes(directory / "set" / "masks" / "mine.gif", "");
    CHECK_THROWS_WITH(write_shapes(directory / "set", two), contains("masks holds another file, mine.gif"));
}
