// gpt train: the training of a GPT on the windows of a text.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/parallel/lockstep.h"
#include "lockstep/samples/apps/gpt/commands.h"
#include "lockstep/samples/apps/gpt/model_file.h"
#include "lockstep/samples/apps/gpt/net.h"
#include "lockstep/samples/apps/gpt/text.h"
#include "lockstep/samples/apps/program/command_line.h"
#include "lockstep/samples/apps/program/ranks_agree.h"
#include "lockstep/samples/apps/program/strategy.h"
#include "lockstep/samples/apps/program/train.h"

namespace gpt {

namespace ls = lockstep;

namespace {

struct TrainFlags {
    Config net;
    double validation = 10;  ///< percent
};

void add_flags(CLI::App& app, TrainFlags& flags) {
    const auto add_size = [&](const char* name, std::int64_t& value, const char* what, std::int64_t most) {
        app.add_option(name, value, what)->type_name("N")->transform(program::is_whole(1, most))->capture_default_str();
    };
    app.option_defaults()->group("Model");
    add_size("--context", flags.net.context, "characters that a prediction depends on", 1 << 16);
    add_size("--width", flags.net.width, "features of a character, divisible by the heads", 1 << 14);
    add_size("--heads", flags.net.heads, "heads of the attention", 1 << 10);
    add_size("--layers", flags.net.layers, "blocks of attention and two linear layers", 1 << 10);
    app.add_option("--dropout", flags.net.dropout, "probability of a zero in training")
        ->type_name("NUMBER")
        ->check(program::is_between(0, 1))
        ->capture_default_str();
    app.option_defaults()->group("Data");
    app.add_option("--validation,-v", flags.validation, "percentage at the end of the text held out for validation")
        ->type_name("PERCENT")
        ->check(program::is_between(0, 100))
        ->capture_default_str();
}

/// Mean loss of the windows of `loader`, of all processes. It is bit-identical for any assignment to processes.
template <class Model>
double mean_loss(Model& model, ls::Loader<Windows>& loader) {
    constexpr double unit = 1.0 / (1 << 30);  // sums of whole units are the same in any order
    const ls::NoGrad no_grad;
    const ls::detail::EvaluationScope evaluation(model.module());
    std::int64_t sum = 0;
    for (auto& [text, next] : loader.epoch(0)) {
        const ls::Tensor logits = model.forward(text);
        if (text.held().among(text.cut().present).empty()) continue;
        const ls::Tensor targets = next.gathered().to(logits.device()).unsqueeze(1);
        const ls::Tensor costs = ls::neg(ls::gather(ls::log_softmax(logits.to(ls::DType::f32), 1), 1, targets));
        for (const float value : ls::mean(costs, {1, 2}).template to_vector<float>())
            sum += std::llround(static_cast<double>(value) / unit);
    }
    return static_cast<double>(model.engine().sum_over_ranks(sum)) * unit / static_cast<double>(loader.rows());
}

/// AdamW, with weight decay for matrices only.
template <class Model>
std::unique_ptr<ls::AdamW> make_optimizer(Model& model, const program::Options& options) {
    const double lr = options.lr.value_or(options.default_lr);
    auto adam = std::make_unique<ls::AdamW>(
        model, ls::AdamWOptions{.lr = lr, .weight_decay = options.weight_decay.value_or(options.default_weight_decay)});
    std::vector<std::string> vectors;
    for (const ls::NamedTensor& named : ls::named_tensors(model.module()))
        if (named.is_parameter && named.member->tensor().dims() < 2) vectors.push_back(named.name);
    adam->add_group(vectors, {.lr = lr, .weight_decay = 0});
    return adam;
}

std::optional<program::Stop> train(TrainFlags flags, const program::Options& options,
                                   std::chrono::steady_clock::time_point began) {
    if (options.momentum) throw program::UsageError("--momentum: AdamW has no such setting; expected no --momentum");
    if (flags.net.width % flags.net.heads != 0)
        throw program::UsageError(fmt::format("--width {}: not divisible by --heads {}; expected a multiple",
                                              flags.net.width, flags.net.heads));
    const std::u32string text = read_text(options.data);
    std::optional<ModelFile> file;
    if (!options.load.empty()) file = describe(options.load);
    const Alphabet alphabet = file ? file->alphabet : Alphabet(text);
    flags.net.vocabulary = alphabet.size();
    if (file) {
        Config described = file->config;
        described.dropout = flags.net.dropout;
        if (!(described == flags.net))
            throw program::UsageError(fmt::format(
                "--load {}: the network has --context {} --width {} --heads {} --layers {}; expected the same flags",
                options.load.string(), described.context, described.width, described.heads, described.layers));
    }
    const auto numbers =
        std::make_shared<const std::vector<std::int64_t>>(alphabet.numbers(text, options.data.string()));
    const std::int64_t all = Windows::count_in(std::ssize(*numbers), flags.net.context);
    const auto held_out = static_cast<std::int64_t>(static_cast<double>(all) * flags.validation / 100);
    const Windows training(numbers, flags.net.context, 0, all - held_out);
    const Windows validation(numbers, flags.net.context, all - held_out, held_out);
    const std::int64_t batch = options.global_batch_size(options.chosen_devices());
    if (batch > training.size())
        throw program::UsageError(fmt::format(
            "--batch-size: {} windows per step, {} in the training text; expected fewer per step, a shorter "
            "--context or a longer text",
            batch, training.size()));
    if (options.schedule.name == "plateau" && held_out == 0)
        throw program::UsageError("--schedule plateau: no text for validation; expected --validation above 0");
    if (options.group)
        program::require_ranks_agree(*options.group, {fmt::format("{} windows to train on", training.size()),
                                                      fmt::format("an alphabet of {} characters", alphabet.size())});
    ls::manual_seed(options.seed);
    return program::with_model(options, Gpt(flags.net), [&](auto& model) {
        ls::Loader batches(model, training,
                           {.batch_size = batch, .shuffle = true, .seed = options.seed, .workers = options.workers});
        const auto optimizer = make_optimizer(model, options);
        program::Training how{.optimizer = *optimizer,
                              .unit = "windows",
                              .score = {"validation loss", false, false},
                              .facts = {{"dropout", fmt::format("{}", flags.net.dropout)},
                                        {"validation", fmt::format("{}", flags.validation)},
                                        {"dataset", program::describe_data(training)}},
                              .metadata = metadata_of(flags.net, alphabet)};
        std::optional<ls::Loader<Windows>> held;
        if (held_out > 0) {
            held.emplace(model, validation,
                         ls::LoaderOptions{.batch_size = std::max<std::int64_t>(batch, 8), .workers = options.workers});
            how.evaluate = [&] { return mean_loss(model, *held); };
            if (options.follows_score()) how.facts["validation-dataset"] = program::describe_data(validation);
        }
        return program::train("gpt", options, model, batches, ls::cross_entropy, how, began);
    });
}

}  // namespace

int train(int argc, char** argv) {
    const auto began = std::chrono::steady_clock::now();
    program::Options options;
    options.data = "README.md";
    options.default_batch_size = 16;
    options.epochs = 10;
    options.default_lr = 1e-3;
    options.default_momentum = 0;
    options.default_weight_decay = 0.1;
    options.clip = 1;
    options.schedule.name = "one-cycle";
    TrainFlags flags;
    return program::run({.name = "gpt",
                         .purpose = "Train a small GPT on the characters of a text, such as a book.",
                         .data = "text file, UTF-8",
                         .add_flags = [&](CLI::App& app) { add_flags(app, flags); },
                         .command = "train",
                         .data_type = "FILE"},
                        options, argc, argv, [&] { return train(flags, options, began); });
}

}  // namespace gpt
