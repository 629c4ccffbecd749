// Training under Autocast: bit-identical on any devices, the casts of parameters, and agreement with eager work.
#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/ops/loss.h"
#include "lockstep/ops/sgd.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/program/parameter_casts.h"
#include "lockstep/runtime/autocast.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/eight_devices.h"
#include "lockstep/tests/fixtures/messages.h"
#include "lockstep/tests/fixtures/nets.h"
#include "lockstep/tests/fixtures/shard_programs.h"

using namespace lockstep;
using lockstep::test::message_of;

namespace {

/// Convolutions with BatchNorm, dropout, a product with a parameter, whose transposed cast backward reads, and a
/// parameter that is not trained.
struct Net {
    Conv2d conv1{1, 16, 3}, conv2{16, 16, 3};
    BatchNorm2d norm{16};
    Dropout drop{0.2};
    Linear mix{64, 64, false}, frozen{64, 32}, last{32, 10};
    LOCKSTEP_MEMBERS(conv1, conv2, norm, drop, mix, frozen, last)
    Net() { frozen.weight->requires_grad_(false); }
    Tensor forward(const Tensor& x) {
        const Tensor y = max_pool2d(relu(norm(conv2(relu(conv1(x))))), 12).flatten(1);
        return last(relu(frozen(matmul(drop(y), mix.weight))));
    }
};

Net make_net() {
    manual_seed(1);
    return {};
}

using Weights = std::vector<std::vector<float>>;
Weights weights_of(Net& net) {
    Weights weights;
    for (const NamedTensor& named : named_tensors(net))
        if (named.member->tensor().dtype() == DType::f32)
            weights.push_back(named.member->tensor().to(Device::host()).to_vector<float>());
    return weights;
}

struct Trained {
    std::vector<double> losses;
    Weights weights;
};

/// Four steps of 12 images.
Trained train(int devices, const EngineOptions& options, const StepOptions& step = {}) {
    DataParallel<Net> model(make_net(), test::cpu_devices(devices), options);
    SGD sgd(model, {.lr = 0.05, .momentum = 0.9});
    const test::Images images(12);
    const Tensor labels = Tensor::from(images.labels, {12});
    Trained trained;
    for (int i = 0; i < 4; ++i)
        trained.losses.push_back(
            static_cast<double>(model.step(sgd, images.pixels, labels, cross_entropy, step).item()));
    trained.weights = weights_of(*model);
    return trained;
}

EngineOptions with(std::optional<DType> autocast) { return {.shards = 4, .autocast = autocast, .seed = 3}; }

ShardProgram program_of(Pass pass, Net& net, const ParameterStore& store) {
    return test::program_of(net, store, pass, {1, 28, 28}, {.prototype = Device::cpu(0), .autocast = DType::bf16});
}

}  // namespace

TEST_CASE("a step under autocast has the same bits on any devices and is close to f32") {
    const Trained f32 = train(1, with(std::nullopt));
    for (const DType dtype : {DType::bf16, DType::f16}) {
        const Trained one = train(1, with(dtype));
        CHECK(one.weights != f32.weights);
        for (std::size_t i = 0; i < one.losses.size(); ++i) CHECK(one.losses[i] == Approx(f32.losses[i]).epsilon(0.03));
        for (const int devices : {2, 3}) {
            const Trained several = train(devices, with(dtype));
            CHECK(several.losses == one.losses);
            CHECK(several.weights == one.weights);
        }
        EngineOptions sliced = with(dtype);
        sliced.reduction = ReductionMode::slice_wise;
        CHECK(train(3, sliced).weights == one.weights);
        const StepOptions parts{.accumulation_steps = 3};
        CHECK(train(1, with(dtype), parts).weights == train(2, with(dtype), parts).weights);
    }
}

TEST_CASE("the caller's scope is traced like the option and overrides it") {
    const Trained wanted = train(2, with(DType::bf16));
    {
        const Autocast scope(DType::bf16);
        CHECK(train(2, with(std::nullopt)).weights == wanted.weights);
        CHECK(train(2, with(DType::f16)).weights == wanted.weights);
    }
    const Autocast off(std::nullopt);
    CHECK(train(2, with(DType::bf16)).weights == train(2, with(std::nullopt)).weights);
}

TEST_CASE("a program is cached for each dtype") {
    DataParallel<Net> model(make_net(), test::cpu_devices(2), with(DType::bf16));
    const Tensor x = test::Images(8).pixels;
    set_training(*model, false);
    const NoGrad no_grad;
    const Tensor gathered = model.forward(x);
    CHECK(gathered.dtype() == DType::bf16);
    {
        const Autocast scope(DType::bf16);
        const ComputeScope one_thread({.threads = 1, .deterministic = true});
        CHECK(gathered.to(DType::f32).to_vector<float>() ==
              (*model).forward(x.to(gathered.device())).to(DType::f32).to_vector<float>());
    }
    {
        const Autocast scope(DType::f16);
        CHECK(model.forward(x).dtype() == DType::f16);
    }
    {
        const Autocast off(std::nullopt);
        CHECK(model.forward(x).dtype() == DType::f32);
    }
    CHECK(model.forward(x).dtype() == DType::bf16);
}

