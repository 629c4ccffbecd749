// Files of flags: reading by --config, files in --work-dir, and checks of the launcher by --launcher.
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>

#include "lockstep/samples/apps/program/options.h"
#include "lockstep/samples/apps/program/train.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/files.h"
#include "lockstep/tests/fixtures/messages.h"
#include "lockstep/tests/samples/run_program.h"

using namespace lockstep::test;

namespace {

ProgramRun linear(const TemporaryDirectory& place, const std::string& flags, const std::string& before = "") {
    return run_program(place, "linear " + flags, before);
}

/// One word for the shell.
std::string quoted(const std::string& text) {
    std::string word = "'";
    for (const char c : text) word += c == '\'' ? std::string("'\\''") : std::string(1, c);
    return word + "'";
}

}  // namespace

TEST_CASE("a file of flags and the same flags give the same run, byte for byte") {
    const TemporaryDirectory place;
    put_bytes(place / "run.toml",
              "# a run\n"
              "parallel = \"dp\"\n"
              "devices = \"cpu:0,cpu:1\"\n"
              "shards = 4\n"
              "steps = 12\n"
              "lr = 0.02\n"
              "seed = 7\n"
              "deterministic = true\n"
              "allow-tf32 = true\n"
              "quiet = true\n"
              "save = \"by-file\"\n");
    REQUIRE(linear(place, "--config run.toml").status == 0);
    REQUIRE(linear(place,
                   "--parallel dp --devices cpu:0,cpu:1 --shards 4 --steps 12 --lr 0.02 --seed 7 --deterministic "
                   "--allow-tf32 --quiet --save by-flags")
                .status == 0);
    for (const char* suffix : {"", ".resume"}) {
        const std::string bytes = get_bytes(place / ("by-file" + std::string(suffix)));
        CHECK(!bytes.empty());
        CHECK(bytes == get_bytes(place / ("by-flags" + std::string(suffix))));
    }
    // The command line overrides the file.
    REQUIRE(linear(place, "--config run.toml --seed 8 --save other").status == 0);
    REQUIRE(linear(place, "--config run.toml --seed 7 --save same").status == 0);
    CHECK(get_bytes(place / "other") != get_bytes(place / "by-flags"));
    CHECK(get_bytes(place / "same") == get_bytes(place / "by-flags"));
}

TEST_CASE("an error in a file of flags is one line, before anything begins") {
    const TemporaryDirectory place;
    const auto says = [&](const std::string& text, const std::string& part, const std::string& flags = "") {
        put_bytes(place / "run.toml", text);
        const ProgramRun run = linear(place, "--config run.toml --steps 1 " + flags);
        CAPTURE(text);
        CAPTURE(run.err);
        CHECK(run.status == 2);
        CHECK(run.out.empty());
        CHECK(run.lines_of_err() == 1);
        CHECK_THAT(run.err, contains(part));
    };
    says("epoch = 5\n", "run.toml: unknown flag --epoch");
    says("[train]\nepochs = 5\n", "run.toml: unknown section [train]; expected none");
    says("epochs = \"many\"\n", "linear: run.toml: --epochs");
    says("epochs = 1.5\n", "linear: run.toml: --epochs");
    says("epochs = [1, 2]\n", "--epochs");
    says("lr = true\n", "--lr");
    says("parallel = \"both\"\n", "--parallel");
    says("epochs = 3\n", "linear: --seed: value is x; expected", "--seed x");
    says("deterministic = \"perhaps\"\n", "deterministic");
    says("quiet = 1.5\n", "run.toml: quiet: value is 1.5; expected true or false");
    says("config = \"other.toml\"\n", "config");
    says("epochs = 1\nsave = \"\xe9t\xe9\"\n", "run.toml: line 2 is not UTF-8; expected UTF-8");
    says("# caf\xc3\n", "run.toml: line 1 is not UTF-8");
    // CLI11 would read these as other values.
    says("quiet = true  # \"#\"\nsave = \"run#3\"\n", "run.toml: line 2 has a # in a string");
    says("save = 'run#3'\n", "run.toml: line 1 has a # in a string");
    says("save = \"a\nb\"\n", "run.toml: line 1 has a string without an end");
    says("save = 'a\\b'\nlr = x\n", "run.toml: --lr");
    says("save = \"a\\nb\"\n", "run.toml: line 1 has a backslash in double quotes; expected single quotes around it");
    // CLI11 would skip these lines, use the first of several values, or save to a file named "true".
    says("lr\n", "run.toml: line 1 is 'lr'; expected NAME = VALUE");
    says("e 5\n", "run.toml: line 1 is 'e 5'; expected NAME = VALUE");
    says("epochs = 1\nsave\n", "run.toml: line 2 is 'save'; expected NAME = VALUE");
    says("lr = 0.1\nepochs = 1\nlr = 0.2\n", "run.toml: --lr: given several times; expected once");
    says("lr = 0.1\nlearning_rate = 0.2\n", "run.toml: --lr: given several times; expected once");
    says("l = 0.1\nlr = 0.2\n", "run.toml: --lr: given several times; expected once");
    says(std::string("lr = 0.1") + '\0' + "5\n", "run.toml: line 1 has a control character; expected text");
    says("lr = 0.1\rquiet = true\n", "run.toml: line 1 has a control character; expected text");
    const ProgramRun missing = linear(place, "--config nowhere.toml");
    CHECK(missing.status == 2);
    CHECK(missing.lines_of_err() == 1);
    CHECK_THAT(missing.err, contains("nowhere.toml"));
    CHECK(run_program(place, "make-digits --config run.toml").status == 2);
}

