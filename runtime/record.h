// Records: every operation becomes one. An Operation defines the computation and its attributes; a Record adds the
// buffers it reads and writes and the kernel that executes it. Outside of a trace, a record is executed at once; while
// a model is traced, a Trace collects it instead.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <typeindex>
#include <utility>
#include <vector>

#include "lockstep/runtime/operation.h"
#include "lockstep/runtime/random.h"
#include "lockstep/runtime/recycled.h"
#include "lockstep/runtime/status.h"
#include "lockstep/runtime/stream.h"
#include "lockstep/runtime/tensor.h"

namespace lockstep {

/// A tensor as a record sees it.
struct Operand {
    std::shared_ptr<Buffer> buffer;
    TensorMeta meta;
    std::shared_ptr<Storage> storage;  ///< in a trace, for operands that exist outside it (parameters, constants)
};

/// Bytes to which a kernel's scratch memory is aligned.
constexpr std::size_t scratch_alignment = 256;

/// Arguments of a kernel: device, memory and step. Valid during the call only.
struct KernelArgs {
    const ExecContext& context;
    void* const* in;   ///< first element of each input (offset applied); all_shards: inputs of shard 0, then 1, ...
    void* const* out;  ///< first element of each output
    void* scratch;     ///< at least scratch_bytes(), aligned to scratch_alignment, or null if that is 0
    const StepCounters* step;  ///< device memory: seed, step, microbatch
    StatusWord* status;        ///< device memory: this shard's status word; forward kernels report here
    const StatusWord* agreed;  ///< device memory: agreed status of all devices; committing kernels check it first
    std::uint32_t ordinal;     ///< ordinal of a random operation in `forward`
    int shard;                 ///< number of the shard, 0 for eager work
    std::int64_t first_row;    ///< global row of this shard's row 0
    int shards;                ///< present shards; 1 for eager work

    template <class T>
    const T* input(int i) const {
        return static_cast<const T*>(in[i]);
    }
    template <class T>
    T* output(int i) const {
        return static_cast<T*>(out[i]);
    }
};

/// Executable form of an operation for one kind of hardware and given layouts. Immutable once created: all devices and
/// shards of its kind run the same kernel, possibly at the same time.
class Kernel {
public:
    virtual ~Kernel() = default;
    virtual std::size_t scratch_bytes() const { return 0; }
    /// CPU: computes. CUDA: enqueues the work on `context.native`.
    virtual void run(const KernelArgs& args) const = 0;
    /// Number of CPU threads it was created for.
    int threads = 1;
    /// Hardware it was created for (Backend::hardware).
    std::uint64_t hardware = 0;
};

/// Selection of convolution algorithms, if a backend has more than one (f32).
enum class ConvAlgorithm : std::uint8_t {
    automatic,  ///< the fastest by a rule of shape and instruction set: Winograd for most 3x3 and stride 1
    direct,     ///< only sums of products: smaller errors, and NaN reaches only the outputs whose windows contain it
    /// The fastest reproducible algorithm, found by trials when a shape first occurs; the host waits for them. The
    /// choice is kept for the whole run, including runs resumed from its checkpoints (compare
    /// torch.backends.cudnn.benchmark).
    benchmark
};
/// Value of LOCKSTEP_CONV=auto|direct|benchmark, read once; automatic if it is not set. Throws InvalidArgument for
/// another value.
ConvAlgorithm default_conv_algorithm();

/// Request for a kernel. A factory may ask for other input layouts by changing `in[i]` (to contiguous or opaque): a
/// reorder record then converts the input first. It may choose the layouts of fresh outputs by changing `out[i]`. dtype
/// and shape must not change.
///
/// An optional operand, input or output, has its position in the lists even if it is missing. It is then passed as an
/// undefined tensor, has an empty meta in the request and is a null pointer at run time. Optional operands that are
/// present have at least one dimension.
struct KernelRequest {
    Device device;  ///< device to run on; the kernel may run on all others of the same hardware
    int threads = 1;
    bool deterministic = false;
    int shards = 1;  ///< upper bound of KernelArgs::shards
    recycled::Vector<TensorMeta> in, out;
    ConvAlgorithm convolution = ConvAlgorithm::automatic;
    bool allow_tf32 = false;  ///< on GPUs: f32 convolutions and matrix products may be computed in TF32

    /// Whether an operand is f16 or bf16.
    bool has_half_types() const;
    /// Whether an optional operand is present.
    bool has_in(std::size_t input) const { return !in[input].shape.empty(); }
    bool has_out(std::size_t output) const { return !out[output].shape.empty(); }
    /// Asks for a strided, row-major input.
    void want_contiguous(std::size_t input);
    void want_all_contiguous();
};

namespace detail {
template <class Op>
bool all_attributes(const Op&) {
    return true;
}
}  // namespace detail

/// Creates and caches kernels for operations on one kind of device. Beyond some thousands of kernels, unused ones are
/// evicted. Backends fill their tables in `register_cpu_kernels` and `lockstep_cuda_kernels` (ops/cpu/kernels.cpp,
/// ops/cuda/kernels.cpp).
class KernelTable {
public:
    using Factory = std::unique_ptr<Kernel> (*)(const Operation&, KernelRequest&);
    static KernelTable& of(DeviceKind kind);

