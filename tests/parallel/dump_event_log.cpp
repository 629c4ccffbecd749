// Writes a log with every kind of entry and prints the entries as JSON, for tests/pytorch/check_event_log.py.
#include <cmath>
#include <iostream>
#include <limits>
#include <nlohmann/json.hpp>
#include <vector>

#include "lockstep/parallel/event_log.h"

namespace ls = lockstep;

int main(int argc, char** argv) {
    if (argc != 2) {
        std::cerr << "usage: dump_event_log DIRECTORY\n";
        return 2;
    }
    constexpr std::int64_t height = 48, width = 64;
    std::vector<std::uint8_t> picture, colours;
    std::vector<std::int64_t> classes;
    for (std::int64_t y = 0; y < height; ++y)
        for (std::int64_t x = 0; x < width; ++x) {
            for (const std::int64_t value : {4 * x, 5 * y, 2 * (x + y)})
                picture.push_back(static_cast<std::uint8_t>(value));
            const bool inside = (x - 32) * (x - 32) + (y - 24) * (y - 24) < 300;
            classes.push_back(inside ? 1 : 0);
            colours.insert(colours.end(), {static_cast<std::uint8_t>(inside ? 128 : 0), 0, 0});
        }
    const std::string text = "| flag | value |\n|---|---|\n| lr | 0.1 |\n";
    nlohmann::json told{{"picture", picture}, {"mask", colours}, {"text", text}};
    {
        ls::EventLog log(argv[1]);
        log.text("configuration", text);
        for (int step = 0; step < 25; ++step) log.scalar("loss", 99, step);
    }
    for (const int begin : {0, 10}) {  // the second run resumes in the middle of the first one
        ls::EventLog log(argv[1], {.resume_step = begin});
        if (begin == 0) log.text("configuration", text);
        for (int step = begin; step < begin + 20; ++step)
            log.scalars(step, {{"loss", begin == 0 && step >= 10 ? 99 : 1.0 / (step + 1)}, {"epoch", step / 10}});
        if (begin == 0) continue;
        for (int step = begin; step < 30; step += 5) {
            std::vector<float> values;
            for (int i = 0; i < 4000; ++i)
                values.push_back(static_cast<float>(std::sin(i * 0.7) * std::cos(i * 0.013) + 0.02 * step));
            if (step == begin) told["histograms"]["weights"] = values;
            values.push_back(std::numeric_limits<float>::quiet_NaN());
            log.histogram("weights", ls::Tensor::from(values, {4001}), step);
        }
        const std::vector<double> few{-3, -3, 0, 1e-13, 7e5};
        told["histograms"]["few"] = few;
        log.histogram("few", ls::Tensor::from(few, {5}), 29);
        log.image("picture", ls::Tensor::from(picture, {height, width, 3}), 29);
        log.mask("mask", ls::Tensor::from(classes, {height, width}), 29);
    }
    std::cout << told << '\n';
    return 0;
}
