// Files written by PyTorch's torch.save (tests/pytorch/make_pth.py): every value counts up from 0.
#include "lockstep/parallel/data/pth.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>

#include "lockstep/ops/adam.h"
#include "lockstep/ops/layers.h"
#include "lockstep/parallel/checkpoint.h"
#include "lockstep/parallel/data/safetensors.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/runtime/error.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/files.h"
#include "lockstep/tests/fixtures/messages.h"

using namespace lockstep;
using namespace lockstep::test;

namespace {

using Names = std::vector<std::string>;
const std::filesystem::path files = PTH_FILES;

struct Net {
    Linear body{3, 4}, head{4, 2};
    LOCKSTEP_MEMBERS(body, head)
    Tensor forward(Tensor x) { return head(body(x)); }
};

struct Other {
    Linear body{3, 5}, tail{2, 2};
    LOCKSTEP_MEMBERS(body, tail)
};
struct OfShorts {
    Linear int16{3, 2, false};
    LOCKSTEP_MEMBERS(int16)
};

/// Model of the file that torch::save in C++ has written.
struct Normed {
    Linear body{3, 4}, head{4, 2};
    BatchNorm2d norm{2};
    LOCKSTEP_MEMBERS(body, head, norm)
};

template <class T>
std::vector<T> values_of(const PthFile& file, const std::string& name) {
    const PthEntry* const entry = file.find(name);
    REQUIRE(entry != nullptr);
    REQUIRE(entry->bytes % sizeof(T) == 0);
    std::vector<T> values(entry->bytes / sizeof(T));
    file.read(name, std::as_writable_bytes(std::span(values)));
    return values;
}

std::vector<float> counted(std::size_t count, float first = 0) {
    std::vector<float> values(count);
    std::iota(values.begin(), values.end(), first);
    return values;
}

/// The parameters of the model that make_pth.py saved, with `more` added to each.
void check_net(Net& net, float more = 0) {
    CHECK(net.body.weight->to_vector<float>() == counted(12, more));
    CHECK((*net.body.bias)->to_vector<float>() == counted(4, more));
    CHECK(net.head.weight->to_vector<float>() == counted(8, more));
    CHECK((*net.head.bias)->to_vector<float>() == counted(2, more));
}

}  // namespace

TEST_CASE("pth: all dtypes are read, unsupported ones are errors, and values that are not tensors are skipped") {
    const PthFile file(files / "dtypes.pth");
    const std::map<std::string, DType> dtypes = {
        {"float32", DType::f32}, {"float64", DType::f64}, {"float16", DType::f16}, {"bfloat16", DType::bf16},
        {"int32", DType::i32},   {"int64", DType::i64},   {"uint8", DType::u8},    {"bool", DType::boolean},
        {"scalar", DType::f32},  {"empty", DType::f32}};
    CHECK(file.entries().size() == dtypes.size());
    for (const auto& [name, dtype] : dtypes) {
        CAPTURE(name);
        const PthEntry* const entry = file.find(name);
        REQUIRE(entry != nullptr);
        CHECK(entry->dtype == dtype);
        if (name == "bool" || name == "scalar" || name == "empty") continue;
        CHECK(entry->shape == std::vector<std::int64_t>{2, 3});
        CHECK(entry->bytes == 6 * size_of(dtype));
        visit_dtype(dtype, [&](auto element) {
            using T = decltype(element);
            const std::vector<std::uint8_t> bytes = values_of<std::uint8_t>(file, name);
            for (int i = 0; i < 6; ++i) {
                T value{};
                std::memcpy(&value, bytes.data() + static_cast<std::size_t>(i) * sizeof(T), sizeof(T));
                CHECK(static_cast<float>(value) == static_cast<float>(i));
            }
        });
    }
    CHECK(values_of<std::uint8_t>(file, "bool") == std::vector<std::uint8_t>{1, 0, 1});
    CHECK(file.find("scalar")->shape.empty());
    CHECK(values_of<float>(file, "scalar") == std::vector<float>{1.5f});
    CHECK(file.find("empty")->shape == std::vector<std::int64_t>{0, 4});
    CHECK(values_of<float>(file, "empty").empty());
    CHECK(file.unsupported() == std::map<std::string, std::string>{{"int16", "int16"},
                                                                   {"int8", "int8"},
                                                                   {"uint16", "uint16"},
                                                                   {"complex64", "complex64"},
                                                                   {"float8_e4m3fn", "float8_e4m3fn"},
                                                                   {"long", "9 dimensions"}});
    CHECK(file.find("mask_values") == nullptr);
    CHECK(file.value_names() == Names{"mask_values"});
    CHECK(file.value("mask_values") == PthValue{PthValue::List{{std::int64_t{0}}, {std::int64_t{255}}}});
    CHECK_FALSE(file.value("absent").has_value());
    CHECK_FALSE(file.value("float32").has_value());

    std::array<std::byte, 4> four{};
    CHECK_THROWS_AS(file.read("absent", four), InvalidArgument);
    CHECK_THROWS_WITH(file.read("float32", four), contains("has 24 bytes, but 4 were passed"));
}

