// Clipping and skipped steps over several processes: the bits of one.
#include <fmt/format.h>

#include <cmath>
#include <vector>

#include "lockstep/ops/adam.h"
#include "lockstep/ops/clip_grad.h"
#include "lockstep/ops/functional.h"
#include "lockstep/ops/layers.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/parallel/ddp_ranks.h"

using namespace lockstep;
using namespace lockstep::testing;

namespace {

/// Whose gradient is not finite, at a finite loss, where a row is 0.
struct Kink {
    Linear first{6, 5, false}, second{5, 3, false};
    LOCKSTEP_MEMBERS(first, second)
    Tensor forward(const Tensor& x) { return sqrt(square(second(first(x)))); }
};

Kink seeded() {
    manual_seed(3);
    return {};
}

Loss size_of_outputs(const Tensor& output, const Tensor&) { return mean_loss(output); }

struct Result {
    std::vector<std::vector<float>> values;
    std::vector<double> norms;
    std::vector<bool> skipped;
    std::uint64_t steps = 0;
    bool operator==(const Result&) const = default;
};

/// Six steps, of which the third is skipped: row 7, which one rank has, is 0 in it.
template <class Model>
Result train(Model& model, const StepOptions& how) {
    AdamW optimizer(model, {.lr = 0.05});
    Result result;
    for (int i = 0; i < 6; ++i) {
        manual_seed(static_cast<std::uint64_t>(20 + i));
        Tensor x = Tensor::randn({16, 6});
        if (i == 2) x.select(0, 7).zero_();
        const StepLoss loss = model.step(optimizer, x, x, size_of_outputs, how);
        if (how.clip.size() == 1) result.norms.push_back(i == 2 ? 0 : loss.grad_norm());
        result.skipped.push_back(loss.skipped());
    }
    result.steps = model.engine().steps_done();
    for (const NamedTensor& named : named_tensors(*model))
        result.values.push_back(named.member->tensor().to_vector<float>());
    return result;
}

std::string check_ranks(int ranks, const StepOptions& how) {
    return on_ranks(ranks, [&](ProcessGroup& group) {
        DistributedDataParallel<Kink> model(seeded(), group, {.shards = 8});
        const Result found = train(model, how);
        DataParallel<Kink> alone(seeded(), {Device::cpu(0)}, {.shards = 8});
        const Result expected = train(alone, how);
        expect(found == expected, "the ranks have other bits than one process");
        expect(found.skipped == std::vector<bool>{false, false, true, false, false, false}, "another step was skipped");
        expect(found.steps == 5, "a skipped step was counted");
        model.engine().verify_replicas();
    });
}

}  // namespace

TEST_CASE("ranks clip and skip as one process does") {
    for (const int ranks : {1, 2, 4}) {
        CHECK(check_ranks(ranks, {.clip = {ClipGradNorm{.max_norm = 0.1}}, .skip_nonfinite = true}) == "");
        CHECK(check_ranks(ranks,
                          {.clip = {ClipGradValue{.clip_value = 0.01}, ClipGradNorm{.max_norm = 0.1, .norm_type = 3}},
                           .skip_nonfinite = true}) == "");
    }
}

TEST_CASE("ranks that clip in different ways are told so") {
    CHECK(on_ranks(2, [](ProcessGroup& group) {
              DistributedDataParallel<Kink> model(seeded(), group);
              AdamW optimizer(model);
              const Tensor x = Tensor::full({4, 6}, 1);
              const double max_norm = group.rank() == 0 ? 1 : 2;
              expect_throws<Error>("does not give gradients to the same parameters", [&] {
                  model.step(optimizer, x, x, size_of_outputs, {.clip = {ClipGradNorm{.max_norm = max_norm}}});
                  model.synchronize();
              });
          }) == "");
}
