// Autograd: which operations made a tensor, and how to go back through them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/runtime/tensor.h"

namespace lockstep {

/// While one is alive, autograd does not follow operations.
class NoGrad {
public:
    NoGrad();
    ~NoGrad();
    NoGrad(const NoGrad&) = delete;
    NoGrad& operator=(const NoGrad&) = delete;

private:
    bool previous_;
};

bool grad_enabled();

/// A tensor kept for backward. Reading it after its storage was written again throws InvalidArgument.
class SavedTensor {
public:
    SavedTensor() = default;
    SavedTensor(const Tensor& tensor, const char* operation);
    /// The tensor without history.
    Tensor get() const;

private:
    Tensor tensor_;
    std::uint64_t version_ = 0;
    const char* operation_ = "";
};

/// Gradients of an operation's inputs from those of its outputs (undefined where none came). Runs inside NoGrad; may
/// return undefined for inputs that need none.
using BackwardFunction = std::function<std::vector<Tensor>(const std::vector<Tensor>& output_gradients)>;

struct AutogradNode {
    AutogradNode() = default;
    /// Lets go of what only this node holds, one by one: graphs may be longer than the call stack is deep.
    ~AutogradNode();
    AutogradNode(const AutogradNode&) = delete;
    AutogradNode& operator=(const AutogradNode&) = delete;

    const char* name = "";  ///< of the function that was called
    std::uint64_t sequence = 0;
    struct Edge {
        std::shared_ptr<AutogradNode> node;  ///< maker of the input; null for leaves and inputs that need no gradient
        int output = 0;
        Tensor leaf;  ///< the input itself where it is a leaf that requires a gradient
    };
    std::vector<Edge> inputs;
    BackwardFunction backward;                                           ///< empty once freed
    bool repeatable = false;                                             ///< keeps no tensors and is never freed
    std::vector<std::vector<std::function<void(const Tensor&)>>> hooks;  ///< per output
};

/// True when `backward` would be needed: `grad_enabled()`, and one of the tensors requires a gradient.
bool needs_autograd(const std::vector<Tensor>& inputs);
/// Adds an operation to the autograd graph: `outputs` get a node with `backward`. Call only when
/// needs_autograd(inputs).
void add_autograd_node(const char* name, const std::vector<Tensor>& inputs, const std::vector<Tensor>& outputs,
                       BackwardFunction backward);

/// Called for every leaf gradient when it is complete, instead of storing it in the leaf.
using LeafSink = std::function<void(const Tensor& leaf, const Tensor& gradient)>;
/// Goes back from `roots` (with one gradient each) to the leaves, in reverse order of the operations; gradients of one
/// tensor are added in that order, so sums are the same in every run. `leaf_sink` null: gradients are added to
/// `leaf.grad()`.
void run_backward(const std::vector<Tensor>& roots, const std::vector<Tensor>& gradients, bool retain_graph,
                  const LeafSink& leaf_sink = nullptr);

}  // namespace lockstep
