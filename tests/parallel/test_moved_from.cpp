// Objects after a move: using them throws and names their type; destroying them and assigning to them is allowed.
// Structs of public members, such as options, are not listed: there a member is what its own move leaves, and a Tensor
// is undefined.
#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/lockstep.h"
#include "lockstep/runtime/order_checker.h"
#include "lockstep/runtime/stream.h"
#include "lockstep/runtime/trace.h"
#include "lockstep/samples/data/digits.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/files.h"
#include "lockstep/tests/fixtures/messages.h"

using namespace lockstep;
using namespace lockstep::test;

namespace {

struct Net {
    Linear fc{2, 1};
    LOCKSTEP_MEMBERS(fc)
    Tensor forward(const Tensor& x) const { return fc(x); }
};

struct Rows {
    std::int64_t size() const { return 4; }
    std::tuple<Tensor, Tensor> get(std::int64_t) const { return {Tensor::full({2}, 1), Tensor::full({1}, 1)}; }
};

void says(const std::string& type, const auto& call) {
    CHECK(message_of<InvalidArgument>(call) == type + ": used after it was moved from; use the object it was moved to");
}

Loss loss_of(const Tensor& output, const Tensor& target) { return mse_loss(output, target); }

// Types that cannot be moved cannot be used after a move.
static_assert(!std::is_move_constructible_v<GradScaler> && !std::is_move_constructible_v<SGD>);
static_assert(!std::is_move_constructible_v<ProcessGroup> && !std::is_move_constructible_v<TcpStoreServer>);
static_assert(!std::is_move_constructible_v<TcpStore> && !std::is_move_constructible_v<FileStore>);
static_assert(!std::is_move_constructible_v<PrefixStore> && !std::is_move_constructible_v<StopSignals>);
static_assert(!std::is_move_constructible_v<Loader<Rows>::Epoch>);
static_assert(!std::is_move_constructible_v<Runner> && !std::is_move_constructible_v<Engine>);
static_assert(!std::is_move_constructible_v<AtomicFile> && !std::is_move_constructible_v<Rendezvous>);
static_assert(!std::is_move_constructible_v<LRSchedule> && !std::is_move_constructible_v<StepLR>);
static_assert(!std::is_move_constructible_v<AdaptiveRates> && !std::is_move_constructible_v<AdaScale>);
static_assert(!std::is_move_constructible_v<Optimizer> && !std::is_move_constructible_v<ParameterStore>);
static_assert(!std::is_move_constructible_v<UpdateRange> && !std::is_move_constructible_v<AutogradNode>);
static_assert(!std::is_move_constructible_v<Stream> && !std::is_move_constructible_v<StreamThreads>);
static_assert(!std::is_move_constructible_v<Buffer> && !std::is_move_constructible_v<OneThreadAtATime>);
static_assert(!std::is_move_constructible_v<Autocast> && !std::is_move_constructible_v<NoGrad>);
static_assert(!std::is_move_constructible_v<ComputeScope> && !std::is_move_constructible_v<TraceScope>);
static_assert(!std::is_move_constructible_v<DistributedDataParallel<Net>::NoSync>);

bool has_png() {
    const auto formats = image_formats();
    return std::any_of(formats.begin(), formats.end(),
                       [](const ImageFormat& format) { return format.name == "PNG" && format.built_in; });
}

}  // namespace

