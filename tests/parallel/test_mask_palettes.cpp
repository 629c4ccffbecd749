// Classes of masks with palettes, and of pixels that are ignored.
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "lockstep/parallel/data/image_file.h"
#include "lockstep/parallel/data/segmentation_folder.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/files.h"
#include "lockstep/tests/fixtures/image_folders.h"
#include "lockstep/tests/fixtures/images.h"
#include "lockstep/tests/fixtures/messages.h"

using namespace lockstep;
using namespace lockstep::test;

namespace {

using Palette = std::vector<std::array<std::uint8_t, 3>>;
constexpr std::array<std::uint8_t, 3> black{0, 0, 0}, white{255, 255, 255}, red{255, 0, 0};

/// Images of 1 x 4 pixels whose masks are named a_mask, b_mask, ...
struct Masks : Folder {
    explicit Masks(const std::vector<HostImage>& all, bool gif = false) {
        char name = 'a';
        for (const HostImage& mask : all) {
            write_png(imgs / (std::string(1, name) + ".png"), computed_image(ImageMode::grey, 1, 4));
            const auto file = masks / (std::string(1, name++) + "_mask");
            gif ? write_gif(file, mask) : write_png(file, mask);
        }
    }
};
HostImage with_palette(const std::vector<std::uint8_t>& indices, const Palette& palette) {
    return {1, 4, ImageMode::palette, indices, palette};
}

using Classes = std::vector<std::vector<std::int64_t>>;

}  // namespace

TEST_CASE("segmentation folder: errors about different palettes name their colours") {
    for (const bool gif : {false, true}) {
        // Black and white swapped, as from encoders that sort colours by their first use.
        const Meaning found = meaning_of(
            Masks({with_palette({0, 1, 1, 0}, {black, white}), with_palette({0, 1, 1, 0}, {white, black})}, gif));
        CHECK(found.values == std::vector<MaskValue>{{0}, {255}});
        CHECK(found.classes == Classes{{0, 1, 1, 0}, {1, 0, 0, 1}});
        REQUIRE(found.warnings.size() == 1);
        CHECK_THAT(found.warnings[0],
                   contains("b_mask: palettes of the masks differ: index 0 is (255, 255, 255) in it and "
                            "(0, 0, 0) in ") &&
                       contains("a_mask; classes are identified by level of grey"));
    }
    // With colours, and an entry that no pixel uses.
    Meaning found = meaning_of(
        Masks({with_palette({0, 1, 1, 0}, {black, red, white}), with_palette({2, 1, 1, 0}, {red, white, black})}));
    CHECK(found.values == std::vector<MaskValue>{{0, 0, 0}, {255, 0, 0}, {255, 255, 255}});
    CHECK(found.classes == Classes{{0, 1, 1, 0}, {0, 2, 2, 1}});
    CHECK(found.warnings.size() == 1);
    // One colour with two indices, in two files.
    found = meaning_of(
        Masks({with_palette({0, 1, 1, 0}, {black, white}), with_palette({0, 2, 2, 0}, {black, red, white})}));
    CHECK(found.values == std::vector<MaskValue>{{0}, {255}});
    CHECK(found.classes == Classes{{0, 1, 1, 0}, {0, 1, 1, 0}});
    // Only used entries count.
    found = meaning_of(
        Masks({with_palette({0, 1, 1, 0}, {black, white, red}), with_palette({0, 0, 1, 0}, {black, white, black})}));
    CHECK(found.values == std::vector<MaskValue>{{0}, {1}});
    CHECK(found.warnings.empty());
}

TEST_CASE("segmentation folder: palettes mixed with grey and RGB masks") {
    const HostImage grey{1, 4, ImageMode::grey, {0, 255, 255, 0}, {}}, numbers{1, 4, ImageMode::grey, {0, 1, 1, 0}, {}},
        rgb{1, 4, ImageMode::rgb, {0, 0, 0, 255, 0, 0, 0, 0, 0, 0, 0, 0}, {}};
    const HostImage black_white = with_palette({1, 0, 0, 1}, {black, white}),
                    black_red = with_palette({1, 0, 0, 1}, {black, red});
    Meaning found = meaning_of(Masks({grey, black_white}));
    CHECK(found.values == std::vector<MaskValue>{{0}, {255}});
    CHECK(found.classes == Classes{{0, 1, 1, 0}, {1, 0, 0, 1}});
    // Numbers of classes, in palettes that contain them.
    for (const HostImage& palette : {black_white, black_red}) {
        found = meaning_of(Masks({numbers, palette}));
        CHECK(found.values == std::vector<MaskValue>{{0}, {1}});
        CHECK(found.classes == Classes{{0, 1, 1, 0}, {1, 0, 0, 1}});
    }
    found = meaning_of(Masks({rgb, black_red}));
    CHECK(found.values == std::vector<MaskValue>{{0, 0, 0}, {255, 0, 0}});
    CHECK(found.classes == Classes{{0, 1, 0, 0}, {1, 0, 0, 1}});
    CHECK_THAT(Masks({grey, rgb, black_red}).refused(),
               contains("a_mask: the mask is grey, but ") && contains("b_mask is RGB"));
    CHECK_THAT(Masks({{1, 4, ImageMode::grey, {0, 1, 1, 255}, {}}, black_white}).refused(),
               contains("b_mask: the indices and the colours of its palette are both values of other masks"));
    const HostImage white_first = with_palette({0, 1, 1, 0}, {red, black});
    CHECK_THAT(Masks({numbers, black_red, white_first}).refused(),
               contains("c_mask: palettes of the masks differ: index 0 is (255, 0, 0) in it and (0, 0, 0) in ") &&
                   contains("b_mask; convert all masks to one palette, to grey or to RGB"));
}

