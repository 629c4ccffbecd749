// Draws a dataset of handwriting-like digits with MNIST's file names, as training data for `mnist --data DIR`.
#include <CLI/CLI.hpp>
#include <cstdint>
#include <iostream>
#include <string>

#include "lockstep/samples/apps/program/command_line.h"
#include "lockstep/samples/data/digits.h"

int main(int argc, char** argv) {
    std::string directory = "data/digits";
    samples::DigitsOptions options;

    CLI::App app("Draw handwriting-like digits (28x28, 8 bit) into IDX files under MNIST's names.", "make-digits");
    app.add_option("--data", directory, "directory for the four files, created if missing")
        ->type_name("DIR")
        ->capture_default_str();
    const auto count = program::is_whole(1, 100'000'000);
    app.add_option("--train", options.train_count, "number of training images")
        ->type_name("N")
        ->transform(count)
        ->capture_default_str();
    app.add_option("--test", options.test_count, "number of test images")
        ->type_name("N")
        ->transform(count)
        ->capture_default_str();
    app.add_option("--seed", options.seed, "random seed for the drawings")
        ->type_name("N")
        ->transform(program::is_natural())
        ->capture_default_str();
    app.add_flag("--gzip", options.gzip, "compress the files");
    return program::run(app, argc, argv, [&] {
        samples::write_digits(directory, options);
        std::cout << "make-digits: " << options.train_count << " training and " << options.test_count
                  << " test images in " << directory << '\n';
    });
}
