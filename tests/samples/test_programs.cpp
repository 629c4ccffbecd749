// Programs as a user runs them: help, wrong usage, failures, figures and logs.
#include <sys/stat.h>
#include <sys/wait.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/environment.h"
#include "lockstep/tests/fixtures/files.h"
#include "lockstep/tests/fixtures/messages.h"
#include "lockstep/tests/samples/place.h"
#include "lockstep/tests/samples/run_program.h"

using namespace lockstep::test;
using nlohmann::json;

TEST_CASE("help names all flags and succeeds") {
    const Place place;
    for (const std::string name : {"mnist", "linear"}) {
        const ProgramRun help = place.run(name + " --help");
        CHECK(help.status == 0);
        CHECK(help.err.empty());
        for (const char* flag : {"--parallel",
                                 "--devices",
                                 "--shards",
                                 "--batch-size ",
                                 "--batch-size-per-device",
                                 "--accumulation-steps",
                                 "--epochs",
                                 "--steps",
                                 "--lr",
                                 "--momentum",
                                 "--seed",
                                 "--deterministic",
                                 "--amp",
                                 "--allow-tf32",
                                 "--benchmark",
                                 "--workers",
                                 "--save ",
                                 "--save-every",
                                 "--load",
                                 "--log-dir",
                                 "--json",
                                 "--quiet",
                                 "ddp",
                                 "--backend",
                                 "--rank",
                                 "--world-size",
                                 "--init-method",
                                 "--timeout",
                                 "--reduction"})
            CHECK_THAT(help.out, contains(flag));
        CHECK_THAT(help.out, contains("A second SIGINT or SIGTERM ends it"));
    }
    CHECK_THAT(place.run("mnist --help").out, contains("--net"));
}

TEST_CASE("help is one line per flag, in groups, with all descriptions in one column") {
    const TemporaryDirectory directory;
    for (const std::string program :
         {"mnist", "linear", "gpt", "gpt train", "gpt generate", "unet", "unet train", "unet predict", "unet evaluate",
          "collectives", "model_parallel", "lockstep-info", "lockstep-run", "make-digits", "make-shapes"}) {
        const std::string help = run_program(directory, program + " --help").out;
        CHECK_THAT(help, contains("\n\nUsage: " + program + " "));
        std::istringstream lines(help);
        std::size_t column = 0, flags = 0;
        for (std::string line; std::getline(lines, line);) {
            INFO(program << ": " << line);
            CHECK(line.size() <= 120);
            if (!line.starts_with("  ")) continue;
            const auto text = line.find_first_not_of(' ', line.find("  ", 2));
            REQUIRE(text != std::string::npos);  // every flag has a description
            if (flags++ == 0) column = text;
            CHECK(text == column);
            for (const std::string word : {"of ", "who ", "what ", "where ", "that ", "which "})
                CHECK(line.compare(text, word.size(), word) != 0);
        }
        CHECK(flags > 0);
        CHECK_THAT(help, contains("\nGeneral:\n  -h, --help "));
    }
}

