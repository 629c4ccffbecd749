// PyTorch's DistributedSampler, for code that is ported from PyTorch. Lockstep's own Loader draws the batches of every
// mode from one global order and needs none; it accepts a DistributedSampler all the same.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace lockstep {

struct DistributedSamplerOptions {
    bool shuffle = true;
    std::uint64_t seed = 0;  ///< the same on every rank
    bool drop_last = false;  ///< rows that do not go round are left out instead of others being read twice
    /// False: no rows are added either, so the first ranks may have one row more. For evaluation, where every row
    /// counts once; not with `drop_last`.
    bool pad = true;
};

/// torch.utils.data.DistributedSampler: the same indices for the same seed, epoch, length, replicas and `drop_last`.
class DistributedSampler {
public:
    /// Throws InvalidArgument for a negative length, no replicas, a rank outside [0, replicas - 1], and `drop_last`
    /// without `pad`. Nothing but rows of a data set is padded with: a length of 0 gives every rank 0 rows.
    DistributedSampler(std::int64_t length, int replicas, int rank, const DistributedSamplerOptions& options = {});

    /// The order depends on seed + epoch. Call it before every epoch.
    void set_epoch(std::int64_t epoch) { epoch_ = epoch; }
    /// The rows of this rank in this epoch. Warns when a shuffled epoch is asked for twice in a row: without
    /// `set_epoch` every epoch has the same order.
    std::vector<std::int64_t> indices();
    /// How many rows `indices` has.
    std::int64_t size() const;

    /// The rows of all replicas in that epoch: cut in batches of `batch_size` rows, and these in one part for each
    /// replica, every rank has the rows that PyTorch's DataLoader reads there in batches of `batch_size / replicas`. It
    /// is what a Loader reads, so that a program from PyTorch trains on the same rows of each rank. Without `pad` the
    /// last batch may put a row on another rank. Throws InvalidArgument for a size that is no multiple of the replicas.
    std::vector<std::int64_t> global_indices(std::uint64_t epoch, std::int64_t batch_size) const;
    /// How many rows `global_indices` has.
    std::int64_t global_size() const;

private:
    std::vector<std::int64_t> order_of(std::int64_t epoch) const;
    std::int64_t length_;
    int replicas_, rank_;
    DistributedSamplerOptions options_;
    std::int64_t epoch_ = 0;
    std::optional<std::int64_t> last_;  ///< epoch of the last call of `indices`
};

/// torch.randperm(length, generator=torch.Generator().manual_seed(seed)) on the CPU. Throws InvalidArgument for a
/// negative length, and from 2^32 / 20 rows on, where PyTorch uses another generator.
std::vector<std::int64_t> random_permutation(std::int64_t length, std::uint64_t seed);

}  // namespace lockstep
