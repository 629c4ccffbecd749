// Benchmark mode in one process: algorithms are tried once, stored with the run, and reused with bit-identical results.
// (Ranks: test_algorithm_choices_ranks.)
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/layers.h"
#include "lockstep/parallel/checkpoint.h"
#include "lockstep/parallel/data/atomic_file.h"
#include "lockstep/parallel/data/files/sealed_file.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/kernels.h"
#include "lockstep/runtime/random.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/eight_devices.h"
#include "lockstep/tests/fixtures/files.h"
#include "lockstep/tests/fixtures/messages.h"
#include "lockstep/tests/fixtures/training.h"

namespace ls = lockstep;
using Choices = std::map<std::string, std::string>;
using lockstep::test::message_of;

namespace {

/// Two convolutions of one shape and one of another: two choices.
struct Net {
    static constexpr std::int64_t in[] = {32, 12, 12}, out[] = {64, 10, 10};
    ls::Conv2d first{32, 32, 3, {.padding = 1}}, second{32, 32, 3, {.padding = 1}}, third{32, 64, 3};
    LOCKSTEP_MEMBERS(first, second, third)
    ls::Tensor forward(const ls::Tensor& x) const { return third(ls::relu(second(ls::relu(first(x))))); }
};

struct Training : ls::test::BenchmarkedTraining<Net> {
    explicit Training(int devices, std::optional<ls::ConvAlgorithm> algorithm = ls::ConvAlgorithm::benchmark)
        : BenchmarkedTraining(ls::test::cpu_devices(devices), algorithm) {}
    /// Sets all choices to `way`.
    void choose(const std::string& way) {
        Choices choices = engine().algorithms();
        for (auto& [question, name] : choices) name = way;
        engine().set_algorithms(choices);
    }
};

}  // namespace

TEST_CASE("the algorithms of each convolution are tried once") {
    Training training(2);
    ls::Engine& engine = training.model.engine();
    CHECK(engine.algorithms().empty());
    training.steps(1);
    const Choices choices = engine.algorithms();
    CHECK(choices.size() == 2);
    CHECK(engine.algorithm_trials() == 2);
    training.steps(3);
    CHECK(engine.algorithm_trials() == 2);
    CHECK(engine.algorithms() == choices);
    training.steps(1, 8);  // two rows in a shard
    CHECK(engine.algorithm_trials() == 4);
    CHECK(engine.algorithms().size() == 4);

    Training by_rule(2, ls::ConvAlgorithm::automatic);
    by_rule.steps(1);
    CHECK(by_rule.model.engine().algorithm_trials() == 0);
    CHECK(by_rule.model.engine().algorithms().empty());
}

TEST_CASE("the chosen algorithm computes, whatever was used before and on any number of devices") {
    Training direct(1, ls::ConvAlgorithm::direct);
    direct.steps(3);
    for (const int devices : {1, 2, 4}) {
        INFO(devices << " devices");
        Training training(devices), measured(devices);
        measured.steps(1);  // its programs were created with other choices
        measured.choose("direct");
        training.model.engine().set_algorithms(measured.model.engine().algorithms());
        training.steps(3);
        CHECK(training.model.engine().algorithm_trials() == 0);
        CHECK((training.weights() == direct.weights()));
        const auto traces = measured.model.engine().traces();
        measured.steps(1);
        CHECK(measured.model.engine().traces() > traces);
        CHECK(measured.model.engine().algorithm_trials() == 2);
    }
}

TEST_CASE("a checkpoint stores the choices, and a resumed run repeats them bit for bit") {
    for (const std::string way : {"direct", "direct channels last", "direct plain"}) {
        INFO(way);
        const ls::test::TemporaryDirectory directory;
        Training whole(2);
        whole.steps(1);
        whole.choose(way);
        whole.steps(2);
        ls::save_checkpoint(whole.model, whole.sgd, {.steps = 3}, directory / "net");
        whole.steps(2);

        Training resumed(4);
        REQUIRE(ls::load_checkpoint(resumed.model, resumed.sgd, directory / "net"));
        CHECK(resumed.model.engine().algorithms() == whole.model.engine().algorithms());
        resumed.steps(2);
        CHECK(resumed.model.engine().algorithm_trials() == 0);
        CHECK((resumed.weights() == whole.weights()));
    }
}

TEST_CASE("a run that resumes with default algorithms warns that its bits differ") {
    const ls::test::TemporaryDirectory directory;
    Training tried(1), by_rule(1, ls::ConvAlgorithm::automatic);
    tried.steps(1);
    ls::save_checkpoint(tried.model, tried.sgd, {.steps = 1}, directory / "net");
    {
        const ls::test::Warnings warnings;
        REQUIRE(ls::load_checkpoint(by_rule.model, by_rule.sgd, directory / "net"));
        CHECK(warnings.lines() ==
              "the run selected its algorithms by benchmarking, and continues without: its bits differ from here on; "
              "to reuse its choices, resume in benchmark mode (--benchmark, ConvAlgorithm::benchmark)\n");
    }
    CHECK(by_rule.model.engine().algorithms().empty());
    by_rule.steps(1);
    ls::save_checkpoint(by_rule.model, by_rule.sgd, {.steps = 2}, directory / "net");
    const ls::test::Warnings warnings;
    REQUIRE(ls::load_checkpoint(tried.model, tried.sgd, directory / "net"));  // the file has no choices
    CHECK(warnings.lines().empty());
    CHECK(tried.model.engine().algorithms().empty());
    tried.steps(1);
    CHECK(tried.model.engine().algorithm_trials() == 4);
}

