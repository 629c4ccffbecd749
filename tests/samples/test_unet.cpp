// unet train from a user's view: its flags, its learning, bit-identity on any devices, resuming, its log.
#include "lockstep/samples/apps/unet/net.h"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/parallel/data/image_file.h"
#include "lockstep/parallel/data/safetensors.h"
#include "lockstep/parallel/lockstep.h"
#include "lockstep/samples/apps/unet/loss.h"
#include "lockstep/samples/apps/unet/score.h"
#include "lockstep/tests/fixtures/files.h"
#include "lockstep/tests/fixtures/messages.h"
#include "lockstep/tests/fixtures/processes.h"
#include "lockstep/tests/fixtures/waiting.h"
#include "lockstep/tests/samples/unet_fixture.h"

using namespace lockstep;
using namespace lockstep::test;

namespace {

/// Weights and state of the run.
std::string checkpoint(const TemporaryDirectory& place, const std::string& name) {
    std::string bytes = get_bytes(place / (name + ".safetensors"));
    REQUIRE(!bytes.empty());
    return bytes + get_bytes(place / (name + ".safetensors.resume"));
}

std::vector<nlohmann::json> lines_of(const std::filesystem::path& file) {
    std::vector<nlohmann::json> lines;
    std::istringstream text(get_bytes(file));
    for (std::string line; std::getline(text, line);) lines.push_back(nlohmann::json::parse(line));
    return lines;
}

std::set<std::string> tags_in(const std::filesystem::path& directory) {
    std::set<std::string> tags;
    for (const auto& entry : std::filesystem::directory_iterator(directory)) {
        if (!entry.path().filename().string().starts_with("events.")) continue;
        for (const std::string& record : read_records(get_bytes(entry.path()))) {
            const ProtobufFields event(record);
            if (!event.bytes.contains(5)) continue;  // Event.summary
            const ProtobufFields summary = event.message(5);
            if (!summary.bytes.contains(1)) continue;
            for (const std::string& value : summary.bytes.at(1)) tags.insert(ProtobufFields(value).bytes.at(1).at(0));
        }
    }
    return tags;
}

}  // namespace

TEST_CASE("U-Net has the parameters of the PyTorch program's network") {
    // Parameters of a double convolution: two weights, and a weight and a bias of each BatchNorm.
    const auto block = [](std::int64_t in, std::int64_t out) { return 9 * in * out + 9 * out * out + 4 * out; };
    const auto parameters = [&](std::int64_t w, std::int64_t classes) {
        std::int64_t count = block(3, w) + classes * (w + 1);
        for (std::int64_t level = 1; level <= 8; level *= 2) {
            const std::int64_t above = level * w, below = 2 * above;
            count += block(above, below) + block(below, above) + 4 * below * above + above;
        }
        return count;
    };
    CHECK(parameters(64, 2) == 31'037'698);
    for (const std::int64_t width : {4, 6}) {
        unet::UNet net({.classes = 5, .width = width});
        std::int64_t count = 0;
        std::set<std::string> names;
        for (const NamedTensor& named : named_tensors(net)) {
            if (named.is_parameter) count += named.member->tensor().numel();
            names.insert(named.name);
        }
        CHECK(count == parameters(width, 5));
        CHECK(names.size() == 118);
        for (const char* name :
             {"inc.double_conv.0.weight", "inc.double_conv.4.running_var", "down4.maxpool_conv.1.double_conv.3.weight",
              "up1.up.bias", "up4.conv.double_conv.1.num_batches_tracked", "outc.conv.bias"})
            CHECK(names.contains(name));
        CHECK_FALSE(names.contains("inc.double_conv.0.bias"));
    }
}

TEST_CASE("a U-Net produces maps of every size, bilinear or not") {
    const NoGrad no_grad;
    for (const bool bilinear : {false, true}) {
        unet::UNet net({.channels = 2, .classes = 3, .bilinear = bilinear, .width = 4});
        set_training(net, false);
        for (const Shape& shape : {Shape{1, 2, 16, 16}, Shape{2, 2, 33, 47}})
            CHECK(net.forward(Tensor::zeros(shape)).shape() == Shape{shape[0], 3, shape[2], shape[3]});
    }
}

