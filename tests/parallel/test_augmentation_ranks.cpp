// Augmented rows on several processes: each reads those of its shards, with the same random numbers as one process.
#include <malloc.h>

#include "lockstep/ops/layers.h"
#include "lockstep/parallel/data/sampler.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "lockstep/parallel/loader.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/datasets.h"
#include "lockstep/tests/fixtures/ranks.h"

using namespace lockstep;
using namespace lockstep::test;

namespace {

struct Net {
    Linear fc{3, 2};
    LOCKSTEP_MEMBERS(fc)
    Tensor forward(const Tensor& x) { return fc(x); }
};

/// Rows of 1 MiB.
struct Large {
    static constexpr std::int64_t numbers = 262144;
    std::int64_t size() const { return 64; }
    std::tuple<Tensor> get(std::int64_t row) const { return Tensor::full({numbers}, static_cast<double>(row)); }
};

/// Bytes in use; 0 under AddressSanitizer, which retains freed memory.
std::size_t bytes_in_use() {
    const auto info = mallinfo2();
    return info.uordblks + info.hblkhd;
}

/// Throws if a rank has other rows than those of its part of the order.
template <class LoaderOfRank>
void check_epoch(LoaderOfRank& loader, int shards, std::uint64_t epoch, const std::vector<std::int64_t>& order) {
    std::size_t first = 0;
    for (auto& [x] : loader.epoch(epoch)) {
        const BatchCut cut = cut_batch(x.rows(), shards);
        std::vector<std::int64_t> own;
        for (int shard = x.held().first; shard < x.held().last; ++shard)
            for (std::int64_t row = 0; row < cut.rows_of(shard); ++row)
                own.push_back(order.at(first + static_cast<std::size_t>(cut.first_row(shard) + row)));
        expect(x.gathered().template to_vector<double>() == expected_rows({loader.options().seed, epoch}, own),
               fmt::format("the batch at row {} of epoch {} differs", first, epoch));
        first += static_cast<std::size_t>(x.rows());
    }
    expect(first == order.size(), fmt::format("{} rows, {} wanted", first, order.size()));
}

}  // namespace

TEST_CASE("ranks read augmented rows in one order, with and without a sampler") {
    for (const int size : {2, 3})
        CHECK(on_ranks(size, [size](ProcessGroup& group) {
                  DistributedDataParallelOptions wrapper;
                  wrapper.shards = 6;
                  DistributedDataParallel model(Net{}, group, wrapper);
                  Loader shuffled(model, AugmentedRows{41},
                                  {.batch_size = 12, .shuffle = true, .seed = 5, .workers = 1 + group.rank()});
                  for (const std::uint64_t epoch : {0, 3})
                      check_epoch(shuffled, 6, epoch, shuffled_order(41, 5, epoch));
                  const WeightedRandomSampler weighted(std::vector<double>(41, 0.5), 30, {.seed = 8});
                  Loader drawn(model, AugmentedBatches{41}, {.batch_size = 12, .seed = 9, .sampler = weighted});
                  check_epoch(drawn, 6, 1, weighted.indices(1));
                  // The sampler of each rank, as a program ported from PyTorch creates it.
                  const DistributedSampler own(41, size, group.rank());
                  Loader ported(model, AugmentedBatches{41}, {.batch_size = 12, .sampler = own});
                  check_epoch(ported, 6, 2, DistributedSampler(41, size, 0).global_indices(2, 12));
              }) == "");
}

TEST_CASE("the loader of one of eight ranks has memory for an eighth of each batch") {
    CHECK(on_ranks(8, [](ProcessGroup& group) {
              DistributedDataParallel model(Net{}, group);
              const std::size_t before = bytes_in_use();
              Loader loader(model, Large{}, {.batch_size = 64, .prefetch = 2});
              if (before == 0) return;
              const std::size_t used = bytes_in_use() - before;
              constexpr std::size_t own = 3 * 8 * sizeof(float) * Large::numbers;  // two read ahead and the one in use
              expect(used >= own && used < own + own / 2, fmt::format("{} bytes for rows of {}", used, own));
              for (auto& [x] : loader.epoch(0))
                  expect(x.gathered().shape()[0] == 8, fmt::format("{} rows", x.gathered().shape()[0]));
          }) == "");
}
