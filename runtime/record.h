// Records: every operation becomes one. An Operation says what is done and with which attributes, a Record adds the
// buffers it reads and writes and the kernel that does it. Used directly, a record is executed at once; while a model
// is traced, a Trace takes it instead.
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
#include "lockstep/runtime/status.h"
#include "lockstep/runtime/stream.h"
#include "lockstep/runtime/tensor.h"

namespace lockstep {

/// A tensor as a record sees it.
struct Operand {
    std::shared_ptr<Buffer> buffer;
    TensorMeta meta;
    std::shared_ptr<Storage> storage;  ///< in a trace, of operands that live outside it (parameters, constants)
};

/// Where a kernel runs and on what. Valid during the call only.
struct KernelArgs {
    const Launch& launch;
    void* const* in;   ///< first element of each input (offset applied); all_shards: inputs of shard 0, then 1, ...
    void* const* out;  ///< first element of each output
    void* scratch;     ///< at least scratch_bytes(), aligned to 256, or null when that is 0
    const StepState* step;     ///< device memory: seed, step, microbatch
    StatusWord* status;        ///< device memory: this shard's status word; forward kernels report here
    const StatusWord* agreed;  ///< device memory: what the devices agreed on; committing kernels look here first
    std::uint32_t ordinal;     ///< of a random operation in `forward`
    int shard;                 ///< number of the shard, 0 for eager work
    std::int64_t first_row;    ///< global row that this shard's row 0 is
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

/// Executable form of an operation for one kind of hardware and given layouts. Immutable once made: one kernel is run
/// by all devices and shards of its kind, possibly at the same time.
class Kernel {
public:
    virtual ~Kernel() = default;
    virtual std::size_t scratch_bytes() const { return 0; }
    /// CPU: does the work. CUDA: enqueues it on `launch.native`.
    virtual void run(const KernelArgs& args) const = 0;
    /// CPU threads it was made for.
    int threads = 1;
    /// What it was made for (Backend::hardware).
    std::uint64_t hardware = 0;
};

/// How convolutions may be computed, where a backend has more than one way (f32).
enum class ConvAlgorithm : std::uint8_t {
    automatic,  ///< the fastest, by a rule of shape and instruction set: Winograd's for most of 3x3 and stride 1
    direct,     ///< sums of products alone: smaller errors, and NaN reaches only those outputs whose windows it lies in
    /// The fastest of those ways whose bits are the same at every run, by trials: they are made the first time that a
    /// shape is met, while the host waits. What was found is kept and repeated (torch.backends.cudnn.benchmark, but
    /// for a whole run and all that goes on from its checkpoints).
    benchmark
};
/// What LOCKSTEP_CONV=auto|direct|benchmark says, read once; automatic where it is not set. Throws InvalidArgument for
/// another value.
ConvAlgorithm default_conv_algorithm();

/// What a kernel is made for. A factory may ask for other input layouts by changing `in[i]` (make it contiguous, or
/// opaque): the input is then converted first, by a reorder record. It may choose the layouts of fresh outputs by
/// changing `out[i]`. dtype and shape stay.
///
/// An operand that may be missing, an input or an output, keeps its place in the lists: it is passed as an undefined
/// tensor, the kernel is asked for with an empty meta and run with a null pointer. Such operands have dimensions where
/// they are there.
struct KernelRequest {
    Device device;  ///< where it is to run: it may run on all others of the same hardware
    int threads = 1;
    bool deterministic = false;
    int shards = 1;  ///< upper bound of KernelArgs::shards
    std::vector<TensorMeta> in, out;
    ConvAlgorithm convolution = ConvAlgorithm::automatic;

    /// Whether an operand is of f16 or bf16.
    bool has_short_floats() const;
    /// Whether an operand that may be missing is there.
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

/// Makes kernels for operations on one kind of device and keeps them: when there are thousands, those that nobody uses
/// go. Backends fill theirs in `register_cpu_kernels` and
/// `register_cuda_kernels` (ops/cpu/kernels.cpp, ops/cuda/kernels.cpp).
class KernelTable {
public:
    using Factory = std::unique_ptr<Kernel> (*)(const Operation&, KernelRequest&);
    static KernelTable& of(DeviceKind kind);

