// Memory of other libraries as tensors: from_blob, and DLPack in both directions.
#include "lockstep/runtime/external_memory.h"

#include <dlpack/dlpack.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/layers.h"
#include "lockstep/ops/sgd.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/memory.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/environment.h"
#include "lockstep/tests/fixtures/messages.h"
#include "lockstep/tests/fixtures/waiting.h"

using namespace lockstep;
using lockstep::test::contains;
using lockstep::test::refusal_of;

namespace {

std::vector<float> counted(std::size_t count, float first = 0) {
    std::vector<float> values(count);
    std::iota(values.begin(), values.end(), first);
    return values;
}

struct Net {
    Linear fc{3, 2};
    LOCKSTEP_MEMBERS(fc)
    Tensor forward(const Tensor& x) const { return fc(x); }
};

/// A forward that hands a tensor of a trace to others.
struct Leaks {
    Linear fc{2, 2};
    LOCKSTEP_MEMBERS(fc)
    Tensor forward(const Tensor& x) const {
        to_dlpack(fc(x).detach());
        return x;
    }
};

/// Calls of a deleter.
struct Deleted {
    int times = 0;
    void* memory = nullptr;
    std::function<void(void*)> deleter() {
        return [this](void* freed) {
            ++times;
            memory = freed;
        };
    }
};

}  // namespace

TEST_CASE("from_blob: the tensor and its owner see each other's writes") {
    std::vector<float> values = counted(6);
    const Tensor tensor = from_blob(values.data(), {2, 3});
    CHECK(tensor.dtype() == DType::f32);
    CHECK(tensor.data<const float>() == values.data());
    CHECK(tensor.to_vector<float>() == counted(6));
    values[5] = 50;
    CHECK(tensor.select(1, 2).to_vector<float>() == std::vector<float>{2, 50});
    tensor.slice(0, 0, 1).fill_(-1);
    CHECK(values == std::vector<float>{-1, -1, -1, 3, 4, 50});
    CHECK((tensor + tensor).to_vector<float>() == std::vector<float>{-2, -2, -2, 6, 8, 100});
    CHECK(values[3] == 3);
}

TEST_CASE("from_blob: every dtype, scalars and empty tensors") {
    std::array<double, 2> wide{0.1, -0.0};
    CHECK(from_blob(wide.data(), {2}).to_vector<double>() == std::vector<double>{0.1, -0.0});
    std::array<std::int64_t, 1> large{std::numeric_limits<std::int64_t>::min()};
    CHECK(from_blob(large.data(), {}).to_vector<std::int64_t>()[0] == std::numeric_limits<std::int64_t>::min());
    std::array<std::int32_t, 2> small{-7, 7};
    CHECK(from_blob(small.data(), {2, 1}).to(DType::f32).to_vector<float>() == std::vector<float>{-7, 7});
    std::array<std::uint8_t, 3> bytes{0, 1, 255};
    CHECK(from_blob(bytes.data(), {3}).to(DType::f32).to_vector<float>() == std::vector<float>{0, 1, 255});
    std::array<bool, 2> flags{true, false};
    CHECK(from_blob(flags.data(), {2}).to_vector<bool>() == std::vector<bool>{true, false});
    std::array<std::uint16_t, 2> half{0x3c00, 0xc000}, brain{0x3f80, 0xc000};  // 1 and -2
    CHECK(from_blob(half.data(), DType::f16, {2}).to(DType::f32).to_vector<float>() == std::vector<float>{1, -2});
    CHECK(from_blob(brain.data(), DType::bf16, {2}).to(DType::f32).to_vector<float>() == std::vector<float>{1, -2});
    CHECK(from_blob(nullptr, DType::f32, {4, 0}).numel() == 0);
    CHECK(from_blob(nullptr, DType::f32, {0}).to_vector<float>().empty());
}