TEST_CASE("a file of flags may have a byte order mark, CRLF, arrays and comments") {
    const TemporaryDirectory place;
    put_bytes(place / "run.toml",
              "\xef\xbb\xbfsteps = 2\r\n\r\n  ; text\r\ndevices = \"cpu:0\"\r\nschedule = 'multistep'\r\n"
              "lr-milestones = [1,\r\n2 ]\r\nsave = 'one'\r\n");
    const ProgramRun run = linear(place, "--config run.toml --quiet");
    CAPTURE(run.err);
    CHECK(run.status == 0);
    REQUIRE(
        linear(place, "--steps 2 --devices cpu:0 --schedule multistep --lr-milestones 1,2 --save two --quiet").status ==
        0);
    CHECK(get_bytes(place / "one") == get_bytes(place / "two"));
}

TEST_CASE("flags that config.toml cannot store are rejected before anything is written") {
    const TemporaryDirectory place;
    for (const char* flag : {"--save", "--log-dir", "--json", "--work-dir"}) {
        const std::string name = "--work-dir w " + std::string(flag) + " caf\xe9";
        const ProgramRun run = linear(place, std::string(flag) == "--work-dir" ? "--work-dir caf\xe9" : name);
        CAPTURE(flag, run.err);
        CHECK(run.status == 2);
        CHECK_THAT(run.err, contains(std::string(flag) + ": value is not UTF-8"));
        CHECK(!std::filesystem::exists(place / "w"));
    }
    const ProgramRun without = linear(place, "--steps 1 --quiet --save caf\xe9");
    CHECK(without.status == 0);
    CHECK(std::filesystem::exists(place / "caf\xe9"));
}

