// Handwriting-like digits drawn by the library itself, so that everybody has a data set that must be learned.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

namespace lockstep {

/// Side of a digit image in pixels, as in MNIST.
inline constexpr std::size_t digit_side = 28;

/// Draws one digit (0 to 9) into 28 rows of 28 pixels, 0 is paper and 255 is ink.
/// (digit, seed, index) decides every pixel: the same bytes on every machine and compiler, in any order of calls, and
/// different `index` give independent drawings. Strokes, slant, rotation, size, shift, pen and noise vary.
/// Throws InvalidArgument when digit is not 0 to 9 or pixels does not hold 784 bytes.
void render_digit(int digit, std::uint64_t seed, std::uint64_t index, std::span<std::uint8_t> pixels);

/// How write_digits() draws a data set. Counts are images.
struct DigitsOptions {
    std::int64_t train_count = 30000;
    std::int64_t test_count = 4000;
    std::uint64_t seed = 1;
    bool gzip = false;
};

/// Writes the four files of MNIST under MNIST's names (with .gz where gzip is set) to `directory`, which is made where
/// it is missing; every file is replaced at once or left as it was. Labels are drawn uniformly, training and test
/// images never share an index. Throws InvalidArgument on counts below 1 or above 100 million and where the directory
/// cannot be written, DataError when writing fails.
void write_digits(const std::filesystem::path& directory, const DigitsOptions& options = {});

}  // namespace lockstep
