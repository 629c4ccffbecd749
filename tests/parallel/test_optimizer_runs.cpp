// Every optimizer in every kind of step: the manual step, microbatches, frozen and unused parameters, and runs that
// resume from a file on other devices. Bit-identity over devices and ranks: test_same_bits, test_ddp_bits.
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/ops/lr_schedules.h"
#include "lockstep/parallel/checkpoint.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/eight_devices.h"
#include "lockstep/tests/fixtures/files.h"
#include "lockstep/tests/fixtures/messages.h"
#include "lockstep/tests/fixtures/training.h"

using namespace lockstep;

namespace {

/// With an unused part.
struct Net {
    test::ConvNet used;
    Linear unused{5, 4};
    LOCKSTEP_MEMBERS(used, unused)
    Tensor forward(const Tensor& x) const { return used.forward(x); }
};
using Model = DataParallel<Net>;
using Named = test::NamedOptimizer<Model>;

const std::vector<Named>& all_optimizers() { return test::all_optimizers<Model>(); }

std::vector<std::vector<float>> values_of(Model& model) {
    model.synchronize();
    std::vector<std::vector<float>> values;
    for (const NamedTensor& named : named_tensors(*model)) values.push_back(named.member->tensor().to_vector<float>());
    return values;
}

struct Trained {
    Model model;
    std::unique_ptr<Optimizer> optimizer;

    Trained(const Named& named, int devices, EngineOptions options = {})
        : model(fresh_net(), test::cpu_devices(devices), with_shards(options)), optimizer(named.make(model)) {}

    void steps(int first, int last, const StepOptions& how = {}) {
        for (int i = first; i < last; ++i) {
            manual_seed(static_cast<std::uint64_t>(100 + i));
            const test::ConvNetBatch batch = test::make_batch(20);
            model.step(*optimizer, batch.images, batch.labels, nll_loss, how);
        }
    }
    void manual_steps(int first, int last) {
        for (int i = first; i < last; ++i) {
            manual_seed(static_cast<std::uint64_t>(100 + i));
            const test::ConvNetBatch batch = test::make_batch(20);
            optimizer->zero_grad();
            nll_loss(model.forward(batch.images), batch.labels).backward();
            optimizer->step();
        }
    }

private:
    static Net fresh_net() {
        manual_seed(1);
        return {};
    }
    static EngineOptions with_shards(EngineOptions options) {
        options.shards = 8;
        return options;
    }
};

double relative_difference(const std::vector<std::vector<float>>& a, const std::vector<std::vector<float>>& b) {
    double difference = 0, norm = 0;
    for (std::size_t k = 0; k < a.size(); ++k)
        for (std::size_t i = 0; i < a[k].size(); ++i) {
            difference += (a[k][i] - b[k][i]) * (a[k][i] - b[k][i]);
            norm += b[k][i] * b[k][i];
        }
    return std::sqrt(difference / norm);
}

}  // namespace

TEST_CASE("the manual step updates like a step") {
    for (const Named& named : all_optimizers())
        for (const ReductionMode reduction : {ReductionMode::root, ReductionMode::slice_wise}) {
            INFO(named.name << (reduction == ReductionMode::root ? ", root" : ", slices"));
            Trained in_one(named, 1), by_hand(named, 3, {.reduction = reduction});
            in_one.steps(0, 5);
            by_hand.manual_steps(0, 5);
            // The loss of gathered outputs is rounded differently, which Lion's sign makes larger.
            CHECK(relative_difference(values_of(by_hand.model), values_of(in_one.model)) < 2e-3);
            by_hand.model.engine().verify_replicas();
        }
}

TEST_CASE("the manual step has the same bits on any number of devices") {
    for (const Named& named : all_optimizers()) {
        Trained one(named, 1);
        one.manual_steps(0, 3);
        const auto expected = values_of(one.model);
        for (const int devices : {3, 8})
            for (const ReductionMode reduction : {ReductionMode::root, ReductionMode::slice_wise}) {
                INFO(named.name << " on " << devices);
                Trained other(named, devices, {.reduction = reduction});
                other.manual_steps(0, 3);
                CHECK((values_of(other.model) == expected));
            }
    }
}

TEST_CASE("microbatches have the same bits on any number of devices") {
    for (const Named& named : all_optimizers()) {
        Trained one(named, 1);
        one.steps(0, 3, {.accumulation_steps = 2});
        const auto expected = values_of(one.model);
        for (const ReductionMode reduction : {ReductionMode::root, ReductionMode::slice_wise}) {
            INFO(named.name);
            Trained other(named, 3, {.reduction = reduction});
            other.steps(0, 3, {.accumulation_steps = 2});
            CHECK((values_of(other.model) == expected));
        }
    }
}

