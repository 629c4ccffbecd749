// Tensors moved between devices: values, gradients, number of copies, and waits.
#include <chrono>
#include <optional>

#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/copy_count.h"
#include "lockstep/runtime/stream.h"
#include "lockstep/runtime/transfer.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/environment.h"
#include "lockstep/tests/fixtures/messages.h"
#include "lockstep/tests/fixtures/waiting.h"

using namespace lockstep;
using lockstep::test::Gate;
using lockstep::test::message_of;
using lockstep::test::serial;

namespace {

const Device first = Device::cpu(0), second = Device::cpu(1);

Tensor counted(Device device) { return Tensor::from(std::vector<float>{0, 1, 2, 3, 4, 5}, {2, 3}, device); }

/// Blocks the device's stream until the gate opens.
void hold(Device device, Gate& gate) {
    Stream::of(device).run("held", {}, [&gate](const ExecContext&) { gate.pass(); });
}

/// Whether the stream becomes idle within `limit`, which is much shorter than the timeout of a gate.
bool ends(Stream& stream, std::chrono::milliseconds limit = test::hang) {
    Event reached(stream.device());
    stream.record(reached);
    const auto deadline = std::chrono::steady_clock::now() + limit;
    while (!reached.done())
        if (std::chrono::steady_clock::now() > deadline) return false;
    return true;
}

}  // namespace

TEST_CASE("a tensor is sent with its values, and its gradient is returned, with one copy each") {
    const Tensor x = counted(first).requires_grad_();
    copy_count::reset();
    const Transfer transfer(x, second);
    const Tensor there = transfer.tensor();
    CHECK(there.device() == second);
    CHECK(there.requires_grad());
    there.backward(Tensor::full({2, 3}, 2, DType::f32, second));
    synchronize_all();
    const auto copies = copy_count::between_devices();
    CHECK(copies.at({first, second}).copies == 1);
    CHECK(copies.at({first, second}).bytes == 24);
    CHECK(copies.at({second, first}).copies == 1);
    CHECK(copies.at({second, first}).bytes == 24);
    CHECK(there.to_vector<float>() == std::vector<float>{0, 1, 2, 3, 4, 5});
    REQUIRE(x.grad().device() == first);
    CHECK(x.grad().to_vector<float>() == std::vector<float>(6, 2));
}

TEST_CASE("a tensor already on the device is not copied") {
    const Tensor x = counted(first);
    synchronize_all();
    copy_count::reset();
    CHECK(Transfer(x, first).tensor().impl() == x.impl());
    CHECK(x.to(first).impl() == x.impl());
    CHECK(copy_count::between_devices().empty());
}

TEST_CASE("a view is sent as its visible elements") {
    const Tensor x = counted(first).requires_grad_();
    const Tensor there = Transfer(x.transpose(0, 1), second).tensor();
    CHECK(there.shape() == Shape{3, 2});
    CHECK(there.to_vector<float>() == std::vector<float>{0, 3, 1, 4, 2, 5});
    there.backward(Tensor::from(std::vector<float>{1, 2, 3, 4, 5, 6}, {3, 2}, second));
    CHECK(x.grad().to_vector<float>() == std::vector<float>{1, 3, 5, 2, 4, 6});
}

TEST_CASE("a device waits for a transfer when the tensor is used, and no earlier") {
    if (serial()) return;
    Gate gate;
    const Tensor x = counted(first);
    synchronize_all();
    hold(first, gate);
    x.fill_(7);
    const Transfer transfer(x, second);
    CHECK(ends(Stream::of(second)));
    const Tensor there = transfer.tensor();
    CHECK(!ends(Stream::of(second), std::chrono::milliseconds(300)));
    gate.open();
    CHECK(there.to_vector<float>() == std::vector<float>(6, 7));
}

TEST_CASE("a sender waits for the copy before it writes again, and not for the receiver's work") {
    if (serial()) return;
    Gate gate;
    const Tensor x = counted(first);
    synchronize_all();
    const Transfer transfer(x, second);
    hold(second, gate);
    x.fill_(7);
    CHECK(ends(Stream::of(first)));
    gate.open();
    CHECK(transfer.tensor().to_vector<float>() == std::vector<float>{0, 1, 2, 3, 4, 5});
    CHECK(x.to_vector<float>() == std::vector<float>(6, 7));
}

TEST_CASE("memory of a transfer that is never received is not reused before the copy is done") {
    Gate gate;
    const Tensor x = Tensor::full({1000}, 3, DType::f32, first);
    synchronize_all();
    const bool held = !serial();
    if (held) hold(first, gate);
    std::optional<Transfer> unused(std::in_place, x, second);
    unused.reset();
    const Tensor next = Tensor::full({1000}, 5, DType::f32, second);  // reuses that memory
    gate.open();
    CHECK(next.to_vector<float>() == std::vector<float>(1000, 5));
}

TEST_CASE("a transfer to the host waits, and a transfer from the host lets the caller reuse its memory") {
    const Tensor x = counted(Device::host());
    const Transfer over(x, second);
    x.fill_(9);
    CHECK(over.tensor().to_vector<float>() == std::vector<float>{0, 1, 2, 3, 4, 5});
    CHECK(Transfer(over.tensor(), Device::host()).tensor().data<const float>()[5] == 5);
}

TEST_CASE("a device that does not exist is rejected") {
    CHECK(message_of<InvalidArgument>([] { Transfer(counted(first), Device::cpu(4000)); }) ==
          message_of<InvalidArgument>([] { Tensor::zeros({1}, DType::f32, Device::cpu(4000)); }));
    CHECK_FALSE(message_of<InvalidArgument>([] { Transfer(Tensor(), first); }).empty());
}
