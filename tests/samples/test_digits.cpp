// The digits drawn: the same on every machine, different from each other, and readable as IDX files.
#include "lockstep/samples/data/digits.h"

#include <array>
#include <set>
#include <vector>

#include "lockstep/parallel/data/idx.h"
#include "lockstep/runtime/error.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/files.h"

using namespace lockstep;
using namespace lockstep::test;
using namespace samples;

namespace {

using Image = std::array<std::uint8_t, digit_side * digit_side>;

Image draw(int digit, std::uint64_t seed, std::uint64_t index) {
    Image image{};
    render_digit(digit, seed, index, image);
    return image;
}

/// FNV-1a, 64 bits.
std::uint64_t hash_of(const std::vector<Image>& images) {
    std::uint64_t hash = 0xcbf29ce484222325u;
    for (const Image& image : images) {
        for (const std::uint8_t pixel : image) hash = (hash ^ pixel) * 0x100000001b3u;
    }
    return hash;
}

}  // namespace

TEST_CASE("digits: digit, seed and index determine every drawing") {
    std::set<Image> seen;
    for (int digit = 0; digit < 10; ++digit) {
        for (std::uint64_t seed = 0; seed < 3; ++seed) {
            for (std::uint64_t index = 0; index < 10; ++index) {
                const Image image = draw(digit, seed, index);
                CHECK(image == draw(digit, seed, index));
                seen.insert(image);
            }
        }
    }
    CHECK(seen.size() == 300);
}

// The number was taken from the first machine; the test checks that all other machines and compilers agree with it.
TEST_CASE("digits: the pixels are the same on every machine") {
    std::vector<Image> images;
    for (std::uint64_t index = 0; index < 1000; ++index) images.push_back(draw(static_cast<int>(index % 10), 7, index));
    CHECK(hash_of(images) == 0x2cc820ea95772a5du);
}

TEST_CASE("digits: ink on paper, all of it inside the image") {
    for (std::uint64_t index = 0; index < 500; ++index) {
        const Image image = draw(static_cast<int>(index % 10), 1, index);
        int dark = 0, rim = 0;
        for (std::size_t y = 0; y < digit_side; ++y) {
            for (std::size_t x = 0; x < digit_side; ++x) {
                const bool ink = image[y * digit_side + x] > 128;
                const bool at_rim = y == 0 || x == 0 || y + 1 == digit_side || x + 1 == digit_side;
                dark += ink;
                rim += ink && at_rim;
            }
        }
        INFO("index " << index);
        CHECK(dark >= 10);
        CHECK(dark < 400);
        CHECK(rim <= 12);
    }
}

TEST_CASE("digits: a dataset is four IDX files, with the same content plain and compressed") {
    const TemporaryDirectory directory;
    write_digits(directory / "new" / "plain", {.train_count = 300, .test_count = 100, .seed = 5});
    write_digits(directory / "packed", {.train_count = 300, .test_count = 100, .seed = 5, .gzip = true});
    const MnistFiles plain = find_mnist(directory / "new" / "plain");
    const MnistFiles packed = find_mnist(directory / "packed");
    CHECK(packed.train_images.filename() == "train-images-idx3-ubyte.gz");

    std::set<std::vector<std::byte>> seen;
    const auto check_part = [&](const std::filesystem::path& image_file, const std::filesystem::path& label_file,
                                std::uint64_t first_index, std::size_t count) {
        const IdxArray images = read_idx(image_file);
        const IdxArray labels = read_idx(label_file);
        const auto rows = static_cast<std::int64_t>(count);
        REQUIRE(images.shape == std::vector<std::int64_t>{rows, 28, 28});
        REQUIRE(labels.shape == std::vector<std::int64_t>{rows});
        std::array<int, 10> of_digit{};
        for (std::size_t i = 0; i < count; ++i) {
            const int digit = std::to_integer<int>(labels.data[i]);
            REQUIRE(digit < 10);
            ++of_digit[static_cast<std::size_t>(digit)];
            const Image expected = draw(digit, 5, first_index + i);
            const auto bytes = std::as_bytes(std::span(expected));
            const std::vector<std::byte> found(
                images.data.begin() + static_cast<std::ptrdiff_t>(i * bytes.size()),
                images.data.begin() + static_cast<std::ptrdiff_t>((i + 1) * bytes.size()));
            CHECK(std::equal(bytes.begin(), bytes.end(), found.begin()));
            seen.insert(found);
        }
        for (const int n : of_digit) CHECK(n > static_cast<int>(count) / 50);
    };
    check_part(plain.train_images, plain.train_labels, 0, 300);
    check_part(plain.test_images, plain.test_labels, std::uint64_t{1} << 40, 100);
    CHECK(seen.size() == 400);  // no test image is a training image
    CHECK(read_idx(packed.train_images).data == read_idx(plain.train_images).data);
    CHECK(read_idx(packed.test_labels).data == read_idx(plain.test_labels).data);
}

TEST_CASE("digits: bad arguments are rejected") {
    Image image{};
    CHECK_THROWS_AS(render_digit(10, 0, 0, image), InvalidArgument);
    CHECK_THROWS_AS(render_digit(-1, 0, 0, image), InvalidArgument);
    CHECK_THROWS_AS(render_digit(1, 0, 0, std::span(image).first(783)), InvalidArgument);
    const TemporaryDirectory directory;
    CHECK_THROWS_AS(write_digits(directory / "x", {.train_count = 0}), InvalidArgument);
    CHECK_THROWS_AS(write_digits(directory / "x", {.test_count = -1}), InvalidArgument);
    CHECK(directory.file_count() == 0);
    put_bytes(directory / "file", "");
    CHECK_THROWS_AS(write_digits(directory / "file" / "x", {.train_count = 1, .test_count = 1}), InvalidArgument);
}
