// gpt generate: continues a text.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <iostream>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "lockstep/ops/summary.h"
#include "lockstep/parallel/checkpoint.h"
#include "lockstep/runtime/error.h"
#include "lockstep/samples/apps/gpt/commands.h"
#include "lockstep/samples/apps/gpt/generator.h"
#include "lockstep/samples/apps/gpt/model_file.h"
#include "lockstep/samples/apps/program/command_line.h"

namespace gpt {

namespace ls = lockstep;

namespace {

struct GenerateFlags {
    std::filesystem::path model;
    std::string prompt = "\n";
    std::int64_t length = 500, top = 0;
    double temperature = 0.8;
    std::uint64_t seed = 1;
};

void add_flags(CLI::App& app, GenerateFlags& flags) {
    app.add_option("--model,-m", flags.model, "file saved by gpt train (required)")->type_name("FILE")->required();
    app.add_option("--prompt", flags.prompt, "text to continue; default a line break")->type_name("TEXT");
    app.add_option("--length", flags.length, "characters to generate")
        ->type_name("N")
        ->transform(program::is_whole(1, std::int64_t{1} << 30))
        ->capture_default_str();
    app.add_option("--temperature", flags.temperature,
                   "divisor of the logits; 0 always takes the most likely character")
        ->type_name("NUMBER")
        ->check(program::is_between(0, 100))
        ->capture_default_str();
    app.add_option("--top", flags.top, "characters to choose from, the most likely ones; 0 for all")
        ->type_name("N")
        ->transform(program::is_whole(0, std::int64_t{1} << 30))
        ->capture_default_str();
    app.add_option("--seed", flags.seed, "random seed of the choice")
        ->type_name("N")
        ->transform(program::is_natural())
        ->capture_default_str();
}

/// A character by its logits. Throws DataError unless they are finite.
std::int64_t chosen(const std::vector<float>& logits, const GenerateFlags& flags, std::mt19937_64& random) {
    if (!std::all_of(logits.begin(), logits.end(), [](float logit) { return std::isfinite(logit); }))
        throw ls::DataError(
            fmt::format("{}: the output of the network is not finite; expected finite weights", flags.model.string()));
    std::vector<std::size_t> order(logits.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return logits[a] > logits[b]; });
    if (flags.temperature == 0) return static_cast<std::int64_t>(order[0]);
    if (flags.top > 0) order.resize(std::min(order.size(), static_cast<std::size_t>(flags.top)));
    std::vector<double> weights;
    for (const std::size_t character : order)
        weights.push_back(std::exp(static_cast<double>(logits[character] - logits[order[0]]) / flags.temperature));
    std::discrete_distribution<std::size_t> distribution(weights.begin(), weights.end());
    return static_cast<std::int64_t>(order[distribution(random)]);
}

void generate(const GenerateFlags& flags) {
    const ModelFile file = describe(flags.model);
    const std::vector<std::int64_t> prompt = file.alphabet.numbers(decoded(flags.prompt, "--prompt"), "--prompt");
    Gpt net(file.config);
    ls::load(net, flags.model);
    Generator generator(net);
    std::mt19937_64 random(flags.seed);
    std::cout << flags.prompt;
    ls::Tensor logits;
    for (const std::int64_t character : prompt) logits = generator.append(character);
    for (std::int64_t i = 0; i < flags.length; ++i) {
        const std::int64_t character = chosen(logits.to_vector<float>(), flags, random);
        std::cout << encoded({&file.alphabet.characters()[static_cast<std::size_t>(character)], 1}) << std::flush;
        logits = generator.append(character);
    }
    std::cout << '\n' << std::flush;
}

}  // namespace

int generate(int argc, char** argv) {
    GenerateFlags flags;
    CLI::App app("Continue a text with a trained GPT.", "gpt generate");
    app.footer("Computes on the CPU, with the keys and values of earlier characters in a cache.");
    add_flags(app, flags);
    return program::run(app, argc - 1, argv + 1, [&] { generate(flags); });
}

}  // namespace gpt
