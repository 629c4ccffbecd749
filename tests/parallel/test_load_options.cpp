// Loading of files that need options: parts, other names, other types, other formats.
#include <array>
#include <cstring>
#include <map>

#include "lockstep/ops/layers.h"
#include "lockstep/parallel/checkpoint.h"
#include "lockstep/parallel/data/safetensors.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/random.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/files.h"
#include "lockstep/tests/fixtures/messages.h"

using namespace lockstep;
using namespace lockstep::test;

namespace {

using Names = std::vector<std::string>;

struct Net {
    Linear body{3, 4}, head{4, 2};
    LOCKSTEP_MEMBERS(body, head)
};

struct Wide {
    Linear body{3, 5};
    LOCKSTEP_MEMBERS(body)
};
struct Inner {
    Linear module{2, 2};
    LOCKSTEP_MEMBERS(module)
};
struct Tiny {
    Linear a{1, 1, false};
    LOCKSTEP_MEMBERS(a)
};

struct Normed {
    BatchNorm2d norm{2};
    LOCKSTEP_MEMBERS(norm)
};

std::vector<float> values(const Linear& layer) {
    std::vector<float> all = layer.weight->to_vector<float>();
    for (const float value : (*layer.bias)->to_vector<float>()) all.push_back(value);
    return all;
}

using Renamed = std::map<std::string, std::string>;

/// A saved model with names changed according to `renamed`; an empty name removes the tensor.
struct File {
    TemporaryDirectory directory;
    std::filesystem::path path = directory / "net";
    Net net;

    File(std::initializer_list<std::pair<const std::string, std::string>> pairs) : File(Renamed(pairs)) {}
    explicit File(const Renamed& renamed = {}) {
        save(net, path);
        const SafetensorsFile file(path);
        std::vector<std::vector<std::byte>> bytes;
        bytes.reserve(file.entries().size());
        std::vector<SafetensorsTensor> tensors;
        for (const SafetensorsEntry& entry : file.entries()) {
            file.read(entry.name, bytes.emplace_back(entry.bytes));
            const auto other = renamed.find(entry.name);
            const std::string name = other == renamed.end() ? entry.name : other->second;
            if (!name.empty()) tensors.push_back({name, entry.dtype, entry.shape, bytes.back().data()});
        }
        write_safetensors(path, tensors);
    }
};

std::string file_of(const std::string& header, const std::string& data) {
    std::string bytes;
    for (int i = 0; i < 8; ++i) bytes += static_cast<char>(header.size() >> (8 * i) & 0xff);
    return bytes + header + data;
}

std::string described(const std::string& name, const std::string& dtype, const std::string& shape, std::size_t begin,
                      std::size_t end) {
    return "\"" + name + R"(":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":[)" +
           std::to_string(begin) + "," + std::to_string(end) + "]}";
}

}  // namespace

TEST_CASE("without strict, missing tensors are unchanged, extra ones are reported, and a wrong shape is an error") {
    const File file{{"head.weight", ""}, {"head.bias", "classifier.bias"}};
    Net other;
    const auto head = values(other.head);
    CHECK_THROWS_WITH(load(other, file.path), contains("missing head.weight, head.bias; unexpected classifier.bias"));
    CHECK(values(other.body) != values(file.net.body));
    const LoadResult result = load(other, file.path, {.strict = false});
    CHECK(result.missing == Names{"head.weight", "head.bias"});
    CHECK(result.unexpected == Names{"classifier.bias"});
    CHECK(values(other.body) == values(file.net.body));
    CHECK(values(other.head) == head);
    const LoadResult all = load(other, File(Renamed()).path);
    CHECK((all.missing.empty() && all.unexpected.empty()));

    Wide wide;
    const auto before = values(wide.body);
    CHECK_THROWS_WITH(load(wide, file.path, {.strict = false}),
                      contains("different body.weight (f32 (5, 3) in the model, f32 (4, 3) in the file)"));
    CHECK(values(wide.body) == before);
}