TEST_CASE("pth: strides, offsets and storages that tensors share") {
    const PthFile file(files / "strides.pth");
    CHECK(file.entries().size() == 10);
    const auto shape = [&](const std::string& name) { return file.find(name)->shape; };
    CHECK(shape("transposed") == std::vector<std::int64_t>{3, 2});
    CHECK(values_of<float>(file, "transposed") == std::vector<float>{0, 3, 1, 4, 2, 5});
    CHECK(values_of<float>(file, "every third") == std::vector<float>{2, 5, 8});
    CHECK(shape("expanded") == std::vector<std::int64_t>{3, 4});
    CHECK(values_of<float>(file, "expanded") == std::vector<float>{0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2});
    CHECK(shape("channels last") == std::vector<std::int64_t>{1, 2, 3, 4});
    CHECK(values_of<float>(file, "channels last") == counted(24));
    CHECK(values_of<float>(file, "second half") == counted(4, 4));
    CHECK(values_of<float>(file, "first half") == counted(4));
    CHECK(values_of<float>(file, "tied") == counted(4));
    CHECK(values_of<float>(file, "tied too") == counted(4));
    CHECK(values_of<std::uint8_t>(file, "bools") == std::vector<std::uint8_t>{1, 0, 0, 0});
    CHECK(values_of<std::int64_t>(file, "longs") == std::vector<std::int64_t>{1, 4, 7});
}

TEST_CASE("pth: a model loads its weights by name from any wrapper, protocol and dictionary") {
    for (const std::string name : {"net", "protocol4", "module", "parameters", "checkpoint", "averaged"}) {
        CAPTURE(name);
        Net net;
        const LoadResult result = load(net, files / (name + ".pth"));
        CHECK((result.missing.empty() && result.unexpected.empty()));
        check_net(net);
    }
    Net net;
    load(net, files / "averaged.pth", {.entry = "ema"});
    check_net(net, 0.5f);
    load(net, files / "several.pth", {.entry = "generator"});
    check_net(net);
    load(net, files / "several.pth", {.entry = "critic"});
    check_net(net, 0.5f);
}

