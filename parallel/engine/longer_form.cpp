#include "lockstep/parallel/engine/longer_form.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/internal/step_operations.h"
#include "lockstep/parallel/engine/join.h"
#include "lockstep/parallel/engine/two_phases.h"
#include "lockstep/parallel/schedule/step_recorder.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/operand.h"
#include "lockstep/runtime/tape.h"

namespace lockstep {

LongerForm::LongerForm(EngineContext& context, InFlight& in_flight, ReplicaKeeper& replicas)
    : context_(context), in_flight_(in_flight), replicas_(replicas) {
    context_.store->update_hook = [this](Optimizer& optimizer) { update(optimizer); };
}

LongerForm::~LongerForm() {
    context_.store->update_hook = [](Optimizer&) {
        throw InvalidArgument(
            "optimizer step: the wrapper whose parameters it updates is gone; keep it as long as its optimizer");
    };
}

Tensor LongerForm::joined(const PlacedProgram& program, const Instance& instance,
                          const std::function<const Operand&(const ShardProgram&)>& of, Device device) {
    // The host waits for the values: what went wrong with them is thrown here, once, and not by the next call.
    if (device.is_host()) in_flight_.drain();
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
    const Tensor result = Tensor::empty(shape, meta.dtype, device).tag_batch();
    char* to = static_cast<char*>(result.impl()->storage->buffer->data());
    Stream& stream = Stream::of(device);
    for (int shard = batch.held.first; shard < batch.held.last; ++shard) {
        const Operand& operand = of(batch.of(shard));
        const PlaceRef place = program.memory().place(shard, operand);
        const std::size_t bytes = static_cast<std::size_t>(operand.meta.numel()) * size_of(operand.meta.dtype);
        Stream& lane = context_.compute(context_.lane_of(shard));
        if (device.is_host()) {
            lane.copy(to, device, instance.address(place), place.owner, bytes);
        } else {
            stream.wait(lane);
            stream.copy(to, device, instance.address(place), place.owner, bytes);
            lane.wait(stream);
        }
        to += bytes;
    }
    if (device.is_host())
        for (int shard = batch.held.first; shard < batch.held.last; ++shard)
            context_.compute(context_.lane_of(shard)).synchronize();
    return result;
}

GradientSync LongerForm::sync() const {
    if (!context_.job) return GradientSync::new_ones;
    if (!syncs_) return GradientSync::none;
    return own_gradients_ ? GradientSync::all : GradientSync::new_ones;
}

void LongerForm::add_own(UsedParameters& used) const {
    for (const auto& [arena, segment] : own_parameters_)
        if (has_gradient(arena, segment)) used.add(arena, segment);
}

std::vector<Tensor> LongerForm::gather(PlacedProgram& program, std::shared_ptr<Instance> instance,
                                       const std::vector<BatchInput>& inputs, const std::vector<bool>& wants,
                                       GradientSync sync, double scale, Device output_device) {
    const BatchProgram& batch = program.batch();
    std::vector<Tensor> outputs;
    std::vector<Tensor> taped;
    for (std::size_t i = 0; i < batch.full->outputs.size(); ++i) {
        const auto output = [i](const ShardProgram& shard) -> const Operand& { return shard.outputs[i]; };
        outputs.push_back(joined(program, *instance, output, output_device));
        if (context_.eager) outputs.back().impl()->storage->reports = context_.eager;
        if (batch.full->output_gradients[i].buffer) taped.push_back(outputs.back());
    }
    if (taped.empty()) return outputs;
    std::vector<Tensor> tape_inputs;
    std::vector<Device> input_devices;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
        const auto* whole = std::get_if<Tensor>(&inputs[i]);
        tape_inputs.push_back(whole && wants[i] ? *whole : Tensor());
        input_devices.push_back(whole ? whole->device() : Device::host());
    }
    // The tape holds the instance, and with it the program, used or not.
    const std::weak_ptr<const bool> alive = alive_;
    put_on_tape("data_parallel", tape_inputs, taped,
                [this, alive, &program, instance = std::move(instance), input_devices, sync, scale,
                 used = std::make_shared<bool>(false)](std::vector<Tensor> gradients) {
                    if (alive.expired())
                        throw InvalidArgument(
                            "backward: the wrapper that made this tensor is gone; keep it until after backward");
                    const OneThreadAtATime::Use use(context_.store->one_thread(), "backward");
                    if (*used)
                        throw InvalidArgument(
                            "backward: a wrapper's activations are freed by the first backward, retain_graph or not; "
                            "call forward again, or add the losses and go back once");
                    *used = true;
                    for (Tensor& gradient : gradients)
                        if (scale != 1 && gradient.defined()) gradient = gradient * scale;
                    return backward(program, *instance, gradients, input_devices, sync);
                });
    return outputs;
}

