// Rows that a process reads: the indices printed by PyTorch 2.15 (more of them by tests/pytorch/check_sampler.py).
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "lockstep/parallel/data/sampler.h"
#include "lockstep/parallel/data/subset.h"
#include "lockstep/parallel/loader.h"
#include "lockstep/runtime/error.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/messages.h"

using namespace lockstep;
using lockstep::test::contains;
using lockstep::test::message_of;
using lockstep::test::Warnings;
using Rows = std::vector<std::int64_t>;

namespace {

Rows rows_of(std::int64_t length, int replicas, int rank, std::int64_t epoch,
             const DistributedSamplerOptions& options = {}) {
    DistributedSampler sampler(length, replicas, rank, options);
    sampler.set_epoch(epoch);
    Rows rows = sampler.indices();
    CHECK(static_cast<std::int64_t>(rows.size()) == sampler.size());
    return rows;
}

}  // namespace

TEST_CASE("permutations are those of torch.randperm") {
    CHECK(random_permutation(12, 42) == Rows{6, 8, 1, 7, 0, 2, 10, 11, 4, 3, 5, 9});
    CHECK(random_permutation(0, 1).empty());
    CHECK(random_permutation(1, 1) == Rows{0});
    CHECK(contains(message_of<InvalidArgument>([] { random_permutation(-1, 1); }), "-1 rows"));
    CHECK(contains(message_of<InvalidArgument>([] { random_permutation(std::int64_t{1} << 40, 1); }), "fewer than"));
}

TEST_CASE("a distributed sampler gives PyTorch's indices") {
    CHECK(rows_of(10, 3, 0, 0) == Rows{4, 5, 0, 2});
    CHECK(rows_of(10, 3, 2, 1) == Rows{1, 8, 7, 6});
    CHECK(rows_of(10, 3, 1, 2, {.seed = 7, .drop_last = true}) == Rows{5, 6, 1});
    CHECK(rows_of(2, 5, 4, 0, {.seed = 1}) == Rows{1});  // fewer rows than ranks
    CHECK(rows_of(7, 2, 1, 3, {.seed = (std::uint64_t{1} << 33) + 5}) == Rows{5, 4, 2, 1});
    CHECK(rows_of(5, 2, 1, 0, {.shuffle = false}) == Rows{1, 3, 0});
}

TEST_CASE("without padding, every row is read once") {
    for (const std::int64_t length : {0, 1, 5, 12, 13}) {
        Rows all;
        for (int rank = 0; rank < 4; ++rank) {
            const Rows rows = rows_of(length, 4, rank, 3, {.pad = false});
            all.insert(all.end(), rows.begin(), rows.end());
        }
        std::sort(all.begin(), all.end());
        Rows expected(static_cast<std::size_t>(length));
        std::iota(expected.begin(), expected.end(), 0);
        CHECK(all == expected);
    }
}

TEST_CASE("an epoch that is read twice warns") {
    const Warnings warnings;
    DistributedSampler sampler(8, 2, 0);
    const Rows first = sampler.indices();
    CHECK(warnings.texts().empty());
    CHECK(sampler.indices() == first);
    REQUIRE(warnings.texts().size() == 1);
    CHECK(contains(warnings.texts()[0], "set_epoch"));
    sampler.set_epoch(1);
    CHECK(sampler.indices() != first);
    CHECK(warnings.texts().size() == 1);
    DistributedSampler ordered(8, 2, 0, {.shuffle = false});
    CHECK(ordered.indices() == ordered.indices());
    CHECK(warnings.texts().size() == 1);
}