TEST_CASE("pth: values next to the tensors or their dictionary can be read by name") {
    const PthFile file(files / "checkpoint.pth");
    CHECK(file.value_names() == Names{"epoch", "model_state_dict", "optimizer_state_dict", "scheduler_state_dict",
                                      "loss", "best", "seed", "history", "size", "dtype"});
    CHECK(file.value("epoch") == PthValue{std::int64_t{3}});
    CHECK(file.value("loss") == PthValue{0.25});
    CHECK(file.value("best") == PthValue{PthValue::Absent{}});
    CHECK(file.value("seed") == PthValue{PthValue::Unread{"int of more than 64 bits"}});
    CHECK(file.value("history") == PthValue{PthValue::List{{0.5}, {0.25}, {std::int64_t{-1}}, {std::int64_t{70000}}}});
    CHECK(file.value("size") == PthValue{PthValue::List{{std::int64_t{2}}, {std::int64_t{3}}}});
    CHECK(file.value("dtype") == PthValue{PthValue::Unread{"torch.float32"}});
    const auto schedule = file.value("scheduler_state_dict");
    REQUIRE((schedule && schedule->as<PthValue::Dictionary>()));
    const auto& fields = *schedule->as<PthValue::Dictionary>();
    const auto field = [&](const std::string& name) {
        const auto found =
            std::find_if(fields.begin(), fields.end(), [&](const auto& f) { return f.first == PthValue{name}; });
        REQUIRE(found != fields.end());
        return found->second;
    };
    CHECK(field("T_max") == PthValue{std::int64_t{5}});
    CHECK(field("_get_lr_called_within_step") == PthValue{false});
    CHECK(field("eta_min").as<bool>() == nullptr);

    Net net;
    load(net, files / "namespace.pth");
    check_net(net);
    CHECK(PthFile(files / "namespace.pth").value("args") == PthValue{PthValue::Unread{"argparse.Namespace"}});
}

TEST_CASE("pth: weights load with any other contents in the file") {
    for (const std::string name : {"beside2.pth", "beside5.pth"}) {
        CAPTURE(name);
        Net net;
        load(net, files / name);  // two of its tensors have attributes
        check_net(net);
        const PthFile file(files / name);
        const auto type = [&](const std::string& of) {
            const auto value = file.value(of);
            REQUIRE(value.has_value());
            const auto* unread = value->as<PthValue::Unread>();
            return unread ? unread->type : std::string();
        };
        CHECK(type("device") == "torch.device");
        CHECK(type("namespace") == "argparse.Namespace");
        CHECK(type("when") == "datetime.datetime");
        CHECK(type("path") == "pathlib.PosixPath");
        CHECK(type("enum") == "__main__.Colour");
        CHECK(type("function") == "math.sqrt");
        CHECK(type("class") == "__main__.Net");
        CHECK(type("large") == "int of more than 64 bits");
        CHECK(file.value("numpy scalar").has_value());
        CHECK(file.value("array").has_value());
        CHECK(file.value("bytes").has_value());
        CHECK(file.value("none") == PthValue{PthValue::Absent{}});
        CHECK(file.value("true") == PthValue{true});
        CHECK(file.value("set") == PthValue{PthValue::List{{std::int64_t{1}}, {std::int64_t{2}}}});
        CHECK(file.value("frozenset") == PthValue{PthValue::List{{std::int64_t{3}}}});
        CHECK(file.value("counter") == PthValue{PthValue::Dictionary{{{std::string("a")}, {std::int64_t{2}}},
                                                                     {{std::string("b")}, {std::int64_t{1}}}}});
        CHECK(file.value("default") ==
              PthValue{PthValue::Dictionary{{{std::string("k")}, {PthValue::List{{std::int64_t{1}}}}}}});
        CHECK(file.value("nested") ==
              PthValue{PthValue::List{{PthValue::List{
                  {std::int64_t{1}}, {PthValue::Dictionary{{{std::string("x")}, {PthValue::List{{0.5}}}}}}}}}});
    }
}

TEST_CASE("pth: archives of TorchScript and of torch::save in C++ have the names of their members") {
    Normed normed;
    load(normed, files / "cpp_module.pt");
    CHECK(normed.body.weight->to_vector<float>() == counted(12));
    CHECK((*normed.head.bias)->to_vector<float>() == counted(2));
    CHECK((*normed.norm.weight)->to_vector<float>() == counted(2));

    const PthFile tensors(files / "cpp_tensors.pt");
    CHECK(values_of<float>(tensors, "0") == counted(3));
    CHECK(values_of<float>(tensors, "1") == std::vector<float>{1, 1});

    const PthFile script(files / "script.pt");
    CHECK(script.find("0.weight")->shape == std::vector<std::int64_t>{4, 3});
    CHECK(script.find("1.running_var")->shape == std::vector<std::int64_t>{4});
    CHECK(values_of<float>(script, "1.running_var") == std::vector<float>(4, 1));
    CHECK(values_of<std::int64_t>(script, "1.num_batches_tracked") == std::vector<std::int64_t>{0});
    CHECK_THROWS_AS(PthFile(files / "script.pt", "ema"), InvalidArgument);
}