void LongerForm::go_back_without_gradients(PlacedProgram& program, Instance& instance, GradientSync sync) {
    std::vector<Tensor> none;
    for (const Operand& gradient : program.batch().full->output_gradients)
        if (gradient.buffer) none.emplace_back();
    auto own = own_parameters_;
    (void)backward(program, instance, none, {}, sync);
    if (sync == GradientSync::none) own_parameters_ = std::move(own);
}

std::vector<Tensor> LongerForm::backward(PlacedProgram& program, Instance& instance,
                                         const std::vector<Tensor>& gradients, const std::vector<Device>& input_devices,
                                         GradientSync sync) {
    const bool leaves_some = std::any_of(own_parameters_.begin(), own_parameters_.end(), [&](const auto& place) {
        return has_gradient(place.first, place.second) && !program.parameters().contains(place);
    });
    if ((sync == GradientSync::new_ones && own_gradients_) || (sync == GradientSync::all && leaves_some))
        throw InvalidArgument(
            "backward: since its forward another one has gone back without bringing gradients together; call forward "
            "after that one, or go back in the order of the forwards");
    const int slot = in_flight_.begin();
    for (const Tensor& gradient : gradients) eager_reports::add(context_.eager, eager_reports::of(gradient));
    const StepScope logged(context_.recorder.get(), StepScope::Part::some);
    const BatchProgram& batch = program.batch();
    const auto work = [&] {
        std::size_t next = 0;
        for (std::size_t i = 0; i < batch.full->output_gradients.size(); ++i) {
            if (!batch.full->output_gradients[i].buffer) continue;
            const Tensor gradient = gradients[next].defined() ? gradients[next].contiguous() : Tensor();
            ++next;
            std::size_t offset = 0;
            for (int shard = batch.held.first; shard < batch.held.last; ++shard) {
                const Operand& operand = batch.of(shard).output_gradients[i];
                const PlaceRef place = program.memory().place(shard, operand);
                Stream& lane = context_.compute(context_.lane_of(shard));
                if (!gradient.defined()) {
                    lane.fill(instance.address(place), 0, place.bytes);
                    continue;
                }
                const auto& buffer = gradient.impl()->storage->buffer;
                const char* from = static_cast<const char*>(first_element(gradient));
                lane.wait(Stream::of(gradient.device()));
                buffer->used_on(lane);
                lane.copy(instance.address(place), place.owner, from + offset, gradient.device(), place.bytes);
                offset += place.bytes;
            }
        }
        take_in_gradients();
        clear_missing(program);
        if (sync == GradientSync::all) context_.exchange().wait(context_.commit(0));  // behind what was just done
        program.enqueue_backward(instance, Phase::work);
    };
    in_two_phases(context_, replicas_, work, [&] {
        program.enqueue_backward(instance, Phase::commit);
        insist([&] { in_flight_.end(slot, {}, nullptr); });
        insist([&] { replicas_.hand_back(); });
    });
    replicas_.count(program, true);
    own_gradients_ = sync == GradientSync::none;
    if (!own_gradients_)
        own_parameters_.clear();
    else if (context_.agreement)
        own_parameters_.insert(program.parameters().begin(), program.parameters().end());

    for (const auto& [arena, number] : program.parameters()) {
        if (has_gradient(arena, number)) continue;
        const ArenaLayout& layout = context_.store->parameters()[static_cast<std::size_t>(arena)];
        const ArenaSegment& segment = layout.segments[static_cast<std::size_t>(number)];
        context_.store->tensor(segment).set_grad(arena_gradient(arena, segment));
    }
    context_.pass_on_eager_reports(true);
    std::vector<Tensor> input_gradients;
    for (std::size_t i = 0; i < input_devices.size(); ++i) {
        const auto gradient = [i](const ShardProgram& shard) -> const Operand& { return shard.input_gradients[i]; };
        input_gradients.push_back(gradient(*batch.full).buffer ? joined(program, instance, gradient, input_devices[i])
                                                               : Tensor());
    }
    return input_gradients;
}

