// Rows of the tutorial's partitioner: those printed by Python 3.11 (more of them by tests/pytorch/check_sampler.py).
#include "lockstep/samples/data/data_partitioner.h"

#include <limits>
#include <string>
#include <vector>

#include "lockstep/parallel/data/dataset.h"
#include "lockstep/runtime/error.h"
#include "lockstep/samples/data/python_random.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/messages.h"

using namespace lockstep;
using lockstep::test::contains;
using lockstep::test::message_of;
using lockstep::test::Warnings;
using Rows = std::vector<std::int64_t>;

TEST_CASE("PythonRandom gives the bits of Python's getrandbits") {
    const auto bits = [](std::uint64_t seed, int width, int count) {
        samples::PythonRandom random(seed);
        Rows numbers;
        for (int i = 0; i < count; ++i) numbers.push_back(random.bits(width));
        return numbers;
    };
    CHECK(bits(1234, 32, 5) == Rows{4150886329, 3342196574, 1892932127, 501869158, 32175636});
    CHECK(bits((std::uint64_t{1} << 40) + 3, 7, 8) == Rows{28, 7, 70, 106, 12, 72, 125, 38});
    CHECK(bits(0, 1, 12) == Rows{1, 0, 1, 1, 0, 0, 0, 1, 1, 0, 0, 1});
}

TEST_CASE("a partitioner cuts the order of Python's random.shuffle") {
    const Warnings warnings;
    const samples::DataPartitioner whole(10, {1.0});
    CHECK(whole.part(0) == Rows{2, 8, 3, 5, 6, 4, 9, 0, 1, 7});
    CHECK(samples::DataPartitioner(12, {1.0}, (std::uint64_t{1} << 40) + 3).part(0) ==
          Rows{10, 7, 2, 6, 9, 11, 5, 4, 1, 8, 0, 3});
    const samples::DataPartitioner two(10, {0.5, 0.5});
    CHECK(two.part(0) == Rows{2, 8, 3, 5, 6});
    CHECK(two.part(1) == Rows{4, 9, 0, 1, 7});
    CHECK(two.lost() == 0);
    const samples::DataPartitioner some(10, {0.2});
    CHECK(some.lost() == 8);
    CHECK(warnings.texts().empty());
    const samples::DataPartitioner three(10, {1.0 / 3, 1.0 / 3, 1.0 / 3});
    CHECK(three.parts() == 3);
    CHECK(three.lost() == 1);
    REQUIRE(warnings.texts().size() == 1);
    CHECK(contains(warnings.texts()[0], "1 of 10 rows"));
    CHECK(contains(message_of<InvalidArgument>([&] { (void)three.part(3); }), "no part 3"));
    CHECK(contains(message_of<InvalidArgument>([] { samples::DataPartitioner(10, {0.6, 0.6}); }), "1.2"));
    CHECK(contains(message_of<InvalidArgument>([] { samples::DataPartitioner(10, {-0.1}); }), "-0.1"));
    CHECK(contains(
        message_of<InvalidArgument>([] { samples::DataPartitioner(10, {std::numeric_limits<double>::quiet_NaN()}); }),
        "nan"));
    CHECK(contains(message_of<InvalidArgument>([] { samples::DataPartitioner(-4, {1.0}); }), "-4 rows"));

    const samples::Partition<TensorDataset<1>> part = two.use(TensorDataset(Tensor::arange(10)), 1);
    CHECK(part.size() == 5);
    CHECK(std::get<0>(part.get(1)).item() == 9);
    CHECK(contains(message_of<InvalidArgument>([&] { (void)two.use(TensorDataset(Tensor::arange(9)), 0); }),
                   "dataset has 9 rows; expected 10"));
    CHECK(contains(message_of<InvalidArgument>([&] { (void)two.use(TensorDataset(Tensor::arange(10)), 2); }),
                   "no part 2"));
}
