#include "lockstep/parallel/reduce/rank_exchange.h"

#include <algorithm>

#include "lockstep/ops/internal/control_operations.h"
#include "lockstep/ops/internal/tensor_operations.h"
#include "lockstep/parallel/reduce/collectives.h"
#include "lockstep/runtime/internal/core_operations.h"

namespace lockstep {

namespace {

std::size_t most_of(const std::vector<std::vector<ShardRange>>& nodes) {
    std::size_t most = 0;
    for (const auto& some : nodes) most = std::max(most, some.size());
    return most;
}

}  // namespace

RankExchange::RankExchange(Emitter& emitter, Ranks& ranks, ReductionMemory& reduction, const Bucket& bucket,
                           bool after_commits)
    : emitter_(emitter),
      ranks_(ranks),
      reduction_(reduction),
      after_commits_(after_commits),
      dtype_(emitter.memory().layout(bucket.arena).dtype),
      hosts_(ranks.job()->info().hosts, emitter.topology().ranks) {
    const int count = emitter.topology().ranks;
    for (int r = 0; r < count; ++r)
        parts_.push_back(static_cast<std::size_t>(ArenaPartition::part(bucket, r, count).elements()) * size_of(dtype_));
}

void RankExchange::emit_sum(const Nodes& nodes, int present, const Own& own, bool accumulate, const MemoryRef& target) {
    const bool shared = hosts_.in_order() && hosts_.hosts() > 1 && hosts_.hosts() < emitter_.topology().ranks;
    add_up(shared ? from_hosts(nodes, present, own) : from_ranks(nodes, own), accumulate, part_of(target));
}

std::vector<RankExchange::Sum> RankExchange::from_ranks(const Nodes& nodes, const Own& own) {
    const auto own_rank = static_cast<std::size_t>(rank());
    const Sizes nothing(parts_.size(), 0);
    std::vector<Sum> sums;
    for (std::size_t number = 0; number < most_of(nodes); ++number) {
        const bool sends = number < nodes[own_rank].size();
        Sizes received = nothing;
        for (std::size_t r = 0; r < nodes.size(); ++r)
            if (number < nodes[r].size()) received[r] = own_bytes();
        const auto come = exchange(number, sends ? own(number) : MemoryRef(), sends ? parts_ : nothing, received);
        for (std::size_t r = 0; r < nodes.size(); ++r)
            if (number < nodes[r].size()) sums.emplace_back(nodes[r][number], come[r]);
    }
    return sums;
}

std::vector<RankExchange::Sum> RankExchange::from_hosts(const Nodes& nodes, int present, const Own& own) {
    const int host = hosts_.host_of(rank()), position = hosts_.position_of(rank());
    Nodes of_hosts;
    for (int h = 0; h < hosts_.hosts(); ++h) {
        ShardRange held{present, present};
        for (const int r : hosts_.ranks_on(h))
            for (const ShardRange& node : nodes[static_cast<std::size_t>(r)])
                held = {std::min(held.first, node.first), node.last};
        of_hosts.push_back(tree_nodes(held, present));
    }
    const std::size_t most = most_of(of_hosts), first = most_of(nodes);
    const auto& own_nodes = of_hosts[static_cast<std::size_t>(host)];
    sum_inside(nodes, own_nodes, own, first);

    Sizes sent(parts_.size(), 0);
    for (int h = 0; h < hosts_.hosts(); ++h) {
        const ShardRange ranks = share(host, position, h);
        for (int r = ranks.first; r < ranks.last; ++r)
            sent[static_cast<std::size_t>(r)] = parts_[static_cast<std::size_t>(r)];
    }
    std::size_t all = 0;
    for (const std::size_t bytes : sent) all += bytes;
    std::vector<Sum> sums;
    for (std::size_t number = 0; number < most; ++number) {
        const bool sends = number < own_nodes.size();
        Sizes received(parts_.size(), 0);
        std::vector<std::pair<ShardRange, std::size_t>> senders;
        for (int h = 0; h < hosts_.hosts(); ++h) {
            const auto& of_host = of_hosts[static_cast<std::size_t>(h)];
            for (const int r : hosts_.ranks_on(h))
                if (number < of_host.size() && share(h, hosts_.position_of(r), host).contains(rank())) {
                    received[static_cast<std::size_t>(r)] = own_bytes();
                    senders.emplace_back(of_host[number], r);
                }
        }
        const auto come =
            exchange(first + most + number,
                     sends ? fixed(reduction_.received(static_cast<int>(first + number)), 0, all) : MemoryRef(),
                     sends ? sent : Sizes(parts_.size(), 0), received);
        for (const auto& [node, sender] : senders) sums.emplace_back(node, come[sender]);
    }
    return sums;
}

void RankExchange::sum_inside(const Nodes& nodes, const std::vector<ShardRange>& host_nodes, const Own& own,
                              std::size_t first) {
    const int host = hosts_.host_of(rank()), position = hosts_.position_of(rank());
    const auto& neighbours = hosts_.ranks_on(host);
    const auto& own_nodes = nodes[static_cast<std::size_t>(rank())];
    std::size_t begin = 0;
    for (int to = 0; to < hosts_.hosts(); ++to) {
        const ShardRange target{hosts_.ranks_on(to).front(), hosts_.ranks_on(to).back() + 1};
        const std::size_t bytes = bytes_of(share(host, position, to));
        std::vector<Sum> sums;
        // The same number on all hosts, because every rank takes part in every exchange.
        for (std::size_t number = 0; number < most_of(nodes); ++number) {
            const bool sends = number < own_nodes.size();
            Sizes sent(parts_.size(), 0), received(parts_.size(), 0);
            for (const int r : neighbours) {
                if (sends) sent[static_cast<std::size_t>(r)] = bytes_of(share(host, hosts_.position_of(r), to));
                if (number < nodes[static_cast<std::size_t>(r)].size()) received[static_cast<std::size_t>(r)] = bytes;
            }
            const auto come = exchange(number, sends ? part_of(own(number), target) : MemoryRef(), sent, received);
            for (const int r : neighbours)
                if (number < nodes[static_cast<std::size_t>(r)].size())
                    sums.emplace_back(nodes[static_cast<std::size_t>(r)][number], come[static_cast<std::size_t>(r)]);
        }
        for (std::size_t number = 0; number < host_nodes.size(); ++number) {
            const ShardRange node = host_nodes[number];
            std::vector<Sum> parts;
            std::copy_if(sums.begin(), sums.end(), std::back_inserter(parts),
                         [&](const Sum& sum) { return node.first <= sum.first.first && sum.first.last <= node.last; });
            add_up(std::move(parts), false, fixed(reduction_.received(static_cast<int>(first + number)), begin, bytes));
        }
        begin += bytes;
    }
}

std::vector<MemoryRef> RankExchange::exchange(std::size_t number, const MemoryRef& from, const Sizes& sent,
                                              const Sizes& received) {
    const auto& memory = reduction_.received(static_cast<int>(number));
    std::vector<MemoryRef> come;
    std::size_t all = 0;
    for (const std::size_t bytes : received) {
        come.push_back(fixed(memory, all, bytes));
        all += bytes;
    }
    emit_collective(
        emitter_, ranks_,
        {.name = "all_to_all",
         .body = [sent, received](Communicator& job,
                                  const KernelArgs& call) { job.all_to_all(call.in[0], sent, call.out[0], received); },
         .in = {from},
         .out = {fixed(memory, 0, all)},
         .after_commits = after_commits_});
    return come;
}

void RankExchange::add_up(std::vector<Sum> sums, bool accumulate, const MemoryRef& out) {
    if (out.bytes == 0 || sums.empty()) return;
    std::sort(sums.begin(), sums.end(), [](const Sum& a, const Sum& b) { return a.first.first < b.first.first; });
    std::vector<std::pair<int, int>> ranges;
    std::vector<MemoryRef> refs;
    for (const auto& [range, ref] : sums) {
        ranges.emplace_back(range.first, range.last);
        refs.push_back(ref);
    }
    run(make_operation(TreeSum{std::move(ranges), accumulate, true}), std::move(refs), out);
}

void RankExchange::emit_average(const MemoryRef& target) {
    if (own_bytes() == 0 || emitter_.topology().ranks == 1) return;
    run(make_operation(Affine{1.0 / emitter_.topology().ranks, 0}), {part_of(target)}, part_of(target));
}

void RankExchange::emit_gather(const MemoryRef& target) {
    emit_collective(
        emitter_, ranks_,
        {.name = "all_gather",
         .body = [parts = parts_](Communicator& job,
                                  const KernelArgs& call) { job.all_gather(call.in[0], call.out[0], parts); },
         .in = {part_of(target)},
         .out = {target},
         .after_commits = after_commits_});
}

ShardRange RankExchange::share(int by, int position, int to) const {
    const auto count = [&](int host) { return static_cast<int>(hosts_.ranks_on(host).size()); };
    const ShardRange run = run_of(position, count(by), count(to));
    const int first = hosts_.ranks_on(to).front();
    return {first + run.first, first + run.last};
}

std::size_t RankExchange::bytes_of(ShardRange ranks) const {
    std::size_t bytes = 0;
    for (int r = ranks.first; r < ranks.last; ++r) bytes += parts_[static_cast<std::size_t>(r)];
    return bytes;
}

MemoryRef RankExchange::part_of(MemoryRef ref, ShardRange ranks) const {
    ref.offset += bytes_of({0, ranks.first});
    ref.bytes = bytes_of(ranks);
    return ref;
}

TensorMeta RankExchange::flat(std::size_t bytes) const {
    return TensorMeta::contiguous(dtype_, {static_cast<std::int64_t>(bytes / size_of(dtype_))});
}

void RankExchange::run(std::shared_ptr<const Operation> operation, std::vector<MemoryRef> refs, const MemoryRef& out) {
    const std::vector<TensorMeta> metas(refs.size(), flat(out.bytes));
    emitter_.run_flat(emitter_.topology().collective(), first_device, std::move(operation), {metas, std::move(refs)},
                      {{flat(out.bytes)}, {out}});
}

}  // namespace lockstep