TEST_CASE("wrong usage is one line and status 2") {
    const Place place;
    for (const std::string flags : {"--nonsense",
                                    "--amp int8",
                                    "--allow-tf32=maybe",
                                    "--benchmark=maybe",
                                    "--backend shm",
                                    "--reduction fast",
                                    "--parallel ddp --rank 0",
                                    "--parallel ddp --backend mpi",
                                    "--parallel ddp --backend pigeon",
                                    "--parallel ddp --init-method pigeon",
                                    "--parallel ddp --rank 2 --world-size 2",
                                    "--timeout 5",
                                    "--parallel ddp --reduction quick",
                                    "--net large",
                                    "--devices cpu:99",
                                    "--devices cpu:0,cpu:0",
                                    "--devices gpu",
                                    "--devices ''",
                                    "--shards 0",
                                    "--accumulation-steps 0",
                                    "--shards x",
                                    "--batch-size 0",
                                    "--batch-size 2.5",
                                    "--batch-size",
                                    "--batch-size 4 --batch-size-per-device 2",
                                    "--epochs -1",
                                    "--steps -3",
                                    "--lr -0.1",
                                    "--lr nan",
                                    "--lr 1e999",
                                    "--momentum -1",
                                    "--seed -1",
                                    "--seed 18446744073709551616",
                                    "--seed 99999999999999999999999999",
                                    "--seed 0x10",
                                    "--shards 0x2",
                                    "--epochs +5",
                                    "--batch-size ' 5'",
                                    "--steps 1e3",
                                    "--workers 1_0",
                                    "--lr-milestones 4",
                                    "--lr-period 5",
                                    "--lr-gamma 0.2",
                                    "--schedule step --lr-min 0.1",
                                    "--schedule cosine --lr-patience 2",
                                    "--trace-steps 3",
                                    "--seed ''",
                                    "--save-every 5",
                                    "--save net --save-every 0",
                                    "--save net --save-every -1",
                                    "--save net --save-every e",
                                    "--save net --save-every 0e",
                                    "--save net --save-every 1.5e",
                                    "--save net --save-every 10 steps",
                                    "--workers -1",
                                    "--quiet=maybe",
                                    "stray"}) {
        CAPTURE(flags);
        const ProgramRun run = place.mnist(flags);
        CHECK(run.status == 2);
        CHECK(run.out.empty());
        CHECK(run.lines_of_err() == 1);
        CHECK(run.err.rfind("mnist: ", 0) == 0);
        CHECK(run.err.size() < 300);
    }
    const ProgramRun environment = place.mnist("--steps 1", "LOCKSTEP_CPU_DEVICES=many");
    CHECK(environment.status == 2);
    CHECK_THAT(environment.err, contains("LOCKSTEP_CPU_DEVICES"));
    for (const std::string line : {"linear", "collectives", "model_parallel --devices cpu:0,cpu:1"})
        for (const std::string variable : {"LOCKSTEP_BACKENDS", "LOCKSTEP_LOG"}) {
            CAPTURE(line, variable);
            const ProgramRun run = place.run(line + " --backend shm", variable + "=pigeon");
            CHECK(run.status == 2);
            CHECK(run.lines_of_err() == 1);
            CHECK_THAT(run.err, contains("environment variable " + variable + "=pigeon is invalid"));
            CHECK(place.run(line + " --help", variable + "=pigeon").status == 0);
        }
    for (const std::string variables :
         {"RANK=x WORLD_SIZE=1", "RANK=0 WORLD_SIZE=many", "RANK=0 WORLD_SIZE=", "WORLD_SIZE=2", "RANK=2 WORLD_SIZE=2",
          "RANK=0 WORLD_SIZE=1 LOCAL_RANK=1", "RANK=0 WORLD_SIZE=1 MASTER_PORT=port",
          "RANK=0 WORLD_SIZE=1 MASTER_ADDR='two words'", "SLURM_STEP_NUM_TASKS=2", "OMPI_COMM_WORLD_RANK=0",
          "LOCKSTEP_CPU_ISA=avx9", "LOCKSTEP_CONV=fast", "LOCKSTEP_CPU_SERIAL=2", "LOCKSTEP_DEBUG=all"}) {
        const ProgramRun run = place.mnist("--parallel ddp --steps 1", variables);
        CAPTURE(variables, run.err);
        CHECK(run.status == 2);
        CHECK(run.lines_of_err() == 1);
        CHECK(run.err.starts_with("mnist: "));
    }
    for (const std::string method : {"tcp://127.0.0.1:99999", "file://relative", "env://host"}) {
        const ProgramRun run = place.run("linear --parallel ddp --rank 0 --world-size 1 --init-method " + method);
        CAPTURE(method, run.err);
        CHECK(run.status == 2);
        CHECK(run.lines_of_err() == 1);
    }
    CHECK(place.run("linear --data digits").status == 2);
    for (const std::string line : {"make-digits --nonsense", "make-digits --train -1", "make-digits --test 0",
                                   "make-digits --seed -1", "lockstep-info --nonsense"}) {
        CAPTURE(line);
        const ProgramRun run = place.run(line);
        CHECK(run.status == 2);
        CHECK(run.out.empty());
        CHECK(run.lines_of_err() == 1);
    }
    CHECK(place.run("lockstep-info", "LOCKSTEP_CPU_DEVICES=many").status == 2);
}

TEST_CASE("an unusable backend is reported once, before any process is started") {
    const Place place;
    const ProgramRun run =
        place.run("linear --parallel ddp --devices cpu:0,cpu:1 --backend nccl", "CUDA_VISIBLE_DEVICES=");
    CHECK(run.status == 1);
    CHECK(run.lines_of_err() == 1);
    CHECK_THAT(run.err, contains("backend nccl: "));
    const ProgramRun excluded =
        place.run("linear --parallel ddp --devices cpu:0,cpu:1 --backend gloo", "LOCKSTEP_BACKENDS=mpi,nccl");
    CHECK(excluded.status != 0);
    CHECK(excluded.lines_of_err() == 1);
    CHECK_THAT(excluded.err,
               contains("backend gloo: LOCKSTEP_BACKENDS does not list gloo; add it, or use another one"));
}

