// Lifetimes: programs, the memory of optimizers, and objects that outlive their wrapper.
#include <chrono>
#include <memory>
#include <thread>

#include "lockstep/ops/sgd.h"
#include "lockstep/runtime/memory.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/eight_devices.h"
#include "lockstep/tests/fixtures/messages.h"
#include "lockstep/tests/fixtures/nets.h"

namespace ls = lockstep;
using namespace lockstep::test;
using ls::Device;

namespace {

/// A network whose kernels can be blocked.
struct Slow {
    ConvNet net;
    LOCKSTEP_MEMBERS(net)
    ls::Tensor forward(const ls::Tensor& x) { return net.forward(call_hook(x)); }
};

/// Bytes in use on `count` devices.
std::size_t bytes_in_use(int count) {
    std::size_t bytes = 0;
    for (int d = 0; d < count; ++d) bytes += ls::memory_stats(Device::cpu(d)).current;
    return bytes;
}

template <class Model>
void step(Model& model, ls::SGD& sgd, const ConvNetBatch& batch) {
    model.step(sgd, batch.images, batch.labels, ls::nll_loss);
}

/// Bytes that a wrapper holds after training on batches of these sizes.
std::size_t bytes_after(const std::vector<std::int64_t>& sizes, int kept, std::uint64_t traces, int microbatches = 1) {
    const std::size_t before = bytes_in_use(2);
    ls::DataParallel<ConvNet> model(ConvNet{}, cpu_devices(2), {.program_cache_size = kept});
    ls::SGD sgd(model, {.lr = 0.01});
    for (const std::int64_t rows : sizes) {
        const ConvNetBatch batch = make_batch(rows);
        model.step(sgd, batch.images, batch.labels, ls::nll_loss, {.accumulation_steps = microbatches});
    }
    model.synchronize();
    CHECK(model.engine().traces() == traces);
    // The cached memory is bounded as well, except for blocks that the last program added.
    const ls::MemoryStats stats = ls::memory_stats(Device::cpu(0));
    if (sizes.size() > 9) CHECK(stats.reserved < 3 * stats.current);
    return bytes_in_use(2) - before;
}

}  // namespace

TEST_CASE("recently used programs are kept, and memory is bounded for any batch sizes") {
    ls::manual_seed(1);
    std::vector<std::int64_t> many;
    for (std::int64_t rows = 2; rows <= 200; rows += 2) many.push_back(rows);  // one shard shape each
    // A little more, because cached blocks may be a little larger than requested.
    CHECK(bytes_after(many, 1, 100) < bytes_after({200}, 1, 1) * 11 / 10);
    // Eight sizes in turn: with room for all of them each is traced once, otherwise every time.
    const std::vector<std::int64_t> eight{100, 102, 104, 106, 108, 110, 112, 114};
    std::vector<std::int64_t> turns = eight;
    turns.insert(turns.end(), eight.begin(), eight.end());
    const std::size_t all = bytes_after(eight, 8, 8);
    CHECK(bytes_after(turns, 8, 8) == all);
    CHECK(bytes_after(turns, 2, 16) < all / 2);
    // More programs than that are cached, but the activations of only nine: eight, and the one in use.
    const std::vector<std::int64_t> nine(many.end() - 9, many.end());
    CHECK(bytes_after(many, 100, 100) < bytes_after(nine, 100, 9) * 11 / 10);
    const std::size_t microbatches = bytes_after(nine, 100, 5, 2);
    // Every program keeps its sums of microbatches, which depend on the buckets and so on the caches of the machine.
    CHECK(bytes_after(many, 100, 51, 2) < microbatches * 12 / 10);
}

TEST_CASE("activations are freed when the devices no longer use them") {
    ls::manual_seed(5);
    kernel_hook().forward =
        kernel_hook().backward = [](int) { std::this_thread::sleep_for(std::chrono::milliseconds(1)); };
    const Slow net;
    std::vector<ConvNetBatch> batches;
    for (std::int64_t rows = 3; rows < 15; ++rows) batches.push_back(make_batch(rows));
    const auto train = [&](bool waits) {
        ls::DataParallel<Slow> model(net, cpu_devices(3));
        ls::SGD sgd(model, {.lr = 0.05, .momentum = 0.9});
        for (int turn = 0; turn < 2; ++turn)
            for (std::size_t i = 1; i < batches.size(); ++i) {
                const ConvNetBatch &batch = batches[i], &other = batches[i - 1];
                sgd.zero_grad();
                const ls::Tensor output = model(batch.images), another = model(other.images);
                ls::nll_loss(output, batch.labels.to(Device::cpu(0))).backward();
                ls::nll_loss(another, other.labels.to(Device::cpu(0))).backward();
                sgd.step();
                step(model, sgd, batch);
                if (waits) model.synchronize();
            }
        return parameters_of(*model);
    };
    CHECK(relative_error(train(false), train(true)) == 0);
    kernel_hook() = {};
}

TEST_CASE("evicted programs that are running on devices are freed when they are done") {
    ls::manual_seed(2);
    kernel_hook().forward =
        kernel_hook().backward = [](int) { std::this_thread::sleep_for(std::chrono::milliseconds(2)); };
    const Slow net;
    ls::DataParallel<Slow> few(net, cpu_devices(3), {.program_cache_size = 1}), all(net, cpu_devices(3));
    ls::SGD few_sgd(few, {.lr = 0.05, .momentum = 0.9}), all_sgd(all, {.lr = 0.05, .momentum = 0.9});
    for (int turn = 0; turn < 3; ++turn)
        for (const std::int64_t rows : {9, 7, 4}) {
            const ConvNetBatch batch = make_batch(rows);
            step(few, few_sgd, batch);
            step(all, all_sgd, batch);
        }
    CHECK(relative_error(parameters_of(*few), parameters_of(*all)) == 0);
    kernel_hook() = {};
}