TEST_CASE("from_blob: strides, and addresses that are aligned to an element only") {
    std::vector<float> values = counted(300);
    const Tensor columns = from_blob(values.data() + 1, {3, 4}, {.strides = Shape{1, 3}});
    for (int i = 0; i < 3; ++i)
        for (int k = 0; k < 4; ++k) CHECK(columns.select(0, i).select(0, k).item() == 1 + i + 3 * k);
    const Tensor repeated = from_blob(values.data() + 7, {2, 3}, {.strides = Shape{0, 2}});
    CHECK(repeated.to_vector<float>() == std::vector<float>{7, 9, 11, 7, 9, 11});
    CHECK_THAT(refusal_of<InvalidArgument>([&] { repeated.copy_(Tensor::zeros({2, 3})); }), contains("share memory"));
    for (const std::int64_t count : {1, 3, 17, 70, 200})
        for (std::size_t first = 0; first < 70; first += 3) {
            const Tensor shared = from_blob(values.data() + first, {count});
            const Tensor copied = shared.clone();
            REQUIRE(shared.to_vector<float>() == counted(static_cast<std::size_t>(count), static_cast<float>(first)));
            REQUIRE(relu(shared * 2 - 5).to_vector<float>() == relu(copied * 2 - 5).to_vector<float>());
            REQUIRE(sum(shared).item() == sum(copied).item());
        }
}

TEST_CASE("from_blob: the deleter is called once, after the last tensor that shares the memory") {
    std::vector<float> values = counted(4);
    Deleted deleted;
    {
        Tensor view, loss;
        {
            const Tensor tensor = from_blob(values.data(), {4}, {.deleter = deleted.deleter()});
            view = tensor.slice(0, 1, 3);
            const Tensor weight = Tensor::ones({4}).requires_grad_();
            loss = sum(weight * tensor);  // the graph holds the tensor
        }
        CHECK(deleted.times == 0);
        view = Tensor();
        CHECK(deleted.times == 0);
        loss.backward();
    }
    CHECK(deleted.times == 1);
    CHECK(deleted.memory == values.data());
    Deleted of_none;
    static_cast<void>(from_blob(nullptr, DType::f32, {0}, {.deleter = of_none.deleter()}));
    CHECK(of_none.times == 1);
}

TEST_CASE("a deleter that throws is a warning, in whatever thread the last tensor is destroyed") {
    const lockstep::test::Warnings warnings;
    std::vector<float> values = counted(4);
    const auto fails = [](void*) { throw std::runtime_error("no such frame"); };
    for (const Device device : {Device::host(), Device::cpu(0)}) {
        Tensor tensor = from_blob(values.data(), {4}, {.device = device, .deleter = fails});
        CHECK((tensor * 2).to_vector<float>() == std::vector<float>{0, 2, 4, 6});
        std::thread([&] { tensor = Tensor(); }).join();
    }
    static_cast<void>(from_blob(values.data(), {4}, {.deleter = [](void*) { throw 5; }}));
    std::int64_t shape = 4;
    DLManagedTensor capsule{};
    capsule.dl_tensor = {values.data(), {kDLCPU, 0}, 1, {kDLFloat, 32, 1}, &shape, nullptr, 0};
    capsule.deleter = [](DLManagedTensor*) { throw std::runtime_error("no such array"); };
    static_cast<void>(from_dlpack(&capsule));
    const std::string threw = "the deleter of a tensor's memory threw";
    CHECK(warnings.texts() == std::vector<std::string>{threw + ": no such frame", threw + ": no such frame",
                                                       threw + " an exception of another type",
                                                       threw + ": no such array"});
}

TEST_CASE("from_blob: memory is deleted only after the device has finished with it") {
    if (lockstep::test::serial()) return;
    const Device device = Device::cpu(0);
    std::vector<float> values = counted(4);
    CHECK((Tensor::ones({1}, DType::f32, device) * 2).item() == 2);  // the first operation of a device waits
    std::atomic<bool> deleted = false;
    lockstep::test::Gate gate;
    Tensor shared = from_blob(values.data(), {4}, {.device = device, .deleter = [&](void*) { deleted = true; }});
    Stream::of(device).run("wait", {}, [&](const ExecContext&) { gate.pass(); });
    const Tensor twice = shared * 2;
    std::thread owner([&] { shared = Tensor(); });
    CHECK_FALSE(deleted);
    gate.open();
    owner.join();
    CHECK(deleted);
    CHECK(twice.to_vector<float>() == std::vector<float>{0, 2, 4, 6});
    CHECK(twice.device() == device);
}

