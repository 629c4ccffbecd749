// The IDX reader and writer compared with bytes composed here by hand, and with damaged ones.
#include "lockstep/parallel/data/idx.h"

#include <zlib.h>

#include <array>
#include <cstring>
#include <functional>
#include <stdexcept>

#include "lockstep/parallel/data/dataset.h"
#include "lockstep/runtime/error.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/files.h"
#include "lockstep/tests/fixtures/messages.h"
#include "lockstep/tests/fixtures/processes.h"

using namespace lockstep;
using namespace lockstep::test;

namespace {

std::string idx_of(char code, const std::vector<std::uint32_t>& shape, const std::string& data) {
    std::string bytes = {0, 0, code, static_cast<char>(shape.size())};
    for (const std::uint32_t size : shape) {
        for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(size >> shift & 0xff);
    }
    return bytes + data;
}

std::string gzip_of(const std::string& bytes) {
    const TemporaryDirectory directory;
    gzFile file = gzopen((directory / "packed").c_str(), "wb");
    REQUIRE(file != nullptr);
    gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size()));
    gzclose(file);
    return get_bytes(directory / "packed");
}

std::string gunzip(const std::filesystem::path& path) {
    std::string bytes(1 << 20, '\0');
    gzFile file = gzopen(path.c_str(), "rb");
    REQUIRE(file != nullptr);
    const int got = gzread(file, bytes.data(), static_cast<unsigned>(bytes.size()));
    gzclose(file);
    bytes.resize(static_cast<std::size_t>(std::max(got, 0)));
    return bytes;
}

IdxArray read_bytes(const std::string& bytes) {
    const TemporaryDirectory directory;
    put_bytes(directory / "file", bytes);
    return read_idx(directory / "file");
}

std::string refusal(const std::string& bytes) {
    try {
        read_bytes(bytes);
    } catch (const DataError& error) {
        const std::string message = error.what();
        CHECK(message.find("file: offset ") != std::string::npos);
        CHECK(message.find('\n') == std::string::npos);
        return message;
    }
    FAIL("a bad file was accepted");
    return {};
}

std::string text_of(const IdxArray& array) {
    return {reinterpret_cast<const char*>(array.data.data()), array.data.size()};
}

}  // namespace

TEST_CASE("idx: a gzip file is unpacked no further than its header's size and its content") {
    const TemporaryDirectory directory;
    constexpr std::uint32_t huge = 1'200'000'000;
    std::string noise(1'300'000, '\0');
    std::uint64_t state = 1;
    for (char& byte : noise)
        byte = static_cast<char>((state = state * 6364136223846793005U + 1442695040888963407U) >> 56);
    // Each member of a gzip file adds its content: 1.2 GB of zeros in a megabyte.
    const std::string zeros = gzip_of(std::string(12'000'000, '\0'));
    std::string bomb = gzip_of(idx_of(0x08, {16}, ""));
    std::string labels = gzip_of(idx_of(0x08, {huge}, ""));
    for (int i = 0; i < 100; ++i) bomb += zeros;
    for (int i = 0; i < 100; ++i) labels += zeros;
    put_bytes(directory / "bomb", bomb);
    put_bytes(directory / "promise", gzip_of(idx_of(0x08, {huge}, noise)));
    std::filesystem::create_directory(directory / "set");
    for (const char* part : {"train", "t10k"}) {
        put_bytes(directory / ("set/" + std::string(part) + "-images-idx3-ubyte"), idx_of(0x08, {2, 1, 1}, "ab"));
        put_bytes(directory / ("set/" + std::string(part) + "-labels-idx1-ubyte.gz"), labels);
    }
    const auto refused = [&](const std::function<void()>& read) {
        return megabytes_for([&] {
            try {
                read();
            } catch (const DataError&) {
                return;
            }
            throw std::runtime_error("was accepted");
        });
    };
    const long nothing = megabytes_for([] {});
    CHECK_THROWS_WITH(read_idx(directory / "bomb"), contains("offset 24: decompressed bytes follow the last element"));
    for (const long megabytes :
         {refused([&] { read_idx(directory / "bomb"); }), refused([&] { read_idx(directory / "promise"); }),
          refused([&] { Mnist(directory / "set"); })}) {
        CHECK(megabytes > 0);
        CHECK(megabytes < nothing + 400);  // sanitizers retain freed memory
    }
    CHECK_THROWS_WITH(Mnist(directory / "set"), contains("1200000000 labels") && contains("2 images"));
}

TEST_CASE("idx: a header is read without the data") {
    const TemporaryDirectory directory;
    put_bytes(directory / "plain", idx_of(0x0c, {2, 3}, std::string(24, 'x')));
    put_bytes(directory / "packed", gzip_of(idx_of(0x08, {7}, "abcdefg")));
    CHECK(read_idx_header(directory / "plain").dtype == DType::i32);
    CHECK(read_idx_header(directory / "plain").shape == std::vector<std::int64_t>{2, 3});
    CHECK(read_idx_header(directory / "packed").shape == std::vector<std::int64_t>{7});
    put_bytes(directory / "short", idx_of(0x08, {2, 300}, "abc"));
    CHECK_THROWS_AS(read_idx_header(directory / "short"), DataError);
    CHECK_THROWS_AS(read_idx_header(directory / "none"), DataError);
}

