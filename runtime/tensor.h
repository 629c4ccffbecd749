// Tensors: a view of storage on one device, with the autograd graph that produced it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iosfwd>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "lockstep/runtime/device.h"
#include "lockstep/runtime/dtype.h"
#include "lockstep/runtime/list_ref.h"
#include "lockstep/runtime/memory.h"
#include "lockstep/runtime/shape.h"

namespace lockstep {

class Tensor;
struct EagerReports;
struct AutogradNode;

/// A backend-specific arrangement of a whole tensor (oneDNN's blocked formats). Immutable.
class OpaqueLayout {
public:
    virtual ~OpaqueLayout() = default;
    virtual std::size_t bytes() const = 0;
    virtual bool equals(const OpaqueLayout& other) const = 0;
    virtual std::string str() const = 0;
    /// The same arrangement with elements of `dtype`, all at the same positions; null if there is no such layout.
    virtual std::shared_ptr<const OpaqueLayout> with_dtype(DType dtype) const {
        static_cast<void>(dtype);
        return nullptr;
    }
};

/// Layout of a tensor in its buffer.
struct TensorMeta {
    DType dtype = DType::f32;
    Shape shape;
    Shape strides;                               ///< in elements; meaningless if opaque
    std::int64_t offset = 0;                     ///< first element, in elements; 0 if opaque
    std::shared_ptr<const OpaqueLayout> opaque;  ///< null: strided
    bool batch = false;                          ///< dimension 0 is the batch; operations propagate this

    static TensorMeta contiguous(DType dtype, const Shape& shape, bool batch = false);
    std::int64_t numel() const { return shape.numel(); }
    bool is_contiguous() const;
    /// Bytes of a buffer that holds the tensor, from its offset on.
    std::size_t bytes() const;
    /// Same dtype, shape and arrangement; the batch tag is ignored.
    bool same_layout(const TensorMeta& other) const;
    std::string str() const;
};

/// Aggregate write counters for a set of storages (the parameters of a model), so that callers detect changes without
/// visiting each one.
struct StorageGroup {
    std::uint64_t writes = 0;      ///< grows with every write to one storage
    std::uint64_t all_writes = 0;  ///< grows with every write to all storages
    std::uint64_t flags = 0;       ///< grows when requires_grad_ or register_hook changes a tensor of one of them
};

/// Memory shared by tensors, with its arrangement and version.
struct Storage {
    std::shared_ptr<Buffer> buffer;
    std::shared_ptr<const OpaqueLayout> opaque;  ///< null: strided
    std::uint64_t writes = 0;                    ///< writes to this storage only
    std::shared_ptr<StorageGroup> group;         ///< or null
    /// Errors that eager calls may have found in data that the values depend on; reads of the values throw them. Mostly
    /// null.
    std::shared_ptr<const EagerReports> reports;

    /// Grows with every write.
    std::uint64_t version() const { return writes + (group ? group->all_writes : 0); }
    void count_write() {
        ++writes;
        if (group) ++group->writes;
    }
};

/// Shared by all handles of one tensor.
struct TensorImpl {
    std::shared_ptr<Storage> storage;
    TensorMeta meta;  ///< meta.opaque is unused: the storage has it
    bool requires_grad = false;
    std::shared_ptr<AutogradNode> node;                          ///< operation that produced it, or null
    int output_index = 0;                                        ///< index among the node's outputs
    std::shared_ptr<TensorImpl> grad;                            ///< gradient of a leaf, after backward
    std::vector<std::function<void(const Tensor&)>> leaf_hooks;  ///< see Tensor::register_hook
};

/// A handle: copying shares the tensor. Operations enqueue on the device's compute stream and return at once. Errors
/// that only the device can find in the data (a target out of range) are thrown once, as InvalidArgument that names the
/// call. The first read of a dependent value (item, to_vector, str, data, a copy to the host, save) or
/// synchronize_all() throws them. Tensors that share memory belong to one thread at a time.
class Tensor {
public:
    /// An undefined tensor: "no gradient", "no bias".
    Tensor() = default;
    explicit Tensor(std::shared_ptr<TensorImpl> impl) : impl_(std::move(impl)) {}