TEST_CASE("pth: a file with several dictionaries is rejected until one is selected") {
    Net net;
    const auto before = net.body.weight->to_vector<float>();
    CHECK_THROWS_AS(load(net, files / "several.pth"), DataError);
    CHECK_THROWS_WITH(load(net, files / "several.pth"), contains("several of its dictionaries hold tensors") &&
                                                            contains("'generator', 'critic'") &&
                                                            contains("LoadOptions::entry"));
    CHECK_THROWS_AS(load(net, files / "averaged.pth", {.entry = "best"}), InvalidArgument);
    CHECK_THROWS_WITH(load(net, files / "checkpoint.pth", {.entry = "modle"}),
                      contains("no dictionary of tensors 'modle'; it has 'epoch', 'model_state_dict', "));
    CHECK(net.body.weight->to_vector<float>() == before);

    const TemporaryDirectory directory;
    save(net, directory / "net");
    CHECK_THROWS_AS(load(net, directory / "net", {.entry = "model"}), InvalidArgument);
    CHECK_THROWS_WITH(load(net, directory / "net", {.entry = "model"}),
                      contains("expected an empty LoadOptions::entry"));
}

TEST_CASE("pth: missing and unexpected tensors and other shapes are reported as for a safetensors file") {
    Other other;
    CHECK_THROWS_WITH(
        load(other, files / "net.pth"),
        contains("net.pth does not fit the model: missing tail.weight, tail.bias; unexpected head.weight, "
                 "head.bias; different body.weight (f32 (5, 3) in the model, f32 (4, 3) in the file)"));
    OfShorts shorts;
    const auto rename = [](const std::string& name) { return name == "int16" ? name + ".weight" : name; };
    CHECK_THROWS_WITH(load(shorts, files / "dtypes.pth", {.strict = false, .rename = rename}),
                      contains("int16.weight (f32 in the model; unsupported dtype int16 in the file)"));
}

TEST_CASE("pth: weights start a new run, whose checkpoint is a safetensors file") {
    const TemporaryDirectory directory;
    std::filesystem::copy_file(files / "checkpoint.pth", directory / "run.pth");
    DataParallel model(Net{}, {Device::cpu(0)});
    Adam adam(model);
    CHECK_FALSE(load_checkpoint(model, adam, directory / "run.pth").has_value());
    check_net(model.module());
    save_checkpoint(model, adam, RunState{.epoch = 1}, directory / "run.pth");
    CHECK(SafetensorsFile(directory / "run.pth").entries().size() == 4);
    const auto run = load_checkpoint(model, adam, directory / "run.pth");
    REQUIRE(run.has_value());
    CHECK(run->epoch == 1);
    check_net(model.module());
}

TEST_CASE("pth: a file that is not an archive of tensors is rejected with advice") {
    Net net;
    for (const auto& open : {std::function<void()>([&] { load(net, files / "legacy.pth"); }),
                             std::function<void()>([&] { const PthFile file(files / "legacy.pth"); })}) {
        CHECK_THROWS_AS(open(), DataError);
        CHECK_THROWS_WITH(open(), contains("legacy.pth: offset 0: this is a file of torch.save of PyTorch before 1.6"));
    }
    CHECK_THROWS_AS(SafetensorsFile(files / "net.pth"), DataError);
    CHECK_THROWS_WITH(SafetensorsFile(files / "net.pth"), contains("a file of torch.save, not a safetensors file"));
    const TemporaryDirectory directory;
    save(net, directory / "net");
    CHECK_THROWS_WITH(PthFile(directory / "net"), contains("offset 0: the file does not begin like an archive"));
    CHECK_THROWS_AS(PthFile(directory / "absent"), DataError);
}
