// Files in torch.save's format that are malicious or damaged.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "lockstep/parallel/data/pth.h"
#include "lockstep/runtime/error.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/archives.h"
#include "lockstep/tests/fixtures/files.h"
#include "lockstep/tests/fixtures/messages.h"

using namespace lockstep;
using namespace lockstep::test;

namespace {

struct Opened {
    std::vector<std::string> names;
    std::vector<std::vector<std::byte>> values;
    bool operator==(const Opened&) const = default;
};

/// A file that is replaced tens of thousands of times, in memory instead of on disk.
class MemoryFile {
public:
    MemoryFile() { REQUIRE(descriptor_ >= 0); }
    ~MemoryFile() { ::close(descriptor_); }
    MemoryFile(const MemoryFile&) = delete;
    MemoryFile& operator=(const MemoryFile&) = delete;

    std::filesystem::path path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }
    void put(const std::string& bytes) {
        REQUIRE(::ftruncate(descriptor_, 0) == 0);
        REQUIRE(::pwrite(descriptor_, bytes.data(), bytes.size(), 0) == std::ssize(bytes));
    }

private:
    int descriptor_ = ::memfd_create("pth", MFD_CLOEXEC);
};

constexpr std::uint64_t max_read = 1 << 20;

/// All tensors of the file that are no longer than `max_read`.
Opened opened(const std::filesystem::path& path) {
    const PthFile file(path);
    Opened all;
    for (const PthEntry& entry : file.entries()) {
        all.names.push_back(entry.name);
        std::vector<std::byte>& value = all.values.emplace_back(std::min(entry.bytes, max_read));
        if (entry.bytes <= max_read) file.read(entry.name, value);
    }
    return all;
}

/// The error from opening and reading a file of these bytes.
std::string refusal(const std::string& bytes) {
    const TemporaryDirectory directory;
    put_bytes(directory / "file", bytes);
    try {
        opened(directory / "file");
    } catch (const DataError& error) {
        const std::string message = error.what();
        CHECK(message.find("file: offset ") != std::string::npos);
        CHECK(message.find('\n') == std::string::npos);
        return message;
    }
    FAIL("a bad file was accepted");
    return {};
}

const std::string floats(16, '\0');
const std::string four = storage("FloatStorage", "0", 4);

/// The error for a dictionary whose only tensor is the given one.
std::string refusal_of_tensor(const std::string& value) {
    return refusal(pth_of(pickle(dictionary(text("a") + value)), {floats}));
}
std::string refusal_of_pickle(const std::string& bytes) { return refusal(pth_of(bytes, {floats})); }

const std::string good_pickle = pickle(dictionary(text("a") + tensor(four, 0, {2, 2}, {2, 1}) + text("b") +
                                                  tensor(four, 1, {3}, {1}) + text("epoch") + integer(3)));

}  // namespace

TEST_CASE("pth: hand-made archives are read, with 32-bit and 64-bit offsets and sizes") {
    const TemporaryDirectory directory;
    const bool zip64 = GENERATE(false, true);
    const std::string numbers("\0\0\x80\x3f\0\0\0\x40\0\0\x40\x40\0\0\x80\x40", 16);  // 1, 2, 3, 4
    put_bytes(directory / "file",
              archive_of({{"x/data.pkl", good_pickle}, {"x/data/0", numbers}, {"x/.data/id", "7"}}, {.zip64 = zip64}));
    const PthFile file(directory / "file");
    REQUIRE(file.entries().size() == 2);
    CHECK(file.entries()[0].shape == std::vector<std::int64_t>{2, 2});
    std::array<float, 3> b{};
    file.read("b", std::as_writable_bytes(std::span(b)));
    CHECK(b == std::array<float, 3>{2, 3, 4});
}