TEST_CASE("from_blob: bad arguments are refused, and the deleter is not called") {
    std::vector<float> values = counted(8);
    Deleted deleted;
    const auto refused = [&](void* data, const Shape& shape, BlobOptions options) {
        options.deleter = deleted.deleter();
        return refusal_of<InvalidArgument>([&] { from_blob(data, DType::f32, shape, options); });
    };
    CHECK_THAT(refused(nullptr, {2}, {}), contains("from_blob: the pointer is null"));
    CHECK_THAT(refused(values.data(), {2, -1}, {}), contains("negative size"));
    CHECK_THAT(refused(values.data(), {2, 2}, {.strides = Shape{2}}), contains("one stride per dimension"));
    CHECK_THAT(refused(values.data(), {2, 2}, {.strides = Shape{2, -1}}), contains("strides (2, -1) are negative"));
    CHECK_THAT(refused(values.data(), {std::int64_t{1} << 40, std::int64_t{1} << 40}, {}),
               contains("too many elements"));
    CHECK_THAT(refused(values.data(), {3}, {.strides = Shape{std::int64_t{1} << 62}}), contains("reach too far"));
    CHECK_THAT(refused(reinterpret_cast<char*>(values.data()) + 2, {2}, {}), contains("misaligned"));
    CHECK_THAT(refused(values.data(), {2}, {.device = Device::cpu(63)}), contains("cpu:63"));
    CHECK(deleted.times == 0);
}

TEST_CASE("from_blob: a model trains on shared rows as on copied ones") {
    const Net start;
    std::vector<float> rows = counted(12), targets = counted(8, -3);
    const auto train = [&](bool shared) {
        DataParallel model(Net(start), Devices({Device::cpu(0), Device::cpu(1)}));
        SGD sgd(model, {.lr = 0.01});
        for (int step = 0; step < 3; ++step) {
            const Tensor x = shared ? from_blob(rows.data(), {4, 3}) : Tensor::from(rows, {4, 3});
            const Tensor y = shared ? from_blob(targets.data(), {4, 2}) : Tensor::from(targets, {4, 2});
            model.step(sgd, x, y, mse_loss);
        }
        model.synchronize();
        return model->fc.weight->to_vector<float>();
    };
    const std::vector<float> expected = train(false);
    CHECK(train(true) == expected);
    CHECK(expected != start.fc.weight->to_vector<float>());
}

// ---- DLPack -----------------------------------------------------------------------------------------------------

namespace {

/// A DLPack tensor of another library over `values`.
struct Foreign {
    std::vector<float> values = counted(24);
    std::vector<std::int64_t> shape{2, 3}, strides{3, 1};
    int deleted = 0;
    DLManagedTensor managed{};

    Foreign() {
        managed.dl_tensor.data = values.data();
        managed.dl_tensor.device = {kDLCPU, 0};
        managed.dl_tensor.ndim = 2;
        managed.dl_tensor.dtype = {kDLFloat, 32, 1};
        managed.dl_tensor.shape = shape.data();
        managed.dl_tensor.strides = strides.data();
        managed.manager_ctx = this;
        managed.deleter = [](DLManagedTensor* self) { ++static_cast<Foreign*>(self->manager_ctx)->deleted; };
    }
    std::string refusal() {
        return refusal_of<InvalidArgument>([&] { from_dlpack(&managed); });
    }
};

}  // namespace

