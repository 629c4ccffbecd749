// Cat, Split, Pad and OneHot. Images remain in the layout in which convolutions produce them.
#include <algorithm>
#include <cstring>
#include <vector>

#include "lockstep/ops/cpu/kernels.h"
#include "lockstep/ops/cpu/layout.h"
#include "lockstep/ops/cpu/parallel.h"
#include "lockstep/ops/cpu/report.h"
#include "lockstep/ops/cpu/strided_copy.h"
#include "lockstep/ops/internal/tensor_operations.h"
#include "lockstep/runtime/record.h"
#include "lockstep/runtime/round_up.h"

namespace lockstep::cpu {
namespace {

/// Pieces of given sizes, one after another along a dimension of a whole tensor.
struct Pieces {
    Shape whole;                      ///< the whole as strided dimensions
    int dim;                          ///< dimension of `whole`
    std::vector<std::int64_t> sizes;  ///< sizes along `dim`
    bool opaque = false;              ///< all have the layout of the model; otherwise strided

    /// `model`: a tensor whose layout the pieces should have; impossible if a cut is inside a block of channels.
    Pieces(const TensorMeta& model, const Shape& shape, int along, std::vector<std::int64_t> given)
        : whole(shape), dim(along), sizes(std::move(given)) {
        if (along != 1 || model.opaque == nullptr) return;
        const std::int64_t spatial = shape[2] * shape[3];
        if (is_channels_last(model)) {
            whole = {shape[0] * spatial, shape[1]};
            opaque = true;
        } else if (const auto planes = planes_of(model)) {
            const std::int64_t width = planes->width;
            opaque = std::all_of(sizes.begin(), sizes.end() - 1, [=](std::int64_t c) { return c % width == 0; });
            if (!opaque) return;
            for (std::int64_t& size : sizes) size = round_up(size, width) * spatial;
            whole = {shape[0], round_up(shape[1], width) * spatial};
        }
    }
    Shape piece(std::size_t i) const {
        Shape shape = whole;
        shape[dim] = sizes[i];
        return shape;
    }
};

/// A copy with its offset in bytes.
struct PieceCopy {
    StridedCopy copy;
    std::size_t place;
    std::size_t which;
};

std::unique_ptr<Kernel> make_cat(const Cat& operation, KernelRequest& request) {
    const auto found = std::find_if(request.in.begin(), request.in.end(),
                                    [](const TensorMeta& meta) { return meta.opaque != nullptr; });
    const TensorMeta model = found != request.in.end() ? *found : request.in[0];
    std::vector<std::int64_t> sizes;
    for (const TensorMeta& part : request.in) sizes.push_back(part.shape[operation.dim]);
    const Pieces pieces(model, request.out[0].shape, operation.dim, sizes);
    if (pieces.opaque)
        set_layout_like(request.out[0], model);
    else
        require_contiguous_output(operation, request, 0);
    const Shape steps = pieces.whole.contiguous_strides();
    std::vector<PieceCopy> copies;
    std::int64_t at = 0;
    for (std::size_t i = 0; i < request.in.size(); ++i) {
        TensorMeta& from = request.in[i];
        if (pieces.opaque)
            set_layout_like(from, model);
        else if (from.opaque != nullptr)
            request.want_contiguous(i);
        const Shape piece = pieces.piece(i);
        copies.push_back({StridedCopy(from.dtype, pieces.opaque ? piece.contiguous_strides() : from.strides, from.dtype,
                                      steps, piece),
                          static_cast<std::size_t>(at * steps[pieces.dim]) * size_of(from.dtype), i});
        at += pieces.sizes[i];
    }
    return make_kernel([copies, threads = request.threads](const KernelArgs& call) {
        for (const PieceCopy& each : copies)
            each.copy.run(call.in[each.which], static_cast<char*>(call.out[0]) + each.place, threads);
    });
}

std::unique_ptr<Kernel> make_split(const Split& operation, KernelRequest& request) {
    const Pieces pieces(request.in[0], request.in[0].shape, operation.dim, operation.sizes);
    if (!pieces.opaque && request.in[0].opaque != nullptr) request.want_contiguous(0);
    const TensorMeta& from = request.in[0];
    const Shape steps = pieces.opaque ? pieces.whole.contiguous_strides() : from.strides;
    std::vector<PieceCopy> copies;
    std::int64_t at = 0;
    for (std::size_t i = 0; i < pieces.sizes.size(); ++i) {
        if (request.has_out(i)) {
            if (pieces.opaque)
                set_layout_like(request.out[i], from);
            else
                require_contiguous_output(operation, request, i);
            const Shape piece = pieces.piece(i);
            copies.push_back({StridedCopy(from.dtype, steps, from.dtype, piece.contiguous_strides(), piece),
                              static_cast<std::size_t>(at * steps[pieces.dim]) * size_of(from.dtype), i});
        }
        at += pieces.sizes[i];
    }
    return make_kernel([copies, threads = request.threads](const KernelArgs& call) {
        for (const PieceCopy& each : copies)
            each.copy.run(static_cast<const char*>(call.in[0]) + each.place, call.out[each.which], threads);
    });
}

/// Fills the result, then copies the remaining part of x into it.
class PadKernel final : public Kernel {
public:
    /// All shapes have the same number of dimensions; `x_strides` are the strides of x.
    PadKernel(DType dtype, const Shape& x, const Shape& x_strides, const Shape& y, const Shape& before, double value)
        : value_(value),
          fill_(DType::f64, nowhere(y), dtype, y.contiguous_strides(), y),
          copy_(dtype, x_strides, dtype, y.contiguous_strides(), common(x, y, before)) {
        const Shape steps = y.contiguous_strides();
        const auto size = static_cast<std::int64_t>(size_of(dtype));
        for (int d = 0; d < x.dims(); ++d) {
            from_ += std::max<std::int64_t>(0, -before[d]) * x_strides[d] * size;
            to_ += std::max<std::int64_t>(0, before[d]) * steps[d] * size;
        }
        copies_ = common(x, y, before).numel() > 0;
    }
    void run(const KernelArgs& call) const override {
        fill_.run(&value_, call.out[0], threads);
        if (copies_)
            copy_.run(static_cast<const char*>(call.in[0]) + from_, static_cast<char*>(call.out[0]) + to_, threads);
    }

private:
    static Shape nowhere(Shape shape) {
        for (int d = 0; d < shape.dims(); ++d) shape[d] = 0;
        return shape;
    }
    /// Shape of the part that x and the result have in common.
    static Shape common(const Shape& x, const Shape& y, const Shape& before) {
        Shape shape = x;
        for (int d = 0; d < x.dims(); ++d)
            shape[d] =
                std::max<std::int64_t>(0, std::min(x[d] + before[d], y[d]) - std::max<std::int64_t>(0, before[d]));
        return shape;
    }

