// unet predict: masks of images that nobody has drawn one of.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/parallel/checkpoint.h"
#include "lockstep/parallel/data/image_file.h"
#include "lockstep/parallel/data/image_tensor.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/error.h"
#include "lockstep/samples/program/command_line.h"
#include "lockstep/samples/program/report.h"
#include "lockstep/samples/unet/commands.h"
#include "lockstep/samples/unet/model_file.h"
#include "lockstep/samples/unet/net.h"
#include "lockstep/samples/unet/pictures.h"

namespace unet {

namespace {

using Path = std::filesystem::path;

struct PredictFlags {
    Path model;
    std::vector<Path> inputs;
    Path output;
    std::optional<double> scale;
    double threshold = 0.5;
    bool overlay = false;
    std::string device;
    bool quiet = false;
};

void add_flags(CLI::App& app, PredictFlags& flags) {
    app.add_option("--model,-m,--load,-f", flags.model,
                   "weights of the network: what unet train has saved, or the PyTorch program's .pth")
        ->type_name("FILE")
        ->required();
    app.add_option("--input,-i,INPUT", flags.inputs, "images, or folders of them")->type_name("PATH ...")->required();
    app.add_option("--output,-o", flags.output,
                   "where NAME_OUT.png goes, made where it is missing; of a single image also the name of the mask "
                   "(beside each image)")
        ->type_name("DIR|FILE.png");
    app.add_flag("--overlay", flags.overlay, "writes NAME_overlay.png as well: the image with its mask in colour");
    app.add_option("--mask-threshold,-t", flags.threshold,
                   "of a network of one class: what the probability of a pixel must exceed")
        ->type_name("NUMBER")
        ->check(program::is_between(0, 1))
        ->capture_default_str();
    app.add_option("--scale,-s", flags.scale, "of the images' sides (as in training where FILE says it, else 0.5)")
        ->type_name("NUMBER")
        ->check(program::is_between(0, 1, false));
    app.add_option("--device", flags.device, "where it is computed: cuda:0, cpu:0 (the first GPU, or all cores)")
        ->type_name("DEVICE");
    app.add_flag("--quiet", flags.quiet, "prints warnings and errors only");
}

/// The files of a folder that are images by their name, in order of names.
std::vector<Path> images_in(const Path& folder) {
    std::vector<Path> found;
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
        std::string suffix = entry.path().extension().string();
        std::transform(suffix.begin(), suffix.end(), suffix.begin(), [](unsigned char c) { return std::tolower(c); });
        if (suffix == ".jpg" || suffix == ".jpeg" || suffix == ".png" || suffix == ".gif")
            found.push_back(entry.path());
    }
    if (error) throw lockstep::DataError(fmt::format("{}: cannot be read: {}", folder.string(), error.message()));
    if (found.empty())
        throw lockstep::DataError(fmt::format("{}: there are no images in it (jpg, png, gif)", folder.string()));
    std::sort(found.begin(), found.end());
    return found;
}

/// Each image with the file of its mask.
std::vector<std::pair<Path, Path>> work_of(const PredictFlags& flags) {
    std::vector<Path> images;
    bool folders = false;
    for (const Path& input : flags.inputs)
        if (std::filesystem::is_directory(input)) {
            folders = true;
            for (Path& image : images_in(input)) images.push_back(std::move(image));
        } else {
            images.push_back(input);
        }
    if (folders && flags.output.empty())
        throw program::UsageError("--output: name a folder for the masks of a folder of images");
    const bool names_file = flags.output.extension() == ".png" && !folders && images.size() == 1;
    program::make_directory(names_file ? flags.output.parent_path() : flags.output);
    std::vector<std::pair<Path, Path>> work;
    std::map<Path, Path> image_of;
    for (const Path& image : images) {
        const Path name = image.stem().string() + "_OUT.png";
        const Path mask = names_file             ? flags.output
                          : flags.output.empty() ? image.parent_path() / name
                                                 : flags.output / name;
        if (const auto [other, is_new] = image_of.emplace(mask, image); !is_new)
            throw program::UsageError(fmt::format("{} and {} have one name for their masks, {}; give them one by one",
                                                  other->second.string(), image.string(), mask.string()));
        work.emplace_back(image, mask);
    }
    return work;
}

/// "a/car_OUT.png" becomes "a/car_overlay.png".
Path overlay_path(const Path& mask) {
    std::string name = mask.stem().string();
    if (name.ends_with("_OUT")) name.resize(name.size() - 4);
    return mask.parent_path() / (name + "_overlay.png");
}

lockstep::Device device_of(const PredictFlags& flags) {
    if (!flags.device.empty()) return lockstep::Device::parse(flags.device);
    if (lockstep::device_count(lockstep::DeviceKind::cuda) > 0) return lockstep::Device::cuda(0);
    if (!std::getenv("LOCKSTEP_CPU_DEVICES")) lockstep::set_cpu_device_count(1);
    return lockstep::Device::cpu(0);
}

/// The network's mask of an image, in the image's size, as the PyTorch program makes it.
ClassMap mask_of(lockstep::DataParallel<UNet>& model, const lockstep::HostImage& image, double scale,
                 double threshold) {
    const lockstep::Tensor x =
        lockstep::image_tensor(lockstep::scale_image(image, scale, lockstep::Resampling::bicubic));
    const lockstep::Tensor logits = model.forward(x.unsqueeze(0));
    return classes_of(lockstep::interpolate(logits, {.size = lockstep::Pair(static_cast<int>(image.height),
                                                                            static_cast<int>(image.width)),
                                                     .mode = lockstep::InterpolateMode::bilinear}),
                      threshold);
}

void predict(const PredictFlags& flags) {
    const ModelFile file = describe(flags.model);
    const auto work = work_of(flags);
    const double scale = flags.scale.value_or(file.scale.value_or(0.5));
    lockstep::DataParallel model(UNet(file.net), lockstep::Devices({device_of(flags)}));
    lockstep::load(model, flags.model);
    model.eval();
    const lockstep::NoGrad no_grad;
    for (const auto& [path, mask] : work) {
        lockstep::HostImage image = lockstep::read_image(path);
        if (image.mode == lockstep::ImageMode::palette) image = lockstep::as_rgb(image);
        if (image.channels() != file.net.channels)
            throw lockstep::DataError(fmt::format(
                "{}: the image has {} {}, and the network of {} was made for {}; give images of the kind that it was "
                "trained on",
                path.string(), image.channels(), image.channels() == 1 ? "channel" : "channels", flags.model.string(),
                file.net.channels));
        const ClassMap map = mask_of(model, image, scale, flags.threshold);
        lockstep::write_png(mask, mask_image(map, file.mask_values));
        if (flags.overlay) lockstep::write_png(overlay_path(mask), overlay(image, map));
        if (!flags.quiet) std::cout << path.string() << ": " << mask.string() << '\n' << std::flush;
    }
}

}  // namespace

int predict(int argc, char** argv) {
    PredictFlags flags;
    CLI::App app("Make masks of images with a trained U-Net.", "unet predict");
    add_flags(app, flags);
    return program::run(app, argc - 1, argv + 1, [&] { predict(flags); });
}

}  // namespace unet