    static Tensor empty(const Shape& shape, DType dtype = DType::f32, Device device = {});
    static Tensor zeros(const Shape& shape, DType dtype = DType::f32, Device device = {});
    static Tensor ones(const Shape& shape, DType dtype = DType::f32, Device device = {});
    static Tensor full(const Shape& shape, double value, DType dtype = DType::f32, Device device = {});
    /// Copies `values` (row-major). Throws InvalidArgument if their number is not that of the shape.
    template <class T>
    static Tensor from(std::span<const T> values, const Shape& shape, Device device = {}) {
        static_assert(has_dtype<T>, "no dtype has this element type");
        return from_bytes(values.data(), values.size(), dtype_of<T>, shape, device);
    }
    template <class T>
    static Tensor from(const std::vector<T>& values, const Shape& shape, Device device = {}) {
        if constexpr (std::is_same_v<T, bool>) {  // a vector<bool> has no addressable elements
            const auto plain = std::make_unique<bool[]>(values.size());
            std::copy(values.begin(), values.end(), plain.get());
            return from(std::span<const bool>(plain.get(), values.size()), shape, device);
        } else {
            return from(std::span<const T>(values), shape, device);
        }
    }
    /// A 0-dimensional tensor.
    static Tensor scalar(double value, DType dtype = DType::f32, Device device = {});
    /// Uniform in [0, 1) and standard normal numbers on the host, from `manual_seed`'s generator. Throws
    /// InvalidArgument inside `forward`, for which ops/functional.h has rand_like and randn_like.
    static Tensor rand(const Shape& shape);
    static Tensor randn(const Shape& shape);
    /// Whole numbers in [low, high), and 0, 1, ..., count - 1 in random order, drawn in the same way.
    static Tensor randint(std::int64_t low, std::int64_t high, const Shape& shape, DType dtype = DType::i64);
    static Tensor randperm(std::int64_t count);
    /// 0, 1, ..., count - 1.
    static Tensor arange(std::int64_t count, DType dtype = DType::f32);
    /// start, start + step, ... before `end`, computed in double. Throws InvalidArgument if `step` is 0 or has the
    /// wrong sign, and for values that are not finite. torch.arange, but f32 by default for whole numbers too.
    static Tensor arange(double start, double end, double step = 1, DType dtype = DType::f32, Device device = {});
    /// `count` evenly spaced numbers from `start` to `end` inclusive, computed in double. torch.linspace.
    static Tensor linspace(double start, double end, std::int64_t count, DType dtype = DType::f32, Device device = {});
    /// Powers of `base` with such exponents. torch.logspace.
    static Tensor logspace(double start, double end, std::int64_t count, double base = 10, DType dtype = DType::f32,
                           Device device = {});
    /// A matrix of `rows` x `columns` (-1: as many as rows) with 1 on the diagonal, 0 elsewhere. torch.eye.
    static Tensor eye(std::int64_t rows, std::int64_t columns = -1, DType dtype = DType::f32, Device device = {});

    bool defined() const { return impl_ != nullptr; }
    const Shape& shape() const;
    std::int64_t size(int dim) const;
    int dims() const { return shape().dims(); }
    std::int64_t numel() const { return shape().numel(); }
    DType dtype() const;
    Device device() const;
    /// Strides in elements (those of the strided form if the storage is opaque).
    Shape strides() const;
    bool is_contiguous() const;
    /// True while `forward` is traced: the tensor has a shape but no value.
    bool is_symbolic() const;
    /// Whether dimension 0 is the batch.
    bool is_batch() const;
    /// The same tensor, tagged (or not) as having the batch in dimension 0.
    Tensor tag_batch(bool batch = true) const;

    /// A tensor on `device`; this tensor if it is already there. Differentiable. Transfer defers the device's wait for
    /// the copy.
    Tensor to(Device device) const;
    /// A tensor of `dtype`; this tensor if it already has that dtype. Differentiable between floating types.
    Tensor to(DType dtype) const;
    /// A copy with its own storage. Differentiable.
    Tensor clone() const;
    /// This tensor if it is row-major, else a row-major copy. Differentiable.
    Tensor contiguous() const;