    double value_;
    StridedCopy fill_, copy_;
    std::int64_t from_ = 0, to_ = 0;  // in bytes
    bool copies_ = false;
};

/// Dimensions in memory of an image in one of the backend's layouts; the second and third are height and width.
Shape laid_dims(const TensorMeta& meta) {
    if (is_channels_last(meta)) return {meta.shape[0], meta.shape[2], meta.shape[3], meta.shape[1]};
    const auto planes = planes_of(meta);
    return {planes->count(), planes->h, planes->w, planes->width};
}

std::unique_ptr<Kernel> make_pad(const Pad& operation, KernelRequest& request) {
    const Shape& before = operation.before;
    const bool known = is_channels_last(request.in[0]) || planes_of(request.in[0]);
    const bool of_images = request.in[0].opaque != nullptr && known && before[0] == 0 && before[1] == 0 &&
                           request.out[0].shape[0] == request.in[0].shape[0] &&
                           request.out[0].shape[1] == request.in[0].shape[1];
    // The zeros that pad the channels of a blocked image must remain zeros.
    if (of_images && is_dense(request.in[0], operation.value == 0)) {
        set_layout_like(request.out[0], request.in[0]);
        const Shape x = laid_dims(request.in[0]), y = laid_dims(request.out[0]);
        return std::make_unique<PadKernel>(request.in[0].dtype, x, x.contiguous_strides(), y,
                                           Shape{0, before[2], before[3], 0}, operation.value);
    }
    if (request.in[0].opaque != nullptr) request.want_contiguous(0);
    require_contiguous_output(operation, request, 0);
    return std::make_unique<PadKernel>(request.in[0].dtype, request.in[0].shape, request.in[0].strides,
                                       request.out[0].shape, before, operation.value);
}

/// Calls `make` with an element of the result's dtype.
template <class Make>
auto for_one_hot(const OneHot& operation, DType dtype, const Make& make) {
    return dtype == DType::i64 ? make(std::int64_t{}) : for_floating(operation, dtype, make);
}

std::unique_ptr<Kernel> make_one_hot(const OneHot& operation, KernelRequest& request) {
    request.want_all_contiguous();
    require_contiguous_output(operation, request, 0);
    const Shape& shape = request.out[0].shape;
    const std::int64_t classes = shape[operation.dim], numbers = request.in[0].numel();
    std::int64_t inner = 1;
    for (int d = operation.dim + 1; d < shape.dims(); ++d) inner *= shape[d];
    const std::int64_t row =
        request.in[0].shape.empty() ? 1 : numbers / std::max<std::int64_t>(1, request.in[0].shape[0]);
    return for_one_hot(operation, request.out[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_kernel([=, threads = request.threads](const KernelArgs& call) {
            const auto* x = call.input<std::int64_t>(0);
            T* const y = call.output<T>(0);
            for_parts(worthwhile_threads(threads, numbers * classes), numbers * classes, element_grain,
                      [&](std::int64_t begin, std::int64_t end) {
                          std::memset(y + begin, 0, static_cast<std::size_t>(end - begin) * sizeof(T));
                      });
            for (std::int64_t i = 0; i < numbers; ++i) {
                const std::int64_t c = x[i], outer = inner == 1 ? i : i / inner;
                if (c < 0 || c >= classes)
                    report(call, StatusCode::target_out_of_range, call.first_row + i / row, c);
                else
                    y[(outer * classes + c) * inner + i - outer * inner] = T(1);
            }
        });
    });
}

}  // namespace

void add_concat_kernels(KernelTable& table) {
    table.add<Cat, make_cat>();
    table.add<Split, make_split>();
    table.add<Pad, make_pad>();
    table.add<OneHot, make_one_hot>();
    table.add_half_types<Cat, make_cat>();
    table.add_half_types<Split, make_split>();
    table.add_half_types<Pad, make_pad>();
}

}  // namespace lockstep::cpu
