// Which rows a process reads: the indices of PyTorch 2.15 and Python 3.11, printed by them (more of them by
// tests/pytorch/check_sampler.py).
#include <algorithm>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "lockstep/parallel/data/internal/mersenne_twister.h"
#include "lockstep/parallel/data/sampler.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/warning.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/runtime/gate.h"

using namespace lockstep;
using lockstep::testing::contains;
using lockstep::testing::message_of;
using Rows = std::vector<std::int64_t>;

namespace {

class Warnings {
public:
    Warnings() : previous_(set_warning_handler([this](const std::string& text) { texts.push_back(text); })) {}
    ~Warnings() { set_warning_handler(previous_); }
    Warnings(const Warnings&) = delete;
    Warnings& operator=(const Warnings&) = delete;
    std::vector<std::string> texts;

private:
    WarningHandler previous_;
};

Rows rows_of(std::int64_t length, int replicas, int rank, std::int64_t epoch,
             const DistributedSamplerOptions& options = {}) {
    DistributedSampler sampler(length, replicas, rank, options);
    sampler.set_epoch(epoch);
    Rows rows = sampler.indices();
    CHECK(static_cast<std::int64_t>(rows.size()) == sampler.size());
    return rows;
}

}  // namespace

TEST_CASE("the Mersenne Twister gives the numbers of its authors") {
    const std::vector<std::uint32_t> key{0x123, 0x234, 0x345, 0x456};
    MersenneTwister by_array(key);
    for (const std::uint32_t expected : {1067595299U, 955945823U, 477289528U, 4107218783U, 4228976476U})
        CHECK(by_array() == expected);
    MersenneTwister by_seed(5489U);  // the seed of std::mt19937, whose 10000th number the standard gives
    for (int i = 1; i < 10000; ++i) by_seed();
    CHECK(by_seed() == 4123659995U);
}

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

TEST_CASE("without padding every row is read once") {
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
    CHECK(warnings.texts.empty());
    CHECK(sampler.indices() == first);
    REQUIRE(warnings.texts.size() == 1);
    CHECK(contains(warnings.texts[0], "set_epoch"));
    sampler.set_epoch(1);
    CHECK(sampler.indices() != first);
    CHECK(warnings.texts.size() == 1);
    DistributedSampler ordered(8, 2, 0, {.shuffle = false});
    CHECK(ordered.indices() == ordered.indices());
    CHECK(warnings.texts.size() == 1);
}

TEST_CASE("samplers say what is wrong with their arguments") {
    const auto message = [](std::int64_t length, int replicas, int rank,
                            const DistributedSamplerOptions& options = {}) {
        return message_of<InvalidArgument>([&] { DistributedSampler(length, replicas, rank, options); });
    };
    CHECK(contains(message(10, 3, 3), "Invalid rank 3, rank should be in the interval [0, 2]"));
    CHECK(contains(message(10, 3, -1), "Invalid rank -1"));
    CHECK(contains(message(10, 0, 0), "0 replicas"));
    CHECK(contains(message(-1, 1, 0), "-1 rows"));
    CHECK(contains(message(10, 3, 0, {.drop_last = true, .pad = false}), "choose one"));
}

TEST_CASE("a partitioner cuts what Python's random.shuffle gives") {
    const Warnings warnings;
    const DataPartitioner whole(10, {1.0});
    CHECK(whole.part(0) == Rows{2, 8, 3, 5, 6, 4, 9, 0, 1, 7});
    CHECK(DataPartitioner(12, {1.0}, (std::uint64_t{1} << 40) + 3).part(0) ==
          Rows{10, 7, 2, 6, 9, 11, 5, 4, 1, 8, 0, 3});
    const DataPartitioner two(10, {0.5, 0.5});
    CHECK(two.part(0) == Rows{2, 8, 3, 5, 6});
    CHECK(two.part(1) == Rows{4, 9, 0, 1, 7});
    CHECK(two.lost() == 0);
    const DataPartitioner some(10, {0.2});
    CHECK(some.lost() == 8);
    CHECK(warnings.texts.empty());
    const DataPartitioner three(10, {1.0 / 3, 1.0 / 3, 1.0 / 3});
    CHECK(three.parts() == 3);
    CHECK(three.lost() == 1);
    REQUIRE(warnings.texts.size() == 1);
    CHECK(contains(warnings.texts[0], "1 of 10 rows"));
    CHECK(contains(message_of<InvalidArgument>([&] { (void)three.part(3); }), "no part 3"));
    CHECK(contains(message_of<InvalidArgument>([] { DataPartitioner(10, {0.6, 0.6}); }), "1.2"));
    CHECK(contains(message_of<InvalidArgument>([] { DataPartitioner(10, {-0.1}); }), "-0.1"));
    CHECK(contains(message_of<InvalidArgument>([] { DataPartitioner(10, {std::numeric_limits<double>::quiet_NaN()}); }),
                   "nan"));
    CHECK(contains(message_of<InvalidArgument>([] { DataPartitioner(-4, {1.0}); }), "-4 rows"));
}
