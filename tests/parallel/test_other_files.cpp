// Weights in several files, single tensors of files, and files whose content does not match their name.
#include <array>

#include "lockstep/ops/layers.h"
#include "lockstep/parallel/checkpoint.h"
#include "lockstep/parallel/data/idx.h"
#include "lockstep/parallel/data/image_file.h"
#include "lockstep/parallel/data/pth.h"
#include "lockstep/parallel/data/safetensors.h"
#include "lockstep/runtime/error.h"
#include "lockstep/tests/fixtures/archives.h"
#include "lockstep/tests/fixtures/files.h"
#include "lockstep/tests/fixtures/messages.h"

using namespace lockstep;
using namespace lockstep::test;

namespace {

struct Net {
    Linear body{3, 2}, head{2, 1};
    LOCKSTEP_MEMBERS(body, head)
};

const std::vector<float> numbers = {0, 1, 2, 3, 4, 5};

/// body in "one", head in "two".
void put_shards(const TemporaryDirectory& directory) {
    write_safetensors(directory / "one", {{"body.weight", DType::f32, {2, 3}, numbers.data()},
                                          {"body.bias", DType::f32, {2}, numbers.data() + 4}});
    write_safetensors(directory / "two", {{"head.weight", DType::f32, {1, 2}, numbers.data() + 1},
                                          {"head.bias", DType::f32, {1}, numbers.data() + 5}});
}

std::string index_of(const std::string& body, const std::string& head) {
    return R"({
  "metadata": {"total_size": 44},
  "weight_map": {"body.weight": ")" +
           body + R"(", "body.bias": ")" + body + R"(", "head.weight": ")" + head + R"(", "head.bias": ")" + head +
           R"("}})";
}

template <class Call>
std::string data_error_of(Call&& call) {
    try {
        call();
    } catch (const DataError& error) {
        const std::string message = error.what();
        CHECK(message.find('\n') == std::string::npos);
        return message;
    }
    FAIL("a file was accepted");
    return {};
}

}  // namespace

TEST_CASE("weights in several files are loaded by their index") {
    const TemporaryDirectory directory;
    put_shards(directory);
    const auto index = directory / "model.safetensors.index.json";
    put_bytes(index, index_of("one", "two"));
    Net net;
    const LoadResult result = load(net, index);
    CHECK((result.missing.empty() && result.unexpected.empty()));
    CHECK(net.body.weight->to_vector<float>() == numbers);
    CHECK((*net.body.bias)->to_vector<float>() == std::vector<float>{4, 5});
    CHECK(net.head.weight->to_vector<float>() == std::vector<float>{1, 2});
    CHECK((*net.head.bias)->to_vector<float>() == std::vector<float>{5});
    CHECK(load_tensor(index, "head.weight").to_vector<float>() == std::vector<float>{1, 2});
    CHECK_THROWS_AS(load_tensor(index, "tail.weight"), InvalidArgument);
    CHECK_THROWS_AS(load(net, index, {.entry = "ema"}), InvalidArgument);

    const auto refusal = [&](const std::string& bytes) {
        put_bytes(index, bytes);
        return data_error_of([&] { load(net, index); });
    };
    CHECK_THAT(refusal(index_of("one", "three")), contains("three: cannot be opened"));
    CHECK_THAT(refusal(index_of("one", "one")), contains("'head.bias' should be in 'one', which does not have it"));
    CHECK_THAT(refusal(R"({"weight_map": {"body.weight": "one"}})"),
               contains("'one' has tensor 'body.bias', which the index does not list"));
    for (const std::string name : {"../one", "/etc/passwd", "..", ".", "", "sub/one", "one\\u0000"})
        CHECK_THAT(refusal(index_of(name, "two")), contains("is not a name in the directory of the index"));
    CHECK_THAT(refusal(R"({"weight_map": {"body.weight": 3}})"), contains("is not a string"));
    CHECK_THAT(refusal(R"({"weight_map": []})"), contains("has no weight_map"));
    CHECK_THAT(refusal(R"({"a": 1})"), contains("has no weight_map"));
    CHECK_THAT(refusal("{"), contains("is not a JSON object"));
    put_bytes(directory / "two", "{}");
    CHECK_THAT(refusal(index_of("one", "two")), contains("two: offset"));
    // one of the files is of torch.save
    const std::string floats(reinterpret_cast<const char*>(numbers.data()), 4 * numbers.size());
    const auto part = [](std::int64_t from, const std::vector<std::int64_t>& sizes) {
        return tensor(storage("FloatStorage", "0", 6), from, sizes, std::vector<std::int64_t>(sizes.size(), 1));
    };
    put_bytes(
        directory / "two",
        pth_of(pickle(dictionary(text("head.bias") + part(3, {1}) + text("head.weight") + part(4, {1, 2}))), {floats}));
    put_bytes(index, index_of("one", "two"));
    Net mixed;
    load(mixed, index);
    CHECK(mixed.body.weight->to_vector<float>() == numbers);
    CHECK(mixed.head.weight->to_vector<float>() == std::vector<float>{4, 5});
    CHECK((*mixed.head.bias)->to_vector<float>() == std::vector<float>{3});
    CHECK_THAT(refusal(index_of("two", "one")), contains("should be in 'two', which does not have it"));
    CHECK(net.body.weight->to_vector<float>() == numbers);
}

