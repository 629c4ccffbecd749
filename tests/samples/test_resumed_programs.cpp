// Checkpoints of programs: runs that resume, what they refuse, and checkpoints that cannot be written.
#include <fmt/format.h>

#include <cstddef>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <utility>

#include "lockstep/parallel/checkpoint.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/files.h"
#include "lockstep/tests/fixtures/messages.h"
#include "lockstep/tests/samples/place.h"
#include "lockstep/tests/samples/run_program.h"

using namespace lockstep::test;
using nlohmann::json;

TEST_CASE("a resumed run is bit-identical to an uninterrupted one, also on other devices") {
    const Place place;
    const std::string common = "--shards 4 --epochs 2 --quiet --momentum 0.9 ";
    REQUIRE(place.mnist(common + "--save whole").status == 0);
    REQUIRE(place.mnist(common + "--devices cpu:0,cpu:1 --steps 5 --save part").status == 0);
    REQUIRE(place.mnist(common + "--devices cpu:0 --load part --save rest").status == 0);
    CHECK(get_bytes(place.directory / "rest") == get_bytes(place.directory / "whole"));
    CHECK(get_bytes(place.directory / "part") != get_bytes(place.directory / "whole"));
    CHECK(get_bytes(place.directory / "rest.resume") == get_bytes(place.directory / "whole.resume"));

    // Only evaluation: nothing is trained.
    REQUIRE(place.mnist("--epochs 0 --quiet --load whole --save same --json figures.json").status == 0);
    CHECK(get_bytes(place.directory / "same") == get_bytes(place.directory / "whole"));
    CHECK(place.figures("figures.json")["losses"].empty());
    CHECK(place.mnist(common + "--load part --seed 2").status == 2);
}

TEST_CASE("a resumed run keeps its rates unless others are given") {
    const Place place;
    const std::string common = "--shards 2 --epochs 2 --load one ";
    REQUIRE(place.mnist("--shards 2 --epochs 1 --lr 0.1 --momentum 0.9 --save one --quiet").status == 0);
    CHECK_THAT(place.mnist(common + "--save kept").out, contains("7 steps done, lr 0.1, momentum 0.9"));
    CHECK_THAT(place.mnist(common + "--lr 0.01 --save slow").out, contains("lr 0.01, momentum 0.9"));
    CHECK_THAT(place.mnist(common + "--momentum 0.5").out, contains("lr 0.1, momentum 0.5"));
    CHECK(get_bytes(place.directory / "kept") != get_bytes(place.directory / "one"));
    CHECK(get_bytes(place.directory / "kept") != get_bytes(place.directory / "slow"));
    // With rate 0 nothing changes.
    REQUIRE(place.mnist(common + "--lr 0 --save still --quiet").status == 0);
    CHECK(get_bytes(place.directory / "still") == get_bytes(place.directory / "one"));
}

TEST_CASE("a run resumes only with the same data, also if a file has the same size") {
    const Place place;
    REQUIRE(place.mnist("--steps 3 --quiet --save net").status == 0);
    CHECK(place.mnist("--steps 4 --quiet --load net").status == 0);
    // One pixel of one row, and the label of another one.
    for (const auto& [file, at] :
         {std::pair("train-images-idx3-ubyte", 16 + 28 * 28 * 3 + 400), {"train-labels-idx1-ubyte", 8 + 101}}) {
        CAPTURE(file);
        const auto path = place.directory / "digits" / file;
        const std::string before = get_bytes(path);
        std::string other = before;
        char& byte = other.at(static_cast<std::size_t>(at));
        byte = static_cast<char>(byte == 0 ? 1 : 0);
        put_bytes(path, other);
        const ProgramRun run = place.mnist("--steps 4 --quiet --load net");
        CHECK(run.status == 2);
        CHECK(run.lines_of_err() == 1);
        CHECK_THAT(run.err, contains("mnist: dataset 404 rows, ") && contains(": the run saved in net has 404 rows, "));
        CHECK_THAT(place.mnist("--steps 4 --load net --allow-changed dataset").out,
                   contains("continues with dataset 404 rows, "));
        put_bytes(path, before);
    }
    CHECK(place.mnist("--steps 4 --quiet --load net").status == 0);

    // The test set is a fact only if the run follows its accuracy.
    const std::string follows = "--quiet --schedule plateau ";
    REQUIRE(place.mnist(follows + "--epochs 1 --save followed").status == 0);
    const auto path = place.directory / "digits" / "t10k-labels-idx1-ubyte";
    std::string labels = get_bytes(path);
    labels.at(8 + 7) = static_cast<char>(labels.at(8 + 7) == 0 ? 1 : 0);
    put_bytes(path, labels);
    CHECK(place.mnist("--steps 4 --quiet --load net").status == 0);
    const ProgramRun run = place.mnist(follows + "--epochs 2 --load followed");
    CHECK(run.status == 2);
    CHECK_THAT(run.err, contains("mnist: test-dataset ") && contains(": the run saved in followed has "));
    CHECK(place.mnist(follows + "--epochs 2 --load followed --allow-changed test-dataset").status == 0);
}

