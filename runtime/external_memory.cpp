#include "lockstep/runtime/external_memory.h"

#include <dlpack/dlpack.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/api_scope.h"
#include "lockstep/runtime/internal/eager.h"
#include "lockstep/runtime/internal/operands.h"
#include "lockstep/runtime/log.h"
#include "lockstep/runtime/memory.h"
#include "lockstep/runtime/stream.h"

namespace lockstep {

namespace {

/// Kernels choose their accesses by an operand's offset in its buffer, because buffers are aligned to this.
constexpr std::uintptr_t buffer_alignment = 256;

constexpr std::int64_t most_bytes = std::int64_t{1} << 60;

/// Layout of a tensor at `data`, in a buffer that begins at the aligned address before it. Throws InvalidArgument as
/// from_blob does.
TensorMeta checked_layout(const char* function, const void* data, DType dtype, const Shape& shape,
                          const std::optional<Shape>& strides) {
    const std::int64_t most = most_bytes / static_cast<std::int64_t>(size_of(dtype));
    std::int64_t count = 1;
    for (const std::int64_t size : shape) {
        if (size < 0)
            throw InvalidArgument(
                fmt::format("{}: shape {} has a negative size; expected sizes of 0 or more", function, shape.str()));
        if (size > 0 && count > most / size)
            throw InvalidArgument(
                fmt::format("{}: shape {} has too many elements; expected at most 2^60 bytes", function, shape.str()));
        count *= std::max<std::int64_t>(size, 1);
    }
    TensorMeta meta;
    meta.dtype = dtype;
    meta.shape = shape;
    meta.strides = strides.value_or(shape.contiguous_strides());
    if (meta.strides.dims() != shape.dims())
        throw InvalidArgument(fmt::format("{}: strides {} for shape {}; expected one stride per dimension", function,
                                          meta.strides.str(), shape.str()));
    std::int64_t last = 0;
    for (int i = 0; i < shape.dims(); ++i) {
        const std::int64_t stride = meta.strides[i];
        if (stride < 0)
            throw InvalidArgument(
                fmt::format("{}: strides {} are negative; expected strides of 0 or more (a copy has "
                            "them)",
                            function, meta.strides.str()));
        if (shape[i] > 1 && stride > (most - last) / (shape[i] - 1))
            throw InvalidArgument(fmt::format("{}: strides {} for shape {} reach too far; expected at most 2^60 bytes",
                                              function, meta.strides.str(), shape.str()));
        if (shape[i] > 1) last += (shape[i] - 1) * stride;
    }
    const auto address = reinterpret_cast<std::uintptr_t>(data);
    if (!data && meta.numel() > 0)
        throw InvalidArgument(
            fmt::format("{}: the pointer is null; expected the address of the elements of a tensor of shape {}",
                        function, shape.str()));
    if (address % size_of(dtype) != 0)
        throw InvalidArgument(fmt::format("{}: the address {:#x} is misaligned; expected a multiple of {} for {}",
                                          function, address, size_of(dtype), name_of(dtype)));
    meta.offset = static_cast<std::int64_t>(address % buffer_alignment / size_of(dtype));
    return meta;
}

/// Memory that a tensor owns. Until then it belongs to the caller, also if the tensor cannot be made.
class OwnedMemory {
public:
    explicit OwnedMemory(std::function<void()> release) : release_(std::move(release)) {}
    OwnedMemory(const OwnedMemory&) = delete;
    OwnedMemory& operator=(const OwnedMemory&) = delete;
    ~OwnedMemory() {
        if (!owned_) return;
        // The last tensor may be destroyed by any thread, in which an exception would end the process.
        try {
            release_();
        } catch (const std::exception& error) {
            write_log(LogLevel::warning, std::string("the deleter of a tensor's memory threw: ") + error.what());
        } catch (...) {
            write_log(LogLevel::warning, "the deleter of a tensor's memory threw an exception of another type");
        }
    }
    void take() { owned_ = true; }

private:
    std::function<void()> release_;
    bool owned_ = false;
};

/// `meta`: as above for this address. `release` is called when no device uses the memory any more.
Tensor tensor_at(void* data, const TensorMeta& meta, Stream& home, std::function<void()> release) {
    const auto owner = std::make_shared<OwnedMemory>(std::move(release));
    void* const begin = static_cast<std::byte*>(data) - static_cast<std::size_t>(meta.offset) * size_of(meta.dtype);
    Tensor tensor = tensor_over(Buffer::external(home, begin, meta.bytes(), owner), meta);
    owner->take();
    return tensor;
}

}  // namespace

Tensor from_blob(void* data, DType dtype, const Shape& shape, const BlobOptions& options) {
    const TensorMeta meta = checked_layout("from_blob", data, dtype, shape, options.strides);
    Stream& home = Stream::of(options.device);
    return tensor_at(data, meta, home, [data, deleter = options.deleter] {
        if (deleter) deleter(data);
    });
}

namespace {

// Element types and devices by DLPack's codes.

/// kDLBool of DLPack 0.8; the header may be older.
constexpr std::uint8_t bool_code = 6;

struct TypeCode {
    DType dtype;
    std::uint8_t code, bits;
};
constexpr std::array<TypeCode, 8> type_codes = {{{DType::f32, kDLFloat, 32},
                                                 {DType::f64, kDLFloat, 64},
                                                 {DType::f16, kDLFloat, 16},
                                                 {DType::bf16, kDLBfloat, 16},
                                                 {DType::i32, kDLInt, 32},
                                                 {DType::i64, kDLInt, 64},
                                                 {DType::u8, kDLUInt, 8},
                                                 {DType::boolean, bool_code, 8}}};

DType dtype_from(DLDataType type) {
    for (const TypeCode& known : type_codes)
        if (type.code == known.code && type.bits == known.bits && type.lanes == 1) return known.dtype;
    throw InvalidArgument(
        fmt::format("from_dlpack: elements of code {}, {} bits and {} lanes; expected f32, f64, f16, "
                    "bf16, i32, i64, u8 or bool with one lane",
                    type.code, type.bits, type.lanes));
}

/// DLPack's numbers of the CUDA devices. They are read once, because the driver takes a millisecond to describe a GPU.
const std::vector<int>& cuda_numbers() {
    static const std::vector<int> all = [] {
        std::vector<int> numbers;
        for (int i = 0; i < device_count(DeviceKind::cuda); ++i)
            numbers.push_back(device_info(Device::cuda(i)).physical_index);
        return numbers;
    }();
    return all;
}

Device device_from(DLDevice device) {
    switch (device.device_type) {
        case kDLCPU:
        case kDLCUDAHost: return Device::host();
        case kDLCUDA:
        case kDLCUDAManaged: {
            const auto found = std::find(cuda_numbers().begin(), cuda_numbers().end(), device.device_id);
            if (found != cuda_numbers().end()) return Device::cuda(static_cast<int>(found - cuda_numbers().begin()));
            throw InvalidArgument(
                fmt::format("from_dlpack: memory of CUDA device {}, which is not visible here ({})", device.device_id,
                            cuda_numbers().empty() ? cuda_absence_reason() : Devices::visible().str()));
        }
        default: break;
    }
    throw InvalidArgument(
        fmt::format("from_dlpack: memory of a device of type {}; expected the host (1), CUDA (2), "
                    "pinned (3) or managed memory (13)",
                    static_cast<int>(device.device_type)));
}

/// A DLPack tensor of to_dlpack, with all that it refers to.
struct Exported {
    DLManagedTensor managed{};
    Tensor tensor;
    std::array<std::int64_t, Shape::max_dims> shape{}, strides{};
};

}  // namespace

Tensor from_dlpack(DLManagedTensor* source) {
    if (!source) throw InvalidArgument("from_dlpack: the pointer is null; expected a DLPack tensor");
    const DLTensor& given = source->dl_tensor;
    if (given.ndim < 0 || given.ndim > Shape::max_dims)
        throw InvalidArgument(
            fmt::format("from_dlpack: {} dimensions; expected at most {}", given.ndim, Shape::max_dims));
    const auto dims = static_cast<std::size_t>(given.ndim);
    if (dims > 0 && !given.shape)
        throw InvalidArgument("from_dlpack: the shape is null; expected one size per dimension");
    if (given.byte_offset > static_cast<std::uint64_t>(most_bytes))
        throw InvalidArgument(fmt::format("from_dlpack: byte offset {}; expected at most 2^60", given.byte_offset));
    const auto numbers = [dims](const std::int64_t* from) { return Shape(std::span<const std::int64_t>(from, dims)); };
    void* const data = given.data ? static_cast<std::byte*>(given.data) + given.byte_offset : nullptr;
    const TensorMeta meta =
        checked_layout("from_dlpack", data, dtype_from(given.dtype), numbers(given.shape),
                       given.strides && dims > 0 ? std::optional(numbers(given.strides)) : std::nullopt);
    Stream& home = Stream::of(device_from(given.device));
    return tensor_at(data, meta, home, [source] {
        if (source->deleter) source->deleter(source);
    });
}

DLManagedTensor* to_dlpack(const Tensor& tensor) {
    const ApiScope call("to_dlpack");
    if (!tensor.defined()) throw InvalidArgument("to_dlpack: the tensor is undefined; expected a defined tensor");
    if (tensor.requires_grad())
        throw InvalidArgument(
            "to_dlpack: the tensor requires a gradient, which others would not compute; expected "
            "detach() first");
    if (tensor.is_symbolic()) throw_without_value("to_dlpack");
    make_strided(tensor);
    const TensorImpl& impl = *tensor.impl();
    Stream::of(tensor.device()).synchronize();
    eager_reports::check(impl.storage->reports);

    auto exported = std::make_unique<Exported>();
    exported->tensor = tensor;
    DLTensor& given = exported->managed.dl_tensor;
    given.data = first_element(tensor);
    given.device = tensor.device().kind() == DeviceKind::cuda
                       ? DLDevice{kDLCUDA, cuda_numbers()[static_cast<std::size_t>(tensor.device().index())]}
                       : DLDevice{kDLCPU, 0};
    for (const TypeCode& known : type_codes)
        if (known.dtype == tensor.dtype()) given.dtype = {known.code, known.bits, 1};
    given.ndim = tensor.dims();
    for (int i = 0; i < given.ndim; ++i) {
        exported->shape[static_cast<std::size_t>(i)] = impl.meta.shape[i];
        exported->strides[static_cast<std::size_t>(i)] = impl.meta.strides[i];
    }
    given.shape = exported->shape.data();
    given.strides = exported->strides.data();
    exported->managed.manager_ctx = exported.get();
    exported->managed.deleter = [](DLManagedTensor* self) { delete static_cast<Exported*>(self->manager_ctx); };
    return &exported.release()->managed;
}

}  // namespace lockstep