TEST_CASE("moved-from wrappers") {
    const Tensor x = Tensor::full({4, 2}, 1), y = Tensor::full({4, 1}, 1);
    DataParallel model(Net{}, {Device::cpu(0), Device::cpu(1)});
    SGD sgd(model, {.lr = 0.1});
    DataParallel taken = std::move(model);
    taken.step(sgd, x, y, loss_of);
    const std::string type = "DataParallel";
    const TemporaryDirectory folder;
    says(type, [&] { model.step(sgd, x, y, loss_of); });
    says(type, [&] { model.forward(x); });
    says(type, [&] { model(x); });
    says(type, [&] { static_cast<void>(*model); });
    says(type, [&] { static_cast<void>(model->fc); });
    says(type, [&] { model.engine(); });
    says(type, [&] { static_cast<void>(model.devices()); });
    says(type, [&] { model.train(); });
    says(type, [&] { model.eval(); });
    says(type, [&] { static_cast<void>(model.shards()); });
    says(type, [&] { model.parameter_store(); });
    says(type, [&] { model.synchronize(); });
    says(type, [&] { load(model, folder / "net"); });
    says(type, [&] { save_checkpoint(model, sgd, {}, folder / "net"); });
    says(type, [&] { load_checkpoint(model, sgd, folder / "net"); });
    says(type, [&] { clip_grad_norm_(model, {.max_norm = 1}); });
    says(type, [&] { save(model, folder / "net"); });
    says(type, [&] { SGD other(model); });
    says(type, [&] { Loader loader(model, Rows()); });
    model = DataParallel(Net{}, {Device::cpu(0)});
    SGD other(model, {.lr = 0.1});
    CHECK(model.step(other, x, y, loss_of).item() >= 0);
    taken = std::move(model);  // the old engine is destroyed before its model
    CHECK(taken.step(other, x, y, loss_of).item() >= 0);
    CHECK_THROWS_AS(sgd.step(), InvalidArgument);
}

TEST_CASE("moved-from loaders, writers, logs and losses") {
    const TemporaryDirectory folder;
    DataParallel model(Net{}, {Device::cpu(0)});
    SGD sgd(model, {.lr = 0.1});
    Loader loader(model, Rows(), {.batch_size = 2});
    Loader other = std::move(loader);
    CHECK(other.batches() == 2);
    says("Loader", [&] { loader.epoch(0); });
    says("Loader", [&] { static_cast<void>(loader.batches()); });
    says("Loader", [&] { static_cast<void>(loader.rows()); });
    says("Loader", [&] { static_cast<void>(loader.options()); });
    loader = std::move(other);
    CHECK(loader.rows() == 4);

    CheckpointWriter writer;
    CheckpointWriter second = std::move(writer);
    says("CheckpointWriter", [&] { writer.save(model, sgd, {}, folder / "net"); });
    says("CheckpointWriter", [&] { writer.finished(); });
    says("CheckpointWriter", [&] { writer.wait(); });
    writer = std::move(second);
    writer.save(model, sgd, {}, folder / "net");
    writer.wait();

    EventLog log(folder / "log");
    EventLog kept = std::move(log);
    says("EventLog", [&] { log.scalar("loss", 1, 0); });
    says("EventLog", [&] { log.scalars(0, {{"loss", 1}}); });
    says("EventLog", [&] { log.text("a", "b"); });
    says("EventLog", [&] { log.json_line("{}"); });
    says("EventLog", [&] { log.histogram("a", Tensor::full({2}, 1), 0); });
    says("EventLog", [&] { log.image("a", Tensor::zeros({2, 2}, DType::u8), 0); });
    says("EventLog", [&] { log.mask("a", Tensor::zeros({2, 2}, DType::u8), 0); });
    says("EventLog", [&] { log.flush(); });
    says("EventLog", [&] { log.close(); });
    log = std::move(kept);
    log.scalar("loss", 1, 0);
    log.flush();
    EventLog none;
    none.scalar("loss", 1, 0);  // writes nothing

    StepLoss loss = model.step(sgd, Tensor::full({2, 2}, 1), Tensor::full({2, 1}, 1), loss_of);
    const StepLoss held = std::move(loss);
    says("StepLoss", [&] { static_cast<void>(loss.item()); });
    says("StepLoss", [&] { static_cast<void>(loss.ready()); });
    says("StepLoss", [&] { static_cast<void>(loss.skipped()); });
    says("StepLoss", [&] { static_cast<void>(loss.grad_norm()); });
    CHECK(held.item() >= 0);
}

