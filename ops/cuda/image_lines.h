// Rows of images in the registers of a thread that computes several adjacent results: `lanes` channels of one pixel if
// channels are last, or `lanes` pixels of one row of a plane. All its accesses are issued before the arithmetic.
#pragma once

#include "lockstep/ops/cuda/image_index.h"
#include "lockstep/ops/cuda/pack.h"
#include "lockstep/ops/cuda/unroll.h"

namespace lockstep::cuda {

/// The elements of a row that `lanes` results need: `columns` for every lane. In a plane, lane l has elements
/// [l * step, l * step + columns). The first `lead` columns are those before the pixels of the thread.
template <class T, bool planes, int lanes, int columns, int step, int lead = 0>
struct Line {
    static constexpr int count = planes ? (lanes - 1) * step + columns : columns * lanes;
    static constexpr int body = lanes * step;  // in a plane: elements of one access
    T of[count];

    LOCKSTEP_HD_INLINE static constexpr int at(int column, int lane) {
        return planes ? lane * step + column : column * lanes + lane;
    }
    LOCKSTEP_HD_INLINE T operator()(int column, int lane) const { return of[at(column, lane)]; }
    LOCKSTEP_HD_INLINE void set(int column, int lane, T value) { of[at(column, lane)] = value; }

    /// Reads the elements that are in the image; the others become `missing`. `from`: address of column 0 of lane 0.
    /// Columns from `first` on of the first lane, and those before `end` of the last one, are in the image.
    /// `exists`: whether the row is.
    LOCKSTEP_HD_INLINE void load(const T* from, std::int64_t pixel, int first, int end, bool exists, T missing) {
        if constexpr (planes) {
            LOCKSTEP_UNROLL
            for (int i = 0; i < lead; ++i) of[i] = exists && i >= first ? from[i] : missing;
            load_pack_at<body>(lead, from + lead, exists, missing);
            LOCKSTEP_UNROLL
            for (int i = lead + body; i < count; ++i) of[i] = exists && columns - (count - i) < end ? from[i] : missing;
        } else {
            LOCKSTEP_UNROLL
            for (int c = 0; c < columns; ++c)
                load_pack_at<lanes>(c * lanes, from + c * pixel, exists && c >= first && c < end, missing);
        }
    }
    /// Writes the columns before `end`. Each lane has `step` columns.
    LOCKSTEP_HD_INLINE void store(T* to, std::int64_t pixel, int end) const {
        static_assert(columns == step && lead == 0);
        if constexpr (planes) {
            store_chunk(of, to);
        } else {
            LOCKSTEP_UNROLL
            for (int c = 0; c < columns; ++c) {
                if (c >= end) break;
                Pack<T, lanes> values;
                LOCKSTEP_UNROLL
                for (int i = 0; i < lanes; ++i) values.of[i] = of[c * lanes + i];
                store_pack(to + c * pixel, values);
            }
        }
    }

private:
    template <int width>
    LOCKSTEP_HD_INLINE void load_pack_at(int place, const T* from, bool exists, T missing) {
        if (exists) {
            const auto values = load_pack<width>(from);
            LOCKSTEP_UNROLL
            for (int i = 0; i < width; ++i) of[place + i] = values.of[i];
        } else {
            LOCKSTEP_UNROLL
            for (int i = 0; i < width; ++i) of[place + i] = missing;
        }
    }
};

/// The size as the type of column numbers, which are small: at most `most`.
LOCKSTEP_HD_INLINE int at_most(std::int64_t size, int most) { return size < most ? static_cast<int>(size) : most; }

/// Calls run(planes, lanes), integral constants, for kernels whose smaller images have half of the pixels of the larger
/// ones in both directions. Rows of the smaller ones have `w` pixels. `halves`: rows of the larger ones have 2 * w.
/// `aligned`: all addresses suit the widest packs. False if planes cannot be cut into pairs of pixels, or pixels into
/// packs.
template <class Stored, class Run>
bool with_lanes(const Images& images, std::int64_t w, bool halves, bool aligned, const Run& run) {
    constexpr int wide = widest<Stored>, half = wide / 2;
    if (!aligned || (images.channels_last ? images.c % wide != 0 : !halves)) return false;
    if (images.channels_last)
        run(std::false_type(), std::integral_constant<int, wide>());
    else if (w % half == 0)
        run(std::true_type(), std::integral_constant<int, half>());
    else
        run(std::true_type(), std::integral_constant<int, 1>());
    return true;
}

/// The threads of such a kernel: `lanes` adjacent pixels of a plane's row, or channels of a pixel, in every row.
template <bool planes, int lanes>
PixelWalk walk_lanes(const Images& images, std::int64_t h, std::int64_t w) {
    return {images, h, planes ? w / lanes : w, planes ? 1 : lanes, Slices::one};
}

}  // namespace lockstep::cuda
