// Folders of images and masks: rows, files and errors. test_mask_palettes has palettes. Compared with the program for
// PyTorch: tests/pytorch/check_images.py.
#include "lockstep/parallel/data/segmentation_folder.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <numeric>
#include <stdexcept>

#include "lockstep/ops/layers.h"
#include "lockstep/parallel/data/image_file.h"
#include "lockstep/parallel/data/image_tensor.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/loader.h"
#include "lockstep/runtime/error.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/files.h"
#include "lockstep/tests/fixtures/image_folders.h"
#include "lockstep/tests/fixtures/images.h"
#include "lockstep/tests/fixtures/messages.h"

using namespace lockstep;
using namespace lockstep::test;

namespace {

/// Three cars of 8 x 6 pixels with masks of 0 and 255.
struct Cars : Folder {
    Cars() {
        for (int i = 0; i < 3; ++i) {
            const std::string name = "car_" + std::to_string(i);
            write_png(imgs / (name + ".png"), computed_image(ImageMode::rgb, 6, 8, i));
            write_gif(masks / (name + "_mask.gif"), grey_of(6, 8, {0, 255, 255, 0, 0}));
        }
    }
};

/// Root may read and write everything, so a root process is another user until this is destroyed.
class WithoutPrivileges {
public:
    WithoutPrivileges() {
        if (::geteuid() == 0 && ::seteuid(65534) != 0) throw std::runtime_error("seteuid failed");
    }
    ~WithoutPrivileges() { end(); }
    WithoutPrivileges(const WithoutPrivileges&) = delete;
    WithoutPrivileges& operator=(const WithoutPrivileges&) = delete;
    void end() const {
        if (::getuid() == 0 && ::seteuid(0) != 0) std::abort();
    }
};

struct Net {
    Conv2d conv{3, 2, 1};
    LOCKSTEP_MEMBERS(conv)
    Tensor forward(const Tensor& x) { return conv(x); }
};

}  // namespace

TEST_CASE("segmentation folder: rows are images in order of names, with the classes of their masks") {
    const Cars cars;
    put_bytes(cars.imgs / ".hidden", "no image");
    std::filesystem::create_directory(cars.imgs / "folder");
    write_gif(cars.masks / "other_mask.gif", grey_of(1, 1, {77}));  // without an image
    const SegmentationFolder data = cars.read();
    REQUIRE(data.size() == 3);
    CHECK(data.channels() == 3);
    CHECK(data.classes() == 2);
    CHECK(data.mask_values() == std::vector<MaskValue>{{0}, {255}});
    for (std::int64_t row = 0; row < 3; ++row) {
        const auto [image, mask] = data.get(row);
        CHECK(data.image_file(row).filename() == "car_" + std::to_string(row) + ".png");
        CHECK(data.mask_file(row).filename() == "car_" + std::to_string(row) + "_mask.gif");
        CHECK(image.shape() == Shape{3, 6, 8});
        CHECK(image.to_vector<float>() ==
              image_tensor(computed_image(ImageMode::rgb, 6, 8, static_cast<int>(row))).to_vector<float>());
        CHECK(mask.shape() == Shape{6, 8});
        const auto classes = mask.to_vector<std::int64_t>();
        for (std::size_t i = 0; i < classes.size(); ++i) CHECK(classes[i] == (i % 5 == 1 || i % 5 == 2));
    }
    CHECK_THROWS_WITH(data.get(3), contains("row 3 of 3"));
    CHECK_THROWS_AS(data.get(-1), InvalidArgument);
    CHECK_THROWS_AS(data.image_file(3), InvalidArgument);
}

