// The commands that only micro-steps have: what they take from those before them and leave to those behind.
#include "lockstep/ops/internal/loss_operations.h"
#include "lockstep/ops/internal/step_operations.h"
#include "lockstep/parallel/schedule/program_placer.h"
#include "lockstep/runtime/internal/core_operations.h"

namespace lockstep {

namespace {

TensorMeta scalar(DType dtype) { return TensorMeta::contiguous(dtype, {}); }

}  // namespace

void ProgramPlacer::place_what_is_carried() {
    const MicroStep& micro = batch_.micro;
    const MicroCarry& carry = *micro.carry;
    if (micro.first) {
        const std::vector<int> before = record_lanes();  // they have waited for whatever was committed last
        const auto& buffers = context_.store->replicas()[0].buffers;
        for (int d = 0; d < context_.devices.size(); ++d) {
            Stream& stream = context_.communicate(d);
            for (const int event : before) schedule_.wait(stream, event);
            const PlaceRef state = fixed(context_.control[static_cast<std::size_t>(d)].memory(), 0, sizeof(StepState));
            schedule_.copy(stream, {state, carry.state(d), state.bytes});
            for (std::size_t a = 0; d == 0 && !micro.weighs && a < buffers.size(); ++a) {
                const PlaceRef arena = fixed(buffers[a], 0, buffers[a]->bytes());
                schedule_.copy(stream, {arena, carry.in_copy(context_, arena), arena.bytes});
            }
            const int there = schedule_.record(stream);
            for (const int lane : lanes_with_shards())
                if (context_.lanes[static_cast<std::size_t>(lane)].device == d)
                    schedule_.wait(context_.compute(lane), there);
        }
    }
    for (int shard = 0; shard < batch_.cut.present; ++shard)
        for (std::size_t i = 0; i < batch_.of(shard).weights.size(); ++i) {
            const PlaceRef weight = carry.weight(placed_.memory_.replica_of(shard), i);
            schedule_.copy(context_.compute(context_.lane_of(shard)),
                           {weight, placed_.memory_.place(shard, batch_.of(shard).weights[i]), weight.bytes});
        }
}

void ProgramPlacer::place_weights() {
    const MicroStep& micro = batch_.micro;
    Stream& root = context_.communicate(0);
    for (const int event : record_lanes()) schedule_.wait(root, event);
    const std::size_t count = batch_.full->outputs.size();
    for (std::size_t i = 0; i < count; ++i) {
        const TensorMeta meta = scalar(batch_.full->outputs[i].meta.dtype);
        std::vector<std::pair<int, int>> ranges;
        std::vector<PlaceRef> parts;
        for (int shard = 0; shard < batch_.cut.present; ++shard) {
            ranges.emplace_back(shard, shard + 1);
            parts.push_back(readable_on(schedule_, root, placed_.memory_.place(shard, batch_.of(shard).outputs[i])));
        }
        const std::vector<TensorMeta> metas(parts.size(), meta);
        schedule_.run(root, flat_task(context_, root, 0, make_operation(TreeSum{std::move(ranges), !micro.first, true}),
                                      metas, std::move(parts), {meta}, {micro.carry->weight(0, i)}));
    }
    if (!micro.last) return;
    const int summed = schedule_.record(root);
    for (int d = 1; d < context_.devices.size(); ++d) {
        Stream& stream = context_.communicate(d);
        schedule_.wait(stream, summed);
        for (std::size_t i = 0; i < count; ++i) {
            const PlaceRef weight = micro.carry->weight(0, i);
            schedule_.copy(stream, {weight, micro.carry->weight(d, i), weight.bytes});
        }
    }
}

void ProgramPlacer::place_loss() {
    const MicroStep& micro = batch_.micro;
    const PlaceRef sum = micro.carry->loss();
    const PlaceRef own = placed_.memory_.place(0, batch_.of(0).loss);
    const TensorMeta meta = scalar(micro.carry->loss_dtype());
    Stream& stream = context_.compute(context_.lane_of(0));
    if (micro.first)
        schedule_.copy(stream, {own, sum, sum.bytes});
    else
        schedule_.run(stream, flat_task(context_, stream, 0, make_operation(Accumulate{}), {meta, meta}, {sum, own},
                                        {meta}, {sum}));
    if (!micro.carry->checks_loss()) return;
    TaskSpec check = flat_task(context_, stream, 0, make_operation(CheckFinite{}), {meta}, {sum}, {meta}, {sum});
    check.status = context_.control[0].shard(0);
    schedule_.run(stream, std::move(check));
}

void ProgramPlacer::place_preparations() {
    Stream& stream = context_.communicate(0);
    for (const int event : record_lanes()) schedule_.wait(stream, event);
    place_commit_records(stream);
    if (batch_.micro.last) schedule_.wait(context_.commit(0), schedule_.record(stream));
}

void ProgramPlacer::place_taking_over() {
    Stream& root = context_.commit(0);
    for (const auto& buffer : context_.store->replicas()[0].buffers) {
        const PlaceRef arena = fixed(buffer, 0, buffer->bytes());
        const TensorMeta bytes = TensorMeta::contiguous(DType::u8, {static_cast<std::int64_t>(buffer->bytes())});
        schedule_.run(root, flat_task(context_, root, 0, make_operation(TakeOver{}), {bytes},
                                      {batch_.micro.carry->in_copy(context_, arena)}, {bytes}, {arena}));
    }
}

void ProgramPlacer::place_end_of_micro_step() {
    Stream& root = context_.communicate(0);
    for (const int event : record_lanes()) schedule_.wait(root, event);
    for (const int d : reducer_.communicating())
        if (d > 0) schedule_.wait(root, schedule_.record(context_.communicate(d)));
    const int all = schedule_.record(root);
    const TensorMeta state = TensorMeta::contiguous(DType::u8, {sizeof(StepState)});
    for (int d = 0; d < context_.devices.size(); ++d) {
        Stream& stream = context_.communicate(d);
        if (d > 0) schedule_.wait(stream, all);
        TaskSpec advance = flat_task(context_, stream, d, make_operation(AdvanceStep{false}), {}, {}, {state},
                                     {batch_.micro.carry->state(d)});
        advance.prepares = true;
        schedule_.run(stream, std::move(advance));
        if (d > 0) schedule_.wait(root, schedule_.record(stream));
    }
    const int end = schedule_.record(root);
    for (std::size_t lane = 0; lane < context_.lanes.size(); ++lane)
        schedule_.wait(context_.compute(static_cast<int>(lane)), end);
    for (int d = 1; d < context_.devices.size(); ++d) schedule_.wait(context_.communicate(d), end);
}

}  // namespace lockstep