TEST_CASE("moved-from lists of devices are unchanged") {
    Devices devices{Device::cpu(0), Device::cpu(1)};
    const Devices taken = std::move(devices);
    CHECK(devices.size() == 2);
    CHECK(devices.kind() == DeviceKind::cpu);
    CHECK(devices[1] == taken[1]);
    DataParallel model(Net{}, std::move(devices));
    CHECK(model.devices().size() == 2);
    CHECK(devices.str() == taken.str());
}

TEST_CASE("moved-from datasets") {
    const TemporaryDirectory folder;
    DataParallel model(Net{}, {Device::cpu(0)});
    const Tensor x = Tensor::full({4, 2}, 1), y = Tensor::full({4, 1}, 1);
    const std::int64_t row = 0;
    std::vector<std::byte> memory(1 << 16);
    std::byte* const to[] = {memory.data(), memory.data() + memory.size() / 2};
    const auto check = [&](const std::string& type, auto& data) {
        INFO(type);
        auto taken = std::move(data);
        CHECK(taken.size() > 0);
        says(type, [&] { static_cast<void>(data.size()); });
        says(type, [&] { data.get(0); });
        says(type, [&] { data.fields(); });
        says(type, [&] { data.read({&row, 1}, to); });
        says(type, [&] { Loader loader(model, data); });
        const auto copy = data;
        says(type, [&] { static_cast<void>(copy.size()); });
        data = std::move(taken);
        CHECK(data.size() > 0);
    };
    TensorDataset tensors(x, y);
    check("TensorDataset", tensors);
    samples::write_digits(folder.path(), {.train_count = 3, .test_count = 1});
    Mnist digits(folder.path());
    check("Mnist", digits);
    Subset part(tensors, {0, 2});
    check("Subset", part);
    Subset taken = std::move(part);
    says("Subset", [&] { static_cast<void>(part.data()); });
    says("Subset", [&] { static_cast<void>(part.indices()); });
    says("Subset", [&] { static_cast<void>(part.origin(0)); });
    CHECK_THROWS_AS(Subset<TensorDataset<2>>(std::shared_ptr<const TensorDataset<2>>(), {}), InvalidArgument);
    Transformed turned(taken, RandomHorizontalFlip());
    const Transformed kept = std::move(turned);
    RowContext context({}, 0);
    says("Subset", [&] { static_cast<void>(turned.size()); });
    says("Subset", [&] { static_cast<void>(turned.origin(0)); });
    says("Subset", [&] { turned.get(0, context); });
    CHECK(kept.size() == 2);

    if (!has_png()) return;
    for (const char* name : {"images", "masks"}) {
        std::filesystem::create_directory(folder / name);
        write_png(folder / name / "a.png", {1, 2, ImageMode::grey, {0, 255}, {}});
    }
    SegmentationFolder pictures(folder / "images", folder / "masks");
    check("SegmentationFolder", pictures);
    const SegmentationFolder other = std::move(pictures);
    const std::string type = "SegmentationFolder";
    says(type, [&] { static_cast<void>(pictures.channels()); });
    says(type, [&] { static_cast<void>(pictures.classes()); });
    says(type, [&] { static_cast<void>(pictures.mask_values()); });
    says(type, [&] { static_cast<void>(pictures.mask_palette()); });
    says(type, [&] { static_cast<void>(pictures.image_file(0)); });
    says(type, [&] { static_cast<void>(pictures.mask_file(0)); });
    CHECK(other.classes() == 2);
}