    // Views: they share storage. All are differentiable and throw InvalidArgument on bad arguments.
    /// A view of another shape, or a copy if strides do not allow a view; one size may be -1.
    Tensor reshape(const Shape& shape) const;
    Tensor flatten(int start_dim = 0, int end_dim = -1) const;
    Tensor transpose(int dim0, int dim1) const;
    /// Elements [start, end) of `dim`, or all from `start`, every `step`th (1 or more). As in Python, negative numbers
    /// count from the end, numbers out of range are clamped, and the slice is empty if `end` is not after `start`.
    Tensor slice(int dim, std::int64_t start, std::int64_t end = (std::numeric_limits<std::int64_t>::max)(),
                 std::int64_t step = 1) const;
    /// Row `index` of `dim`, without that dimension; -1 is the last one.
    Tensor select(int dim, std::int64_t index) const;
    /// Broadcasts dimensions of size 1 to those of `shape`, which may have additional leading dimensions; a size of -1
    /// is unchanged.
    Tensor expand(const Shape& shape) const;
    Tensor squeeze(int dim) const;
    Tensor unsqueeze(int dim) const;

    /// The only element, converted. Blocks until it is computed. Throws InvalidArgument if there is more than one, or
    /// in a trace.
    double item() const;
    /// All elements in row-major order. Blocks until they are computed. T must be the dtype's C++ type.
    template <class T>
    std::vector<T> to_vector() const {
        static_assert(has_dtype<T>, "no dtype has this element type");
        const auto count = static_cast<std::size_t>(numel());
        if constexpr (std::is_same_v<T, bool>) {
            const auto plain = std::make_unique<bool[]>(count);
            copy_out(plain.get(), dtype_of<bool>);
            return std::vector<bool>(plain.get(), plain.get() + count);
        } else {
            std::vector<T> values(count);
            copy_out(values.data(), dtype_of<T>);
            return values;
        }
    }
    /// First element of a host tensor's strided memory, for reading and writing; counts as a write if `T` is not const.
    /// Throws InvalidArgument for another device or dtype, and for non-contiguous tensors.
    template <class T>
    T* data() const {
        static_assert(has_dtype<std::remove_const_t<T>>, "no dtype has this element type");
        return static_cast<T*>(raw_data(dtype_of<std::remove_const_t<T>>, !std::is_const_v<T>));
    }
    /// Overwrites the elements of this tensor with `source` (broadcast, converted, from any device). Not tracked by
    /// autograd; a trained parameter may be written inside `NoGrad`. Throws InvalidArgument if several elements share
    /// memory (expanded), and if the source is another view that overlaps this one.
    const Tensor& copy_(const Tensor& source) const;
    /// Overwrites all elements with `value`; expanded tensors are allowed.
    const Tensor& fill_(double value) const;
    const Tensor& zero_() const { return fill_(0); }

    // Autograd.
    bool requires_grad() const;
    const Tensor& requires_grad_(bool on = true) const;
    bool is_leaf() const;
    /// Gradient of a leaf; undefined if it has none.
    Tensor grad() const;
    void set_grad(const Tensor& grad) const;
    /// The same storage without history.
    Tensor detach() const;
    /// Adds gradients of this tensor with respect to the leaves to their `grad`, which has separate storage. `gradient`
    /// defaults to 1 for a tensor of one element. The graph is freed unless `retain_graph`; a second pass through a
    /// freed graph throws.
    void backward(const Tensor& gradient = Tensor(), bool retain_graph = false) const;
    /// Calls `hook` with the gradient once it is complete; for a leaf, right before it is stored. Hooks of a wrapped
    /// model's parameters are called when a program is traced, with a symbolic gradient; a new hook makes new programs.
    void register_hook(std::function<void(const Tensor& gradient)> hook) const;
    /// A hook that returns a value does not compile: it cannot replace the gradient, as it does in PyTorch.
    template <class Hook>
    requires(!std::is_void_v<std::invoke_result_t<Hook&, const Tensor&>>) void register_hook(Hook hook) const = delete;
    /// Number of writes to the storage.
    std::uint64_t version() const;

    /// "tensor([[1.0000, 2.0000], ...], shape=(2, 2), dtype=f32, device=cpu:0)"; shortened beyond 1000 elements.
    std::string str() const;

    const std::shared_ptr<TensorImpl>& impl() const { return impl_; }

private:
    const TensorImpl& defined_impl(const char* what) const;
    static Tensor from_bytes(const void* values, std::size_t count, DType dtype, const Shape& shape, Device device);
    void copy_out(void* values, DType dtype) const;
    void* raw_data(DType dtype, bool writes) const;

    std::shared_ptr<TensorImpl> impl_;
};

/// Writes `tensor.str()`.
std::ostream& operator<<(std::ostream& out, const Tensor& tensor);

/// Tensors as an argument: `{x, weight}` or a vector.
using TensorList = ListRef<Tensor>;

}  // namespace lockstep
