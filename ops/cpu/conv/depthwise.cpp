#include "lockstep/ops/cpu/conv/depthwise.h"

#include <algorithm>

#include "lockstep/runtime/error.h"
#include "lockstep/runtime/round_up.h"

namespace lockstep::cpu {
namespace {

using Index = std::ptrdiff_t;

/// The gradient's taps in one direction: element o = first + i * stride of dx sums dy[i + offset] * w[tap] for each.
struct Residue {
    struct Tap {
        Index offset, tap;
    };
    Index first, count;
    std::vector<Tap> taps;
};

/// One for each residue of the elements of dx modulo the stride.
std::vector<Residue> residues(Index size, Index kernel, Index stride, Index pad, Index dilation) {
    std::vector<Residue> all;
    for (Index first = 0; first < std::min(stride, size); ++first) {
        Residue residue{first, ceil_div(size - first, stride), {}};
        for (Index tap = 0; tap < kernel; ++tap) {
            // Output o reads element o * stride + tap * dilation - pad.
            const Index distance = first + pad - tap * dilation;
            if (distance % stride == 0) residue.taps.push_back({distance / stride, tap});
        }
        all.push_back(std::move(residue));
    }
    return all;
}

/// Zeros before and after the `size` elements of dy that the taps read.
struct Margins {
    Index before, total;
};

Margins margins(const std::vector<Residue>& all, Index size) {
    Index least = 0, end = size;
    for (const Residue& residue : all)
        for (const Residue::Tap& tap : residue.taps) {
            least = std::min(least, tap.offset);
            end = std::max(end, tap.offset + residue.count);
        }
    return {-least, end - least};
}

}  // namespace

bool DepthwiseConv::supported(Isa isa, const ConvShape& s) {
    return isa != Isa::generic && isa <= machine_isa() && s.is_depthwise();
}

DepthwiseConv::Pass DepthwiseConv::make_forward(const ConvShape& s) {
    // Padding past the last window is not read.
    const Index rows = std::max(s.h + s.pad.h, (s.out_h() - 1) * s.stride.h + s.window_h());
    const Index columns = std::max(s.w + s.pad.w, (s.out_w() - 1) * s.stride.w + s.window_w());
    Pass pass{
        {s.h, s.w, s.pad.h, s.pad.w, rows, columns, s.stride.h, s.stride.w, s.out_h(), s.out_w(), 1, nullptr, nullptr},
        {{0, 1, s.out_h(), 0, 1, s.out_w(), 0, s.kh * s.kw}},
        {}};
    for (Index i = 0; i < s.kh; ++i)
        for (Index j = 0; j < s.kw; ++j)
            pass.taps.push_back({i * s.dilation.h * columns + j * s.dilation.w, i * s.kw + j});
    return pass;
}

DepthwiseConv::Pass DepthwiseConv::make_backward_data(const ConvShape& s) {
    const std::vector<Residue> all_rows = residues(s.h, s.kh, s.stride.h, s.pad.h, s.dilation.h);
    const std::vector<Residue> all_columns = residues(s.w, s.kw, s.stride.w, s.pad.w, s.dilation.w);
    const Margins of_rows = margins(all_rows, s.out_h()), of_columns = margins(all_columns, s.out_w());
    Pass pass{{s.out_h(), s.out_w(), of_rows.before, of_columns.before, of_rows.total, of_columns.total, 1, 1, s.h, s.w,
               0, nullptr, nullptr},
              {},
              {}};
    for (const Residue& row : all_rows)
        for (const Residue& column : all_columns) {
            const auto first = static_cast<Index>(pass.taps.size());
            for (const Residue::Tap& i : row.taps)
                for (const Residue::Tap& j : column.taps)
                    pass.taps.push_back({(i.offset + of_rows.before) * of_columns.total + j.offset + of_columns.before,
                                         i.tap * s.kw + j.tap});
            pass.phases.push_back({row.first, s.stride.h, row.count, column.first, s.stride.w, column.count, first,
                                   static_cast<Index>(pass.taps.size()) - first});
        }
    pass.sizes.phase_count = static_cast<Index>(pass.phases.size());
    return pass;
}

DepthwisePass DepthwiseConv::Pass::view() const {
    DepthwisePass pass = sizes;
    pass.phases = phases.data();
    pass.taps = taps.data();
    return pass;
}

DepthwiseConv::DepthwiseConv(Isa isa, const ConvShape& s)
    : kernels_(isa == Isa::avx512 ? &avx512::depthwise_kernels : &avx2::depthwise_kernels),
      sizes_{s.n, s.c, s.kh, s.kw},
      forward_(make_forward(s)),
      backward_data_(make_backward_data(s)) {
    if (!supported(isa, s))
        throw InvalidArgument(fmt::format("depthwise convolution: no kernel on {} for {}; expected a supported shape",
                                          isa_name(isa), text_of(s)));
}

std::size_t DepthwiseConv::scratch_bytes(int threads) const {
    const Index floats = std::max(kernels_->scratch_floats(sizes_, forward_.view(), threads),
                                  kernels_->scratch_floats(sizes_, backward_data_.view(), threads));
    return static_cast<std::size_t>(floats) * sizeof(float);
}

void DepthwiseConv::forward(const float* x, const float* w, const float* bias, float* y, void* scratch,
                            int threads) const {
    kernels_->convolve(sizes_, forward_.view(), x, w, bias, y, static_cast<float*>(scratch), threads);
}

void DepthwiseConv::backward_data(const float* dy, const float* w, float* dx, void* scratch, int threads) const {
    kernels_->convolve(sizes_, backward_data_.view(), dy, w, nullptr, dx, static_cast<float*>(scratch), threads);
}

void DepthwiseConv::backward_weights(const float* x, const float* dy, float* dw, float* db, void* scratch,
                                     int threads) const {
    kernels_->backward_weights(sizes_, forward_.view(), x, dy, dw, db, static_cast<float*>(scratch), threads);
}

}  // namespace lockstep::cpu