TEST_CASE("momentum that is enabled while a step without it runs") {
    ls::manual_seed(3);
    kernel_hook().backward = [](int) { std::this_thread::sleep_for(std::chrono::milliseconds(20)); };
    const Slow net;
    const ConvNetBatch batch = make_batch(6);
    const auto train = [&](bool waits, bool longer) {
        ls::DataParallel<Slow> model(net, cpu_devices(2));
        ls::SGD sgd(model, {.lr = 0.05});
        for (const double momentum : {0.0, 0.9, 0.0, 0.9, 0.9}) {
            sgd.set_options({.lr = 0.05, .momentum = momentum});
            if (longer) {
                sgd.zero_grad();
                ls::nll_loss(model(batch.images), batch.labels.to(Device::cpu(0))).backward();
                sgd.step();
            } else {
                step(model, sgd, batch);
            }
            if (waits) model.synchronize();
        }
        return parameters_of(*model);
    };
    for (const bool longer : {false, true}) CHECK(relative_error(train(false, longer), train(true, longer)) == 0);
    kernel_hook() = {};
}

TEST_CASE("a program whose forward awaits its backward is not evicted") {
    ls::manual_seed(4);
    const ConvNet net;
    const ConvNetBatch batch = make_batch(7), other = make_batch(4);
    const auto gradients = [&](int kept) {
        ls::DataParallel<ConvNet> model(net, cpu_devices(3), {.program_cache_size = kept});
        const ls::Tensor first = model(batch.images);
        const ls::Tensor second = model(other.images);
        for (const std::int64_t rows : {2, 3, 5, 6}) {
            const ls::NoGrad no_grad;
            (void)model(make_batch(rows).images);
        }
        ls::nll_loss(first, batch.labels.to(first.device())).backward();
        ls::nll_loss(second, other.labels.to(second.device())).backward();
        for (const std::int64_t rows : {2, 3}) (void)model(make_batch(rows).images);
        return gradients_of(*model);
    };
    CHECK(relative_error(gradients(1), gradients(64)) == 0);
}

TEST_CASE("the memory of destroyed optimizers is reused") {
    ls::manual_seed(5);
    const ConvNetBatch batch = make_batch(6);
    for (const bool longer : {false, true}) {
        ls::DataParallel<ConvNet> model(ConvNet{}, cpu_devices(2), {.reduction = ls::ReductionMode::slice_wise});
        std::size_t first = 0;
        for (int i = 0; i < 20; ++i) {
            ls::SGD sgd(model, {.lr = 0.05, .momentum = 0.9});
            if (longer) {
                sgd.zero_grad();
                ls::nll_loss(model(batch.images), batch.labels.to(Device::cpu(0))).backward();
                sgd.step();
            } else {
                step(model, sgd, batch);
            }
            model.synchronize();
            if (i == 0) first = bytes_in_use(2);
            CHECK(bytes_in_use(2) == first);
        }
        CHECK(model.engine().traces() == 1);
    }
}

TEST_CASE("an optimizer may outlive its wrapper, and its step then throws") {
    ls::manual_seed(6);
    auto model = std::make_unique<ls::DataParallel<ConvNet>>(ConvNet{}, cpu_devices(2));
    ls::SGD sgd(*model, {.lr = 0.05, .momentum = 0.9});
    const ConvNetBatch batch = make_batch(6);
    step(*model, sgd, batch);
    ls::nll_loss((*model)(batch.images), batch.labels.to(Device::cpu(0))).backward();
    model.reset();
    CHECK(message_of<ls::InvalidArgument>([&] { sgd.step(); }) ==
          "optimizer step: the wrapper whose parameters it updates was destroyed; it must outlive its optimizer");
    sgd.zero_grad();
    sgd.set_lr(0.1);
}

TEST_CASE("an optimizer may outlive a plain model, or the address where its model was created") {
    ls::manual_seed(7);
    const ConvNetBatch batch = make_batch(6);
    auto net = std::make_unique<ConvNet>();
    ls::SGD sgd(*net, {.lr = 0.05});
    ConvNet moved = std::move(*net);
    net.reset();
    const auto before = parameters_of(moved);
    ls::nll_loss(moved.forward(batch.images), batch.labels).backward();
    sgd.step();
    CHECK(relative_error(difference(before, parameters_of(moved), 20), gradients_of(moved)) < 1e-4);
    { const ConvNet last = std::move(moved); }
    sgd.step();
    sgd.zero_grad();
}

TEST_CASE("a plain model's frozen parameter is trained once it is unfrozen") {
    ls::manual_seed(8);
    ConvNet net;
    const ConvNetBatch batch = make_batch(6);
    net.fc2.weight->requires_grad_(false);
    ls::SGD sgd(net, {.lr = 0.05});
    const auto train = [&] {
        const auto before = net.fc2.weight->detach().to_vector<float>();
        sgd.zero_grad();
        ls::nll_loss(net.forward(batch.images), batch.labels).backward();
        sgd.step();
        return net.fc2.weight->detach().to_vector<float>() != before;
    };
    CHECK_FALSE(train());
    net.fc2.weight->requires_grad_(true);
    CHECK(train());
}

TEST_CASE("the number of cached programs is checked") {
    CHECK(message_of<ls::InvalidArgument>([] {
              ls::DataParallel<ConvNet>(ConvNet{}, cpu_devices(1), {.program_cache_size = 0});
          }) == "0 programs to cache; expected at least 1");
}
