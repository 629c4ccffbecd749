#include "lockstep/parallel/data/images/resampling.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace lockstep::internal {
namespace {

// Weights are multiples of 2^-22: with 8-bit pixels and a filter whose absolute weights add up to little more than 1,
// sums fit in 32 bits.
constexpr int weight_bits = 22;
constexpr std::int32_t half_a_level = 1 << (weight_bits - 1);

double bilinear_filter(double x) {
    x = std::abs(x);
    return x < 1 ? 1 - x : 0;
}

double bicubic_filter(double x) {
    constexpr double a = -0.5;
    x = std::abs(x);
    if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
    if (x < 2) return (((x - 5) * x + 8) * x - 4) * a;
    return 0;
}

/// The old pixels that each new pixel of a row or column is computed from, and their weights.
struct FilterWindows {
    struct Window {
        std::size_t first, count;
    };
    std::vector<Window> windows;
    std::size_t stride = 0;             ///< distance between the weights of two windows
    std::vector<std::int32_t> weights;  ///< (windows, stride)

    FilterWindows(std::size_t from, std::size_t to, ResamplingFilter filter) : windows(to) {
        const auto value = filter == ResamplingFilter::bicubic ? bicubic_filter : bilinear_filter;
        const double scale = static_cast<double>(from) / static_cast<double>(to);
        const double stretch = std::max(scale, 1.0);  // when shrinking, the filter covers a whole new pixel
        const double support = (filter == ResamplingFilter::bicubic ? 2.0 : 1.0) * stretch;
        stride = static_cast<std::size_t>(std::ceil(support)) * 2 + 1;
        weights.resize(to * stride);
        std::vector<double> exact(stride);
        for (std::size_t i = 0; i < to; ++i) {
            const double centre = (static_cast<double>(i) + 0.5) * scale;
            const auto first = static_cast<std::size_t>(std::max(std::floor(centre - support + 0.5), 0.0));
            const std::size_t end = std::min(static_cast<std::size_t>(std::floor(centre + support + 0.5)), from);
            windows[i] = {first, end - first};
            double sum = 0;
            for (std::size_t k = 0; k < end - first; ++k) {
                exact[k] = value((static_cast<double>(k + first) - centre + 0.5) * (1 / stretch));
                sum += exact[k];
            }
            for (std::size_t k = 0; k < end - first; ++k) {
                const double weight = (sum != 0 ? exact[k] / sum : exact[k]) * (1 << weight_bits);
                weights[i * stride + k] = static_cast<std::int32_t>(weight < 0 ? weight - 0.5 : weight + 0.5);
            }
        }
    }
};

std::uint8_t as_level(std::int32_t sum) { return static_cast<std::uint8_t>(std::clamp(sum >> weight_bits, 0, 255)); }

template <std::size_t channels>
void resample_row(const std::uint8_t* row, const FilterWindows& along, std::uint8_t* to) {
    for (std::size_t i = 0; i < along.windows.size(); ++i) {
        const auto [first, count] = along.windows[i];
        const std::uint8_t* pixel = row + first * channels;
        const std::int32_t* weight = along.weights.data() + i * along.stride;
        std::array<std::int32_t, channels> sums;
        sums.fill(half_a_level);
        for (std::size_t k = 0; k < count; ++k, pixel += channels)
            for (std::size_t c = 0; c < channels; ++c) sums[c] += pixel[c] * weight[k];
        for (std::size_t c = 0; c < channels; ++c) *to++ = as_level(sums[c]);
    }
}

using RowResampling = void (*)(const std::uint8_t*, const FilterWindows&, std::uint8_t*);

RowResampling row_resampling_for(int channels) {
    switch (channels) {
        case 1: return resample_row<1>;
        case 2: return resample_row<2>;
        case 3: return resample_row<3>;
        default: return resample_row<4>;
    }
}

/// All columns at once: `rows` has rows of `length` bytes.
std::vector<std::uint8_t> resample_columns(std::span<const std::uint8_t> rows, std::size_t length,
                                           const FilterWindows& along) {
    std::vector<std::uint8_t> to(along.windows.size() * length);
    constexpr std::size_t piece = 2048;  // sums that fit in the first-level cache
    std::array<std::int32_t, piece> sums;
    for (std::size_t i = 0; i < along.windows.size(); ++i) {
        const auto [first, count] = along.windows[i];
        const std::int32_t* weight = along.weights.data() + i * along.stride;
        for (std::size_t begin = 0; begin < length; begin += piece) {
            const std::size_t width = std::min(piece, length - begin);
            std::fill_n(sums.begin(), width, half_a_level);
            for (std::size_t k = 0; k < count; ++k) {
                const std::uint8_t* row = rows.data() + (first + k) * length + begin;
                const std::int32_t w = weight[k];
                for (std::size_t x = 0; x < width; ++x) sums[x] += row[x] * w;
            }
            std::uint8_t* out = to.data() + i * length + begin;
            for (std::size_t x = 0; x < width; ++x) out[x] = as_level(sums[x]);
        }
    }
    return to;
}

/// Accumulated as in Pillow: if a centre is on the edge of a pixel, rounding decides.
std::vector<std::size_t> nearest_places(std::size_t from, std::size_t to) {
    std::vector<std::size_t> places(to);
    const double scale = static_cast<double>(from) / static_cast<double>(to);
    double centre = scale * 0.5;
    for (std::size_t& place : places) {
        place = std::min(static_cast<std::size_t>(centre), from - 1);
        centre += scale;
    }
    return places;
}

}  // namespace

std::vector<std::uint8_t> resample(std::span<const std::uint8_t> pixels, PixelGrid from, PixelGrid to, int channels,
                                   ResamplingFilter filter) {
    const auto size = static_cast<std::size_t>(channels);
    std::vector<std::uint8_t> rows;
    if (from.width == to.width) {
        rows.assign(pixels.begin(), pixels.end());
    } else {
        const FilterWindows along(from.width, to.width, filter);
        const RowResampling resample_one = row_resampling_for(channels);
        rows.resize(from.height * to.width * size);
        for (std::size_t y = 0; y < from.height; ++y)
            resample_one(pixels.data() + y * from.width * size, along, rows.data() + y * to.width * size);
    }
    if (from.height == to.height) return rows;
    return resample_columns(rows, to.width * size, FilterWindows(from.height, to.height, filter));
}

std::vector<std::uint8_t> pick_nearest(std::span<const std::uint8_t> pixels, PixelGrid from, PixelGrid to,
                                       std::size_t channels) {
    const std::vector<std::size_t> columns = nearest_places(from.width, to.width);
    std::vector<std::uint8_t> picked;
    picked.reserve(to.height * to.width * channels);
    for (const std::size_t y : nearest_places(from.height, to.height)) {
        const std::uint8_t* row = pixels.data() + y * from.width * channels;
        for (const std::size_t x : columns) picked.insert(picked.end(), row + x * channels, row + (x + 1) * channels);
    }
    return picked;
}

}  // namespace lockstep::internal
