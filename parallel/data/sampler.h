// PyTorch's DistributedSampler, for code that is ported from PyTorch. Lockstep's own Loader draws the batches of every
// mode from one global order and does not need it, but accepts it.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace lockstep {

struct DistributedSamplerOptions {
    bool shuffle = true;
    std::uint64_t seed = 0;  ///< the same on every rank
    bool drop_last = false;  ///< drops excess rows instead of repeating others
    /// If false, no rows are repeated to pad, so that the first ranks may have one row more. For evaluation, in which
    /// every row counts once; cannot be combined with `drop_last`.
    bool pad = true;
};

/// torch.utils.data.DistributedSampler: the same indices for the same seed, epoch, length, replicas and `drop_last`.
class DistributedSampler {
public:
    /// Throws InvalidArgument for a negative length, no replicas, a rank outside [0, replicas - 1], and `drop_last`
    /// without `pad`. With a length of 0 every rank has 0 rows.
    DistributedSampler(std::int64_t length, int replicas, int rank, const DistributedSamplerOptions& options = {});

    /// The order depends on seed + epoch. Call it before every epoch.
    void set_epoch(std::int64_t epoch) { epoch_ = epoch; }
    /// The rows of this rank in this epoch. Warns if the same shuffled epoch is requested twice in a row: without
    /// `set_epoch` every epoch has the same order.
    std::vector<std::int64_t> indices();
    /// The number of rows of `indices`.
    std::int64_t size() const;

    /// The rows of all replicas in that epoch, in the order in which a Loader reads them. If they are cut into batches
    /// of `batch_size` rows, and these into one part per replica, every rank has the rows that PyTorch's DataLoader
    /// reads there in batches of `batch_size / replicas`. A program ported from PyTorch therefore trains on the same
    /// rows on each rank. Without `pad` a row of the last batch may be on another rank. Throws InvalidArgument for a
    /// size that is not a multiple of the replicas.
    std::vector<std::int64_t> global_indices(std::uint64_t epoch, std::int64_t batch_size) const;
    /// The number of rows of `global_indices`.
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
/// negative length, and from 2^32 / 20 rows on, for which PyTorch uses another generator.
std::vector<std::int64_t> random_permutation(std::int64_t length, std::uint64_t seed);

}  // namespace lockstep