TEST_CASE("--benchmark: choices are saved and repeated bit-identically under another strategy") {
    const UnetPlace place(8);
    const auto algorithms = [&](const std::string& file) {
        const auto figures = nlohmann::json::parse(get_bytes(place / file));
        return figures.value("algorithms", std::map<std::string, std::string>());
    };
    const std::string flags = "--shards 4 -b 4 -v 25 --benchmark ";
    train_unet(place, flags + "--parallel none --steps 1 --save first --json first.json");
    REQUIRE(!algorithms("first.json").empty());
    std::string bytes;
    for (const std::string strategy :
         {"--parallel none", "--devices cpu:0,cpu:1", "--parallel ddp --devices cpu:0,cpu:1"}) {
        CAPTURE(strategy);
        train_unet(place, flags + strategy + " --steps 3 --load first --save second.safetensors --json second.json");
        const auto repeated = algorithms("second.json");
        for (const auto& [question, name] : algorithms("first.json")) CHECK(repeated.at(question) == name);
        const std::string weights = get_bytes(place / "second.safetensors");
        if (bytes.empty()) bytes = weights;
        CHECK(weights == bytes);
    }
    const ProgramRun by_rule =
        run_unet(place, "train --quiet --width 4 --scale 1 --shards 4 -b 4 -v 25 --steps 2 --load first --save third");
    CHECK(by_rule.status == 0);
    CHECK_THAT(by_rule.err, contains("the run selected its algorithms by benchmarking, and continues without"));
    CHECK(by_rule.lines_of_err() == 1);
}

TEST_CASE("the dice of a set counts every image once and does not change the model's mode") {
    manual_seed(4);
    unet::UNet net({.width = 4});
    {
        const NoGrad no_grad;
        net.outc.conv.bias->tensor().zero_();  // so that no class is preferred
    }
    DataParallel model(net, Devices({Device::cpu(0), Device::cpu(1)}), {.shards = 3});
    const Tensor images = Tensor::rand({7, 3, 16, 16});
    std::vector<std::int64_t> classes;
    for (std::int64_t i = 0; i < 7 * 256; ++i) classes.push_back(i % 5 == 0 ? 1 : 0);
    const Tensor masks = Tensor::from(classes, {7, 16, 16});
    Loader loader(model, TensorDataset(images, masks), {.batch_size = 4});
    model.train();
    const auto dice = unet::dice_of_images(model, loader);
    CHECK(std::get<1>(model->inc.double_conv.layers).training);

    model.eval();
    const NoGrad no_grad;
    const std::vector<float> logits = model.forward(images).to_vector<float>();
    double mean = 0;
    REQUIRE(dice.size() == 7);
    for (std::size_t n = 0; n < 7; ++n) {
        double common = 0, found = 0, wanted = 0;
        for (std::size_t i = 0; i < 256; ++i) {
            const double one = logits[(n * 2 + 1) * 256 + i] > logits[n * 2 * 256 + i] ? 1 : 0;
            const double there = classes[n * 256 + i] == 1 ? 1 : 0;
            common += one * there;
            found += one;
            wanted += there;
        }
        const double expected = (2 * common + 1e-6) / (found + wanted + 1e-6);
        CHECK(dice.at(static_cast<std::int64_t>(n)) == Approx(expected).epsilon(1e-5));
        mean += expected / 7;
    }
    CHECK(unet::mean_dice(model, loader) == Approx(mean).epsilon(1e-5));
    CHECK_FALSE(std::get<1>(model->inc.double_conv.layers).training);
}

