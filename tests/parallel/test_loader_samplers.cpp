// Rows that a loader reads with a sampler, and the context of the reads.
#include <algorithm>

#include "lockstep/ops/layers.h"
#include "lockstep/parallel/data/sampler.h"
#include "lockstep/parallel/data/subset.h"
#include "lockstep/parallel/data/transforms.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/loader.h"
#include "lockstep/runtime/error.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/datasets.h"
#include "lockstep/tests/fixtures/eight_devices.h"
#include "lockstep/tests/fixtures/messages.h"

using namespace lockstep;
using namespace lockstep::test;
using Rows = std::vector<std::int64_t>;

namespace {

struct OneLayer {
    Linear fc{3, 2};
    LOCKSTEP_MEMBERS(fc)
    Tensor forward(const Tensor& x) { return fc(x); }
};

DataParallel<OneLayer> model_on(int devices, int shards = 0) {
    return DataParallel<OneLayer>(OneLayer{}, lockstep::test::cpu_devices(devices), {.shards = shards});
}

/// Numbers of a loader's rows, batch by batch.
template <class Data>
std::vector<Rows> batches_of(Loader<Data>& loader, std::uint64_t epoch) {
    std::vector<Rows> batches;
    for (auto& batch : loader.epoch(epoch)) {
        Rows& rows = batches.emplace_back();
        const std::vector<double> values = std::get<0>(batch).gathered().template to_vector<double>();
        for (std::size_t i = 0; i < values.size(); i += 3) rows.push_back(static_cast<std::int64_t>(values[i]));
    }
    return batches;
}

/// Batches of several sizes, different in every epoch.
struct Uneven {
    std::vector<Rows> of_epoch_0{{5, 1}, {0, 2, 3, 9}, {4}, {7, 8, 6}};
    std::int64_t size() const { return std::ssize(of_epoch_0); }
    std::int64_t rows() const { return 10; }
    std::int64_t batch_size() const { return 4; }
    std::vector<Rows> batches(std::uint64_t epoch) const {
        std::vector<Rows> batches = of_epoch_0;
        if (epoch == 1) std::swap(batches[0], batches[3]);
        if (epoch == 2) batches.pop_back();
        if (epoch == 3) batches[2].clear();
        if (epoch == 4) batches[1].push_back(3);
        if (epoch == 5) batches[2].push_back(3);
        return batches;
    }
};

/// Announces three rows and returns others.
struct Unreliable {
    std::int64_t size() const { return 3; }
    Rows indices(std::uint64_t epoch) const {
        return epoch == 0 ? Rows{0, 1, 2} : epoch == 1 ? Rows{0, 1} : Rows{0, 1, 10};
    }
};

}  // namespace

TEST_CASE("augmentation has the same bits for any number of devices and workers, and after a resume") {
    const EpochKey epoch{77, 4};
    const Rows order = shuffled_order(43, 77, 4);
    const std::vector<double> expected = expected_rows(epoch, order);
    for (const int devices : {1, 2, 3, 8})
        for (const int workers : {0, 1, 2, 3, 4}) {
            CAPTURE(devices, workers);
            auto model = model_on(devices, 8);
            const LoaderOptions options{
                .batch_size = 8, .shuffle = true, .seed = 77, .workers = workers, .prefetch = 3};
            Loader by_row(model, AugmentedRows{43}, options);
            CHECK(rows_of_epoch(by_row, 4) == expected);
            Loader written(model, AugmentedBatches{43}, options);
            CHECK(rows_of_epoch(written, 4) == expected);
            CHECK(rows_of_epoch(written, 4, 2) ==
                  std::vector<double>(expected.begin() + std::ptrdiff_t{2 * 8 * 3}, expected.end()));
        }
    auto model = model_on(1);
    Loader loader(model, AugmentedRows{43}, {.batch_size = 8, .shuffle = true, .seed = 77});
    CHECK(rows_of_epoch(loader, 5) == expected_rows({77, 5}, shuffled_order(43, 77, 5)));
}

