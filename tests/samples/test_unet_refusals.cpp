// Errors of unet, one line each.
#include <limits>
#include <string>
#include <vector>

#include "lockstep/ops/layers.h"
#include "lockstep/parallel/checkpoint.h"
#include "lockstep/parallel/data/image_file.h"
#include "lockstep/parallel/data/safetensors.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/samples/apps/unet/net.h"
#include "lockstep/tests/fixtures/messages.h"
#include "lockstep/tests/samples/unet_fixture.h"

using namespace lockstep;
using namespace lockstep::test;

TEST_CASE("unet reports bad flags in one line") {
    const UnetPlace place;
    const std::string train = "train --quiet --width 4 ";
    for (const char* line : {"",
                             "nonsense",
                             "train --nonsense",
                             "train --classes 0",
                             "train --validation 101",
                             "train --scale 0",
                             "train --scale 1.5",
                             "train --width 1",
                             "train --optimizer lion",
                             "train --schedule never",
                             "train --batch-norm none",
                             "train --exp-name a/b",
                             "train --ddp-mode --parallel dp",
                             "train --save-every 0",
                             "train --optimizer adamw "
                             "--momentum 0.5",
                             "predict",
                             "predict -m net",
                             "evaluate",
                             "evaluate -m net --epochs 1",
                             "evaluate -m net -v 0"})
        refusal(place, line, 2);
    CHECK_THAT(refusal(place, "train --scale 0", 2),
               contains("--scale: value is 0; expected a number above 0 and up to 1 ("));
    CHECK_THAT(refusal(place, "train --validation all", 2),
               contains("--validation: value is all; expected a number from 0 to 100 ("));
    CHECK_THAT(refusal(place, train + "-v 1", 2),
               contains("--validation 1: leaves none of 12 images to validate on; expected more"));
    CHECK_THAT(refusal(place, train + "-v 100", 2), contains("leaves none of 12 images to train on; expected less"));
    CHECK_THAT(refusal(place, train + "-b 12", 2),
               contains("--batch-size: 12 images per step, 11 in the training set; expected fewer per step"));
    CHECK_THAT(refusal(place, train + "-s 0.01", 1), contains("leaves 0 x 0 pixels"));
    CHECK_THAT(
        refusal(place, train + "-s 0.4", 2),
        contains("--scale 0.4: data/imgs: the images become 12 x 12 (width x height); expected at least 16 x 16"));
    CHECK_THAT(refusal(place, train + "--devices cpu:100", 2),
               contains("--devices: cpu:100: no such virtual device; expected cpu:0 to cpu:63"));
    CHECK_THAT(refusal(place, train + "-e 1 --epochs 2", 2), contains("--epochs: given 2 times; expected once"));
    for (const char* flag : {"--load", "--save", "--work-dir", "--json", "--data", "--log-dir"}) {
        CHECK_THAT(refusal(place, train + flag + " ''", 2), contains(std::string(flag)) && contains("empty"));
        CHECK_THAT(refusal(place, train + flag + "=", 2), contains(std::string(flag)));
    }
    CHECK_THAT(refusal(place, "predict -m '' -i x", 2), contains("--model") && contains("empty"));
    for (const char* flag : {"--work-dir 'a{epoch}'", "--save 'a{step}/b'", "--json 'a{epoch}'", "--load 'a{epoch}'",
                             "--log-dir 'a{step}'", "--save a --best 'b{epoch}'"})
        CHECK_THAT(refusal(place, train + flag, 2),
                   contains("} is not allowed; expected it only in the file name of --save"));
    CHECK_THAT(refusal(place, "--config run.toml", 2), contains("unet: "));
    CHECK(run_unet(place, "--help").out.find("--config") == std::string::npos);
    put_bytes(place / "run.toml", "load = \"\"\n");
    CHECK_THAT(refusal(place, train + "--config run.toml", 2), contains("--load: value is empty"));
    put_bytes(place / "run.toml", "quiet = true\nscale = 1\n");
    CHECK_THAT(refusal(place, "evaluate -m net --config run.toml", 1), contains("net: "));
    put_bytes(place / "run.toml", "epocs = 1\n");
    CHECK_THAT(refusal(place, train + "--config run.toml", 2), contains("unknown flag --epocs"));
    put_bytes(place / "run.toml", "epochs = \"many\"\n");
    refusal(place, train + "--config run.toml", 2);
    for (const char* help : {"--help", "train --help", "predict --help", "evaluate --help"})
        CHECK(run_unet(place, help).status == 0);
    CHECK_FALSE(std::filesystem::exists(place / "checkpoints"));
}