TEST_CASE("config.toml gives back every value that it stores, and others are rejected") {
    const TemporaryDirectory place;
    for (const std::string name : {"a\"b", "a'b", "tab\there", "a=b", " first", "last ", "a,b", "[x]", "{x}", "true",
                                   "1e", "gr\xc3\xbc\xc3\x9f", "$x", "~"}) {
        CAPTURE(name);
        REQUIRE(linear(place, "--devices cpu:0 --steps 1 --quiet --work-dir one --json " + quoted(name)).status == 0);
        std::filesystem::remove(place / name);
        const ProgramRun again = linear(place, "--config one/config.toml --work-dir two");
        CHECK(again.err.empty());
        CHECK(std::filesystem::exists(place / name));
    }
    for (const std::string name : {"a\nb", "a\\b", "run#3", "\x01", "a\x7f", "'\"\"'"}) {
        CAPTURE(name);
        const ProgramRun refused = linear(place, "--steps 1 --quiet --work-dir three --json " + quoted(name));
        CHECK(refused.status == 2);
        CHECK(refused.lines_of_err() == 1);
        CHECK_THAT(refused.err, contains("linear: --json: value cannot be stored in the config.toml of --work-dir"));
        CHECK_FALSE(std::filesystem::exists(place / "three"));
        CHECK(linear(place, "--devices cpu:0 --steps 1 --quiet --json " + quoted(name)).status == 0);
    }
}

TEST_CASE("a work directory has configuration, log and checkpoint, and the configuration repeats the run") {
    const TemporaryDirectory place;
    REQUIRE(
        linear(place, "--devices cpu:0 --batch-size-per-device 32 --steps 5 --seed 3 --quiet --work-dir one").status ==
        0);
    for (const char* name : {"config.toml", "linear.jsonl", "linear.safetensors", "linear.safetensors.resume"})
        CHECK(std::filesystem::is_regular_file(place / "one" / name));
    const std::string configuration = get_bytes(place / "one/config.toml");
    CAPTURE(configuration);
    CHECK_THAT(configuration, contains("seed=3\n") && contains("momentum=0.5\n") && contains("steps=5\n"));
    CHECK_THAT(configuration, !contains("batch-size=") && contains("batch-size-per-device=32"));

    const ProgramRun again = linear(place, "--config one/config.toml --work-dir two");
    CHECK(again.err.empty());
    REQUIRE(again.status == 0);
    CHECK(get_bytes(place / "two/linear.safetensors") == get_bytes(place / "one/linear.safetensors"));

    // Resumes in place; given flags override the directory.
    REQUIRE(linear(place, "--config one/config.toml --steps 8 --load one/linear.safetensors").status == 0);
    const std::string log = get_bytes(place / "one/linear.jsonl");
    CHECK(std::count(log.begin(), log.end(), '\n') == 10);
    REQUIRE(linear(place, "--devices cpu:0 --quiet --steps 1 --work-dir three --save net --log-dir log").status == 0);
    CHECK(std::filesystem::exists(place / "net"));
    CHECK(std::filesystem::exists(place / "log/linear.jsonl"));
    CHECK_FALSE(std::filesystem::exists(place / "three/linear.safetensors"));
    CHECK(std::filesystem::exists(place / "three/config.toml"));
    CHECK(linear(place, "--steps 1 --save-every 1").status == 2);
    CHECK(linear(place, "--devices cpu:0 --quiet --steps 2 --save-every 1 --work-dir three").status == 0);
    const ProgramRun over = linear(place, "--config one/config.toml --json one/config.toml");
    CHECK(over.status == 2);
    CHECK_THAT(over.err, contains("expected a different file for each"));
    // The finished run has nothing left to do, and reports that.
    const ProgramRun finished = linear(place, "--config two/config.toml --quiet=false --load two/linear.safetensors");
    REQUIRE(finished.status == 0);
    CHECK_THAT(finished.out, contains("nothing to do: ") && contains("5 steps are done; to continue, increase "));
    put_bytes(place / "file", "");
    const ProgramRun bad = linear(place, "--steps 1 --work-dir file/below");
    CHECK(bad.status == 1);
    CHECK(bad.lines_of_err() == 1);
    CHECK_THAT(bad.err, contains("cannot create the directory file/below: Not a directory"));
}