TEST_CASE("a row is augmented in the same way inside and outside a subset, wherever the transform is") {
    auto model = model_on(2);
    const Rows rows{9, 4, 30, 4, 0};
    Loader by_row(model, Subset(AugmentedRows{43}, rows), {.batch_size = 2, .seed = 6});
    CHECK(rows_of_epoch(by_row, 1) == expected_rows({6, 1}, rows));
    Loader written(model, Subset(Subset(AugmentedBatches{43}, {1, 0, 4, 30, 9}), {4, 2, 3, 2, 1}),
                   {.batch_size = 2, .seed = 6});
    CHECK(rows_of_epoch(written, 1) == expected_rows({6, 1}, rows));

    const auto numbers = [](std::tuple<Tensor> row, RowContext& context) {
        const double value = std::get<0>(row).item(), first = context.uniform();
        return std::tuple(
            Tensor::from(std::vector<double>{value, first, static_cast<double>(context.integer(1000))}, {3}));
    };
    const TensorDataset plain(Tensor::arange(43));
    Loader inside(model, Subset(Transformed(plain, numbers), rows), {.batch_size = 2, .seed = 6});
    Loader around(model, Transformed(Subset(plain, rows), numbers), {.batch_size = 2, .seed = 6});
    CHECK(rows_of_epoch(inside, 1) == expected_rows({6, 1}, rows));
    CHECK(rows_of_epoch(around, 1) == expected_rows({6, 1}, rows));
}

TEST_CASE("a dataset whose get accepts a context is read with one, even if it can be read without") {
    struct Both : TensorDataset<1> {
        Both() : TensorDataset<1>(Tensor::zeros({5, 3}, DType::f64)) {}
        std::tuple<Tensor> get(std::int64_t row, RowContext& context) const {
            return AugmentedRows{5}.get(row, context);
        }
    };
    auto model = model_on(1);
    Loader loader(model, Both(), {.batch_size = 2});
    CHECK(rows_of_epoch(loader, 0) == expected_rows({0, 0}, Rows{0, 1, 2, 3, 4}));
}

TEST_CASE("a loader reads the rows that its sampler gives") {
    for (const int devices : {1, 3}) {
        auto model = model_on(devices);
        const auto batches = [&](const LoaderOptions& options, std::uint64_t epoch) {
            Loader loader(model, AugmentedRows{8}, options);
            const std::vector<Rows> found = batches_of(loader, epoch);
            CHECK(std::ssize(found) == loader.batches());
            std::int64_t rows = 0;
            for (const Rows& batch : found) rows += std::ssize(batch);
            CHECK(rows == loader.rows());
            return found;
        };
        CHECK(batches({.batch_size = 3, .sampler = SequentialSampler(5)}, 9) == std::vector<Rows>{{0, 1, 2}, {3, 4}});
        CHECK(batches({.batch_size = 3, .sampler = RandomSampler(8, {.seed = 3})}, 2) ==
              std::vector<Rows>{{3, 6, 0}, {2, 1, 4}, {5, 7}});
        CHECK(batches({.batch_size = 4, .drop_last = true, .sampler = Rows{7, 7, 1, 0, 2}}, 2) ==
              std::vector<Rows>{{7, 7, 1, 0}});
        CHECK(batches({.sampler = BatchSampler(RandomSampler(8, {.seed = 3}), 3, true)}, 2) ==
              std::vector<Rows>{{3, 6, 0}, {2, 1, 4}});
    }
}

TEST_CASE("batches of a sampler may be of any size up to its declared maximum") {
    auto model = model_on(3, 3);
    Loader loader(model, AugmentedRows{10}, {.workers = 2, .prefetch = 3, .sampler = Uneven()});
    CHECK(loader.batches() == 4);
    CHECK(loader.rows() == 10);
    CHECK(loader.options().batch_size == 4);
    const Uneven uneven;
    CHECK(batches_of(loader, 0) == uneven.batches(0));
    CHECK(batches_of(loader, 1) == uneven.batches(1));
    CHECK(rows_of_epoch(loader, 0, 2) == expected_rows({0, 0}, Rows{4, 7, 8, 6}));
    const auto refusal = [&](std::uint64_t epoch) {
        return message_of<InvalidArgument>([&] { (void)loader.epoch(epoch); });
    };
    CHECK(contains(refusal(2), "returned 3 batches for this epoch; expected 4"));
    CHECK(contains(refusal(3), "batch 2 of the sampler has 0 rows"));
    CHECK(contains(refusal(4), "batch 1 of the sampler has 5 rows; expected 1 to its batch_size(), 4"));
    CHECK(contains(refusal(5), "returned 11 rows for this epoch; expected 10"));
    CHECK(batches_of(loader, 0) == uneven.batches(0));  // usable after a refusal
}