TEST_CASE("segmentation folder: images are scaled by bicubic interpolation, and masks by nearest pixel") {
    const Cars cars;
    const SegmentationFolder data = cars.read({.scale = 0.5});
    CHECK(data.fields()[0].shape == Shape{3, 3, 4});
    CHECK(data.fields()[1].shape == Shape{3, 4});
    const auto [image, mask] = data.get(1);
    const HostImage scaled = resize_image(computed_image(ImageMode::rgb, 6, 8, 1), 3, 4, Resampling::bicubic);
    CHECK(image.to_vector<float>() == image_tensor(scaled).to_vector<float>());
    const auto classes = mask.to_vector<std::int64_t>();
    for (std::int64_t y = 0; y < 3; ++y)
        for (std::int64_t x = 0; x < 4; ++x) {
            const std::int64_t under = (2 * y + 1) * 8 + 2 * x + 1;  // the pixel whose corner is the centre
            CHECK(classes[static_cast<std::size_t>(y * 4 + x)] == (under % 5 == 1 || under % 5 == 2));
        }
    CHECK(refusal_of<InvalidArgument>([&] {
              cars.read({.scale = 0.1});
          }).starts_with("scale 0.1 of images of 8 x 6 (width x height) leaves 0 x 0 pixels"));
    CHECK_THROWS_WITH(cars.read({.scale = 0}), contains("expected a number above 0 and at most 1"));
    CHECK_THROWS_WITH(cars.read({.scale = 1.5}), contains("expected a number above 0 and at most 1"));
}

TEST_CASE("segmentation folder: masks of every kind become classes in the order of their values") {
    const auto data_of = [](Folder& folder, const HostImage& mask, const SegmentationFolderOptions& options = {}) {
        write_jpeg(folder.imgs / "a.jpg", computed_image(ImageMode::grey, 1, 4));
        write_png(folder.masks / "a.png", mask);
        return folder.read(options);
    };
    {
        Folder folder;
        const SegmentationFolder data = data_of(folder, {1, 4, ImageMode::grey, {200, 7, 90, 7}, {}});
        CHECK(data.channels() == 1);
        CHECK(data.mask_values() == std::vector<MaskValue>{{7}, {90}, {200}});
        CHECK(classes_in(data, 0) == std::vector<std::int64_t>{2, 0, 1, 0});
    }
    {
        Folder folder;  // sorted by red, then green, then blue
        const SegmentationFolder data =
            data_of(folder, {1, 4, ImageMode::rgb, {9, 0, 0, 0, 255, 1, 0, 255, 0, 9, 0, 0}, {}});
        CHECK(data.mask_values() == std::vector<MaskValue>{{0, 255, 0}, {0, 255, 1}, {9, 0, 0}});
        CHECK(classes_in(data, 0) == std::vector<std::int64_t>{2, 1, 0, 2});
    }
    {
        Folder folder;  // colours that differ only in alpha
        const SegmentationFolder data =
            data_of(folder, {1, 4, ImageMode::rgba, {5, 5, 5, 255, 5, 5, 5, 0, 5, 5, 5, 255, 0, 0, 0, 1}, {}});
        CHECK(classes_in(data, 0) == std::vector<std::int64_t>{2, 1, 2, 0});
    }
    {
        Folder folder;  // indices, whatever their colours
        const HostImage palette{1, 4, ImageMode::palette, {3, 1, 1, 0}, {{9, 9, 9}, {9, 9, 9}, {0, 0, 0}, {1, 1, 1}}};
        const SegmentationFolder data = data_of(folder, palette);
        CHECK(data.mask_values() == std::vector<MaskValue>{{0}, {1}, {3}});
        CHECK(classes_in(data, 0) == std::vector<std::int64_t>{2, 1, 1, 0});
    }
    {
        Folder folder;  // values that the options choose, including one that no mask has
        const SegmentationFolder data =
            data_of(folder, {1, 4, ImageMode::grey, {200, 7, 90, 7}, {}}, {.mask_values = {{200}, {90}, {50}, {7}}});
        CHECK(data.classes() == 4);
        CHECK(classes_in(data, 0) == std::vector<std::int64_t>{0, 3, 1, 3});
    }
    Folder folder;
    CHECK(data_of(folder, {1, 4, ImageMode::grey, {1, 1, 1, 2}, {}}, {.classes = 5}).classes() == 5);
}

TEST_CASE("segmentation folder: images of every kind have their channels") {
    for (const ImageMode mode :
         {ImageMode::grey, ImageMode::grey_alpha, ImageMode::rgb, ImageMode::rgba, ImageMode::palette}) {
        const Folder folder;
        write_png(folder.imgs / "a.png", computed_image(mode, 6, 8));
        write_png(folder.masks / "a.png", grey_of(6, 8, {0, 1}));
        const int channels = mode == ImageMode::palette ? 3 : channels_of(mode);
        const SegmentationFolder data = folder.read({.scale = 0.5, .channels = channels});
        CHECK(data.channels() == channels);
        CHECK(std::get<0>(data.get(0)).shape() == Shape{channels, 3, 4});
        CHECK_THAT(folder.refused({.channels = channels + 1}),
                   contains(", but " + std::to_string(channels + 1) + " are required"));
    }
}

