#include "lockstep/parallel/engine/batch_inputs.h"

#include <fmt/format.h>

#include <cstring>

#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/operands.h"
#include "lockstep/runtime/round_up.h"

namespace lockstep {

namespace {

TensorMeta meta_of(const BatchInput& input, std::size_t number) {
    if (const auto* cut = std::get_if<ShardedTensor>(&input)) {
        if (cut->shards() == 0) throw InvalidArgument(fmt::format("input {}: the sharded tensor is empty", number));
        Shape shape = cut->shard(0).shape();
        shape[0] = cut->rows();
        return TensorMeta::contiguous(cut->shard(0).dtype(), shape, true);
    }
    const Tensor& whole = std::get<Tensor>(input);
    if (!whole.defined()) throw InvalidArgument(fmt::format("input {}: the tensor is undefined", number));
    if (whole.is_symbolic())
        throw InvalidArgument(fmt::format(
            "input {}: the tensor belongs to a forward that is being traced; expected one created outside", number));
    if (whole.dims() == 0)
        throw InvalidArgument(
            fmt::format("input {}: a scalar cannot be scattered; expected a batch dimension, or a number", number));
    return TensorMeta::contiguous(whole.dtype(), whole.shape(), true);
}

/// Calls `visit` for every shard whose program reads `input`, with the input's memory in that program and the stream of
/// its lane.
template <class Visit>
void for_wanted(const EngineParts& parts, const ScheduledProgram& program, std::size_t input, Visit&& visit) {
    const BatchProgram& batch = program.batch();
    for (int shard = batch.held.first; shard < batch.held.last; ++shard)
        if (const Operand& wanted = batch.of(shard).inputs[input]; wanted.buffer)
            visit(shard, program.memory().ref(shard, wanted), parts.topology.compute(shard));
}

void copy_recorded(const EngineParts& parts, Stream& lane, void* to, Device to_device, const void* from,
                   Device from_device, std::size_t bytes) {
    const auto copy = [&] { lane.copy(to, to_device, from, from_device, bytes); };
    if (parts.recorder)
        parts.recorder->around(lane, SpanKind::input, false, "copy", copy, [](auto&& call) { call(); });
    else
        copy();
}

}  // namespace

BatchInputs::BatchInputs(const EngineParts& parts, const std::vector<BatchInput>& inputs, bool own_rows)
    : parts_(parts), inputs_(inputs) {
    if (inputs.empty()) throw InvalidArgument("no tensor among the inputs; expected at least one");
    for (std::size_t i = 0; i < inputs.size(); ++i) {
        metas_.push_back(meta_of(inputs[i], i));
        if (metas_[i].shape[0] != metas_[0].shape[0])
            throw InvalidArgument(
                fmt::format("batch sizes differ: input 0 has {} rows, input {} has {}; expected the same number",
                            metas_[0].shape[0], i, metas_[i].shape[0]));
    }
    if (metas_[0].shape[0] == 0)
        throw InvalidArgument(
            fmt::format("an empty batch of shape {} cannot be scattered; expected rows", metas_[0].shape.str()));
    const bool cut_already = std::holds_alternative<ShardedTensor>(inputs[0]);
    for (std::size_t i = 1; own_rows && i < inputs.size(); ++i)
        if (std::holds_alternative<ShardedTensor>(inputs[i]) != cut_already)
            throw InvalidArgument(
                fmt::format("input {} has rows of this process only, another input those of all processes; expected "
                            "the same for all inputs",
                            i));
    cut_ = own_rows && !cut_already
               ? cut_own_rows(metas_[0].shape[0], parts.topology.shards, parts.topology.held, parts.topology.rank)
               : cut_batch(metas_[0].shape[0], parts.topology.shards);
    for (std::size_t i = 0; i < inputs.size(); ++i)
        if (const auto* cut = std::get_if<ShardedTensor>(&inputs[i])) {
            if (cut->cut().shards != parts.topology.shards)
                throw InvalidArgument(
                    fmt::format("input {} was cut into {} shards, the model has {}; expected a loader of this model", i,
                                cut->cut().shards, parts.topology.shards));
            const ShardRange held = parts.topology.held.among(cut->cut().present);
            if (!(cut->held() == held))
                throw InvalidArgument(fmt::format(
                    "input {} holds shards {} to {}, this process computes {} to {}; expected a loader of this model",
                    i, cut->held().first, cut->held().last - 1, held.first, held.last - 1));
            for (int shard = held.first; shard < held.last; ++shard) {
                const Device device = parts.topology.device_of(shard);
                if (cut->shard(shard).device() != device)
                    throw InvalidArgument(fmt::format(
                        "input {}: shard {} is on {}, the model has it on {}; expected a loader of this model", i,
                        shard, cut->shard(shard).device().str(), device.str()));
            }
        }
}

void BatchInputs::stage(InFlight& in_flight, int slot) {
    const auto staged = [this](std::size_t input) { return round_up(metas_[input].bytes(), 64); };
    std::size_t bytes = 0;
    for (std::size_t i = 0; i < inputs_.size(); ++i)
        if (const auto* whole = std::get_if<Tensor>(&inputs_[i]); whole && whole->device().is_host())
            bytes += staged(i);
    char* staging = bytes ? in_flight.staging(slot, bytes) : nullptr;
    sources_.reserve(inputs_.size());
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
        Source& source = sources_.emplace_back();
        const auto* whole = std::get_if<Tensor>(&inputs_[i]);
        if (!whole) continue;
        source.tensor = whole->detach().contiguous();
        source.rows = static_cast<const char*>(first_element(source.tensor));
        if (!whole->device().is_host()) continue;
        std::memcpy(staging, source.rows, metas_[i].bytes());
        source.rows = staging;
        staging += staged(i);
    }
}