TEST_CASE("idx: plain and gzip files are read in the machine's byte order") {
    const std::string images = idx_of(0x08, {2, 3}, "abcdef");
    for (const std::string& bytes : {images, gzip_of(images)}) {
        const IdxArray array = read_bytes(bytes);
        CHECK(array.dtype == DType::u8);
        CHECK(array.shape == std::vector<std::int64_t>{2, 3});
        CHECK(text_of(array) == "abcdef");
    }
    // zeros after a member are padding of any length
    for (const std::size_t zeros : {1, 511, (1 << 18) - 1, 1 << 18, 1'000'000}) {
        const std::string padding(zeros, '\0');
        CHECK(text_of(read_bytes(gzip_of(images) + padding)) == "abcdef");
        CHECK(text_of(read_bytes(gzip_of(images.substr(0, 9)) + padding + gzip_of(images.substr(9)) + padding)) ==
              "abcdef");
    }
    // two gzip members are one content, as in gzip(1)
    CHECK(text_of(read_bytes(gzip_of(images.substr(0, 9)) + gzip_of(images.substr(9)))) == "abcdef");

    const IdxArray floats = read_bytes(idx_of(0x0d, {2}, std::string("\x3f\x80\0\0\xc0\0\0\0", 8)));
    std::array<float, 2> values{};
    REQUIRE(floats.data.size() == sizeof values);
    std::memcpy(values.data(), floats.data.data(), sizeof values);
    CHECK(values == std::array<float, 2>{1.0f, -2.0f});
    const IdxArray integers = read_bytes(idx_of(0x0c, {1}, std::string("\xff\xff\xff\xfe", 4)));
    std::int32_t integer = 0;
    std::memcpy(&integer, integers.data.data(), sizeof integer);
    CHECK(integer == -2);
    const IdxArray doubles = read_bytes(idx_of(0x0e, {1}, std::string("\x3f\xf0\0\0\0\0\0\0", 8)));
    double value = 0;
    std::memcpy(&value, doubles.data.data(), sizeof value);
    CHECK(value == 1.0);
    CHECK(read_bytes(idx_of(0x08, {0, 28, 28}, "")).data.empty());
}

TEST_CASE("idx: bad files are rejected with the reason") {
    const std::string good = idx_of(0x08, {2, 3}, "abcdef");
    CHECK_THAT(refusal(""), contains("the file is empty"));
    CHECK_THAT(refusal(good.substr(0, 3)), contains("truncated"));
    CHECK_THAT(refusal(good.substr(0, 10)), contains("truncated"));
    CHECK_THAT(refusal(good.substr(0, good.size() - 1)), contains("larger than the file can hold"));
    CHECK_THAT(refusal(good + "x"), contains("1 bytes follow the last element"));
    CHECK_THAT(refusal("\x89PNG"), contains("not an IDX file"));
    CHECK_THAT(refusal(idx_of(0x09, {1}, "a")), contains("0x09 (i8) is not one of"));
    CHECK_THAT(refusal(idx_of(0x0b, {1}, "ab")), contains("0x0b (i16) is not one of"));
    CHECK_THAT(refusal(idx_of(0x7f, {1}, "ab")), contains("0x7f is not one of"));
    CHECK_THAT(refusal(idx_of(0x08, {}, "")), contains("no dimensions"));
    CHECK_THAT(refusal(idx_of(0x0e, {0xffffffff, 0xffffffff, 0xffffffff}, "a")), contains("larger than the file"));
    CHECK_THAT(refusal(gzip_of(idx_of(0x08, {0xffffffff}, "a"))), contains("larger than the file can hold"));

    const std::string packed = gzip_of(good);
    CHECK_THAT(refusal(packed.substr(0, packed.size() - 1)), contains("cut off"));
    CHECK_THAT(refusal(packed.substr(0, 12)), contains("cut off"));
    CHECK_THAT(refusal(packed + "x"), contains("gzip stream"));
    CHECK_THAT(refusal(packed + std::string(10, '\0') + "x"), contains("gzip stream"));
    CHECK_THAT(refusal(gzip_of(good + "x")), contains("follow the last element"));
    CHECK_THAT(refusal(gzip_of(good.substr(0, good.size() - 1))), contains("1 bytes too early"));
    std::string wrong_sum = packed;
    wrong_sum[packed.size() - 8] = static_cast<char>(wrong_sum[packed.size() - 8] ^ 1);
    CHECK_THAT(refusal(wrong_sum), contains("corrupt (incorrect data check)"));

    const TemporaryDirectory directory;
    CHECK_THROWS_AS(read_idx(directory / "missing"), DataError);
    CHECK_THROWS_AS(read_idx(directory.path()), DataError);
}

