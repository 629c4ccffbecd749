// The DataPartitioner of PyTorch's tutorial "Writing Distributed Applications", for code that is ported from it. A
// Loader does not need it: it cuts one global order of rows into shards.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "lockstep/parallel/data/subset.h"

namespace samples {

/// Part of a dataset, the tutorial's class of that name.
template <class Data>
using Partition = lockstep::Subset<Data>;

/// Rows shuffled as Python's random.Random(seed).shuffle does, then cut into parts of int(fraction * length) rows.
class DataPartitioner {
public:
    /// Throws InvalidArgument for a negative length and for fractions that are outside [0, 1], not finite, or sum to
    /// more than 1. Warns if rows are lost because each part's size is rounded down.
    DataPartitioner(std::int64_t length, const std::vector<double>& fractions, std::uint64_t seed = 1234);

    std::size_t parts() const { return parts_.size(); }
    /// Rows of a part. Throws InvalidArgument if there is no such part.
    const std::vector<std::int64_t>& part(std::size_t index) const;
    /// The tutorial's `use`: the part as a dataset. Throws InvalidArgument if there is no such part, and for a dataset
    /// of another length.
    template <class Data>
    Partition<Data> use(Data data, std::size_t index) const {
        require_length(data.size());
        return Partition<Data>(std::move(data), part(index));
    }
    /// Number of rows in no part.
    std::int64_t lost() const { return lost_; }

private:
    void require_length(std::int64_t length) const;
    std::int64_t length_;
    std::vector<std::vector<std::int64_t>> parts_;
    std::int64_t lost_ = 0;
};

}  // namespace samples