TEST_CASE("global indices of a distributed sampler are those that PyTorch's loaders read on the ranks") {
    // DistributedSampler(range(11), 3, rank), set_epoch(2), in batches of 2 on each rank.
    const DistributedSampler sampler(11, 3, 1);
    CHECK(sampler.global_indices(2, 6) == Rows{3, 0, 8, 1, 10, 4, 5, 6, 2, 9, 7, 3});
    CHECK(sampler.global_size() == 12);
    for (const DistributedSamplerOptions& options :
         {DistributedSamplerOptions{}, {.shuffle = false}, {.drop_last = true}, {.pad = false}})
        for (const std::int64_t length : {3, 29, 404}) {
            const std::int64_t each = 5;
            const DistributedSampler global(length, 4, 0, options);
            std::vector<Rows> of_rank;
            for (int rank = 0; rank < 4; ++rank) of_rank.push_back(rows_of(length, 4, rank, 6, options));
            Rows expected;
            for (std::size_t first = 0; first < of_rank[0].size(); first += each)
                for (const Rows& rows : of_rank)
                    for (std::size_t i = first; i < std::min(first + each, rows.size()); ++i)
                        expected.push_back(rows[i]);
            CHECK(global.global_indices(6, 4 * each) == expected);
            CHECK(global.global_size() == std::ssize(expected));
        }
    CHECK(contains(message_of<InvalidArgument>([&] { (void)sampler.global_indices(0, 7); }),
                   "expected a multiple, 2 rows"));
    CHECK(DistributedSampler(0, 2, 0).global_indices(0, 4).empty());
}

TEST_CASE("random samplers give PyTorch's indices") {
    const auto rows = [](std::int64_t length, const RandomSamplerOptions& options, std::uint64_t epoch) {
        const RandomSampler sampler(length, options);
        const Rows found = sampler.indices(epoch);
        CHECK(std::ssize(found) == sampler.size());
        CHECK(found == sampler.indices(epoch));
        return found;
    };
    CHECK(rows(8, {.seed = 5}, 0) == Rows{3, 6, 0, 2, 1, 4, 5, 7});
    CHECK(rows(8, {.seed = 2}, 3) == Rows{3, 6, 0, 2, 1, 4, 5, 7});  // manual_seed(seed + epoch)
    CHECK(rows(4, {.num_samples = 10, .seed = 5}, 0) == Rows{3, 1, 0, 2, 1, 3, 2, 0, 0, 3});
    CHECK(rows(8, {.replacement = true, .num_samples = 10, .seed = 5}, 0) == Rows{3, 6, 7, 5, 6, 6, 0, 1, 0, 4});
    CHECK(rows(std::int64_t{1} << 29, {.replacement = true, .num_samples = 3, .seed = 5}, 0) ==
          Rows{236996814, 349300413, 488496246});
    CHECK(SequentialSampler(4).indices(7) == Rows{0, 1, 2, 3});
    CHECK(SequentialSampler(0).size() == 0);
    CHECK(contains(message_of<InvalidArgument>([] { RandomSampler(5, {.num_samples = 0}); }),
                   "num_samples is 0; expected 1 or more"));
    CHECK(contains(message_of<InvalidArgument>([] { RandomSampler(0); }), "num_samples is 0; expected 1 or more"));
    CHECK(contains(message_of<InvalidArgument>([] { RandomSampler(0, {.num_samples = 3}); }), "0 rows"));
    CHECK(contains(message_of<InvalidArgument>([] { RandomSampler(std::int64_t{1} << 40); }), "fewer than"));
    CHECK(contains(message_of<InvalidArgument>([] { SequentialSampler(-1); }), "-1 rows"));
}

