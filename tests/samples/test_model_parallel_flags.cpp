// The flags that model_parallel shares with other training programs: each has its effect in every form, and those that
// no form can have are unknown.
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/files.h"
#include "lockstep/tests/fixtures/messages.h"
#include "lockstep/tests/fixtures/ranks.h"
#include "lockstep/tests/samples/run_program.h"

using namespace lockstep::test;

namespace {

using Losses = std::map<std::string, double>;

/// The loss of the last step by form. Three steps with `--steps 1`: two are for warm-up.
Losses losses(const std::string& flags) {
    const TemporaryDirectory place;
    const ProgramRun run = run_program(place,
                                       "model_parallel --devices cpu:0,cpu:1 --batch_size 4 --microbatches 2 --width 4 "
                                       "--image-size 32 --deterministic --quiet --json figures.json " +
                                           flags);
    INFO(flags);
    // A processor without instructions for a 16-bit type computes in f32.
    if (flags.find("--amp") == std::string::npos || !contains(run.err, " is emulated")) CHECK(run.err.empty());
    CHECK(run.out.empty());
    REQUIRE(run.status == 0);
    Losses by_form;
    const nlohmann::json figures = nlohmann::json::parse(get_bytes(place / "figures.json"));
    for (const auto& form : figures.at("forms")) by_form[form.at("form")] = form.at("loss");
    CHECK(by_form.size() == 6);
    return by_form;
}

/// Whether two runs have the same loss in no form.
bool all_differ(const Losses& a, const Losses& b) {
    for (const auto& [form, loss] : a)
        if (loss == b.at(form)) return false;
    return true;
}

}  // namespace

TEST_CASE("model_parallel: rate, schedule, clipping and weight decay work in every form") {
    const Losses still = losses("--steps 1 --lr 0"), usual = losses("--steps 1");
    CHECK(all_differ(usual, still));
    CHECK(losses("--steps 3 --lr 0") == still);
    // Adam's step is a gradient over its magnitude plus 1e-8, which is nothing for such gradients.
    CHECK(losses("--steps 1 --clip 1e-20 --weight-decay 0") == still);
    // From step 1 on the rate is 0.
    const std::string ends = "--schedule multistep --lr-milestones 1 --lr-gamma 1e-30 --steps ";
    const Losses ended = losses(ends + "1");
    CHECK(all_differ(ended, still));
    CHECK(losses(ends + "4") == ended);
    // A cycle of 3 steps ends with the rate lr / 25 / 1e4, from lr / 25.
    CHECK(all_differ(losses("--steps 1 --schedule one-cycle --lr 0.01"), losses("--steps 1 --lr 0.01")));
    // AdamW multiplies weights by 1 - lr * decay: all are 0, and both classes have the probability 1/2. The second
    // class has the pixels above 0.5 of a standard normal distribution.
    const double share = 0.5 * std::erfc(0.5 / std::sqrt(2.0));
    const double dice = (share / (0.5 + share) + (1 - share) / (1.5 - share)) / 2;
    for (const auto& [form, loss] : losses("--steps 1 --lr 1e-12 --weight-decay 1e12")) {
        INFO(form);
        CHECK(loss == Approx(std::log(2.0) + 1 - dice).margin(0.02));
    }
}

TEST_CASE("model_parallel: precision and the processes' backend have their flags") {
    const Losses usual = losses("--steps 1");
    const Losses bf16 = losses("--steps 1 --amp");
    CHECK(losses("--steps 1 --amp bf16") == bf16);
    for (const Losses& half : {bf16, losses("--steps 1 --amp fp16 --clip 1")}) {
        CHECK(all_differ(half, usual));
        for (const auto& [form, loss] : half) CHECK(loss == Approx(usual.at(form)).margin(0.1));
    }
    for (const auto& [form, loss] : losses("--steps 1 --benchmark --allow-tf32"))
        CHECK(loss == Approx(usual.at(form)).epsilon(1e-4));
    CHECK(losses("--steps 1 --reduction fast --timeout 900").at("ddp") == Approx(usual.at("ddp")).epsilon(1e-4));
    if (is_built_in("gloo")) CHECK(losses("--steps 1 --backend gloo") == usual);
}

TEST_CASE("model_parallel rejects flags that its forms cannot have") {
    const TemporaryDirectory place;
    // No checkpoint, no evaluation, one generated batch, and forms without shards.
    for (const std::string flag :
         {"--save net", "--load net", "--save-every 2", "--keep 2", "--best net", "--work-dir here", "--early-stop 2",
          "--epochs 2", "--accumulation-steps 2", "--shards 2", "--parallel dp", "--rates adascale", "--momentum 0.9",
          "--workers 2", "--data here", "--log-dir here", "--rank 0", "--world-size 2", "--launcher none"}) {
        INFO(flag);
        const ProgramRun run = run_program(place, "model_parallel " + flag);
        CHECK(run.status == 2);
        CHECK(run.lines_of_err() == 1);
        CHECK_THAT(run.err, contains("not expected") && contains(flag.substr(0, flag.find(' '))));
    }
    struct Wrong {
        const char* flags;
        const char* said;
    };
    for (const Wrong& wrong :
         std::vector<Wrong>{{"--schedule plateau", "plateau not in {"},
                            {"--lr-patience 2", "--lr-patience"},
                            {"--schedule multistep", "--schedule multistep requires --lr-milestones"},
                            {"--lr nan", "--lr: value is nan"},
                            {"--clip -1", "--clip: value is -1"},
                            {"--amp int8", "--amp"},
                            {"--backend mpi", "--backend mpi: no MPI launcher found"}}) {
        INFO(wrong.flags);
        const ProgramRun run =
            run_program(place, std::string("model_parallel --steps 1 --width 1 --image-size 16 ") + wrong.flags);
        CHECK(run.status == 2);
        CHECK(run.lines_of_err() == 1);
        CHECK_THAT(run.err, contains(wrong.said));
    }
}