TEST_CASE("unused parameters are unchanged in every kind of step") {
    for (const Named& named : all_optimizers())
        for (const ReductionMode reduction : {ReductionMode::root, ReductionMode::slice_wise}) {
            INFO(named.name << (reduction == ReductionMode::root ? ", root" : ", slices"));
            Trained trained(named, 3, {.reduction = reduction});
            const auto weight = trained.model->unused.weight->to_vector<float>(),
                       bias = (*trained.model->unused.bias)->to_vector<float>();
            trained.steps(0, 2);
            trained.steps(2, 4, {.accumulation_steps = 2});
            trained.steps(4, 6, {.clip = {ClipGradNorm{.max_norm = 1}}, .skip_nonfinite = true});
            trained.manual_steps(6, 8);
            trained.model.engine().verify_replicas();
            CHECK(trained.model->unused.weight->to_vector<float>() == weight);
            CHECK((*trained.model->unused.bias)->to_vector<float>() == bias);
        }
}

TEST_CASE("frozen parameters are unchanged, and continue with their state when they are trained again") {
    for (const Named& named : all_optimizers()) {
        INFO(named.name);
        Trained one(named, 1), three(named, 3, {.reduction = ReductionMode::slice_wise});
        for (Trained* trained : {&one, &three}) {
            trained->steps(0, 2);
            trained->model->used.conv.weight->requires_grad_(false);
            const auto before = trained->model->used.conv.weight->to_vector<float>();
            trained->steps(2, 4);
            trained->model.synchronize();
            CHECK(trained->model->used.conv.weight->to_vector<float>() == before);
            trained->model->used.conv.weight->requires_grad_(true);
            trained->steps(4, 6);
            trained->model.synchronize();
            CHECK_FALSE(trained->model->used.conv.weight->to_vector<float>() == before);
        }
        CHECK((values_of(one.model) == values_of(three.model)));
    }
}

TEST_CASE("a run resumes from its file on other devices with the same bits") {
    const test::TemporaryDirectory directory;
    const auto path = directory / "run.safetensors";
    for (const Named& named : all_optimizers()) {
        INFO(named.name);
        Trained whole(named, 1);
        whole.steps(0, 6);
        // Slices and buckets, the first of another size: gathering the state must use the right locations.
        Trained first(named, 8,
                      {.reduction = ReductionMode::slice_wise, .bucket_bytes = 1024, .first_bucket_bytes = 256});
        first.steps(0, 3);
        save_checkpoint(first.model, *first.optimizer, {.steps = first.model.engine().steps_done()}, path);
        for (const bool by_slices : {false, true}) {
            Trained second(named, 3,
                           {.reduction = by_slices ? ReductionMode::slice_wise : ReductionMode::root,
                            .bucket_bytes = std::size_t{by_slices ? 512u : 0u}});
            second.optimizer->set_lr(0.5);  // overridden by the file
            REQUIRE(load_checkpoint(second.model, *second.optimizer, path));
            CHECK(second.optimizer->lr() == first.optimizer->lr());
            second.steps(3, 6);
            CHECK((values_of(second.model) == values_of(whole.model)));
        }
    }
}

TEST_CASE("the state of another optimizer is rejected before anything changes") {
    const test::TemporaryDirectory directory;
    const auto path = directory / "run.safetensors";
    Trained saved(all_optimizers()[3], 1), other(all_optimizers()[0], 1);
    saved.steps(0, 2);
    save_checkpoint(saved.model, *saved.optimizer, {}, path);
    const auto before = values_of(other.model);
    std::string message;
    try {
        load_checkpoint(other.model, *other.optimizer, path);
    } catch (const InvalidArgument& error) {
        message = error.what();
    }
    CHECK_THAT(message, test::contains("holds the state of AdamW, the optimizer is SGD; expected the same optimizer"));
    CHECK((values_of(other.model) == before));
}

TEST_CASE("a schedule changes rates between steps without waiting, and each step uses its own") {
    Trained scheduled(all_optimizers()[1], 3), by_hand(all_optimizers()[1], 1);
    ExponentialLR schedule(*scheduled.optimizer, 0.5);
    double lr = 0.05;
    for (int i = 0; i < 6; ++i) {
        scheduled.steps(i, i + 1);
        schedule.step();
        by_hand.optimizer->set_lr(lr);
        by_hand.steps(i, i + 1);
        by_hand.model.synchronize();
        lr *= 0.5;
    }
    CHECK((values_of(scheduled.model) == values_of(by_hand.model)));
}