TEST_CASE("segmentation folder: palettes are compared with those of training") {
    const HostImage inverted = with_palette({0, 1, 1, 0}, {white, black}),
                    same = with_palette({0, 1, 1, 0}, {black, white});
    const SegmentationFolder training = Masks({same}).read();
    CHECK(training.mask_palette() == std::map<std::uint8_t, std::array<std::uint8_t, 3>>{{0, black}, {1, white}});
    const SegmentationFolderOptions known{.mask_values = training.mask_values(),
                                          .mask_palette = training.mask_palette()};
    CHECK(meaning_of(Masks({same}), known).classes == Classes{{0, 1, 1, 0}});
    CHECK_THAT(Masks({inverted}).refused(known), contains("a_mask: palettes of the masks differ: index 0 is (255, 255, "
                                                          "255) in it and (0, 0, 0) in the training masks"));
    // Grey levels, as in a set with different palettes, are found in palettes.
    CHECK(meaning_of(Masks({inverted}), {.mask_values = {{0}, {255}}}).classes == Classes{{1, 0, 0, 1}});
    CHECK(meaning_of(Masks({inverted}), {.mask_values = {{0, 0, 0}, {255, 255, 255}}}).classes ==
          Classes{{1, 0, 0, 1}});
    CHECK(meaning_of(Masks({inverted}), {.mask_values = {{0}, {1}}}).classes ==
          Classes{{0, 1, 1, 0}});  // without known values
}

TEST_CASE("segmentation folder: a GIF frame's local palette is its palette") {
    // A black-and-white screen with a frame whose own palette is white and black.
    const Masks folder({with_palette({0, 1, 1, 0}, {black, white}), with_palette({0, 1, 1, 0}, {black, white})}, true);
    std::string gif = get_bytes(folder.masks / "b_mask");
    const std::size_t frame = gif.find(',');
    REQUIRE(gif[frame + 9] == 0);
    gif[frame + 9] = static_cast<char>(0x80);  // a palette of two
    gif.insert(frame + 10, "\xff\xff\xff" + std::string(3, '\0'));
    put_bytes(folder.masks / "b_mask", gif);
    CHECK(meaning_of(folder).classes == Classes{{0, 1, 1, 0}, {1, 0, 0, 1}});
}

TEST_CASE("segmentation folder: a pixel with the ignored value belongs to no class") {
    const Masks folder({{1, 4, ImageMode::grey, {0, 9, 255, 0}, {}}, {1, 4, ImageMode::grey, {9, 9, 9, 0}, {}}});
    for (const auto& values : {std::vector<MaskValue>(), std::vector<MaskValue>{{0}, {9}}}) {
        const Meaning found = meaning_of(folder, {.mask_values = values, .ignore_value = {255}, .classes = 2});
        CHECK(found.values == std::vector<MaskValue>{{0}, {9}});
        CHECK(found.classes == Classes{{0, 1, ignored_class, 0}, {1, 1, 1, 0}});
    }
    CHECK_THROWS_WITH(folder.read({.mask_values = {{0}, {255}}, .ignore_value = {255}}),
                      contains("the value of a class is ignore_value"));
    CHECK_THROWS_WITH(folder.read({.ignore_value = {1, 2, 3}}),
                      contains("ignore_value has 3 numbers and a pixel of the masks has 1"));
    CHECK_THROWS_WITH(Masks({{1, 4, ImageMode::grey, {7, 7, 7, 7}, {}}}).read({.ignore_value = {7}}),
                      contains("all pixels of all masks"));
}

TEST_CASE("segmentation folder: two indices of one colour are never one class") {
    const HostImage twice = with_palette({0, 1, 1, 0}, {black, black});
    const auto merged = contains("have the same colour, (0, 0, 0); expected a distinct colour for each");
    CHECK(meaning_of(Masks({twice})).classes == Classes{{0, 1, 1, 0}});
    CHECK(meaning_of(Masks({twice}), {.mask_values = {{0}, {1}}}).classes == Classes{{0, 1, 1, 0}});
    // Values of another set, in which both indices would be class 0.
    CHECK_THAT(Masks({twice}).refused({.mask_values = {{0}, {255}}}), contains("a_mask: the mask has a pixel of 1"));
    CHECK_THAT(Masks({twice}).refused({.mask_values = {{0, 0, 0}, {255, 0, 0}}}),
               contains("a_mask: indices 0 and 1 of its palette") && merged);
    // Masks that are identified by colour: because of others in the set, or because palettes differ.
    const HostImage rgb{1, 4, ImageMode::rgb, {0, 0, 0, 255, 0, 0, 255, 0, 0, 0, 0, 0}, {}};
    CHECK_THAT(Masks({rgb, twice}).refused(), contains("b_mask: indices 0 and 1 of its palette") && merged);
    const HostImage grey{1, 4, ImageMode::grey, {0, 255, 255, 0}, {}};
    CHECK_THAT(Masks({grey, twice}).refused(), contains("b_mask: indices 0 and 1 of its palette") && merged);
    CHECK_THAT(
        Masks({with_palette({0, 1, 2, 0}, {red, black, black}), with_palette({0, 1, 1, 0}, {black, red})}).refused(),
        contains("a_mask: indices 1 and 2 of its palette") && merged);
}
