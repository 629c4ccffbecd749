// The safetensors reader and writer compared with files composed here by hand, and with damaged ones.
#include "lockstep/parallel/data/safetensors.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <array>
#include <cstring>

#include "lockstep/runtime/error.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/files.h"
#include "lockstep/tests/fixtures/messages.h"

using namespace lockstep;
using namespace lockstep::test;

namespace {

std::string file_of(std::string header, const std::string& data, std::uint64_t length) {
    std::string bytes;
    for (int i = 0; i < 8; ++i) bytes += static_cast<char>(length >> (8 * i) & 0xff);
    return bytes + header + data;
}

std::string file_of(const std::string& header, const std::string& data) { return file_of(header, data, header.size()); }

/// The error from opening a file of these bytes; fails the test if none or another one is thrown.
std::string refusal(const std::string& bytes) {
    const TemporaryDirectory directory;
    put_bytes(directory / "file", bytes);
    try {
        const SafetensorsFile file(directory / "file");
    } catch (const DataError& error) {
        const std::string message = error.what();
        CHECK(message.find("file: offset ") != std::string::npos);
        CHECK(message.find('\n') == std::string::npos);
        return message;
    }
    FAIL("a bad file was accepted");
    return {};
}

const std::string two_tensors =
    R"({"__metadata__":{"format":"pt"},"b":{"dtype":"I32","shape":[2],"data_offsets":[8,16]},)"
    R"("a":{"dtype":"F16","shape":[2,2],"data_offsets":[0,8]}})";

}  // namespace

TEST_CASE("safetensors: a hand-made file is read") {
    const TemporaryDirectory directory;
    put_bytes(directory / "file", file_of(two_tensors + "   ", "abcdefghABCDEFGH"));
    const SafetensorsFile file(directory / "file");
    REQUIRE(file.entries().size() == 2);
    CHECK(file.entries()[0].name == "a");
    CHECK(file.entries()[1].name == "b");
    CHECK(file.metadata() == SafetensorsMetadata{{"format", "pt"}});

    const SafetensorsEntry* b = file.find("b");
    REQUIRE(b != nullptr);
    CHECK(b->dtype == DType::i32);
    CHECK(b->shape == std::vector<std::int64_t>{2});
    CHECK(b->bytes == 8);
    CHECK(b->offset == 8 + two_tensors.size() + 3 + 8);
    std::array<char, 8> text{};
    file.read("b", std::as_writable_bytes(std::span(text)));
    CHECK(std::string(text.begin(), text.end()) == "ABCDEFGH");

    CHECK(file.find("c") == nullptr);
    CHECK_THROWS_AS(file.read("c", std::as_writable_bytes(std::span(text))), InvalidArgument);
    CHECK_THROWS_AS(file.read("b", std::as_writable_bytes(std::span(text).first(7))), InvalidArgument);
}

TEST_CASE("safetensors: written bytes follow the format") {
    const TemporaryDirectory directory;
    const std::array<std::uint8_t, 3> bytes = {1, 2, 3};
    const std::array<std::int64_t, 1> count = {0x0102030405060708};
    const float scalar = 1.0f;
    write_safetensors(directory / "file",
                      {{"u", DType::u8, {3}, bytes.data()},
                       {"n\"\n", DType::i64, {1}, count.data()},
                       {"s", DType::f32, {}, &scalar},
                       {"none", DType::f32, {0, 4}, nullptr}},
                      {{"format", "pt"}});
    std::string header = R"({"__metadata__":{"format":"pt"},"n\"\n":{"dtype":"I64","shape":[1],"data_offsets":[0,8]},)"
                         R"("s":{"dtype":"F32","shape":[],"data_offsets":[8,12]},)"
                         R"("none":{"dtype":"F32","shape":[0,4],"data_offsets":[12,12]},)"
                         R"("u":{"dtype":"U8","shape":[3],"data_offsets":[12,15]}})";
    while (header.size() % 8 != 0) header += ' ';
    const std::string data("\x08\x07\x06\x05\x04\x03\x02\x01\x00\x00\x80\x3f\x01\x02\x03", 15);
    CHECK(get_bytes(directory / "file") == file_of(header, data));
    CHECK(directory.file_count() == 1);

    const SafetensorsFile file(directory / "file");
    CHECK(file.entries().size() == 4);
    float read_back = 0;
    file.read("s", std::as_writable_bytes(std::span(&read_back, 1)));
    CHECK(read_back == 1.0f);
    file.read("none", {});
}

