// make-shapes as a user runs it.
#include <string>

#include "lockstep/parallel/data/image_file.h"
#include "lockstep/parallel/data/segmentation_folder.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/samples/run_program.h"

using namespace lockstep;
using namespace lockstep::test;

TEST_CASE("make-shapes draws the same set for the same seed, number and size") {
    const TemporaryDirectory place;
    const std::string flags = " --count 6 --width 120 --height 80 --seed 9";
    const ProgramRun one = run_program(place, "make-shapes --data one" + flags);
    CHECK(one.status == 0);
    CHECK(one.err.empty());
    CHECK(one.out == "make-shapes: 6 images of 120 x 80 in one/imgs, their masks in one/masks\n");
    REQUIRE(run_program(place, "make-shapes --data two" + flags).status == 0);
    REQUIRE(run_program(place, "make-shapes --data other --count 1 --width 120 --height 80 --seed 10").status == 0);
    const SegmentationFolder data(place / "one/imgs", place / "one/masks");
    REQUIRE(data.size() == 6);
    CHECK(data.classes() == 2);
    CHECK(data.channels() == 3);
    const auto bytes_of = [](const std::filesystem::path& directory, const SegmentationFolder& set, std::int64_t row) {
        return get_bytes(directory / "imgs" / set.image_file(row).filename()) +
               get_bytes(directory / "masks" / set.mask_file(row).filename());
    };
    for (std::int64_t row = 0; row < 6; ++row) {
        const ImageHeader header = read_image_header(data.image_file(row));
        CHECK(header.width == 120);
        CHECK(header.height == 80);
        CHECK(bytes_of(place / "one", data, row) == bytes_of(place / "two", data, row));
    }
    CHECK(bytes_of(place / "one", data, 0) != bytes_of(place / "other", data, 0));
}

TEST_CASE("make-shapes reports bad arguments in one line") {
    const TemporaryDirectory place;
    for (const std::string flags : {"--nonsense", "--count 0", "--count -1", "--count 100001", "--width 31",
                                    "--height 4097", "--width x", "--seed -1", "stray"}) {
        CAPTURE(flags);
        const ProgramRun run = run_program(place, "make-shapes " + flags);
        CHECK(run.status == 2);
        CHECK(run.out.empty());
        CHECK(run.lines_of_err() == 1);
    }
    REQUIRE(run_program(place, "make-shapes --data set --count 2 --width 32 --height 32").status == 0);
    put_bytes(place / "file", "");
    for (const std::string flags :
         {"--data file --count 1", "--data /proc/none --count 1", "--data set --count 1 --width 32 --height 32"}) {
        CAPTURE(flags);
        const ProgramRun run = run_program(place, "make-shapes " + flags);
        CHECK(run.status == 1);
        CHECK(run.lines_of_err() == 1);
        CHECK(run.err.starts_with("make-shapes: "));
    }
    CHECK(run_program(place, "make-shapes --help").status == 0);
}