TEST_CASE("the flags of the PyTorch program are accepted, with underscores and hyphens") {
    const UnetPlace place(8, 64);
    train_unet(place, "-e 1 -b 2 -l 1e-3 -s 0.5 -v 20 -c 3 --bilinear --seed 0 --save one.safetensors");
    train_unet(place,
               "--epochs 1 --batch_size 2 --learning_rate 1e-3 --scale 0.5 --validation 20 --classes 3 --bilinear "
               "--save two.safetensors");
    put_bytes(place / "run.toml",
              "epochs = 1\nbatch_size = 2\nlr = 1e-3\nscale = 0.5\nvalidation = 20\nclasses = 3\nbilinear = true\n"
              "width = 4\nquiet = true\nsave = \"three.safetensors\"\n");
    REQUIRE(run_unet(place, "train --config run.toml").status == 0);
    CHECK((checkpoint(place, "one") == checkpoint(place, "two")));
    CHECK((checkpoint(place, "one") == checkpoint(place, "three")));
}

TEST_CASE("checkpoints have the PyTorch program's names: every N epochs and the last one") {
    const UnetPlace place;
    const auto saved = [&](const std::string& directory) {
        std::set<std::string> names;
        for (const auto& entry : std::filesystem::directory_iterator(place / directory))
            if (entry.path().extension() == ".safetensors") names.insert(entry.path().stem());
        return names;
    };
    train_unet(place, "-e 3 -b 5 --save_every 2");
    CHECK(saved("checkpoints") == std::set<std::string>{"checkpoint_epoch2", "checkpoint_epoch3"});
    train_unet(place, "-e 3 -b 5 -v 0 --exp_name mine --ddp_mode --devices cpu:0 --shards 1");
    CHECK(saved("checkpoints/mine") == std::set<std::string>{"checkpoint_epoch3"});
    for (const char* name : {"config.toml", "unet.jsonl"})
        CHECK(std::filesystem::exists(place / "checkpoints/mine" / name));
    CHECK_THAT(get_bytes(place / "checkpoints/mine/config.toml"), contains("parallel=\"ddp\""));
    CHECK((checkpoint(place, "checkpoints/mine/checkpoint_epoch3").size() > 1000));
    // The saved configuration makes the same run again, in the same place.
    const std::string before = checkpoint(place, "checkpoints/mine/checkpoint_epoch3");
    const ProgramRun again = run_unet(place, "train --config checkpoints/mine/config.toml");
    CHECK(again.err.empty());
    REQUIRE(again.status == 0);
    CHECK((checkpoint(place, "checkpoints/mine/checkpoint_epoch3") == before));
    const SafetensorsFile file(place / "checkpoints/mine/checkpoint_epoch3.safetensors");
    CHECK(file.metadata().at("mask_values") == "[[0],[1]]");
    CHECK(file.metadata().at("scale") == "1");
}

TEST_CASE("unet learns shapes") {
    const UnetPlace place(40, 48);
    const ProgramRun run =
        run_unet(place, "train --width 6 --scale 1 -e 10 -b 4 -l 1e-2 --shards 2 --json figures.json --flip --seed 1");
    CAPTURE(run.err);
    REQUIRE(run.status == 0);
    CHECK_THAT(run.out, contains("unet: data-parallel on") && contains("4 rows per step in 2 shards, 36 per epoch") &&
                            contains("epoch 1, step 2 of 9: ") && contains("epoch 10: ") && contains("dice 0.") &&
                            contains("saved checkpoints/checkpoint_epoch5.safetensors"));
    const auto figures = nlohmann::json::parse(get_bytes(place / "figures.json"));
    REQUIRE(figures["losses"].size() == 90);
    CHECK(figures["losses"].front().get<double>() > 0.7);
    // The line of an epoch has its mean loss.
    double mean = 0;
    for (std::size_t step = 81; step < 90; ++step) mean += figures["losses"][step].get<double>() / 9;
    const auto at = run.out.find("epoch 10: loss ");
    REQUIRE(at != std::string::npos);
    CHECK(std::stod(run.out.substr(at + 15, 6)) == Approx(mean).margin(6e-5));
    CHECK(figures["losses"].back().get<double>() < 0.5 * figures["losses"].front().get<double>());
    CHECK(figures["dice"].get<double>() > 0.6);
}

