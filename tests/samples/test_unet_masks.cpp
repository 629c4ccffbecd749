// unet predict and unet evaluate from a user's view: their output, and agreement of both with loops over the pixels.
#include <algorithm>
#include <bit>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/parallel/checkpoint.h"
#include "lockstep/parallel/data/image_file.h"
#include "lockstep/parallel/data/segmentation_folder.h"
#include "lockstep/runtime/random.h"
#include "lockstep/samples/apps/unet/net.h"
#include "lockstep/tests/fixtures/archives.h"
#include "lockstep/tests/fixtures/files.h"
#include "lockstep/tests/fixtures/images.h"
#include "lockstep/tests/fixtures/messages.h"
#include "lockstep/tests/samples/unet_fixture.h"

using namespace lockstep;
using namespace lockstep::test;

namespace {

/// A network whose masks are not constant, because no class is preferred.
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

TEST_CASE("evaluate agrees with a loop over predicted masks, however the work is shared") {
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
    // The images that training held out for validation.
    REQUIRE(run_unet(place, "evaluate -m net.safetensors --json some.json -v 30 --quiet").status == 0);
    CHECK(nlohmann::json::parse(get_bytes(place / "some.json"))["images"].size() == 3);
}

TEST_CASE("evaluate writes valid JSON for images whose names are not UTF-8") {
    const UnetPlace place(3);
    save_network(place / "net", {.classes = 2, .width = 4});
    const SegmentationFolder data(place / "data/imgs", place / "data/masks");
    const std::filesystem::path image = data.image_file(1), mask = data.mask_file(1);
    for (const auto& path : {image, mask})
        std::filesystem::rename(path, path.parent_path() / ("gr\xfc\xdf" + path.filename().string()));
    for (const std::string how : {"--parallel none --devices cpu:0", "--parallel ddp --devices cpu:0,cpu:1"}) {
        const ProgramRun run = run_unet(place, "evaluate -m net -s 1 --quiet --json found.json " + how);
        CAPTURE(run.err);
        REQUIRE(run.status == 0);
        const auto images = nlohmann::json::parse(get_bytes(place / "found.json"))["images"];
        CHECK(images.size() == 3);
        CHECK(images.contains("gr\xef\xbf\xbd\xef\xbf\xbd" + image.filename().string()));  // U+FFFD
    }
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

TEST_CASE("predicted masks have the values of training masks, for grey and colours") {
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

TEST_CASE("predict accepts a name per image and never overwrites its inputs") {
    const UnetPlace place(2);
    save_network(place / "net", {.width = 4});
    const std::string predict = "predict -m net ";
    std::filesystem::copy_file(place / "data/imgs/shape_00000.jpg", place / "a.jpg");
    std::filesystem::copy_file(place / "data/imgs/shape_00001.jpg", place / "b.jpg");
    const std::string a = get_bytes(place / "a.jpg");
    REQUIRE(run_unet(place, predict + "-i a.jpg b.jpg -o a1.png new/b1.png --quiet").status == 0);
    REQUIRE(run_unet(place, predict + "-i a.jpg b.jpg -o folder --quiet").status == 0);
    CHECK((get_bytes(place / "a1.png") == get_bytes(place / "folder/a_OUT.png")));
    CHECK((get_bytes(place / "new/b1.png") == get_bytes(place / "folder/b_OUT.png")));

    CHECK_THAT(refusal(place, predict + "-i a.jpg b.jpg -o one.png", 2),
               contains("--output: 1 name for 2 images; expected one per image, or a folder"));
    CHECK_THAT(refusal(place, predict + "-i a.jpg -o one.png two.png", 2), contains("2 names for 1 image;"));
    CHECK_THAT(refusal(place, predict + "-i a.jpg -o one.jpg", 2), contains("--output one.jpg: masks are PNG files"));
    CHECK_THAT(refusal(place, predict + "-i data/imgs -o one.png", 2), contains("--output one.png: expected a folder"));
    CHECK_THAT(refusal(place, predict + "-i a.jpg b.jpg -o x.png ./x.png", 2), contains("have the same mask file"));
    // The image itself, by its name, a link, a hard link, or as the overlay; and the weights.
    std::filesystem::copy_file(place / "folder/a_OUT.png", place / "c.png");
    std::filesystem::create_symlink("c.png", place / "link.png");
    std::filesystem::create_hard_link(place / "c.png", place / "hard.png");
    std::filesystem::copy_file(place / "a1.png", place / "d_OUT.png");
    std::filesystem::copy_file(place / "net", place / "net.png");
    const std::string c = get_bytes(place / "c.png");
    for (const std::string line :
         {"-i c.png -o c.png", "-i c.png -o ./c.png", "-i c.png -o link.png", "-i link.png -o c.png",
          "-i c.png -o hard.png", "-i a.jpg c.png -o c.png x.png", "-i a.jpg -o net.png -m net.png"}) {
        CAPTURE(line);
        CHECK_THAT(refusal(place, (line.find("-m ") == std::string::npos ? predict : "predict ") + line, 2),
                   contains("would overwrite"));
    }
    std::filesystem::copy_file(place / "c.png", place / "e_overlay.png");
    CHECK_THAT(refusal(place, predict + "-i a.jpg e_overlay.png -o e_OUT.png y.png --overlay", 2),
               contains("would overwrite the image e_overlay.png"));
    CHECK((get_bytes(place / "c.png") == c));
    CHECK((get_bytes(place / "a.jpg") == a));
}

TEST_CASE("predict warns once of images with 16 bits that use a tenth of them") {
    const TemporaryDirectory place;
    save_network(place / "net", {.channels = 1, .classes = 2, .width = 4});
    const auto put = [&](const std::string& name, int peak) {
        std::vector<std::string> rows(16);
        for (int i = 0; i < 256; ++i) {
            const int value = peak * i / 255;
            rows[static_cast<std::size_t>(i) / 16] += {static_cast<char>(value >> 8), static_cast<char>(value & 255)};
        }
        std::filesystem::create_directories((place / name).parent_path());
        put_bytes(place / name, made_png(16, 16, 0, rows));
    };
    put("narrow/a.png", 4095);
    put("narrow/b.png", 1000);
    put("mixed/a.png", 65535);
    put("mixed/b.png", 4095);
    put("wide/a.png", 65535);
    const auto warning = [&](const std::string& images) {
        const ProgramRun run = run_unet(place, "predict -m net -s 1 --quiet -o masks -i " + images);
        CAPTURE(images, run.err);
        CHECK(run.status == 0);
        CHECK(run.lines_of_err() <= 1);
        return run.err;
    };
    CHECK_THAT(warning("narrow"),
               contains("narrow: images have 16 bits per channel and no value above 4095; 8 bits hold "
                        "only 16 levels of them"));
    CHECK_THAT(warning("narrow/b.png"), contains("b.png: the image has 16 bits per channel and no value above 1000; 8 "
                                                 "bits hold only 4 of its levels"));
    CHECK_THAT(warning("mixed"), contains("mixed/b.png: the image has 16 bits per channel and no value above 4095"));
    CHECK(warning("wide").empty());
}

TEST_CASE("predict of a folder skips hidden files and its own results") {
    const UnetPlace place(2);
    save_network(place / "net", {.width = 4});
    put_bytes(place / "data/imgs/._shape_00000.jpg", "no image");
    put_bytes(place / "data/imgs/.hidden.png", "no image");
    const std::string line = "predict -m net -i data/imgs -o data/imgs --overlay";
    const ProgramRun first = run_unet(place, line);
    CAPTURE(first.err);
    REQUIRE(first.status == 0);
    const std::string mask = get_bytes(place / "data/imgs/shape_00000_OUT.png");
    const ProgramRun second = run_unet(place, line);
    CHECK(second.status == 0);
    CHECK(second.out == first.out);
    CHECK((get_bytes(place / "data/imgs/shape_00000_OUT.png") == mask));
    // A separate image whose name only has the same ending.
    std::filesystem::copy_file(place / "data/imgs/shape_00000.jpg", place / "data/imgs/fade_OUT.jpg");
    std::filesystem::copy_file(place / "data/imgs/shape_00000_OUT.png", place / "data/imgs/other_OUT.png");
    std::filesystem::create_directory(place / "folder.png");
    const ProgramRun third = run_unet(place, "predict -m net -i data/imgs -o masks");
    CHECK_THAT(third.out, contains("fade_OUT.jpg: masks/fade_OUT_OUT.png"));
    CHECK_THAT(third.out, contains("other_OUT.png: masks/other_OUT_OUT.png"));
    CHECK(third.status == 0);
}

TEST_CASE("evaluate prints dice and IoU of every class, without ignored pixels") {
    // Masks of 0, 100 and 255, the last ignored.
    const UnetPlace place(6);
    std::filesystem::remove_all(place / "data/masks");
    std::filesystem::create_directory(place / "data/masks");
    for (int row = 0; row < 6; ++row) {
        HostImage mask{32, 32, ImageMode::grey, {}, {}};
        for (int i = 0; i < 32 * 32; ++i) mask.pixels.push_back(i % 32 < 2 ? 255 : i / 32 < 10 + row ? 100 : 0);
        write_png(place / "data/masks" / ("shape_0000" + std::to_string(row) + ".png"), mask);
    }
    train_unet(place,
               "-e 2 -b 2 -l 1e-2 -v 0 --ignore-value 255 --class-weights 1,3 --shards 2 --devices cpu:0 --save "
               "net.safetensors");
    REQUIRE(run_unet(place, "predict -m net.safetensors -i data/imgs -o masks --quiet").status == 0);
    double common[2] = {}, found[2] = {}, there[2] = {}, mean = 0;
    for (int row = 0; row < 6; ++row) {
        const std::string name = "shape_0000" + std::to_string(row);
        const auto one = pixels_of(place / "masks" / (name + "_OUT.png")),
                   two = pixels_of(place / "data/masks" / (name + ".png"));
        double own_common = 0, own_both = 0;
        for (std::size_t i = 0; i < one.size(); ++i) {
            if (two[i] == 255) continue;
            const int f = one[i] == 100, t = two[i] == 100;
            ++found[f], ++there[t];
            if (f == t) ++common[f];
            own_common += f * t, own_both += f + t;
        }
        mean += (2 * own_common + 1e-6) / (own_both + 1e-6) / 6;
    }
    std::string first;
    for (const std::string how : {"--parallel none --devices cpu:0 -b 4", "--devices cpu:0,cpu:1 -b 5",
                                  "--parallel ddp --devices cpu:0,cpu:1,cpu:2 -b 5"}) {
        CAPTURE(how);
        const ProgramRun run = run_unet(place, "evaluate -m net.safetensors --shards 3 --json found.json " + how);
        CAPTURE(run.err);
        REQUIRE(run.status == 0);
        CHECK_THAT(run.out,
                   contains("\nclass 0, mask value 0: dice 0.") && contains("\nclass 1, mask value 100: dice "));
        const std::string json = get_bytes(place / "found.json");
        if (first.empty()) first = json;
        CHECK(json == first);
        const auto figures = nlohmann::json::parse(json);
        CHECK(figures["dice"].get<double>() == Approx(mean).margin(0.005));
        REQUIRE(figures["classes"].size() == 2);
        for (std::size_t c = 0; c < 2; ++c) {
            CHECK(figures["classes"][c]["value"] == nlohmann::json({c == 0 ? 0 : 100}));
            CHECK(figures["classes"][c]["dice"].get<double>() ==
                  Approx(2 * common[c] / (found[c] + there[c])).margin(0.005));
            CHECK(figures["classes"][c]["iou"].get<double>() ==
                  Approx(common[c] / (found[c] + there[c] - common[c])).margin(0.005));
        }
    }
    // The weights contain the ignored value; a class that no mask has.
    CHECK_THAT(refusal(place, "evaluate -m net.safetensors --ignore-value 7", 1),
               contains("a pixel of 255, which is not the value of a class"));
    CHECK_THAT(refusal(place, "evaluate -m net.safetensors --ignore-value 1:2", 1), contains("ignore_value"));
    REQUIRE(run_unet(place, "evaluate -m net.safetensors --sheet sheet.jpg --quiet").status == 0);
    CHECK(get_bytes(place / "sheet.jpg").starts_with("\xff\xd8\xff"));
    CHECK_THAT(refusal(place, "evaluate -m net.safetensors --sheet sheet.bmp", 2),
               contains("--sheet: value is sheet.bmp; expected a name that ends in .png or .jpg"));
}

TEST_CASE("evaluate reports a network with outputs that are not numbers, under every strategy") {
    const UnetPlace place(3);
    {
        manual_seed(11);
        unet::UNet net({.width = 4});
        const NoGrad no_grad;
        net.outc.conv.bias->tensor().copy_(Tensor::full({2}, std::nan("")));
        save(net, place / "net");
    }
    for (const std::string how : {"--devices cpu:0", "--parallel ddp --devices cpu:0,cpu:1"}) {
        const ProgramRun run = run_unet(place, "evaluate -m net -s 1 " + how);
        CAPTURE(run.err);
        CHECK(run.status == 0);
        CHECK_THAT(run.out, contains("shape_00002.jpg nan\n") && contains("\ndice nan of 3 images\n"));
    }
}

TEST_CASE("weights are trained further with other mask values") {
    const UnetPlace place(6);  // palettes of black and white: 0 and 1
    const auto masks_of = [&](const char* data, std::uint8_t low, std::uint8_t high) {
        std::filesystem::create_directories(place / data / "masks");
        std::filesystem::copy(place / "data/imgs", place / data / "imgs");
        for (int row = 0; row < 6; ++row) {
            const std::string name = "shape_0000" + std::to_string(row);
            HostImage mask = read_image(place / "data/masks" / (name + "_mask.gif"));
            mask.mode = ImageMode::grey;
            mask.palette.clear();
            for (std::uint8_t& level : mask.pixels) level = level == 0 ? low : high;
            write_png(place / data / "masks" / (name + "_mask.png"), mask);
        }
    };
    masks_of("other", 7, 200);
    const std::string train = "train --width 4 --scale 1 -e 1 -b 2 -v 0 --devices cpu:0 ";
    train_unet(place, "-e 1 -b 2 -v 0 --devices cpu:0 --save base");
    std::filesystem::remove(place / "base.resume");
    const ProgramRun run = run_unet(place, train + "--data other --load base --save tuned");
    CAPTURE(run.err);
    REQUIRE(run.status == 0);
    CHECK_THAT(
        run.out,
        contains("unet: masks have the values 7,200, base was saved with 0,1; class numbers follow the masks\n"));
    REQUIRE(run_unet(place, "predict -m tuned -i data/imgs/shape_00001.jpg -o mask.png --quiet").status == 0);
    for (const std::uint8_t value : pixels_of(place / "mask.png")) CHECK((value == 7 || value == 200));
    // Values that are given, also in reverse order; a resumed run keeps its values.
    REQUIRE(run_unet(place, train + "--data other --load base --save turned --mask-values 200,7 --quiet").status == 0);
    CHECK_THAT(get_bytes(place / "turned").substr(0, 20000), contains("[[200],[7]]"));
    CHECK_THAT(refusal(place, train + "--data other --load turned --save turned --mask-values 7,200", 2),
               contains("--mask-values 7,200: the run saved in turned has 200,7; expected the same"));
    CHECK_THAT(refusal(place, train + "--load turned --save turned", 1),
               contains("the value of a class; expected one of 7, 200") ||
                   contains("the value of a class; expected one of 200, 7"));
    CHECK_THAT(refusal(place, train + "--mask-values 0,1,", 2),
               contains("--mask-values: value is 0,1,; expected a list such as"));
    CHECK_THAT(refusal(place, train + "--mask-values 0,256", 2),
               contains("--mask-values: value is 0,256; expected a list such as"));
    CHECK_THAT(refusal(place, train + "--mask-values 0,9", 1), contains("the value of a class; expected one of 0, 9"));
    // Masks of the same values with a reversed palette.
    CHECK_THAT(refusal(place, "predict -m base -i data/imgs/shape_00001.jpg -o x.png --mask-values 3", 2),
               contains("1 values for a network of 2 classes"));
    for (int row = 0; row < 6; ++row) {
        const auto file = place / "data/masks" / ("shape_0000" + std::to_string(row) + "_mask.gif");
        HostImage mask = read_image(file);
        std::swap(mask.palette[0], mask.palette[1]);
        write_gif(file, mask);
    }
    CHECK_THAT(refusal(place, train + "--load base --save x", 1),
               contains("palettes of the masks differ") && contains("in the training masks"));
    CHECK_THAT(refusal(place, "evaluate -m base", 1), contains("in the training masks"));
}

TEST_CASE("a .pth records the values of its masks") {
    const UnetPlace place(4);
    save_network(place / "net", {.width = 4});
    unet::UNet net({.width = 4});
    load(net, place / "net");
    // A file of the PyTorch program: the state_dict with mask_values in it.
    const auto save_pth = [&](const char* name, const std::string& mask_values) {
        std::string items = text("mask_values") + mask_values;
        std::vector<ArchiveRecord> records;
        for (const NamedTensor& named : named_tensors(net)) {
            const Tensor& tensor_here = named.member->tensor();
            const bool whole = tensor_here.dtype() == DType::i64;
            const std::string key = std::to_string(records.size());
            std::vector<std::int64_t> sizes, strides(static_cast<std::size_t>(tensor_here.dims()), 1);
            for (int d = 0; d < tensor_here.dims(); ++d) sizes.push_back(tensor_here.size(d));
            for (std::size_t d = strides.size(); d-- > 1;) strides[d - 1] = strides[d] * sizes[d];
            items +=
                text(named.name) +
                tensor(storage(whole ? "LongStorage" : "FloatStorage", key, tensor_here.numel()), 0, sizes, strides);
            std::string bytes;
            if (whole)
                for (const std::int64_t value : tensor_here.to_vector<std::int64_t>())
                    bytes += little(static_cast<std::uint64_t>(value), 8);
            else
                for (const float value : tensor_here.to_vector<float>())
                    bytes += little(std::bit_cast<std::uint32_t>(value), 4);
            records.push_back({"archive/data/" + key, bytes});
        }
        records.insert(records.begin(), {"archive/data.pkl", pickle(ordered_dict + mark + items + "u")});
        records.push_back({"archive/version", "3\n"});
        put_bytes(place / name, archive_of(records));
    };
    const auto list = [](const std::string& items) { return "]" + mark + items + "e"; };
    save_pth("grey.pth", list(integer(0) + integer(255)));
    save_pth("colours.pth",
             list(list(integer(0) + integer(0) + integer(0)) + list(integer(255) + integer(0) + integer(9))));
    save_pth("bits.pth", list(no + "\x88"));
    for (const auto& [name, values] : std::vector<std::pair<std::string, std::vector<MaskValue>>>{
             {"grey.pth", {{0}, {255}}}, {"colours.pth", {{0, 0, 0}, {255, 0, 9}}}, {"bits.pth", {{0}, {255}}}}) {
        CAPTURE(name);
        REQUIRE(run_unet(place, "predict -s 1 -m " + name + " data/imgs/shape_00000.jpg -o one.png --quiet").status ==
                0);
        REQUIRE(run_unet(place, "predict -s 1 -m net data/imgs/shape_00000.jpg -o numbers.png --quiet").status == 0);
        const HostImage mask = read_image(place / "one.png"), numbers = read_image(place / "numbers.png");
        std::vector<std::uint8_t> expected;
        for (const std::uint8_t number : numbers.pixels)
            expected.insert(expected.end(), values[number].begin(), values[number].end());
        CHECK(mask.pixels == expected);
    }
    // A set whose masks lack class 0 is numbered as in training: true masks are 255 everywhere.
    std::filesystem::remove_all(place / "data/masks");
    std::filesystem::create_directory(place / "data/masks");
    for (int row = 0; row < 4; ++row)
        write_png(place / "data/masks" / ("shape_0000" + std::to_string(row) + ".png"),
                  {32, 32, ImageMode::grey, std::vector<std::uint8_t>(32 * 32, 255), {}});
    REQUIRE(run_unet(place, "evaluate -s 1 -m grey.pth --json found.json --quiet").status == 0);
    REQUIRE(run_unet(place, "predict -s 1 -m grey.pth -i data/imgs -o masks --quiet").status == 0);
    double mean = 0;
    for (int row = 0; row < 4; ++row) {
        const auto pixels = pixels_of(place / ("masks/shape_0000" + std::to_string(row) + "_OUT.png"));
        const auto found = static_cast<double>(std::count(pixels.begin(), pixels.end(), 255));
        mean += 2 * found / (found + 32 * 32) / 4;
    }
    CHECK(nlohmann::json::parse(get_bytes(place / "found.json"))["dice"].get<double>() == Approx(mean).margin(0.01));
    CHECK(mean > 0);
    // Preserved in the saved file.
    train_unet(place, "-e 1 -b 2 -v 0 --load grey.pth --save tuned.safetensors --devices cpu:0");
    CHECK_THAT(get_bytes(place / "tuned.safetensors").substr(0, 20000), contains("[[0],[255]]"));
    save_pth("wrong.pth", list(integer(0) + integer(999)));
    CHECK_THAT(refusal(place, "predict -m wrong.pth data/imgs/shape_00000.jpg", 1),
               contains("wrong.pth: mask_values does not fit a network of 2 classes"));
}

TEST_CASE("the threshold decides for a network with one class") {
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
