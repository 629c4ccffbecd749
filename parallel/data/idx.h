// IDX files, the format of MNIST: plain or gzip, read with every length checked, written at once or not at all.
// Format: http://yann.lecun.com/exdb/mnist/ (big-endian on disk, the machine's byte order in memory).
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "lockstep/runtime/dtype.h"

namespace lockstep {

/// The content of an IDX file: a dense row-major array. data holds product(shape) elements in host byte order.
struct IdxArray {
    DType dtype = DType::u8;
    std::vector<std::int64_t> shape;
    std::vector<std::byte> data;
};

/// What an IDX file says of its array before the first element.
struct IdxHeader {
    DType dtype = DType::u8;
    std::vector<std::int64_t> shape;
};

/// Reads the header alone. Throws as read_idx.
IdxHeader read_idx_header(const std::filesystem::path& path);

/// Reads an IDX file of u8, i32, f32 or f64, plain or gzip, whatever its name. Of a gzip file no more is unpacked than
/// its IDX header says and the file has (at most 1032 times its size). Throws DataError, naming file and offset, when
/// the file is missing, truncated, longer than its header says, corrupt, or of another element type.
IdxArray read_idx(const std::filesystem::path& path);

enum class IdxCompression : std::uint8_t { none, gzip };

/// Writes an IDX file under a temporary name, syncs and renames it: after an error the old file is as it was.
/// shape has 1 to 255 dimensions, each 0 to 2^32 - 1; data holds product(shape) elements of u8, i32, f32 or f64.
/// The bytes depend on the arguments (and, for gzip, on zlib's version) alone. Throws InvalidArgument on other shapes,
/// dtypes and lengths and where the directory cannot be written, DataError when writing fails.
void write_idx(const std::filesystem::path& path, DType dtype, std::span<const std::int64_t> shape,
               std::span<const std::byte> data, IdxCompression compression = IdxCompression::none);

/// Where the four files of MNIST, or of a data set under its names, lie.
struct MnistFiles {
    std::filesystem::path train_images, train_labels, test_images, test_labels;
};

/// Finds them in `directory` or its MNIST/raw (where torchvision puts them), under the names train-images-idx3-ubyte or
/// train-images.idx3-ubyte (t10k-… for the test set), with or without .gz; a plain file is preferred.
/// Throws DataError when the directory or one of them is missing, naming what was looked for.
MnistFiles find_mnist(const std::filesystem::path& directory);

}  // namespace lockstep