TEST_CASE("safetensors: every dtype and an empty file survive a round trip") {
    const TemporaryDirectory directory;
    const std::array<std::uint8_t, 16> ones = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    for (const DType dtype :
         {DType::f32, DType::f64, DType::f16, DType::bf16, DType::i32, DType::i64, DType::u8, DType::boolean}) {
        write_safetensors(directory / "file", {{"x", dtype, {2, 1}, ones.data()}});
        const SafetensorsFile file(directory / "file");
        REQUIRE(file.entries().size() == 1);
        CHECK(file.entries()[0].dtype == dtype);
        CHECK(file.entries()[0].shape == std::vector<std::int64_t>{2, 1});
        CHECK(file.entries()[0].bytes == 2 * size_of(dtype));
        std::array<std::uint8_t, 16> back{};
        file.read("x", std::as_writable_bytes(std::span(back)).first(2 * size_of(dtype)));
        CHECK(std::memcmp(back.data(), ones.data(), 2 * size_of(dtype)) == 0);
    }
    write_safetensors(directory / "empty", {});
    CHECK(get_bytes(directory / "empty") == file_of("{}      ", ""));
    CHECK(SafetensorsFile(directory / "empty").entries().empty());
}

TEST_CASE("safetensors: bad files are rejected with the reason") {
    const std::string data = "abcdefghABCDEFGH";
    const auto one = [](const std::string& description) { return file_of("{\"x\":" + description + "}", "abcd"); };
    CHECK_THAT(refusal(""), contains("the file is empty"));
    CHECK_THAT(refusal("\1\2\3\4\5\6\7"), contains("within the 8 bytes"));
    CHECK_THAT(refusal(file_of("{}", "", 100'000'001)), contains("more than 100000000"));
    CHECK_THAT(refusal(file_of("{}", "", ~std::uint64_t{0})), contains("more than 100000000"));
    CHECK_THAT(refusal(file_of("{}", "", 3)), contains("only 2 bytes follow"));
    CHECK_THAT(refusal(file_of("", "")), contains("does not begin with '{'"));
    CHECK_THAT(refusal(file_of("[]", "")), contains("does not begin with '{'"));
    CHECK_THAT(refusal(file_of("{\"x\":", "")), contains("not valid JSON"));
    CHECK_THAT(refusal(file_of("{}{", "")), contains("not valid JSON"));
    CHECK_THAT(refusal(file_of("{\"\xff\":{}}", "")), contains("not valid JSON"));
    CHECK_THAT(refusal(file_of(std::string("{}\0{", 4), "")), contains("zero byte"));
    CHECK_THAT(refusal(file_of("{\"x\":" + std::string(100000, '['), "")), contains("nested too deeply"));
    CHECK_THAT(refusal(file_of(two_tensors, data.substr(1))), contains("are outside of the file's 15 bytes"));
    CHECK_THAT(refusal(file_of(two_tensors, data + "x")), contains("1 bytes follow the last tensor"));
    CHECK_THAT(refusal(one("3")), contains("dtype, shape and data_offsets"));
    CHECK_THAT(refusal(one(R"({"dtype":"U8","shape":[4]})")), contains("dtype, shape and data_offsets"));
    CHECK_THAT(refusal(one(R"({"dtype":8,"shape":[4],"data_offsets":[0,4]})")), contains("not a string"));
    CHECK_THAT(refusal(one(R"({"dtype":"U8","shape":[[4]],"data_offsets":[0,4]})")), contains("nested too deeply"));
    CHECK_THAT(refusal(one(R"({"dtype":{},"shape":[4],"data_offsets":[0,4]})")), contains("not a string"));
    CHECK_THAT(refusal(one("[]")), contains("dtype, shape and data_offsets"));
    CHECK_THAT(refusal(one("null")), contains("dtype, shape and data_offsets"));
    CHECK_THAT(refusal(file_of(R"({"__metadata__":{"a":"1"},"__metadata__":{"b":"2"}})", "")),
               contains("'__metadata__' is repeated"));
    CHECK_THAT(refusal(file_of(R"({"__metadata__":{"a":"1","a":"2"}})", "")), contains("'a' is repeated"));
    CHECK_THAT(refusal(file_of(R"({"__metadata__":{"a":["1"]}})", "")), contains("'a' is not a string"));
    CHECK_THAT(refusal(file_of(R"({"__metadata__":["a"]})", "")), contains("not a JSON object"));
    CHECK_THAT(refusal(one(R"({"dtype":"U8","shape":[-4],"data_offsets":[0,4]})")), contains("an integer"));
    CHECK_THAT(refusal(one(R"({"dtype":"U8","shape":[4.0],"data_offsets":[0,4]})")), contains("an integer"));
    CHECK_THAT(refusal(one(R"({"dtype":"U8","shape":[4],"data_offsets":[0,18446744073709551615]})")),
               contains("an integer"));
    CHECK_THAT(refusal(one(R"({"dtype":"U8","shape":[4],"data_offsets":[4,0]})")), contains("are outside"));
    CHECK_THAT(refusal(one(R"({"dtype":"U8","shape":[4],"data_offsets":[0,4,8]})")), contains("not two numbers"));
    CHECK_THAT(refusal(one(R"({"dtype":"U8","shape":4,"data_offsets":[0,4]})")), contains("not a list"));
    CHECK_THAT(refusal(one(R"({"dtype":"U8","shape":[3],"data_offsets":[0,4]})")),
               contains("do not match the 4 bytes"));
    CHECK_THAT(refusal(one(R"({"dtype":"F64","shape":[4294967296,4294967296],"data_offsets":[0,4]})")),
               contains("do not match the 4 bytes"));
    const auto two = [&](const std::string& second_name, const std::string& offsets) {
        return file_of(R"({"x":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},")" + second_name +
                           R"(":{"dtype":"U8","shape":[2],"data_offsets":)" + offsets + "}}",
                       "abcd");
    };
    CHECK_THAT(refusal(two("y", "[1,3]")), contains("overlap"));
    CHECK_THAT(refusal(two("x", "[2,4]")), contains("'x' is repeated"));
    CHECK_THAT(refusal(file_of(R"({"x":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})", "abcd")), contains("gap"));
    CHECK_THAT(refusal(file_of(R"({"x":{"dtype":"U8","dtype":"U8","shape":[4],"data_offsets":[0,4]}})", "abcd")),
               contains("'dtype' is repeated"));
    CHECK_THAT(refusal(file_of(R"({"__metadata__":{"a":1}})", "")), contains("is not a string"));
    CHECK_THAT(refusal(file_of(R"({"__metadata__":"a"})", "")), contains("not a JSON object"));
    CHECK_THAT(refusal(file_of("{\"x\\ny\":3}", "")), contains("'x?y'"));
}

