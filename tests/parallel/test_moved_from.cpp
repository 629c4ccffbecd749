// Objects after a move: using them throws and names their type; destroying them and assigning to them is allowed.
#include <type_traits>

#include "lockstep/lockstep.h"
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
static_assert(!std::is_move_constructible_v<Runner>);

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
    says(type, [&] { *model; });
    says(type, [&] { model->fc; });
    says(type, [&] { model.engine(); });
    says(type, [&] { static_cast<void>(model.devices()); });
    says(type, [&] { model.train(); });
    says(type, [&] { model.synchronize(); });
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
    says("EventLog", [&] { log.text("a", "b"); });
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
