// Registration of kernels, their variants for 16-bit floats, and the choice among several algorithms.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "lockstep/runtime/record.h"

namespace lockstep {

// Registers the kernels of each kind of device; defined in ops/. Declared here so that runtime/ includes nothing of
// ops/.

void register_cpu_kernels(KernelTable& table);
extern "C" void lockstep_cuda_kernels(KernelTable& table);

// 16-bit floats by way of f32 kernels.

/// Creates the kernel for the same request in f32; may ask for layouts.
using MakeWide = std::function<std::unique_ptr<Kernel>(KernelRequest&)>;
/// Creates a kernel that converts between dtypes and layouts.
using MakeConversion = std::function<std::unique_ptr<Kernel>(const TensorMeta& from, const TensorMeta& to)>;

/// Converts inputs of f16 and bf16 to f32, runs the f32 kernel on them and rounds its outputs to nearest even. One
/// conversion also changes an input's layout to the one that the f32 kernel asks for. Fresh outputs keep the layout of
/// the f32 kernel if it exists for 16 bits. Previous contents of outputs are not read: an operation that updates them
/// in place needs a separate kernel. Throws InvalidArgument for an operation that commits, because lasting state is
/// f32.
std::unique_ptr<Kernel> upcast_kernel(const Operation& operation, KernelRequest& request, const MakeWide& make_wide,
                                      const MakeConversion& make_conversion);

/// Warns, once for f16 and once for bf16, if this processor has no instructions for the requested dtype.
void warn_emulated(const KernelRequest& request);

// Choice among several algorithms of an operation by trials (ConvAlgorithm::benchmark): every choice is made once,
// stored, and used from then on.

/// Name of the chosen algorithm by the question: operation, shapes, dtypes, threads, hardware.
using AlgorithmTable = std::map<std::string, std::string>;

/// Choices of one training run or of the process. Thread-safe.
class AlgorithmChoices {
public:
    using Try = std::function<std::string()>;
    /// Makes a choice together with other processes: returns the result for all of them, from this process's `tried()`
    /// or from an earlier trial of another process. Called without a lock.
    using Decide = std::function<std::string(const std::string& question, const Try& tried)>;
    explicit AlgorithmChoices(Decide together = {});

    /// One of `ways`: the stored choice, or else the result of the trials in `fastest`, which is then stored. A stored
    /// choice that is not among `ways` is replaced by new trials, with a warning.
    std::string choose(const std::string& question, const std::vector<std::string>& ways, const Try& fastest);
    AlgorithmTable table() const;
    /// Replaces all choices by those made elsewhere.
    void replace(AlgorithmTable table);
    /// Number of questions that this process has answered by trials.
    std::uint64_t trials() const;
    /// Unique among all choices of the process, and changed by `replace`: cache key of the kernels created with them.
    std::uint64_t version() const;

    /// Those of this thread's innermost scope, or those of the process.
    static AlgorithmChoices& current();

private:
    Decide together_;
    mutable std::mutex mutex_;
    AlgorithmTable table_;
    std::uint64_t trials_ = 0, version_;
};

/// While an instance lives, this thread's kernels are created with `choices`; null: those of the enclosing scope.
class AlgorithmScope {
public:
    explicit AlgorithmScope(AlgorithmChoices* choices);
    ~AlgorithmScope();
    AlgorithmScope(const AlgorithmScope&) = delete;
    AlgorithmScope& operator=(const AlgorithmScope&) = delete;

private:
    AlgorithmChoices* outer_;
};

/// Name of the algorithm with the shortest time; `seconds(way)` runs it once. A first run is not counted and ends the
/// trial of a hopelessly slow algorithm; then the shortest of three runs counts, because other programs may use the
/// machine. A later algorithm must be 10% faster than the earlier ones, so that chance does not decide between equals.
/// An algorithm that throws std::exception is skipped; if all throw, the last exception is rethrown.
std::string fastest_algorithm(const std::vector<std::string>& ways,
                              const std::function<double(const std::string&)>& seconds);

}  // namespace lockstep
