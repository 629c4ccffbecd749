#include "lockstep/parallel/engine/join.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "lockstep/parallel/engine/rank_agreement.h"
#include "lockstep/parallel/engine/shadow_batch.h"
#include "lockstep/runtime/error.h"

namespace lockstep {

Join::Round Join::meet(unsigned flags) {
    const auto own = static_cast<std::uint8_t>(flags);
    std::vector<std::uint8_t> all(static_cast<std::size_t>(parts_.topology.ranks));
    job_->all_gather(&own, all.data(), std::vector<std::size_t>(all.size(), sizeof own));
    Round round;
    for (const RankIndex rank : parts_.topology.every_rank()) {
        const unsigned theirs = at(all, rank);
        if ((theirs & present) != 0 && round.present++ == 0) round.lender = rank;
        if ((theirs & syncing) != 0) ++round.syncing;
        if ((theirs & lacking) != 0) ++round.lacking;
    }
    return round;
}

void Join::require_going_on(const Round& round) const {
    if (options_.throw_on_early_termination && round.present < parts_.topology.ranks)
        throw StepError("join: at least one rank has no batch left; throw_on_early_termination ends all ranks here",
                        forwards_);
    if (round.syncing != 0 && round.syncing != round.present)
        throw InvalidArgument("join: some ranks are inside no_sync and others are not; expected the same on all ranks");
}

std::string Join::lend(const Round& round, const std::function<std::string()>& packed) {
    if (round.lacking == 0) return {};
    std::string bytes = parts_.topology.rank == round.lender ? packed() : std::string();
    std::uint64_t size = bytes.size();
    job_->broadcast(&size, sizeof size, round.lender.number());
    if (size == 0)
        throw InvalidArgument(
            fmt::format("join: a rank has had no batch, and that of rank {} is already cut into shards, which fit no "
                        "other rank; expected a batch on every rank, or forward of plain tensors",
                        round.lender.number()));
    bytes.resize(size);
    job_->broadcast(bytes.data(), size, round.lender.number());
    return bytes;
}

double Join::enter(GradientSync sync, const std::vector<BatchInput>& inputs, std::int64_t chunk) {
    const Round round = meet(present | (sync != GradientSync::none ? syncing : 0));
    require_going_on(round);
    lend(round, [&] { return pack_batch(inputs, chunk); });
    ++forwards_;
    return options_.divide_by_initial_world_size ? 1 : static_cast<double>(parts_.topology.ranks) / round.present;
}

void Join::leave(const std::function<void(bool syncs, const std::vector<Tensor>& lent)>& shadow_one) {
    for (;;) {
        const bool lacks = shadows_.empty();
        const Round round = meet(lacks ? lacking : 0);
        if (round.present == 0) break;
        require_going_on(round);
        const std::string lent = lend(round, [] { return std::string(); });
        shadow_one(round.syncing > 0, lacks ? unpack_batch(lent, parts_.topology.held.size()) : std::vector<Tensor>());
    }
    shadows_.clear();
}

const Join::Shadow& Join::shadow(GradientSync sync) {
    if (const auto found = shadows_.find(sync); found != shadows_.end()) return found->second;
    const Shadow& other = shadows_.begin()->second;
    return shadows_[sync] = {other.batch, other.inputs};
}

void Join::hand_on() {
    const auto& optimizers = parts_.memory.store()->optimizers();
    const auto ranks = static_cast<std::size_t>(parts_.topology.ranks);
    std::vector<std::array<std::int64_t, 2>> all(ranks);
    auto& own = at(all, parts_.topology.rank);
    own = {forwards_, static_cast<std::int64_t>(optimizers.size())};
    job_->all_gather(own.data(), all.data(), std::vector<std::size_t>(ranks, sizeof own));
    RankIndex last;
    for (const RankIndex rank : parts_.topology.every_rank()) {
        const auto& theirs = at(all, rank);
        if (theirs[0] >= at(all, last)[0]) last = rank;
        if (theirs[1] != all[0][1])
            throw InvalidArgument(
                fmt::format("join: rank {} has {} optimizers of this model and rank 0 has {}; expected the same "
                            "optimizers on all ranks",
                            rank.number(), theirs[1], all[0][1]));
    }
    // Parameters that any rank updated by: a rank without a batch has used none.
    std::vector<std::uint8_t> used;
    for (const auto& entry : optimizers) used.push_back(updated_by_.contains(entry.first) ? 1 : 0);
    job_->all_reduce(used.data(), used.size(), DType::u8, ReduceOp::max);
    std::vector<Optimizer*> handed_on;
    auto next = used.begin();
    for (const auto& entry : optimizers)
        if (*next++ != 0) handed_on.push_back(entry.second);
    broadcast_state(parts_, handed_on, last.number());
}

}  // namespace lockstep