TEST_CASE("from_dlpack: shares the memory, and calls the deleter once") {
    Foreign foreign;
    {
        const Tensor tensor = from_dlpack(&foreign.managed);
        CHECK(tensor.shape() == Shape{2, 3});
        CHECK(tensor.device() == Device::host());
        CHECK(tensor.to_vector<float>() == counted(6));
        tensor.select(0, 1).fill_(9);
        CHECK(foreign.values[4] == 9);
        CHECK(foreign.values[6] == 6);
        CHECK(foreign.deleted == 0);
    }
    CHECK(foreign.deleted == 1);
}

TEST_CASE("from_dlpack: strides, offsets, scalars, empty tensors, pinned memory, no deleter") {
    Foreign foreign;
    foreign.managed.dl_tensor.strides = nullptr;
    foreign.managed.dl_tensor.byte_offset = 4;
    foreign.managed.dl_tensor.device = {kDLCUDAHost, 0};
    CHECK(from_dlpack(&foreign.managed).to_vector<float>() == counted(6, 1));
    std::vector<std::int64_t> transposed{1, 2};
    foreign.managed.dl_tensor.strides = transposed.data();
    CHECK(from_dlpack(&foreign.managed).to_vector<float>() == std::vector<float>{1, 3, 5, 2, 4, 6});
    foreign.managed.dl_tensor.ndim = 0;
    foreign.managed.dl_tensor.shape = nullptr;
    CHECK(from_dlpack(&foreign.managed).item() == 1);
    CHECK(foreign.deleted == 3);
    std::vector<std::int64_t> none{3, 0};
    foreign.managed.dl_tensor = {nullptr, {kDLCPU, 0}, 2, {kDLFloat, 64, 1}, none.data(), nullptr, 0};
    const Tensor empty = from_dlpack(&foreign.managed);
    CHECK(empty.shape() == Shape{3, 0});
    CHECK(empty.dtype() == DType::f64);
    Foreign permanent;
    permanent.managed.deleter = nullptr;
    CHECK(from_dlpack(&permanent.managed).numel() == 6);
}

TEST_CASE("from_dlpack: what Lockstep does not have is refused, and still belongs to the caller") {
    CHECK_THAT(refusal_of<InvalidArgument>([] { from_dlpack(nullptr); }), contains("null"));
    Foreign foreign;
    DLTensor& given = foreign.managed.dl_tensor;
    const DLTensor good = given;
    const auto with = [&](auto change) {
        given = good;
        change();
        return foreign.refusal();
    };
    CHECK_THAT(with([&] { given.dtype = {kDLInt, 8, 1}; }), contains("code 0, 8 bits and 1 lanes"));
    CHECK_THAT(with([&] { given.dtype = {kDLFloat, 32, 4}; }), contains("4 lanes"));
    CHECK_THAT(with([&] { given.dtype = {kDLComplex, 64, 1}; }), contains("code 5"));
    CHECK_THAT(with([&] { given.dtype = {kDLFloat, 8, 1}; }), contains("8 bits"));
    CHECK_THAT(with([&] { given.device = {kDLROCM, 0}; }), contains("device of type 10"));
    CHECK_THAT(with([&] { given.device = {kDLCUDA, 99}; }), contains("CUDA device 99"));
    CHECK_THAT(with([&] { given.ndim = 9; }), contains("9 dimensions"));
    CHECK_THAT(with([&] { given.ndim = -1; }), contains("-1 dimensions"));
    CHECK_THAT(with([&] { given.shape = nullptr; }), contains("shape is null"));
    CHECK_THAT(with([&] { given.data = nullptr; }), contains("pointer is null"));
    CHECK_THAT(with([&] { given.byte_offset = 2; }), contains("misaligned"));
    CHECK_THAT(with([&] { given.byte_offset = ~std::uint64_t{0}; }), contains("byte offset"));
    CHECK_THAT(with([&] { foreign.strides = {-3, 1}; }), contains("strides (-3, 1) are negative"));
    foreign.strides = {3, 1};
    CHECK_THAT(with([&] { foreign.shape = {std::int64_t{1} << 32, std::int64_t{1} << 32}; }), contains("too many"));
    CHECK(foreign.deleted == 0);
}

