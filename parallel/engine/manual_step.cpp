#include "lockstep/parallel/engine/manual_step.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/ops/functional.h"
#include "lockstep/parallel/engine/join.h"
#include "lockstep/parallel/engine/two_phases.h"
#include "lockstep/parallel/schedule/retry_once.h"
#include "lockstep/parallel/schedule/step_recorder.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/operands.h"

namespace lockstep {

namespace {

template <class Visit>
void for_each_read_back(const BatchProgram& batch, Visit&& visit) {
    for (const ReadBack& read : batch.full->read_back) visit(read);
    if (batch.uneven())
        for (const ReadBack& read : batch.last->read_back) visit(read);
}

void note_versions(const BatchProgram& batch, Instance& instance) {
    instance.read_versions.clear();
    for_each_read_back(batch, [&](const ReadBack& read) { instance.read_versions.push_back(read.storage->version()); });
}

/// Throws InvalidArgument, naming one, if a tensor that backward reads has changed since forward.
void require_unchanged(const BatchProgram& batch, const Instance& instance) {
    auto version = instance.read_versions.begin();
    for_each_read_back(batch, [&](const ReadBack& read) {
        if (const std::uint64_t then = *version++, now = read.storage->version(); now != then)
            throw InvalidArgument(
                fmt::format("backward: {} was changed after the forward that needs it (version {}, now {}); call "
                            "backward() before the change, or call forward again",
                            read.name, then, now));
    });
}

}  // namespace

ManualStep::ManualStep(EngineParts& parts, InFlight& in_flight, ReplicaKeeper& replicas)
    : parts_(parts),
      in_flight_(in_flight),
      replicas_(replicas),
      gradients_(parts),
      update_(parts, in_flight, replicas, gradients_) {
    parts_.memory.store()->update_hook = [this](Optimizer& optimizer) {
        update_.step(optimizer);
        if (join) join->note(optimizer);
    };
}

ManualStep::~ManualStep() {
    parts_.memory.store()->member_check = nullptr;
    parts_.memory.store()->update_hook = [](Optimizer&) {
        throw InvalidArgument(
            "optimizer step: the wrapper whose parameters it updates was destroyed; it must outlive its optimizer");
    };
}

Tensor ManualStep::room(const ScheduledProgram& program, const OperandOf& of, Device device) {
    const BatchProgram& batch = program.batch();
    const TensorMeta& meta = of(*batch.full).meta;
    Shape shape = meta.shape;
    const bool scalars = shape.dims() == 0;  // become a vector, as in PyTorch's gather
    if (scalars)
        shape.push_back(batch.held.size());
    else
        shape[0] = 0;
    for (int shard = batch.held.first; !scalars && shard < batch.held.last; ++shard)
        shape[0] += of(batch.of(shard)).meta.shape[0];
    return Tensor::empty(shape, meta.dtype, device).tag_batch();
}

void ManualStep::join_shards(const Tensor& result, const ScheduledProgram& program, const Instance& instance,
                             const OperandOf& of) {
    const Device device = result.device();
    // The host waits for the values, so errors in them are thrown here, once, and not by the next call.
    if (device.is_host()) in_flight_.drain();
    const BatchProgram& batch = program.batch();
    char* to = static_cast<char*>(result.impl()->storage->buffer->data());
    Stream& stream = Stream::of(device);
    for (int shard = batch.held.first; shard < batch.held.last; ++shard) {
        const Operand& operand = of(batch.of(shard));
        const MemoryRef ref = program.memory().ref(shard, operand);
        const std::size_t bytes = static_cast<std::size_t>(operand.meta.numel()) * size_of(operand.meta.dtype);
        Stream& lane = parts_.topology.compute(shard);
        if (device.is_host()) {
            retry_once([&] { lane.copy(to, device, instance.address(ref), ref.owner, bytes); });
        } else {
            retry_once([&] {
                stream.wait(lane);
                stream.copy(to, device, instance.address(ref), ref.owner, bytes);
                lane.wait(stream);
            });
        }
        to += bytes;
    }
    if (device.is_host())
        for (int shard = batch.held.first; shard < batch.held.last; ++shard)
            parts_.topology.compute(shard).synchronize();
}

GradientSync ManualStep::sync() const {
    if (!parts_.ranks.job()) return GradientSync::new_ones;
    if (!syncs_) return GradientSync::none;
    return own_gradients_ ? GradientSync::all : GradientSync::new_ones;
}

void ManualStep::add_own(UsedParameters& used) const {
    for (const ParameterId parameter : own_parameters_)
        if (gradients_.has(parameter)) used.add(parameter);
}

std::vector<Tensor> ManualStep::room_for_outputs(const ScheduledProgram& program, Device output_device) {
    std::vector<Tensor> outputs;
    for (std::size_t i = 0; i < program.batch().full->outputs.size(); ++i)
        outputs.push_back(room(
            program, [i](const ShardProgram& shard) -> const Operand& { return shard.outputs[i]; }, output_device));
    return outputs;
}

void ManualStep::gather(std::vector<Tensor>& outputs, ScheduledProgram& program, std::shared_ptr<Instance> instance,
                        const std::vector<BatchInput>& inputs, const std::vector<bool>& wants, GradientSync sync,
                        double scale) {
    const BatchProgram& batch = program.batch();
    std::vector<Tensor> differentiable;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
        join_shards(outputs[i], program, *instance,
                    [i](const ShardProgram& shard) -> const Operand& { return shard.outputs[i]; });
        if (parts_.eager) outputs[i].impl()->storage->reports = parts_.eager;
        if (batch.full->output_gradients[i].buffer) differentiable.push_back(outputs[i]);
    }
    if (differentiable.empty()) return;
    std::vector<Tensor> autograd_inputs;
    std::vector<Device> input_devices;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
        const auto* whole = std::get_if<Tensor>(&inputs[i]);
        autograd_inputs.push_back(whole && wants[i] ? *whole : Tensor());
        input_devices.push_back(whole ? whole->device() : Device::host());
    }
    note_versions(program.batch(), *instance);
    // The autograd graph holds the instance, and thereby the program, used or not.
    const std::weak_ptr<const bool> alive = alive_;
    add_autograd_node(
        "data_parallel", autograd_inputs, differentiable,
        [this, alive, &program, instance = std::move(instance), input_devices, sync, scale,
         used = std::make_shared<bool>(false)](std::vector<Tensor> gradients) {
            if (alive.expired())
                throw InvalidArgument(
                    "backward: the wrapper that created this tensor was destroyed; it must live until after backward");
            const OneThreadAtATime::Use use(parts_.memory.store()->one_thread(), "backward");
            if (*used)
                throw InvalidArgument(
                    "backward: a wrapper's activations are freed by the first backward, even with retain_graph; call "
                    "forward again, or add the losses and call backward once");
            require_unchanged(program.batch(), *instance);
            *used = true;
            for (Tensor& gradient : gradients)
                if (scale != 1 && gradient.defined()) gradient = gradient * scale;
            return backward(program, *instance, gradients, input_devices, sync);
        });
}