TEST_CASE("--amp is accepted with and without a value, and is stored in the configuration") {
    const TemporaryDirectory place;
    const std::string same = "--devices cpu:0 --steps 5 --seed 3 --quiet ";
    const auto weights = [&](const std::string& flags) {
        const ProgramRun run = linear(place, same + "--save net " + flags);
        CAPTURE(run.err);
        REQUIRE(run.status == 0);
        return get_bytes(place / "net");
    };
    const std::string f32 = weights(""), bf16 = weights("--amp bf16"), fp16 = weights("--amp=fp16");
    CHECK(bf16 != f32);
    CHECK(fp16 != f32);
    CHECK(fp16 != bf16);
    CHECK(weights("--amp") == bf16);  // on CPU devices
    CHECK(weights("--amp off") == f32);
    put_bytes(place / "amp.toml", "amp = true\n");
    CHECK(weights("--config amp.toml") == bf16);
    CHECK(weights("--config amp.toml --amp off") == f32);
    put_bytes(place / "amp.toml", "amp = \"fp16\"\n");
    CHECK(weights("--config amp.toml") == fp16);

    REQUIRE(linear(place, same + "--amp --work-dir one").status == 0);
    CHECK_THAT(get_bytes(place / "one/config.toml"), contains("amp=true\n"));
    REQUIRE(linear(place, "--config one/config.toml --work-dir two").status == 0);
    CHECK(get_bytes(place / "two/linear.safetensors") == bf16);
    const ProgramRun emulated = linear(place, same + "--amp bf16", "LOCKSTEP_CPU_ISA=avx2 ");
    CHECK(emulated.status == 0);
    CHECK(emulated.lines_of_err() == 1);
    CHECK_THAT(emulated.err, contains("bf16 is emulated"));
    const ProgramRun wrong = linear(place, same + "--amp int8");
    CHECK(wrong.status == 2);
    CHECK_THAT(wrong.err, contains("--amp"));
}

TEST_CASE("several processes write one work directory") {
    const TemporaryDirectory place;
    REQUIRE(
        linear(place, "--parallel ddp --devices cpu:0,cpu:1 --launcher none --steps 3 --quiet --work-dir run").status ==
        0);
    long events = 0;
    for (const auto& entry : std::filesystem::directory_iterator(place / "run"))
        events += entry.path().filename().string().starts_with("events.out.tfevents.") ? 1 : 0;
    CHECK(events == 1);
    CHECK_THAT(get_bytes(place / "run/config.toml"), contains("parallel=\"ddp\"") && !contains("rank="));
    REQUIRE(linear(place, "--config run/config.toml --launcher none --work-dir again").status == 0);
    CHECK(get_bytes(place / "again/linear.safetensors") == get_bytes(place / "run/linear.safetensors"));
}

TEST_CASE("--launcher is an error if that launcher is absent") {
    const TemporaryDirectory place;
    const std::string flags = "--parallel ddp --devices cpu:0 --steps 1 --quiet --launcher ";
    for (const char* launcher : {"pytorch", "mpi", "slurm"}) {
        const ProgramRun run = linear(place, flags + launcher);
        CHECK(run.status == 2);
        CHECK(run.lines_of_err() == 1);
        CHECK_THAT(run.err, contains("--launcher " + std::string(launcher) + ": no launcher found"));
    }
    const std::string ranks = "RANK=0 WORLD_SIZE=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=29417";
    const ProgramRun none = linear(place, flags + "none", ranks);
    CHECK(none.status == 2);
    CHECK_THAT(none.err, contains("RANK and WORLD_SIZE are set and have precedence; expected --launcher pytorch"));
    CHECK(linear(place, flags + "pytorch", ranks).status == 0);
    CHECK(linear(place, "--launcher pytorch --steps 1").status == 2);
    CHECK(linear(place, flags + "none").status == 0);
    CHECK(run_program(place,
                      "lockstep-run --nproc-per-node 1 " + shell_word(PROGRAMS "/linear") + " " + flags + "pytorch")
              .status == 0);
}