TEST_CASE("safetensors: __metadata__ may be null, and descriptions of tensors may have more keys") {
    const TemporaryDirectory directory;
    const auto description = [](const std::string& more) {
        return R"("x":{)" + more + R"("dtype":"U8","shape":[4],"data_offsets":[0,4]})";
    };
    for (const std::string& header :
         {R"({"__metadata__":null,)" + description("") + "}", "{" + description("") + R"(,"__metadata__":null})",
          R"({"__metadata__":{},)" + description(R"("more":1,)") + "}",
          "{" + description(R"("a":null,"b":true,"c":"dtype","d":-1.5,"e":18446744073709551615,)") + "}",
          "{" + description(R"("a":{"dtype":"F32","shape":[[{}],[]]},"b":[[1,{"c":[]}]],)") + "}"}) {
        CAPTURE(header);
        put_bytes(directory / "file", file_of(header, "abcd"));
        const SafetensorsFile file(directory / "file");
        REQUIRE(file.find("x") != nullptr);
        CHECK(file.find("x")->shape == std::vector<std::int64_t>{4});
        CHECK(file.metadata().empty());
        std::array<char, 4> data{};
        file.read("x", std::as_writable_bytes(std::span(data)));
        CHECK(std::string_view(data.data(), 4) == "abcd");
    }
    const auto refused = [&](const std::string& header) { return refusal(file_of(header, "abcd")); };
    CHECK_THAT(refused(R"({"__metadata__":null,"__metadata__":null})"), contains("'__metadata__' is repeated"));
    CHECK_THAT(refused(R"({"__metadata__":{"a":null}})"), contains("'a' is not a string"));
    CHECK_THAT(refused(R"({"x":{"more":1}})"), contains("dtype, shape and data_offsets"));
    CHECK_THAT(refused(R"({"x":{"dtype":null,"shape":[4],"data_offsets":[0,4]}})"), contains("not a string"));
    CHECK_THAT(refused("{" + description("\"more\":" + std::string(1000, '[') + std::string(1000, ']') + ",") + "}"),
               contains("nested too deeply"));
}

