#include "lockstep/runtime/record.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <mutex>
#include <shared_mutex>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/api_scope.h"
#include "lockstep/runtime/internal/checkpointed_call.h"
#include "lockstep/runtime/internal/core_operations.h"
#include "lockstep/runtime/internal/cpu_topology.h"
#include "lockstep/runtime/internal/eager.h"
#include "lockstep/runtime/internal/operands.h"
#include "lockstep/runtime/internal/process.h"
#include "lockstep/runtime/trace.h"

namespace lockstep {

// ---- signatures -------------------------------------------------------------------------------------------------

namespace {

/// Numbers of opaque layouts, which make signatures independent of their contents: equal layouts have the same number
/// while one of them lives, and numbers are not reused. A numbered layout is found by its address. The lock is held
/// briefly: layouts are compared without it.
class LayoutNumbers {
public:
    std::uint64_t of(const std::shared_ptr<const OpaqueLayout>& layout) {
        for (;;) {
            std::vector<Other> others;
            std::uint64_t numbered = 0;
            {
                const std::shared_lock lock(mutex_);
                if (const std::uint64_t number = known(layout)) return number;
                numbered = numbered_;
                for (const auto& [address, entry] : numbers_)
                    if (auto other = entry.layout.lock()) others.push_back({std::move(other), entry.number});
            }
            const auto equal = std::find_if(others.begin(), others.end(),
                                            [&](const Other& other) { return other.layout->equals(*layout); });
            const std::scoped_lock lock(mutex_);
            if (const std::uint64_t number = known(layout)) return number;
            if (numbered != numbered_) continue;  // an equal one may have got a number meanwhile
            ++numbered_;
            if (numbers_.size() >= room_) {
                std::erase_if(numbers_, [](const auto& entry) { return entry.second.layout.expired(); });
                room_ = std::max<std::size_t>(64, 2 * numbers_.size());
            }
            const std::uint64_t number = equal != others.end() ? equal->number : ++last_;
            numbers_[layout.get()] = {layout, number};
            return number;
        }
    }

private:
    struct Entry {
        std::weak_ptr<const OpaqueLayout> layout;
        std::uint64_t number = 0;
    };
    struct Other {
        std::shared_ptr<const OpaqueLayout> layout;
        std::uint64_t number;
    };
    /// 0 if the layout has no number. A destroyed layout may have had the same address.
    std::uint64_t known(const std::shared_ptr<const OpaqueLayout>& layout) const {
        const auto found = numbers_.find(layout.get());
        return found == numbers_.end() || found->second.layout.expired() ? 0 : found->second.number;
    }