TEST_CASE("training has the same bits on any devices, with augmentation and any number of workers") {
    const UnetPlace place;
    const std::string same = "-e 2 -b 8 -l 1e-3 --shards 8 --seed 5 --optimizer rmsprop ", flip = "--flip ";
    train_unet(place,
               same + flip + "--parallel none --devices cpu:0 --workers 2 --save none.safetensors --json none.json");
    const auto dice = [&](const std::string& name) {
        return nlohmann::json::parse(get_bytes(place / (name + ".json")))["dice"];
    };
    for (const auto& [name, how] : std::vector<std::pair<std::string, std::string>>{
             {"dp2", "--devices cpu:0,cpu:1 --workers 1"},
             {"dp8", "--devices cpu:0,cpu:1,cpu:2,cpu:3,cpu:4,cpu:5,cpu:6,cpu:7 --workers 4"},
             {"ddp3", "--parallel ddp --devices cpu:0,cpu:1,cpu:2 --workers 3"}}) {
        CAPTURE(name);
        train_unet(place, same + flip + how + " --save " + name + ".safetensors --json " + name + ".json");
        CHECK((checkpoint(place, name) == checkpoint(place, "none")));
        CHECK(dice(name) == dice("none"));
    }
    train_unet(place, same + "--save plain.safetensors");
    CHECK((checkpoint(place, "plain") != checkpoint(place, "none")));
}

TEST_CASE("mixed precision has the same bits on any devices, and losses close to f32") {
    const UnetPlace place;
    const std::string same = "-e 7 --steps 20 -b 4 -l 1e-4 --shards 4 --seed 5 --optimizer rmsprop -v 30 ";
    const auto train = [&](const std::string& name, const std::string& how) {
        const ProgramRun run = run_unet(place, "train --quiet --width 4 --scale 1 " + same + how + " --save " + name +
                                                   ".safetensors --json " + name + ".json");
        CAPTURE(how);
        CAPTURE(run.err);
        REQUIRE(run.status == 0);
        return nlohmann::json::parse(get_bytes(place / (name + ".json")))["losses"].get<std::vector<double>>();
    };
    const std::vector<double> f32 = train("f32", "--parallel none --devices cpu:0");
    for (const std::string amp : {"bf16", "fp16"}) {
        CAPTURE(amp);
        const std::vector<double> losses = train("none", "--parallel none --devices cpu:0 --amp " + amp);
        REQUIRE(losses.size() == 20);
        CHECK(losses != f32);
        for (std::size_t i = 0; i < losses.size(); ++i) CHECK(losses[i] == Approx(f32[i]).epsilon(0.02));
        // Weights and the optimizer's state are f32.
        const SafetensorsFile saved(place / "none.safetensors");
        for (const SafetensorsEntry& entry : saved.entries())
            CHECK((entry.dtype == DType::f32 || entry.dtype == DType::i64));
        train("dp3", "--devices cpu:0,cpu:1,cpu:2 --amp " + amp);
        CHECK((checkpoint(place, "dp3") == checkpoint(place, "none")));
    }
    const std::vector<double> alone = train("alone", "--devices cpu:0,cpu:1 --amp");
    train("ddp2", "--parallel ddp --devices cpu:0,cpu:1 --amp=bf16");
    CHECK((checkpoint(place, "ddp2") == checkpoint(place, "alone")));
    train("ddp4", "--parallel ddp --backend gloo --devices cpu:0,cpu:1,cpu:2,cpu:3 --amp bf16");
    CHECK((checkpoint(place, "ddp4") == checkpoint(place, "alone")));
    CHECK(alone == train("none", "--parallel none --devices cpu:0 --amp bf16"));
}