TEST_CASE("to_dlpack: describes the tensor's memory and keeps it alive") {
    std::vector<float> values = counted(12);
    Deleted deleted;
    DLManagedTensor* exported = nullptr;
    {
        const Tensor tensor = from_blob(values.data(), {3, 4}, {.deleter = deleted.deleter()});
        exported = to_dlpack(tensor.slice(0, 1, 3).transpose(0, 1));
    }
    CHECK(deleted.times == 0);
    const DLTensor& given = exported->dl_tensor;
    CHECK(static_cast<float*>(given.data) + given.byte_offset / sizeof(float) == values.data() + 4);
    CHECK(given.device.device_type == kDLCPU);
    CHECK(given.device.device_id == 0);
    CHECK((given.dtype.code == kDLFloat && given.dtype.bits == 32 && given.dtype.lanes == 1));
    REQUIRE(given.ndim == 2);
    CHECK((given.shape[0] == 4 && given.shape[1] == 2));
    CHECK((given.strides[0] == 1 && given.strides[1] == 4));
    exported->deleter(exported);
    CHECK(deleted.times == 1);
}

TEST_CASE("to_dlpack and from_dlpack: every dtype makes the round trip without a copy") {
    for (const DType dtype :
         {DType::f32, DType::f64, DType::f16, DType::bf16, DType::i32, DType::i64, DType::u8, DType::boolean}) {
        INFO(name_of(dtype));
        const Tensor tensor = Tensor::from(std::vector<float>{0, 1, 1, 0, 1, 0}, {2, 3}).to(dtype);
        const Tensor back = from_dlpack(to_dlpack(tensor));
        CHECK(back.dtype() == dtype);
        CHECK(back.shape() == tensor.shape());
        back.select(0, 0).fill_(1);
        CHECK(tensor.to(DType::f32).to_vector<float>() == std::vector<float>{1, 1, 1, 0, 1, 0});
    }
    const std::size_t before = memory_stats(Device::host()).current;
    static_cast<void>(from_dlpack(to_dlpack(Tensor::zeros({1000}))));
    CHECK(memory_stats(Device::host()).current == before);
}

TEST_CASE("to_dlpack: waits for the values of a device, and reports its errors") {
    const Device device = Device::cpu(1);
    const Tensor computed = Tensor::full({1000}, 3, DType::f32, device) * 2;
    DLManagedTensor* exported = to_dlpack(computed);
    const auto* values = static_cast<const float*>(exported->dl_tensor.data);
    CHECK(std::all_of(values, values + 1000, [](float value) { return value == 6; }));
    exported->deleter(exported);

    const Tensor rows = Tensor::zeros({2, 3}, DType::f32, device);
    const Tensor wrong = index_select(rows, 0, Tensor::full({1}, 5, DType::i64, device));
    CHECK_THAT(refusal_of<InvalidArgument>([&] { to_dlpack(wrong); }), contains("index_select"));
}

TEST_CASE("to_dlpack: tensors without a value for others are refused") {
    CHECK_THAT(refusal_of<InvalidArgument>([] { to_dlpack(Tensor()); }), contains("undefined"));
    const Tensor weight = Tensor::ones({2}).requires_grad_();
    CHECK_THAT(refusal_of<InvalidArgument>([&] { to_dlpack(weight); }), contains("detach()"));
    CHECK_THAT(refusal_of<InvalidArgument>([&] { to_dlpack(weight * 2); }), contains("detach()"));
    DLManagedTensor* exported = to_dlpack(weight.detach());
    CHECK(exported->dl_tensor.ndim == 1);
    exported->deleter(exported);
    DataParallel model(Leaks{}, Devices({Device::cpu(0)}));
    CHECK_THAT(refusal_of<InvalidArgument>([&] { model(Tensor::ones({2, 2})); }), contains("inside forward"));
}
