#include "lockstep/ops/sgd.h"
#include "lockstep/parallel/checkpoint.h"

#include <cstdlib>
#include <cstring>

#include "lockstep/ops/layers.h"
#include "lockstep/parallel/data/safetensors.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/random.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/environment.h"
#include "lockstep/tests/fixtures/files.h"
#include "lockstep/tests/fixtures/messages.h"

using namespace lockstep;
using namespace lockstep::test;

namespace {

const bool eight_devices = lockstep::test::set_cpu_devices(8);

struct Net {
    Conv2d conv{1, 3, 3};
    BatchNorm2d norm{3};
    Linear fc{108, 4};
    LOCKSTEP_MEMBERS(conv, norm, fc)
    Tensor forward(const Tensor& x) {
        return log_softmax(fc(dropout(relu(norm(conv(x))), 0.3, norm.training).flatten(1)), 1);
    }
};

struct Tied {
    Linear a{4, 4}, b{4, 4};
    LOCKSTEP_MEMBERS(a, b)
    Tied() { tie(a.weight, b.weight); }
    Tensor forward(const Tensor& x) { return b(relu(a(x))); }
};

struct Batch {
    Tensor x, y;
};
Batch batch(int number) {
    std::vector<float> x(13 * 64);
    std::vector<std::int64_t> y;
    for (std::size_t i = 0; i < x.size(); ++i)
        x[i] = static_cast<float>((i * 37 + static_cast<std::size_t>(number) * 101) % 19) / 19 - 0.5f;
    for (int i = 0; i < 13; ++i) y.push_back((i + number) % 4);
    return {Tensor::from(x, {13, 1, 8, 8}), Tensor::from(y, {13})};
}

template <class Model>
void train(Model& model, SGD& sgd, int first, int last) {
    model.train();
    for (int i = first; i < last; ++i) {
        const Batch data = batch(i);
        model.step(sgd, data.x, data.y, nll_loss);
    }
}

std::vector<float> outputs(DataParallel<Net>& model) {
    const NoGrad no_grad;
    model.eval();
    return model.forward(batch(0).x).to_vector<float>();
}

/// Rewrites a checkpoint: `change` gets every tensor's name and bytes; clearing the name removes the tensor.
template <class Change>
void rewrite(const std::filesystem::path& path, Change change) {
    const SafetensorsFile file(path);
    std::vector<SafetensorsTensor> tensors;
    std::vector<std::vector<std::byte>> bytes;
    bytes.reserve(file.entries().size());
    for (const SafetensorsEntry& entry : file.entries()) {
        file.read(entry.name, bytes.emplace_back(entry.bytes));
        SafetensorsTensor tensor{entry.name, entry.dtype, entry.shape, bytes.back().data()};
        change(tensor, bytes.back());
        if (!tensor.name.empty()) tensors.push_back(tensor);
    }
    write_safetensors(path, tensors, file.metadata());
}

}  // namespace

TEST_CASE("a checkpoint has PyTorch's names, dtypes and shapes, and restores a model") {
    const TemporaryDirectory directory;
    const auto path = directory / "net.safetensors";
    manual_seed(1);
    DataParallel model(Net{}, {Device::cpu(0), Device::cpu(1), Device::cpu(2)});
    SGD sgd(model, {.lr = 0.1});
    train(model, sgd, 0, 3);
    save(model, path);

    const SafetensorsFile file(path);
    std::vector<std::string> names;
    for (const SafetensorsEntry& entry : file.entries())
        if (entry.dtype == DType::f32) names.push_back(entry.name);
    CHECK(names == std::vector<std::string>{"conv.weight", "conv.bias", "norm.weight", "norm.bias", "norm.running_mean",
                                            "norm.running_var", "fc.weight", "fc.bias"});
    CHECK(file.entries().size() == 9);
    const SafetensorsEntry* count = file.find("norm.num_batches_tracked");
    REQUIRE(count);
    CHECK(count->dtype == DType::i64);
    CHECK(count->shape.empty());
    std::int64_t tracked = 0;
    file.read(count->name, std::as_writable_bytes(std::span(&tracked, 1)));
    CHECK(tracked == 3);
    CHECK(file.find("fc.weight")->shape == std::vector<std::int64_t>{4, 108});
    std::vector<float> weight(4 * 108);
    file.read("fc.weight", std::as_writable_bytes(std::span(weight)));
    CHECK(weight == model->fc.weight->to_vector<float>());

    const auto wanted = outputs(model);
    manual_seed(2);
    DataParallel other(Net{}, {Device::cpu(2), Device::cpu(0)}, {.shards = 3});
    CHECK(outputs(other) != wanted);  // programs and replicas exist when the file is loaded
    load(other, path);
    const auto found = outputs(other);
    for (std::size_t i = 0; i < wanted.size(); ++i) CHECK(std::abs(found[i] - wanted[i]) < 1e-5f);
    other.engine().verify_replicas();
    save(other, directory / "again.safetensors");
    CHECK(get_bytes(directory / "again.safetensors") == get_bytes(path));

    Net plain;
    load(plain, path);
    save(plain, directory / "plain.safetensors");
    CHECK(get_bytes(directory / "plain.safetensors") == get_bytes(path));
}

