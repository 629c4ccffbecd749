// Small sets of images for unet, and functions that run the program on them.
#pragma once

#include <filesystem>
#include <string>

#include "lockstep/samples/data/shapes.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/samples/run_program.h"

namespace lockstep::test {

/// A directory with data/imgs and data/masks: vehicles of 32 x 32 pixels.
class UnetPlace : public TemporaryDirectory {
public:
    explicit UnetPlace(std::int64_t images = 12, int side = 32) {
        samples::write_shapes(path() / "data", {.count = images, .width = side, .height = side, .seed = 3});
    }
};

inline ProgramRun run_unet(const TemporaryDirectory& place, const std::string& flags) {
    return run_program(place, "unet " + flags);
}

/// `unet train` of a small network, which must succeed.
inline void train_unet(const TemporaryDirectory& place, const std::string& flags) {
    const std::string scale =
        flags.find("-s ") == std::string::npos && flags.find("--scale ") == std::string::npos ? "--scale 1 " : "";
    const ProgramRun run = run_unet(place, "train --quiet --width 4 " + scale + flags);
    CAPTURE(flags);
    CAPTURE(run.err);
    REQUIRE(run.status == 0);
    CHECK(run.err.empty());
    CHECK(run.out.empty());
}

/// The one line of a command that failed.
inline std::string refusal(const TemporaryDirectory& place, const std::string& line, int status) {
    const ProgramRun run = run_unet(place, line);
    CAPTURE(line);
    CAPTURE(run.err);
    CHECK(run.status == status);
    CHECK(run.lines_of_err() == 1);
    return run.err;
}

}  // namespace lockstep::test