TEST_CASE("a weighted sampler gives PyTorch's indices with replacement, and the right proportions without") {
    CHECK(WeightedRandomSampler({0.1, 0.9, 0.4, 0.7, 3.0, 0.6}, 10, {.seed = 7}).indices(0) ==
          Rows{3, 3, 4, 4, 5, 4, 3, 4, 4, 4});
    CHECK(WeightedRandomSampler({0.25, 0, 0.75}, 10, {.seed = 6}).indices(2) == Rows{2, 2, 0, 0, 2, 2, 2, 0, 2, 2});

    // Two of three rows with weights 1, 2, 5: first and second row by the rule of urns.
    const std::vector<double> weights{1, 2, 0, 5};
    const WeightedRandomSampler sampler(weights, 2, {.replacement = false, .seed = 1});
    std::vector<std::vector<int>> found(4, std::vector<int>(4, 0));
    const int epochs = 4000;
    for (std::uint64_t epoch = 0; epoch < epochs; ++epoch) {
        const Rows rows = sampler.indices(epoch);
        REQUIRE(rows.size() == 2);
        ++found[static_cast<std::size_t>(rows[0])][static_cast<std::size_t>(rows[1])];
    }
    for (std::size_t first = 0; first < 4; ++first)
        for (std::size_t second = 0; second < 4; ++second) {
            const double share = first == second ? 0 : weights[first] / 8 * weights[second] / (8 - weights[first]);
            CAPTURE(first, second);
            CHECK(std::abs(found[first][second] / static_cast<double>(epochs) - share) < 0.03);
            if (share == 0) CHECK(found[first][second] == 0);
        }
    const auto refusal = [](const std::vector<double>& wrong, std::int64_t samples, bool replacement = true) {
        return message_of<InvalidArgument>(
            [&] { WeightedRandomSampler(wrong, samples, {.replacement = replacement}); });
    };
    CHECK(contains(refusal({1, 2}, 0), "num_samples is 0; expected 1 or more"));
    CHECK(contains(refusal({1, -2}, 3), "weight -2 of row 1"));
    CHECK(contains(refusal({1, std::nan("")}, 3), "weight nan of row 1"));
    CHECK(contains(refusal({0, 0}, 3), "the sum of the 2 weights is 0"));
    CHECK(contains(refusal({}, 3), "the 0 weights"));
    CHECK(contains(refusal({1, 0, 2}, 3, false), "3 samples without replacement of 2 rows"));
}

TEST_CASE("a batch sampler cuts the rows of another sampler") {
    const BatchSampler all(SequentialSampler(7), 3, false), whole(Rows{5, 5, 1, 0, 2}, 2, true);
    CHECK(all.batches(0) == std::vector<Rows>{{0, 1, 2}, {3, 4, 5}, {6}});
    CHECK(all.size() == 3);
    CHECK(all.rows() == 7);
    CHECK(whole.batches(3) == std::vector<Rows>{{5, 5}, {1, 0}});
    CHECK(whole.size() == 2);
    CHECK(whole.rows() == 4);
    CHECK(whole.batch_size() == 2);
    CHECK(contains(message_of<InvalidArgument>([] { BatchSampler(SequentialSampler(3), 0, false); }),
                   "batch_size is 0; expected 1 or more"));
    CHECK_THROWS_AS(BatchSampler(AnySampler(), 2, false), InvalidArgument);
    CHECK_THROWS_AS(BatchSampler(all, 2, false).size(), InvalidArgument);
}

TEST_CASE("ConcatDataset has the rows of one dataset after another") {
    const auto part = [](std::int64_t first, std::int64_t count) {
        return TensorDataset(
            Tensor::arange(static_cast<double>(first), static_cast<double>(first + count)).unsqueeze(1),
            Tensor::arange(static_cast<double>(first), static_cast<double>(first + count), 1, DType::i64));
    };
    const ConcatDataset all(std::vector{part(0, 3), part(3, 0), part(3, 4), part(7, 1)});
    REQUIRE(all.size() == 8);
    for (std::int64_t row = 0; row < 8; ++row) CHECK(std::get<1>(all.get(row)).item() == static_cast<double>(row));
    // Many rows at once, in runs of one dataset.
    std::vector<float> numbers(5);
    std::vector<std::int64_t> labels(5);
    const std::vector<std::byte*> to{reinterpret_cast<std::byte*>(numbers.data()),
                                     reinterpret_cast<std::byte*>(labels.data())};
    all.read(Rows{6, 3, 0, 1, 7}, to);
    CHECK(numbers == std::vector<float>{6, 3, 0, 1, 7});
    CHECK(labels == Rows{6, 3, 0, 1, 7});
    const Subset some(all, {7, 2});
    CHECK(std::get<1>(some.get(0)).item() == 7);

    CHECK(contains(message_of<InvalidArgument>([&] { (void)all.get(8); }),
                   "ConcatDataset: index 8 at position 0; expected 0 or more and less than 8"));
    CHECK_THROWS_AS(all.get(-1), InvalidArgument);
    CHECK_THROWS_AS(ConcatDataset(std::vector<TensorDataset<2>>{}), InvalidArgument);
    CHECK(contains(message_of<InvalidArgument>([&] {
                       const auto wide = TensorDataset(Tensor::zeros({2, 2}), Tensor::zeros({2}, DType::i64));
                       (void)ConcatDataset(std::vector{part(0, 2), wide});
                   }),
                   "ConcatDataset: the datasets have rows of different shapes or dtypes; expected equal rows"));
    ConcatDataset moved(all);
    const ConcatDataset there = std::move(moved);
    CHECK_THROWS_AS(moved.size(), InvalidArgument);
    CHECK(there.size() == 8);
}