TEST_CASE("one call reads a tensor of a file") {
    const TemporaryDirectory directory;
    put_shards(directory);
    const Tensor weight = load_tensor(directory / "one", "body.weight");
    CHECK(weight.shape() == Shape{2, 3});
    CHECK(weight.to_vector<float>() == numbers);
    CHECK_THROWS_AS(load_tensor(directory / "one", "absent"), InvalidArgument);
    CHECK_THROWS_WITH(load_tensor(directory / "one", "absent"), contains("has no tensor 'absent'"));
    CHECK_THROWS_AS(load_tensor(directory / "three", "body.weight"), DataError);
    CHECK_THROWS_AS(load_tensor(directory / "one", "body.weight", "ema"), InvalidArgument);
    const std::filesystem::path pth = PTH_FILES;
    CHECK(load_tensor(pth / "dtypes.pth", "int64").dtype() == DType::i64);
    CHECK(load_tensor(pth / "dtypes.pth", "scalar").item() == 1.5);
    CHECK(load_tensor(pth / "strides.pth", "transposed").to_vector<float>() == std::vector<float>{0, 3, 1, 4, 2, 5});
    CHECK(load_tensor(pth / "averaged.pth", "head.bias", "ema").to_vector<float>() == std::vector<float>{0.5f, 1.5f});
    CHECK(load_tensor(pth / "cpp_module.pt", "body.bias").to_vector<float>() == std::vector<float>{0, 1, 2, 3});
    CHECK_THROWS_AS(load_tensor(pth / "dtypes.pth", "int16"), DataError);
    CHECK_THROWS_WITH(load_tensor(pth / "dtypes.pth", "long"), contains("'9 dimensions'"));
}