TEST_CASE("an unavailable choice is benchmarked again with a warning") {
    Training training(2);
    training.steps(1);
    training.choose("abacus");
    const ls::test::Warnings warnings;
    training.steps(1);
    CHECK(training.model.engine().algorithm_trials() == 4);
    CHECK_THAT(warnings.lines(),
               ls::test::contains("the run used 'abacus', which is not available here; benchmarking again"));
    CHECK_THAT(warnings.lines(), ls::test::contains("conv2d f32 (1, 32, 12, 12) with (64, 32, 3, 3)"));
    for (const auto& [question, name] : training.model.engine().algorithms()) CHECK(name != "abacus");
}

TEST_CASE("eager calls also choose, and ranks that cannot agree throw the connection's error") {
    ls::manual_seed(1);
    const ls::Tensor x = ls::Tensor::randn({2, 32, 9, 9}), w = ls::Tensor::randn({32, 32, 3, 3});
    const std::vector<float> direct = [&] {
        const ls::ComputeScope compute({.threads = 1, .deterministic = true, .convolution = ls::ConvAlgorithm::direct});
        return ls::conv2d(x, w).to_vector<float>();
    }();
    const ls::ComputeScope compute({.threads = 1, .deterministic = true, .convolution = ls::ConvAlgorithm::benchmark});
    ls::AlgorithmChoices lost([](const std::string& question, const auto&) -> std::string {
        throw ls::CommunicationError("rank 0 is lost: " + question);
    });
    ls::AlgorithmChoices told([](const std::string&, const auto&) { return std::string("direct"); });
    {
        const ls::AlgorithmScope scope(&lost);
        CHECK(message_of<ls::CommunicationError>([&] {
                  ls::conv2d(x, w);
              }).starts_with("rank 0 is lost: conv2d f32 (2, 32, 9, 9) with (32, 32, 3, 3), stride (1, 1)"));
        CHECK(message_of<ls::CommunicationError>([&] { ls::conv2d(x, w.slice(1, 0, 1), {}, 1, 0, 2, 32); })
                  .starts_with(
                      "rank 0 is lost: conv2d f32 (2, 32, 9, 9) with (32, 1, 3, 3), stride (1, 1), padding (0, 0), "
                      "dilation (2, 2), 32 groups, on cpu "));
        CHECK(lost.table().empty());
    }
    const ls::AlgorithmScope scope(&told);
    CHECK((ls::conv2d(x, w).to_vector<float>() == direct));
    CHECK(told.table().size() == 1);
    CHECK(told.trials() == 0);
}

TEST_CASE("invalid names of algorithms in a checkpoint are rejected") {
    const ls::test::TemporaryDirectory directory;
    Training training(1);
    training.steps(1);
    ls::save_checkpoint(training.model, training.sgd, {.steps = 1}, directory / "net");
    const auto path = ls::resume_path(directory / "net");
    {
        const ls::SafetensorsFile file(path);
        auto state = nlohmann::json::parse(file.metadata().at("lockstep"));
        REQUIRE(state.at("algorithms").size() == 2);
        state["algorithms"].begin().value() = 7;
        std::vector<std::vector<std::byte>> bytes;
        std::vector<ls::SafetensorsTensor> tensors;
        bytes.reserve(file.entries().size());
        for (const ls::SafetensorsEntry& entry : file.entries()) {
            file.read(entry.name, bytes.emplace_back(entry.bytes));
            tensors.push_back({entry.name, entry.dtype, entry.shape, bytes.back().data()});
        }
        ls::AtomicFile sealed(path);
        ls::internal::write_sealed(sealed, path, tensors, {{"lockstep", state.dump()}});
        sealed.commit();
    }
    const auto load = [&] { static_cast<void>(ls::load_checkpoint(training.model, training.sgd, directory / "net")); };
    CHECK_THAT(message_of<ls::DataError>(load), ls::test::contains("is not valid JSON"));
}

TEST_CASE("the fastest algorithm has the shortest time, and ties keep their order") {
    std::map<std::string, int> runs;
    const auto fastest = [&](const std::map<std::string, std::vector<double>>& times,
                             const std::vector<std::string>& ways) {
        runs.clear();
        return ls::fastest_algorithm(ways, [&](const std::string& way) {
            const std::vector<double>& of_way = times.at(way);
            if (of_way.empty()) throw std::runtime_error("no kernel for " + way);
            return of_way[static_cast<std::size_t>(runs[way]++) % of_way.size()];
        });
    };
    CHECK(fastest({{"a", {4}}, {"b", {2}}, {"c", {3}}}, {"a", "b", "c"}) == "b");
    CHECK(fastest({{"a", {4}}, {"b", {3.7}}}, {"a", "b"}) == "a");
    CHECK(fastest({{"a", {4}}, {"b", {3.5}}}, {"a", "b"}) == "b");
    CHECK(fastest({{"a", {4}}, {"b", {9, 1, 3, 90}}}, {"a", "b"}) == "b");  // the first one does not count
    CHECK(runs["b"] == 4);
    CHECK(fastest({{"a", {4}}, {"b", {13, 1, 1, 1}}}, {"a", "b"}) == "a");
    CHECK(runs["b"] == 1);
    CHECK(fastest({{"a", {}}, {"b", {5}}}, {"a", "b"}) == "b");
    const auto none = [&] { static_cast<void>(fastest({{"a", {}}, {"b", {}}}, {"a", "b"})); };
    CHECK(message_of<std::runtime_error>(none) == "no kernel for b");
}