TEST_CASE("moved-from files and images") {
    const TemporaryDirectory folder;
    const std::vector<float> values{1, 2};
    std::array<std::byte, 8> bytes{};
    write_safetensors(folder / "a", {{"x", DType::f32, {2}, values.data()}});
    SafetensorsFile file(folder / "a");
    SafetensorsFile taken = std::move(file);
    CHECK(taken.entries().size() == 1);
    says("SafetensorsFile", [&] { static_cast<void>(file.entries()); });
    says("SafetensorsFile", [&] { static_cast<void>(file.unsupported()); });
    says("SafetensorsFile", [&] { static_cast<void>(file.metadata()); });
    says("SafetensorsFile", [&] { static_cast<void>(file.find("x")); });
    says("SafetensorsFile", [&] { file.read("x", bytes); });
    file = std::move(taken);
    CHECK(file.find("x") != nullptr);

    PthFile weights(std::filesystem::path(PTH_FILES) / "module.pth");
    PthFile kept = std::move(weights);
    CHECK(!kept.entries().empty());
    says("PthFile", [&] { static_cast<void>(weights.entries()); });
    says("PthFile", [&] { static_cast<void>(weights.unsupported()); });
    says("PthFile", [&] { static_cast<void>(weights.value_names()); });
    says("PthFile", [&] { static_cast<void>(weights.value("epoch")); });
    says("PthFile", [&] { static_cast<void>(weights.find("x")); });
    says("PthFile", [&] { weights.read("x", bytes); });
    weights = std::move(kept);
    CHECK(!weights.entries().empty());

    CheckpointLock lock(folder / "net");
    CheckpointLock held = std::move(lock);
    lock = std::move(held);
    HostImage image{1, 2, ImageMode::grey, {0, 255}, {}};
    const HostImage other = std::move(image);
    CHECK_THROWS_AS(resize_image(image, 1, 1, Resampling::nearest), InvalidArgument);
    CHECK(resize_image(other, 1, 1, Resampling::nearest).pixels.size() == 1);
}

TEST_CASE("moved-from samplers and transforms") {
    DataParallel model(Net{}, {Device::cpu(0)});
    LoaderOptions options{.sampler = std::vector<std::int64_t>{3, 1}};
    const LoaderOptions taken = std::move(options);
    const AnySampler& sampler = options.sampler;
    const auto check = [&](const AnySampler& moved_from) {
        says("AnySampler", [&] { static_cast<void>(static_cast<bool>(moved_from)); });
        says("AnySampler", [&] { static_cast<void>(moved_from.is_batching()); });
        says("AnySampler", [&] { static_cast<void>(moved_from.rows()); });
        says("AnySampler", [&] { static_cast<void>(moved_from.batch_count()); });
        says("AnySampler", [&] { static_cast<void>(moved_from.batch_size()); });
        says("AnySampler", [&] { static_cast<void>(moved_from.indices(0, 1)); });
        says("AnySampler", [&] { static_cast<void>(moved_from.batches(0)); });
    };
    check(sampler);
    check(AnySampler(sampler));
    // It would read the rows in order.
    says("AnySampler", [&] { Loader loader(model, Rows(), options); });
    says("AnySampler", [&] { BatchSampler batches(sampler, 1, false); });
    CHECK(Loader(model, Rows(), taken).rows() == 2);
    options = taken;
    CHECK(Loader(model, Rows(), options).rows() == 2);

    for (const bool replacement : {true, false}) {
        WeightedRandomSampler weighted({1, 1, 1}, 3, {.replacement = replacement});
        const WeightedRandomSampler other = std::move(weighted);
        says("WeightedRandomSampler", [&] { static_cast<void>(weighted.indices(0)); });
        CHECK(other.indices(0).size() == 3);
    }
    BatchSampler batches(SequentialSampler(4), 2, false);
    const BatchSampler kept = std::move(batches);
    says("AnySampler", [&] { static_cast<void>(batches.size()); });
    says("AnySampler", [&] { static_cast<void>(batches.rows()); });
    says("AnySampler", [&] { static_cast<void>(batches.batches(0)); });
    CHECK(kept.size() == 2);
    DistributedSampler part(4, 2, 0, {.shuffle = false});
    const DistributedSampler rest = std::move(part);
    CHECK(part.indices() == std::vector<std::int64_t>{0, 2});
    CHECK(rest.size() == 2);

    Normalize normalize({0.5}, {2});
    const Normalize whole = std::move(normalize);
    RowContext context({}, 0);
    const auto row = [] { return std::tuple(Tensor::full({1, 2, 2}, 1)); };
    says("Normalize", [&] { normalize(row(), context); });
    CHECK(std::get<0>(whole(row(), context)).to_vector<float>() == std::vector<float>(4, 0.25f));
}