void BatchInputs::scatter(const ScheduledProgram& program, const Instance& instance) const {
    for (std::size_t i = 0; i < inputs_.size(); ++i)
        if (const auto* cut = std::get_if<ShardedTensor>(&inputs_[i]))
            scatter_cut(*cut, i, program, instance);
        else
            scatter_whole(sources_[i], i, program, instance);
}

void BatchInputs::scatter_whole(const Source& source, std::size_t input, const ScheduledProgram& program,
                                const Instance& instance) const {
    const Device device = source.tensor.device();
    const BatchCut& cut = program.batch().cut;
    const std::size_t row_bytes = metas_[input].bytes() / static_cast<std::size_t>(cut.rows);
    for_wanted(parts_, program, input, [&](int shard, const MemoryRef& ref, Stream& lane) {
        if (!device.is_host()) {
            lane.wait(Stream::of(device));
            source.tensor.impl()->storage->buffer->used_on(lane);
        }
        copy_recorded(parts_, lane, instance.address(ref), ref.owner,
                      source.rows + static_cast<std::size_t>(cut.own_row(shard)) * row_bytes, device,
                      static_cast<std::size_t>(cut.rows_of(shard)) * row_bytes);
    });
}

void BatchInputs::scatter_cut(const ShardedTensor& tensor, std::size_t input, const ScheduledProgram& program,
                              const Instance& instance) const {
    const BatchCut& cut = program.batch().cut;
    const std::size_t row_bytes = metas_[input].bytes() / static_cast<std::size_t>(cut.rows);
    for_wanted(parts_, program, input, [&](int shard, const MemoryRef& ref, Stream& lane) {
        const Tensor& rows = tensor.shard(shard);
        const auto& buffer = rows.impl()->storage->buffer;
        if (const Event* ready = tensor.ready(shard))
            lane.wait(*ready);
        else
            lane.wait(Stream::of(rows.device()));
        buffer->used_on(lane);
        const Tensor plain = rows.detach().contiguous();
        const char* start = static_cast<const char*>(first_element(plain));
        copy_recorded(parts_, lane, instance.address(ref), ref.owner,
                      start + static_cast<std::size_t>(cut.begin) * row_bytes, plain.device(), ref.bytes);
    });
}

}  // namespace lockstep