TEST_CASE("random_split gives PyTorch's parts") {
    const TensorDataset data(Tensor::arange(10));
    const auto parts = random_split(data, {7, 3}, 42);
    REQUIRE(parts.size() == 2);
    CHECK(parts[0].indices() == Rows{2, 6, 1, 8, 4, 5, 0});
    CHECK(parts[1].indices() == Rows{9, 3, 7});
    CHECK(std::get<0>(parts[1].get(2)).item() == 7);
    CHECK(&parts[0].data() == &parts[1].data());
    const auto indices = [](const auto& subsets) {
        std::vector<Rows> all;
        for (const auto& subset : subsets) all.push_back(subset.indices());
        return all;
    };
    CHECK(indices(random_split(data, {0.3, 0.3, 0.4}, 0)) == std::vector<Rows>{{4, 1, 7}, {5, 3, 9}, {0, 8, 6, 2}});
    CHECK(indices(random_split(TensorDataset(Tensor::arange(11)), std::vector<double>(4, 0.25),
                               (std::uint64_t{1} << 33) + 1)) ==
          std::vector<Rows>{{0, 10, 2}, {3, 7, 6}, {4, 8, 1}, {9, 5}});
    const auto tenths = random_split(TensorDataset(Tensor::arange(101)), std::vector<double>(10, 0.1), 1);
    for (std::size_t i = 0; i < 10; ++i) CHECK(tenths[i].size() == (i == 0 ? 11 : 10));
    {
        const Warnings warnings;
        CHECK(indices(random_split(TensorDataset(Tensor::arange(3)), {0.5, 0.5, 0.0}, 1)) ==
              std::vector<Rows>{{1, 2}, {0}, {}});
        REQUIRE(warnings.texts().size() == 1);
        CHECK(contains(warnings.texts()[0], "the part at index 2 has no rows"));
    }
    const auto refusal = [&](const auto& lengths) {
        return message_of<InvalidArgument>([&] { (void)random_split(data, lengths, 0); });
    };
    const std::string sum = "the sum of the lengths is not 10, the number of rows";
    CHECK(contains(refusal(Rows{5, 4}), sum));
    CHECK(contains(refusal(Rows{5, 6}), sum));
    CHECK(contains(refusal(Rows{-1, 11}), "length -1 at index 0"));
    CHECK(contains(refusal(Rows{std::numeric_limits<std::int64_t>::max(), std::numeric_limits<std::int64_t>::max()}),
                   sum));
    CHECK(contains(refusal(Rows{}), "no lengths"));
    CHECK(contains(refusal(std::vector<double>{0.5, 0.6}), "sum of the fractions is 1.1"));
    CHECK(contains(refusal(std::vector<double>{0.5, 0.4}), "sum of the fractions is 0.9"));
    CHECK(contains(refusal(std::vector<double>{-0.5, 1.5}), "the fraction at index 0 is -0.5; expected 0 to 1"));
}