TEST_CASE("lines of PyTorch's examples are printed for every Nth batch, also in a resumed run") {
    const TemporaryDirectory place;
    const auto lines = [&](const std::string& flags) {
        std::string found;
        const std::string out = linear(place, "--devices cpu:0 --batch-size 512 --log-interval 2 " + flags).out;
        for (std::size_t at = 0; (at = out.find("Train Epoch: ", at)) != std::string::npos; ++at)
            found += out.substr(at, out.find("\tLoss: ", at) - at) + "\n";
        return found;
    };
    // 2048 rows, 4 batches an epoch.
    CHECK(lines("--epochs 2") ==
          "Train Epoch: 1 [0/2048 (0%)]\nTrain Epoch: 1 [1024/2048 (50%)]\n"
          "Train Epoch: 2 [0/2048 (0%)]\nTrain Epoch: 2 [1024/2048 (50%)]\n");
    REQUIRE(linear(place, "--devices cpu:0 --batch-size 512 --steps 5 --quiet --save net").status == 0);
    CHECK(lines("--epochs 2 --load net") == "Train Epoch: 2 [1024/2048 (50%)]\n");
    CHECK(lines("--epochs 1 --quiet").empty());
}

TEST_CASE("flags of the arithmetic are options of the engine") {
    CHECK_FALSE(program::Options().engine_options().allow_tf32);
    program::Options options;
    options.allow_tf32 = true;
    CHECK(options.engine_options().allow_tf32);
}

TEST_CASE("the seed of a finished run is a number, or an error that names the field") {
    CHECK(program::seed_in({{"seed", "0"}}) == 0);
    CHECK(program::seed_in({{"seed", "18446744073709551615"}}) == ~std::uint64_t{0});
    for (const std::string text : {"", "x", "-1", " 1", "1 ", "1.5", "0x1", "18446744073709551616"})
        CHECK(message_of<lockstep::DataError>([&] {
                  program::seed_in({{"seed", text}});
              }) == "the checkpoint's field 'fact seed' is '" + text + "'; expected a whole number from 0 to 2^64 - 1");
}

TEST_CASE("a run is resumed with the flags that determine its result, except those that may change") {
    const TemporaryDirectory place;
    const std::string begin = "--devices cpu:0 --quiet --batch-size 512 --shards 2 --steps 4 --save net ";
    REQUIRE(linear(place, begin + "--clip 1 --schedule step --lr-period 2").status == 0);
    const std::string same =
        "--devices cpu:0 --quiet --epochs 20 --steps 6 --load net --schedule step --lr-period 2 --clip 1 --shards 2 "
        "--batch-size 512 ";
    CHECK(linear(place, same).status == 0);
    CHECK(linear(place, "--parallel none --workers 2 --log-dir log " + same).status == 0);
    const auto refused = [&](const std::string& flags, const std::string& text) {
        const ProgramRun run = linear(place, flags);
        CAPTURE(run.err);
        CHECK(run.status == 2);
        CHECK(run.lines_of_err() == 1);
        CHECK_THAT(run.err, contains(text));
    };
    const std::string rest = "--devices cpu:0 --quiet --steps 6 --load net ";
    refused(rest + "--shards 2 --batch-size 512 --clip 1",
            "--schedule constant: the run saved in net has step 2 x 0.1");
    refused(rest + "--batch-size 512 --clip 1 --schedule step --lr-period 2",
            "--shards 1, one per device: the run saved in net has 2");
    refused(rest + "--shards 2 --batch-size 512 --schedule step --lr-period 2",
            "--clip none: the run saved in net has norm 1");
    refused(same + "--accumulation-steps 2", "--accumulation-steps 2: the run saved in net has 1");
    refused(same + "--amp bf16", "--amp bf16: the run saved in net has off");
    refused(same + "--allow-tf32", "--allow-tf32 on: the run saved in net has off");
    refused(same + "--seed 9 --allow-changed amp", "--seed 9: the run saved in net has 1");
    refused(same + "--allow-changed colour",
            "--allow-changed: unknown name colour; expected some of accumulation-steps, allow-tf32, amp, batch-size");
    const ProgramRun changed =
        linear(place, same +
                          "--quiet=false --seed 9 --allow-tf32 --amp bf16 --allow-changed allow-tf32,amp,seed "
                          "--log-dir log --save other");
    CHECK(changed.status == 0);
    CHECK_THAT(
        changed.out,
        contains("continues with --allow-tf32 on instead of off, --amp bf16 instead of off, --seed 9 instead of 1\n"));
    refused(
        "--devices cpu:0 --quiet --load other --schedule step --lr-period 2 --clip 1 --shards 2 --batch-size 512",
        "--allow-tf32 off: the run saved in other has on; --amp off: the run saved in other has bf16; --seed 1: the "
        "run saved in other has 9");
}