TEST_CASE("safetensors: missing files, directories and bad bools") {
    const TemporaryDirectory directory;
    CHECK_THROWS_AS(SafetensorsFile(directory / "missing"), DataError);
    CHECK_THROWS_AS(SafetensorsFile(directory.path()), DataError);
    put_bytes(directory / "file", file_of(R"({"x":{"dtype":"BOOL","shape":[2],"data_offsets":[0,2]}})", "\x01\x02"));
    const SafetensorsFile file(directory / "file");
    std::array<std::byte, 2> bools{};
    CHECK_THROWS_AS(file.read("x", bools), DataError);
}

TEST_CASE("safetensors: a file that shrinks while it is open is an error") {
    const TemporaryDirectory directory;
    put_bytes(directory / "file", file_of(two_tensors, "abcdefghABCDEFGH"));
    const SafetensorsFile file(directory / "file");
    std::filesystem::resize_file(directory / "file", 100);
    std::array<std::byte, 8> to{};
    CHECK_THROWS_AS(file.read("b", to), DataError);
}

TEST_CASE("safetensors: unwritable data is rejected before anything changes") {
    const TemporaryDirectory directory;
    const std::array<std::uint8_t, 4> data = {};
    const auto write = [&](const std::vector<SafetensorsTensor>& tensors) {
        write_safetensors(directory / "file", tensors);
    };
    CHECK_THROWS_AS(write({{"", DType::u8, {4}, data.data()}}), InvalidArgument);
    CHECK_THROWS_AS(write({{"__metadata__", DType::u8, {4}, data.data()}}), InvalidArgument);
    CHECK_THROWS_AS(write({{"\xff", DType::u8, {4}, data.data()}}), InvalidArgument);
    CHECK_THROWS_AS(write({{"x", DType::u8, {-1}, data.data()}}), InvalidArgument);
    CHECK_THROWS_AS(write({{"x", DType::u8, {1LL << 62, 4}, data.data()}}), InvalidArgument);
    CHECK_THROWS_AS(write({{"x", DType::u8, {4}, nullptr}}), InvalidArgument);
    CHECK_THROWS_AS(write({{"x", DType::u8, {4}, data.data()}, {"x", DType::u8, {4}, data.data()}}), InvalidArgument);
    CHECK(directory.file_count() == 0);
    CHECK_THROWS_AS(write_safetensors(directory / "no" / "file", {}), InvalidArgument);
    CHECK_THROWS_AS(write_safetensors(directory.path(), {}), InvalidArgument);
    CHECK_THROWS_AS(write_safetensors("", {}), InvalidArgument);
}

TEST_CASE("safetensors: a pipe or a device is not replaced by a file") {
    const TemporaryDirectory directory;
    const auto pipe = directory / "pipe";
    REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
    CHECK_THROWS_WITH(write_safetensors(pipe, {}), contains("not a regular file"));
    CHECK(std::filesystem::is_fifo(pipe));
    CHECK(directory.file_count() == 1);
}

