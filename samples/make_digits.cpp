// Draws a data set of handwriting-like digits under MNIST's names, so that `mnist --data DIR` has something to learn.
#include <CLI/CLI.hpp>
#include <cstdint>
#include <exception>
#include <iostream>
#include <string>

#include "lockstep/parallel/digits.h"

int main(int argc, char** argv) {
    std::string directory = "data/digits";
    lockstep::DigitsOptions options;

    CLI::App app("Draw handwriting-like digits (28x28, 8 bit) into IDX files under MNIST's names.", "make-digits");
    app.add_option("--data", directory, "directory for the four files, made where it is missing")
        ->capture_default_str();
    app.add_option("--train", options.train_count, "training images")->capture_default_str();
    app.add_option("--test", options.test_count, "test images")->capture_default_str();
    app.add_option("--seed", options.seed, "decides every pixel")->capture_default_str();
    app.add_flag("--gzip", options.gzip, "compress the files");
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        return app.exit(error) == 0 ? 0 : 2;
    }

    try {
        lockstep::write_digits(directory, options);
    } catch (const std::exception& error) {
        std::cerr << "make-digits: " << error.what() << '\n';
        return 1;
    }
    std::cout << "make-digits: " << options.train_count << " training and " << options.test_count << " test images in "
              << directory << '\n';
    return 0;
}
