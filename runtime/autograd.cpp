#include "lockstep/runtime/autograd.h"

#include <fmt/format.h>

#include <atomic>
#include <map>
#include <unordered_map>
#include <utility>

#include "lockstep/runtime/autocast.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/api_scope.h"
#include "lockstep/runtime/internal/core_operations.h"
#include "lockstep/runtime/record.h"

namespace lockstep {

namespace {
thread_local bool recording = true;
std::atomic<std::uint64_t> next_sequence{1};
}  // namespace

NoGrad::NoGrad() : previous_(std::exchange(recording, false)) {}
NoGrad::~NoGrad() { recording = previous_; }
bool grad_enabled() { return recording; }

SavedTensor::SavedTensor(const Tensor& tensor, const char* operation)
    : tensor_(tensor.defined() ? tensor.detach() : tensor),
      version_(tensor.defined() ? tensor.version() : 0),
      operation_(operation) {}

Tensor SavedTensor::get() const {
    if (tensor_.defined() && tensor_.version() != version_)
        throw InvalidArgument(
            fmt::format("backward of {}: a tensor of shape {} that it needs was modified in place after forward "
                        "(version {}, saved at {}); expected it unchanged, or clone() before the write",
                        operation_, tensor_.shape().str(), tensor_.version(), version_));
    return tensor_;
}

bool needs_autograd(TensorList inputs) {
    if (!recording) return false;
    for (const Tensor& input : inputs)
        if (input.defined() && input.requires_grad()) return true;
    return false;
}

AutogradNode::~AutogradNode() {
    std::vector<std::shared_ptr<AutogradNode>> released;
    const auto take_over = [&released](AutogradNode& node) {
        for (Edge& edge : node.inputs)
            if (edge.node && edge.node.use_count() == 1) released.push_back(std::move(edge.node));
    };
    take_over(*this);
    while (!released.empty()) {
        const std::shared_ptr<AutogradNode> node = std::move(released.back());
        released.pop_back();
        take_over(*node);
    }
}

void add_autograd_node(const char* name, TensorList inputs, TensorList outputs, BackwardFunction backward) {
    auto node = recycled::make_shared<AutogradNode>();
    node->name = name;
    node->sequence = next_sequence++;
    node->backward = std::move(backward);
    node->outputs = outputs.size();
    node->inputs.reserve(inputs.size());
    for (const Tensor& input : inputs) {
        AutogradNode::Edge edge;
        if (input.defined() && input.requires_grad()) {
            edge.node = input.impl()->node;
            edge.output = input.impl()->output_index;
            if (!edge.node) edge.leaf = input;
        }
        node->inputs.push_back(std::move(edge));
    }
    for (std::size_t i = 0; i < outputs.size(); ++i) {
        TensorImpl& impl = *outputs[i].impl();
        impl.node = node;
        impl.output_index = static_cast<int>(i);
        impl.requires_grad = true;
    }
}

namespace {

Tensor accumulate(const Tensor& a, const Tensor& b) {
    if (!a.defined()) return b;
    TensorMeta meta = TensorMeta::contiguous(a.dtype(), a.shape(), a.is_batch());
    return apply_one(Accumulate{}, {a, b}, meta);
}

/// The leaf gets separate storage: the gradient may be a view or be shared with other leaves and the caller.
void store(const Tensor& leaf, const Tensor& gradient) {
    const Tensor present = leaf.grad();
    leaf.set_grad(present.defined() ? accumulate(present, gradient) : gradient.clone());
}

struct Pending {
    std::shared_ptr<AutogradNode> node;
    std::vector<Tensor> gradients;
};

}  // namespace

void run_backward(const std::vector<Tensor>& roots, const std::vector<Tensor>& gradients, bool retain_graph,
                  const LeafSink& leaf_sink) {
    const NoGrad no_grad;
    const Autocast as_in_forward(std::nullopt);
    // Nodes by decreasing sequence number: a node runs after all later nodes, hence after all its users.
    std::map<std::uint64_t, Pending, std::greater<>> pending;
    // Leaf gradients in the order in which they become complete: when the last node that uses the leaf has run.
    struct Leaf {
        Tensor tensor, gradient;
        int uses = 0;
    };
    std::unordered_map<TensorImpl*, Leaf> leaves;
    std::vector<TensorImpl*> leaf_order;  // in order of discovery, so that the remaining leaves have a fixed order
    std::unordered_map<AutogradNode*, bool> seen;

    const auto count_uses = [&](const std::shared_ptr<AutogradNode>& start) {
        std::vector<AutogradNode*> stack{start.get()};
        while (!stack.empty()) {
            AutogradNode* node = stack.back();
            stack.pop_back();
            if (std::exchange(seen[node], true)) continue;
            for (const AutogradNode::Edge& edge : node->inputs) {
                if (edge.node) stack.push_back(edge.node.get());
                if (edge.leaf.defined()) {
                    Leaf& leaf = leaves[edge.leaf.impl().get()];
                    if (!leaf.tensor.defined()) leaf_order.push_back(edge.leaf.impl().get());
                    leaf.tensor = edge.leaf;
                    ++leaf.uses;
                }
            }
        }
    };
    const auto finish_leaf = [&](Leaf& leaf) {
        if (!leaf.gradient.defined()) return;
        for (const auto& hook : leaf.tensor.impl()->leaf_hooks) hook(leaf.gradient);
        if (leaf_sink)
            leaf_sink(leaf.tensor, leaf.gradient);
        else
            store(leaf.tensor, leaf.gradient);
    };

    for (std::size_t i = 0; i < roots.size(); ++i) {
        const auto& impl = roots[i].impl();
        if (!impl->node) {
            if (!impl->requires_grad)
                throw InvalidArgument(
                    "backward: the tensor has no autograd history and does not require a gradient; expected "
                    "requires_grad_() on a leaf before forward, and forward outside NoGrad");
            Leaf leaf{roots[i], gradients[i], 0};
            finish_leaf(leaf);
            continue;
        }
        count_uses(impl->node);
        Pending& entry = pending[impl->node->sequence];
        entry.node = impl->node;
        entry.gradients.resize(impl->node->outputs);
        Tensor& gradient = entry.gradients[static_cast<std::size_t>(impl->output_index)];
        gradient = accumulate(gradient, gradients[i]);
    }

    while (!pending.empty()) {
        Pending entry = std::move(pending.begin()->second);
        pending.erase(pending.begin());
        AutogradNode& node = *entry.node;
        if (!node.backward)
            throw InvalidArgument(
                fmt::format("backward: the autograd graph of {} was freed by an earlier backward; expected "
                            "retain_graph = true in that call",
                            node.name));
        for (std::size_t i = 0; i < node.hooks.size(); ++i)
            for (const auto& hook : node.hooks[i])
                if (entry.gradients[i].defined()) hook(entry.gradients[i]);
        const std::vector<Tensor> input_gradients = [&] {
            const ApiScope call(node.name);
            return node.backward(entry.gradients);
        }();
        if (!retain_graph && !node.repeatable) node.backward = {};
        for (std::size_t i = 0; i < node.inputs.size(); ++i) {
            const AutogradNode::Edge& edge = node.inputs[i];
            const Tensor gradient = i < input_gradients.size() ? input_gradients[i] : Tensor();
            if (edge.node) {
                if (gradient.defined()) {
                    Pending& next = pending[edge.node->sequence];
                    next.node = edge.node;
                    next.gradients.resize(edge.node->outputs);
                    Tensor& sum = next.gradients[static_cast<std::size_t>(edge.output)];
                    sum = accumulate(sum, gradient);
                }
            } else if (edge.leaf.defined()) {
                Leaf& leaf = leaves[edge.leaf.impl().get()];
                if (gradient.defined()) leaf.gradient = accumulate(leaf.gradient, gradient);
                if (--leaf.uses == 0) finish_leaf(leaf);
            }
        }
    }
    // Leaves used only by nodes that no gradient reached are complete now.
    for (TensorImpl* impl : leaf_order)
        if (leaves[impl].uses > 0) finish_leaf(leaves[impl]);
}

}  // namespace lockstep
