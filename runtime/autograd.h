// Autograd: which operations produced a tensor, and how to differentiate through them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/runtime/error.h"
#include "lockstep/runtime/recycled.h"
#include "lockstep/runtime/tensor.h"

namespace lockstep {

/// Disables gradient tracking while an instance is alive.
class NoGrad {
public:
    NoGrad();
    ~NoGrad();
    NoGrad(const NoGrad&) = delete;
    NoGrad& operator=(const NoGrad&) = delete;

private:
    bool previous_;
};

/// False inside a NoGrad.
bool grad_enabled();

struct AutogradNode;

namespace detail {
class SavedInPart;
}

/// A tensor saved for backward. Reading it after another write to its storage throws InvalidArgument. Inside a
/// checkpointed part (checkpointed.h) it is not kept, and reading it runs the part again.
class SavedTensor {
public:
    /// The tensor's part in the operation.
    enum class Role : std::uint8_t { input, output };

    SavedTensor() = default;
    SavedTensor(const Tensor& tensor, const char* operation, Role role = Role::input);
    /// The tensor: with its history while a composed backward function runs, otherwise without.
    Tensor get() const;

private:
    Tensor tensor_;
    std::shared_ptr<detail::SavedInPart> in_part_;  ///< instead of `tensor_`
    std::uint64_t version_ = 0;
    const char* operation_ = "";
    Role role_ = Role::input;
    // History of an input, to be found among the inputs of the node. Nothing is owned: a graph that is released from
    // node to node must not be held by what its nodes save.
    const TensorImpl* leaf_ = nullptr;
    const AutogradNode* producer_ = nullptr;
    int output_ = 0;
};

/// Gradients of an operation's inputs, computed from those of its outputs (undefined if an output has none). Runs
/// inside NoGrad; may return undefined for inputs that need no gradient. A function that is *composed* of functions
/// with gradients can also run outside NoGrad, and its results can be differentiated again (see grad()).
class BackwardFunction {
public:
    using Result = std::vector<Tensor>;

    BackwardFunction() = default;
    /// From a callable Result(const std::vector<Tensor>& output_gradients).
    template <class F, class = std::enable_if_t<std::is_invocable_r_v<Result, const F&, const std::vector<Tensor>&>>>
    BackwardFunction(F function)  // NOLINT(google-explicit-constructor)
        : call_(recycled::make_shared<CallOf<F>>(std::move(function))) {}
    /// From a callable that is composed of functions with gradients.
    template <class F>
    static BackwardFunction composed(F function) {
        BackwardFunction made;
        made.call_ = recycled::make_shared<ComposedCallOf<F>>(std::move(function));
        return made;
    }

    explicit operator bool() const { return call_ != nullptr; }
    bool is_composed() const { return call_ != nullptr && call_->composed(); }
    /// Throws InvalidArgument without a callable.
    Result operator()(const std::vector<Tensor>& output_gradients) const {
        if (!call_) throw InvalidArgument("BackwardFunction: there is no function to call; expected a callable");
        return call_->run(output_gradients);
    }

private:
    struct Call {
        virtual ~Call() = default;
        virtual Result run(const std::vector<Tensor>& output_gradients) const = 0;
        virtual bool composed() const { return false; }
    };
    template <class F>
    struct CallOf : Call {
        explicit CallOf(F f) : function(std::move(f)) {}
        Result run(const std::vector<Tensor>& output_gradients) const override { return function(output_gradients); }
        F function;
    };
    template <class F>
    struct ComposedCallOf final : CallOf<F> {
        using CallOf<F>::CallOf;
        bool composed() const override { return true; }
    };
    std::shared_ptr<const Call> call_;
};

/// A call that backward can differentiate.
struct AutogradNode {
    AutogradNode() = default;
    /// Releases nodes that only this node owns one by one: graphs may be longer than the call stack is deep.
    ~AutogradNode();
    AutogradNode(const AutogradNode&) = delete;
    AutogradNode& operator=(const AutogradNode&) = delete;

    const char* name = "";  ///< name of the called function
    std::uint64_t sequence = 0;
    /// An input of the call.
    struct Edge {
        std::shared_ptr<AutogradNode> node;  ///< its producer; null for leaves and inputs that need no gradient
        int output = 0;
        Tensor leaf;  ///< the input itself if it is a leaf that requires a gradient
    };
    recycled::Vector<Edge> inputs;
    std::size_t outputs = 0;                                             ///< number of outputs
    BackwardFunction backward;                                           ///< empty once freed
    bool repeatable = false;                                             ///< saves no tensors and is never freed
    std::vector<std::vector<std::function<void(const Tensor&)>>> hooks;  ///< per output; empty without hooks
};

/// True if `backward` would be needed: `grad_enabled()`, and one of the tensors requires a gradient.
bool needs_autograd(TensorList inputs);
/// Adds an operation to the autograd graph: `outputs` get a node with `backward`. Call only if needs_autograd(inputs).
void add_autograd_node(const char* name, TensorList inputs, TensorList outputs, BackwardFunction backward);

/// `gradient`, checked, or 1 if it is undefined and `output` has one element. Throws InvalidArgument; `call`: for
/// messages.
Tensor starting_gradient(const char* call, const Tensor& output, const Tensor& gradient);

/// Called for every leaf gradient when it is complete, instead of storing it in the leaf.
using LeafSink = std::function<void(const Tensor& leaf, const Tensor& gradient)>;
/// Propagates gradients from `roots` (one gradient each) to the leaves, in reverse order of the operations. Gradients
/// of one tensor are added in that order, so sums are the same in every run. If `leaf_sink` is null, gradients are
/// added to `leaf.grad()`.
void run_backward(const std::vector<Tensor>& roots, const std::vector<Tensor>& gradients, bool retain_graph,
                  const LeafSink& leaf_sink = nullptr);

/// Options of `grad`.
struct GradOptions {
    bool create_graph = false;  ///< the results have a history, so that they can be differentiated again
    bool retain_graph = false;  ///< the graph can be used again; always if `create_graph`
    bool allow_unused = false;  ///< undefined results for inputs on which no output depends, not an error
};
/// Gradients of `outputs` with respect to `inputs`: leaves or results of functions, which require a gradient. Returns
/// them, and changes no tensor's grad(). `grad_outputs`: one for each output; if empty, 1 for outputs of one element.
/// With `create_graph`, throws InvalidArgument for a custom function whose gradient is not `composed`.
/// Source: torch.autograd.grad.
std::vector<Tensor> grad(const std::vector<Tensor>& outputs, const std::vector<Tensor>& inputs,
                         const std::vector<Tensor>& grad_outputs = {}, const GradOptions& options = {});

}  // namespace lockstep