void ManualStep::backward_without_gradients(ScheduledProgram& program, Instance& instance, GradientSync sync) {
    std::vector<Tensor> none;
    for (const Operand& gradient : program.batch().full->output_gradients)
        if (gradient.buffer) none.emplace_back();
    auto own = own_parameters_;
    (void)backward(program, instance, none, {}, sync);
    if (sync == GradientSync::none) own_parameters_ = std::move(own);
}

void ManualStep::scatter(const ScheduledProgram& program, const Instance& instance,
                         const std::vector<Tensor>& gradients) {
    const BatchProgram& batch = program.batch();
    std::size_t next = 0;
    for (std::size_t i = 0; i < batch.full->output_gradients.size(); ++i) {
        if (!batch.full->output_gradients[i].buffer) continue;
        const Tensor gradient = gradients[next].defined() ? gradients[next].contiguous() : Tensor();
        ++next;
        std::size_t offset = 0;
        for (int shard = batch.held.first; shard < batch.held.last; ++shard) {
            const MemoryRef ref = program.memory().ref(shard, batch.of(shard).output_gradients[i]);
            Stream& lane = parts_.topology.compute(shard);
            if (!gradient.defined()) {
                lane.fill(instance.address(ref), 0, ref.bytes);
                continue;
            }
            const char* from = static_cast<const char*>(first_element(gradient));
            lane.wait(Stream::of(gradient.device()));
            gradient.impl()->storage->buffer->used_on(lane);
            lane.copy(instance.address(ref), ref.owner, from + offset, gradient.device(), ref.bytes);
            offset += ref.bytes;
        }
    }
}

std::vector<Tensor> ManualStep::backward(ScheduledProgram& program, Instance& instance,
                                         const std::vector<Tensor>& gradients, const std::vector<Device>& input_devices,
                                         GradientSync sync) {
    const bool leaves_some = std::any_of(own_parameters_.begin(), own_parameters_.end(), [&](ParameterId parameter) {
        return gradients_.has(parameter) && !program.parameters().contains(parameter);
    });
    if ((sync == GradientSync::new_ones && own_gradients_) || (sync == GradientSync::all && leaves_some))
        throw InvalidArgument(
            "backward: another backward under no_sync() ran after this forward; call forward again, or run backwards "
            "in the order of the forwards");
    const auto input_gradient = [](std::size_t i) -> OperandOf {
        return [i](const ShardProgram& shard) -> const Operand& { return shard.input_gradients[i]; };
    };
    std::vector<Tensor> input_gradients(input_devices.size());
    for (std::size_t i = 0; i < input_devices.size(); ++i)
        if (program.batch().full->input_gradients[i].buffer)
            input_gradients[i] = room(program, input_gradient(i), input_devices[i]);
    const int slot = in_flight_.begin();
    for (const Tensor& gradient : gradients) eager_reports::add(parts_.eager, eager_reports::of(gradient));
    StepRecorder* const recorder = parts_.recorder.get();
    const StepScope logged(recorder, StepScope::Part::some);
    const auto work = [&] {
        scatter(program, instance, gradients);
        gradients_.take_in();
        gradients_.clear_missing(program.parameters());
        // Gradients that the arena already contains are reduced after the preceding work.
        if (sync == GradientSync::all) parts_.topology.collective().wait(parts_.topology.commit(first_device));
        program.enqueue_backward(instance, Phase::work, recorder);
    };
    in_two_phases(parts_, replicas_, work, [&] {
        program.enqueue_backward(instance, Phase::commit, recorder);
        retry_once([&] { in_flight_.end(slot, {}, nullptr); });
        retry_once([&] { replicas_.hand_back(); });
    });
    replicas_.count(program, true);
    own_gradients_ = sync == GradientSync::none;
    if (!own_gradients_)
        own_parameters_.clear();
    else if (parts_.ranks.agreement())
        own_parameters_.insert(program.parameters().begin(), program.parameters().end());
    gradients_.show(program.parameters());
    parts_.pass_on_eager_reports(true);
    for (std::size_t i = 0; i < input_devices.size(); ++i)
        if (input_gradients[i].defined()) join_shards(input_gradients[i], program, instance, input_gradient(i));
    return input_gradients;
}

void ManualStep::forget_gradients() {
    if (!gradients_.forget()) return;
    own_gradients_ = false;
    own_parameters_.clear();
}

}  // namespace lockstep