TEST_CASE("names are mapped, and tensors left out") {
    const File file{{"head.weight", "classifier.w"}, {"head.bias", "classifier.b"}};
    Net other;
    const auto rename = [](const std::string& name) {
        if (name == "classifier.w") return std::string("head.weight");
        if (name == "classifier.b") return std::string("head.bias");
        return name;
    };
    load(other, file.path, {.rename = rename});
    CHECK(values(other.head) == values(file.net.head));

    Net part;
    const auto head = values(part.head);
    const auto only_body = [](const std::string& name) { return name.starts_with("body."); };
    const LoadResult result = load(part, file.path, {.filter = only_body});
    CHECK((result.missing.empty() && result.unexpected.empty()));
    CHECK(values(part.body) == values(file.net.body));
    CHECK(values(part.head) == head);
    // `strict` applies to the filtered names.
    const File without{{"body.bias", ""}};
    CHECK_THROWS_WITH(load(part, without.path, {.filter = only_body}), contains("missing body.bias"));
    // Two tensors of the file for one of the model.
    const File twice{{"head.bias", "body_bias"}};
    CHECK_THROWS_WITH(
        load(part, twice.path,
             {.rename = [](const std::string& name) { return name == "body_bias" ? std::string("body.bias") : name; }}),
        contains("unexpected b") && contains("missing head.bias"));
}

TEST_CASE("prefixes of PyTorch wrappers are removed in either order") {
    for (const std::string prefix : {"module.", "_orig_mod.", "_orig_mod.module.", "module._orig_mod."}) {
        CAPTURE(prefix);
        Renamed renamed;
        for (const char* name : {"body.weight", "body.bias", "head.weight", "head.bias"}) renamed[name] = prefix + name;
        const File file(renamed);
        Net other;
        const LoadResult result = load(other, file.path);
        CHECK((result.missing.empty() && result.unexpected.empty()));
        CHECK(values(other.body) == values(file.net.body));
        CHECK(values(other.head) == values(file.net.head));
    }
    Inner inner, again;
    const TemporaryDirectory directory;
    save(inner, directory / "net");  // a name that has this prefix itself
    load(again, directory / "net");
    CHECK(values(again.module) == values(inner.module));
}

TEST_CASE("extra tensors of unsupported dtypes are ignored, and needed ones are an error") {
    const TemporaryDirectory directory;
    Tiny net;
    const float one = 1.5f;
    std::string data(4, '\0');
    std::memcpy(data.data(), &one, 4);
    put_bytes(directory / "net", file_of("{" + described("scale", "F8_E4M3", "[3]", 4, 7) + "," +
                                             described("a.weight", "F32", "[1,1]", 0, 4) + "," +
                                             described("packed", "F4", "[2,2]", 7, 9) + "}",
                                         data + "abcde"));
    const LoadResult result = load(net, directory / "net");
    CHECK(result.unexpected == Names{"packed", "scale"});
    CHECK(net.a.weight->to_vector<float>() == std::vector<float>{1.5f});
    const SafetensorsFile file(directory / "net");
    CHECK(file.entries().size() == 1);
    CHECK(file.unsupported() == std::map<std::string, std::string>{{"packed", "F4"}, {"scale", "F8_E4M3"}});
    CHECK(file.find("scale") == nullptr);
    std::array<std::byte, 3> to{};
    CHECK_THROWS_AS(file.read("scale", to), DataError);
    CHECK_THROWS_WITH(file.read("scale", to), contains("dtype 'F8_E4M3' is not supported"));

    put_bytes(directory / "net", file_of("{" + described("a.weight", "F8_E4M3", "[1,1]", 0, 1) + "}", "a"));
    for (const bool strict : {true, false}) {
        CHECK_THROWS_AS(load(net, directory / "net", {.strict = strict}), DataError);
        CHECK_THROWS_WITH(load(net, directory / "net", {.strict = strict}),
                          contains("different a.weight (f32 in the model; unsupported dtype F8_E4M3"));
    }
    // The rules of the format apply to them as well.
    put_bytes(directory / "net", file_of("{" + described("a", "F4", "[2]", 1, 2) + "}", "ab"));
    CHECK_THROWS_WITH(SafetensorsFile(directory / "net"), contains("(gap)"));
    put_bytes(directory / "net",
              file_of("{" + described("a", "F4", "[2]", 0, 1) + "," + described("a", "U8", "[1]", 1, 2) + "}", "ab"));
    CHECK_THROWS_WITH(SafetensorsFile(directory / "net"), contains("'a' is repeated"));
}

TEST_CASE("a header length that begins like a pickle is not a pickle") {
    const TemporaryDirectory directory;
    std::string header = "{" + described("a", "U8", "[1]", 0, 1) + "}";
    header.resize(640, ' ');
    put_bytes(directory / "good", file_of(header, "a"));
    CHECK(SafetensorsFile(directory / "good").entries().size() == 1);
}

