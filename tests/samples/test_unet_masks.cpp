// unet predict and unet evaluate as a user runs them: what they write, and that both agree with loops over the pixels.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "lockstep/parallel/checkpoint.h"
#include "lockstep/parallel/data/image_file.h"
#include "lockstep/parallel/data/segmentation_folder.h"
#include "lockstep/runtime/random.h"
#include "lockstep/samples/unet/net.h"
#include "lockstep/tests/samples/unet_fixture.h"

using namespace lockstep;
using namespace lockstep::test;

namespace {

/// A network that finds something, as no class is preferred.
void save_network(const std::filesystem::path& path, const unet::Options& options) {
    manual_seed(11);
    unet::UNet net(options);
    {
        const NoGrad no_grad;
        net.outc.conv.bias->tensor().zero_();
    }
    save(net, path);
}

std::vector<std::uint8_t> pixels_of(const std::filesystem::path& file) { return read_image(file).pixels; }

/// Dice of class 1, from two lists of zeros and ones.
double dice_of(const std::vector<std::uint8_t>& found, const std::vector<std::uint8_t>& wanted) {
    REQUIRE(found.size() == wanted.size());
    double common = 0, both = 0;
    for (std::size_t i = 0; i < found.size(); ++i) {
        common += found[i] * wanted[i];
        both += found[i] + wanted[i];
    }
    return (2 * common + 1e-6) / (both + 1e-6);
}

}  // namespace

TEST_CASE("evaluate agrees with a loop over the masks that predict writes, and every way to share the work agrees") {
    const UnetPlace place;
    train_unet(place, "-e 4 -b 2 -l 1e-2 --shards 1 --devices cpu:0 --save net.safetensors");
    REQUIRE(run_unet(place, "predict -m net.safetensors -i data/imgs -o masks --quiet").status == 0);
    const SegmentationFolder data(place / "data/imgs", place / "data/masks");
    std::map<std::string, double> expected;
    double mean = 0;
    for (std::int64_t row = 0; row < data.size(); ++row) {
        const auto name = data.image_file(row).stem().string();
        const double dice = dice_of(pixels_of(place / "masks" / (name + "_OUT.png")), pixels_of(data.mask_file(row)));
        expected[name + ".jpg"] = dice;
        mean += dice / static_cast<double>(data.size());
    }
    std::string first;
    for (const std::string how : {"--parallel none --devices cpu:0 -b 5", "--devices cpu:0,cpu:1,cpu:2 -b 5",
                                  "--parallel ddp --devices cpu:0,cpu:1 -b 5"}) {
        CAPTURE(how);
        const ProgramRun run =
            run_unet(place, "evaluate -m net.safetensors --shards 3 --json found.json --sheet sheet.png " + how);
        CAPTURE(run.err);
        REQUIRE(run.status == 0);
        CHECK_THAT(run.out, contains("dice 0.") && contains(" of 12 images\n"));
        const std::string json = get_bytes(place / "found.json");
        if (first.empty()) first = json;
        CHECK(json == first);
        const auto figures = nlohmann::json::parse(json);
        REQUIRE(figures["images"].size() == expected.size());
        for (const auto& [name, dice] : expected)
            CHECK(figures["images"][name].get<double>() == Approx(dice).margin(0.02));
        CHECK(figures["dice"].get<double>() == Approx(mean).margin(0.005));
        const ImageHeader sheet = read_image_header(place / "sheet.png");
        CHECK(sheet.width == 3 * 32 + 2 * 4);
        CHECK(sheet.height == 4 * 32 + 3 * 4);
    }
    // The images that training kept for validation.
    REQUIRE(run_unet(place, "evaluate -m net.safetensors --json some.json -v 30 --quiet").status == 0);
    CHECK(nlohmann::json::parse(get_bytes(place / "some.json"))["images"].size() == 3);
}