TEST_CASE("segmentation folder: a loader's threads read it") {
    const Cars cars;
    const SegmentationFolder data = cars.read({.scale = 0.5});
    DataParallel<Net> model(Net{}, Devices({Device::cpu(0)}));
    Loader loader(model, data, {.batch_size = 2, .workers = 2});
    std::int64_t row = 0;
    for (auto& [images, masks] : loader.epoch(0)) {
        const auto image = images.gathered().to_vector<float>();
        const auto mask = masks.gathered().to_vector<std::int64_t>();
        const std::size_t rows = mask.size() / 12;
        for (std::size_t i = 0; i < rows; ++i, ++row) {
            const auto [one_image, one_mask] = data.get(row);
            const auto pixels = one_image.to_vector<float>();
            const auto classes = one_mask.to_vector<std::int64_t>();
            CHECK(std::equal(pixels.begin(), pixels.end(), image.begin() + static_cast<std::ptrdiff_t>(i * 36)));
            CHECK(std::equal(classes.begin(), classes.end(), mask.begin() + static_cast<std::ptrdiff_t>(i * 12)));
        }
    }
    CHECK(row == 3);
}

TEST_CASE("segmentation folder: masks have names with the suffix, or without if no mask has it") {
    const Folder folder;
    write_png(folder.imgs / "a.png", grey_of(2, 2, {9}));
    write_png(folder.imgs / "b.c.png", grey_of(2, 2, {9}));
    write_png(folder.masks / "a.png", grey_of(2, 2, {1}));
    write_png(folder.masks / "b.c.gif", grey_of(2, 2, {2}));
    CHECK(folder.read().mask_file(1).filename() == "b.c.gif");
    write_png(folder.masks / "a_mask.png", grey_of(2, 2, {1}));
    CHECK_THAT(folder.refused(),
               contains("b.c.png: no mask b.c_mask.* in") && contains(": its 3 files have names such as a.png"));
    write_png(folder.masks / "b.c_mask.png", grey_of(2, 2, {2}));
    CHECK(folder.read().mask_file(0).filename() == "a_mask.png");
    CHECK(folder.read({.mask_suffix = ""}).mask_file(0).filename() == "a.png");
}