TEST_CASE("batch counters load in all forms that PyTorch loads, and others are rejected by name") {
    const TemporaryDirectory directory;
    const std::filesystem::path path = directory / "net";
    const std::array<float, 2> two{0.5F, 2};
    const auto write = [&](DType dtype, std::vector<std::int64_t> shape, const void* count) {
        std::vector<SafetensorsTensor> tensors;
        for (const char* name : {"norm.weight", "norm.bias", "norm.running_mean", "norm.running_var"})
            tensors.push_back({name, DType::f32, {2}, two.data()});
        if (count) tensors.push_back({"norm.num_batches_tracked", dtype, std::move(shape), count});
        write_safetensors(path, tensors);
    };
    const auto counted = [&] {
        Normed net;
        (*net.norm.num_batches_tracked)->fill_(3);
        const LoadResult result = load(net, path);
        CHECK(result.missing.empty());
        CHECK((*net.norm.num_batches_tracked)->dtype() == DType::i64);
        CHECK((*net.norm.num_batches_tracked)->shape().empty());
        CHECK((*net.norm.running_var)->to_vector<float>() == std::vector<float>{0.5F, 2});
        return (*net.norm.num_batches_tracked)->to_vector<std::int64_t>().at(0);
    };
    const std::int64_t in_i64 = 12;
    const std::int32_t in_i32 = 13;
    const float in_f32 = 14;
    const double in_f64 = 15;
    const std::uint16_t in_f16 = 0x4c00, in_bf16 = 0x4188;  // 16, 17
    const std::uint8_t in_u8 = 18;
    write(DType::i64, {}, &in_i64);
    CHECK(counted() == 12);
    write(DType::i64, {1}, &in_i64);
    CHECK(counted() == 12);
    write(DType::i32, {}, &in_i32);
    CHECK(counted() == 13);
    write(DType::f32, {}, &in_f32);
    CHECK(counted() == 14);
    write(DType::f64, {1}, &in_f64);
    CHECK(counted() == 15);
    write(DType::f16, {}, &in_f16);
    CHECK(counted() == 16);
    write(DType::bf16, {}, &in_bf16);
    CHECK(counted() == 17);
    write(DType::u8, {}, &in_u8);
    CHECK(counted() == 18);
    write(DType::i64, {}, nullptr);  // missing: the model's value is unchanged
    CHECK(counted() == 3);

    Normed net;
    const std::array<std::int64_t, 2> counts{1, 2};
    write(DType::i64, {2}, counts.data());
    CHECK_THROWS_WITH(load(net, path), contains("norm.num_batches_tracked (i64 () in the model, i64 (2,)"));
    write(DType::i64, {1, 1}, counts.data());
    CHECK_THROWS_WITH(load(net, path), contains("norm.num_batches_tracked"));
    CHECK((*net.norm.running_var)->to_vector<float>() == std::vector<float>{1, 1});

    // Vectors of one element are not weights of another shape.
    const std::array<float, 1> five_f32{5};
    Tiny tiny;
    write_safetensors(path, {{"a.weight", DType::f32, {1}, five_f32.data()}});
    CHECK_THROWS_AS(load(tiny, path), DataError);
    const std::array<float, 2> weights{1, 2};
    write_safetensors(path, {{"norm.weight", DType::f32, {2}, weights.data()}});
    CHECK_THROWS_WITH(load(net, path), contains("missing norm.bias, norm.running_mean, norm.running_var;"));
}

TEST_CASE("weights are converted from every dtype, as copy_ of PyTorch converts them", "[load]") {
    const TemporaryDirectory directory;
    const std::filesystem::path path = directory / "net";
    const auto loaded = [&](DType dtype, const void* data) {
        Tiny tiny;
        write_safetensors(path, {{"a.weight", dtype, {1, 1}, data}});
        CHECK(load(tiny, path).missing.empty());
        CHECK(tiny.a.weight->dtype() == DType::f32);
        return tiny.a.weight->to_vector<float>().at(0);
    };
    const std::int64_t large = (std::int64_t{1} << 24) + 1, negative = -7;
    const std::int32_t five = 5;
    const std::uint8_t byte = 255;
    const bool yes = true;
    CHECK(loaded(DType::i64, &negative) == -7);
    CHECK(loaded(DType::i64, &large) == 16777216);  // rounded to nearest even
    CHECK(loaded(DType::i32, &five) == 5);
    CHECK(loaded(DType::u8, &byte) == 255);
    CHECK(loaded(DType::boolean, &yes) == 1);
}