TEST_CASE("eager work in a scope gives the same gradients as a wrapper") {
    const test::Images images(8);
    Net eager = make_net();
    eager.drop.p = 0;
    DataParallel<Net> model(eager, test::cpu_devices(1), {.threads_per_shard = 1, .autocast = DType::bf16});
    const ComputeScope one_thread({.threads = 1});
    const auto gradients = [&](Net& net, const Tensor& y) {
        cross_entropy(y, Tensor::from(images.labels, {8}, y.device())).value().backward();
        Weights found;
        for (const NamedTensor& named : named_tensors(net))
            if (const Tensor gradient = named.member->tensor().grad(); gradient.defined()) {
                REQUIRE(gradient.dtype() == DType::f32);
                found.push_back(gradient.to(Device::host()).to_vector<float>());
            }
        return found;
    };
    const Autocast scope(DType::bf16);
    const Weights expected = gradients(eager, eager.forward(images.pixels));
    CHECK(expected.size() == 10);  // all parameters except one
    CHECK(gradients(*model, model.forward(images.pixels)) == expected);
}

TEST_CASE("one kernel converts parameters for all shards of a device") {
    Net net = make_net();
    const ParameterStore store(named_tensors(net), {Device::cpu(0)});
    const auto casts_in = [](const ShardProgram& program) {
        int casts = 0;
        for (std::size_t i = 0; i < program.commit_begin; ++i)
            for (const Operand& in : program.records[i].in)
                casts += in.storage && program.records[i].operation->name() == "reorder";
        return casts;
    };
    // Casts of weight and bias of conv1, conv2, frozen and last, and mix's weight; those of BatchNorm stay in f32.
    const ShardProgram step = program_of(Pass::step, net, store);
    CHECK(step.casts.size() == 9);
    CHECK(casts_in(step) == 0);
    // Those of BatchNorm are between others, and are few.
    const std::vector<CastRange> ranges = cast_ranges({&step, &step}, store.parameters());
    REQUIRE(ranges.size() == 1);
    CHECK(ranges[0].dtype == DType::bf16);
    CHECK(ranges[0].begin == 0);
    CHECK(ranges[0].end == store.parameters()[0].segments.back().end);
    CHECK(program_of(Pass::inference, net, store).casts.size() == 9);
    // Backward of a manual step runs later, and reads the casts of the forward that it belongs to.
    const ShardProgram longer = program_of(Pass::training, net, store);
    CHECK(longer.casts.empty());
    CHECK(casts_in(longer) == 9);
}

TEST_CASE("small parameters between casts are converted as well, large ones are not") {
    ArenaLayout arena;
    for (const std::int64_t size : {100, 16000, 100, 17000, 100, 100}) {
        ArenaSegment& segment = arena.segments.emplace_back();
        segment.begin = arena.elements;
        segment.end = segment.begin + size;
        arena.elements = (segment.end + 63) / 64 * 64;
    }
    ShardProgram program;
    for (const int number : {0, 2, 4, 5})
        program.casts.push_back({{0, number}, TensorMeta::contiguous(DType::bf16, {1}), number});
    program.casts.push_back({{0, 5}, TensorMeta::contiguous(DType::f16, {1}), 6});
    const std::vector<CastRange> ranges = cast_ranges({&program}, {arena});
    REQUIRE(ranges.size() == 3);
    std::vector<std::pair<std::int64_t, std::int64_t>> found;
    for (const CastRange& range : ranges) found.emplace_back(range.begin, range.end);
    const auto& segments = arena.segments;
    const std::pair<std::int64_t, std::int64_t> expected[]{{segments[0].begin, segments[2].end},
                                                           {segments[4].begin, segments[5].end},
                                                           {segments[5].begin, segments[5].end}};
    for (const auto& range : expected) CHECK(std::count(found.begin(), found.end(), range) == 1);
}

TEST_CASE("a model with 16-bit parameters can compute but not train") {
    Net net = make_net();
    set_training(net, false);
    const test::Images images(4);
    const Tensor labels = Tensor::from(images.labels, {4});
    const Tensor half_images = images.pixels.to(DType::bf16);
    to(net, DType::bf16);
    CHECK(net.forward(half_images).dtype() == DType::bf16);
    const char* const refusal = "changes lasting state, which must not be f16 or bf16; expected f32 (use .to(";
    {
        SGD sgd(net, {.lr = 0.1});
        cross_entropy(net.forward(half_images), labels).value().backward();
        CHECK(message_of<InvalidArgument>([&] { sgd.step(); }).find(refusal) != std::string::npos);
    }
    DataParallel<Net> model(net, test::cpu_devices(2));
    SGD sgd(model, {.lr = 0.1});
    const std::string refused =
        message_of<InvalidArgument>([&] { model.step(sgd, half_images, labels, cross_entropy); });
    CHECK(refused.find(refusal) != std::string::npos);
    const NoGrad no_grad;
    CHECK(model.forward(half_images).dtype() == DType::bf16);
}

TEST_CASE("autocast accepts only f16 and bf16") {
    CHECK(message_of<InvalidArgument>([] {
              const DataParallel<Net> model(make_net(), test::cpu_devices(1), {.autocast = DType::f64});
          }) == "autocast to f64; expected f16 or bf16, or no autocast");
}