TEST_CASE("a run is extended unless its schedule depends on the number of epochs") {
    const TemporaryDirectory place;
    const std::string same = "--devices cpu:0 --batch-size 512 ";  // 4 steps per epoch
    for (const char* schedule : {"constant", "step", "exponential", "linear", "cosine-restarts"}) {
        CAPTURE(schedule);
        const std::string flags = same + "--schedule " + schedule;
        REQUIRE(linear(place, flags + " --epochs 2 --steps 5 --quiet --save net").status == 0);
        const ProgramRun longer = linear(place, flags + " --epochs 3 --load net");
        CHECK(longer.status == 0);
        CHECK_THAT(longer.out, !contains("continues with"));
    }
    const auto refused = [&](const std::string& flags, const std::string& text) {
        const ProgramRun run = linear(place, same + flags);
        CAPTURE(run.err);
        CHECK(run.status == 2);
        CHECK(run.lines_of_err() == 1);
        CHECK_THAT(run.err, contains(text));
    };
    const std::string cosine = "--schedule cosine ";
    REQUIRE(linear(place, same + cosine + "--epochs 2 --steps 5 --quiet --save net").status == 0);
    refused(cosine + "--epochs 20 --load net", "--epochs 20 (cosine): the run saved in net has 2 (cosine); expected");
    CHECK(linear(place, same + cosine + "--epochs 2 --load net").status == 0);
    CHECK_THAT(linear(place, same + cosine + "--epochs 20 --steps 6 --load net --allow-changed epochs").out,
               contains("continues with --epochs 20 (cosine) instead of 2 (cosine)\n"));
    // A finished run as well: its last rate is that of the end of the cycle.
    REQUIRE(linear(place, same + cosine + "--epochs 2 --quiet --save whole").status == 0);
    refused(cosine + "--epochs 3 --load whole", "--epochs 3 (cosine): the run saved in whole has 2 (cosine)");
    CHECK(linear(place, same + cosine + "--epochs 1 --load whole").status == 0);
    // The text of this schedule has always had the number.
    REQUIRE(linear(place, same + "--schedule one-cycle --epochs 2 --steps 5 --quiet --save net").status == 0);
    refused("--schedule one-cycle --epochs 3 --load net", "--schedule one-cycle of 3 epochs up to 0.01: the run saved");
    refused("--schedule one-cycle --epochs 2 --lr 0.1 --load net", "one-cycle of 2 epochs up to 0.1: the run saved");
}

TEST_CASE("a run resumes only with its kind of arithmetic") {
    const TemporaryDirectory place;
    const auto refused = [&](const std::string& flags, const std::string& text) {
        const ProgramRun run = linear(place, flags);
        CAPTURE(run.err);
        CHECK(run.status == 2);
        CHECK_THAT(run.err, contains(text));
    };
    REQUIRE(linear(place, "--devices cpu:0 --steps 3 --quiet --save net").status == 0);
    refused("--devices cpu:0 --deterministic --load net", "--deterministic on: the run saved in net has off");
    refused("--devices cpu:0 --amp fp16 --load net", "--amp f16: the run saved in net has off; expected");
    CHECK_THAT(linear(place, "--devices cpu:0 --steps 4 --load net --amp fp16 --allow-changed amp").out,
               contains("continues with --amp f16 instead of off\n"));
    const std::string ranks = "--parallel ddp --devices cpu:0,cpu:1 --shards 2 --quiet ";
    for (const auto& [saved, other] : {std::pair("tree", "fast"), std::pair("fast", "tree")}) {
        REQUIRE(linear(place, ranks + "--steps 3 --save net --reduction " + saved).status == 0);
        const std::string resumed = ranks + "--steps 5 --load net --reduction ";
        refused(resumed + other,
                std::string("--reduction ") + other + ": the run saved in net has " + saved + "; expected the same");
        CHECK(linear(place, resumed + saved).status == 0);
        CHECK(linear(place, resumed + other + " --allow-changed reduction").status == 0);
    }
}