TEST_CASE("unet reports a bad folder in one line that names it") {
    const UnetPlace place;
    const std::string train = "train --quiet --width 4 ";
    CHECK_THAT(refusal(place, train + "--data nowhere", 1), contains("nowhere/imgs"));
    std::filesystem::create_directories(place / "empty/imgs");
    std::filesystem::create_directories(place / "empty/masks");
    CHECK_THAT(refusal(place, train + "--data empty", 1), contains("empty/imgs"));
    std::filesystem::rename(place / "data/masks/shape_00004_mask.gif", place / "kept");
    CHECK_THAT(refusal(place, train, 1), contains("shape_00004"));
    put_bytes(place / "data/masks/shape_00004_mask.gif", "GIF89a");
    CHECK_THAT(refusal(place, train, 1), contains("shape_00004_mask.gif"));
    std::filesystem::rename(place / "kept", place / "data/masks/shape_00004_mask.gif");
    const std::string jpeg = get_bytes(place / "data/imgs/shape_00007.jpg");
    put_bytes(place / "data/imgs/shape_00007.jpg", jpeg.substr(0, jpeg.size() / 2));
    CHECK_THAT(refusal(place, train, 1), contains("shape_00007.jpg"));
    put_bytes(place / "data/imgs/shape_00007.jpg", "no image");
    CHECK_THAT(refusal(place, train, 1), contains("shape_00007.jpg"));
    put_bytes(place / "data/imgs/shape_00007.jpg", jpeg);
    HostImage mask{32, 32, ImageMode::grey, std::vector<std::uint8_t>(32 * 32, 2), {}};
    mask.pixels[0] = 0;
    std::filesystem::remove(place / "data/masks/shape_00007_mask.gif");
    write_png(place / "data/masks/shape_00007_mask.png", mask);
    CHECK_THAT(refusal(place, train, 1), contains("classes"));
}

TEST_CASE("unet reports a bad file of weights in one line") {
    const UnetPlace place;
    const auto network = [&](const char* name, const unet::Options& options) {
        unet::UNet net(options);
        save(net, place / name);
    };
    network("good", {.width = 4});
    network("three", {.classes = 3, .width = 4});
    network("grey", {.channels = 1, .width = 4});
    network("wide", {.width = 6});
    network("bilinear", {.bilinear = true, .width = 4});
    Linear other(3, 4);
    save(other, place / "other");
    put_bytes(place / "cut", get_bytes(place / "good").substr(0, 5000));
    put_bytes(place / "cut.pth", std::string("PK\x03\x04", 4) + std::string(100, 'x'));
    put_bytes(place / "nothing", "");

    const std::string train = "train --quiet --width 4 --load ";
    CHECK_THAT(refusal(place, train + "three", 2),
               contains("network has --classes 3 --width 4, flags have --classes 2 --width 4"));
    CHECK_THAT(refusal(place, train + "wide", 2), contains("--width 6"));
    CHECK_THAT(refusal(place, train + "bilinear", 2), contains("--width 4 --bilinear, flags have"));
    CHECK_THAT(refusal(place, train + "grey", 2), contains("data/imgs: images have 3 channels; the network expects 1"));
    CHECK_THAT(refusal(place, "evaluate -m grey", 2), contains("images have 3 channels"));
    CHECK_THAT(refusal(place, "predict -m grey -i data/imgs -o masks", 1), contains("shape_00000.jpg: image has 3"));
    for (const char* command :
         {"train --quiet --width 4 --load ", "evaluate --model ", "predict -i data/imgs -o masks -m "}) {
        for (const char* file : {"other", "cut", "cut.pth", "nothing", "nowhere"}) {
            const std::string line = std::string(command) + file;
            CHECK_THAT(refusal(place, line, 1), contains(std::string(": ") + file));
        }
    }
    CHECK_THAT(refusal(place, train + "other", 1), contains("inc.double_conv.0.weight is missing"));
    // A first layer that declares more than the file has takes no memory.
    const std::vector<float> many(1 << 20);
    write_safetensors(place / "promise",
                      {{"inc.double_conv.0.weight", DType::f32, {1 << 18, 1, 2, 2}, many.data()},
                       {"outc.conv.weight", DType::f32, {2, 1 << 18, 1, 1}, many.data()},
                       {"down4.maxpool_conv.1.double_conv.0.weight", DType::f32, {4, 4, 3, 3}, many.data()}});
    CHECK_THAT(refusal(place, "predict -i data/imgs -o masks -m promise", 1),
               contains("does not fit a U-Net of width"));
    write_safetensors(place / "values",
                      {{"outc.conv.weight", DType::f32, {2, 4, 1, 1}, many.data()},
                       {"inc.double_conv.0.weight", DType::f32, {4, 3, 3, 3}, many.data()},
                       {"up1.up.weight", DType::f32, {1}, many.data()},
                       {"down4.maxpool_conv.1.double_conv.0.weight", DType::f32, {64, 32, 3, 3}, many.data()}},
                      {{"mask_values", "[[0],[999]]"}});
    CHECK_THAT(refusal(place, "predict -i data/imgs -o masks -m values", 1), contains("mask_values"));
}