TEST_CASE("a run that is stopped within an epoch resumes on other devices with the same bits") {
    const UnetPlace place;
    const std::string same = "-e 3 -b 3 -l 1e-3 --shards 3 --flip -v 30 ";
    train_unet(place, same + "--devices cpu:0 --save whole.safetensors");
    train_unet(place, same + "--devices cpu:0,cpu:1 --steps 4 --save part.safetensors");
    train_unet(place, same +
                          "--parallel ddp --devices cpu:0,cpu:1,cpu:2 --start_from part.safetensors --save "
                          "end.safetensors");
    CHECK((checkpoint(place, "end") == checkpoint(place, "whole")));
    CHECK_THAT(refusal(place, "train --quiet --width 4 --scale 1 -e 3 -b 3 -l 0.01 --load part.safetensors", 2),
               contains("--lr 0.01: the schedule saved in part.safetensors started with 0.001; expected the same"));
}

TEST_CASE("a run resumes only with the same images and masks") {
    const UnetPlace place;
    const std::string same = "train --quiet --width 4 --scale 1 -e 3 -b 3 --shards 3 ";
    REQUIRE(run_unet(place, same + "--steps 2 --save part.safetensors").status == 0);
    const std::string resumed = same + "--steps 4 --load part.safetensors ";
    REQUIRE(run_unet(place, resumed).status == 0);
    for (const char* folder : {"data/imgs", "data/masks"}) {
        std::set<std::filesystem::path> files;
        for (const auto& entry : std::filesystem::directory_iterator(place / folder)) files.insert(entry.path());
        REQUIRE(files.size() == 12);
        const auto path = *std::next(files.begin(), 5);
        CAPTURE(path);
        const std::string bytes = get_bytes(path);
        std::string changed = bytes;
        changed[changed.size() - 3] = static_cast<char>(changed[changed.size() - 3] ^ 1);  // same size
        for (const std::string& other : {changed, bytes + "more"}) {
            put_bytes(path, other);
            CHECK_THAT(refusal(place, resumed, 2),
                       contains("unet train: dataset 12 images, ") &&
                           contains(": the run saved in part.safetensors has 12 images, ") &&
                           contains("; expected the same, or a change listed in --allow-changed"));
        }
        put_bytes(path, bytes);
        REQUIRE(run_unet(place, resumed).status == 0);
    }
}