TEST_CASE("settings of the optimizer that flags change are printed, and the same flags change nothing") {
    const TemporaryDirectory place;
    const std::string same = "--devices cpu:0 --batch-size 512 --log-dir log ";
    REQUIRE(linear(place, same + "--steps 3 --lr 0.02 --save net").status == 0);
    const std::string others = "--steps 5 --lr 0.03 --momentum 0.9 --weight-decay 0.001 --save other --load ";
    const ProgramRun changed = linear(place, same + others + "net");
    CHECK(changed.status == 0);
    const std::string text =
        "continues with --lr 0.03 instead of 0.02, --momentum 0.9 instead of 0.5, --weight-decay 0.001 instead of 0";
    CHECK_THAT(changed.out, contains(text + "\n"));
    std::string events;
    for (const auto& entry : std::filesystem::directory_iterator(place / "log"))
        if (entry.path().filename().string().starts_with("events.")) events += get_bytes(entry.path());
    CHECK_THAT(events, contains(text));
    CHECK_THAT(linear(place, same + "--steps 6 --lr 0.04 --seed 3 --allow-changed seed --load net").out,
               contains("continues with --lr 0.04 instead of 0.02, --seed 3 instead of 1\n"));
    for (const char* flags : {"--steps 7 --load other", "--steps 7 --lr 0.03 --momentum 0.9 --load other",
                              "--steps 5 --lr 0.02 --load net", "--steps 5 --momentum 0.5 --weight-decay 0 --load net"})
        CHECK_THAT(linear(place, same + flags).out, !contains("continues with"));
    CHECK_THAT(linear(place, same + "--steps 7 --lr 0.02 --load other").out,
               contains("continues with --lr 0.02 instead of 0.03\n"));
}

TEST_CASE("a restarted job resumes by itself, or begins if there is no checkpoint") {
    const TemporaryDirectory place;
    std::filesystem::create_directory(place / "runs");
    const std::string job = "--devices cpu:0 --batch-size 512 --save runs/net{step} --save-every 2 --resume auto ";
    const ProgramRun first = linear(place, job + "--steps 5");
    CHECK(first.status == 0);
    CHECK_THAT(first.out, !contains("continues"));
    CHECK_THAT(linear(place, job + "--steps 7").out, contains("continues runs/net5: 5 steps done"));
    // The file of a stopped run is newer.
    REQUIRE(
        linear(
            place,
            "--devices cpu:0 --batch-size 512 --steps 9 --quiet --load runs/net7 --save runs/INTERRUPTED.safetensors")
            .status == 0);
    put_bytes(place / "runs/net99", "no weights");
    put_bytes(place / "runs/net99.resume", "no state");
    put_bytes(place / "runs/net7x", "another's");
    const ProgramRun resumed = linear(place, job + "--steps 11");
    CHECK(resumed.status == 0);
    CHECK_THAT(resumed.out, contains("continues runs/INTERRUPTED.safetensors: 9 steps done"));
    CHECK_THAT(resumed.err, contains("--resume auto: skipping runs/net99: "));
    CHECK_THAT(linear(place, job + "--steps 13").out, contains("continues runs/net11: 11 steps done"));
    // A new run would overwrite checkpoints that cannot be read.
    for (const char* damaged : {"resume", "weights", "state missing"}) {
        CAPTURE(damaged);
        std::filesystem::create_directory(place / "only");
        const std::string one = "--devices cpu:0 --batch-size 512 --save only/net --resume auto ";
        REQUIRE(linear(place, one + "--steps 2").status == 0);
        if (damaged == std::string("resume")) put_bytes(place / "only/net.resume", "no state");
        if (damaged == std::string("weights")) put_bytes(place / "only/net", "no weights");
        if (damaged == std::string("state missing")) std::filesystem::remove(place / "only/net.resume");
        const std::string before = get_bytes(place / "only/net");
        const ProgramRun refused = linear(place, one + "--steps 3");
        CHECK(refused.status == 1);
        CHECK_THAT(refused.err, contains("linear: --resume auto: cannot resume from only/net, which a new run would"));
        CHECK(get_bytes(place / "only/net") == before);
        std::filesystem::remove_all(place / "only");
    }
    // Digits of the pattern after a number.
    std::filesystem::create_directory(place / "digits");
    const std::string digits = "--devices cpu:0 --batch-size 512 --save digits/a{epoch}{step}0 --resume auto ";
    CHECK(linear(place, digits + "--steps 3").status == 0);
    CHECK_THAT(linear(place, digits + "--steps 5").out, contains(": 3 steps done"));
    CHECK(linear(place, "--resume auto --steps 1").status == 2);
    CHECK(linear(place, "--resume never --save net").status == 2);
}