TEST_CASE("predict writes masks of the image's size with the values of training, and pictures") {
    const UnetPlace place(2, 48);
    save_network(place / "net", {.classes = 2, .width = 4});
    const ProgramRun run =
        run_unet(place, "predict --model net --input data/imgs/shape_00001.jpg --overlay --scale 0.5");
    CAPTURE(run.err);
    REQUIRE(run.status == 0);
    CHECK(run.out == "data/imgs/shape_00001.jpg: data/imgs/shape_00001_OUT.png\n");
    const HostImage mask = read_image(place / "data/imgs/shape_00001_OUT.png");
    CHECK(mask.height == 48);
    CHECK(mask.width == 48);
    REQUIRE(mask.mode == ImageMode::palette);
    CHECK(*std::max_element(mask.pixels.begin(), mask.pixels.end()) <= 1);
    CHECK(mask.palette[1] == std::array<std::uint8_t, 3>{255, 255, 255});
    const HostImage picture = read_image(place / "data/imgs/shape_00001_overlay.png"),
                    image = read_image(place / "data/imgs/shape_00001.jpg");
    REQUIRE(picture.mode == ImageMode::rgb);
    for (std::size_t i = 0; i < mask.pixels.size(); ++i)
        for (std::size_t c = 0; c < 3; ++c) {
            const int level = image.pixels[3 * i + c], red = c == 0 ? 255 : 0;
            CHECK(picture.pixels[3 * i + c] == (mask.pixels[i] == 0 ? level : (level + red) / 2));
        }
    REQUIRE(run_unet(place, "predict -m net data/imgs/shape_00000.jpg -o one.png --quiet").status == 0);
    CHECK(read_image_header(place / "one.png").width == 48);
}

TEST_CASE("masks have the values of the masks in training, grey ones and colours") {
    for (const int channels : {1, 3}) {
        const UnetPlace place(4);
        const std::vector<MaskValue> values = channels == 1
                                                  ? std::vector<MaskValue>{{0}, {100}, {255}}
                                                  : std::vector<MaskValue>{{0, 0, 0}, {0, 255, 0}, {255, 0, 9}};
        std::filesystem::remove_all(place / "data/masks");
        std::filesystem::create_directory(place / "data/masks");
        for (int row = 0; row < 4; ++row) {
            HostImage mask{32, 32, channels == 1 ? ImageMode::grey : ImageMode::rgb, {}, {}};
            for (int i = 0; i < 32 * 32; ++i) {
                const MaskValue& value = values[static_cast<std::size_t>(i / 300) % 3];
                mask.pixels.insert(mask.pixels.end(), value.begin(), value.end());
            }
            write_png(place / "data/masks" / ("shape_0000" + std::to_string(row) + ".png"), mask);
        }
        train_unet(place, "-e 30 -b 3 -l 1e-2 -c 3 -v 0 --devices cpu:0 --save net");
        REQUIRE(run_unet(place, "predict -m net -i data/imgs/shape_00002.jpg -o mask.png --quiet").status == 0);
        const HostImage mask = read_image(place / "mask.png");
        std::set<MaskValue> found;
        for (std::size_t i = 0; i < mask.pixels.size(); i += static_cast<std::size_t>(channels))
            found.emplace(mask.pixels.begin() + static_cast<std::ptrdiff_t>(i),
                          mask.pixels.begin() + static_cast<std::ptrdiff_t>(i) + channels);
        for (const MaskValue& value : found) CHECK(std::find(values.begin(), values.end(), value) != values.end());
        CHECK(found.size() > 1);
        if (channels == 1) CHECK(mask.palette[100] == std::array<std::uint8_t, 3>{128, 0, 0});
        // They can be trained on.
        REQUIRE(run_unet(place, "evaluate -m net --quiet --json found.json").status == 0);
    }
}

TEST_CASE("the threshold decides for a network of one class") {
    const UnetPlace place(1);
    save_network(place / "net", {.classes = 1, .width = 4});
    const auto share = [&](const std::string& threshold) {
        REQUIRE(run_unet(place, "predict -m net -i data/imgs -o masks --quiet --mask-threshold " + threshold).status ==
                0);
        const auto pixels = pixels_of(place / "masks/shape_00000_OUT.png");
        return std::count(pixels.begin(), pixels.end(), 1);
    };
    CHECK(share("0") == 32 * 32);
    CHECK(share("1") == 0);
    CHECK(share("0.2") >= share("0.6"));
}
