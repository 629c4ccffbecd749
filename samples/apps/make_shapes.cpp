// Draws a dataset of vehicle-like shapes with their masks, as training data for `unet train`.
#include <CLI/CLI.hpp>
#include <cstdint>
#include <iostream>
#include <string>

#include "lockstep/samples/apps/program/command_line.h"
#include "lockstep/samples/data/shapes.h"

int main(int argc, char** argv) {
    std::string directory = "data";
    samples::ShapesOptions options;

    CLI::App app("Draw vehicle-like shapes into DIR/imgs (jpg) and their masks into DIR/masks (gif).", "make-shapes");
    app.add_option("--data", directory, "directory for imgs and masks, created if missing")
        ->type_name("DIR")
        ->capture_default_str();
    app.add_option("--count", options.count, "number of images")
        ->type_name("N")
        ->transform(program::is_whole(1, 100'000))
        ->capture_default_str();
    const auto side = program::is_whole(32, 4096);
    app.add_option("--width", options.width, "width of an image in pixels")
        ->type_name("N")
        ->transform(side)
        ->capture_default_str();
    app.add_option("--height", options.height, "height of an image in pixels")
        ->type_name("N")
        ->transform(side)
        ->capture_default_str();
    app.add_option("--seed", options.seed, "random seed for the drawings")
        ->type_name("N")
        ->transform(program::is_natural())
        ->capture_default_str();
    return program::run(app, argc, argv, [&] {
        samples::write_shapes(directory, options);
        std::cout << "make-shapes: " << options.count << " images of " << options.width << " x " << options.height
                  << " in " << directory << "/imgs, their masks in " << directory << "/masks\n";
    });
}
