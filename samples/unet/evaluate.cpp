// unet evaluate: how well the masks of a trained network cover the true ones, image by image.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <sstream>
#include <string>

#include "lockstep/parallel/checkpoint.h"
#include "lockstep/parallel/data/atomic_file.h"
#include "lockstep/parallel/data/image_file.h"
#include "lockstep/parallel/lockstep.h"
#include "lockstep/samples/program/command_line.h"
#include "lockstep/samples/program/report.h"
#include "lockstep/samples/program/same_on_ranks.h"
#include "lockstep/samples/program/strategy.h"
#include "lockstep/samples/program/texts_of_ranks.h"
#include "lockstep/samples/unet/commands.h"
#include "lockstep/samples/unet/data.h"
#include "lockstep/samples/unet/model_file.h"
#include "lockstep/samples/unet/net.h"
#include "lockstep/samples/unet/pictures.h"
#include "lockstep/samples/unet/score.h"

namespace unet {

namespace {

struct EvaluateFlags {
    std::filesystem::path model, sheet;
    std::optional<double> scale;
    double validation = 100;
    std::int64_t pictures = 4;
};

void add_flags(CLI::App& app, EvaluateFlags& flags) {
    app.add_option("--model,-m,--load,-f", flags.model,
                   "weights of the network: what unet train has saved, or the PyTorch program's .pth")
        ->type_name("FILE")
        ->required();
    app.add_option("--scale,-s", flags.scale, "of the images' sides (as in training where FILE says it, else 0.5)")
        ->type_name("NUMBER")
        ->check(program::is_between(0, 1, false));
    app.add_option("--validation,-v", flags.validation,
                   "evaluates the images that unet train keeps for validation with this percentage")
        ->type_name("PERCENT")
        ->check(program::is_between(0, 100, false))
        ->capture_default_str();
    app.add_option("--sheet", flags.sheet, "draws the first images, their true masks and the network's, side by side")
        ->type_name("FILE.png");
    app.add_option("--pictures", flags.pictures, "how many images --sheet has")
        ->type_name("N")
        ->check(CLI::Range(std::int64_t{1}, std::int64_t{64}).description(""))
        ->capture_default_str();
}

/// What all processes have found, by row.
std::map<std::int64_t, double> of_all(const program::Options& options, std::map<std::int64_t, double> own) {
    if (!options.group) return own;
    std::string text;
    for (const auto& [row, dice] : own) text += fmt::format("{} {}\n", row, dice);
    std::map<std::int64_t, double> all;
    for (const std::string& part : program::texts_of_ranks(*options.group, text)) {
        std::istringstream lines(part);
        std::int64_t row = 0;
        for (double dice = 0; lines >> row >> dice;) all[row] = dice;
    }
    return all;
}

/// The image, its true mask and the network's, as it sees them.
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
            truth.classes.push_back(static_cast<std::uint8_t>(number));
        ls::HostImage input = ls::read_image(images.image_file(rows.origin(i)));
        if (input.mode == ls::ImageMode::palette) input = ls::as_rgb(input);
        pictures.push_back(ls::resize_image(input, truth.height, truth.width, ls::Resampling::bicubic));
        pictures.push_back(mask_image(truth, numbers));
        pictures.push_back(mask_image(classes_of(logits), numbers));
    }
    ls::write_png(flags.sheet, sheet(pictures, 3));
}

void report(const program::Options& options, const std::map<std::string, double>& dice, double mean) {
    if (options.json.empty()) return;
    nlohmann::ordered_json text;
    text["dice"] = mean;
    text["images"] = dice;
    const std::string bytes = text.dump(1) + "\n";
    ls::AtomicFile file(options.json);
    file.write(std::as_bytes(std::span(bytes)));
    file.commit();
}

void evaluate(const EvaluateFlags& flags, const program::Options& options) {
    const ModelFile file = describe(flags.model);
    if (options.leads()) {
        program::require_writable(options.json);
        program::require_writable(flags.sheet);
    }
    const ls::SegmentationFolder images =
        open_images({.directory = options.data,
                     .scale = flags.scale.value_or(file.scale.value_or(0.5)),
                     .classes = static_cast<int>(file.net.classes),
                     .channels = static_cast<int>(file.net.channels),
                     .mask_values = file.knows_mask_values ? file.mask_values : std::vector<ls::MaskValue>()});
    const Images rows = flags.validation < 100 ? split(images, flags.validation).validation.value()
                                               : ls::random_split(images, {images.size()}, 0)[0];
    if (options.group)
        program::require_same_on_ranks(*options.group, {fmt::format("{} images to evaluate", rows.size())});
    program::with_model(options, UNet(file.net), [&](auto& model) {
        ls::load(model, flags.model);
        ls::Loader loader(model, rows,
                          {.batch_size = std::min(options.global_batch_size(model.devices()), rows.size()),
                           .workers = options.workers});
        const std::map<std::int64_t, double> by_row = of_all(options, dice_of_images(model, loader));
        if (!options.leads()) return;
        const double mean = static_cast<double>(sum_of(by_row)) * score_unit / static_cast<double>(by_row.size());
        std::map<std::string, double> dice;
        for (const auto& [row, value] : by_row) dice[images.image_file(rows.origin(row)).filename().string()] = value;
        if (!options.quiet) {
            for (const auto& [name, value] : dice) fmt::print("{} {:.4f}\n", name, value);
            fmt::print("dice {:.4f} of {} {}\n", mean, dice.size(), dice.size() == 1 ? "image" : "images");
        }
        report(options, dice, mean);
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
                         .purpose = "Compare a trained U-Net's masks of DIR/imgs with DIR/masks.",
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
