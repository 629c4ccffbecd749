// U-Net on a folder of images and masks: trains it, predicts masks of new images, and measures their quality.
#include <CLI/CLI.hpp>
#include <array>
#include <string_view>

#include "lockstep/samples/apps/program/command_line.h"
#include "lockstep/samples/apps/unet/commands.h"

int main(int argc, char** argv) {
    struct Command {
        const char* name;
        const char* purpose;
        int (*run)(int, char**);
    };
    constexpr std::array<Command, 3> commands{
        {{"train", "train on images and masks", unet::train},
         {"predict", "predict masks of images with a trained network", unet::predict},
         {"evaluate", "compare predicted masks with the true masks", unet::evaluate}}};
    const std::string_view word = argc > 1 ? argv[1] : "";
    for (const Command& command : commands)
        if (word == command.name) return command.run(argc, argv);

    CLI::App app("Train U-Net for image segmentation, predict masks and evaluate them.", "unet");
    app.require_subcommand(1);
    for (const Command& command : commands) app.add_subcommand(command.name, command.purpose);
    app.footer("unet COMMAND --help shows the flags of a command.");
    return program::run(app, argc, argv, [] {});
}
