#include "lockstep/parallel/reduce/across_ranks.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/parallel/schedule/schedule_builder.h"
#include "lockstep/runtime/round_up.h"

namespace lockstep {

namespace {

constexpr std::size_t report_alignment = 64;

/// Data that every rank sends to the others about a step. If a rank makes another call than the others, they receive
/// data of another collective, without the mark.
struct Fingerprint {
    static constexpr std::uint64_t true_mark = 0x6c6f636b73746570;
    std::uint64_t mark = 0, program = 0;
    StopAgreement::Wire stop = 0;
};
static_assert(sizeof(Fingerprint) <= report_alignment);

std::string difference(const Fingerprint& fingerprint, const Fingerprint& of_rank_0, int rank) {
    if (fingerprint.mark != Fingerprint::true_mark || of_rank_0.mark != Fingerprint::true_mark)
        return fmt::format(
            "the ranks make different calls: rank {} makes another call while others end a step (the numbers of steps "
            "may differ); LOCKSTEP_DEBUG=detail names both calls",
            of_rank_0.mark != Fingerprint::true_mark ? 0 : rank);
    if (fingerprint.program != of_rank_0.program)
        return fmt::format(
            "rank {} and rank 0 compute gradients of different parameters, compute them in different ways or have "
            "different optimizers; expected the same on all ranks",
            rank);
    return {};
}

/// Bytes that operands take.
std::size_t bytes_of(std::span<const Operand> operands) {
    std::size_t bytes = 0;
    for (const Operand& operand : operands)
        bytes += operand.buffer ? round_up(operand.buffer->bytes(), report_alignment) : 0;
    return bytes;
}

}  // namespace

std::vector<MemoryRef> AcrossRanks::emit_gathering(ScheduleBuilder& builder, const OperandsOf& operands_of) {
    const Topology& topology = builder.topology();
    Emitter& emitter = builder.emitter();
    const BatchProgram& batch = builder.batch();
    std::vector<std::size_t> bytes(static_cast<std::size_t>(topology.ranks), 0);
    for (const RankIndex rank : topology.every_rank()) {
        const ShardRange held = topology.held_by(rank, batch.cut.present);
        for (int shard = held.first; shard < held.last; ++shard) at(bytes, rank) += bytes_of(operands_of(shard));
    }
    const RankParts parts(topology, bytes, "sums over shards");
    std::vector<MemoryRef> gathered;
    for (const RankIndex rank : topology.every_rank()) {
        const ShardRange held = topology.held_by(rank, batch.cut.present);
        std::size_t offset = 0;
        for (int shard = held.first; shard < held.last; ++shard)
            for (const Operand& operand : operands_of(shard)) {
                if (!operand.buffer) {
                    gathered.emplace_back();
                    continue;
                }
                MemoryRef part = parts.part_of(rank, offset, operand.buffer->bytes());
                offset += round_up(operand.buffer->bytes(), report_alignment);
                if (rank == topology.rank) {
                    MemoryRef own = builder.memory().ref(shard, operand);
                    own.first = 0;
                    emitter.schedule().copy(topology.compute(shard), {own, part, part.bytes});
                }
                part.first = offset_of_first(operand);
                gathered.push_back(part);
            }
    }
    emitter.wait(topology.collective(), builder.record_lanes());
    parts.emit_gather(emitter, ranks_);
    return gathered;
}

std::vector<MemoryRef> AcrossRanks::emit_inputs(ScheduleBuilder& builder, RecordPair records) {
    std::vector<MemoryRef> inputs = emit_gathering(
        builder, [&](int shard) { return std::span<const Operand>(builder.record_of(shard, records).in); });
    const Topology& topology = builder.topology();
    const ShardRange held = builder.batch().held;
    if (!held.empty()) builder.emitter().wait(topology.compute(held.first), topology.collective());
    return inputs;
}

std::vector<MemoryRef> AcrossRanks::emit_outputs(ScheduleBuilder& builder) {
    std::vector<MemoryRef> outputs =
        emit_gathering(builder, [&](int shard) { return std::span<const Operand>(builder.batch().of(shard).outputs); });
    const Topology& topology = builder.topology();
    builder.emitter().wait(topology.reduce(first_device), topology.collective());
    return outputs;
}

std::vector<MemoryRef> AcrossRanks::emit_statuses(ScheduleBuilder& builder, int shards) {
    const Topology& topology = builder.topology();
    emit_report(builder);
    emit_collective_check(builder.emitter(), ranks_, false);  // first, because a report that has not arrived is invalid
    std::vector<MemoryRef> words;
    for (int shard = 0; shard < shards; ++shard) {
        const RankIndex rank = topology.rank_of(shard);
        const int before = shard - topology.held_by(rank, topology.shards).first;
        words.push_back(
            report_->part_of(rank, ControlBlock::spacing * static_cast<std::size_t>(before), sizeof(StatusWord)));
    }
    return words;
}

std::map<std::size_t, MemoryRef> AcrossRanks::lay_out_news(ScheduleBuilder& builder, std::size_t& bytes) {
    const Topology& topology = builder.topology();
    const ShardProgram& program = builder.batch().of(0);
    std::map<std::size_t, MemoryRef> news;
    const auto tell = [&](std::size_t size, const std::function<MemoryRef()>& on_rank_0) {
        const std::size_t offset = bytes;
        bytes += round_up(size, report_alignment);
        if (topology.rank == rank_0) {
            MemoryRef from = on_rank_0();
            from.first = 0;
            from.bytes = size;
            news[offset] = from;
        }
        return offset;
    };
    if (program.loss.buffer) loss_ = tell(program.loss.meta.bytes(), [&] { return builder.loss_of_shard_0(); });
    if (const Microbatch* part = builder.part()) {
        if (!builder.has_commits()) return news;
        const EngineMemory& memory = builder.emitter().memory();
        for (const auto& buffer : memory.replica(first_device).buffers)
            prepared_[buffer.get()] =
                tell(buffer->bytes(), [&] { return part->carry->in_copy(memory, fixed(buffer)); });
        return news;
    }
    // Values that commits read and no commit wrote.
    for (std::size_t i = program.commit_begin; i < program.backward_begin; ++i) {
        for (const Operand& operand : program.records[i].in) {
            if (!operand.buffer || !operand.buffer->is_symbolic()) continue;
            const int id = operand.buffer->trace_id();
            if (between_.contains(id) || values_.contains(id)) continue;
            values_[id] = tell(operand.buffer->bytes(), [&] { return builder.memory().ref(0, operand); });
        }
        for (const Operand& operand : program.records[i].out)
            if (operand.buffer && operand.buffer->is_symbolic())
                between_[operand.buffer->trace_id()] =
                    Buffer::allocate(topology.commit(first_device), operand.buffer->bytes(), "statistics");
    }
    return news;
}

void AcrossRanks::emit_report(ScheduleBuilder& builder) {
    const Topology& topology = builder.topology();
    Emitter& emitter = builder.emitter();
    std::vector<std::size_t> bytes, fingerprints;  // a rank's part: its shards' status, then its fingerprint
    for (const RankIndex rank : topology.every_rank()) {
        const int shards = topology.held_by(rank, topology.shards).size();
        fingerprints.push_back(ControlBlock::spacing * static_cast<std::size_t>(shards));
        bytes.push_back(fingerprints.back() + report_alignment);
    }
    const std::map<std::size_t, MemoryRef> news = lay_out_news(builder, at(bytes, rank_0));
    report_.emplace(topology, std::move(bytes), "report");

    Stream& collective = topology.collective();
    emitter.wait(collective, builder.record_lanes());
    if (builder.part()) emitter.wait(collective, topology.reduce(first_device));  // buffers are prepared on it
    const MemoryRef statuses = emitter.memory().control(first_device).statuses(topology.held);
    emitter.copy(collective, statuses, report_->part_of(topology.rank, 0, statuses.bytes));
    for (const auto& [offset, from] : news)
        emitter.copy(collective, from, report_->part_of(rank_0, offset, from.bytes));
    emit_comparison(builder, fingerprints);
    emitter.wait(topology.commit(first_device), collective);
}

void AcrossRanks::emit_comparison(ScheduleBuilder& builder, const std::vector<std::size_t>& offsets) {
    const Topology& topology = builder.topology();
    Emitter& emitter = builder.emitter();
    std::vector<MemoryRef> all;
    for (const RankIndex rank : topology.every_rank())
        all.push_back(report_->part_of(rank, at(offsets, rank), sizeof(Fingerprint)));
    // On the stream of the collectives, without other ranks.
    emit_collective(emitter, ranks_,
                    {.name = "fingerprint",
                     .body =
                         [own = fingerprint_, stops = ranks_.stops()](Communicator&, const KernelArgs& call) {
                             *static_cast<Fingerprint*>(call.out[0]) = {Fingerprint::true_mark, own, stops->own()};
                         },
                     .out = {at(all, topology.rank)},
                     .ranks_meet = false});
    report_->emit_gather(emitter, ranks_);
    emit_collective(emitter, ranks_,
                    {.name = "compare_programs",
                     .body =
                         [stops = ranks_.stops()](Communicator& job, const KernelArgs& call) {
                             const auto& of_rank_0 = *call.input<Fingerprint>(0);
                             StopAgreement::Wire stop = of_rank_0.stop;
                             for (int rank = 1; rank < job.size(); ++rank) {
                                 const auto& theirs = *call.input<Fingerprint>(rank);
                                 if (const std::string text = difference(theirs, of_rank_0, rank); !text.empty())
                                     job.give_up("step", 0, text);
                                 stop = std::max(stop, theirs.stop);
                             }
                             stops->hear(stop);
                         },
                     .in = std::move(all),
                     .ranks_meet = false});
}

TaskSpec AcrossRanks::commit_task(ScheduleBuilder& builder, const Record& record) {
    const auto ref = [&](const Operand& operand) {
        if (!operand.buffer) return MemoryRef();
        if (!operand.buffer->is_symbolic()) return builder.memory().lasting(first_device, operand);
        const int id = operand.buffer->trace_id();
        const auto between = between_.find(id);
        MemoryRef found = between != between_.end() ? fixed(between->second, 0, operand.buffer->bytes())
                                                    : report_->part_of(rank_0, values_.at(id), operand.buffer->bytes());
        found.first = offset_of_first(operand);
        return found;
    };
    TaskSpec task = builder.bare_task(first_device, record);
    for (const Operand& operand : record.in) task.in.push_back(ref(operand));
    for (const Operand& operand : record.out) task.out.push_back(ref(operand));
    if (const std::size_t bytes = task.kernel->scratch_bytes())
        task.scratch =
            fixed(builder.emitter().memory().scratch(builder.topology().commit(first_device), bytes), 0, bytes);
    return task;
}

MemoryRef AcrossRanks::prepared(ScheduleBuilder&, const MemoryRef& buffer) {
    return report_->part_of(rank_0, prepared_.at(buffer.memory.get()), buffer.bytes);
}

MemoryRef AcrossRanks::loss(ScheduleBuilder& builder) {
    return report_->part_of(rank_0, loss_, size_of(builder.batch().of(0).loss.meta.dtype));
}

}  // namespace lockstep
