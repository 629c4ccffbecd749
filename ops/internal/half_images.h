// Requests for kernels of 16-bit images, whose statistics, weights and sums are f32.
#pragma once

#include <algorithm>
#include <memory>

#include "lockstep/runtime/record.h"

namespace lockstep {

/// Whether all images of a request (4 dimensions) have the 16-bit dtype of the first input, and everything else is f32
/// or not floating.
inline bool images_are_half(const KernelRequest& request) {
    const DType dtype = request.in[0].dtype;
    const auto fits = [&](const TensorMeta& meta) {
        if (meta.shape.empty()) return true;  // missing
        return meta.shape.dims() == 4 && is_floating(meta.dtype) ? meta.dtype == dtype : !is_half_type(meta.dtype);
    };
    return is_half_type(dtype) && std::all_of(request.in.begin(), request.in.end(), fits) &&
           std::all_of(request.out.begin(), request.out.end(), fits);
}

/// `make` if images_are_half; otherwise null, for KernelTable::add_half_types.
template <class Op, std::unique_ptr<Kernel> (*make)(const Op&, KernelRequest&)>
std::unique_ptr<Kernel> make_for_half_images(const Op& operation, KernelRequest& request) {
    return images_are_half(request) ? make(operation, request) : nullptr;
}

}  // namespace lockstep
