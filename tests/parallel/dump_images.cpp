// Prints images as they are read and scaled, and rows of a SegmentationFolder, for tests/pytorch/check_images.py: each
// line of input is a case, its answer one line for each image: mode, height, width and levels in hexadecimal digits; of
// a row image and mask, as numbers.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <exception>
#include <iostream>
#include <sstream>
#include <string>

#include "lockstep/parallel/lockstep.h"

namespace {

using namespace lockstep;

Resampling resampling_of(const std::string& name) {
    return name == "bicubic" ? Resampling::bicubic : name == "bilinear" ? Resampling::bilinear : Resampling::nearest;
}

void print(const HostImage& image) {
    std::cout << fmt::format("{}:{}:{}:{:02x}\n", name_of(image.mode), image.height, image.width,
                             fmt::join(image.pixels, ""));
}

void print(const SegmentationFolder& data) {
    for (std::int64_t row = 0; row < data.size(); ++row) {
        const auto [image, mask] = data.get(row);
        std::cout << fmt::format("{}:{}\n", image.shape().str(), fmt::join(image.to_vector<float>(), " "));
        std::cout << fmt::format("{}:{}\n", mask.shape().str(), fmt::join(mask.to_vector<std::int64_t>(), " "));
    }
}

void answer(const std::string& line) {
    std::istringstream words(line);
    std::string what, path, rest;
    words >> what >> path;
    if (what == "read") {
        print(read_image(path));
    } else if (what == "resize") {
        std::int64_t height = 0, width = 0;
        words >> height >> width >> rest;
        print(resize_image(read_image(path), height, width, resampling_of(rest)));
    } else {
        double scale = 1;
        words >> rest >> scale;
        print(SegmentationFolder(path, rest, {.scale = scale}));
    }
}

}  // namespace

int main() {
    try {
        for (std::string line; std::getline(std::cin, line);) answer(line);
        return 0;
    } catch (const std::exception& error) {
        std::fprintf(stderr, "dump_images: %s\n", error.what());
        return 1;
    }
}