    /// table.add<Relu, make_relu>() with std::unique_ptr<Kernel> make_relu(const Relu&, KernelRequest&). Where only
    /// some values of the attributes have a kernel, `supports` says which.
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
    /// table.add_short_floats<Relu, make_short_relu>(), beside add(): who makes kernels for requests with operands of
    /// f16 or bf16. Without it, where `supports` says no, or where `make` returns null, having left the request as it
    /// was, such a request is widened: the kernel for f32 runs between conversions, which keep the layouts that it
    /// asks for where those are there for 16 bits (OpaqueLayout::with_dtype).
    template <class Op, std::unique_ptr<Kernel> (*make)(const Op&, KernelRequest&),
              bool (*supports)(const Op&) = detail::all_attributes<Op>>
    void add_short_floats() {
        add_short_floats(typeid(OperationOf<Op>),
                         [](const Operation& operation, KernelRequest& request) -> std::unique_ptr<Kernel> {
                             const Op& op = static_cast<const OperationOf<Op>&>(operation).op();
                             return supports(op) ? make(op, request) : nullptr;
                         });
    }
    /// Whether there is a kernel for an operation with these attributes.
    bool has(const Operation& operation) const;
    /// The kernel for `request`, made or remembered. Throws DeviceError for an operation this kind lacks.
    std::shared_ptr<const Kernel> make(const Operation& operation, KernelRequest& request);

private:
    using Supports = bool (*)(const Operation&);
    void add(std::type_index operation, Factory factory, Supports supports);
    void add_short_floats(std::type_index operation, Factory factory);
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

/// One operation with everything it touches.
struct Record {
    std::shared_ptr<const Operation> operation;
    std::shared_ptr<const Kernel> kernel;
    std::vector<Operand> in, out;
    std::uint32_t ordinal = 0;   ///< of a random operation
    const char* call = nullptr;  ///< public function that it works for, for messages; may be null
    /// In a trace: what the kernel was asked to be, for devices of other hardware.
    std::shared_ptr<const KernelRequest> asked = nullptr;
};

/// The kernel of a traced record for `device`, which may be other hardware than the one that it was traced for. Throws
/// DeviceError where that wants other layouts.
std::shared_ptr<const Kernel> kernel_on(const Record& record, Device device);

/// An output of `apply`: a fresh tensor, one that exists and is written (its version grows), or one that is not wanted,
/// where the operation says that it may be missing.
struct Output {
    Output() : wanted(false) {}
    Output(TensorMeta fresh) : meta(std::move(fresh)) {}      // NOLINT(google-explicit-constructor)
    Output(Tensor existing) : target(std::move(existing)) {}  // NOLINT(google-explicit-constructor)
    TensorMeta meta;
    Tensor target;
    bool wanted = true;
};

/// Performs `operation` on `inputs`: executes it at once on the inputs' device, or, under a Trace, appends its record.
/// Operands may be missing only where the operation says so (KernelRequest has how); results of outputs that are not
/// wanted are undefined. Throws InvalidArgument when defined inputs lie on different devices, and when several elements
/// of a tensor that is written share memory. Autograd does not follow it.
std::vector<Tensor> apply(std::shared_ptr<const Operation> operation, const std::vector<Tensor>& inputs,
                          const std::vector<Output>& outputs);

/// `apply` for one output.
template <class Op>
Tensor apply_one(Op op, const std::vector<Tensor>& inputs, const Output& output) {
    return apply(make_operation(std::move(op)), inputs, {output})[0];
}

/// Scope in which eager work on CPU devices uses `threads` threads, deterministic algorithms where asked, and
/// convolutions of one kind.
class ComputeScope {
public:
    ComputeScope(int threads, bool deterministic, ConvAlgorithm convolution = default_conv_algorithm());
    ~ComputeScope();
    ComputeScope(const ComputeScope&) = delete;
    ComputeScope& operator=(const ComputeScope&) = delete;
    /// Threads for work on `device` in the current scope: those set, or the device's cores.
    static int threads_for(Device device);
    static bool deterministic();
    static ConvAlgorithm convolution();

private:
    int previous_threads_;
    bool previous_deterministic_;
    std::optional<ConvAlgorithm> previous_convolution_;
};

}  // namespace lockstep