TEST_CASE("pth: repacked archives are read: deflated, without a folder, with a comment or trailing bytes") {
    const TemporaryDirectory directory;
    const std::string numbers("\0\0\x80\x3f\0\0\0\x40\0\0\x40\x40\0\0\x80\x40", 16);  // 1, 2, 3, 4
    const std::string in = GENERATE("x/", "");
    const std::string after = GENERATE("", "x", "0123456789012345678901234567890123456789");
    put_bytes(directory / "file",
              archive_of({{in + "data/0", deflate(numbers), 8, 0, 16, numbers},
                          {in + "data.pkl", deflate(good_pickle), 8, 0, good_pickle.size(), good_pickle}}) +
                  after);
    const PthFile file(directory / "file");
    std::array<float, 4> a{};
    std::array<float, 3> b{};
    file.read("a", std::as_writable_bytes(std::span(a)));
    file.read("b", std::as_writable_bytes(std::span(b)));
    CHECK(a == std::array<float, 4>{1, 2, 3, 4});
    CHECK(b == std::array<float, 3>{2, 3, 4});
}

TEST_CASE("pth: nothing that a file names is executed, and anything but a state_dict is rejected by name") {
    const auto called = [](const std::string& module, const std::string& name, const std::string& arguments) {
        return pickle(global(module, name) + arguments + "R");
    };
    for (const auto& [module, name] : std::vector<std::pair<std::string, std::string>>{{"os", "system"},
                                                                                       {"posix", "system"},
                                                                                       {"builtins", "eval"},
                                                                                       {"__builtin__", "getattr"},
                                                                                       {"torch", "load"},
                                                                                       {"torch", ""},
                                                                                       {"torch._utils", "_rebuild"},
                                                                                       {"os", "OrderedDict"}}) {
        const std::string message = refusal_of_pickle(called(module, name, tuple(text("touch /tmp/harm"))));
        CHECK_THAT(message,
                   contains("it holds '" + module + "." + name + "'") && contains("neither read nor executed"));
        // next to tensors it is skipped
        const TemporaryDirectory directory;
        const std::string call = global(module, name) + tuple(text("touch /tmp/harm")) + "R";
        put_bytes(directory / "file",
                  pth_of(pickle(dictionary(text("harm") + call + text("a") + tensor(four, 0, {4}, {1}))), {floats}));
        CHECK(opened(directory / "file").names == std::vector<std::string>{"a"});
        CHECK(PthFile(directory / "file").value("harm") == PthValue{PthValue::Unread{module + "." + name}});
    }
    // An object that is called (classes with keyword arguments in protocol 2, bound methods), or creates another one.
    for (const std::string end : {")R", ")\x81", ")}\x92"}) {
        const TemporaryDirectory directory;
        const std::string made = global("functools", "partial") + tuple(global("os", "system") + text("x")) + "R";
        put_bytes(
            directory / "file",
            pth_of(pickle(dictionary(text("call") + made + end + text("a") + tensor(four, 0, {4}, {1}))), {floats}));
        CHECK(opened(directory / "file").names == std::vector<std::string>{"a"});
        CHECK(PthFile(directory / "file").value("call") == PthValue{PthValue::Unread{"functools.partial"}});
    }
    CHECK_THAT(refusal_of_pickle(proto2 + text("os") + text("system") + "\x93."), contains("it holds 'os.system'"));
    CHECK_THAT(refusal_of_pickle(pickle(global("o\x1bs", "sy\rstem"))), contains("'o?s.sy?stem'"));
    CHECK_THAT(refusal_of_pickle(called("torch", "FloatStorage", ")")), contains("a type is called"));
    CHECK_THAT(refusal_of_pickle(called("torch", "float32", ")")), contains("a type is called"));
    CHECK_THAT(refusal_of_pickle(pickle(text("system") + ")R")), contains("a call is not of a function"));
    CHECK_THAT(refusal_of_pickle(called("collections", "OrderedDict", text("ab"))),
               contains("with a tuple of arguments"));
    CHECK_THAT(refusal_of_pickle(called("collections", "OrderedDict", tuple(none))), contains("has arguments"));
    CHECK_THAT(refusal_of_pickle(called("torch", "Size", tuple(none))), contains("argument of a torch.Size"));
    CHECK_THAT(refusal_of_pickle(called("torch._utils", "_rebuild_parameter", tuple(none))), contains("a Parameter"));
    CHECK_THAT(refusal_of_pickle(pickle(four + "}b")), contains("an object other than an OrderedDict"));
    CHECK_THAT(refusal_of_pickle(pickle("}" + none + "b")), contains("an object other than an OrderedDict"));
    CHECK_THAT(refusal_of_pickle(called("collections", "defaultdict", tuple(none + none))),
               contains("something other than a dict"));
    CHECK_THAT(refusal_of_pickle(called("builtins", "set", tuple(none))), contains("something other than a list"));
    CHECK_THAT(refusal_of_pickle(called("__torch__", "Net", ")")), contains("are not stored by name"));
    CHECK_THAT(refusal_of_pickle(pickle(none + ")\x81")), contains("created by something that is not a class"));
    CHECK_THAT(refusal_of_pickle(pickle(global("torch", "Size") + ")\x81")),
               contains("created by an unsupported function"));
    // INST, OBJ, EXT1, PERSID, STRING, NEXT_BUFFER and an opcode of no protocol.
    for (const std::string opcode : {"i", "o", "\x82", "P", "S", "\x97", "\xff"})
        CHECK_THAT(refusal_of_pickle(pickle(mark + global("torch", "Size") + ")" + opcode)),
                   contains(" which a state_dict does not use"));
    CHECK_THAT(refusal_of_pickle(pickle(none + "Q")), contains("a persistent id is not that of a storage"));
    CHECK_THAT(refusal_of_pickle(pickle(text("a"))), contains("no dictionary of tensors"));
    CHECK_THAT(refusal_of_pickle(pickle(dictionary(text("a") + none + integer(1) + none))),
               contains("it has 'a', a number;"));
}