TEST_CASE("files with a wrong extension are recognised by their first bytes") {
    struct Kind {
        std::string bytes, name;
    };
    const std::string lfs = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n";
    const std::vector<Kind> kinds = {{"", "the file is empty"},
                                     {"<!DOCTYPE html>\n<html><head>", "an HTML page"},
                                     {"\xef\xbb\xbf \n<HTML lang=en>", "an HTML page"},
                                     {"<?xml version='1.0'?><Error><Code>AccessDenied", "an XML document"},
                                     {lfs, "a Git LFS pointer"},
                                     {"{\"error\": \"not found\"}", "JSON text"},
                                     {"[1, 2, 3, 4, 5, 6]", "JSON text"},
                                     {std::string("\x93NUMPY\x01\0v\0", 10), "a NumPy array"},
                                     {"\x89HDF\r\n\x1a\n12345678", "an HDF5 file"},
                                     {"GGUF\3\1\1\1\1\1\1\1", "a GGUF file"},
                                     {std::string("\x1c\0\0\0TFL3\1\1\1\1", 12), "a TensorFlow Lite model"},
                                     {"model_checkpoint_path: \"model.ckpt\"", "a TensorFlow checkpoint"},
                                     {"\x08\x07\x12\x07pytorch\x1a\x05"
                                      "2.1.0:",
                                      "an ONNX model"},
                                     {"BZh91AY&SY1234", "a bzip2 file"},
                                     {std::string("\xfd"
                                                  "7zXZ\0\0\4",
                                                  8),
                                      "an xz file"},
                                     {"%PDF-1.7 and more", "a PDF document"},
                                     {std::string("Rar!\x1a\x07\x01\0", 8), "a RAR file"},
                                     {"/annex/objects/SHA256E-s12--4d7a.pth\n", "a git-annex pointer"},
                                     {"../.git/annex/objects/x/SHA256E-s12--4d7a.pth", "a git-annex pointer"},
                                     {std::string("\xff\xfe<\0h\0t\0m\0l\0>\0", 14), "text in UTF-16"},
                                     {"404: Not Found", "text that begins with '404: Not Found'"},
                                     {"outs:\n- md5: 4d7a\n  size: 12345\n", "text that begins with 'outs:'"},
                                     {"gone\n", "text that begins with 'gone'"},
                                     {"\r\n\r\n gone", "text that begins with 'gone'"},
                                     {"(dp0\nVa\np1\nF1.5\ns.", "text that begins with '(dp0'"},
                                     {"\x7f"
                                      "ELF\2\1\1\1\1\1\1",
                                      "a program"},
                                     {std::string("weights.pth") + std::string(246, '\0') + "ustar\0", "a tar file"}};
    const TemporaryDirectory directory;
    const auto path = directory / "file";
    Net net;
    for (const auto& [bytes, name] : kinds) {
        CAPTURE(name, bytes);
        put_bytes(path, bytes);
        CHECK_THAT(data_error_of([&] { load(net, path); }),
                   contains("file: offset 0: ") && contains(name) && contains("expected"));
        CHECK_THAT(data_error_of([&] { SafetensorsFile{path}; }), contains(name));
        CHECK_THAT(data_error_of([&] { PthFile{path}; }), contains(name));
        CHECK_THAT(data_error_of([&] { read_image(path); }), contains(name));
        CHECK_THAT(data_error_of([&] { load_tensor(path, "x"); }), contains(name));
        if (bytes.empty() || bytes[0] != 0) CHECK_THAT(data_error_of([&] { read_idx(path); }), contains(name));
    }
    // IDX files may be compressed, others may not; images are not weights
    put_bytes(path, "\x1f\x8b\x08 1234567890");
    CHECK_THAT(data_error_of([&] { load(net, path); }), contains("a gzip file") && contains("gunzip"));
    CHECK_THAT(data_error_of([&] { read_image(path); }), contains("a gzip file"));
    put_bytes(path, "\x89PNG\r\n\x1a\n1234567890");
    CHECK_THAT(data_error_of([&] { load(net, path); }), contains("a PNG image"));
    CHECK_THAT(data_error_of([&] { read_idx(path); }), contains("a PNG image"));
    put_bytes(path, "PK\x03\x04 1234567890");
    CHECK_THAT(data_error_of([&] { read_image(path); }), contains("a zip file"));
    put_bytes(path, archive_of({{"readme.txt", "x"}}));
    CHECK_THAT(data_error_of([&] { load(net, path); }),
               contains("this is a zip file without the record 'data.pkl'") && contains("unpack it"));
    // the index of shards is JSON; other JSON with its name is not an index
    put_bytes(directory / "model.safetensors.index.json", lfs);
    CHECK_THAT(data_error_of([&] { load(net, directory / "model.safetensors.index.json"); }),
               contains("a Git LFS pointer"));
}
