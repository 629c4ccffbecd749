// Calls of checkpointed parts: what the first run leaves behind, and the second run that backward causes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/checkpointed.h"
#include "lockstep/runtime/dtype.h"
#include "lockstep/runtime/record.h"
#include "lockstep/runtime/shape.h"

namespace lockstep {

/// Inside a backward function: records a graph as forward does, while it lives.
class ForwardAgain {
public:
    ForwardAgain();
    ~ForwardAgain();
    ForwardAgain(const ForwardAgain&) = delete;
    ForwardAgain& operator=(const ForwardAgain&) = delete;

private:
    bool recording_;
    const std::shared_ptr<AutogradNode>* differentiated_;
};

namespace detail {

/// A tensor that a function of a part saved for backward.
class SavedInPart {
public:
    /// The tensor, for which the part runs again unless it has. `version`: at the time when it was saved.
    const Tensor& value(std::uint64_t& version);

private:
    friend class CheckpointedCall;
    std::shared_ptr<CheckpointedCall> call_;
    Tensor value_;
    std::uint64_t version_ = 0;
    Shape shape_;
    DType dtype_ = DType::f32;
};

class CheckpointedCall : public std::enable_shared_from_this<CheckpointedCall> {
public:
    CheckpointedCall(const std::vector<Tensor>& arguments, FirstRun::Part again);

    void begin();
    /// Nothrow: a part may have thrown.
    void end();
    /// Runs the part again and fills the saved tensors that a function still needs.
    void repeat();

    // For functions, of the parts that run on this thread.

    /// Whether a part runs.
    static bool runs() { return innermost != nullptr; }
    /// Notes what an operation reads and writes. Returns true if a repeated operation must not run, because the first
    /// run has written its outputs, which still exist. Throws InvalidArgument for a repeated operation that reads a
    /// tensor written since.
    static bool omits(TensorList inputs, ListRef<Output> outputs);
    /// Whether a part runs for the second time.
    static bool repeats();
    /// The ordinal of the same call of the first run; nullopt outside of second runs.
    static std::optional<std::uint32_t> repeated_ordinal();
    static void note_ordinal(std::uint32_t ordinal);
    /// Takes a tensor that is saved for backward. Null if the caller must keep it.
    static std::shared_ptr<SavedInPart> save(const Tensor& tensor);

private:
    /// A run on this thread.
    struct Run {
        CheckpointedCall* call;
        bool again;
        Run* outer;
    };
    struct Argument {
        SavedTensor tensor;
        bool requires_grad;
    };
    struct Seen {
        std::weak_ptr<const Storage> storage;
        std::uint64_t version = 0;
        bool written = false;
    };
    /// While it lives, the part runs on this thread for the second time.
    class Again;
    std::shared_ptr<SavedInPart> save_first(const Tensor& tensor);
    void save_again(const Tensor& tensor);

    static thread_local Run* innermost;

    std::vector<Argument> arguments_;
    FirstRun::Part again_;
    std::optional<DType> autocast_;
    std::uint64_t host_position_ = 0;
    Run run_{this, false, nullptr};  ///< the first
    bool first_ = true;              ///< the first run has not ended
    std::vector<std::weak_ptr<SavedInPart>> saved_;
    std::vector<std::uint32_t> ordinals_;
    std::unordered_map<const Storage*, Seen> seen_;
    std::size_t next_saved_ = 0, next_ordinal_ = 0;  ///< in the second run
};

}  // namespace detail
}  // namespace lockstep