TEST_CASE("a run resumes only with the same algorithm of convolutions") {
    const Place place;
    REQUIRE(place.mnist("--steps 2 --quiet --save net").status == 0);
    const ProgramRun run = place.mnist("--steps 3 --quiet --load net", "LOCKSTEP_CONV=direct");
    CHECK(run.status == 2);
    CHECK_THAT(run.err,
               contains("convolution direct: the run saved in net has automatic") && !contains("--convolution"));
    CHECK(place.mnist("--steps 3 --quiet --load net --allow-changed convolution", "LOCKSTEP_CONV=direct").status == 0);
}

TEST_CASE("plateau, early stop, best and kept checkpoints of mnist follow the test accuracy") {
    const Place place;
    REQUIRE(place
                .mnist("--lr 1e-5 --momentum 0 --schedule plateau --lr-patience 1 --lr-gamma 0.5 --epochs 6 --quiet "
                       "--log-dir log")
                .status == 0);
    // torch.optim.lr_scheduler.ReduceLROnPlateau(mode="max", patience=1, factor=0.5), as documented.
    double best = -1, rate = 1e-5;
    int bad = 0, falls = 0, evaluations = 0;
    std::istringstream log(get_bytes(place.directory / "log/mnist.jsonl"));
    for (std::string text; std::getline(log, text);) {
        const json line = json::parse(text);
        if (!line.contains("test_accuracy")) continue;
        ++evaluations;
        CHECK(line["lr"].get<double>() == Approx(rate));  // before this evaluation
        const double accuracy = line["test_accuracy"];
        bad = accuracy > best * (1 + 1e-4) ? 0 : bad + 1;
        if (bad == 0) best = accuracy;
        if (bad > 1) rate *= 0.5, bad = 0, ++falls;
    }
    CHECK(evaluations == 6);
    CHECK(falls > 0);

    // A rate that changes no weight keeps the accuracy.
    const std::string still = "--lr 1e-12 --momentum 0 ";
    const ProgramRun stopped = place.mnist(still + "--epochs 9 --early-stop 2 --save net --json figures.json");
    CHECK_THAT(stopped.out, contains("stopped early: test accuracy has not improved for 2 evaluations\n"));
    CHECK(place.figures("figures.json")["losses"].size() == 3 * 7);
    // With the same patience it has ended; with another one the flag is named.
    const ProgramRun again = place.mnist(still + "--epochs 9 --early-stop 2 --load net --json figures.json");
    CHECK(again.status == 0);
    CHECK(place.figures("figures.json")["losses"].empty());
    for (const char* other : {"--early-stop 4", ""}) {
        const ProgramRun refused = place.mnist(still + "--epochs 9 --load net " + other);
        CHECK(refused.status == 2);
        CHECK_THAT(refused.err, contains(fmt::format("--early-stop {}: the run saved in net has 2; expected the same",
                                                     *other ? "4" : "off")));
    }
    REQUIRE(place.mnist(still + "--epochs 9 --load net --early-stop 4 --allow-changed early-stop --json figures.json")
                .status == 0);
    CHECK(place.figures("figures.json")["losses"].size() == 2 * 7);

    const ProgramRun unwritable = place.mnist(still + "--epochs 1 --quiet --save net1 --best kept/best");
    CHECK(unwritable.status == 1);
    CHECK_THAT(unwritable.err, contains("mnist: cannot write kept/best: No such file or directory"));
    CHECK_FALSE(std::filesystem::exists(place.directory / "net1"));
    std::filesystem::create_directory(place.directory / "kept");
    REQUIRE(place.mnist(still + "--epochs 4 --quiet --save 'kept/net{epoch}' --save-every 1e --keep 2 --best kept/best")
                .status == 0);
    CHECK(names_in(place.directory / "kept") ==
          std::set<std::string>{"best", "best.resume", "net3", "net3.resume", "net4", "net4.resume"});
    CHECK(lockstep::read_run(place.directory / "kept/best")->epoch == 1);  // the first of equal scores
}