TEST_CASE("contents of large files are compared in evenly spaced parts, up to both ends") {
    const UnetPlace place;
    const auto path = std::filesystem::directory_iterator(place / "data/imgs")->path();
    const std::string bytes = get_bytes(path) + std::string(200'000, 'x');  // readers ignore what follows an image
    put_bytes(path, bytes);
    const std::string same = "train --quiet --width 4 --scale 1 -e 3 -b 3 ";
    REQUIRE(run_unet(place, same + "--steps 1 --save part.safetensors").status == 0);
    const std::size_t last = bytes.size() - (std::size_t{16} << 10);  // begin of the last of four parts
    for (const std::size_t at : {last / 3 + 100, last / 3 * 2 + 100, last + 100, bytes.size() - 1}) {
        CAPTURE(at);
        std::string changed = bytes;
        changed[at] = 'y';
        put_bytes(path, changed);
        CHECK_THAT(refusal(place, same + "--steps 2 --load part.safetensors", 2), contains("dataset 12 images, "));
    }
    put_bytes(path, bytes);
    CHECK(run_unet(place, same + "--steps 2 --load part.safetensors").status == 0);
}

TEST_CASE("a run resumes only with the flags that determine its result") {
    const UnetPlace place;
    const std::string same =
        "train --quiet --width 4 --scale 1 -e 3 -b 3 --shards 2 -v 30 --seed 4 --flip --lr-min 1e-8 ";
    REQUIRE(run_unet(place, same + "--steps 2 --save part.safetensors").status == 0);
    const auto without = [](std::string flags, const std::string& flag) {
        const auto at = flags.find(flag);
        REQUIRE(at != std::string::npos);
        return flags.erase(at, flag.size());
    };
    const auto refused = [&](const std::string& flags, const std::string& text) {
        CHECK_THAT(refusal(place, flags + " --load part.safetensors", 2), contains("unet train: " + text));
    };
    const std::string saved = ": the run saved in part.safetensors has ";
    const std::string tail = "; expected the same, or a change listed in --allow-changed";
    refused(without(same, "--scale 1 ") + "--scale 0.6", "--scale 0.6" + saved + "1" + tail);
    refused(without(same, "-v 30 ") + "-v 40",
            "rows 8" + saved + "9; --validation 40" + saved + "30" + tail);  // 12 images, of which 3 or 4 are held out
    refused(without(same, "--flip "), "--flip false" + saved + "true" + tail);
    refused(without(same, "--lr-min 1e-8 ") + "--schedule constant",
            "--schedule constant" + saved + "cosine to 1e-08" + tail);
    refused(without(same, "--lr-min 1e-8 "), "--schedule cosine to 1e-07" + saved + "cosine to 1e-08" + tail);
    refused(without(same, "-e 3 ") + "-e 20", "--epochs 20 (cosine)" + saved + "3 (cosine)" + tail);
    refused(same + "--batch-norm sync", "--batch-norm sync" + saved + "all" + tail);
    refused(same + "--loss ce", "--loss ce" + saved + "ce+dice" + tail);
    refused(same + "--class-weights 1,2", "--class-weights 1,2" + saved);
    refused(same + "--early-stop 3", "--early-stop 3" + saved + "off" + tail);
    refused(same + "--clip 1", "--clip norm 1 of order 2 in group -1" + saved + "none" + tail);
    refused(same + "--accumulation-steps 3", "--accumulation-steps 3" + saved + "1" + tail);
    refused(same + "--amp bf16", "--amp bf16" + saved + "off" + tail);
    refused(without(same, "--seed 4 "), "--seed 0" + saved + "4" + tail);
    refused(without(same, "--shards 2 ") + "--shards 3", "--shards 3" + saved + "2" + tail);
    refused(same + "--ignore-value 255", "--ignore-value 255" + saved + "none");
    CHECK_THAT(refusal(place, same + "--optimizer sgd --load part.safetensors", 1), contains("AdamW"));
    // None of these determines it.
    CHECK(run_unet(place, same + "--devices cpu:0 --workers 0 --deterministic --load part.safetensors").status == 0);
    CHECK(run_unet(place, without(same, "-e 3 ") +
                              "-e 4 --steps 5 --load part.safetensors --save other --allow-changed epochs")
              .status == 0);
}

TEST_CASE("a signal stops a run, which prints how to resume") {
    const UnetPlace place;
    StartedProcess run({"/bin/sh", "-c",
                        "cd " + shell_word(place.path()) + " && exec " + shell_word(PROGRAMS "/unet") +
                            " train --quiet --width 4 --scale 1 -e 1000000 -b 3 --shards "
                            "2 --save_every 1 --devices cpu:0"});
    REQUIRE(comes_true([&] { return std::filesystem::exists(place / "checkpoints/checkpoint_epoch1.safetensors"); }));
    run.send(SIGINT);
    CHECK(run.status() == 128 + SIGINT);
    CHECK_THAT(run.err(),
               contains("unet train: stopped by SIGINT after ") && contains("resume with the same flags and --load "
                                                                            "checkpoints/INTERRUPTED.safetensors"));
    const std::string err = run.err(), saved = "checkpoints/INTERRUPTED.safetensors";
    const auto steps = std::stol(err.substr(err.find(" after ") + 7));
    const std::string same = "-e 1000000 -b 3 --shards 2 --steps " + std::to_string(steps + 3) + " ";
    train_unet(place, same + "--parallel ddp --devices cpu:0,cpu:1 --load " + saved + " --save rest.safetensors");
    train_unet(place, same + "--devices cpu:0 --save whole.safetensors");
    CHECK((checkpoint(place, "rest") == checkpoint(place, "whole")));
}

TEST_CASE("the log has every step, five evaluations an epoch, pictures and histograms") {
    const UnetPlace place;
    train_unet(place, "-e 2 -b 2 --log_dir log");
    long steps = 0, evaluations = 0;
    for (const auto& line : lines_of(place / "log/unet.jsonl")) {
        if (line.contains("loss") && line.contains("epoch")) ++steps;
        if (!line.contains("dice")) continue;
        ++evaluations;
        CHECK(line["lr"].get<double>() == Approx(line["step"] < 6 ? 1e-5 : 1e-7 + (1e-5 - 1e-7) / 2));
    }
    CHECK(steps == 12);  // 11 images to train on
    CHECK(evaluations == 10);
    const std::set<std::string> tags = tags_in(place / "log");
    for (const char* tag : {"loss", "epoch", "dice", "lr", "image", "mask/true", "mask/predicted",
                            "weights/outc.conv.weight", "gradients/inc.double_conv.0.weight"}) {
        CAPTURE(tag);
        CHECK(tags.contains(tag));
    }
}

TEST_CASE("--recipe pytorch-unet sets six flags, explicit ones override it, and the configuration repeats it") {
    const UnetPlace place;
    const std::string same = "-e 1 -b 3 -l 1e-3 --shards 3 ";
    train_unet(place, same + "--recipe pytorch-unet --work-dir run --save recipe.safetensors");
    train_unet(
        place,
        same +
            "--optimizer rmsprop --momentum 0.999 --clip 1 --schedule plateau --lr-min 0 --loss ce+pooled-dice --save "
            "flags.safetensors");
    CHECK((checkpoint(place, "recipe") == checkpoint(place, "flags")));
    for (const char* line :
         {"optimizer=\"rmsprop\"", "momentum=0.999", "clip=1", "schedule=\"plateau\"", "loss=\"ce+pooled-dice\""})
        CHECK_THAT(get_bytes(place / "run/config.toml"), contains(line));
    REQUIRE(run_unet(place, "train --config run/config.toml --save again.safetensors").status == 0);
    CHECK((checkpoint(place, "recipe") == checkpoint(place, "again")));
    for (const char* other : {"--optimizer sgd", "--momentum 0.5", "--clip 0.01", "--loss ce", "--schedule constant"}) {
        train_unet(place, same + "--recipe pytorch-unet " + other + " --save other.safetensors");
        CHECK((checkpoint(place, "recipe") != checkpoint(place, "other")));
    }
    CHECK_THAT(refusal(place, "train --quiet --width 4 -v 0 --schedule plateau", 2),
               contains("--schedule plateau: no validation images"));
}

TEST_CASE("the rate falls after evaluations without a better dice, and a resumed run counts them") {
    const UnetPlace place;
    const std::string same = "-b 4 -l 1e-2 --shards 2 --schedule plateau -v 30 --seed 4 ";
    train_unet(place, same + "-e 5 --log-dir log --save whole.safetensors");
    // torch.optim.lr_scheduler.ReduceLROnPlateau(mode="max", patience=5), as documented.
    double best = -1e300, rate = 1e-2;
    int bad = 0;
    long evaluations = 0, falls = 0;
    for (const auto& line : lines_of(place / "log/unet.jsonl")) {
        if (!line.contains("dice")) continue;
        ++evaluations;
        CHECK(line["lr"].get<double>() == Approx(rate));  // before this evaluation
        const double dice = line["dice"];
        bad = dice > best * (best > 0 ? 1 + 1e-4 : 1 - 1e-4) ? 0 : bad + 1;
        if (bad == 0) best = dice;
        if (bad > 5) rate *= 0.1, bad = 0, ++falls;
    }
    CHECK(evaluations >= 10);
    CHECK(falls > 0);
    train_unet(place, same + "-e 5 --steps 5 --save part.safetensors");
    train_unet(place, same + "-e 5 --load part.safetensors --save rest.safetensors");
    CHECK((get_bytes(place / "rest.safetensors") == get_bytes(place / "whole.safetensors")));
}

TEST_CASE("class weights and ignored pixels train with the same bits under every strategy") {
    const UnetPlace place(8);
    for (const std::string flags : {"-c 2 --class-weights 0.5,2 --ignore-value 2 --loss ce+pooled-dice",
                                    "-c 1 --class-weights 3 --ignore-value 2", "-c 1 --class-weights 3"}) {
        CAPTURE(flags);
        if (flags.find("ignore") != std::string::npos)
            for (int row = 0; row < 8; ++row) {
                const auto file = place / "data/masks" / ("shape_0000" + std::to_string(row) + "_mask.gif");
                HostImage mask = read_image(file);
                mask.palette.resize(3, {200, 200, 200});
                for (std::size_t i = 0; i < mask.pixels.size(); i += 7) mask.pixels[i] = 2;
                write_gif(file, mask);
            }
        else
            samples::write_shapes(place / "data", {.count = 8, .width = 32, .height = 32, .seed = 3});
        const std::string same = "-e 2 -b 4 -l 1e-3 --shards 4 -v 25 " + flags + " --save ";
        train_unet(place, same + "one.safetensors --parallel none");
        train_unet(place, same + "two.safetensors --devices cpu:0,cpu:1");
        train_unet(place, same + "three.safetensors --parallel ddp --devices cpu:0,cpu:1");
        CHECK((checkpoint(place, "one") == checkpoint(place, "two")));
        CHECK((checkpoint(place, "one") == checkpoint(place, "three")));
    }
    CHECK_THAT(refusal(place, "train --width 4 --class-weights 1", 2),
               contains("--class-weights: 1 number for --classes 2; expected one per class"));
    CHECK_THAT(refusal(place, "train --width 4 --class-weights 0,0", 2), contains("--class-weights: all are 0"));
    CHECK_THAT(refusal(place, "train --width 4 --class-weights 1,-1", 2), contains("--class-weights"));
}

TEST_CASE("the loss of a single class with weights and ignored pixels agrees with loops") {
    manual_seed(2);
    const Tensor logits = Tensor::randn({2, 1, 3, 4});
    std::vector<std::int64_t> classes;
    for (int i = 0; i < 24; ++i) classes.push_back(i % 5 == 0 ? ignored_class : i % 3 == 0 ? 1 : 0);
    const Tensor masks = Tensor::from(classes, {2, 3, 4});
    const std::vector<float> x = logits.to_vector<float>();
    for (const double weight : {1.0, 3.0}) {
        double entropy = 0, count = 0, common = 0, both = 0;
        for (std::size_t i = 0; i < x.size(); ++i) {
            if (classes[i] == ignored_class) continue;
            const double p = 1 / (1 + std::exp(-double{x[i]}));
            entropy -= classes[i] == 1 ? weight * std::log(p) : std::log(1 - p);
            ++count;
            common += classes[i] == 1 ? p : 0;
            both += p + static_cast<double>(classes[i]);
        }
        unet::SegmentationLoss loss{.dice = unet::DiceOf::classes, .ignores = true};
        if (weight != 1) {
            loss.class_weights = Tensor::from(std::vector<float>{1, 3}, {2});
            loss.pos_weight = Tensor::from(std::vector<float>{3}, {1});
        }
        CHECK(loss(logits, masks).item() ==
              Approx(entropy / count + 1 - (2 * common + 1e-6) / (both + 1e-6)).epsilon(1e-5));
    }
}

TEST_CASE("logging and evaluation change no bit of the weights") {
    const UnetPlace place;
    const std::string same = "-e 2 -b 3 -l 1e-3 --shards 2 -v 30 ";
    train_unet(place, same + "--save plain.safetensors");
    train_unet(place, same + "--log_dir log --save logged.safetensors");
    CHECK((checkpoint(place, "plain") == checkpoint(place, "logged")));
}

TEST_CASE("a single class is trained, also with every kind of BatchNorm statistics") {
    const UnetPlace place;
    train_unet(place, "-e 1 -b 4 -c 1 --batch-norm sync --shards 2 --optimizer sgd --schedule constant --save a");
    train_unet(place, "-e 1 -b 4 -c 1 --batch-norm first --shards 2 --optimizer sgd --schedule constant --save b");
    train_unet(place, "-e 1 -b 4 -c 1 --batch-norm all --shards 2 --optimizer adam --schedule constant --save c");
    CHECK((get_bytes(place / "a") != get_bytes(place / "b")));
    CHECK((get_bytes(place / "b") != get_bytes(place / "c")));
}