TEST_CASE("segmentation folder: errors name the files") {
    {
        const Folder folder;
        CHECK_THAT(folder.refused(), contains("imgs: the folder is empty; expected the images"));
        write_png(folder.imgs / "a.png", grey_of(2, 2, {1}));
        CHECK_THAT(folder.refused(), contains("masks: the folder is empty; expected the masks"));
        std::filesystem::remove_all(folder.masks);
        CHECK_THAT(folder.refused(), contains("masks: no such folder; expected the folder of the masks"));
        std::filesystem::remove_all(folder.imgs);
        CHECK_THAT(folder.refused(), contains("imgs: no such folder; expected the folder of the images"));
    }
    const auto with_change = [](const auto& change, const SegmentationFolderOptions& options = {}) {
        const Cars cars;
        change(cars);
        return cars.refused(options);
    };
    const auto path = [](const Folder& folder, const char* name) {
        return (std::string(name).find("mask") != std::string::npos ? folder.masks : folder.imgs) / name;
    };
    CHECK_THAT(with_change([&](const Folder& f) { std::filesystem::remove(path(f, "car_1_mask.gif")); }),
               contains("car_1.png: no mask car_1_mask.* in"));
    CHECK_THAT(with_change([&](const Folder& f) { write_png(path(f, "car_1_mask.png"), grey_of(6, 8, {1})); }),
               contains("car_1.png: several masks in") && contains("car_1_mask.gif and car_1_mask.png"));
    CHECK_THAT(with_change([&](const Folder& f) { write_jpeg(path(f, "car_1.jpg"), grey_of(6, 8, {1})); }),
               contains("car_1.png: car_1.jpg has the same name before its extension"));
    CHECK_THAT(with_change([&](const Folder& f) { write_gif(path(f, "car_1_mask.gif"), grey_of(8, 6, {1})); }),
               contains("car_1_mask.gif: the mask is 6 x 8 (width x height), but its image ") &&
                   contains("car_1.png is 8 x 6"));
    CHECK_THAT(with_change([&](const Folder& f) { write_png(path(f, "car_2.png"), grey_of(7, 8, {1})); }),
               contains("car_2.png: the image is 8 x 7 (width x height), but ") && contains("car_0.png is 8 x 6"));
    CHECK_THAT(with_change([&](const Folder& f) { write_png(path(f, "car_2.png"), grey_of(6, 8, {1})); }),
               contains("car_2.png: the image is grey with 1 channel, but ") && contains("is RGB with 3 channels"));
    CHECK_THAT(with_change([&](const Folder& f) { put_bytes(path(f, "car_0.png"), "text"); }),
               contains("car_0.png: offset 0: this is text that begins with 'text'"));
    CHECK_THAT(with_change([&](const Folder& f) { put_bytes(path(f, "car_2.txt"), "text"); }),
               contains("car_2.txt: car_2.png has the same name"));
    CHECK_THAT(with_change([&](const Folder& f) {
                   const auto mask = path(f, "car_1_mask.gif");
                   put_bytes(mask, get_bytes(mask).substr(0, 790));
               }),
               contains("car_1_mask.gif: offset 790: the GIF cannot be read: the file ends too early"));
    CHECK_THAT(
        with_change(
            [&](const Folder& f) { write_png(path(f, "car_1_mask.gif"), computed_image(ImageMode::rgb, 6, 8)); }),
        contains("car_1_mask.gif: the mask is RGB with 3 numbers per pixel, but ") && contains("car_0_mask.gif has 1"));
    CHECK_THAT(
        with_change(
            [&](const Folder& f) {
                write_gif(path(f, "car_1_mask.gif"), grey_of(6, 8, {0, 9}));
            },
            {.mask_values = {{0}, {255}}}),
        contains(
            "car_1_mask.gif: the mask has a pixel of 9, which is not the value of a class; expected one of 0, 255"));
    CHECK_THAT(with_change(
                   [&](const Folder& f) {
                       write_gif(path(f, "car_1_mask.gif"), grey_of(6, 8, {0, 9}));
                   },
                   {.classes = 2}),
               contains("car_1_mask.gif: the masks up to this one have 3 different values; expected at most 2"));
    CHECK_THAT(
        with_change([](const Folder&) {}, {.mask_values = {{0, 0, 0}, {255, 0, 0}}}),
        contains("car_0_mask.gif: the mask is grey with 1 number per pixel, but the values of the classes have 3"));
    {
        const Folder folder;
        write_png(folder.imgs / "a.png", grey_of(9, 13, {5}));
        put_bytes(folder.masks / "a.png", recorded_file("wide3.png"));
        CHECK_THAT(folder.refused(), contains("a.png: the mask has 16 bits per channel; expected 8"));
        HostImage many = computed_image(ImageMode::rgb, 9, 13);
        write_png(folder.masks / "a.png", many);
        CHECK(folder.read().classes() > 50);
        write_png(folder.imgs / "a.png", grey_of(30, 40, {5}));
        write_png(folder.masks / "a.png", computed_image(ImageMode::rgb, 30, 40));
        CHECK_THAT(folder.refused(), contains("a.png: the mask has more than 256 different values"));
    }
}

TEST_CASE("segmentation folder: the error names the first of several bad files in every run") {
    const Cars cars;
    for (int i = 3; i < 40; ++i) {
        const std::string name = "car_" + std::to_string(i + 100);
        std::filesystem::copy(cars.imgs / "car_0.png", cars.imgs / (name + ".png"));
        write_gif(cars.masks / (name + "_mask.gif"), grey_of(i > 20 ? 5 : 6, 8, {0}));
    }
    for (int trial = 0; trial < 20; ++trial) CHECK_THAT(cars.refused({.threads = 8}), contains("car_121_mask.gif: "));
}