TEST_CASE("a run that cannot print its figures fails") {
    if (!std::filesystem::is_character_file("/dev/full")) return;  // it may be missing in containers
    const Place place;
    for (const std::string line :
         {"mnist --data digits --net small --steps 1", "lockstep-info", "mnist --help", "lockstep-run --help",
          "lockstep-run --prefix printf one", "collectives --processes 2"}) {
        const std::string command =
            "cd " + shell_word(place.directory.path()) + " && " + shell_word(PROGRAMS) + "/" + line;
        CHECK(WEXITSTATUS(std::system((command + " >/dev/full 2>err").c_str())) == 1);
        CHECK_THAT(get_bytes(place.directory / "err"), contains("standard output"));
    }
}

TEST_CASE("a failed run is one line and status 1") {
    const Place place;
    put_bytes(place.directory / "broken", "no checkpoint");
    REQUIRE(::mkfifo((place.directory / "pipe").c_str(), 0600) == 0);
    for (const std::string flags :
         {"--data nowhere", "--save nowhere/file", "--json nowhere/file", "--log-dir /proc/nothing", "--load nowhere",
          "--load broken", "--save pipe", "--json pipe", "--lr 1e38 --momentum 0"}) {
        CAPTURE(flags);
        const ProgramRun run = place.run("mnist --net small --steps 4 --quiet " + flags +
                                         (flags.find("--data") == 0 ? "" : " --data digits"));
        CHECK(run.status == 1);
        CHECK(run.lines_of_err() == 1);
        CHECK(run.err.rfind("mnist: ", 0) == 0);
    }
}

TEST_CASE("more ranks than devices are rejected") {
    const TemporaryDirectory place;
    const std::string three =
        "lockstep-run --nproc-per-node 3 " + shell_word(PROGRAMS "/linear") + " --parallel ddp --devices ";
    for (const char* before : {"", "LOCKSTEP_CPU_DEVICES=3"}) {
        const ProgramRun run = run_program(place, three + "cpu:0,cpu:1", before);
        CHECK(run.status != 0);
        CHECK_THAT(run.err, contains("--devices: 2 devices for 3 ranks on this host"));
        CHECK_THAT(run.err, contains("exit status 2"));
        CHECK_THAT(run_program(place, three + "cpu:0", before).err, contains("1 device for 3 ranks on this host"));
        CHECK(run_program(place, three + "cpu:0,cpu:1,cpu:2", before).status == 0);
    }
}

TEST_CASE("a program starts itself on the devices that CUDA_VISIBLE_DEVICES leaves") {
    const Place place;
    for (const auto& [visible, devices] : {std::pair("1,0", 2), std::pair("1", 1)}) {
        const std::string before = "CUDA_VISIBLE_DEVICES=" + std::string(visible);
        const ProgramRun run = place.mnist("--parallel ddp --quiet --steps 1 --json figures.json", before);
        CAPTURE(run.err);
        CHECK(run.status == 0);
        CHECK(place.figures("figures.json")["world_size"] == devices);
    }
}

TEST_CASE("a log that does not fit the disk is a warning, and the run continues") {
    if (!std::filesystem::is_character_file("/dev/full")) return;
    const Place place;
    std::filesystem::create_directory(place.directory / "log");
    std::filesystem::create_symlink("/dev/full", place.directory / "log/mnist.jsonl");
    const ProgramRun run = place.mnist("--steps 2 --quiet --log-dir log");
    CHECK(run.status == 0);
    CHECK(run.lines_of_err() == 1);
    CHECK_THAT(run.err, contains("log/mnist.jsonl cannot be written any further: No space left on device"));
}

TEST_CASE("figures and log give the device of each rank") {
    const Place place;
    REQUIRE(place.mnist("--parallel ddp --devices cpu:0,cpu:1 --steps 1 --quiet --json figures.json --log-dir log")
                .status == 0);
    const json expected({"rank 0 cpu:0", "rank 1 cpu:0"});  // each has one, with its own cores
    CHECK(place.figures("figures.json")["devices"] == expected);
    CHECK(place.figures("figures.json")["peak_bytes"].size() == 2);
    const std::string log = get_bytes(place.directory / "log/mnist.jsonl");
    CHECK(json::parse(log.substr(0, log.find('\n')))["devices"] == expected);
}