TEST_CASE("a job that restarts with its own flags keeps the rate that its schedule has reduced") {
    const Place place;
    // The accuracy hardly changes, so that most evaluations halve the rate.
    const std::string job = "--shards 2 --lr 1e-5 --momentum 0 --schedule plateau --lr-patience 0 --lr-gamma 0.5 ";
    REQUIRE(place.mnist(job + "--epochs 8 --quiet --save whole").status == 0);
    REQUIRE(place.mnist(job + "--epochs 6 --save part").status == 0);
    const ProgramRun rest = place.mnist(job + "--epochs 8 --load part --save rest");
    CHECK(rest.status == 0);
    CHECK_THAT(rest.out, contains("42 steps done, lr ") && !contains("42 steps done, lr 1e-05"));
    CHECK_THAT(rest.out, !contains("continues with"));
    CHECK(get_bytes(place.directory / "rest") == get_bytes(place.directory / "whole"));
    CHECK(get_bytes(place.directory / "rest.resume") == get_bytes(place.directory / "whole.resume"));
}

TEST_CASE("a run resumed within an epoch continues with the same order of batches") {
    const Place place;
    const ProgramRun begun = place.mnist("--steps 9 --save part");
    CHECK_THAT(begun.out, contains("epoch 1: loss "));
    CHECK_THAT(begun.out, contains("epoch 2, step 2 of 7: loss "));
    const ProgramRun other = place.mnist("--epochs 3 --batch-size 32 --load part");
    CHECK(other.status == 2);
    CHECK_THAT(other.err, contains("--batch-size 64"));
    CHECK(place.mnist("--epochs 2 --load part --save whole --quiet").status == 0);
    const ProgramRun between = place.mnist("--epochs 3 --batch-size 32 --load whole --quiet");
    CHECK(between.status == 2);
    CHECK_THAT(between.err, contains("--batch-size 32: the run saved in whole has 64"));
    CHECK(place.mnist("--epochs 3 --batch-size 32 --load whole --quiet --allow-changed batch-size").status == 0);
}

TEST_CASE("a full disk or a file size limit leaves the old checkpoint") {
    const Place place;
    REQUIRE(place.mnist("--steps 1 --quiet --save net").status == 0);
    const std::string before = get_bytes(place.directory / "net");
    for (const char* limited : {"trap '' XFSZ; ulimit -f 8;", "ulimit -f 8;"}) {
        const ProgramRun full = place.mnist("--steps 2 --quiet --save net", limited);
        CHECK(full.status == 1);
        CHECK(full.lines_of_err() == 1);
        CHECK_THAT(full.err, contains("File too large"));
        CHECK(get_bytes(place.directory / "net") == before);
    }
    const ProgramRun often = place.mnist("--steps 4 --quiet --save net --save-every 1", "ulimit -f 8;");
    CHECK(often.status == 1);  // the last one could not be saved either
    CHECK(often.lines_of_err() == 4);
    for (const char* step : {"1", "2", "3"})
        CHECK_THAT(often.err,
                   contains(fmt::format("the checkpoint of step {} was not saved, training continues: ", step)));
    CHECK(get_bytes(place.directory / "net") == before);
    // The limit applies to a log and to printed output as well.
    const ProgramRun log = place.mnist("--steps 100 --epochs 100 --quiet --log-dir log", "ulimit -f 4;");
    CHECK(log.status == 0);
    CHECK(log.lines_of_err() == 1);
    CHECK_THAT(log.err, contains("cannot be written any further: File too large"));
}

TEST_CASE("a run from weights only starts from the beginning and prints which state is new") {
    const Place place;
    REQUIRE(place.mnist("--steps 3 --quiet --save net").status == 0);
    CHECK_THAT(place.mnist("--steps 4 --load net").out, contains("continues net: 3 steps done"));
    std::filesystem::remove(place.directory / "net.resume");
    const ProgramRun anew = place.mnist("--steps 2 --start_from net --json figures");
    CHECK(anew.status == 0);
    CHECK(anew.err.empty());
    CHECK_THAT(anew.out, contains("starts with the weights of net; no run state found: optimizer, "
                                  "learning rate, epochs and data order start from scratch\n"));
    CHECK_THAT(place.mnist("--steps 2").out, !contains("from scratch"));
}