Tensor LongerForm::arena_gradient(int arena, const ArenaSegment& segment) const {
    const DType dtype = context_.store->parameters()[static_cast<std::size_t>(arena)].dtype;
    const std::size_t size = size_of(dtype);
    auto impl = std::make_shared<TensorImpl>();
    impl->storage = std::make_shared<Storage>();
    impl->storage->buffer = Buffer::part(context_.store->replicas()[0].gradients[static_cast<std::size_t>(arena)],
                                         static_cast<std::size_t>(segment.begin) * size,
                                         static_cast<std::size_t>(segment.end - segment.begin) * size);
    impl->meta = TensorMeta::contiguous(dtype, segment.shape);
    return Tensor(std::move(impl));
}

void LongerForm::take_in_gradients() {
    gradients_given_ = true;
    context_.store->need_gradients(0);
    const NoGrad no_tape;
    const std::vector<ArenaLayout>& layouts = context_.store->parameters();
    for (std::size_t a = 0; a < layouts.size(); ++a)
        for (const ArenaSegment& segment : layouts[a].segments) {
            const Tensor& parameter = context_.store->tensor(segment);
            const Tensor gradient = parameter.grad();
            if (!gradient.defined() ||
                gradient.impl()->storage->buffer->whole() == context_.store->replicas()[0].gradients[a])
                continue;
            if (!(gradient.shape() == segment.shape))
                throw InvalidArgument(
                    fmt::format("the gradient of {} has shape {}, the parameter {}; set one of that shape",
                                segment.name, gradient.shape().str(), segment.shape.str()));
            const Tensor own = arena_gradient(static_cast<int>(a), segment);
            own.copy_(gradient);
            parameter.set_grad(own);
        }
    context_.commit(0).wait(Stream::of(context_.devices[0]));  // where gradients are read and written
}

void LongerForm::forget_gradients() {
    if (!gradients_given_) return;
    gradients_given_ = own_gradients_ = false;
    own_parameters_.clear();
    const std::vector<ArenaLayout>& layouts = context_.store->parameters();
    for (std::size_t a = 0; a < layouts.size(); ++a)
        for (const ArenaSegment& segment : layouts[a].segments) {
            const Tensor& parameter = context_.store->tensor(segment);
            const Tensor gradient = parameter.grad();
            if (gradient.defined() &&
                gradient.impl()->storage->buffer->whole() == context_.store->replicas()[0].gradients[a])
                parameter.set_grad(Tensor());
        }
}

bool LongerForm::has_gradient(int arena, int segment) const {
    const ArenaLayout& layout = context_.store->parameters()[static_cast<std::size_t>(arena)];
    return context_.store->tensor(layout.segments[static_cast<std::size_t>(segment)]).grad().defined();
}

