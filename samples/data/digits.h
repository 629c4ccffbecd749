// A generator of handwriting-like digits: a dataset for training without a download.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

namespace samples {

/// Side of a digit image in pixels, as in MNIST.
inline constexpr std::size_t digit_side = 28;

/// Draws one digit (0 to 9) into 28 rows of 28 pixels, 0 is paper and 255 is ink. (digit, seed, index) determines every
/// pixel: the same bytes on every machine and compiler, in any order of calls, and different `index` give independent
/// drawings. Strokes, slant, rotation, size, shift, pen and noise vary. Throws InvalidArgument if `digit` is not in 0
/// to 9 or `pixels` does not hold 784 bytes.
void render_digit(int digit, std::uint64_t seed, std::uint64_t index, std::span<std::uint8_t> pixels);

/// Dataset of write_digits(). Counts are images.
struct DigitsOptions {
    std::int64_t train_count = 30000;
    std::int64_t test_count = 4000;
    std::uint64_t seed = 1;
    bool gzip = false;
};

/// Writes the four files of MNIST under MNIST's names (with .gz if gzip is set) to `directory`, which is created if
/// missing. Every file is replaced atomically. Labels are uniformly distributed; training and test images never share
/// an index. Throws InvalidArgument for counts below 1 or above 100 million and if the directory cannot be written,
/// DataError if writing fails.
void write_digits(const std::filesystem::path& directory, const DigitsOptions& options = {});

}  // namespace samples