TEST_CASE("moved-from events, transfers, batches and operations") {
    Stream& stream = Stream::of(Device::cpu(0));
    Event event(Device::cpu(0), true);
    const std::uint64_t id = event.id();
    Event other = std::move(event);
    CHECK(other.id() == id);
    says("Event", [&] { static_cast<void>(event.done()); });
    says("Event", [&] { event.synchronize(); });
    says("Event", [&] { stream.record(event); });
    says("Event", [&] { stream.wait(event); });
    says("Event", [&] { static_cast<void>(Event::elapsed_ms(event, other)); });
    says("Event", [&] { static_cast<void>(Event::elapsed_ms(other, event)); });
    CHECK(event.device() == Device::cpu(0));
    stream.record(other);
    event = std::move(other);
    event.synchronize();
    CHECK(event.done());

    Transfer transfer(Tensor::full({2}, 1), Device::cpu(0));
    const Transfer arrived = std::move(transfer);
    says("Transfer", [&] { static_cast<void>(transfer.tensor()); });
    CHECK(arrived.tensor().device() == Device::cpu(0));

    OrderChecker checker;
    OrderChecker second = std::move(checker);
    says("OrderChecker", [&] { checker.append({}); });
    says("OrderChecker", [&] { OrderChecker copy(checker); });
    says("OrderChecker", [&] { second = checker; });
    checker = second;
    CHECK_FALSE(checker.append({}).has_value());

    BackwardFunction backward = [](const std::vector<Tensor>& gradients) { return gradients; };
    const BackwardFunction held = std::move(backward);
    CHECK_THROWS_AS(backward({}), InvalidArgument);
    CHECK(held({}).empty());

    says("ProcessGroup::Work", [] { static_cast<void>(ProcessGroup::Work(nullptr).done()); });
    says("ProcessGroup::Work", [] { ProcessGroup::Work(nullptr).wait(); });
    says("ProcessGroup::Work", [] { static_cast<void>(ProcessGroup::Work(nullptr).source()); });

    GradientBucket bucket(0, true, Tensor::full({2}, 1), {{"w", true, {2}, 0, 2}});
    const GradientBucket reduced = std::move(bucket);
    CHECK(bucket.gradients().empty());
    CHECK_FALSE(bucket.buffer().defined());
    CHECK(reduced.gradients().size() == 1);

    DataParallel model(Net{}, {Device::cpu(0), Device::cpu(1)});
    SGD sgd(model, {.lr = 0.1});
    Loader loader(model, TensorDataset(Tensor::full({4, 2}, 1), Tensor::full({4, 1}, 1)), {.batch_size = 4});
    for (auto& [input, target] : loader.epoch(0)) {
        const ShardedTensor batch = std::move(input);
        says("ShardedTensor", [&] { static_cast<void>(input.cut()); });
        says("ShardedTensor", [&] { static_cast<void>(input.rows()); });
        says("ShardedTensor", [&] { static_cast<void>(input.shards()); });
        says("ShardedTensor", [&] { static_cast<void>(input.held()); });
        says("ShardedTensor", [&] { static_cast<void>(input.shard(0)); });
        says("ShardedTensor", [&] { static_cast<void>(input.ready(0)); });
        says("ShardedTensor", [&] { static_cast<void>(input.gathered()); });
        CHECK_THROWS_AS(model.step(sgd, input, target, loss_of), InvalidArgument);
        CHECK(model.step(sgd, batch, target, loss_of).item() >= 0);
    }
    CHECK_THROWS_AS(model.step(sgd, ShardedTensor(), ShardedTensor(), loss_of), InvalidArgument);
}

