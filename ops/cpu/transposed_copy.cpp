#include "lockstep/ops/cpu/transposed_copy.h"

#include <algorithm>
#include <vector>

#include "lockstep/ops/cpu/parallel.h"
#include "lockstep/runtime/round_up.h"

namespace lockstep::cpu {
namespace {

constexpr std::int64_t tile = 16;  // elements of a side: 64 bytes of f32, a cache line

// The memory holds elements of another type.
typedef std::uint8_t Bits8 __attribute__((may_alias));
typedef std::uint16_t Bits16 __attribute__((may_alias));
typedef std::uint32_t Bits32 __attribute__((may_alias));
typedef std::uint64_t Bits64 __attribute__((may_alias));

/// A whole tile. The source is read and the target is written a line at a time: lines that are a power of two apart
/// share a few places of the cache.
template <class Bits>
void transpose_tile(const Bits* from, std::int64_t from_step, Bits* to, std::int64_t to_step) {
    Bits lines[tile][tile];
    for (std::int64_t i = 0; i < tile; ++i) std::copy_n(from + i * from_step, tile, lines[i]);
    if constexpr (sizeof(Bits) == 4) {
        typedef std::uint32_t Four __attribute__((vector_size(16)));
        typedef std::uint32_t UnalignedFour __attribute__((vector_size(16), aligned(4), may_alias));
        for (std::int64_t j = 0; j < tile; j += 4)
            for (std::int64_t i = 0; i < tile; i += 4) {
                Four row[4];
                for (std::int64_t k = 0; k < 4; ++k) row[k] = *reinterpret_cast<const UnalignedFour*>(&lines[i + k][j]);
                const Four a = __builtin_shufflevector(row[0], row[1], 0, 4, 1, 5);
                const Four b = __builtin_shufflevector(row[2], row[3], 0, 4, 1, 5);
                const Four c = __builtin_shufflevector(row[0], row[1], 2, 6, 3, 7);
                const Four d = __builtin_shufflevector(row[2], row[3], 2, 6, 3, 7);
                const auto write = [&](std::int64_t column, const Four& values) {
                    *reinterpret_cast<UnalignedFour*>(to + (j + column) * to_step + i) = values;
                };
                write(0, __builtin_shufflevector(a, b, 0, 1, 4, 5));
                write(1, __builtin_shufflevector(a, b, 2, 3, 6, 7));
                write(2, __builtin_shufflevector(c, d, 0, 1, 4, 5));
                write(3, __builtin_shufflevector(c, d, 2, 3, 6, 7));
            }
    } else {
        for (std::int64_t j = 0; j < tile; ++j)
            for (std::int64_t i = 0; i < tile; ++i) to[j * to_step + i] = lines[i][j];
    }
}

}  // namespace

std::optional<TransposedCopy> TransposedCopy::of(std::size_t element_bytes, const Shape& from_strides,
                                                 const Shape& to_strides, const Shape& shape) {
    struct Dim {
        std::int64_t size, from, to;
    };
    std::vector<Dim> dims;  // adjacent dimensions are merged if both tensors allow it
    for (int i = 0; i < shape.dims(); ++i) {
        if (shape[i] == 1) continue;
        const Dim dim{shape[i], from_strides[i], to_strides[i]};
        if (!dims.empty() && dims.back().from == dim.size * dim.from && dims.back().to == dim.size * dim.to)
            dims.back() = {dims.back().size * dim.size, dim.from, dim.to};
        else
            dims.push_back(dim);
    }
    const auto row = std::find_if(dims.begin(), dims.end(), [](const Dim& dim) { return dim.to == 1; });
    const auto column = std::find_if(dims.begin(), dims.end(), [](const Dim& dim) { return dim.from == 1; });
    if (row == dims.end() || column == dims.end() || row == column) return std::nullopt;
    if (row->size < tile || column->size < tile || row->from == 0 || shape.numel() == 0) return std::nullopt;
    TransposedCopy copy;
    copy.bytes_ = element_bytes;
    copy.rows_ = row->size;
    copy.columns_ = column->size;
    copy.from_step_ = row->from;
    copy.to_step_ = column->to;
    Shape sizes, from, to;
    for (auto dim = dims.begin(); dim != dims.end(); ++dim) {
        if (dim == row || dim == column) continue;
        sizes.push_back(dim->size);
        from.push_back(dim->from);
        to.push_back(dim->to);
    }
    copy.outer_ = StridedWalk<2>(sizes, {from, to});
    return copy;
}

template <class Bits>
void TransposedCopy::run_as(const Bits* from, Bits* to, int threads) const {
    const std::int64_t bands = ceil_div(rows_, tile), matrices = outer_.rows() * outer_.run();
    const auto band = [&](const Bits* source, Bits* target, std::int64_t first) {
        const std::int64_t height = std::min(tile, rows_ - first);
        for (std::int64_t column = 0; column < columns_; column += tile) {
            const std::int64_t width = std::min(tile, columns_ - column);
            const Bits* const x = source + first * from_step_ + column;
            Bits* const y = target + column * to_step_ + first;
            if (height == tile && width == tile) {
                transpose_tile(x, from_step_, y, to_step_);
                continue;
            }
            for (std::int64_t j = 0; j < width; ++j)
                for (std::int64_t i = 0; i < height; ++i) y[j * to_step_ + i] = x[i * from_step_ + j];
        }
    };
    for_parts(worthwhile_threads(threads, matrices * rows_ * columns_), matrices * bands, 1,
              [&](std::int64_t begin, std::int64_t end) {
                  for (std::int64_t part = begin; part < end; ++part) {
                      const std::int64_t matrix = part / bands, place = matrix % outer_.run();
                      outer_.for_rows(matrix / outer_.run(), matrix / outer_.run() + 1, [&](const auto& at) {
                          band(from + at[0] + place * outer_.steps()[0], to + at[1] + place * outer_.steps()[1],
                               part % bands * tile);
                      });
                  }
              });
}

void TransposedCopy::run(const void* from, void* to, int threads) const {
    switch (bytes_) {
        case 1: return run_as(static_cast<const Bits8*>(from), static_cast<Bits8*>(to), threads);
        case 2: return run_as(static_cast<const Bits16*>(from), static_cast<Bits16*>(to), threads);
        case 4: return run_as(static_cast<const Bits32*>(from), static_cast<Bits32*>(to), threads);
        default: return run_as(static_cast<const Bits64*>(from), static_cast<Bits64*>(to), threads);
    }
}

}  // namespace lockstep::cpu