TEST_CASE("ten steps write figures, a log and nothing else") {
    const Place place;
    const ProgramRun run = place.mnist("--devices cpu:0,cpu:1 --steps 10 --quiet --json figures.json --log-dir log");
    CHECK(run.status == 0);
    CHECK(run.out.empty());
    CHECK(run.err.empty());
    const json figures = place.figures("figures.json");
    CHECK(figures["losses"].size() == 10);
    CHECK(figures["losses"][0].get<double>() > 2.0);
    CHECK(figures["test_accuracy"].get<double>() >= 0);
    CHECK(figures["test_accuracy"].get<double>() <= 1);
    CHECK(figures["samples_per_second"].get<double>() > 0);
    CHECK(figures["seconds"].get<double>() > 0);
    CHECK(figures["devices"] == json({"cpu:0", "cpu:1"}));
    CHECK(figures["peak_bytes"].size() == 2);
    CHECK(figures["world_size"] == 1);
    CHECK(figures["versions"].contains("lockstep"));
    const std::string log = get_bytes(place.directory / "log/mnist.jsonl");
    CHECK(std::count(log.begin(), log.end(), '\n') == 13);  // the run, 10 steps, 2 evaluations

    const ProgramRun one =
        place.mnist("--parallel none --devices cpu:1,cpu:0 --steps 3 --batch-size-per-device 16 --json one.json");
    CHECK(one.status == 0);
    CHECK_THAT(one.out, contains("one device on cpu:1, 16 rows"));
    CHECK(place.figures("one.json")["devices"] == json({"cpu:1"}));
    const ProgramRun many =
        place.mnist("--devices cpu:0,cpu:1,cpu:2 --steps 3 --batch-size-per-device 16", "LOCKSTEP_CPU_DEVICES=3");
    CHECK_THAT(many.out, contains("data-parallel on cpu:0,cpu:1,cpu:2, 48 rows per step in 3 shards"));
    const ProgramRun few = place.mnist("--devices cpu:0,cpu:1 --batch-size 1 --steps 1");
    CHECK(few.status == 0);
    CHECK_THAT(few.err, contains("1 rows for 2 shards"));
}

TEST_CASE("the line of an epoch has the mean loss of the epoch") {
    const Place place;
    const ProgramRun run = place.mnist("--shards 2 --epochs 3 --json figures.json --log-interval 2");
    REQUIRE(run.status == 0);
    const std::vector<double> losses = place.figures("figures.json")["losses"];
    constexpr std::size_t batches = 7;
    REQUIRE(losses.size() == 3 * batches);
    const auto mean = [&](std::size_t from, std::size_t to) {
        return std::accumulate(losses.begin() + static_cast<std::ptrdiff_t>(from),
                               losses.begin() + static_cast<std::ptrdiff_t>(to), 0.0) /
               static_cast<double>(to - from);
    };
    for (std::size_t epoch = 0; epoch < 3; ++epoch)
        CHECK_THAT(run.out, contains(fmt::format("epoch {}: loss {:.4f}, ", epoch + 1,
                                                 mean(epoch * batches, (epoch + 1) * batches))));
    // A run that ends within an epoch has the mean of its steps there; so has one that resumes there.
    const ProgramRun part = place.mnist("--shards 2 --steps 10 --json figures.json --save part");
    CHECK_THAT(part.out, contains(fmt::format("epoch 1: loss {:.4f}, ", mean(0, 7))));
    CHECK_THAT(part.out, contains(fmt::format("epoch 2, step 3 of 7: loss {:.4f}, ", mean(7, 10))));
    CHECK_THAT(place.mnist("--shards 2 --epochs 2 --load part").out,
               contains(fmt::format("epoch 2: loss {:.4f}, ", mean(10, 14))));
}

TEST_CASE("an invalid OpenMP limit is named with its value") {
    const Place place;
    const ProgramRun threads = place.mnist("--steps 1 --quiet", "OMP_THREAD_LIMIT=abc");
    CHECK(threads.status == 2);
    CHECK_THAT(threads.err, contains("OMP_THREAD_LIMIT=abc is invalid; expected an integer from 1 to 2147483647"));
}