TEST_CASE("moved-from hooks") {
    DataParallel model(Net{}, {Device::cpu(0)});
    SGD sgd(model, {.lr = 0.1});
    Loader loader(model, TensorDataset(Tensor::full({4, 2}, 1), Tensor::full({4, 1}, 1)), {.batch_size = 4});
    Runner runner(model, sgd, loader, loss_of, {.epochs = 1});
    Evaluation evaluation("score", [] { return 1.0; });
    Evaluation taken = std::move(evaluation);
    says("RunHook", [&] { runner.add(evaluation); });
    says("RunHook", [&] { runner.add(std::move(evaluation)); });
    struct Count : RunHook {
        int* steps = nullptr;
        void after_step(Runner&, const StepReport&) override { ++*steps; }
    };
    int steps = 0;
    Count count;
    count.steps = &steps;
    runner.add(std::move(count));
    says("RunHook", [&] { runner.add(count); });
    runner.add(std::move(taken));
    runner.run();
    CHECK(steps == 1);
    CHECK(runner.scores().at("score").value == 1);
}

TEST_CASE("moved-from layers, models and losses") {
    const TemporaryDirectory folder;
    const auto check = [](auto layer, const Tensor& x) {
        const auto taken = std::move(layer);
        CHECK_THROWS_WITH(layer.forward(x), contains("moved from"));
    };
    const Tensor x = Tensor::full({1, 2}, 1), image = Tensor::full({1, 1, 3, 3}, 1);
    check(Linear(2, 1), x);
    check(Conv2d(1, 1, 3), image);
    check(ConvTranspose2d(1, 1, 3), image);
    check(BatchNorm2d(1), image);
    check(SyncBatchNorm(1), image);
    check(LayerNorm(2), x);
    check(Sequential(Linear(2, 1), ReLU()), x);

    Net net;
    Net taken = std::move(net);
    const std::vector<std::pair<const char*, std::function<void()>>> uses{
        {"wrap", [&] { DataParallel model(net, {Device::cpu(0)}); }},
        {"optimize", [&] { SGD sgd(net); }},
        {"save", [&] { save(net, folder / "net"); }},
        {"move", [&] { to(net, Device::cpu(1)); }},
        {"convert", [&] { to(net, DType::f64); }},
        {"summary",
         [&] {
             summary(net, Shape{1, 2});
         }},
        {"tie", [&] { tie(net.fc.weight, *net.fc.bias); }},
        {"rebind",
         [&] {
             net.fc.weight.rebind(Tensor::full({1, 2}, 1));
         }},
    };
    for (const auto& [name, use] : uses) {
        INFO(name);
        CHECK_THROWS_WITH(use(), contains("moved from"));
    }
    save(taken, folder / "net");
    CHECK_THROWS_WITH(load(net, folder / "net"), contains("moved from"));
    const std::shared_ptr<ParameterStore> none;
    CHECK_THROWS_AS(SGD(none, SgdOptions{}), InvalidArgument);

    Loss loss = mse_loss(x, x);
    const Loss kept = std::move(loss);
    CHECK_THROWS_AS(loss.item(), InvalidArgument);
    CHECK_THROWS_AS(loss.backward(), InvalidArgument);
    CHECK(kept.item() == 0);
    Tensor tensor = Tensor::full({2}, 1);
    const Tensor held = std::move(tensor);
    CHECK_FALSE(tensor.defined());
    CHECK_THROWS_AS(tensor.shape(), InvalidArgument);
    CHECK_THROWS_AS(tensor.to_vector<float>(), InvalidArgument);
    CHECK_THROWS_AS(tensor.to(Device::cpu(0)), InvalidArgument);
    CHECK_THROWS_AS(Transfer(tensor, Device::cpu(0)), InvalidArgument);
    CHECK(held.numel() == 2);
}
