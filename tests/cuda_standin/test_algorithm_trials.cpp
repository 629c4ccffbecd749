// Benchmark mode on GPUs: cuDNN's algorithms are timed once, stored and reused.
#include <string>
#include <vector>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/layers.h"
#include "lockstep/tests/cuda_standin/training.h"
#include "lockstep/tests/fixtures/training.h"

using namespace lockstep;

namespace {

struct Net {
    static constexpr std::int64_t in[] = {4, 8, 8}, out[] = {5, 6, 6};
    Conv2d first{4, 6, 3, {.padding = 1}}, second{6, 5, 3};
    LOCKSTEP_MEMBERS(first, second)
    Tensor forward(const Tensor& x) const { return second(relu(first(x))); }
};

struct Training : test::BenchmarkedTraining<Net> {
    Training(int gpus, ConvAlgorithm algorithm) : BenchmarkedTraining(test::gpus(gpus), algorithm) {}
    std::vector<float> after_steps(int count) {
        steps(count, 8);
        return weights();
    }
};

}  // namespace

TEST_CASE("cuDNN algorithms are tried once, and the choices are bit-identical on any number of GPUs") {
    Training tried(1, ConvAlgorithm::benchmark), by_rule(1, ConvAlgorithm::automatic);
    const std::vector<float> weights = tried.after_steps(3);
    const auto choices = tried.engine().algorithms();
    // Forward of both, the weights' gradient of both, and the input gradient of the second one.
    CHECK(tried.engine().algorithm_trials() == choices.size());
    CHECK(choices.size() <= 5);
    CHECK(choices.size() >= 2);
    for (const auto& [question, name] : choices) {
        CHECK(question.starts_with("conv2d "));
        CHECK(name.find(", algorithm ") != std::string::npos);
    }
    const std::vector<float> expected = by_rule.after_steps(3);
    REQUIRE(weights.size() == expected.size());
    for (std::size_t i = 0; i < weights.size(); ++i) CHECK(weights[i] == Approx(expected[i]).margin(1e-4));

    Training again(2, ConvAlgorithm::benchmark);
    again.engine().set_algorithms(choices);
    CHECK((again.after_steps(3) == weights));
    CHECK(again.engine().algorithm_trials() == 0);
    again.engine().verify_replicas();
    test::check_no_mistakes();
}