TEST_CASE("a subset has exactly the rows of its indices") {
    const Subset data(TensorDataset(Tensor::arange(5), Tensor::arange(5, DType::i64)), {3, 0, 3});
    CHECK(data.size() == 3);
    CHECK(std::get<0>(data.get(0)).item() == 3);
    CHECK(std::get<1>(data.get(1)).item() == 0);
    std::vector<float> first(2);
    Rows second(2);
    std::byte* const to[] = {reinterpret_cast<std::byte*>(first.data()), reinterpret_cast<std::byte*>(second.data())};
    data.read(Rows{2, 1}, to);
    CHECK(first == std::vector<float>{3, 0});
    CHECK(second == Rows{3, 0});
    CHECK(contains(message_of<InvalidArgument>([&] { (void)data.get(3); }), "index 3"));
    CHECK(contains(message_of<InvalidArgument>([&] {
                       Subset(data, {0, 3});
                   }),
                   "index 3 at position 1; expected 0 or more and less than 3"));
    CHECK_THROWS_AS(Subset(data, {-1}), InvalidArgument);
}

TEST_CASE("more rows than memory can hold are refused before any is listed") {
    struct Claims {
        std::int64_t claimed;
        std::int64_t size() const { return claimed; }
        Rows indices(std::uint64_t) const { return {0, 1}; }
    };
    for (const std::int64_t rows : {std::int64_t{1} << 50, std::int64_t{1} << 60, std::int64_t{1} << 62}) {
        CAPTURE(rows);
        const auto refuses = [&](const std::string& sampler, const auto& call) {
            const std::string expected = sampler + ": " + std::to_string(rows) + " rows; expected 0 to ";
            CHECK_THAT(message_of<InvalidArgument>(call), contains(expected));
        };
        refuses("SequentialSampler", [&] { SequentialSampler(rows).indices(0); });
        refuses("RandomSampler", [&] { RandomSampler(rows, {.replacement = true}).indices(0); });
        refuses("RandomSampler", [&] { RandomSampler(4, {.num_samples = rows}).indices(0); });
        refuses("WeightedRandomSampler", [&] { WeightedRandomSampler({1, 2}, rows).indices(0); });
        for (const bool pad : {true, false}) {
            const DistributedSamplerOptions options{.shuffle = false, .pad = pad};
            refuses("DistributedSampler", [&] { DistributedSampler(rows, 1, 0, options).indices(); });
            refuses("DistributedSampler", [&] { DistributedSampler(rows, 1, 0, options).global_indices(0, 1); });
        }
        CHECK_THROWS_AS(RandomSampler(rows), InvalidArgument);
        CHECK_THROWS_AS(DistributedSampler(rows, 3, 0).indices(), InvalidArgument);
        CHECK_THROWS_AS(shuffled_order(rows, 1, 0), InvalidArgument);
        CHECK_THROWS_AS(BatchSampler(SequentialSampler(rows), 2, false).batches(0), InvalidArgument);
        for (const bool drop_last : {true, false}) {
            const BatchSampler batches(Claims{rows}, 2, drop_last);
            CHECK_THAT(
                message_of<InvalidArgument>([&] { batches.batches(0); }),
                contains("BatchSampler: the sampler returned 2 rows for this epoch; expected " + std::to_string(rows)));
        }
    }
    constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
    CHECK_THROWS_AS(DistributedSampler(most, 2, 0), InvalidArgument);
    CHECK(BatchSampler(SequentialSampler(3), most, false).rows() == 3);
    CHECK(BatchSampler(SequentialSampler(3), most, true).rows() == 0);
    CHECK(BatchSampler(SequentialSampler(3), most, false).batches(0) == std::vector<Rows>{{0, 1, 2}});
    CHECK(DistributedSampler(3, std::numeric_limits<int>::max(), 4).indices() == DistributedSampler(3, 5, 4).indices());
}

TEST_CASE("samplers say what is wrong with their arguments") {
    const auto message = [](std::int64_t length, int replicas, int rank,
                            const DistributedSamplerOptions& options = {}) {
        return message_of<InvalidArgument>([&] { DistributedSampler(length, replicas, rank, options); });
    };
    CHECK(contains(message(10, 3, 3), "rank is 3; expected 0 to 2"));
    CHECK(contains(message(10, 3, -1), "rank is -1; expected 0 to 2"));
    CHECK(contains(message(10, 0, 0), "0 replicas"));
    CHECK(contains(message(-1, 1, 0), "-1 rows"));
    CHECK(contains(message(10, 3, 0, {.drop_last = true, .pad = false}), "drop_last and pad = false"));
}