    /// table.add<Relu, make_relu>() with std::unique_ptr<Kernel> make_relu(const Relu&, KernelRequest&). If only some
    /// attribute values have a kernel, `supports` selects them.
    template <class Op, std::unique_ptr<Kernel> (*make)(const Op&, KernelRequest&),
              bool (*supports)(const Op&) = detail::all_attributes<Op>>
    void add() {
        add(
            typeid(OperationOf<Op>),
            [](const Operation& operation, KernelRequest& request) {
                return make(static_cast<const OperationOf<Op>&>(operation).op(), request);
            },
            [](const Operation& operation) { return supports(static_cast<const OperationOf<Op>&>(operation).op()); });
    }
    /// table.add_half_types<Relu, make_half_relu>(), in addition to add(): a factory for requests with operands of
    /// f16 or bf16. Without a factory, if `supports` returns false, or if `make` returns null and leaves the request
    /// unchanged, the request is widened: the f32 kernel runs between conversions. These keep the layouts that it asks
    /// for if they exist for 16 bits (OpaqueLayout::with_dtype).
    template <class Op, std::unique_ptr<Kernel> (*make)(const Op&, KernelRequest&),
              bool (*supports)(const Op&) = detail::all_attributes<Op>>
    void add_half_types() {
        add_half_types(typeid(OperationOf<Op>),
                       [](const Operation& operation, KernelRequest& request) -> std::unique_ptr<Kernel> {
                           const Op& op = static_cast<const OperationOf<Op>&>(operation).op();
                           return supports(op) ? make(op, request) : nullptr;
                       });
    }
    /// Whether there is a kernel for an operation with these attributes.
    bool has(const Operation& operation) const;
    /// The kernel for `request`, created or cached. Throws DeviceError for an operation that this kind of device lacks.
    std::shared_ptr<const Kernel> make(const Operation& operation, KernelRequest& request);

private:
    using Supports = bool (*)(const Operation&);
    void add(std::type_index operation, Factory factory, Supports supports);
    void add_half_types(std::type_index operation, Factory factory);
    struct Impl;
    explicit KernelTable(DeviceKind kind);
    std::shared_ptr<Impl> impl_;
};

/// A kernel from a callable `void(const KernelArgs&)`.
template <class F>
std::unique_ptr<Kernel> make_kernel(F function, std::size_t scratch_bytes = 0) {
    class FunctionKernel final : public Kernel {
    public:
        FunctionKernel(F f, std::size_t bytes) : function_(std::move(f)), bytes_(bytes) {}
        std::size_t scratch_bytes() const override { return bytes_; }
        void run(const KernelArgs& args) const override { function_(args); }

    private:
        F function_;
        std::size_t bytes_;
    };
    return std::make_unique<FunctionKernel>(std::move(function), scratch_bytes);
}

/// One operation with all its operands.
struct Record {
    std::shared_ptr<const Operation> operation;
    std::shared_ptr<const Kernel> kernel;
    std::vector<Operand> in, out;
    std::uint32_t ordinal = 0;   ///< ordinal of a random operation
    const char* call = nullptr;  ///< public function that issued it, for messages; may be null
    bool repeated = false;       ///< belongs to the second run of a checkpointed part (checkpointed.h)
    /// In a trace: the request for the kernel, to create it for devices of other hardware.
    std::shared_ptr<const KernelRequest> asked = nullptr;
};

/// The kernel of a traced record for `device`, which may be other hardware than the record was traced for. Throws
/// DeviceError if that hardware needs other layouts.
std::shared_ptr<const Kernel> kernel_on(const Record& record, Device device);

/// An output of `apply`: a fresh tensor, an existing one that is written (its version grows), or an optional one that
/// is not requested.
struct Output {
    Output() : wanted(false) {}
    Output(TensorMeta fresh) : meta(std::move(fresh)) {}      // NOLINT(google-explicit-constructor)
    Output(Tensor existing) : target(std::move(existing)) {}  // NOLINT(google-explicit-constructor)
    TensorMeta meta;
    Tensor target;
    bool wanted = true;
};

/// Performs `operation` on `inputs`: executes it at once on the inputs' device or, under a Trace, appends its record.
/// Only optional operands may be missing (see KernelRequest); results of outputs that are not requested are undefined.
/// Throws InvalidArgument if defined inputs are on different devices, and if several elements of a written tensor share
/// memory. Not tracked by autograd.
std::vector<Tensor> apply(std::shared_ptr<const Operation> operation, TensorList inputs, ListRef<Output> outputs);
/// `apply` with one output.
Tensor apply_one(std::shared_ptr<const Operation> operation, TensorList inputs, const Output& output);

/// The same for an operation by value.
template <class Op>
Tensor apply_one(Op op, TensorList inputs, const Output& output) {
    return apply_one(std::shared_ptr<const Operation>(make_operation(std::move(op))), inputs, output);
}

/// Settings of eager work.
struct ComputeSettings {
    int threads = 0;  ///< threads of a CPU device; 0: one per core of the device
    bool deterministic = false;
    std::optional<ConvAlgorithm> convolution = {};  ///< default: from LOCKSTEP_CONV
    bool allow_tf32 = false;                        ///< as EngineOptions::allow_tf32
};

/// Scope that applies settings to the eager work of this thread, such as
/// `const ComputeScope scope({.allow_tf32 = true})`. Replaces all settings of the enclosing scope.
class ComputeScope {
public:
    explicit ComputeScope(const ComputeSettings& settings);
    ~ComputeScope();
    ComputeScope(const ComputeScope&) = delete;
    ComputeScope& operator=(const ComputeScope&) = delete;
    /// Threads for work on `device` in the current scope: those set, or the device's cores.
    static int threads_for(Device device);
    static bool deterministic();
    static ConvAlgorithm convolution();
    static bool allow_tf32();

private:
    ComputeSettings previous_;
};

}  // namespace lockstep
