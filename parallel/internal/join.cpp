#include "lockstep/parallel/internal/join.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "lockstep/parallel/internal/rank_agreement.h"
#include "lockstep/runtime/error.h"

namespace lockstep {

Join::Round Join::meet(bool present, bool syncs) {
    std::array<std::int32_t, 2> counts{present ? 1 : 0, present && syncs ? 1 : 0};
    job_->all_reduce(counts.data(), counts.size(), DType::i32, ReduceOp::sum);
    return {counts[0], counts[1]};
}

void Join::require_going_on(const Round& round) const {
    if (options_.throw_on_early_termination && round.present < context_.ranks())
        throw StepError("join: at least one rank has no batch left; throw_on_early_termination ends all ranks here",
                        forwards_);
    if (round.syncing != 0 && round.syncing != round.present)
        throw InvalidArgument("join: some ranks are inside no_sync and others are not; enter it on all ranks alike");
}

double Join::enter(GradientSync sync) {
    const Round round = meet(true, sync != GradientSync::none);
    require_going_on(round);
    ++forwards_;
    return options_.divide_by_initial_world_size ? 1 : static_cast<double>(context_.ranks()) / round.present;
}

void Join::leave(const std::function<void(bool syncs)>& accompany) {
    if (company_.empty())
        throw InvalidArgument(
            fmt::format("join: rank {} had no batch at all; give every rank at least one", context_.rank()));
    for (Round round = meet(false, false); round.present > 0; round = meet(false, false)) {
        require_going_on(round);
        accompany(round.syncing > 0);
    }
    company_.clear();
}

const Join::Company& Join::company(GradientSync sync) const {
    const auto found = company_.find(sync);
    if (found == company_.end())
        throw InvalidArgument(
            fmt::format("join: rank {} has had no batch {} no_sync, as another rank has now; give it one more batch",
                        context_.rank(), sync == GradientSync::none ? "inside" : "that way outside"));
    return found->second;
}

void Join::hand_on() {
    std::erase_if(optimizers_, [&](const auto& entry) { return !context_.store->has_optimizer(entry.first); });
    const auto ranks = static_cast<std::size_t>(context_.ranks());
    std::vector<std::array<std::int64_t, 2>> all(ranks);
    auto& own = all[static_cast<std::size_t>(context_.rank())];
    own = {forwards_, static_cast<std::int64_t>(optimizers_.size())};
    job_->all_gather(own.data(), all.data(), std::vector<std::size_t>(ranks, sizeof own));
    int last = 0;
    for (int rank = 0; rank < context_.ranks(); ++rank) {
        const auto& theirs = all[static_cast<std::size_t>(rank)];
        if (theirs[0] >= all[static_cast<std::size_t>(last)][0]) last = rank;
        if (theirs[1] != all[0][1])
            throw InvalidArgument(
                fmt::format("join: rank {} has updated by {} optimizers and rank 0 by {}; update by "
                            "the same ones on all ranks",
                            rank, theirs[1], all[0][1]));
    }
    take_state(context_, optimizers_, last);
}

}  // namespace lockstep