TEST_CASE("errors about descriptors mention ulimit") {
    if (!fd_limit_works) {
        WARN(fd_limit_skipped);
        return;
    }
    const Place place;
    bool failed = false;
    for (int most = 14; most <= 26; most += 2) {  // the shell needs some as well
        const ProgramRun few = place.mnist("--steps 1 --quiet --parallel ddp --devices cpu:0,cpu:1 --timeout 60",
                                           "ulimit -n " + std::to_string(most) + ";");
        INFO(most << " descriptors");
        CHECK_THAT(few.err, !contains("the same user") && !contains("mount"));
        if (few.status != 0) CHECK_THAT(few.err, contains("ulimit -n"));
        failed = failed || few.status != 0;
    }
    CHECK(failed);
}

TEST_CASE("a seed is read in decimal, with all digits") {
    const Place place;
    const std::string common = "--steps 2 --quiet --shards 2 --save ";
    REQUIRE(place.mnist(common + "largest --seed 18446744073709551615").status == 0);
    REQUIRE(place.mnist(common + "ten --seed 10").status == 0);
    REQUIRE(place.mnist(common + "zero-ten --seed 010").status == 0);
    CHECK(get_bytes(place.directory / "ten") == get_bytes(place.directory / "zero-ten"));
    CHECK(place.mnist("--steps 4 --quiet --load largest --seed 18446744073709551615").status == 0);
}

TEST_CASE("whole numbers in flags are decimal, also with zeros in front") {
    const Place place;
    const std::string linear = "linear --devices cpu:0 --batch-size 010 --steps 008 --save net{step} --save-every 04 ";
    const ProgramRun run = place.run(linear + "--schedule step --lr-period 010 --work-dir run");
    CAPTURE(run.err);
    REQUIRE(run.status == 0);
    CHECK_THAT(run.out, contains("10 rows per step in 1 shard") && contains("step 8 of 205"));
    CHECK(std::filesystem::exists(place.directory / "net4"));
    // The file repeats the values, and has the defaults of flags that the schedule does not use.
    CHECK_THAT(place.run("linear --config run/config.toml").out, contains("10 rows per step in 1 shard"));
    CHECK_THAT(place.run("linear --epochs 0x10").err,
               contains("--epochs: value is 0x10; expected a whole number from 0 to 2147483648"));
    CHECK_THAT(place.run("linear --lr-milestones 4").err,
               contains("--lr-milestones: not used by --schedule constant; expected --schedule multistep"));
    CHECK_THAT(place.run("collectives --epochs 2").err, contains("--epochs requires --program train"));
    CHECK(place.run("make-digits --train 010 --test 08 --data ten --quiet").status == 2);
    CHECK_THAT(place.run("make-digits --train 010 --test 08 --data ten").out, contains("10 training and 8 test"));
}

TEST_CASE("numbers in flags are decimal and nothing else") {
    const Place place;
    for (const std::string flag : {"--lr", "--momentum", "--weight-decay", "--clip", "--schedule step --lr-gamma",
                                   "--schedule polynomial --lr-power", "--schedule cosine --lr-min"})
        for (const std::string value : {"0x1", "' 0.5'", "'0.5 '", "+0.5", "0_1", "0.5f", "1e999", "0,5", "nan"}) {
            const ProgramRun run = place.run("linear --devices cpu:0 --steps 1 " + flag + " " + value);
            CAPTURE(flag, value, run.err);
            CHECK(run.status == 2);
            CHECK_THAT(run.err,
                       contains(flag.substr(flag.rfind("--")) + ": value is ") && contains("expected a number"));
        }
    CHECK_THAT(place.run("lockstep-run --grace 0x1 true").err, contains("--grace: value is 0x1; expected 0 to 86400"));
    CHECK(place.run("linear --devices cpu:0 --steps 1 --lr 1e-3 --momentum .5 --weight-decay 0.").status == 0);
}

TEST_CASE("linear fits its line") {
    const Place place;
    const ProgramRun run = place.run("linear --devices cpu:0,cpu:1 --json figures.json");
    CHECK(run.status == 0);
    CHECK_THAT(run.out, contains("largest error of a weight: 0.00"));
    const json figures = place.figures("figures.json");
    CHECK(figures["losses"].size() == 320);
    CHECK(figures["losses"].back().get<double>() < 2e-3);
    CHECK(!figures.contains("test_accuracy"));
}