TEST_CASE("segmentation folder: an image with damaged data, or changed later, is detected when it is read") {
    const Cars cars;
    const std::string whole = get_bytes(cars.imgs / "car_1.png");
    put_bytes(cars.imgs / "car_1.png", whole.substr(0, whole.size() - 30));
    const SegmentationFolder data = cars.read();
    CHECK_NOTHROW(data.get(0));
    CHECK_THAT(refusal_of<DataError>([&] { data.get(1); }),
               contains("car_1.png: offset ") && contains("ends too early"));
    write_png(cars.imgs / "car_1.png", computed_image(ImageMode::rgb, 7, 8));
    CHECK_THAT(refusal_of<DataError>([&] { data.get(1); }), contains("car_1.png: the image is 8 x 7"));
    write_gif(cars.masks / "car_0_mask.gif", grey_of(6, 8, {33}));
    CHECK_THAT(refusal_of<DataError>([&] { data.get(0); }), contains("car_0_mask.gif: the mask has a pixel of 33"));
}

TEST_CASE("segmentation folder: files without read permission are named") {
    const auto given = ::umask(022);
    const Cars cars;
    ::umask(given);
    const std::filesystem::path above = cars.imgs.parent_path();
    std::filesystem::permissions(above, std::filesystem::perms::owner_all);
    if (::geteuid() == 0) {
        const WithoutPrivileges without;
        CHECK_THAT(refusal_of<Error>([&] { cars.read(); }),
                   contains("imgs: the folder cannot be read: Permission denied"));
    }
    std::filesystem::permissions(above, std::filesystem::perms{0755});
    const auto closed = [](const std::filesystem::path& path, const auto& call) {
        const auto before = std::filesystem::status(path).permissions();
        std::filesystem::permissions(path, std::filesystem::perms::none);
        const WithoutPrivileges without;
        const std::string message = refusal_of<Error>(call);
        without.end();
        std::filesystem::permissions(path, before);
        return message;
    };
    const auto read = [&] { cars.read(); };
    for (const auto& folder : {cars.imgs, cars.masks})
        CHECK_THAT(closed(folder, read), contains(folder.string() + ": ") && contains("Permission denied"));
    CHECK_THAT(closed(cars.imgs / "car_1.png", read), contains("car_1.png: cannot be opened: Permission denied"));
    CHECK_THAT(closed(cars.masks / "car_1_mask.gif", read), contains("car_1_mask.gif: cannot be opened: Permission"));
    CHECK_THAT(closed(cars.masks, [&] { write_png(cars.masks / "new.png", grey_of(2, 2, {1})); }),
               contains("masks/new.png: Permission denied; expected a writable directory"));
    CHECK(cars.read().size() == 3);
}

TEST_CASE("segmentation folder: invalid options are rejected") {
    const Cars cars;
    CHECK_THROWS_AS(cars.read({.classes = -1}), InvalidArgument);
    CHECK_THROWS_AS(cars.read({.channels = -1}), InvalidArgument);
    CHECK_THROWS_AS(cars.read({.threads = -1}), InvalidArgument);
    CHECK_THROWS_WITH(cars.read({.mask_values = {{1}, {1}}}), contains("two classes have the same"));
    CHECK_THROWS_WITH(cars.read({.mask_values = {{1}, {1, 2}}}), contains("value of class 1 has 2 numbers"));
    CHECK_THROWS_AS(cars.read({.mask_values = {{}}}), InvalidArgument);
    CHECK_THROWS_WITH(cars.read({.mask_values = {{0}, {255}}, .classes = 1}), contains("2 mask_values for 1 classes"));
}

TEST_CASE("segmentation folder: a broken link is an error that names it, in both folders") {
    for (const char* name : {"imgs/new.png", "masks/new_mask.gif"}) {
        const Cars cars;
        std::filesystem::create_symlink("gone/new.png", cars.directory / name);
        CHECK_THAT(cars.refused(), contains(std::string(name) + ": the link target gone/new.png does not exist"));
    }
    // A link to itself, and a valid one.
    const Cars cars;
    std::filesystem::create_symlink("car_3.png", cars.imgs / "car_3.png");
    CHECK_THAT(cars.refused(), contains("car_3.png: the link target") || contains("car_3.png: cannot be read"));
    std::filesystem::remove(cars.imgs / "car_3.png");
    std::filesystem::create_symlink("car_1.png", cars.imgs / "car_3.png");
    std::filesystem::create_symlink("car_1_mask.gif", cars.masks / "car_3_mask.gif");
    CHECK(cars.read().size() == 4);
}