TEST_CASE("pth: pickles with excessive depth, memory or number of values are rejected") {
    CHECK_THAT(refusal_of_pickle(pickle(std::string(100'000, '('))), contains("nested more than 100 deep"));
    CHECK_THAT(refusal_of_pickle(proto2 + std::string(11'000'000, '}') + stop), contains("more than 10000000 values"));
    CHECK_THAT(refusal_of_pickle(proto2 + "}r\xff\xff\xff\xff."), contains("not numbered consecutively"));
    CHECK_THAT(refusal_of_pickle(proto2 + "}q\x01."), contains("not numbered consecutively"));
    CHECK_THAT(refusal_of_pickle(proto2 + "h\x01."), contains("by an unused number"));
    CHECK_THAT(refusal_of_pickle(proto2 + "X\xff\xff\xff\xff" + "a."), contains("the pickle ends within"));
    CHECK_THAT(refusal_of_pickle(proto2 + "\x8d" + little(~std::uint64_t{0}, 8) + "a."),
               contains("the pickle ends within"));
    CHECK_THAT(refusal_of_pickle(proto2 + "\x95" + little(1ULL << 40, 8) + "}."), contains("the pickle ends within"));
    CHECK_THAT(refusal_of_pickle("\x80\x06}."), contains(" of protocol 6"));
    CHECK_THAT(refusal_of_pickle(""), contains("the pickle ends within"));
    CHECK_THAT(refusal_of_pickle(proto2 + "}"), contains("the pickle ends within"));
    CHECK_THAT(refusal_of_pickle(proto2 + "cos"), contains("the pickle ends within a name"));
    CHECK_THAT(refusal_of_pickle(proto2 + "}.}"), contains("with values left"));
    CHECK_THAT(refusal_of_pickle(proto2 + "}}."), contains("with values left"));
    CHECK_THAT(refusal_of_pickle(proto2 + "(}."), contains("with values left"));
    CHECK_THAT(refusal_of_pickle(proto2 + "."), contains("with values left"));
    for (const std::string opcode : {"t", "u", "e", "1"})
        CHECK_THAT(refusal_of_pickle(proto2 + "}" + opcode + "."), contains("no mark"));
    for (const std::string opcode : {"R", "b", "s", "\x87", "\x93"})
        CHECK_THAT(refusal_of_pickle(proto2 + "}" + opcode + "."), contains("too few values"));
    CHECK_THAT(refusal_of_pickle(proto2 + "}(0."), contains("too few values"));
    CHECK_THAT(refusal_of_pickle(proto2 + "}(Nu."), contains("is not a list or dictionary"));
    CHECK_THAT(refusal_of_pickle(proto2 + "}Na."), contains("is not a list or dictionary"));
    CHECK_THAT(refusal_of_pickle(proto2 + "]NNs."), contains("is not a list or dictionary"));

    // A list in a list, a hundred thousand deep, and dictionaries that contain themselves.
    const TemporaryDirectory directory;
    put_bytes(directory / "file",
              pth_of(pickle("}" + text("deep") + std::string(100'000, ']') + std::string(99'999, 'a') + "s" +
                            text("a") + tensor(four, 0, {4}, {1}) + "s"),
                     {floats}));
    CHECK(opened(directory / "file").names == std::vector<std::string>{"a"});
    put_bytes(directory / "file", pth_of(proto2 + "}q" + std::string(1, '\0') + text("self") + "h" +
                                             std::string(1, '\0') + "s" + text("a") + tensor(four, 0, {4}, {1}) + "s.",
                                         {floats}));
    CHECK(opened(directory / "file").names == std::vector<std::string>{"a"});
}

// As written by torch.save of PyTorch 2.
TEST_CASE("pth: the negative bit changes the sign, and other attributes of tensors are interpreted or rejected") {
    const std::string yes = "\x88";
    const auto v2 = [&](const std::string& of, const std::string& more) {
        return global("torch._utils", "_rebuild_tensor_v2") +
               tuple(of + integer(0) + integers({2, 2}) + integers({2, 1}) + no + ordered_dict + more) + "R";
    };
    const auto v3 = [&](const std::string& dtype, const std::string& more) {
        return global("torch._utils", "_rebuild_tensor_v3") +
               tuple(storage("UntypedStorage", "0", 16) + integer(0) + integers({2, 2}) + integers({2, 1}) + no +
                     ordered_dict + global("torch", dtype) + more) +
               "R";
    };
    const std::string negative = dictionary(text("neg") + yes), conjugate = dictionary(text("conj") + yes);
    const std::string numbers("\0\0\x80\x3f\0\0\0\x40\0\0\0\x80\0\0\xc0\x7f", 16);  // 1, 2, -0, nan
    const TemporaryDirectory directory;
    const auto bytes_of = [&](const std::string& value, const std::string& elements) {
        put_bytes(directory / "file", pth_of(pickle(dictionary(text("a") + value)), {elements}));
        const PthFile file(directory / "file");
        std::string bytes(file.find("a")->bytes, 'x');
        file.read("a", std::as_writable_bytes(std::span(bytes)));
        return bytes;
    };
    std::string minus = numbers;
    for (const std::size_t last : {3, 7, 11, 15}) minus[last] = static_cast<char>(minus[last] ^ '\x80');
    CHECK(bytes_of(v2(four, ""), numbers) == numbers);
    CHECK(bytes_of(v2(four, none), numbers) == numbers);
    CHECK(bytes_of(v2(four, conjugate), numbers) == numbers);
    CHECK(bytes_of(v2(four, dictionary(text("neg") + no)), numbers) == numbers);
    CHECK(bytes_of(v2(four, negative), numbers) == minus);
    CHECK(bytes_of(v3("float32", negative), numbers) == minus);
    const std::string integers4 = little(1, 4) + little(0xfffffffe, 4) + little(0, 4) + little(0x80000000, 4);
    CHECK(bytes_of(v2(storage("IntStorage", "0", 4), negative), integers4) ==
          little(0xffffffff, 4) + little(2, 4) + little(0, 4) + little(0x80000000, 4));
    CHECK(bytes_of(v2(storage("ByteStorage", "0", 4), negative), std::string("\0\1\2\xff", 4)) ==
          std::string("\0\xff\xfe\1", 4));
    CHECK(bytes_of(v2(storage("BFloat16Storage", "0", 4), negative), std::string("\x80\x3f\0\x40\0\x80\x80\xbf", 8)) ==
          std::string("\x80\xbf\0\xc0\0\0\x80\x3f", 8));
    // a transposed tensor
    CHECK(bytes_of(global("torch._utils", "_rebuild_tensor_v2") +
                       tuple(four + integer(0) + integers({2, 2}) + integers({1, 2}) + no + ordered_dict + negative) +
                       "R",
                   numbers) == minus.substr(0, 4) + minus.substr(8, 4) + minus.substr(4, 4) + minus.substr(12));

    CHECK_THAT(refusal_of_tensor(v2(four, dictionary(text("pos") + yes))),
               contains("metadata 'pos', which is unknown"));
    CHECK_THAT(refusal_of_tensor(v2(four, dictionary(text("neg") + none))),
               contains("metadata 'neg', which is unknown"));
    CHECK_THAT(refusal_of_tensor(v2(four, dictionary(integer(1) + yes))), contains(" which is unknown"));
    CHECK_THAT(refusal_of_tensor(v2(four, yes)), contains("metadata is not a dictionary"));
    CHECK_THAT(refusal_of_tensor(v2(four, none + none)), contains("described by 8 values; expected at most 7"));
    CHECK_THAT(refusal_of_tensor(v3("float32", none + none)), contains("described by 9 values; expected at most 8"));
    CHECK_THAT(refusal_of_tensor(v2(storage("BoolStorage", "0", 4), negative)), contains("has the negative bit"));

    // (function, type, arguments, attributes), and tensors whose elements are not dense
    const std::string rebuild = global("torch._utils", "_rebuild_tensor_v2");
    const std::string arguments =
        tuple(four + integer(0) + integers({2, 2}) + integers({2, 1}) + no + ordered_dict + negative);
    const auto typed = [&](const std::string& function, const std::string& type, const std::string& with) {
        return global("torch._tensor", "_rebuild_from_type_v2") +
               tuple(function + type + with + dictionary(text("note") + none)) + "R";
    };
    CHECK(bytes_of(typed(rebuild, global("torch", "Tensor"), arguments), numbers) == minus);
    CHECK(bytes_of(global("torch._utils", "_rebuild_parameter_with_state") +
                       tuple(v2(four, negative) + yes + ordered_dict + dictionary(text("note") + none)) + "R",
                   numbers) == minus);
    const auto unsupported = [&](const std::string& value) {
        put_bytes(directory / "file",
                  pth_of(pickle(dictionary(text("b") + v2(four, "") + text("a") + value)), {numbers}));
        const PthFile file(directory / "file");
        CHECK(opened(directory / "file").names == std::vector<std::string>{"b"});
        return file.unsupported().at("a");
    };
    CHECK(unsupported(typed(rebuild, global("tv", "Image"), arguments)) == "tv.Image");
    CHECK(unsupported(typed(global("os", "system"), global("torch", "Tensor"), arguments)) == "os.system");
    for (const std::string name : {"_rebuild_qtensor", "_rebuild_sparse_tensor", "_rebuild_wrapper_subclass",
                                   "_rebuild_meta_tensor_no_storage", "_rebuild_nested_tensor"})
        CHECK(unsupported(global("torch._utils", name) + tuple(none) + "R") == "torch._utils." + name);
    CHECK_THAT(
        refusal_of_tensor(typed(global("torch._tensor", "_rebuild_from_type_v2"), global("torch", "Tensor"), ")")),
        contains("function that makes tensors"));
    CHECK_THAT(refusal_of_tensor(typed(global("torch", "Size"), global("torch", "Tensor"), tuple(integers({})))),
               contains("function that makes tensors"));
    CHECK_THAT(refusal_of_tensor(v2(four, "") + dictionary("") + "b"), contains("an object other than an OrderedDict"));
}

TEST_CASE("pth: endlessly nested values are rejected when they are read") {
    const TemporaryDirectory directory;
    std::string lists = "]q" + std::string(1, '\0');
    for (int level = 1; level < 30; ++level) {
        const std::string before = "h" + std::string(1, static_cast<char>(level - 1));
        lists += "]q" + std::string(1, static_cast<char>(level)) + mark + before + before + "e";
    }
    put_bytes(directory / "file",
              pth_of(pickle("}" + text("many") + mark + lists + "t" + "s" + text("deep") + std::string(200, ']') +
                            std::string(199, 'a') + "s" + text("a") + tensor(four, 0, {4}, {1}) + "s"),
                     {floats}));
    const PthFile file(directory / "file");
    for (const std::string name : {"many", "deep"}) {
        CHECK_THROWS_AS(file.value(name), DataError);
        CHECK_THROWS_WITH(file.value(name), contains("more than a million parts or 100 levels"));
    }
    // modules that share their members endlessly
    std::string modules = global("__torch__", "Leaf") + ")\x81" + dictionary(text("w") + tensor(four, 0, {4}, {1})) +
                          "bq" + std::string(1, '\0');
    for (int level = 1; level < 30; ++level) {
        const std::string before = "h" + std::string(1, static_cast<char>(level - 1));
        modules += "0" + global("__torch__", "Net") + ")\x81" + dictionary(text("l") + before + text("r") + before) +
                   "bq" + std::string(1, static_cast<char>(level));
    }
    CHECK_THAT(refusal(pth_of(pickle(modules), {floats})), contains("more than a million names"));
}

TEST_CASE("pth: tensors that do not match their storage are rejected") {
    const std::string out = "exceeds its storage";
    constexpr std::int64_t huge = INT64_MAX;
    CHECK_THAT(refusal_of_tensor(tensor(four, 0, {5}, {1})), contains(out));
    CHECK_THAT(refusal_of_tensor(tensor(four, 4, {1}, {1})), contains(out));
    CHECK_THAT(refusal_of_tensor(tensor(four, huge, {1}, {1})), contains(out));
    CHECK_THAT(refusal_of_tensor(tensor(four, 1, {2, 2}, {2, 1})), contains(out));
    CHECK_THAT(refusal_of_tensor(tensor(four, 0, {2, 2}, {huge, huge})), contains(out));
    CHECK_THAT(refusal_of_tensor(tensor(four, 0, {3, 3}, {huge / 2, 1})), contains(out));
    CHECK_THAT(refusal_of_tensor(tensor(four, -1, {1}, {1})), contains("begins before its storage"));
    CHECK_THAT(refusal_of_tensor(tensor(four, 0, {-1}, {1})), contains("size or stride"));
    CHECK_THAT(refusal_of_tensor(tensor(four, 0, {2}, {-1})), contains("size or stride"));
    CHECK_THAT(refusal_of_tensor(tensor(four, 0, {2}, {})), contains("different numbers of strides and sizes"));
    CHECK_THAT(refusal_of_tensor(tensor(four, 0, {huge, huge}, {0, 0})), contains("elements overflows"));
    const std::vector<std::int64_t> ones(65, 1);
    CHECK_THAT(refusal_of_tensor(tensor(four, 0, ones, ones)), contains("more than 64 dimensions"));
    CHECK_THAT(refusal_of_tensor(tensor(none, 0, {1}, {1})), contains("is not described by"));
    CHECK_THAT(refusal_of_tensor(tensor(storage("FloatStorage", "0", 5), 0, {1}, {1})),
               contains("has 5 elements of 4 bytes, but the record 'net/data/0' has 16 bytes"));
    CHECK_THAT(refusal_of_tensor(tensor(storage("FloatStorage", "0", huge), 0, {huge / 8}, {1})),
               contains("has 16 bytes"));
    CHECK_THAT(refusal_of_tensor(tensor(storage("FloatStorage", "0", -4), 0, {1}, {1})), contains("persistent id"));
    CHECK_THAT(refusal_of_tensor(tensor(storage("Size", "0", 4), 0, {1}, {1})),
               contains("a storage has an unknown type"));
    CHECK_THAT(refusal_of_tensor(tensor(storage("FloatStorage", "1", 4), 0, {1}, {1})),
               contains("no record 'net/data/1'"));
    CHECK_THAT(refusal_of_tensor(tensor(storage("UntypedStorage", "0", 16), 0, {1}, {1})), contains("without dtype"));
    CHECK_THAT(refusal(pth_of(pickle(dictionary(text("a") + tensor(storage("BoolStorage", "0", 2), 0, {2}, {1}))),
                              {std::string("\1\2")})),
               contains("has a bool that is neither 0 nor 1"));
    const std::string a = tensor(four, 0, {1}, {1});
    CHECK_THAT(refusal_of_pickle(pickle(dictionary(text("a") + a + text("a") + a))), contains("'a' is repeated"));
    CHECK_THAT(refusal_of_pickle(pickle(dictionary(text("a") + a + integer(3) + a))), contains("is not a string"));

    // Tensors without names do not make a second state_dict.
    {
        const TemporaryDirectory directory;
        const std::string numbered = dictionary(integer(0) + a + integer(1) + a), named = dictionary(text("a") + a);
        put_bytes(directory / "file",
                  pth_of(pickle(dictionary(text("net") + named + text("rows") + numbered)), {floats}));
        CHECK(opened(directory / "file").names == std::vector<std::string>{"a"});
        CHECK_THAT(refusal_of_pickle(pickle(numbered)), contains("none of its top-level dictionaries has tensors"));
    }

    // A small file can describe a large tensor, which takes memory only when it is read.
    const TemporaryDirectory directory;
    put_bytes(directory / "file", pth_of(pickle(dictionary(text("a") + tensor(four, 0, {1LL << 40}, {0}))), {floats}));
    CHECK(PthFile(directory / "file").find("a")->bytes == 1ULL << 42);
}

TEST_CASE("pth: archives in another format than torch.save's are rejected") {
    const ArchiveRecord pkl{"x/data.pkl", good_pickle}, data{"x/data/0", floats};
    CHECK_THAT(refusal(""), contains("the file is empty"));
    CHECK_THAT(refusal("PK\x03\x04" + std::string(100, 'x')), contains("does not end like an archive"));
    CHECK_THAT(refusal(archive_of({pkl, data}) + std::string(70'000, 'x')), contains("does not end like an archive"));
    CHECK_THAT(refusal(archive_of({data})), contains("a zip file without the record 'x/data.pkl'"));
    CHECK_THAT(refusal(archive_of({pkl, data, data})), contains("'x/data/0' is repeated"));
    ArchiveRecord other = data;
    other.method = 12;
    CHECK_THAT(refusal(archive_of({pkl, other})), contains("'x/data/0' is encrypted, or compressed other than by"));
    other.method = 8;  // it is not deflated, although it is marked as deflated
    CHECK_THAT(refusal(archive_of({pkl, other})), contains("'x/data/0' "));
    const ArchiveRecord deflated{"x/data/0", deflate(floats), 8};
    CHECK_THAT(refusal(archive_of({pkl, {"x/data/0", deflated.bytes, 8, 0, 100'000'000}})),
               contains("cannot inflate to"));
    CHECK_THAT(refusal(archive_of({pkl, {"x/data/0", deflated.bytes, 8, 0, 12}})), contains("12 bytes"));
    for (std::size_t bytes = 0; bytes < deflated.bytes.size(); ++bytes)
        CHECK_THAT(refusal(archive_of({pkl, {"x/data/0", deflated.bytes.substr(0, bytes), 8, 0, 16}})),
                   contains("'x/data/0' is truncated"));
    CHECK_THAT(refusal(archive_of({pkl, {"x/data/0", deflated.bytes + "x", 8, 0, 16}})),
               contains("does not inflate to its size"));
    CHECK_THAT(refusal(archive_of({pkl, {"x/data/0", deflate(floats + "x"), 8, 0, 16}})),
               contains("inflates to more than its size"));
    CHECK_THAT(refusal(archive_of({pkl, {"x/data/0", deflate(floats.substr(1)), 8, 0, 16}})),
               contains("does not inflate to its size"));
    other.method = 0;
    other.flags = 1;
    CHECK_THAT(refusal(archive_of({pkl, other})), contains("'x/data/0' is encrypted, or"));
    other.flags = 0;
    other.claimed = 10'000;
    CHECK_THAT(refusal(archive_of({pkl, other})), contains(" of 10000 bytes overlaps the directory"));
    CHECK_THAT(refusal(archive_of({pkl, {"x/data/0", floats, 0, 0, 1ULL << 62}}, {.zip64 = true})),
               contains("overlaps the directory"));
    other.claimed = 100;
    CHECK_THAT(refusal(archive_of({other, pkl})), contains("'x/data.pkl' overlaps another one"));
    const auto changed = [&](std::function<void(std::size_t, std::uint64_t&, std::string&)> change, bool zip64) {
        return refusal(archive_of({pkl, data}, {.zip64 = zip64, .change = std::move(change)}));
    };
    CHECK_THAT(changed([](std::size_t, std::uint64_t& header, std::string&) { header = 0; }, false),
               contains("does not begin here"));
    CHECK_THAT(changed([](std::size_t, std::uint64_t& header, std::string&) { header = ~std::uint64_t{0}; }, true),
               contains("does not begin here"));
    CHECK_THAT(changed([](std::size_t, std::uint64_t&, std::string& name) { name[0] = 'y'; }, false),
               contains("does not begin here"));
    CHECK_THAT(changed([](std::size_t, std::uint64_t&, std::string& name) { name = std::string(60'000, 'y'); }, false),
               contains("does not begin here"));
    std::string broken = archive_of({pkl, data});
    broken[broken.find(floats)] = 'x';
    CHECK_THAT(refusal(broken), contains("do not match its checksum"));
    broken = archive_of({pkl, data});
    broken[broken.find("epoch")] = 'E';
    CHECK_THAT(refusal(broken), contains("'x/data.pkl' do not match its checksum"));
    CHECK_THAT(refusal(pth_of(good_pickle, {floats}, "big")), contains("big-endian machine"));
    CHECK_THAT(refusal(pth_of(good_pickle, {floats}, std::string(1000, 'x'))), contains("big-endian machine"));

    const std::string good = archive_of({pkl, data});
    const auto with = [&](std::size_t from_end, std::uint64_t value, int bytes) {
        std::string file = good;
        file.replace(file.size() - from_end, static_cast<std::size_t>(bytes), little(value, bytes));
        return file;
    };
    CHECK_THAT(refusal(with(12, 1, 2)), contains("holds 2 records; expected 1"));
    CHECK_THAT(refusal(with(12, 65'535, 2)), contains("cannot hold 65535 records"));
    CHECK_THAT(refusal(with(10, 4'000'000'000, 4)), contains(" which do not end here"));
    CHECK_THAT(refusal(with(6, 4'000'000'000, 4)), contains(" which do not end here"));
    CHECK_THAT(refusal(with(6, 0, 4)), contains(" which do not end here"));
}

TEST_CASE("pth: truncated files are rejected at every length, and damaged ones rejected or read correctly") {
    MemoryFile memory;
    for (const std::string name : {"checkpoint.pth", "strides.pth"}) {
        const std::string whole = get_bytes(std::filesystem::path(PTH_FILES) / name);
        const Opened right = opened(std::filesystem::path(PTH_FILES) / name);
        int refused = 0, accepted = 0;
        const auto attempt = [&](const std::string& bytes) {
            memory.put(bytes);
            try {
                if (!(opened(memory.path()) == right)) FAIL("a damaged file was loaded with different tensors");
                ++accepted;
            } catch (const DataError&) {
                ++refused;
            }
        };
        for (std::size_t length = 0; length < whole.size(); ++length) attempt(whole.substr(0, length));
        CHECK(accepted == 0);
        for (std::uint32_t seed = 0; seed < 5000; ++seed) attempt(Vandal(seed).damage(whole));
        Vandal vandal(1);
        for (int flip = 0; flip < 5000; ++flip) {
            std::string bytes = whole;
            bytes[vandal.below(bytes.size())] ^= static_cast<char>(1 << vandal.below(8));
            attempt(bytes);
        }
        CHECK(refused > 5000);
        CHECK(accepted > 100);  // bytes between the records belong to none
    }
}

// Checksums protect the reader of the pickle from damage. A malicious file has the right ones.
TEST_CASE("pth: damaged pickles with a correct checksum are rejected or read, and never crash") {
    MemoryFile memory;
    const std::string file = get_bytes(std::filesystem::path(PTH_FILES) / "checkpoint.pth");
    const std::size_t begin = file.find(proto2 + "}"), end = file.find("u.PK");
    REQUIRE((begin != std::string::npos && end != std::string::npos));
    const std::string theirs = file.substr(begin, end + 2 - begin);
    std::vector<std::string> storages;
    for (const std::size_t bytes : {48, 16, 32, 8}) storages.emplace_back(bytes, '\1');
    int refused = 0, accepted = 0;
    for (const std::string& whole : {theirs, good_pickle}) {
        if (whole == good_pickle) storages = {floats};
        memory.put(pth_of(whole, storages));
        CHECK(opened(memory.path()).names.size() >= 2);
        for (std::uint32_t seed = 0; seed < 10'000; ++seed) {
            memory.put(pth_of(Vandal(seed).damage(whole), storages));
            try {
                opened(memory.path());
                ++accepted;
            } catch (const DataError&) {
                ++refused;
            }
        }
    }
    CHECK(refused > 10'000);
    CHECK(accepted > 200);  // changing a name or number gives another valid pickle
    CHECK(accepted + refused == 20'000);
}
