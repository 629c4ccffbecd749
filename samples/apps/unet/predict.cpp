// unet predict: masks of images without masks.
#include <fmt/format.h>
#include <sys/stat.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdlib>
#include <iostream>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "lockstep/parallel/checkpoint.h"
#include "lockstep/parallel/data/atomic_file.h"
#include "lockstep/parallel/data/image_file.h"
#include "lockstep/parallel/data/image_tensor.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/error.h"
#include "lockstep/samples/apps/program/command_line.h"
#include "lockstep/samples/apps/program/report.h"
#include "lockstep/samples/apps/unet/commands.h"
#include "lockstep/samples/apps/unet/data.h"
#include "lockstep/samples/apps/unet/model_file.h"
#include "lockstep/samples/apps/unet/net.h"
#include "lockstep/samples/apps/unet/pictures.h"

namespace unet {

namespace {

using Path = std::filesystem::path;
using Palette = std::map<std::uint8_t, std::array<std::uint8_t, 3>>;

struct PredictFlags {
    Path model;
    std::vector<Path> inputs, outputs;
    std::optional<double> scale;
    double threshold = 0.5;
    bool overlay = false;
    std::string device, mask_values;
    bool quiet = false;
};

void add_flags(CLI::App& app, PredictFlags& flags) {
    add_model_flag(app, flags.model);
    app.add_option("--input,-i,INPUT", flags.inputs, "images, or folders of images (required)")
        ->type_name("PATH ...")
        ->required();
    app.add_option("--output,-o", flags.outputs,
                   "masks, one per image, or a folder for NAME_OUT.png; default next to each image")
        ->type_name("FILE.png ...|DIR");
    app.add_flag("--overlay", flags.overlay, "also write NAME_overlay.png: the image with its mask in colour");
    app.add_option("--mask-threshold,-t", flags.threshold,
                   "probability above which a pixel is part of the mask (one class)")
        ->type_name("NUMBER")
        ->check(program::is_between(0, 1))
        ->capture_default_str();
    app.add_option("--scale,-s", flags.scale, "factor for the sides of the images; default as in training, else 0.5")
        ->type_name("NUMBER")
        ->check(program::is_between(0, 1, false));
    app.add_option("--device", flags.device, "device to compute on; default the first GPU, or all cores")
        ->type_name("DEVICE");
    app.add_option("--mask-values", flags.mask_values,
                   "values or colours (0:0:0,255:0:0) of class 0, 1, ...; default as in training")
        ->type_name("LIST")
        ->check(CLI::Validator(
            [](const std::string& text) {
                return values_in(text) ? std::string() : "value is " + text + "; expected a list such as 0,255";
            },
            ""));
    app.add_flag("--quiet", flags.quiet, "warnings and errors only");
}

std::string lower_case(std::string text) {
    std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
    return text;
}

bool is_image_name(const Path& path) {
    const std::string suffix = lower_case(path.extension().string());
    return suffix == ".jpg" || suffix == ".jpeg" || suffix == ".png" || suffix == ".gif";
}

/// The name of an image that has this mask or overlay; empty: not a mask or overlay.
std::string name_behind(const Path& path) {
    std::string name = path.stem().string();
    for (const std::string end : {"_OUT", "_overlay"})
        if (name.ends_with(end) && path.extension() == ".png") return name.substr(0, name.size() - end.size());
    return {};
}

/// The files of a folder that are images by their name, in order of names. Hidden files are skipped, and so are masks
/// and overlays of other images in the folder.
std::vector<Path> images_in(const Path& folder) {
    std::vector<Path> found;
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(folder, error))
        if (is_image_name(entry.path()) && !entry.path().filename().native().starts_with('.') && !entry.is_directory())
            found.push_back(entry.path());
    if (error)
        throw lockstep::DataError(fmt::format("{}: cannot read the folder: {}", folder.string(), error.message()));
    std::set<std::string> names;
    for (const Path& path : found) names.insert(path.stem().string());
    std::erase_if(found, [&](const Path& path) { return names.contains(name_behind(path)); });
    if (found.empty())
        throw lockstep::DataError(
            fmt::format("{}: no images in this folder; expected jpg, png or gif files", folder.string()));
    std::sort(found.begin(), found.end());
    return found;
}

/// "a/car_OUT.png" becomes "a/car_overlay.png".
Path overlay_path(const Path& mask) {
    std::string name = mask.stem().string();
    if (name.ends_with("_OUT")) name.resize(name.size() - 4);
    return mask.parent_path() / (name + "_overlay.png");
}

/// An image and its output files.
struct Work {
    Path image, mask, overlay;
};

/// Throws UsageError if a file would be both read and written, or written twice. Links are followed.
void require_distinct_paths(const std::vector<Work>& all, const Path& model) {
    std::map<std::pair<dev_t, ino_t>, std::string> read;
    const auto file_of = [](const Path& path) -> std::optional<std::pair<dev_t, ino_t>> {
        struct stat found {};
        if (::stat(path.c_str(), &found) != 0) return std::nullopt;
        return std::pair(found.st_dev, found.st_ino);
    };
    if (const auto file = file_of(model)) read[*file] = "--model " + model.string();
    for (const Work& work : all)
        if (const auto file = file_of(work.image)) read[*file] = "the image " + work.image.string();
    std::map<Path, Path> image_of;
    for (const Work& work : all)
        for (const Path& made : {work.mask, work.overlay}) {
            if (made.empty()) continue;
            if (const auto file = file_of(made); file && read.contains(*file))
                throw program::UsageError(fmt::format("--output: {} would overwrite {}; expected another name",
                                                      made.string(), read.at(*file)));
            std::error_code ignored;
            Path whole = std::filesystem::weakly_canonical(std::filesystem::absolute(made, ignored), ignored);
            if (const auto [other, is_new] = image_of.emplace(whole.empty() ? made : whole, work.image); !is_new)
                throw program::UsageError(
                    fmt::format("--output: {} and {} have the same mask file, {}; expected one for each image",
                                other->second.string(), work.image.string(), made.string()));
        }
}

/// Each image with its output files. Creates the folder for them.
std::vector<Work> work_of(const PredictFlags& flags) {
    std::vector<Path> images;
    bool folders = false;
    for (const Path& input : flags.inputs)
        if (std::filesystem::is_directory(input)) {
            folders = true;
            for (Path& image : images_in(input)) images.push_back(std::move(image));
        } else {
            images.push_back(input);
        }
    const auto& outputs = flags.outputs;
    if (folders && outputs.empty())
        throw program::UsageError("--output: no folder for the masks; expected one for a folder of images");
    const bool is_folder =
        outputs.size() == 1 && (std::filesystem::is_directory(outputs[0]) || !is_image_name(outputs[0]));
    if (!is_folder && !outputs.empty()) {
        if (folders)
            throw program::UsageError(
                fmt::format("--output {}: expected a folder for a folder of images", outputs[0].string()));
        if (outputs.size() != images.size())
            throw program::UsageError(fmt::format("--output: {} {} for {} {}; expected one per image, or a folder",
                                                  outputs.size(), outputs.size() == 1 ? "name" : "names", images.size(),
                                                  images.size() == 1 ? "image" : "images"));
        for (const Path& output : outputs)
            if (lower_case(output.extension().string()) != ".png" || std::filesystem::is_directory(output))
                throw program::UsageError(fmt::format(
                    "--output {}: masks are PNG files; expected a name that ends in .png", output.string()));
    }
    std::vector<Work> work;
    for (std::size_t i = 0; i < images.size(); ++i) {
        const Path name = images[i].stem().string() + "_OUT.png";
        const Path mask = outputs.empty() ? images[i].parent_path() / name : is_folder ? outputs[0] / name : outputs[i];
        work.push_back({images[i], mask, flags.overlay ? overlay_path(mask) : Path()});
    }
    require_distinct_paths(work, flags.model);
    if (is_folder) lockstep::make_directories(outputs[0]);
    if (!is_folder)
        for (const Path& output : outputs) lockstep::make_directories(output.parent_path());
    return work;
}

lockstep::Device device_of(const PredictFlags& flags) {
    try {
        if (flags.device.starts_with("cuda")) return lockstep::Device::parse(flags.device);
        if (flags.device.empty() && lockstep::device_count(lockstep::DeviceKind::cuda) > 0)
            return lockstep::Device::cuda(0);
        if (std::getenv("LOCKSTEP_CPU_DEVICES"))
            return flags.device.empty() ? lockstep::Device::cpu(0) : lockstep::Device::parse(flags.device);
    } catch (const lockstep::InvalidArgument& error) {
        throw program::UsageError(std::string("--device: ") + error.what());
    }
    if (!flags.device.empty() && flags.device != "cpu" && flags.device != "cpu:0")
        throw program::UsageError(
            fmt::format("--device {}: expected cpu:0, which has all cores, or a GPU such as cuda:0", flags.device));
    lockstep::set_cpu_device_count(1);
    return lockstep::Device::cpu(0);
}

/// The network's mask of an image, in the image's size, computed as in the PyTorch program; nullopt unless the output
/// of the network is finite.
std::optional<ClassMap> mask_of(lockstep::DataParallel<UNet>& model, const lockstep::HostImage& image, double scale,
                                double threshold) {
    const lockstep::Tensor x =
        lockstep::image_tensor(lockstep::scale_image(image, scale, lockstep::Resampling::bicubic));
    const lockstep::Tensor logits = model.forward(x.unsqueeze(0));
    if (lockstep::sum(logits * 0.0).item() != 0) return std::nullopt;  // NaN if one of them is not finite
    return classes_of(lockstep::interpolate(logits, {.size = lockstep::Pair(static_cast<int>(image.height),
                                                                            static_cast<int>(image.width)),
                                                     .mode = lockstep::InterpolateMode::bilinear}),
                      threshold);
}

void predict(const PredictFlags& flags, bool has_threshold) {
    const ModelFile file = describe(flags.model);
    if (has_threshold && file.net.classes > 1)
        throw program::UsageError(
            fmt::format("--mask-threshold: not used by a network of {} classes; expected a "
                        "network of one class, or no flag",
                        file.net.classes));
    const auto work = work_of(flags);
    const double scale = flags.scale.value_or(file.scale.value_or(0.5));
    lockstep::DataParallel model(UNet(file.net), lockstep::Devices({device_of(flags)}));
    lockstep::load(model, flags.model);
    model.eval();
    const lockstep::NoGrad no_grad;
    const std::vector<lockstep::MaskValue> values =
        flags.mask_values.empty() ? file.mask_values : values_in(flags.mask_values).value();
    if (static_cast<std::int64_t>(values.size()) < std::max<std::int64_t>(file.net.classes, 2) &&
        !flags.mask_values.empty())
        throw program::UsageError(
            fmt::format("--mask-values {}: {} values for a network of {} classes; expected one per class",
                        flags.mask_values, values.size(), std::max<std::int64_t>(file.net.classes, 2)));
    std::vector<Path> images;
    std::vector<std::uint16_t> peaks;
    for (const auto& [path, mask, picture] : work) {
        lockstep::HostImage image = lockstep::read_image(path);
        images.push_back(path);
        peaks.push_back(image.peak16);
        if (image.mode == lockstep::ImageMode::palette) image = lockstep::as_rgb(image);
        if (image.channels() != file.net.channels)
            throw lockstep::DataError(fmt::format("{}: image has {} {}; the network in {} expects {}", path.string(),
                                                  image.channels(), image.channels() == 1 ? "channel" : "channels",
                                                  flags.model.string(), file.net.channels));
        const auto size = lockstep::scaled_size(image.height, image.width, scale);
        require_room(path.string() + ": the sides", scale, size.height, size.width);
        const auto map = mask_of(model, image, scale, flags.threshold);
        if (!map)
            throw lockstep::DataError(
                fmt::format("{}: the output of the network in {} is not finite; expected finite weights", path.string(),
                            flags.model.string()));
        lockstep::write_png(mask, mask_image(*map, values, flags.mask_values.empty() ? file.mask_palette : Palette()));
        if (!picture.empty()) lockstep::write_png(picture, overlay(image, *map));
        if (!flags.quiet) std::cout << path.string() << ": " << mask.string() << '\n' << std::flush;
    }
    lockstep::warn_of_unused_range(images, peaks);
}

}  // namespace

int predict(int argc, char** argv) {
    PredictFlags flags;
    CLI::App app("Predict masks of images with a trained U-Net.", "unet predict");
    app.footer("A missing folder is created. Existing masks are overwritten, images never.");
    add_flags(app, flags);
    return program::run(app, argc - 1, argv + 1,
                        [&] { predict(flags, program::differs_from_default(app, "--mask-threshold")); });
}

}  // namespace unet