TEST_CASE("segmentation folder: a name with accents in another Unicode form is reported") {
    const Folder folder;
    write_png(folder.imgs /
                  "b\xc3\xa9"
                  "b\xc3\xa9.png",
              grey_of(2, 2, {9}));  // one character
    write_png(folder.masks /
                  "be\xcc\x81"
                  "be\xcc\x81_mask.png",
              grey_of(2, 2, {1}));  // two
    CHECK_THAT(folder.refused(), contains("_mask.png looks the same, but one of the names has decomposed accents"));
    std::filesystem::rename(folder.masks /
                                "be\xcc\x81"
                                "be\xcc\x81_mask.png",
                            folder.masks /
                                "b\xc3\xa8"
                                "b\xc3\xa8_mask.png");
    CHECK_THAT(folder.refused(), contains(": its 1 file has a name such as b"));
}

TEST_CASE("segmentation folder: images that use a tenth of 16 bits, or that viewers rotate, give a warning") {
    const auto two = [](int n) { return std::string{static_cast<char>(n >> 8), static_cast<char>(n & 255)}; };
    const auto warnings = [&](const std::vector<int>& peaks) {
        const Folder folder;
        for (std::size_t i = 0; i < peaks.size(); ++i) {
            const std::string name = std::string(1, static_cast<char>('a' + i)) + ".png";
            const bool wide = peaks[i] > 255;  // otherwise an image of 8 bits
            put_bytes(folder.imgs / name, wide ? made_png(2, 16, 0, {two(peaks[i]) + two(3)})
                                               : made_png(2, 8, 0, {std::string(2, static_cast<char>(peaks[i]))}));
            write_png(folder.masks / name, {1, 2, ImageMode::grey, {0, 1}, {}});
        }
        return meaning_of(folder).warnings;
    };
    REQUIRE(warnings({300, 4095}).size() == 1);
    CHECK_THAT(warnings({300, 4095})[0],
               contains("imgs: images have 16 bits per channel and no value above 4095; 8 bits hold only 16 levels"));
    CHECK(warnings({6552, 6552}).size() == 1);
    CHECK(warnings({6554, 6554}).empty());
    CHECK(warnings({65535, 65535}).empty());
    CHECK(warnings({200, 200}).empty());
    // A bright image does not hide others.
    for (const std::vector<int>& mixed :
         {std::vector<int>{65535, 4095, 4095, 1000}, {4095, 4095, 65535, 1000}, {4095, 1000, 6554, 7000, 511}}) {
        const std::vector<std::string> all = warnings(mixed);
        REQUIRE(all.size() == 1);
        CHECK_THAT(all[0], contains(mixed[0] == 4095 ? "a.png" : "b.png") &&
                               contains(": the image has 16 bits per channel and no value above 4095; 8 bits hold "
                                        "only 16 of its levels, and as few of 2 more images"));
    }
    REQUIRE(warnings({65535, 300}).size() == 1);
    CHECK_THAT(warnings({65535, 300})[0], contains("b.png: the image has 16 bits per channel and no value above 300; "
                                                   "8 bits hold only 2 of its levels: unless the image is dark"));
    REQUIRE(warnings({4095}).size() == 1);
    CHECK_THAT(warnings({4095})[0], contains("a.png: the image has 16 bits per channel and no value above 4095"));

    const Folder folder;
    std::string jpeg = recorded_file("rgb.jpg");
    using namespace std::string_literals;
    jpeg.insert(2,
                "\xff\xe1\0\x22"
                "Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0"s);
    for (const char* name : {"a", "b"}) {
        put_bytes(folder.imgs / (std::string(name) + ".jpg"), jpeg);
        write_png(folder.masks / (std::string(name) + ".png"), grey_of(9, 13, {0, 1}));
    }
    const std::vector<std::string> turned = meaning_of(folder).warnings;
    REQUIRE(turned.size() == 1);
    CHECK_THAT(turned[0], contains("a.jpg: the image has EXIF orientation 6, which is ignored, as for 1 more"));
    write_png(folder.masks / "b.png", grey_of(13, 9, {0, 1}));
    CHECK_THAT(folder.refused(),
               contains("b.png: the mask is 9 x 13") && contains("is 13 x 9, with EXIF orientation 6"));
}
