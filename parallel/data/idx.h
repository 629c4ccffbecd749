// IDX files, the format of MNIST: plain or gzip, read with all lengths checked, written atomically. Format:
// http://yann.lecun.com/exdb/mnist/ (big-endian on disk, the machine's byte order in memory).
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

/// Dtype and shape of the array in an IDX file.
struct IdxHeader {
    DType dtype = DType::u8;
    std::vector<std::int64_t> shape;
};

/// Reads only the header. Throws as read_idx.
IdxHeader read_idx_header(const std::filesystem::path& path);

/// Reads an IDX file of u8, i32, f32 or f64, plain or gzip, whatever its name. Unpacks no more of a gzip file than its
/// IDX header declares and its size permits (at most 1032 times). Throws DataError, naming file and offset, if the file
/// is missing, truncated, longer than its header declares, corrupt, or of another element type.
IdxArray read_idx(const std::filesystem::path& path);

/// Compression of an IDX file.
enum class IdxCompression : std::uint8_t { none, gzip };

/// Writes an IDX file under a temporary name, syncs and renames it; after an error the old file is unchanged. shape has
/// 1 to 255 dimensions, each 0 to 2^32 - 1; data holds product(shape) elements of u8, i32, f32 or f64. The bytes depend
/// only on the arguments (and, for gzip, on zlib's version). Throws InvalidArgument for other shapes, dtypes and
/// lengths and if the directory is not writable, DataError if writing fails.
void write_idx(const std::filesystem::path& path, DType dtype, std::span<const std::int64_t> shape,
               std::span<const std::byte> data, IdxCompression compression = IdxCompression::none);

/// Paths of the four files of MNIST, or of a dataset with the same file names.
struct MnistFiles {
    std::filesystem::path train_images, train_labels, test_images, test_labels;
};

/// Finds them in `directory` or its MNIST/raw (the directory that torchvision uses). Names are train-images-idx3-ubyte
/// or train-images.idx3-ubyte (t10k-… for the test set), with or without .gz; a plain file is preferred. Throws
/// DataError if the directory or one of the files is missing, naming the paths searched.
MnistFiles find_mnist(const std::filesystem::path& directory);

}  // namespace lockstep