TEST_CASE("unet predict reports bad images and names of masks in one line") {
    const UnetPlace place(2);
    unet::UNet net({.width = 4});
    save(net, place / "net");
    const std::string predict = "predict -m net ";
    CHECK_THAT(refusal(place, predict + "-i data/imgs", 2), contains("--output"));
    std::filesystem::create_directory(place / "empty");
    CHECK_THAT(refusal(place, predict + "-i empty -o masks", 1), contains("empty: no images in this folder"));
    CHECK_THAT(refusal(place, predict + "-i nowhere.jpg", 1), contains("nowhere.jpg"));
    put_bytes(place / "huge.png", "\x89PNG\r\n\x1a\n");
    CHECK_THAT(refusal(place, predict + "-i huge.png", 1), contains("huge.png"));
    std::filesystem::create_directory(place / "twice");
    std::filesystem::copy_file(place / "data/imgs/shape_00000.jpg", place / "twice/a.jpg");
    std::filesystem::copy_file(place / "data/imgs/shape_00001.jpg", place / "twice/a.jpeg");
    CHECK_THAT(refusal(place, predict + "-i twice -o masks", 2), contains("the same mask file"));
    CHECK_THAT(refusal(place, predict + "-i data/imgs/shape_00000.jpg -s 0.001", 1), contains("leaves 0 x 0 pixels"));
    CHECK_THAT(refusal(place, predict + "-i data/imgs -o /proc/none", 1), contains("/proc/none"));
    CHECK_THAT(refusal(place, "train --quiet --width 4 --devices cpu:0 -v 50 --save /proc/none/net", 1),
               contains("/proc/none"));
    for (const char* device : {"cpu:9", "cpu:100", "tape"})
        CHECK_THAT(refusal(place, predict + "-i data/imgs -o masks --device " + device, 2),
                   contains(std::string("--device ") + device + ": expected cpu:0, which has all cores"));
    CHECK(run_unet(place, predict + "-i data/imgs -o masks --device cpu:0 --scale 1").status == 0);
    CHECK_THAT(refusal(place, predict + "-i data/imgs -o masks -t 0.7", 2),
               contains("--mask-threshold: not used by a network of 2 classes; expected a network of one class"));
    {
        const NoGrad no_grad;
        net.outc.conv.bias->tensor().fill_(std::numeric_limits<float>::quiet_NaN());
    }
    save(net, place / "diverged");
    CHECK_THAT(refusal(place, "predict -m diverged -i data/imgs -o none --device cpu:0 --scale 1", 1),
               contains("shape_00000.jpg: the output of the network in diverged is not finite; expected finite"));
    CHECK(names_in(place / "none").empty());
    CHECK_THAT(refusal(place, "evaluate -m net --pictures 3", 2), contains("--pictures requires --sheet"));
    CHECK_THAT(refusal(place, predict + "-i data/imgs -o masks --scale 0.3", 2),
               contains("--scale 0.3: data/imgs/shape_00000.jpg: the sides become 9 x 9 (width x height); expected at "
                        "least 16 x 16"));
}
