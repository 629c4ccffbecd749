// The short programs directly in samples/: each runs, and computes the documented result.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/files.h"
#include "lockstep/tests/fixtures/messages.h"
#include "lockstep/tests/samples/run_program.h"

using namespace lockstep::test;

namespace {

/// Objections to the text of a short sample; empty: none.
std::vector<std::string> objections(const std::string& text) {
    std::vector<std::string> found;
    int lines = 0, comments = 0, code = 0;
    std::istringstream all(text);
    for (std::string line; std::getline(all, line); ++lines) {
        const auto first = line.find_first_not_of(' ');
        if (first == std::string::npos) continue;
        ++(line.compare(first, 2, "//") == 0 ? comments : code);
        if (line.starts_with("#include") && line != "#include <lockstep/lockstep.h>" &&
            (line.find('"') != std::string::npos || line.find_first_of("./") != std::string::npos))
            found.push_back(line);
    }
    if (lines > 60) found.push_back(std::to_string(lines) + " lines");
    if (comments >= code) found.push_back("more comments than code");
    if (text.find("#include <lockstep/lockstep.h>\n") == std::string::npos)
        found.emplace_back("another header than the public one");
    if (text.find(" : batches.epoch(") == std::string::npos && text.find(" : train.epoch(") == std::string::npos)
        found.emplace_back("no training loop");
    return found;
}

/// The number after the last `text` of the output.
double number_after(const std::string& out, const std::string& text) {
    const auto at = out.rfind(text);
    INFO(out);
    REQUIRE(at != std::string::npos);
    return std::stod(out.substr(at + text.size()));
}

/// Output of a sample that must succeed, run on N virtual devices.
std::string output(const TemporaryDirectory& directory, const std::string& line, int devices = 2) {
    const ProgramRun run = run_program(directory, line, "LOCKSTEP_CPU_DEVICES=" + std::to_string(devices));
    INFO(line << '\n' << run.out << run.err);
    REQUIRE(run.status == 0);
    return run.out;
}

void require_one_line_of_error(const ProgramRun& run, const std::string& begin) {
    INFO(run.out << run.err);
    CHECK(run.status == 1);
    CHECK(run.lines_of_err() == 1);
    CHECK(run.err.starts_with(begin));
}

std::vector<std::string> sorted_lines(const std::string& text) {
    std::vector<std::string> lines;
    std::istringstream all(text);
    for (std::string line; std::getline(all, line);) lines.push_back(line);
    std::sort(lines.begin(), lines.end());
    return lines;
}

}  // namespace

TEST_CASE("a short sample has at most 60 lines, a visible loop, and only the public header") {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(SAMPLES)) {
        if (entry.path().extension() != ".cpp") continue;
        names.push_back(entry.path().stem());
        INFO(names.back());
        CHECK(objections(get_bytes(entry.path())).empty());
    }
    std::sort(names.begin(), names.end());
    CHECK(names == std::vector<std::string>{"custom_loss", "custom_optimizer", "ddp_launch", "digits",
                                            "linear_regression", "mixed_precision", "own_dataset", "resume",
                                            "serve_while_training", "train_between_frames"});
}

TEST_CASE("a sample that is too long, hides its loop or includes more is found") {
    const std::string good = get_bytes(std::filesystem::path(SAMPLES) / "linear_regression.cpp");
    REQUIRE(objections(good).empty());
    CHECK(objections(good + std::string(60, '\n')).size() == 1);
    CHECK(objections("#include \"lockstep/runtime/tensor.h\"\n" + good).size() == 1);
    CHECK(objections("#include <lockstep/runtime/tensor.h>\n" + good).size() == 1);
    CHECK(objections("#include <fmt/format.h>\n" + good).size() == 1);
    CHECK(objections("#include <lockstep/lockstep.h>\n// why\n// why\nint main() {}\n").size() == 2);
}

TEST_CASE("linear regression finds the weights that generated the data") {
    const TemporaryDirectory directory;
    for (const int devices : {1, 2, 3}) {
        const std::string out = output(directory, "linear_regression", devices);
        CHECK(number_after(out, "loss ") < 2e-4);  // the variance of the noise is 1e-4
        CHECK(number_after(out, "largest error of a weight: ") < 0.005);
    }
}

TEST_CASE("digits learns, saves the network, and names a directory without data") {
    const TemporaryDirectory directory;
    REQUIRE(run_program(directory, "make-digits --data data/digits --train 3000 --test 500").status == 0);
    CHECK(number_after(output(directory, "digits"), "accuracy ") > 0.6);
    CHECK(number_after(output(directory, "digits data/digits"), "epoch ") == 3);
    CHECK(get_bytes(directory / "digits.safetensors").find("fc2.weight") != std::string::npos);
    require_one_line_of_error(run_program(directory, "digits elsewhere"), "digits: elsewhere: ");
}