TEST_CASE("idx: written bytes follow the format") {
    const TemporaryDirectory directory;
    const std::array<std::int32_t, 2> integers = {1, -2};
    const std::string expected = idx_of(0x0c, {1, 2}, std::string("\0\0\0\1\xff\xff\xff\xfe", 8));
    const std::array<std::int64_t, 2> shape = {1, 2};
    write_idx(directory / "plain", DType::i32, shape, std::as_bytes(std::span(integers)));
    CHECK(get_bytes(directory / "plain") == expected);
    write_idx(directory / "packed", DType::i32, shape, std::as_bytes(std::span(integers)), IdxCompression::gzip);
    CHECK(gunzip(directory / "packed") == expected);
    CHECK(get_bytes(directory / "packed").substr(4, 4) == std::string(4, '\0'));  // no modification time
    CHECK(directory.file_count() == 2);

    // more than one buffer of the compressor, and hardly compressible
    std::vector<std::byte> noise(700'000);
    Vandal dice(1);
    for (std::byte& b : noise) b = static_cast<std::byte>(dice.below(256));
    const std::array<std::int64_t, 1> length = {700'000};
    write_idx(directory / "noise", DType::u8, length, noise, IdxCompression::gzip);
    CHECK(read_idx(directory / "noise").data == noise);
}

TEST_CASE("idx: unwritable data is rejected") {
    const TemporaryDirectory directory;
    const std::array<std::byte, 8> data{};
    const auto write = [&](DType dtype, const std::vector<std::int64_t>& shape) {
        write_idx(directory / "file", dtype, shape, data);
    };
    CHECK_THROWS_AS(write(DType::i64, {1}), InvalidArgument);
    CHECK_THROWS_AS(write(DType::u8, {7}), InvalidArgument);
    CHECK_THROWS_AS(write(DType::u8, {}), InvalidArgument);
    CHECK_THROWS_AS(write(DType::u8, {-8, -1}), InvalidArgument);
    CHECK_THROWS_AS(write(DType::u8, {1LL << 32, 1LL << 32}), InvalidArgument);
    CHECK_THROWS_AS(write(DType::u8, std::vector<std::int64_t>(256, 1)), InvalidArgument);
    CHECK(directory.file_count() == 0);
    CHECK_THROWS_AS(write_idx(directory / "no" / "file", DType::u8, std::array<std::int64_t, 1>{8}, data),
                    InvalidArgument);
    const std::vector<std::byte> large(100'000, std::byte{1});
    put_bytes(directory / "file", "old");
    {
        const FileSizeLimit full(50'000);
        CHECK_THROWS_AS(write_idx(directory / "file", DType::u8, std::array<std::int64_t, 1>{100'000}, large),
                        DataError);
    }
    CHECK(get_bytes(directory / "file") == "old");
    CHECK(directory.file_count() == 1);
}

TEST_CASE("idx: MNIST files are found under all their names") {
    const TemporaryDirectory directory;
    CHECK_THROWS_WITH(find_mnist(directory / "missing"), contains("no such directory"));
    CHECK_THROWS_WITH(find_mnist(directory.path()), contains("neither train-images-idx3-ubyte nor"));
    std::filesystem::create_directories(directory / "MNIST/raw");
    put_bytes(directory / "MNIST/raw/train-images-idx3-ubyte", "");
    put_bytes(directory / "train-labels.idx1-ubyte", "");
    put_bytes(directory / "t10k-images-idx3-ubyte.gz", "");
    CHECK_THROWS_WITH(find_mnist(directory.path()), contains("neither t10k-labels-idx1-ubyte nor"));
    put_bytes(directory / "t10k-labels.idx1-ubyte.gz", "");
    put_bytes(directory / "t10k-labels-idx1-ubyte", "");
    const MnistFiles files = find_mnist(directory.path());
    CHECK(files.train_images == directory / "MNIST/raw/train-images-idx3-ubyte");
    CHECK(files.train_labels == directory / "train-labels.idx1-ubyte");
    CHECK(files.test_images == directory / "t10k-images-idx3-ubyte.gz");
    CHECK(files.test_labels == directory / "t10k-labels-idx1-ubyte");
}

TEST_CASE("idx: damaged files are rejected or read, and never crash") {
    std::string content;
    for (int i = 0; i < 120; ++i) content += static_cast<char>(i * i);
    const std::string plain = idx_of(0x08, {5, 4, 6}, content);
    const std::string packed = gzip_of(plain);
    int refused = 0, accepted = 0;
    const auto attempt = [&](const std::string& bytes) {
        try {
            const IdxArray array = read_bytes(bytes);
            std::size_t expected = size_of(array.dtype);
            for (const std::int64_t size : array.shape) expected *= static_cast<std::size_t>(size);
            CHECK(array.data.size() == expected);
            ++accepted;
        } catch (const DataError&) {
            ++refused;
        }
    };
    for (const std::string& whole : {plain, packed}) {
        accepted = refused = 0;
        for (std::size_t length = 0; length < whole.size(); ++length) attempt(whole.substr(0, length));
        CHECK(accepted == 0);
        for (std::uint32_t seed = 0; seed < 3000; ++seed) attempt(Vandal(seed).damage(whole));
        CHECK(refused > 1500);
        CHECK(accepted > 0);
    }
}