TEST_CASE("prefixes and other floating dtypes are accepted") {
    const TemporaryDirectory directory;
    const auto path = directory / "net.safetensors";
    Net net;
    save(net, path);
    const auto wanted = net.fc.weight->to_vector<float>();
    std::vector<Half> halves;
    for (const float value : wanted) halves.emplace_back(value);
    rewrite(path, [&](SafetensorsTensor& tensor, auto&) {
        if (tensor.name == "fc.weight") {
            tensor.dtype = DType::f16;
            tensor.data = halves.data();
        }
        tensor.name = "module." + tensor.name;
    });
    Net other;
    load(other, path);
    const auto found = other.fc.weight->to_vector<float>();
    for (std::size_t i = 0; i < wanted.size(); ++i) CHECK(found[i] == static_cast<float>(halves[i]));
    CHECK(other.conv.weight->to_vector<float>() == net.conv.weight->to_vector<float>());
}

TEST_CASE("tied parameters are saved under each name, and one name is enough to load them") {
    const TemporaryDirectory directory;
    const auto path = directory / "tied.safetensors";
    Tied net;
    save(net, path);
    const SafetensorsFile file(path);
    REQUIRE(file.find("a.weight"));
    REQUIRE(file.find("b.weight"));
    rewrite(path, [](SafetensorsTensor& tensor, auto&) {
        if (tensor.name == "a.weight") tensor.name.clear();
    });
    Tied other;
    load(other, path);
    CHECK(other.a.weight->to_vector<float>() == net.b.weight->to_vector<float>());
    CHECK(other.b.weight->to_vector<float>() == net.b.weight->to_vector<float>());

    save(net, path);
    rewrite(path, [](SafetensorsTensor& tensor, std::vector<std::byte>& bytes) {
        if (tensor.name == "a.weight") bytes[3] ^= std::byte{1};
    });
    const auto before = other.a.weight->to_vector<float>();
    CHECK_THROWS_WITH(load(other, path), contains("tied to a.weight"));
    CHECK(other.a.weight->to_vector<float>() == before);
}

TEST_CASE("a mismatched file is rejected before anything changes") {
    const TemporaryDirectory directory;
    const auto path = directory / "net.safetensors";
    DataParallel model(Net{}, {Device::cpu(0), Device::cpu(1)});
    save(model, path);
    const std::string good = get_bytes(path);
    DataParallel other(Net{}, {Device::cpu(0)});
    const auto before = outputs(other);
    const auto refuse = [&](const std::string& part) {
        CHECK_THROWS_AS(load(other, path), DataError);
        CHECK_THROWS_WITH(load(other, path), contains(part));
        CHECK(outputs(other) == before);
        put_bytes(path, good);
    };
    rewrite(path, [](SafetensorsTensor& tensor, auto&) {
        if (tensor.name == "fc.bias") tensor.name.clear();
    });
    refuse("missing fc.bias");
    rewrite(path, [](SafetensorsTensor& tensor, auto&) {
        if (tensor.name == "fc.bias") tensor.name = "fc.offset";
    });
    refuse("missing fc.bias; unexpected fc.offset");
    rewrite(path, [](SafetensorsTensor& tensor, auto&) {
        if (tensor.name == "fc.weight") tensor.shape = {108, 4};
    });
    refuse("different fc.weight (f32 (4, 108) in the model, f32 (108, 4) in the file)");
    put_bytes(path, good.substr(0, good.size() - 1));
    refuse("net.safetensors");
    CHECK_THROWS_AS(load(other, directory / "nothing"), DataError);
    load(other, path);
    CHECK(outputs(other) != before);
}

