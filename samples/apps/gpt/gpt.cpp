// A small GPT on the characters of any text: trains it, and generates text.
#include <CLI/CLI.hpp>
#include <string_view>

#include "lockstep/samples/apps/gpt/commands.h"
#include "lockstep/samples/apps/program/command_line.h"

int main(int argc, char** argv) {
    const std::string_view word = argc > 1 ? argv[1] : "";
    if (word == "train") return gpt::train(argc, argv);
    if (word == "generate") return gpt::generate(argc, argv);

    CLI::App app("Train a small GPT on the characters of a text, and generate text.", "gpt");
    app.require_subcommand(1);
    app.add_subcommand("train", "train on a text file");
    app.add_subcommand("generate", "continue a text with a trained network");
    app.footer("gpt COMMAND --help shows the flags of a command.");
    return program::run(app, argc, argv, [] {});
}