TEST_CASE("safetensors: a full disk leaves the old file and nothing else") {
    const TemporaryDirectory directory;
    const std::vector<float> data(100'000, 1.0f);
    write_safetensors(directory / "file", {{"x", DType::f32, {10}, data.data()}});
    const std::string before = get_bytes(directory / "file");
    {
        const FileSizeLimit full(100'000);
        CHECK_THROWS_AS(write_safetensors(directory / "file", {{"x", DType::f32, {100'000}, data.data()}}), DataError);
    }
    CHECK(get_bytes(directory / "file") == before);
    CHECK(directory.file_count() == 1);
    write_safetensors(directory / "file", {{"x", DType::f32, {100'000}, data.data()}});
    CHECK(SafetensorsFile(directory / "file").find("x")->bytes == 400'000);
}

TEST_CASE("safetensors: a process that is killed while it writes leaves the old file and nothing else") {
    const TemporaryDirectory directory;
    const int nameless = ::open(directory.path().c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);
    if (nameless < 0) return;  // this file system does not support files without names
    ::close(nameless);
    const std::vector<float> data(100'000, 1.0f);
    const bool is_there = GENERATE(false, true);
    if (is_there) write_safetensors(directory / "file", {{"x", DType::f32, {10}, data.data()}});
    const std::string before = is_there ? get_bytes(directory / "file") : "";
    const pid_t writer = ::fork();
    REQUIRE(writer >= 0);
    if (writer == 0) {
        const FileSizeLimit half(200'000);
        std::signal(SIGXFSZ, [](int) { ::raise(SIGKILL); });
        write_safetensors(directory / "file", {{"x", DType::f32, {100'000}, data.data()}});
        ::_exit(0);
    }
    int status = 0;
    REQUIRE(::waitpid(writer, &status, 0) == writer);
    CHECK((WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL));
    CHECK(directory.file_count() == (is_there ? 1 : 0));
    if (is_there) CHECK(get_bytes(directory / "file") == before);
}

// Ten times the number of tensors takes ten times as long: in quadratic time these would take more than an hour.
TEST_CASE("safetensors: half a million tensors are written and read in linear time") {
    const TemporaryDirectory directory;
    constexpr std::size_t count = 500'000;
    std::vector<SafetensorsTensor> tensors;
    for (std::size_t i = 0; i < count; ++i)
        tensors.push_back({"layer." + std::to_string(i * 7919 % count), DType::f32, {0, 3}, nullptr});
    write_safetensors(directory / "file", tensors);
    const SafetensorsFile file(directory / "file");
    CHECK(file.entries().size() == count);
    for (std::size_t i = 0; i < count; i += 99'991) {
        const SafetensorsEntry* entry = file.find("layer." + std::to_string(i));
        REQUIRE(entry != nullptr);
        CHECK(entry->shape == std::vector<std::int64_t>{0, 3});
    }
}

TEST_CASE("safetensors: damaged files are rejected or read, and never crash") {
    const TemporaryDirectory directory;
    const std::string whole = file_of(two_tensors, "abcdefghABCDEFGH");
    int refused = 0, accepted = 0;
    const auto attempt = [&](const std::string& bytes) {
        put_bytes(directory / "file", bytes);
        try {
            const SafetensorsFile file(directory / "file");
            std::uint64_t end = 0, total = 0;
            for (const SafetensorsEntry& entry : file.entries()) {
                std::vector<std::byte> to(entry.bytes);
                file.read(entry.name, to);
                end = entry.offset + entry.bytes;
                total += entry.bytes;
            }
            CHECK((file.entries().empty() || !file.unsupported().empty() || end == bytes.size()));
            CHECK(total < bytes.size());
            ++accepted;
        } catch (const DataError&) {
            ++refused;
        }
    };
    for (std::size_t length = 0; length < whole.size(); ++length) attempt(whole.substr(0, length));
    CHECK(accepted == 0);
    for (std::uint32_t seed = 0; seed < 4000; ++seed) attempt(Vandal(seed).damage(whole));
    CHECK(refused > 3000);
    CHECK(accepted > 10);  // damage to the data or only a name gives another valid file
}