TEST_CASE("programs that train accept all schedules and adaptive rates") {
    const TemporaryDirectory place;
    const std::string common = "--devices cpu:0,cpu:1 --batch-size 512 --epochs 3 --quiet --save net --log-dir log ";
    for (const char* flags :
         {"--schedule step --lr-period 1 --lr-gamma 0.5", "--schedule multistep --lr-milestones 1,2",
          "--schedule exponential --lr-gamma 0.9", "--schedule linear --lr-period 2",
          "--schedule polynomial --lr-power 2", "--schedule cosine --lr-min 1e-5",
          "--schedule cosine-restarts --lr-period 1", "--schedule one-cycle", "--schedule cyclic --lr-period 1",
          "--schedule cyclic --lr-period 2 --lr-mode triangular2 --lr-min 1e-4 --lr-cycle-momentum",
          "--schedule cyclic --lr-period 1 --lr-mode exp-range --lr-gamma 0.9", "--rates adascale", "--rates yellowfin",
          "--weight-decay 0.1", "--clip 0.5"}) {
        const ProgramRun run = linear(place, common + flags);
        CAPTURE(flags);
        CAPTURE(run.err);
        CHECK(run.status == 0);
        CHECK(run.err.empty());
    }
    linear(place, common + "--schedule step --lr-period 1 --lr-gamma 0.5");
    const std::string log = get_bytes(place / "log/linear.jsonl");
    for (const char* rate : {R"("lr":0.01})", R"("lr":0.005})", R"("lr":0.0025})"}) CHECK_THAT(log, contains(rate));
    // 4 steps per epoch: 2 up and 2 down; the second cycle is half as high.
    linear(place, common + "--schedule cyclic --lr-period 1 --lr-mode triangular2 --lr 0.08 --lr-min 0.02");
    for (const char* rate : {R"("lr":0.05})"}) CHECK_THAT(get_bytes(place / "log/linear.jsonl"), contains(rate));
    linear(place, common + "--schedule polynomial --lr-power 2 --lr 0.09");
    const std::string falling = get_bytes(place / "log/linear.jsonl");
    for (const char* rate : {R"("lr":0.09)", R"("lr":0.04)", R"("lr":0.01)"}) CHECK_THAT(falling, contains(rate));
    for (const char* flags :
         {"--schedule cyclic --lr-mode exp-range", "--schedule cyclic --lr-gamma 0.5", "--lr-mode triangular2",
          "--schedule one-cycle --lr-cycle-momentum", "--schedule step --lr-power 2",
          "--schedule step --rates adascale", "--schedule multistep", "--schedule plateau", "--early-stop 2",
          "--best b", "--keep 2", "--lr-gamma 2"})
        CHECK(linear(place, common + flags).status == 2);
}
