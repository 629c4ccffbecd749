// unet evaluate: how well the masks of a trained network cover the true ones, image by image.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/parallel/checkpoint.h"
#include "lockstep/parallel/data/image_file.h"
#include "lockstep/parallel/lockstep.h"
#include "lockstep/samples/apps/program/command_line.h"
#include "lockstep/samples/apps/program/gather_strings.h"
#include "lockstep/samples/apps/program/ranks_agree.h"
#include "lockstep/samples/apps/program/report.h"
#include "lockstep/samples/apps/program/strategy.h"
#include "lockstep/samples/apps/unet/commands.h"
#include "lockstep/samples/apps/unet/data.h"
#include "lockstep/samples/apps/unet/model_file.h"
#include "lockstep/samples/apps/unet/net.h"
#include "lockstep/samples/apps/unet/pictures.h"
#include "lockstep/samples/apps/unet/score.h"

namespace unet {

namespace {

struct EvaluateFlags {
    std::filesystem::path model, sheet;
    std::optional<double> scale;
    double validation = 100;
    std::int64_t pictures = 4;
    MaskFlags masks;
};

bool is_jpeg(const std::filesystem::path& path) { return path.extension() == ".jpg" || path.extension() == ".jpeg"; }

void add_flags(CLI::App& app, EvaluateFlags& flags) {
    app.option_defaults()->group("Model and images");
    add_model_flag(app, flags.model);
    app.add_option("--scale,-s", flags.scale, "factor for the sides of the images; default as in training, else 0.5")
        ->type_name("NUMBER")
        ->check(program::is_between(0, 1, false));
    app.add_option("--validation,-v", flags.validation, "percentage of the images, held out as by unet train")
        ->type_name("PERCENT")
        ->check(program::is_between(0, 100, false))
        ->capture_default_str();
    CLI::Option* const sheet =
        app.add_option("--sheet", flags.sheet, "picture of the first images with their true and predicted masks")
            ->type_name("FILE.png|FILE.jpg")
            ->check(CLI::Validator(
                [](const std::string& text) {
                    const std::filesystem::path path(text);
                    return path.extension() == ".png" || is_jpeg(path)
                               ? std::string()
                               : "value is " + text + "; expected a name that ends in .png or .jpg";
                },
                ""));
    flags.masks.add_to(app);
    app.add_option("--pictures", flags.pictures, "number of images in --sheet")
        ->type_name("N")
        ->transform(program::is_whole(1, 64))
        ->capture_default_str()
        ->needs(sheet);
}

using Scores = std::map<std::int64_t, ImageScore>;

/// The scores of all processes, by row.
Scores of_all(const program::Options& options, std::size_t classes, Scores own) {
    if (!options.group) return own;
    // Counts, as they are in memory: row, whether logits are finite, three counts for each class.
    std::vector<std::int64_t> numbers;
    for (const auto& [row, score] : own) {
        numbers.insert(numbers.end(), {row, score.is_number ? 1 : 0});
        for (const Pixels& pixels : score.classes)
            numbers.insert(numbers.end(), {pixels.common, pixels.found, pixels.there});
    }
    std::string bytes(numbers.size() * sizeof(std::int64_t), '\0');
    std::memcpy(bytes.data(), numbers.data(), bytes.size());
    const std::size_t stride = 2 + 3 * classes;
    Scores all;
    for (const std::string& part : program::gather_strings(*options.group, bytes)) {
        numbers.resize(part.size() / sizeof(std::int64_t));
        std::memcpy(numbers.data(), part.data(), part.size());
        for (std::size_t at = 0; at + stride <= numbers.size(); at += stride) {
            ImageScore& score = all[numbers[at]];
            score.is_number = numbers[at + 1] == 1;
            for (std::size_t c = at + 2; c < at + stride; c += 3)
                score.classes.push_back({numbers[c], numbers[c + 1], numbers[c + 2]});
        }
    }
    return all;
}

/// Pixels of all images, by class.
std::vector<Pixels> pixels_of(const Scores& scores) {
    std::vector<Pixels> sum(scores.begin()->second.classes.size());
    for (const auto& [row, score] : scores)
        for (std::size_t c = 0; c < sum.size(); ++c) {
            sum[c].common += score.classes[c].common;
            sum[c].found += score.classes[c].found;
            sum[c].there += score.classes[c].there;
        }
    return sum;
}

/// The image, its true mask and the predicted mask, in the network's scale.
void draw_sheet(const EvaluateFlags& flags, UNet net, const ls::SegmentationFolder& images, const Images& rows) {
    const ls::NoGrad no_grad;
    ls::set_training(net, false);
    const auto classes = static_cast<std::size_t>(std::max<std::int64_t>(2, images.classes()));
    std::vector<ls::MaskValue> numbers;
    for (std::size_t number = 0; number < classes; ++number) numbers.push_back({static_cast<std::uint8_t>(number)});
    std::vector<ls::HostImage> pictures;
    for (std::int64_t i = 0; i < std::min(flags.pictures, rows.size()); ++i) {
        const auto [image, mask] = rows.get(i);
        const ls::Tensor logits = net.forward(image.unsqueeze(0).to(net.outc.conv.weight->device()));
        ClassMap truth{mask.size(0), mask.size(1), {}};
        for (const std::int64_t number : mask.to_vector<std::int64_t>())
            truth.classes.push_back(number == ls::ignored_class ? 0 : static_cast<std::uint8_t>(number));
        ls::HostImage input = ls::read_image(images.image_file(rows.origin(i)));
        if (input.mode == ls::ImageMode::palette) input = ls::as_rgb(input);
        pictures.push_back(ls::resize_image(input, truth.height, truth.width, ls::Resampling::bicubic));
        pictures.push_back(mask_image(truth, numbers));
        pictures.push_back(mask_image(classes_of(logits), numbers));
    }
    is_jpeg(flags.sheet) ? ls::write_jpeg(flags.sheet, sheet(pictures, 3))
                         : ls::write_png(flags.sheet, sheet(pictures, 3));
}

/// "0", "255", "(255, 0, 0)"
std::string name_of_value(const ls::SegmentationFolder& images, std::size_t class_number) {
    if (class_number >= images.mask_values().size()) return "none";
    const ls::MaskValue& value = images.mask_values()[class_number];
    return value.size() == 1 ? fmt::format("{}", value[0]) : fmt::format("({})", fmt::join(value, ", "));
}

struct Evaluated {
    std::map<std::string, double> dice;  ///< by image
    std::vector<Pixels> classes;         ///< totals over all images
    double mean = 0;
};

void report(const program::Options& options, const ls::SegmentationFolder& images, const Evaluated& found) {
    if (options.json.empty()) return;
    nlohmann::ordered_json text;
    text["dice"] = found.mean;
    text["classes"] = nlohmann::ordered_json::array();
    for (std::size_t c = 0; c < found.classes.size(); ++c) {
        nlohmann::ordered_json entry;
        if (c < images.mask_values().size()) entry["value"] = images.mask_values()[c];
        if (found.classes[c].occurs())
            entry.update({{"dice", found.classes[c].dice()}, {"iou", found.classes[c].iou()}});
        text["classes"].push_back(entry);
    }
    text["images"] = found.dice;
    program::write_json(options.json, text);
}

void print(const ls::SegmentationFolder& images, const Evaluated& found) {
    for (const auto& [name, value] : found.dice) fmt::print("{} {:.4f}\n", name, value);
    for (std::size_t c = 0; c < found.classes.size(); ++c) {
        const Pixels& pixels = found.classes[c];
        fmt::print("class {}, mask value {}: {}\n", c, name_of_value(images, c),
                   pixels.occurs() ? fmt::format("dice {:.4f}, IoU {:.4f}", pixels.dice(), pixels.iou())
                                   : "in no mask, true or predicted");
    }
    fmt::print("dice {:.4f} of {} {}\n", found.mean, found.dice.size(), found.dice.size() == 1 ? "image" : "images");
}

void evaluate(const EvaluateFlags& flags, const program::Options& options) {
    const ModelFile file = describe(flags.model);
    if (options.is_rank0()) {
        program::require_writable(options.json);
        program::require_writable(flags.sheet);
    }
    const bool takes_values = flags.masks.mask_values.empty();
    const ls::MaskValue ignored = flags.masks.ignore_value.empty() ? file.ignore_value : flags.masks.ignored();
    const ls::SegmentationFolder images = open_images(
        {.directory = options.data,
         .scale = flags.scale.value_or(file.scale.value_or(0.5)),
         .classes = static_cast<int>(file.net.classes),
         .channels = static_cast<int>(file.net.channels),
         .mask_values = takes_values && file.knows_mask_values ? file.mask_values : flags.masks.values(),
         .mask_palette = takes_values ? file.mask_palette : std::map<std::uint8_t, std::array<std::uint8_t, 3>>(),
         .ignore_value = ignored});
    const Images rows = flags.validation < 100 ? split(images, flags.validation).validation.value()
                                               : ls::random_split(images, {images.size()}, 0)[0];
    if (options.group)
        program::require_ranks_agree(*options.group, {fmt::format("{} images to evaluate", rows.size())});
    program::with_model(options, UNet(file.net), [&](auto& model) {
        ls::load(model, flags.model);
        ls::Loader loader(model, rows,
                          {.batch_size = std::min(options.global_batch_size(model.devices()), rows.size()),
                           .workers = options.workers});
        const auto classes = static_cast<std::size_t>(std::max<std::int64_t>(file.net.classes, 2));
        const Scores scores = of_all(options, classes, scores_of_images(model, loader));
        if (!options.is_rank0()) return;
        std::map<std::int64_t, double> by_row;
        bool all_numbers = true;
        for (const auto& [row, score] : scores) {
            by_row[row] = score.dice();
            all_numbers &= score.is_number;
        }
        Evaluated found{{}, pixels_of(scores), std::nan("")};
        if (all_numbers)
            found.mean = static_cast<double>(sum_of(by_row)) * score_unit / static_cast<double>(by_row.size());
        for (const auto& [row, value] : by_row)
            found.dice[images.image_file(rows.origin(row)).filename().string()] = value;
        if (!options.quiet) print(images, found);
        report(options, images, found);
        if (!flags.sheet.empty()) draw_sheet(flags, *model, images, rows);
    });
}

}  // namespace

int evaluate(int argc, char** argv) {
    program::Options options;
    options.data = "data";
    options.default_batch_size = 0;
    EvaluateFlags flags;
    return program::run({.name = "unet",
                         .purpose = "Compare the masks that a trained U-Net predicts for DIR/imgs with DIR/masks.",
                         .data = "directory with imgs and masks",
                         .add_flags = [&](CLI::App& app) { add_flags(app, flags); },
                         .command = "evaluate",
                         .trains = false},
                        options, argc, argv, [&] {
                            evaluate(flags, options);
                            return std::optional<program::Stop>();
                        });
}

}  // namespace unet
