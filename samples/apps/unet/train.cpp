// unet train: the flags of the PyTorch program and those of all programs here, and the training that they describe.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/parallel/data/atomic_file.h"
#include "lockstep/parallel/lockstep.h"
#include "lockstep/samples/apps/program/command_line.h"
#include "lockstep/samples/apps/program/ranks_agree.h"
#include "lockstep/samples/apps/program/report.h"
#include "lockstep/samples/apps/program/strategy.h"
#include "lockstep/samples/apps/program/train.h"
#include "lockstep/samples/apps/unet/commands.h"
#include "lockstep/samples/apps/unet/data.h"
#include "lockstep/samples/apps/unet/evaluation_log.h"
#include "lockstep/samples/apps/unet/loss.h"
#include "lockstep/samples/apps/unet/model_file.h"
#include "lockstep/samples/apps/unet/net.h"
#include "lockstep/samples/apps/unet/score.h"

namespace unet {

namespace {

struct TrainFlags {
    double scale = 0.5, validation = 10;  ///< percent
    Options net;
    std::string recipe = "default", optimizer = "adamw", batch_norm = "all", loss = "ce+dice";
    std::vector<double> class_weights;
    MaskFlags masks;
    bool flip = false;
};

constexpr int evaluations_per_epoch = 5;
constexpr std::int64_t validation_rows = 4;  ///< minimum number of rows at once

void add_flags(CLI::App& app, TrainFlags& flags, program::Options& options) {
    const auto one_of = [](const std::vector<std::string>& names) { return CLI::IsMember(names).description(""); };
    // First, so that other given flags override it.
    app.option_defaults()->group("Training");
    app.add_option_function<std::string>(
           "--recipe",
           [&app, &flags, &options](const std::string& name) {
               flags.recipe = name;
               if (name != "pytorch-unet") return;
               options.default_momentum = 0.999;
               flags.optimizer = "rmsprop";
               options.schedule.name = "plateau";
               options.schedule.lowest = 0;
               flags.loss = "ce+pooled-dice";
               options.clip = 1;
               for (const auto& [flag, value] : {std::pair("--momentum", "0.999"),
                                                 {"--optimizer", "rmsprop"},
                                                 {"--schedule", "plateau"},
                                                 {"--loss", "ce+pooled-dice"},
                                                 {"--clip", "1"},
                                                 {"--lr-min", "0"}})
                   app.get_option(flag)->default_str(value);
           },
           "defaults of other flags, of Lockstep or the PyTorch program")
        ->type_name("default|pytorch-unet")
        ->check(one_of({"default", "pytorch-unet"}))
        ->default_str(flags.recipe);
    app.option_defaults()->group("Images and masks");
    app.add_option("--scale,-s", flags.scale, "factor for the sides of the images")
        ->type_name("NUMBER")
        ->check(program::is_between(0, 1, false))
        ->capture_default_str();
    app.add_option("--validation,-v", flags.validation, "percentage of the images held out for validation")
        ->type_name("PERCENT")
        ->check(program::is_between(0, 100))
        ->capture_default_str();
    app.option_defaults()->group("Model");
    app.add_option("--classes,-c", flags.net.classes, "number of classes; 1 for a binary mask")
        ->type_name("N")
        ->transform(program::is_whole(1, 256))
        ->capture_default_str();
    app.add_flag("--bilinear", flags.net.bilinear, "upsample by interpolation instead of transposed convolutions");
    app.add_option("--width", flags.net.width, "channels of the first level, doubled at each further one")
        ->type_name("N")
        ->transform(program::is_whole(2, 512))
        ->capture_default_str();
    const std::vector<std::string> optimizers{"adamw", "adam",    "nadam",    "radam",   "adamax",
                                              "lamb",  "adagrad", "adadelta", "rmsprop", "sgd"};
    app.option_defaults()->group(fmt::format("Optimizer ({})", fmt::join(optimizers, ", ")));
    app.add_option("--optimizer", flags.optimizer, "rule that updates the weights")
        ->type_name("NAME")
        ->check(one_of(optimizers))
        ->capture_default_str();
    app.option_defaults()->group("Training");
    app.add_option("--loss", flags.loss, "cross-entropy only, or with the dice per class or pooled")
        ->type_name("ce+dice|ce+pooled-dice|ce")
        ->check(one_of({"ce+dice", "ce+pooled-dice", "ce"}))
        ->capture_default_str();
    app.add_option("--class-weights", flags.class_weights,
                   "weights of class 0, 1, ... in cross-entropy; for --classes 1, of mask pixels")
        ->type_name("NUMBER,...")
        ->delimiter(',')
        ->check(program::is_between(0, 1e30));
    app.option_defaults()->group("Images and masks");
    flags.masks.add_to(app);
    app.option_defaults()->group("Model");
    app.add_option("--batch-norm", flags.batch_norm, "shards that update the running statistics; sync is SyncBatchNorm")
        ->type_name("all|first|sync")
        ->check(one_of({"all", "first", "sync"}))
        ->capture_default_str();
    app.option_defaults()->group("Images and masks");
    app.add_flag("--flip", flags.flip, "flip half of the images and masks horizontally");
    app.option_defaults()->group("Short forms");
    app.add_option_function<std::string>(
           "--exp-name",
           [&options](const std::string& name) {
               if (name.empty() || name.find('/') != std::string::npos || name == "." || name == "..")
                   throw CLI::ValidationError("--exp-name",
                                              "value is '" + name + "'; expected the name of a directory");
               options.work_dir = std::filesystem::path("checkpoints") / name;
           },
           "short for --work-dir checkpoints/NAME")
        ->type_name("NAME");
    const auto use_ddp = [&app, &options] {
        CLI::Option* parallel = app.get_option("--parallel");
        if (parallel->count() > 0 && parallel->results().back() != "ddp")
            throw CLI::ValidationError("--ddp-mode", "--parallel is " + parallel->results().back() + "; expected ddp");
        options.parallel = "ddp";
        parallel->default_str("ddp");
        app.get_option("--ddp-mode")->configurable(false);
    };
    app.add_flag_callback("--ddp-mode", use_ddp, "short for --parallel ddp");
}

ls::BatchNormStatistics statistics_of(const std::string& name) {
    if (name == "first") return ls::BatchNormStatistics::shard0;
    return name == "sync" ? ls::BatchNormStatistics::synchronized : ls::BatchNormStatistics::all_shards;
}

template <class Model>
std::unique_ptr<ls::Optimizer> make_optimizer(const std::string& name, Model& model, const program::Options& options) {
    const ls::SgdOptions sgd = program::sgd_options(options);
    if (name == "adam")
        return std::make_unique<ls::Adam>(model, ls::AdamOptions{.lr = sgd.lr, .weight_decay = sgd.weight_decay});
    if (name == "nadam")
        return std::make_unique<ls::NAdam>(model, ls::NAdamOptions{.lr = sgd.lr, .weight_decay = sgd.weight_decay});
    if (name == "radam")
        return std::make_unique<ls::RAdam>(model, ls::RAdamOptions{.lr = sgd.lr, .weight_decay = sgd.weight_decay});
    if (name == "adamax")
        return std::make_unique<ls::Adamax>(model, ls::AdamaxOptions{.lr = sgd.lr, .weight_decay = sgd.weight_decay});
    if (name == "lamb")
        return std::make_unique<ls::LAMB>(model, ls::LambOptions{.lr = sgd.lr, .weight_decay = sgd.weight_decay});
    if (name == "adagrad")
        return std::make_unique<ls::Adagrad>(model, ls::AdagradOptions{.lr = sgd.lr, .weight_decay = sgd.weight_decay});
    if (name == "adadelta")
        return std::make_unique<ls::Adadelta>(model,
                                              ls::AdadeltaOptions{.lr = sgd.lr, .weight_decay = sgd.weight_decay});
    if (name == "rmsprop")
        return std::make_unique<ls::RMSprop>(
            model, ls::RmspropOptions{.lr = sgd.lr, .weight_decay = sgd.weight_decay, .momentum = sgd.momentum});
    if (name == "sgd")
        return std::make_unique<ls::SGD>(
            model, ls::SgdOptions{.lr = sgd.lr, .momentum = sgd.momentum, .weight_decay = sgd.weight_decay});
    return std::make_unique<ls::AdamW>(model, ls::AdamWOptions{.lr = sgd.lr, .weight_decay = sgd.weight_decay});
}

/// The network of --load; the flags must describe the same one.
std::optional<ModelFile> loaded_file(const TrainFlags& flags, const program::Options& options) {
    if (options.load.empty()) return std::nullopt;
    ModelFile file = describe(options.load);
    if (flags_of(file.net) != flags_of(flags.net))
        throw program::UsageError(fmt::format("--load {}: network has {}, flags have {}; expected the same",
                                              options.load.string(), flags_of(file.net), flags_of(flags.net)));
    return file;
}

SegmentationLoss loss_of(const TrainFlags& flags, bool ignores) {
    SegmentationLoss loss;
    loss.dice = flags.loss == "ce" ? DiceOf::none : flags.loss == "ce+dice" ? DiceOf::classes : DiceOf::pooled;
    loss.ignores = ignores;
    if (flags.class_weights.empty()) return loss;
    if (static_cast<std::int64_t>(flags.class_weights.size()) != flags.net.classes)
        throw program::UsageError(
            fmt::format("--class-weights: {} {} for --classes {}; expected one per class", flags.class_weights.size(),
                        flags.class_weights.size() == 1 ? "number" : "numbers", flags.net.classes));
    std::vector<float> weights(flags.class_weights.begin(), flags.class_weights.end());
    if (std::all_of(weights.begin(), weights.end(), [](float weight) { return weight == 0; }))
        throw program::UsageError("--class-weights: all are 0; expected at least one above 0");
    if (weights.size() == 1) {
        loss.pos_weight = ls::Tensor::from(weights, {1});
        weights.insert(weights.begin(), 1);
    }
    loss.class_weights = ls::Tensor::from(weights, {static_cast<std::int64_t>(weights.size())});
    return loss;
}

bool contains(const std::vector<ls::MaskValue>& all, const ls::MaskValue& value) {
    return std::find(all.begin(), all.end(), value) != all.end();
}

/// The images, with the classes of --mask-values; or those of the weights, if the masks have no other values; or, if a
/// new run begins with weights, those of the masks.
ls::SegmentationFolder open_for_training(const TrainFlags& flags, const program::Options& options,
                                         const std::optional<ModelFile>& file) {
    DataOptions data{.directory = options.data,
                     .scale = flags.scale,
                     .classes = static_cast<int>(flags.net.classes),
                     .mask_values = flags.masks.values(),
                     .ignore_value = flags.masks.ignored()};
    if (!file) return open_images(data);
    data.channels = static_cast<int>(file->net.channels);
    if (data.ignore_value.empty()) data.ignore_value = file->ignore_value;
    const bool resumes = std::filesystem::exists(ls::resume_path(options.load));
    if (resumes && file->knows_mask_values && !data.mask_values.empty() && data.mask_values != file->mask_values)
        throw program::UsageError(
            fmt::format("--mask-values {}: the run saved in {} has {}; expected the same, or no flag",
                        flags.masks.mask_values, options.load.string(), text_of(file->mask_values)));
    if (!data.mask_values.empty() || !file->knows_mask_values) return open_images(data);
    data.mask_values = file->mask_values;
    data.mask_palette = file->mask_palette;
    if (resumes) return open_images(data);
    try {
        return open_images(data);
    } catch (const ls::DataError&) {
        data.mask_values.clear();
        data.mask_palette.clear();
        ls::SegmentationFolder images = open_images(data);
        const auto& found = images.mask_values();
        if (std::all_of(found.begin(), found.end(),
                        [&](const auto& value) { return contains(file->mask_values, value); }))
            throw;  // a different error
        if (!options.quiet)
            fmt::print("unet: masks have the values {}, {} was saved with {}; class numbers follow the masks\n",
                       text_of(found), options.load.string(), text_of(file->mask_values));
        return images;
    }
}

std::optional<program::Stop> train(TrainFlags flags, program::Options options,
                                   std::chrono::steady_clock::time_point began) {
    if (flags.optimizer != "sgd" && flags.optimizer != "rmsprop") {
        if (options.momentum.value_or(options.default_momentum) != options.default_momentum)
            throw program::UsageError("--momentum requires --optimizer sgd or rmsprop");
        options.momentum.reset();
    }
    const std::optional<ModelFile> file = loaded_file(flags, options);
    const ls::SegmentationFolder images = open_for_training(flags, options, file);
    const ls::MaskValue ignored = flags.masks.ignored().empty() && file ? file->ignore_value : flags.masks.ignored();
    const SegmentationLoss loss = loss_of(flags, !ignored.empty());
    const Split parts = split(images, flags.validation);
    if (options.schedule.name == "plateau" && !parts.validation)
        throw program::UsageError("--schedule plateau: no validation images; expected --validation above 0");
    const std::int64_t batch = options.global_batch_size(options.chosen_devices());
    if (batch > parts.training.size())
        throw program::UsageError(
            fmt::format("--batch-size: {} images per step, {} in the training set; expected fewer per step", batch,
                        parts.training.size()));
    const auto metadata = metadata_of(images, ignored, flags.scale);
    if (options.group)
        program::require_ranks_agree(
            *options.group, {fmt::format("{} images to train on", parts.training.size()),
                             fmt::format("{} images to validate on", parts.validation ? parts.validation->size() : 0),
                             "the mask values " + metadata.at("mask_values")});
    if (options.is_rank0()) ls::make_directories(options.save.parent_path());

    ls::manual_seed(options.seed);
    flags.net.channels = images.channels();
    UNet net(flags.net);
    net.set_statistics(statistics_of(flags.batch_norm));
    return program::with_model(options, std::move(net), [&](auto& model) {
        ls::Loader batches(model, TrainingImages(parts.training, Augmentation{flags.flip}),
                           {.batch_size = batch, .shuffle = true, .seed = options.seed, .workers = options.workers});
        const auto optimizer = make_optimizer(flags.optimizer, model, options);
        program::Training training{.optimizer = *optimizer,
                                   .unit = "images",
                                   .score = {"dice", false},
                                   .evaluations = evaluations_per_epoch,
                                   .facts = {{"scale", fmt::format("{}", flags.scale)},
                                             {"validation", fmt::format("{}", flags.validation)},
                                             {"flip", flags.flip ? "true" : "false"},
                                             {"batch-norm", flags.batch_norm},
                                             {"loss", flags.loss},
                                             {"class-weights", fmt::format("{}", fmt::join(flags.class_weights, ","))},
                                             {"mask-values", text_of(images.mask_values())},
                                             {"ignore-value", ignored.empty() ? "none" : text_of({ignored})},
                                             {"dataset", describe(images)}},
                                   .metadata = metadata};
        std::optional<ls::Loader<Images>> validation;
        if (parts.validation) {
            validation.emplace(
                model, *parts.validation,
                ls::LoaderOptions{.batch_size = std::max(batch, validation_rows), .workers = options.workers});
            training.evaluate = [&] { return mean_dice(model, *validation, loss.ignores); };
            training.log_evaluation = [&](ls::EventLog& log, std::int64_t step) {
                log_evaluation(log, *model, loss, parts.validation->get(0), step);
            };
        }
        return program::train("unet", options, model, batches, loss, training, began);
    });
}

}  // namespace

int train(int argc, char** argv) {
    const auto began = std::chrono::steady_clock::now();
    program::Options options;
    options.data = "data";
    options.default_batch_size = 0;
    options.epochs = 5;
    options.default_lr = 1e-5;
    options.default_momentum = 0.9;
    options.default_weight_decay = 1e-8;
    options.schedule.name = "cosine";
    options.schedule.lowest = 1e-7;
    options.schedule.patience = 5;
    options.seed = 0;
    options.save_every.epochs = 5;
    TrainFlags flags;
    return program::run({.name = "unet",
                         .purpose = "Train U-Net on DIR/imgs and DIR/masks (make-shapes draws some).",
                         .data = "directory with imgs and masks",
                         .add_flags = [&](CLI::App& app) { add_flags(app, flags, options); },
                         .command = "train",
                         .checkpoint = "checkpoints/checkpoint_epoch{epoch}.safetensors",
                         .saves_by_epochs = true},
                        options, argc, argv, [&] { return train(flags, options, began); });
}

}  // namespace unet
