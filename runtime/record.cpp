#include "lockstep/runtime/record.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>
#include <utility>

#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/common_device.h"
#include "lockstep/runtime/internal/core_operations.h"
#include "lockstep/runtime/internal/cpu_topology.h"
#include "lockstep/runtime/internal/eager_reports.h"
#include "lockstep/runtime/internal/eager_state.h"
#include "lockstep/runtime/internal/environment.h"
#include "lockstep/runtime/internal/forked.h"
#include "lockstep/runtime/internal/operand.h"
#include "lockstep/runtime/internal/public_call.h"
#include "lockstep/runtime/internal/strided.h"
#include "lockstep/runtime/trace.h"

namespace lockstep {

// ---- signatures -------------------------------------------------------------------------------------------------

namespace {

/// Numbers of opaque layouts, so that signatures need not know what is inside: equal layouts have the same one while
/// one of them lives, and no number is used again. A layout that has its number is found by its address.
class LayoutNumbers {
public:
    std::uint64_t of(const std::shared_ptr<const OpaqueLayout>& layout) {
        {
            const std::shared_lock lock(mutex_);
            if (const std::uint64_t number = known(layout)) return number;
        }
        const std::scoped_lock lock(mutex_);
        if (const std::uint64_t number = known(layout)) return number;
        if (numbers_.size() >= room_) {
            std::erase_if(numbers_, [](const auto& entry) { return entry.second.layout.expired(); });
            room_ = std::max<std::size_t>(64, 2 * numbers_.size());
        }
        std::uint64_t number = 0;
        for (const auto& [address, entry] : numbers_)
            if (const auto other = entry.layout.lock(); other && other->equals(*layout)) {
                number = entry.number;
                break;
            }
        if (number == 0) number = ++last_;
        numbers_[layout.get()] = {layout, number};
        return number;
    }

private:
    struct Entry {
        std::weak_ptr<const OpaqueLayout> layout;
        std::uint64_t number = 0;
    };
    /// 0 where the layout has none. Another one may have had its address before.
    std::uint64_t known(const std::shared_ptr<const OpaqueLayout>& layout) const {
        const auto found = numbers_.find(layout.get());
        return found == numbers_.end() || found->second.layout.expired() ? 0 : found->second.number;
    }