void LongerForm::clear_missing(const PlacedProgram& program) {
    for (const auto& [arena, number] : program.parameters()) {
        if (has_gradient(arena, number)) continue;
        const ArenaLayout& layout = context_.store->parameters()[static_cast<std::size_t>(arena)];
        const Tensor own = arena_gradient(arena, layout.segments[static_cast<std::size_t>(number)]);
        context_.commit(0).fill(own.impl()->storage->buffer->data(), 0, own.impl()->storage->buffer->bytes());
    }
}

LongerForm::PlacedUpdate& LongerForm::update_for(const Optimizer& optimizer, std::string_view with_gradient) {
    Signature key;
    key.add(optimizer.id()).add(std::string_view(optimizer.program_key())).add(with_gradient);
    if (PlacedUpdate* found = updates_.find(key.bytes())) return *found;
    const auto orphaned = [&](const PlacedUpdate& update) { return !context_.store->has_optimizer(update.optimizer); };
    if (updates_.full(context_.kept_programs) || updates_.any_of(orphaned)) {
        in_flight_.drain();  // the devices may be running what goes
        updates_.drop_if(orphaned);
        updates_.make_room(context_.kept_programs, [](const PlacedUpdate&) { return true; });
    }
    return updates_.add(key.bytes(), PlacedUpdate{.optimizer = optimizer.id()});
}

void LongerForm::update(Optimizer& optimizer) {
    const int slot = in_flight_.begin();
    const ParameterStore& store = *context_.store;
    std::string with_gradient;
    for (const ArenaLayout& layout : store.parameters())
        for (const ArenaSegment& segment : layout.segments)
            with_gradient += store.tensor(segment).grad().defined() ? '1' : '0';
    if (with_gradient.find('1') == std::string::npos)
        throw InvalidArgument("optimizer step: no parameter has a gradient; call backward() on a loss first");
    take_in_gradients();
    replicas_.refresh();
    replicas_.store_settings(optimizer);
    PlacedUpdate& placed = update_for(optimizer, with_gradient);
    if (!placed.instance) {
        Reducer reducer(context_, nullptr, {&optimizer, false}, placed.schedule);
        std::vector<std::size_t> first{0};
        for (const ArenaLayout& layout : store.parameters()) first.push_back(first.back() + layout.segments.size());
        const std::vector<Bucket> buckets = context_.cut->buckets([&](int arena, int segment) {
            return with_gradient[first[static_cast<std::size_t>(arena)] + static_cast<std::size_t>(segment)] == '1';
        });
        for (const Bucket& bucket : buckets) reducer.update_from_root(bucket);
        reducer.finish(buckets);
        for (int d = 0; d < context_.devices.size(); ++d) {
            Stream& stream = context_.commit(d);
            const TensorMeta state = TensorMeta::contiguous(DType::u8, {sizeof(StepState)});
            placed.schedule.run(
                stream,
                flat_task(context_, stream, d, make_operation(AdvanceStep{true}), {}, {}, {state},
                          {fixed(context_.control[static_cast<std::size_t>(d)].memory(), 0, sizeof(StepState))}));
        }
        placed.instance = std::make_unique<Instance>(placed.schedule, std::vector<std::shared_ptr<Buffer>>());
    }
    const auto wait_for_lanes = [&] {
        for (std::size_t lane = 0; lane < context_.lanes.size(); ++lane)
            context_.commit(context_.lanes[lane].device).wait(context_.compute(static_cast<int>(lane)));
    };
    const StepScope logged(context_.recorder.get(), StepScope::Part::last);
    in_two_phases(context_, replicas_, wait_for_lanes, [&] {
        placed.instance->enqueue(placed.schedule, 0, placed.schedule.size(), Phase::commit, context_.recorder.get());
        insist([&] {
            for (int d = 1; d < context_.devices.size(); ++d) context_.commit(0).wait(context_.commit(d));
        });
        insist([&] { in_flight_.end(slot, {}, nullptr); });
        insist([&] { replicas_.hand_back(); });
    });
    context_.pass_on_eager_reports(false);
    if (join) join->note(optimizer);
    context_.store->touch_parameters();
    replicas_.mark_current();
}

}  // namespace lockstep