TEST_CASE("a full disk leaves the old checkpoint unchanged") {
    const TemporaryDirectory directory;
    const auto path = directory / "net.safetensors";
    Net net, other;
    save(net, path);
    const std::string good = get_bytes(path);
    {
        const FileSizeLimit full(1000);
        CHECK_THROWS_AS(save(other, path), DataError);
    }
    CHECK(get_bytes(path) == good);
    CHECK(directory.file_count() == 1);
    CHECK_THROWS_AS(save(net, directory / "missing" / "net.safetensors"), InvalidArgument);
}

TEST_CASE("a resumed run is bit-identical to an uninterrupted one, on other devices and with the other reduction") {
    const TemporaryDirectory directory;
    const auto path = directory / "net.safetensors", end = directory / "end.safetensors",
               whole = directory / "whole.safetensors";
    const SgdOptions rates{.lr = 0.05, .momentum = 0.9, .weight_decay = 0.01};
    const Devices three{Device::cpu(0), Device::cpu(1), Device::cpu(2)}, two{Device::cpu(1), Device::cpu(0)};
    // Small buckets, so that devices own many slices.
    const DataParallelOptions by_slices{
        .shards = 6, .reduction = ReductionMode::slice_wise, .seed = 9, .bucket_bytes = 256};
    const DataParallelOptions by_root{.shards = 6, .seed = 9};
    manual_seed(5);
    const Net start;
    {
        DataParallel model(Net(start), three, by_root);
        SGD sgd(model, rates);
        train(model, sgd, 0, 8);
        save(model, whole);
    }
    for (const bool slices_first : {true, false}) {
        CAPTURE(slices_first);
        {
            DataParallel model(Net(start), three, slices_first ? by_slices : by_root);
            SGD sgd(model, rates);
            train(model, sgd, 0, 4);
            save(model, path);
            save_resume(model, sgd, {.epoch = 1, .batch = 4, .batch_size = 12, .steps = 4, .seed = 9}, path);
        }
        DataParallel model(Net{}, two, slices_first ? by_root : by_slices);
        SGD sgd(model, {.lr = 1});
        load(model, path);
        const RunState run = load_resume(model, sgd, path);
        CHECK(run.epoch == 1);
        CHECK(run.batch == 4);
        CHECK(run.batch_size == 12);
        CHECK(run.steps == 4);
        CHECK(run.seed == 9);
        CHECK(sgd.options().lr == rates.lr);
        CHECK(sgd.options().momentum == rates.momentum);
        CHECK(model.engine().steps_done() == 4);
        train(model, sgd, 4, 8);
        save(model, end);
        CHECK(get_bytes(end) == get_bytes(whole));
    }
}

TEST_CASE("a damaged state, or the state of other weights, is rejected") {
    const TemporaryDirectory directory;
    const auto path = directory / "net.safetensors";
    DataParallel model(Net{}, {Device::cpu(0), Device::cpu(1)});
    SGD sgd(model, {.lr = 0.1, .momentum = 0.5});
    train(model, sgd, 0, 2);
    save(model, path);
    save_resume(model, sgd, {.steps = 2}, path);
    const std::string state = get_bytes(resume_path(path));

    CHECK_THROWS_AS(load_resume(model, sgd, directory / "nothing"), DataError);
    train(model, sgd, 2, 3);
    save(model, path);
    CHECK_THROWS_WITH(load_resume(model, sgd, path), contains("does not belong to"));
    save_resume(model, sgd, {.steps = 3}, path);
    CHECK(load_resume(model, sgd, path).steps == 3);
    CHECK(get_bytes(resume_path(path)) != state);

    SGD grouped(model, {.lr = 0.1, .momentum = 0.5});
    grouped.add_group({"fc"}, {.lr = 1});
    CHECK_THROWS_WITH(load_resume(model, grouped, path), contains("1 parameter groups, the optimizer 2"));
    Net plain;
    SGD other(plain, {.lr = 0.1});
    CHECK_THROWS_AS(save_resume(model, other, {}, path), InvalidArgument);
}