TEST_CASE("with a distributed sampler, every rank's shards get the rows of PyTorch's loader on that rank") {
    // PyTorch 2.15: DistributedSampler(range(11), 3, rank), set_epoch(2), in batches of 2.
    const std::vector<std::vector<Rows>> of_rank{{{3, 0}, {5, 6}}, {{8, 1}, {2, 9}}, {{10, 4}, {7, 3}}};
    for (const auto& [shards, rank] : {std::pair{3, 0}, {3, 2}, {6, 1}}) {
        auto model = model_on(3, shards);
        Loader loader(model, AugmentedRows{11}, {.batch_size = 6, .sampler = DistributedSampler(11, 3, rank)});
        CHECK(loader.batches() == 2);
        std::size_t number = 0;
        for (auto& [batch] : loader.epoch(2)) {
            (void)batch.gathered();  // waits for the rows
            for (std::size_t part = 0; part < 3; ++part) {
                Rows rows;
                const int each = shards / 3;
                for (int i = 0; i < each; ++i) {
                    const auto values = batch.shard(static_cast<int>(part) * each + i).to_vector<double>();
                    for (std::size_t at = 0; at < values.size(); at += 3)
                        rows.push_back(static_cast<std::int64_t>(values[at]));
                }
                CHECK(rows == of_rank[part][number]);
            }
            ++number;
        }
    }
    auto model = model_on(1);
    Loader once(model, AugmentedRows{11}, {.batch_size = 6, .sampler = DistributedSampler(11, 3, 0, {.pad = false})});
    CHECK(once.rows() == 11);
    Rows all;
    for (const Rows& batch : batches_of(once, 2)) all.insert(all.end(), batch.begin(), batch.end());
    std::sort(all.begin(), all.end());
    CHECK(all == Rows{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10});
    Loader dropped(model, AugmentedRows{11},
                   {.batch_size = 6, .sampler = DistributedSampler(11, 3, 0, {.drop_last = true})});
    CHECK(dropped.rows() == 9);
    CHECK(contains(message_of<InvalidArgument>([&] {
                       Loader uneven(model, AugmentedRows{11},
                                     {.batch_size = 4, .sampler = DistributedSampler(11, 3, 0)});
                       (void)uneven.epoch(0);
                   }),
                   "batches of 4 rows for 3 replicas"));
}

TEST_CASE("mismatched samplers are rejected, and a running epoch continues") {
    auto model = model_on(1);
    const auto refusal = [&](const LoaderOptions& options) {
        return message_of<InvalidArgument>([&] { Loader loader(model, AugmentedRows{10}, options); });
    };
    CHECK(contains(refusal({.shuffle = true, .sampler = SequentialSampler(10)}), "mutually exclusive with shuffle"));
    CHECK(contains(refusal({.batch_size = 2, .sampler = Uneven()}), "mutually exclusive with batch_size"));
    CHECK(contains(refusal({.drop_last = true, .sampler = Uneven()}), "mutually exclusive with batch_size"));
    CHECK(contains(refusal({.sampler = Rows{}}), "0 rows make no batch"));
    CHECK(contains(refusal({.batch_size = 4, .drop_last = true, .sampler = SequentialSampler(3)}), "no batch of 4"));

    Loader loader(model, AugmentedRows{10}, {.batch_size = 2, .sampler = Unreliable()});
    auto running = loader.epoch(0);
    auto batch = running.begin();
    CHECK(contains(message_of<InvalidArgument>([&] { (void)loader.epoch(1); }),
                   "returned 2 rows for this epoch; expected 3"));
    CHECK(contains(message_of<InvalidArgument>([&] { (void)loader.epoch(2); }), "index 10 at position 2"));
    ++batch;
    REQUIRE(batch != std::default_sentinel);
    CHECK(std::get<0>(*batch).gathered().to_vector<double>() == expected_row({0, 0}, 2));
}