    std::shared_mutex mutex_;
    std::unordered_map<const OpaqueLayout*, Entry> numbers_;
    std::size_t room_ = 64;
    std::uint64_t last_ = 0;
};

std::uint64_t layout_number(const std::shared_ptr<const OpaqueLayout>& layout) {
    static auto* numbers = new LayoutNumbers;  // kernels are asked for until the very end
    return layout ? numbers->of(layout) : 0;
}

}  // namespace

Signature& Signature::add(std::string_view text) {
    add(text.size());
    bytes_.append(text);
    return *this;
}

Signature& Signature::add(const Shape& shape) {
    add(shape.dims());
    for (const std::int64_t size : shape) add(size);
    return *this;
}

Signature& Signature::add(const TensorMeta& meta) {
    add(meta.dtype).add(meta.shape).add(meta.batch).add(layout_number(meta.opaque));
    if (!meta.opaque) add(meta.strides);
    return *this;
}

// ---- attributes -------------------------------------------------------------------------------------------------

namespace detail {

std::string attribute_text(bool value) { return value ? "true" : "false"; }
std::string attribute_text(double value) { return fmt::format("{}", value == 0 ? 0.0 : value); }  // not "-0"
std::string attribute_text(std::int64_t value) { return fmt::format("{}", value); }
std::string attribute_text(const Shape& shape) { return shape.str(); }
std::string attribute_text(const TensorMeta& meta) { return meta.str(); }

}  // namespace detail

// ---- names ------------------------------------------------------------------------------------------------------

std::string call_and_operation(const char* call, std::string_view operation) {
    if (!call || operation.starts_with(call)) return std::string(operation);
    return fmt::format("{} ({})", call, operation);
}

std::string_view called(const Operation& operation) {
    return PublicCall::name() ? std::string_view(PublicCall::name()) : operation.name();
}

// ---- scope ------------------------------------------------------------------------------------------------------

namespace {
thread_local int scope_threads = 0;
thread_local bool scope_deterministic = false;
thread_local std::optional<ConvAlgorithm> scope_convolution;
}  // namespace

ConvAlgorithm default_conv_algorithm() {
    static constexpr std::array algorithms{ConvAlgorithm::automatic, ConvAlgorithm::direct, ConvAlgorithm::benchmark};
    static const ConvAlgorithm algorithm =
        algorithms[environment::one_of("LOCKSTEP_CONV", {"auto", "direct", "benchmark"}).value_or(0)];
    return algorithm;
}

ComputeScope::ComputeScope(int threads, bool deterministic, ConvAlgorithm convolution)
    : previous_threads_(std::exchange(scope_threads, threads)),
      previous_deterministic_(std::exchange(scope_deterministic, deterministic)),
      previous_convolution_(std::exchange(scope_convolution, convolution)) {}

ComputeScope::~ComputeScope() {
    scope_threads = previous_threads_;
    scope_deterministic = previous_deterministic_;
    scope_convolution = previous_convolution_;
}

int ComputeScope::threads_for(Device device) {
    if (device.is_host() && forked::lost_host_threads()) return 1;
    if (scope_threads > 0) return scope_threads;
    return device.kind() == DeviceKind::cuda ? 1 : threads_of_cpu_device(device.index());
}

bool ComputeScope::deterministic() { return scope_deterministic; }

ConvAlgorithm ComputeScope::convolution() { return scope_convolution ? *scope_convolution : default_conv_algorithm(); }

// ---- devices ----------------------------------------------------------------------------------------------------

void CommonDevice::take(const Tensor& tensor) {
    if (!tensor.defined()) return;
    if (!device_) device_ = tensor.device();
    if (*device_ != tensor.device())
        throw InvalidArgument(
            fmt::format("{}: tensors are on different devices, {} and {}; expected one device (use .to(device))",
                        called_, device_->str(), tensor.device().str()));
}

// ---- apply ------------------------------------------------------------------------------------------------------

namespace {

/// Device of the defined inputs and written outputs; the host where there are none.
Device common_device(const Operation& operation, const std::vector<Tensor>& inputs,
                     const std::vector<Output>& outputs) {
    CommonDevice common(called(operation));
    for (const Tensor& input : inputs) common.take(input);
    for (const Output& output : outputs) common.take(output.target);
    return common.device();
}

/// A tensor without value belongs to the trace that made it, and nowhere else.
void check_places(const Operation& operation, const std::vector<Tensor>& inputs, const std::vector<Output>& outputs,
                  const Trace* trace) {
    const auto look = [&](const Tensor& tensor) {
        if (!tensor.defined() || !tensor.is_symbolic()) return;
        if (!trace) throw_without_value(called(operation), fmt::format("a tensor of shape {}", tensor.shape().str()));
        if (!tensor.impl()->storage->buffer->belongs_to(*trace))
            throw InvalidArgument(
                fmt::format("{}: a tensor of shape {} is from an earlier forward, in which it had no value; expected "
                            "forward to return it",
                            called(operation), tensor.shape().str()));
    };
    for (const Tensor& input : inputs) look(input);
    for (const Output& output : outputs) look(output.target);
}

/// Does the work of a kernel; what it throws says what was called.
void perform(const Record& record, const KernelArgs& args) {
    try {
        record.kernel->run(args);
    } catch (const Error&) {
        throw;  // names it already
    } catch (const std::exception& error) {
        throw DeviceError(fmt::format("{} on {} failed: {}", call_and_operation(record.call, record.operation->name()),
                                      args.launch.device.str(), error.what()));
    }
}

/// Enqueues the record. `depends`: the reports that its operands depend on. Returns those of its results.
eager_reports::Set execute(Record record, Device device, eager_reports::Set depends) {
    Stream& stream = Stream::of(device);
    const Operation& operation = *record.operation;
    std::vector<Access> accesses;
    std::vector<void*> pointers;
    const std::size_t operands = record.in.size() + record.out.size();
    constexpr std::size_t of_the_library = 4;  // scratch, the two status words and the random state
    accesses.reserve(operands + of_the_library);
    pointers.reserve(operands);
    for (const auto* side : {&record.in, &record.out})
        for (const Operand& operand : *side) {
            pointers.push_back(operand.buffer ? first_element(operand) : nullptr);
            if (operand.buffer) {
                operand.buffer->used_on(stream);
                accesses.push_back({operand.buffer->data(), operand.buffer->bytes(), operand.buffer->device(),
                                    side == &record.in ? Access::Mode::read : Access::Mode::write});
            }
        }
    std::shared_ptr<Buffer> scratch;
    if (const std::size_t bytes = record.kernel->scratch_bytes()) {
        scratch = Buffer::allocate(stream, bytes, "scratch");
        accesses.push_back({scratch->data(), bytes, device, Access::Mode::write});
    }
    const auto [step, good] = eager_state::of(device);
    StatusWord* status = good;
    const StatusWord* agreed = good;
    std::shared_ptr<EagerReport> report;
    if (operation.reports_status()) {
        report = eager_reports::begin(device, called(operation));
        status = eager_reports::word(*report);
        accesses.push_back({status, sizeof(StatusWord), device, Access::Mode::write});
    }
    if (operation.commits()) {
        const eager_reports::Gate gate = eager_reports::gate(depends, device);
        if (gate.closed) return depends;  // what it would change stays as it is
        if (gate.word) agreed = gate.word;
        accesses.push_back({agreed, sizeof(StatusWord), device, Access::Mode::read});
    }
    if (operation.is_random() || operation.reports_status())
        accesses.push_back({step, sizeof(StepState), device, Access::Mode::read});
    const std::string_view name = operation.name();
    const int threads = record.kernel->threads;
    // Operands' memory is freed in stream order; the kernel needs their addresses alone.
    const std::size_t inputs = record.in.size();
    record.in.clear();
    record.out.clear();
    stream.run(
        name, accesses,
        [record = std::move(record), pointers = std::move(pointers), inputs, step = step, status, agreed,
         memory = scratch ? scratch->data() : nullptr](const Launch& launch) {
            perform(record, {launch, pointers.data(), pointers.data() + inputs, memory, step, status, agreed,
                             record.ordinal, 0, 0, 1});
        },
        threads);
    if (report) eager_reports::add(depends, eager_reports::end(report));
    return depends;
}

TensorMeta meta_of(const Tensor& tensor) {
    if (!tensor.defined()) return {};
    TensorMeta meta = tensor.impl()->meta;
    meta.opaque = tensor.impl()->storage->opaque;
    return meta;
}

Operand operand_of(const Tensor& tensor, const TensorMeta& meta, bool traced) {
    if (!tensor.defined()) return {nullptr, meta, nullptr};
    const auto& storage = tensor.impl()->storage;
    return {storage->buffer, meta, traced && !storage->buffer->is_symbolic() ? storage : nullptr};
}

/// `tensor` in the layout `wanted`, by a reorder where it lies differently.
Tensor converted(const Tensor& tensor, const TensorMeta& wanted) {
    if (!tensor.defined() || wanted.same_layout(meta_of(tensor))) return tensor;
    return apply(make_operation(Reorder{}), {tensor}, {wanted})[0];
}

}  // namespace

std::vector<Tensor> apply(std::shared_ptr<const Operation> operation, const std::vector<Tensor>& inputs,
                          const std::vector<Output>& outputs) {
    Trace* trace = Trace::current();
    check_places(*operation, inputs, outputs, trace);
    const Device device = trace ? trace->prototype() : common_device(*operation, inputs, outputs);
    KernelRequest request;
    request.device = device;
    const TraceSettings settings = trace ? trace->settings()
                                         : TraceSettings{device, ComputeScope::threads_for(device),
                                                         ComputeScope::deterministic(), 1, ComputeScope::convolution()};
    request.threads = settings.threads;
    request.deterministic = settings.deterministic;
    request.convolution = settings.convolution;
    request.shards = operation->reach() == Reach::all_shards ? settings.shards : 1;
    request.in.reserve(inputs.size());
    request.out.reserve(outputs.size());
    for (const Tensor& input : inputs) request.in.push_back(meta_of(input));
    for (const Output& output : outputs)
        request.out.push_back(output.target.defined() ? meta_of(output.target) : output.meta);

    Record record;
    if (trace) record.asked = std::make_shared<const KernelRequest>(request);
    record.call = PublicCall::name();
    record.kernel = KernelTable::of(device.kind()).make(*operation, request);
    if (operation->is_random()) record.ordinal = trace ? trace->next_ordinal() : eager_state::next_ordinal();
    record.in.reserve(inputs.size());
    record.out.reserve(outputs.size());
    for (std::size_t i = 0; i < inputs.size(); ++i) {
        const Tensor input = converted(inputs[i], request.in[i]);
        record.in.push_back(operand_of(input, meta_of(input), trace != nullptr));
    }
    std::vector<Tensor> results;
    results.reserve(outputs.size());
    for (std::size_t i = 0; i < outputs.size(); ++i) {
        if (!outputs[i].wanted) {
            results.emplace_back();
            record.out.push_back(operand_of({}, {}, trace != nullptr));
            continue;
        }
        TensorMeta meta = request.out[i];
        meta.batch = outputs[i].target.defined() ? meta.batch : outputs[i].meta.batch;
        if (outputs[i].target.defined()) {
            if (trace && !outputs[i].target.is_symbolic() && !operation->commits())
                throw InvalidArgument(
                    fmt::format("{} inside forward writes a tensor from outside (a parameter, a buffer or a constant); "
                                "expected forward to write only its own tensors",
                                called(*operation)));
            require_single_elements(outputs[i].target, called(*operation));
            results.push_back(outputs[i].target);
            outputs[i].target.impl()->storage->count_write();
        } else {
            auto impl = std::make_shared<TensorImpl>();
            impl->storage = std::make_shared<Storage>();
            impl->storage->opaque = meta.opaque;
            impl->storage->buffer =
                trace ? trace->buffer(meta.bytes()) : Buffer::allocate(Stream::of(device), meta.bytes(), "tensors");
            impl->meta = meta;
            if (meta.opaque) impl->meta.strides = meta.shape.contiguous_strides();  // should it become strided
            impl->meta.opaque = nullptr;
            results.emplace_back(std::move(impl));
        }
        record.out.push_back(operand_of(results.back(), meta, trace != nullptr));
    }
    record.operation = std::move(operation);
    if (trace) {
        trace->append(std::move(record));
        return results;
    }
    eager_reports::Set depends;
    for (const auto* tensors : {&inputs, &std::as_const(results)})
        for (const Tensor& tensor : *tensors) eager_reports::add(depends, eager_reports::of(tensor));
    depends = execute(std::move(record), device, std::move(depends));
    if (depends)
        for (const Tensor& result : results)
            if (result.defined()) result.impl()->storage->reports = depends;
    return results;
}

}  // namespace lockstep
