// The commands that only several processes have: what they tell each other in the middle of a step.
#include <fmt/format.h>

#include <algorithm>

#include "lockstep/parallel/schedule/program_placer.h"

namespace lockstep {

namespace {

constexpr std::size_t report_alignment = 64;

/// What every rank says of a step to the others. What came from another collective, because a rank calls something else
/// than they do, has no mark.
struct Fingerprint {
    static constexpr std::uint64_t true_mark = 0x6c6f636b73746570;
    std::uint64_t mark = 0, program = 0;
    StopAgreement::Wire stop = 0;
};
static_assert(sizeof(Fingerprint) <= report_alignment);

std::string difference(const Fingerprint& fingerprint, const Fingerprint& of_rank_0, int rank) {
    if (fingerprint.mark != Fingerprint::true_mark || of_rank_0.mark != Fingerprint::true_mark)
        return fmt::format(
            "the ranks call different things: rank {} makes another call while others end a step (as where numbers of "
            "steps differ); LOCKSTEP_DEBUG=detail names both calls",
            of_rank_0.mark != Fingerprint::true_mark ? 0 : rank);
    if (fingerprint.program != of_rank_0.program)
        return fmt::format(
            "rank {} does not give gradients to the same parameters as rank 0, or not in the same way; forward must "
            "use the same ones on all ranks",
            rank);
    return {};
}

std::size_t aligned_in_report(std::size_t bytes) {
    return (bytes + report_alignment - 1) / report_alignment * report_alignment;
}

/// Bytes that the inputs of a record take.
std::size_t bytes_of(const Record& record) {
    std::size_t bytes = 0;
    for (const Operand& operand : record.in) bytes += operand.buffer ? aligned_in_report(operand.buffer->bytes()) : 0;
    return bytes;
}

}  // namespace

std::vector<PlaceRef> ProgramPlacer::gathered_over_ranks(const Turn& turn) {
    const auto record_of = [&](int shard) -> const Record& {
        return batch_.of(shard).records[static_cast<std::size_t>(index_of(turn, shard))];
    };
    std::vector<std::size_t> bytes(static_cast<std::size_t>(context_.ranks()), 0);
    for (int rank = 0; rank < context_.ranks(); ++rank) {
        const ShardRange held = context_.held_by(rank, batch_.cut.present);
        for (int shard = held.first; shard < held.last; ++shard)
            bytes[static_cast<std::size_t>(rank)] += bytes_of(record_of(shard));
    }
    const RankParts parts(context_, bytes, "sums over shards");
    std::vector<PlaceRef> places;
    for (int rank = 0; rank < context_.ranks(); ++rank) {
        const ShardRange held = context_.held_by(rank, batch_.cut.present);
        std::size_t offset = 0;
        for (int shard = held.first; shard < held.last; ++shard)
            for (const Operand& operand : record_of(shard).in) {
                if (!operand.buffer) {
                    places.emplace_back();
                    continue;
                }
                PlaceRef place = parts.at(rank, offset, operand.buffer->bytes());
                offset += aligned_in_report(operand.buffer->bytes());
                if (rank == context_.rank()) {
                    PlaceRef own = placed_.memory_.place(shard, operand);
                    own.first = 0;
                    schedule_.copy(context_.compute(context_.lane_of(shard)), {own, place, place.bytes});
                }
                place.first = offset_of_first(operand);
                places.push_back(place);
            }
    }
    Stream& exchange = context_.exchange();
    for (const int event : record_lanes()) schedule_.wait(exchange, event);
    parts.gather(context_, schedule_);
    if (!batch_.held.empty())
        schedule_.wait(context_.compute(context_.lane_of(batch_.held.first)), schedule_.record(exchange));
    return places;
}

void ProgramPlacer::place_report_of_ranks() {
    const ShardProgram& program = batch_.of(0);
    std::vector<std::size_t> bytes, fingerprints;  // a rank's part: its shards' status, then its fingerprint
    for (int rank = 0; rank < context_.ranks(); ++rank) {
        const int shards = context_.held_by(rank, context_.shards).size();
        fingerprints.push_back(ControlBlock::spacing * static_cast<std::size_t>(shards));
        bytes.push_back(fingerprints.back() + report_alignment);
    }
    std::size_t& of_rank_0 = bytes[0];
    report_.loss = of_rank_0;
    if (program.loss.buffer) of_rank_0 += report_alignment;
    // What commits read and no commit wrote.
    std::vector<const Operand*> told;
    for (std::size_t i = program.commit_begin; i < program.backward_begin; ++i) {
        for (const Operand& operand : program.records[i].in) {
            if (!operand.buffer || !operand.buffer->is_symbolic()) continue;
            const int id = operand.buffer->trace_id();
            if (report_.between.contains(id) || !report_.values.emplace(id, of_rank_0).second) continue;
            of_rank_0 += aligned_in_report(operand.buffer->bytes());
            told.push_back(&operand);
        }
        for (const Operand& operand : program.records[i].out)
            if (operand.buffer && operand.buffer->is_symbolic())
                report_.between[operand.buffer->trace_id()] =
                    Buffer::allocate(context_.commit(0), operand.buffer->bytes(), "statistics");
    }
    report_.parts.emplace(context_, std::move(bytes), "report");

    Stream& exchange = context_.exchange();
    for (const int event : record_lanes()) schedule_.wait(exchange, event);
    const PlaceRef statuses = context_.control[0].statuses(context_.held);
    schedule_.copy(exchange, {statuses, report_.parts->at(context_.rank(), 0, statuses.bytes), statuses.bytes});
    if (context_.rank() == 0) {
        const auto tell = [&](const Operand& operand, std::size_t offset, std::size_t size) {
            PlaceRef from = placed_.memory_.place(0, operand);
            from.first = 0;
            from.bytes = size;
            schedule_.copy(exchange, {from, report_.parts->at(0, offset, size), size});
        };
        if (program.loss.buffer) tell(program.loss, report_.loss, program.loss.meta.bytes());
        for (const Operand* operand : told)
            tell(*operand, report_.values.at(operand->buffer->trace_id()), operand->buffer->bytes());
    }
    place_fingerprint(fingerprints);
    schedule_.wait(context_.commit(0), schedule_.record(exchange));
}

void ProgramPlacer::place_fingerprint(const std::vector<std::size_t>& offsets) {
    std::uint64_t own = 14695981039346656037U;  // FNV-1a over what the other ranks must do as well
    const auto add = [&](std::int64_t value) { own = (own ^ static_cast<std::uint64_t>(value)) * 1099511628211U; };
    // Where ranks may use different parameters, those that stay in each process are its own.
    if (!context_.agreement || update_.sync != GradientSync::none)
        for (const Bucket& bucket : placed_.buckets_)
            for (const std::int64_t value : {std::int64_t{bucket.arena}, bucket.begin, bucket.end}) add(value);
    add(std::int64_t{update_.optimizer != nullptr});
    add(static_cast<std::int64_t>(update_.sync));
    add(std::int64_t{context_.hook != nullptr});
    Signature gate;
    update_.gate.describe(gate);
    for (const char byte : gate.bytes()) add(byte);
    std::vector<PlaceRef> all;
    for (int rank = 0; rank < context_.ranks(); ++rank)
        all.push_back(report_.parts->at(rank, offsets[static_cast<std::size_t>(rank)], sizeof(Fingerprint)));
    // On the stream of the collectives, but nobody meets anybody there.
    place_exchange(context_, schedule_,
                   {.name = "fingerprint",
                    .body =
                        [own, stops = context_.stops](Communicator&, const Invocation& call) {
                            *static_cast<Fingerprint*>(call.out[0]) = {Fingerprint::true_mark, own, stops->own()};
                        },
                    .out = {all[static_cast<std::size_t>(context_.rank())]},
                    .collective = false});
    report_.parts->gather(context_, schedule_);
    place_exchange(context_, schedule_,
                   {.name = "compare_programs",
                    .body =
                        [stops = context_.stops](Communicator& job, const Invocation& call) {
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
                    .collective = false});
}

TaskSpec ProgramPlacer::commit_task_of_ranks(const Record& record) {
    const auto place = [&](const Operand& operand) {
        if (!operand.buffer) return PlaceRef();
        if (!operand.buffer->is_symbolic()) return placed_.memory_.lasting(0, operand);
        const int id = operand.buffer->trace_id();
        const auto between = report_.between.find(id);
        PlaceRef found = between != report_.between.end()
                             ? fixed(between->second, 0, operand.buffer->bytes())
                             : report_.parts->at(0, report_.values.at(id), operand.buffer->bytes());
        found.first = offset_of_first(operand);
        return found;
    };
    TaskSpec task = bare_task(0, record);
    for (const Operand& operand : record.in) task.in.push_back(place(operand));
    for (const Operand& operand : record.out) task.out.push_back(place(operand));
    if (const std::size_t bytes = task.kernel->scratch_bytes())
        task.scratch = fixed(context_.scratch(context_.commit(0), bytes), 0, bytes);
    return task;
}

}  // namespace lockstep
