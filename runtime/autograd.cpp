#include "lockstep/runtime/autograd.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "lockstep/runtime/autocast.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/api_scope.h"
#include "lockstep/runtime/internal/checkpointed_call.h"
#include "lockstep/runtime/internal/core_operations.h"
#include "lockstep/runtime/record.h"
#include "lockstep/runtime/trace.h"

namespace lockstep {

namespace {

thread_local bool recording = true;
std::atomic<std::uint64_t> next_sequence{1};

/// The node whose composed backward function runs on this thread, with a history for its results.
thread_local const std::shared_ptr<AutogradNode>* differentiated = nullptr;

class Differentiated {
public:
    explicit Differentiated(const std::shared_ptr<AutogradNode>& node)
        : previous_(std::exchange(differentiated, &node)) {}
    ~Differentiated() { differentiated = previous_; }
    Differentiated(const Differentiated&) = delete;
    Differentiated& operator=(const Differentiated&) = delete;

private:
    const std::shared_ptr<AutogradNode>* previous_;
};

Tensor with_history(const Tensor& tensor, const std::shared_ptr<AutogradNode>& node, int output) {
    auto impl = recycled::make_shared<TensorImpl>();
    impl->storage = tensor.impl()->storage;
    impl->meta = tensor.impl()->meta;
    impl->requires_grad = true;
    impl->node = node;
    impl->output_index = output;
    return Tensor(std::move(impl));
}

}  // namespace

namespace {

/// Records an autograd graph, or none, while it lives: also inside the caller's NoGrad.
class Recording {
public:
    explicit Recording(bool on) : previous_(std::exchange(recording, on)) {}
    ~Recording() { recording = previous_; }
    Recording(const Recording&) = delete;
    Recording& operator=(const Recording&) = delete;

private:
    bool previous_;
};

}  // namespace

NoGrad::NoGrad() : previous_(std::exchange(recording, false)) {}
NoGrad::~NoGrad() { recording = previous_; }
bool grad_enabled() { return recording; }

SavedTensor::SavedTensor(const Tensor& tensor, const char* operation, Role role)
    : tensor_(tensor.defined() ? tensor.detach() : tensor),
      version_(tensor.defined() ? tensor.version() : 0),
      operation_(operation),
      role_(role) {
    if (!tensor.defined()) return;
    if ((in_part_ = detail::CheckpointedCall::save(tensor))) tensor_ = {};
    if (!tensor.requires_grad()) return;
    producer_ = tensor.impl()->node.get();
    output_ = tensor.impl()->output_index;
    if (!producer_) leaf_ = tensor.impl().get();
}

Tensor SavedTensor::get() const {
    std::uint64_t version = version_;
    const Tensor& tensor = in_part_ ? in_part_->value(version) : tensor_;
    if (tensor.defined() && tensor.version() != version)
        throw InvalidArgument(
            fmt::format("backward of {}: a tensor of shape {} that it needs was modified in place after forward "
                        "(version {}, saved at {}); expected it unchanged, or clone() before the write",
                        operation_, tensor.shape().str(), tensor.version(), version));
    if (!differentiated || !recording || !tensor.defined()) return tensor;
    if (role_ == Role::output) return with_history(tensor, *differentiated, 0);
    if (!leaf_ && !producer_) return tensor;
    for (const AutogradNode::Edge& edge : (*differentiated)->inputs) {
        if (leaf_ && edge.leaf.defined() && edge.leaf.impl().get() == leaf_) return edge.leaf;
        if (producer_ && edge.node.get() == producer_ && edge.output == output_)
            return with_history(tensor, edge.node, output_);
    }
    throw InvalidArgument(
        fmt::format("backward of {}: a tensor of shape {} that it saved is not one of its inputs; expected inputs of "
                    "the node in composed backward functions",
                    operation_, tensor.shape().str()));
}

ForwardAgain::ForwardAgain()
    : recording_(std::exchange(recording, true)), differentiated_(std::exchange(differentiated, nullptr)) {}
ForwardAgain::~ForwardAgain() {
    recording = recording_;
    differentiated = differentiated_;
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

Tensor accumulate(const Tensor& a, Tensor b) {
    if (!a.defined()) return b;
    TensorMeta meta = TensorMeta::contiguous(a.dtype(), a.shape(), a.is_batch());
    const Tensor sum = apply_one(Accumulate{}, {a, b}, meta);
    if (needs_autograd({a, b}))
        add_autograd_node(
            "add", {a, b}, {sum},
            BackwardFunction::composed([tag_a = a.is_batch(), tag_b = b.is_batch()](const auto& gradients) {
                return std::vector<Tensor>{gradients[0].tag_batch(tag_a), gradients[0].tag_batch(tag_b)};
            }));
    return sum;
}

/// Whether nothing else refers to the tensor or its memory, all of which it occupies.
bool is_sole_owner(const Tensor& tensor) {
    const std::shared_ptr<TensorImpl>& impl = tensor.impl();
    const std::shared_ptr<Storage>& storage = impl->storage;
    return impl.use_count() == 1 && storage.use_count() == 1 && storage->buffer.use_count() == 1 &&
           tensor.is_contiguous() && storage->buffer->whole() == nullptr &&
           storage->buffer->bytes() == impl->meta.bytes();
}

/// The leaf gets separate storage: a gradient that is a view, or shared with other leaves or the caller, is copied.
void store(const Tensor& leaf, Tensor& gradient) {
    const Tensor present = leaf.grad();
    if (present.defined())
        leaf.set_grad(accumulate(present, gradient));
    else
        leaf.set_grad(is_sole_owner(gradient) ? std::exchange(gradient, Tensor()) : gradient.clone());
}

/// One propagation of gradients through a graph.
class Propagation {
public:
    Propagation(bool retain_graph, bool create_graph, LeafSink leaf_sink)
        : retain_graph_(retain_graph), create_graph_(create_graph), leaf_sink_(std::move(leaf_sink)) {}

    /// Restricts the propagation to these tensors, whose gradients are found in `found`.
    void want(const std::vector<Tensor>& inputs) {
        restricted_ = true;
        inputs_ = inputs;
        found.resize(inputs.size());
        leaf_sink_ = [this](const Tensor& leaf, const Tensor& gradient) {
            for (std::size_t i = 0; i < inputs_.size(); ++i)
                if (inputs_[i].impl() == leaf.impl()) found[i] = gradient;
        };
    }

    void run(const std::vector<Tensor>& roots, const std::vector<Tensor>& gradients) {
        for (std::size_t i = 0; i < roots.size(); ++i) start(roots[i], gradients[i]);
        if (restricted_) find_needed();
        while (!pending_.empty()) {
            Pending entry = std::move(pending_.begin()->second);
            pending_.erase(pending_.begin());
            pass(entry);
        }
        // Leaves used only by nodes that no gradient reached are complete now.
        for (TensorImpl* impl : leaf_order_)
            if (leaves_[impl].uses > 0) finish(leaves_[impl]);
    }

    /// Whether a root depends on the result of a call of this name.
    bool reaches(std::string_view name) const {
        return std::any_of(seen_.begin(), seen_.end(), [&](const auto& node) { return node.first->name == name; });
    }

    std::vector<Tensor> found;

private:
    struct Pending {
        std::shared_ptr<AutogradNode> node;
        std::vector<Tensor> gradients;
    };
    struct Leaf {
        Tensor tensor, gradient;
        int uses = 0;
    };

    void start(const Tensor& root, const Tensor& gradient) {
        const auto& impl = root.impl();
        if (!impl->node) {
            if (!impl->requires_grad)
                throw InvalidArgument(
                    "backward: the tensor has no autograd history and does not require a gradient; expected "
                    "requires_grad_() on a leaf before forward, and forward outside NoGrad");
            Leaf leaf{root, gradient, 0};
            finish(leaf);
            return;
        }
        visit(impl->node.get());
        add(impl->node, impl->output_index, gradient);
    }

    /// Counts the uses of leaves by the nodes that `start` reaches.
    void visit(AutogradNode* start) {
        std::vector<AutogradNode*> stack{start};
        while (!stack.empty()) {
            AutogradNode* node = stack.back();
            stack.pop_back();
            if (std::exchange(seen_[node], true)) continue;
            for (const AutogradNode::Edge& edge : node->inputs) {
                if (edge.node) stack.push_back(edge.node.get());
                if (edge.leaf.defined()) {
                    Leaf& leaf = leaves_[edge.leaf.impl().get()];
                    if (!leaf.tensor.defined()) leaf_order_.push_back(edge.leaf.impl().get());
                    leaf.tensor = edge.leaf;
                    ++leaf.uses;
                }
            }
        }
    }

    bool wanted(const AutogradNode::Edge& edge) const {
        for (const Tensor& input : inputs_) {
            if (edge.leaf.defined() && edge.leaf.impl() == input.impl()) return true;
            if (edge.node && edge.node == input.impl()->node && edge.output == input.impl()->output_index) return true;
        }
        return false;
    }

    /// Nodes from which a wanted tensor is reached; those before them in the graph have smaller sequence numbers.
    void find_needed() {
        std::map<std::uint64_t, const AutogradNode*> in_order;
        for (const auto& [node, reached] : seen_) in_order[node->sequence] = node;
        for (const auto& [sequence, node] : in_order)
            for (const AutogradNode::Edge& edge : node->inputs)
                if (wanted(edge) || (edge.node && needed_.count(edge.node.get()) > 0)) {
                    needed_.insert(node);
                    break;
                }
    }

    void add(const std::shared_ptr<AutogradNode>& node, int output, Tensor gradient) {
        Pending& entry = pending_[node->sequence];
        entry.node = node;
        entry.gradients.resize(node->outputs);
        Tensor& sum = entry.gradients[static_cast<std::size_t>(output)];
        sum = accumulate(sum, std::move(gradient));
    }

    void pass(const Pending& entry) {
        AutogradNode& node = *entry.node;
        for (std::size_t i = 0; i < node.hooks.size(); ++i)
            for (const auto& hook : node.hooks[i])
                if (entry.gradients[i].defined()) hook(entry.gradients[i]);
        for (std::size_t i = 0; i < inputs_.size(); ++i)
            if (inputs_[i].impl()->node == entry.node)
                found[i] = entry.gradients[static_cast<std::size_t>(inputs_[i].impl()->output_index)];
        if (restricted_ && needed_.count(&node) == 0) return;
        std::vector<Tensor> gradients = differentiate(entry);
        if (!retain_graph_ && !node.repeatable) node.backward = {};
        for (std::size_t i = 0; i < node.inputs.size(); ++i) {
            const AutogradNode::Edge& edge = node.inputs[i];
            Tensor gradient = i < gradients.size() ? std::move(gradients[i]) : Tensor();
            if (edge.node) {
                if (gradient.defined()) add(edge.node, edge.output, std::move(gradient));
            } else if (edge.leaf.defined() && (!restricted_ || wanted(edge))) {
                Leaf& leaf = leaves_[edge.leaf.impl().get()];
                if (gradient.defined()) leaf.gradient = accumulate(leaf.gradient, std::move(gradient));
                if (--leaf.uses == 0) finish(leaf);
            }
        }
    }

    std::vector<Tensor> differentiate(const Pending& entry) const {
        const AutogradNode& node = *entry.node;
        if (!node.backward)
            throw InvalidArgument(
                fmt::format("backward: the autograd graph of {} was freed by an earlier backward; expected "
                            "retain_graph = true in that call",
                            node.name));
        if (create_graph_ && !node.backward.is_composed())
            throw InvalidArgument(fmt::format(
                "grad: {} has no second derivative; expected create_graph = false, or functions with second "
                "derivatives between the outputs and the inputs (docs/support.md lists them)",
                node.name));
        const ApiScope call(node.name);
        if (!create_graph_) return node.backward(entry.gradients);
        const Differentiated scope(entry.node);
        return node.backward(entry.gradients);
    }

    void finish(Leaf& leaf) const {
        if (!leaf.gradient.defined()) return;
        for (const auto& hook : leaf.tensor.impl()->leaf_hooks) hook(leaf.gradient);
        if (leaf_sink_)
            leaf_sink_(leaf.tensor, leaf.gradient);
        else
            store(leaf.tensor, leaf.gradient);
    }

    bool retain_graph_, create_graph_;
    LeafSink leaf_sink_;
    bool restricted_ = false;
    std::vector<Tensor> inputs_;
    std::unordered_set<const AutogradNode*> needed_;
    // Nodes by decreasing sequence number: a node runs after all later nodes, hence after all its users.
    std::map<std::uint64_t, Pending, std::greater<>> pending_;
    // Leaf gradients in the order in which they become complete: when the last node that uses the leaf has run.
    std::unordered_map<TensorImpl*, Leaf> leaves_;
    std::vector<TensorImpl*> leaf_order_;  // in order of discovery, so that the remaining leaves have a fixed order
    std::unordered_map<AutogradNode*, bool> seen_;
};

void check_gradient(const char* call, const Tensor& output, const Tensor& gradient) {
    if (!(gradient.shape() == output.shape()) || gradient.dtype() != output.dtype() ||
        gradient.device() != output.device())
        throw InvalidArgument(
            fmt::format("{}: a gradient of {} {} on {} for a tensor of {} {} on {}; expected the same dtype, "
                        "shape and device",
                        call, name_of(gradient.dtype()), gradient.shape().str(), gradient.device().str(),
                        name_of(output.dtype()), output.shape().str(), output.device().str()));
}

}  // namespace

Tensor starting_gradient(const char* call, const Tensor& output, const Tensor& gradient) {
    if (gradient.defined()) {
        check_gradient(call, output, gradient);
        return gradient;
    }
    if (output.numel() != 1)
        throw InvalidArgument(
            fmt::format("{}: a tensor of shape {} has several elements; expected an explicit gradient", call,
                        output.shape().str()));
    return Tensor::full(output.shape(), 1.0, output.dtype(), output.device());
}

void run_backward(const std::vector<Tensor>& roots, const std::vector<Tensor>& gradients, bool retain_graph,
                  const LeafSink& leaf_sink) {
    const NoGrad no_grad;
    const Autocast as_in_forward(std::nullopt);
    Propagation(retain_graph, false, leaf_sink).run(roots, gradients);
}

std::vector<Tensor> grad(const std::vector<Tensor>& outputs, const std::vector<Tensor>& inputs,
                         const std::vector<Tensor>& grad_outputs, const GradOptions& options) {
    const ApiScope call("grad");
    if (outputs.empty() || inputs.empty())
        throw InvalidArgument("grad: no outputs or no inputs; expected at least one of each");
    if (!grad_outputs.empty() && grad_outputs.size() != outputs.size())
        throw InvalidArgument(fmt::format("grad: {} gradients for {} outputs; expected one for each, or none",
                                          grad_outputs.size(), outputs.size()));
    std::vector<Tensor> gradients;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
        if (!outputs[i].defined()) throw InvalidArgument(fmt::format("grad: output {} is undefined", i));
        gradients.push_back(starting_gradient("grad", outputs[i], grad_outputs.empty() ? Tensor() : grad_outputs[i]));
    }
    for (std::size_t i = 0; i < inputs.size(); ++i)
        if (!inputs[i].defined() || !inputs[i].requires_grad())
            throw InvalidArgument(fmt::format(
                "grad: input {} {}; expected tensors that require a gradient (use requires_grad_() before forward)", i,
                inputs[i].defined() ? "does not require a gradient" : "is undefined"));
    const Recording graph(options.create_graph);
    const Autocast as_in_forward(std::nullopt);
    if (Trace* const trace = Trace::current())
        for (const Tensor& input : inputs)
            if (input.is_leaf()) trace->set_differentiated(input);
    Propagation propagation(options.retain_graph || options.create_graph, options.create_graph, nullptr);
    propagation.want(inputs);
    propagation.run(outputs, gradients);
    for (std::size_t i = 0; i < inputs.size(); ++i)
        if (!propagation.found[i].defined() && !options.allow_unused)
            throw InvalidArgument(
                fmt::format("grad: no output depends on input {} of shape {}; expected allow_unused = true if that is "
                            "intended{}",
                            i, inputs[i].shape().str(),
                            propagation.reaches("data_parallel")
                                ? ", or, for a parameter of a wrapper, backward() of its outputs and grad()"
                                : ""));
    return propagation.found;
}

}  // namespace lockstep