TEST_CASE("own_dataset learns its classes, and every run draws the same augmentation") {
    const TemporaryDirectory directory;
    const std::string out = output(directory, "own_dataset");
    CHECK(number_after(out, "accuracy ") > 0.95);
    CHECK(output(directory, "own_dataset") == out);
}

TEST_CASE("the ranks of ddp_launch agree, started by itself or by a launcher, with the same bits") {
    const TemporaryDirectory directory;
    const std::string alone = output(directory, "ddp_launch", 1);
    const std::string weights = get_bytes(directory / "ddp_launch.safetensors");
    REQUIRE(sorted_lines(alone).size() == 2);
    CHECK(number_after(alone, "loss ") < 0.1);  // the targets have a variance of 0.25
    // With closed standard streams, what ranks print must not get into sockets or files.
    for (const char* closed : {">&-", "<&- >&- 2>&-"}) {
        std::filesystem::remove(directory / "ddp_launch.safetensors");
        CHECK(
            std::system(("cd " + shell_word(directory.path()) + " && " + shell_word(PROGRAMS) + "/ddp_launch " + closed)
                            .c_str()) == 0);
        CHECK(get_bytes(directory / "ddp_launch.safetensors") == weights);
    }
    for (const int ranks : {1, 2, 4}) {
        std::filesystem::remove(directory / "ddp_launch.safetensors");
        const std::string out = output(
            directory,
            "lockstep-run --nproc-per-node " + std::to_string(ranks) + " " + shell_word(PROGRAMS) + "/ddp_launch", 1);
        std::vector<std::string> expected;
        for (int rank = 0; rank < ranks; ++rank)
            expected.push_back("rank " + std::to_string(rank) + " of " + std::to_string(ranks) + alone.substr(11));
        for (std::string& line : expected) line.resize(line.find('\n'));
        CHECK(sorted_lines(out) == expected);
        CHECK(get_bytes(directory / "ddp_launch.safetensors") == weights);
    }
}

TEST_CASE("the custom loss ignores the outliers that bend the squared error's line") {
    const TemporaryDirectory directory;
    const std::string out = output(directory, "custom_loss");
    CHECK(number_after(out, "squared error: ") > 0.5);
    CHECK(number_after(out, "pseudo-Huber: ") < 0.05);
}

TEST_CASE("the custom optimizer learns") {
    const TemporaryDirectory directory;
    CHECK(number_after(output(directory, "custom_optimizer"), "accuracy ") > 0.95);
}

TEST_CASE("a resumed run of resume is bit-identical to an uninterrupted one") {
    const TemporaryDirectory whole, parts;
    CHECK_THAT(output(whole, "resume"),
               contains("started at epoch 1, step 0\nsaved resume.safetensors after 200 steps"));
    output(parts, "resume 32", 1);  // the end of an epoch
    CHECK_THAT(output(parts, "resume 70", 2), contains("resumed at epoch 2, step 32\n"));
    CHECK(get_bytes(parts / "resume.safetensors") != get_bytes(whole / "resume.safetensors"));
    CHECK_THAT(output(parts, "resume", 1), contains("resumed at epoch 3, step 70\n"));
    CHECK(get_bytes(parts / "resume.safetensors") == get_bytes(whole / "resume.safetensors"));
    CHECK(get_bytes(parts / "resume.safetensors.resume") == get_bytes(whole / "resume.safetensors.resume"));
    require_one_line_of_error(run_program(parts, "resume many"), "resume: STEPS is many; expected ");
}

TEST_CASE("the server answers during training, and finally with the trained weights") {
    const TemporaryDirectory directory;
    const std::string out = output(directory, "serve_while_training");
    CHECK(number_after(out, "server: ") >= 1);
    CHECK(std::abs(number_after(out, "0.5 squared is ") - 0.25) < 0.02);
}

TEST_CASE("frames are drawn during training, at least one for each step") {
    const TemporaryDirectory directory;
    const std::string out = output(directory, "train_between_frames");
    CHECK(out.starts_with("200 steps during "));
    CHECK(number_after(out, "200 steps during ") >= 200);
    CHECK(number_after(out, "loss ") < 0.01);
}

TEST_CASE("mixed precision with accumulation learns in bf16 and f16") {
    const TemporaryDirectory directory;
    const std::string out = output(directory, "mixed_precision");
    CHECK(number_after(out, "loss ") < 1);  // log(10) at the start
    CHECK(output(directory, "mixed_precision bf16") == out);
    CHECK(number_after(output(directory, "mixed_precision f16"), "loss ") < 1);
    require_one_line_of_error(run_program(directory, "mixed_precision f64"),
                              "mixed_precision: dtype is f64; expected ");
}

TEST_CASE("every short sample reports an error in one line") {
    const TemporaryDirectory directory;
    for (const auto& entry : std::filesystem::directory_iterator(SAMPLES)) {
        if (entry.path().extension() != ".cpp") continue;
        const std::string name = entry.path().stem();
        require_one_line_of_error(run_program(directory, name, "LOCKSTEP_CPU_DEVICES=none"), name + ": ");
    }
}
