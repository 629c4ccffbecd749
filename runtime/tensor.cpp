#include "lockstep/runtime/tensor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <ostream>
#include <utility>

#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/api_scope.h"
#include "lockstep/runtime/internal/core_operations.h"
#include "lockstep/runtime/internal/eager.h"
#include "lockstep/runtime/internal/operands.h"
#include "lockstep/runtime/random.h"
#include "lockstep/runtime/recycled.h"
#include "lockstep/runtime/trace.h"

namespace lockstep {

// ---- how a tensor lies in memory --------------------------------------------------------------------------------

TensorMeta TensorMeta::contiguous(DType dtype, const Shape& shape, bool batch) {
    TensorMeta meta;
    meta.dtype = dtype;
    meta.shape = shape;
    meta.strides = shape.contiguous_strides();
    meta.batch = batch;
    return meta;
}

bool TensorMeta::is_contiguous() const {
    if (opaque) return false;
    std::int64_t expected = 1;
    for (int i = shape.dims() - 1; i >= 0; --i) {
        if (shape[i] != 1 && strides[i] != expected) return false;
        expected *= shape[i] == 0 ? 1 : shape[i];
    }
    return true;
}

std::size_t TensorMeta::bytes() const {
    if (opaque) return opaque->bytes();
    std::int64_t last = offset;
    for (int i = 0; i < shape.dims(); ++i) {
        if (shape[i] == 0) return 0;
        last += (shape[i] - 1) * strides[i];
    }
    return static_cast<std::size_t>(last + 1) * size_of(dtype);
}

bool TensorMeta::same_layout(const TensorMeta& other) const {
    if (dtype != other.dtype || !(shape == other.shape) || !opaque != !other.opaque) return false;
    if (opaque) return opaque == other.opaque || opaque->equals(*other.opaque);
    for (int i = 0; i < shape.dims(); ++i)
        if (shape[i] != 1 && strides[i] != other.strides[i]) return false;
    return true;
}

std::string TensorMeta::str() const {
    return fmt::format("{} {}{}", name_of(dtype), shape.str(), opaque ? " as " + opaque->str() : std::string());
}

// ---- factories --------------------------------------------------------------------------------------------------

Tensor tensor_over(std::shared_ptr<Buffer> buffer, const TensorMeta& meta) {
    auto impl = recycled::make_shared<TensorImpl>();
    impl->storage = recycled::make_shared<Storage>();
    impl->storage->buffer = std::move(buffer);
    impl->meta = meta;
    if (meta.opaque) {
        impl->storage->opaque = std::move(impl->meta.opaque);
        impl->meta.opaque = nullptr;
        impl->meta.strides = meta.shape.contiguous_strides();  // in case it becomes strided
    }
    return Tensor(std::move(impl));
}

namespace {

constexpr std::int64_t most_elements = std::int64_t{1} << 60;  // their bytes still fit 64 bits

void check_shape(const Shape& shape) {
    std::int64_t count = 1;
    for (const std::int64_t size : shape) {
        if (size < 0)
            throw InvalidArgument(
                fmt::format("a tensor of shape {} has a negative size; expected sizes of 0 or more", shape.str()));
        if (size > 0 && count > most_elements / size)
            throw InvalidArgument(
                fmt::format("a tensor of shape {} has too many elements; expected at most 2^60", shape.str()));
        count *= std::max<std::int64_t>(size, 1);
    }
}

}  // namespace

Tensor Tensor::empty(const Shape& shape, DType dtype, Device device) {
    check_shape(shape);
    const TensorMeta meta = TensorMeta::contiguous(dtype, shape);
    if (Trace* trace = Trace::current()) return tensor_over(trace->buffer(meta.bytes()), meta);
    return tensor_over(Buffer::allocate(Stream::of(device), meta.bytes(), "tensors"), meta);
}

Tensor Tensor::full(const Shape& shape, double value, DType dtype, Device device) {
    const ApiScope call("full");
    const Tensor tensor = empty(shape, dtype, device);
    tensor.fill_(value);
    return tensor;
}

Tensor Tensor::zeros(const Shape& shape, DType dtype, Device device) { return full(shape, 0, dtype, device); }
Tensor Tensor::ones(const Shape& shape, DType dtype, Device device) { return full(shape, 1, dtype, device); }
Tensor Tensor::scalar(double value, DType dtype, Device device) { return full({}, value, dtype, device); }

Tensor Tensor::from_bytes(const void* values, std::size_t count, DType dtype, const Shape& shape, Device device) {
    check_shape(shape);
    if (count != static_cast<std::size_t>(shape.numel()))
        throw InvalidArgument(
            fmt::format("a tensor of shape {} needs {} values, but there are {}; expected one per element", shape.str(),
                        shape.numel(), count));
    const TensorMeta meta = TensorMeta::contiguous(dtype, shape);
    std::shared_ptr<Buffer> buffer = Buffer::allocate(Stream::of(Device::host()), meta.bytes(), "tensors");
    if (count > 0) std::memcpy(buffer->data(), values, meta.bytes());
    return tensor_over(std::move(buffer), meta).to(device);
}

namespace {

void refuse_in_trace(const char* name) {
    if (Trace::current())
        throw InvalidArgument(
            fmt::format("{} inside forward draws its numbers on the host, only when forward is traced; expected "
                        "rand_like, randn_like, bernoulli or normal of a tensor, which draw in every step",
                        name));
}

}  // namespace

Tensor Tensor::rand(const Shape& shape) {
    refuse_in_trace("rand");
    check_shape(shape);
    std::vector<float> values(static_cast<std::size_t>(shape.numel()));
    host_uniform(values.data(), shape.numel(), 0, 1);
    return from(values, shape);
}

Tensor Tensor::randn(const Shape& shape) {
    refuse_in_trace("randn");
    check_shape(shape);
    std::vector<float> values(static_cast<std::size_t>(shape.numel()));
    host_normal(values.data(), shape.numel());
    return from(values, shape);
}

Tensor Tensor::randint(std::int64_t low, std::int64_t high, const Shape& shape, DType dtype) {
    refuse_in_trace("randint");
    check_shape(shape);
    if (low >= high)
        throw InvalidArgument(fmt::format("randint: numbers from {} to below {}; expected low < high", low, high));
    std::vector<std::int64_t> values(static_cast<std::size_t>(shape.numel()));
    host_integers(values.data(), shape.numel(), static_cast<std::uint64_t>(high) - static_cast<std::uint64_t>(low));
    for (std::int64_t& value : values)
        value = static_cast<std::int64_t>(static_cast<std::uint64_t>(value) + static_cast<std::uint64_t>(low));
    return from(values, shape).to(dtype);
}

Tensor Tensor::randperm(std::int64_t count) {
    refuse_in_trace("randperm");
    check_shape({count});
    std::vector<std::int64_t> values(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::int64_t>(i);
    for (std::size_t left = values.size(); left > 1; --left) {  // Fisher and Yates
        std::int64_t chosen = 0;
        host_integers(&chosen, 1, left);
        std::swap(values[left - 1], values[static_cast<std::size_t>(chosen)]);
    }
    return from(values, Shape{count});
}

Tensor Tensor::logspace(double start, double end, std::int64_t count, double base, DType dtype, Device device) {
    std::vector<double> values = linspace(start, end, count, DType::f64).to_vector<double>();
    for (double& value : values) value = std::pow(base, value);
    return from(values, Shape{count}, device).to(dtype);
}

Tensor Tensor::arange(std::int64_t count, DType dtype) {
    check_shape({count});
    std::vector<std::int64_t> values(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::int64_t>(i);
    return from(values, Shape{count}).to(dtype);
}

Tensor Tensor::arange(double start, double end, double step, DType dtype, Device device) {
    const double count = std::ceil((end - start) / step);
    if (!std::isfinite(start) || !std::isfinite(end) || !std::isfinite(step) || step == 0 || (end - start) * step < 0)
        throw InvalidArgument(fmt::format(
            "arange: numbers from {} to {} by {}; expected finite numbers and a step towards the end, not 0", start,
            end, step));
    if (count > static_cast<double>(most_elements))
        throw InvalidArgument(fmt::format("arange: {} numbers; expected at most 2^60", count));
    std::vector<double> values(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = start + static_cast<double>(i) * step;
    const Shape shape{static_cast<std::int64_t>(values.size())};
    // In a traced step, indices are a constant then, which no record converts in every step.
    if (dtype == DType::i64) return from(std::vector<std::int64_t>(values.begin(), values.end()), shape, device);
    return from(values, shape, device).to(dtype);
}

Tensor Tensor::linspace(double start, double end, std::int64_t count, DType dtype, Device device) {
    check_shape({count});
    std::vector<double> values(static_cast<std::size_t>(count));
    const double step = count > 1 ? (end - start) / static_cast<double>(count - 1) : 0;
    // From the nearer end, so that the last number is `end`.
    for (std::size_t i = 0; i < values.size(); ++i) {
        const std::size_t left = values.size() - 1 - i;
        values[i] =
            i < left || count == 1 ? start + static_cast<double>(i) * step : end - static_cast<double>(left) * step;
    }
    return from(values, Shape{count}, device).to(dtype);
}

Tensor Tensor::eye(std::int64_t rows, std::int64_t columns, DType dtype, Device device) {
    if (columns == -1) columns = rows;
    check_shape({rows, columns});
    std::vector<float> values(static_cast<std::size_t>(rows * columns));
    for (std::int64_t i = 0; i < std::min(rows, columns); ++i) values[static_cast<std::size_t>(i * columns + i)] = 1;
    return from(values, Shape{rows, columns}, device).to(dtype);
}

// ---- properties -------------------------------------------------------------------------------------------------

const Shape& Tensor::shape() const { return defined_impl("shape").meta.shape; }
std::int64_t Tensor::size(int dim) const { return shape()[wrap_dim(dim, dims(), "size")]; }
DType Tensor::dtype() const { return defined_impl("dtype").meta.dtype; }
Shape Tensor::strides() const { return defined_impl("strides").meta.strides; }
bool Tensor::is_symbolic() const { return defined_impl("is_symbolic").storage->buffer->is_symbolic(); }
bool Tensor::is_batch() const { return defined_impl("is_batch").meta.batch; }
std::uint64_t Tensor::version() const { return defined_impl("version").storage->version(); }

const TensorImpl& Tensor::defined_impl(const char* what) const {
    if (!impl_) throw InvalidArgument(fmt::format("{}: the tensor is undefined; expected a defined tensor", what));
    return *impl_;
}

Device Tensor::device() const {
    const Buffer& buffer = *defined_impl("device").storage->buffer;
    return buffer.device();
}

bool Tensor::is_contiguous() const {
    const TensorImpl& impl = defined_impl("is_contiguous");
    return !impl.storage->opaque && impl.meta.is_contiguous();
}

Tensor Tensor::tag_batch(bool batch) const {
    if (batch && dims() == 0)
        throw InvalidArgument("tag_batch: a scalar has no batch dimension; expected at least one dimension");
    if (is_batch() == batch) return *this;
    auto impl = recycled::make_shared<TensorImpl>();
    impl->storage = impl_->storage;
    impl->meta = impl_->meta;
    impl->meta.batch = batch;
    const Tensor result(std::move(impl));
    if (needs_autograd({*this}))
        add_autograd_node("tag_batch", {*this}, {result},
                          BackwardFunction::composed([](const auto& gradients) { return gradients; }));
    return result;
}

void throw_without_value(std::string_view call, std::string_view what) {
    if (Trace::current())
        throw InvalidArgument(
            "a value is read inside forward: while forward is traced its tensors have shapes but no values; expected "
            "forward to return the tensor, and the read outside");
    throw InvalidArgument(
        fmt::format("{}{}{} is from inside a forward or loss, where tensors have no values; expected forward to return "
                    "it, in a tuple, vector, map or struct with LOCKSTEP_MEMBERS, and the use of the wrapper's result",
                    call, call.empty() ? "" : ": ", what));
}

namespace {

void require_value(const char* call, const Tensor& tensor) {
    if (!Trace::current() && !tensor.is_symbolic()) return;
    throw_without_value(ApiScope::name() ? ApiScope::name() : call,
                        fmt::format("a tensor of shape {}", tensor.shape().str()));
}

}  // namespace

// ---- converting and copying --------------------------------------------------------------------------------------

Tensor Tensor::to(DType target) const {
    const ApiScope call("to(dtype)");
    if (dtype() == target) return *this;
    const Tensor result = apply_one(Reorder{}, {*this}, TensorMeta::contiguous(target, shape(), is_batch()));
    if (is_floating(target) && is_floating(dtype()) && needs_autograd({*this}))
        add_autograd_node("to(dtype)", {*this}, {result},
                          BackwardFunction::composed([origin = dtype()](const auto& gradients) {
                              return std::vector<Tensor>{gradients[0].to(origin)};
                          }));
    return result;
}

Tensor Tensor::clone() const {
    const ApiScope call("clone");
    const Tensor result = apply_one(Reorder{}, {*this}, TensorMeta::contiguous(dtype(), shape(), is_batch()));
    if (needs_autograd({*this}))
        add_autograd_node("clone", {*this}, {result},
                          BackwardFunction::composed([](const auto& gradients) { return gradients; }));
    return result;
}

Tensor Tensor::contiguous() const {
    const ApiScope call("contiguous");
    if (!is_contiguous() && defined_impl("contiguous").storage->opaque) make_strided(*this);
    return is_contiguous() ? *this : clone();
}

void make_strided(const Tensor& tensor) {
    Storage& storage = *tensor.impl()->storage;
    if (!storage.opaque) return;
    const NoGrad no_grad;
    std::optional<TraceScope> outside;  // a captured tensor keeps its value: the program must not own it
    if (Trace::current() && !storage.buffer->is_symbolic()) outside.emplace(nullptr);
    const TensorMeta meta = TensorMeta::contiguous(tensor.dtype(), tensor.shape(), tensor.is_batch());
    const Tensor strided = apply_one(Reorder{}, {tensor}, meta);
    storage.buffer = strided.impl()->storage->buffer;
    storage.opaque = nullptr;
}

// ---- values -----------------------------------------------------------------------------------------------------

void Tensor::copy_out(void* values, DType wanted) const {
    require_value("to_vector", *this);
    if (dtype() != wanted)
        throw InvalidArgument(fmt::format("cannot read a tensor of {} as {}; expected the same dtype (use .to(dtype))",
                                          name_of(dtype()), name_of(wanted)));
    if (numel() == 0) return;
    const Tensor source = contiguous().detach();
    Stream& stream = Stream::of(source.device());
    stream.copy(values, Device::host(), first_element(source), source.device(),
                static_cast<std::size_t>(numel()) * size_of(wanted));
    stream.synchronize();
    eager_reports::check(impl_->storage->reports);
}

double Tensor::item() const {
    if (numel() != 1)
        throw InvalidArgument(
            fmt::format("item: a tensor of shape {} has {} elements; expected exactly one", shape().str(), numel()));
    const ApiScope call("item");
    double value = 0;
    const Tensor wide = detach().to(DType::f64);
    wide.copy_out(&value, DType::f64);
    return value;
}

void* Tensor::raw_data(DType wanted, bool writes) const {
    const TensorImpl& impl = defined_impl("data");
    require_value("data", *this);
    if (!device().is_host())
        throw InvalidArgument(fmt::format(
            "data: the tensor is on {}; expected the host (use to_vector() or .to(Device::host()))", device().str()));
    if (impl.meta.dtype != wanted)
        throw InvalidArgument(fmt::format("data: the tensor holds {}; expected {} (use .to(dtype))",
                                          name_of(impl.meta.dtype), name_of(wanted)));
    make_strided(*this);
    if (!is_contiguous())
        throw InvalidArgument("data: the tensor is not contiguous; expected a contiguous one (use .contiguous())");
    eager_reports::check(impl_->storage->reports);
    if (writes) impl_->storage->count_write();
    return first_element(*this);
}

// ---- autograd ---------------------------------------------------------------------------------------------------

bool Tensor::requires_grad() const { return defined_impl("requires_grad").requires_grad; }

const Tensor& Tensor::requires_grad_(bool on) const {
    if (on && !is_floating(dtype()))
        throw InvalidArgument(fmt::format(
            "requires_grad_: dtype {} cannot require gradients; expected a floating dtype", name_of(dtype())));
    if (!is_leaf()) throw InvalidArgument("requires_grad_: the tensor is not a leaf; expected a leaf (use detach())");
    if (impl_->requires_grad != on && impl_->storage->group) ++impl_->storage->group->flags;
    impl_->requires_grad = on;
    return *this;
}

bool Tensor::is_leaf() const { return defined_impl("is_leaf").node == nullptr; }

Tensor Tensor::grad() const { return Tensor(defined_impl("grad").grad); }

void Tensor::set_grad(const Tensor& gradient) const {
    defined_impl("set_grad");
    if (gradient.defined() && !(gradient.shape() == shape()))
        throw InvalidArgument(
            fmt::format("set_grad: a gradient of shape {} for a tensor of shape {}; expected equal shapes",
                        gradient.shape().str(), shape().str()));
    impl_->grad = gradient.impl();
}

Tensor Tensor::detach() const {
    auto impl = recycled::make_shared<TensorImpl>();
    impl->storage = defined_impl("detach").storage;
    impl->meta = impl_->meta;
    return Tensor(std::move(impl));
}

void Tensor::backward(const Tensor& gradient, bool retain_graph) const {
    defined_impl("backward");
    run_backward({*this}, {starting_gradient("backward", *this, gradient)}, retain_graph);
}

void Tensor::register_hook(std::function<void(const Tensor& gradient)> hook) const {
    if (!requires_grad())
        throw InvalidArgument("register_hook: the tensor does not require a gradient; expected requires_grad_() first");
    if (!hook) throw InvalidArgument("register_hook: no function; expected one to call");
    if (impl_->node) {
        impl_->node->hooks.resize(impl_->node->outputs);
        impl_->node->hooks[static_cast<std::size_t>(impl_->output_index)].push_back(std::move(hook));
    } else {
        impl_->leaf_hooks.push_back(std::move(hook));
        if (impl_->storage->group) ++impl_->storage->group->flags;
    }
}

std::ostream& operator<<(std::ostream& out, const Tensor& tensor) { return out << tensor.str(); }

}  // namespace lockstep