    std::shared_mutex mutex_;
    std::unordered_map<const OpaqueLayout*, Entry> numbers_;
    std::size_t room_ = 64;
    std::uint64_t last_ = 0;
    std::uint64_t numbered_ = 0;  ///< counts layouts that got a number
};

std::uint64_t layout_number(const std::shared_ptr<const OpaqueLayout>& layout) {
    static auto* numbers = new LayoutNumbers;  // kernels are requested until the very end
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

std::string_view api_name(const Operation& operation) {
    return ApiScope::name() ? std::string_view(ApiScope::name()) : operation.name();
}

// ---- scope ------------------------------------------------------------------------------------------------------

namespace {
constinit thread_local ComputeSettings scope_settings;
}  // namespace

ConvAlgorithm default_conv_algorithm() {
    static constexpr std::array algorithms{ConvAlgorithm::automatic, ConvAlgorithm::direct, ConvAlgorithm::benchmark};
    static const ConvAlgorithm algorithm =
        algorithms[environment::one_of("LOCKSTEP_CONV", {"auto", "direct", "benchmark"}).value_or(0)];
    return algorithm;
}

ComputeScope::ComputeScope(const ComputeSettings& settings) : previous_(std::exchange(scope_settings, settings)) {}

ComputeScope::~ComputeScope() { scope_settings = previous_; }

int ComputeScope::threads_for(Device device) {
    if (device.is_host() && forked::lost_host_threads()) return 1;
    if (scope_settings.threads > 0) return scope_settings.threads;
    return device.kind() == DeviceKind::cuda ? 1 : threads_of_cpu_device(device.index());
}

bool ComputeScope::deterministic() { return scope_settings.deterministic; }

ConvAlgorithm ComputeScope::convolution() {
    return scope_settings.convolution ? *scope_settings.convolution : default_conv_algorithm();
}

bool ComputeScope::allow_tf32() { return scope_settings.allow_tf32; }

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

/// Device of the defined inputs and written outputs; the host without any.
Device common_device(const Operation& operation, TensorList inputs, ListRef<Output> outputs) {
    CommonDevice common(api_name(operation));
    for (const Tensor& input : inputs) common.take(input);
    for (const Output& output : outputs) common.take(output.target);
    return common.device();
}

/// A tensor without value belongs only to the trace that created it.
void check_places(const Operation& operation, TensorList inputs, ListRef<Output> outputs, const Trace* trace) {
    const auto look = [&](const Tensor& tensor) {
        if (!tensor.defined() || !tensor.is_symbolic()) return;
        if (!trace) throw_without_value(api_name(operation), fmt::format("a tensor of shape {}", tensor.shape().str()));
        if (!tensor.impl()->storage->buffer->belongs_to(*trace))
            throw InvalidArgument(
                fmt::format("{}: a tensor of shape {} is from an earlier forward, in which it had no value; expected "
                            "forward to return it",
                            api_name(operation), tensor.shape().str()));
    };
    for (const Tensor& input : inputs) look(input);
    for (const Output& output : outputs) look(output.target);
}

/// One eager operation as its stream executes it: the kernel, and the memory that it uses.
struct EagerCall {
    std::shared_ptr<const Operation> operation;
    std::shared_ptr<const Kernel> kernel;
    const char* call;                  ///< public function that issued it; may be null
    recycled::Vector<void*> operands;  ///< first elements of the inputs, then of the outputs
    std::size_t inputs = 0;
    void* scratch = nullptr;
    const StepCounters* step = nullptr;
    StatusWord* status = nullptr;
    const StatusWord* agreed = nullptr;
    std::uint32_t ordinal = 0;

    /// Runs the kernel; exceptions name the called function.
    void operator()(const ExecContext& context) const {
        const KernelArgs args{
            context, operands.data(), operands.data() + inputs, scratch, step, status, agreed, ordinal, 0, 0, 1};
        try {
            kernel->run(args);
        } catch (const Error&) {
            throw;  // already names it
        } catch (const std::exception& error) {
            throw DeviceError(fmt::format("{} on {} failed: {}", call_and_operation(call, operation->name()),
                                          context.device.str(), error.what()));
        }
    }
};

/// The operands of an eager call.
class EagerOperands {
public:
    EagerOperands(Stream& stream, std::size_t count) : stream_(stream) {
        constexpr std::size_t of_the_library = 4;  // scratch, the two status words and the random state
        accesses_.reserve(count + of_the_library);
        addresses_.reserve(count);
    }
    /// Adds a tensor, which may be undefined: an optional operand that is missing.
    void add(const Tensor& tensor, const TensorMeta& meta, Access::Mode mode) {
        if (!tensor.defined()) {
            addresses_.push_back(nullptr);
            return;
        }
        Buffer& buffer = *tensor.impl()->storage->buffer;
        buffer.used_on(stream_);
        addresses_.push_back(static_cast<char*>(buffer.data()) +
                             static_cast<std::size_t>(meta.offset) * size_of(meta.dtype));
        accesses_.push_back({buffer.data(), buffer.bytes(), buffer.device(), mode});
    }
    /// Adds memory of the library.
    void add(const void* memory, std::size_t bytes, Access::Mode mode) {
        accesses_.push_back({memory, bytes, stream_.device(), mode});
    }
    std::span<const Access> accesses() const { return accesses_; }
    recycled::Vector<void*> take_addresses() { return std::move(addresses_); }

private:
    Stream& stream_;
    recycled::Vector<Access> accesses_;
    recycled::Vector<void*> addresses_;
};

/// Enqueues the call. `depends`: the reports that its operands depend on. Returns the reports of its results.
eager_reports::Set execute(Stream& stream, EagerCall call, EagerOperands operands, eager_reports::Set depends) {
    const Device device = stream.device();
    const Operation& operation = *call.operation;
    std::shared_ptr<Buffer> scratch;  // freed in stream order
    if (const std::size_t bytes = call.kernel->scratch_bytes()) {
        scratch = Buffer::allocate(stream, bytes, "scratch");
        call.scratch = scratch->data();
        operands.add(call.scratch, bytes, Access::Mode::write);
    }
    const auto [step, good] = eager_state::of(device);
    call.step = step;
    call.status = good;
    call.agreed = good;
    std::shared_ptr<EagerReport> report;
    if (operation.reports_status()) {
        report = eager_reports::begin(device, api_name(operation));
        call.status = eager_reports::word(*report);
        operands.add(call.status, sizeof(StatusWord), Access::Mode::write);
    }
    if (operation.commits()) {
        const eager_reports::Gate gate = eager_reports::gate(depends, device);
        if (gate.closed) return depends;  // the state that it would change remains unchanged
        if (gate.word) call.agreed = gate.word;
        operands.add(call.agreed, sizeof(StatusWord), Access::Mode::read);
    }
    if (operation.is_random() || operation.reports_status())
        operands.add(step, sizeof(StepCounters), Access::Mode::read);
    call.operands = operands.take_addresses();
    const std::string_view name = operation.name();
    const int threads = call.kernel->threads;
    if (stream.runs_at_once())
        stream.run(name, operands.accesses(), std::ref(call), threads);
    else
        stream.run(name, operands.accesses(), std::move(call), threads);
    if (report) eager_reports::add(depends, eager_reports::end(report));
    return depends;
}

TensorMeta meta_of(const Tensor& tensor) {
    if (!tensor.defined()) return {};
    TensorMeta meta = tensor.impl()->meta;
    meta.opaque = tensor.impl()->storage->opaque;
    return meta;
}

Operand traced_operand(const Tensor& tensor, const TensorMeta& meta) {
    if (!tensor.defined()) return {nullptr, meta, nullptr};
    const auto& storage = tensor.impl()->storage;
    return {storage->buffer, meta, storage->buffer->is_symbolic() ? nullptr : storage};
}

/// `tensor` in the layout `wanted`, after a reorder if its layout differs.
Tensor converted(const Tensor& tensor, const TensorMeta& wanted) {
    if (!tensor.defined() || wanted.same_layout(meta_of(tensor))) return tensor;
    return apply_one(Reorder{}, {tensor}, wanted);
}

/// Performs `operation`; `results`: one tensor for each output.
void apply_to(std::shared_ptr<const Operation> operation, TensorList inputs, ListRef<Output> outputs,
              std::span<Tensor> results) {
    Trace* trace = Trace::current();
    check_places(*operation, inputs, outputs, trace);
    const bool in_part = detail::CheckpointedCall::runs();
    if (in_part && detail::CheckpointedCall::omits(inputs, outputs)) {
        for (std::size_t i = 0; i < outputs.size(); ++i) results[i] = outputs[i].target;
        return;
    }
    const Device device = trace ? trace->prototype() : common_device(*operation, inputs, outputs);
    KernelRequest request;
    request.device = device;
    const TraceSettings settings = trace ? trace->settings()
                                         : TraceSettings{.prototype = device,
                                                         .threads = ComputeScope::threads_for(device),
                                                         .deterministic = ComputeScope::deterministic(),
                                                         .convolution = ComputeScope::convolution(),
                                                         .allow_tf32 = ComputeScope::allow_tf32()};
    request.threads = settings.threads;
    request.deterministic = settings.deterministic;
    request.convolution = settings.convolution;
    request.allow_tf32 = settings.allow_tf32;
    request.shards = operation->scope() == OperationScope::all_shards ? settings.shards : 1;
    request.in.reserve(inputs.size());
    request.out.reserve(outputs.size());
    for (const Tensor& input : inputs) request.in.push_back(meta_of(input));
    for (const Output& output : outputs)
        request.out.push_back(output.target.defined() ? meta_of(output.target) : output.meta);

    std::shared_ptr<const KernelRequest> asked;
    if (trace) asked = std::make_shared<const KernelRequest>(request);
    std::shared_ptr<const Kernel> kernel = KernelTable::of(device.kind()).make(*operation, request);
    std::uint32_t ordinal = 0;
    if (operation->is_random()) {
        const std::optional<std::uint32_t> repeated = detail::CheckpointedCall::repeated_ordinal();
        ordinal = repeated ? *repeated : trace ? trace->next_ordinal() : eager_state::next_ordinal();
        if (in_part) detail::CheckpointedCall::note_ordinal(ordinal);
    }
    recycled::Vector<Tensor> given;  // the inputs in the layouts of the kernel
    given.reserve(inputs.size());
    for (std::size_t i = 0; i < inputs.size(); ++i) given.push_back(converted(inputs[i], request.in[i]));
    for (std::size_t i = 0; i < outputs.size(); ++i) {
        const Tensor& target = outputs[i].target;
        TensorMeta& meta = request.out[i];
        if (!outputs[i].wanted) continue;
        if (target.defined()) {
            if (trace && !target.is_symbolic() && !operation->commits())
                throw InvalidArgument(
                    fmt::format("{} inside forward writes a tensor from outside (a parameter, a buffer or a constant); "
                                "expected forward to write only its own tensors",
                                api_name(*operation)));
            require_single_elements(target, api_name(*operation));
            results[i] = target;
            target.impl()->storage->count_write();
        } else {
            meta.batch = outputs[i].meta.batch;
            results[i] = tensor_over(
                trace ? trace->buffer(meta.bytes()) : Buffer::allocate(Stream::of(device), meta.bytes(), "tensors"),
                meta);
        }
    }
    if (trace) {
        Record record;
        record.asked = std::move(asked);
        record.call = ApiScope::name();
        record.kernel = std::move(kernel);
        record.ordinal = ordinal;
        record.repeated = in_part && detail::CheckpointedCall::repeats();
        record.in.reserve(inputs.size());
        record.out.reserve(outputs.size());
        for (const Tensor& input : given) record.in.push_back(traced_operand(input, meta_of(input)));
        for (std::size_t i = 0; i < outputs.size(); ++i)
            record.out.push_back(traced_operand(results[i], results[i].defined() ? request.out[i] : TensorMeta()));
        record.operation = std::move(operation);
        trace->append(std::move(record));
        return;
    }
    Stream& stream = Stream::of(device);
    EagerOperands operands(stream, inputs.size() + outputs.size());
    for (const Tensor& input : given)
        operands.add(input, input.defined() ? input.impl()->meta : TensorMeta(), Access::Mode::read);
    for (std::size_t i = 0; i < outputs.size(); ++i) operands.add(results[i], request.out[i], Access::Mode::write);
    eager_reports::Set depends;
    for (const Tensor& input : inputs) eager_reports::add(depends, eager_reports::of(input));
    for (const Tensor& result : results) eager_reports::add(depends, eager_reports::of(result));
    EagerCall call;
    call.operation = std::move(operation);
    call.kernel = std::move(kernel);
    call.call = ApiScope::name();
    call.inputs = inputs.size();
    call.ordinal = ordinal;
    depends = execute(stream, std::move(call), std::move(operands), std::move(depends));
    if (depends)
        for (const Tensor& result : results)
            if (result.defined()) result.impl()->storage->reports = depends;
}

}  // namespace

std::vector<Tensor> apply(std::shared_ptr<const Operation> operation, TensorList inputs, ListRef<Output> outputs) {
    std::vector<Tensor> results(outputs.size());
    apply_to(std::move(operation), inputs, outputs, results);
    return results;
}

Tensor apply_one(std::shared_ptr<const Operation> operation, TensorList inputs, const Output& output) {
    Tensor result;
    apply_to(std::move(operation), inputs, std::span<const Output>(&output, 1), {&result, 1});
    return result;
}

}  // namespace lockstep
