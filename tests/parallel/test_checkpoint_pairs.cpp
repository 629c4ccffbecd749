// Weights and run state as one unit: the result of loading after a save that was interrupted anywhere, and from mixed
// or damaged files. Files of older versions: test_checkpoint_versions.cpp.
#include <cstring>

#include "lockstep/ops/sgd.h"
#include "lockstep/parallel/data/safetensors.h"
#include "lockstep/runtime/error.h"
#include "lockstep/tests/fixtures/checkpoints.h"
#include "lockstep/tests/fixtures/environment.h"
#include "lockstep/tests/fixtures/files.h"
#include "lockstep/tests/fixtures/messages.h"

using namespace lockstep;
using namespace lockstep::test;

namespace {

const bool eight_devices = lockstep::test::set_cpu_devices(8);

struct Wide {
    Linear first{40, 70}, second{70, 30};
    LOCKSTEP_MEMBERS(first, second)
    Tensor forward(const Tensor& x) { return second(relu(first(x))); }
};

}  // namespace

TEST_CASE("a save interrupted anywhere leaves the old pair or the new one, and the next save cleans up") {
    const SavedFiles old = saved_after(2), fresh = saved_after(5);
    struct Cut {
        std::string name, weights, state, next;
        std::uint64_t expected;
    };
    const std::string half = fresh.state.substr(0, fresh.state.size() / 2);
    for (const Cut& cut :
         std::vector<Cut>{{"before anything", old.weights, old.state, "", 2},
                          {"a pending state", old.weights, old.state, fresh.state, 2},
                          {"new weights and a pending state", fresh.weights, old.state, fresh.state, 5},
                          {"the first save", fresh.weights, "", fresh.state, 5},
                          {"a complete save", fresh.weights, fresh.state, "", 5},
                          {"garbage waits", old.weights, old.state, half, 2}}) {
        CAPTURE(cut.name);
        const TemporaryDirectory directory;
        put_bytes(directory / "net", cut.weights);
        if (!cut.state.empty()) put_bytes(directory / "net.resume", cut.state);
        if (!cut.next.empty()) put_bytes(directory / "net.resume.next", cut.next);
        put_bytes(directory / "net.5-1.tmp", half);
        put_bytes(directory / "net.resume.5-2.tmp", half);
        put_bytes(directory / "net.resume.next.5-2.tmp", half);
        CHECK(steps_loaded(directory) == cut.expected);
        {  // the calls one after another also detect it
            SavedTraining training(3);
            load(training.model(), directory / "net");
            CHECK(load_resume(training.model(), training.sgd(), directory / "net").steps == cut.expected);
        }
        SavedTraining training(3);
        training.to(9);
        training.save(directory / "net");
        CHECK(steps_loaded(directory) == 9);
        CHECK(directory.names() == std::set<std::string>{"net", "net.resume"});
    }
}

TEST_CASE("a failed save after an interrupted one leaves the existing pair") {
    const SavedFiles old = saved_after(2), fresh = saved_after(5);
    const TemporaryDirectory directory;
    put_bytes(directory / "net", fresh.weights);
    put_bytes(directory / "net.resume", old.state);
    put_bytes(directory / "net.resume.next", fresh.state);
    SavedTraining training(3);
    training.to(9);
    {
        const FileSizeLimit full(300);
        CHECK_THROWS_AS(training.save(directory / "net"), DataError);
    }
    CHECK(steps_loaded(directory) == 5);
    CHECK(directory.names() == std::set<std::string>{"net", "net.resume"});
}

TEST_CASE("weights without a state are loaded without one, even if the state of other weights is pending") {
    const SavedFiles one = saved_after(2), other = saved_after(5);
    const TemporaryDirectory directory;
    put_bytes(directory / "net", one.weights);
    SavedTraining training(3);
    CHECK_FALSE(training.load(directory / "net"));
    CHECK((training.weights() == one.values));
    put_bytes(directory / "net.resume.next", other.state);
    CHECK_FALSE(training.load(directory / "net"));
    CHECK_THROWS_WITH(load_resume(training.model(), training.sgd(), directory / "net"), contains("no state of a run"));
    save(training.model(), directory / "net");
    CHECK(directory.names() == std::set<std::string>{"net"});
}

TEST_CASE("weights and state of different runs or saves never form a pair, and nothing is loaded") {
    const SavedFiles one = saved_after(4), later = saved_after(5), other = saved_after(4, 8);
    for (const SavedFiles* state : {&later, &other}) {
        const TemporaryDirectory directory;
        put_bytes(directory / "net", one.weights);
        put_bytes(directory / "net.resume", state->state);
        SavedTraining training(9);
        const auto before = training.weights();
        CHECK_THROWS_AS(training.load(directory / "net"), DataError);
        CHECK_THROWS_WITH(training.load(directory / "net"), contains("net.resume: ") && contains("does not belong to"));
        CHECK((training.weights() == before));
        CHECK(training.model().engine().steps_done() == 0);
        load(training.model(), directory / "net");
        CHECK_THROWS_WITH(load_resume(training.model(), training.sgd(), directory / "net"),
                          contains("does not belong to"));
        // The model's weights count, not the current content of the file.
        put_bytes(directory / "net", state->weights);
        CHECK_THROWS_WITH(load_resume(training.model(), training.sgd(), directory / "net"),
                          contains("does not belong to"));
    }
}

TEST_CASE("a flipped bit in the weights is detected if their state is next to them") {
    const SavedFiles good = saved_after(4);
    const std::size_t data = 8 + static_cast<unsigned char>(good.weights[0]) +
                             256 * static_cast<std::size_t>(static_cast<unsigned char>(good.weights[1]));
    const TemporaryDirectory directory;
    put_bytes(directory / "net.resume", good.state);
    SavedTraining training(9);
    for (std::size_t at = data; at < good.weights.size(); at += 7) {
        std::string bytes = good.weights;
        bytes[at] = static_cast<char>(bytes[at] ^ (1 << at % 8));
        put_bytes(directory / "net", bytes);
        CHECK_THROWS_AS(training.load(directory / "net"), DataError);
    }
    put_bytes(directory / "net", good.weights);
    CHECK(training.load(directory / "net"));
}

TEST_CASE("any changed byte of a state is detected") {
    const SavedFiles good = saved_after(4);
    const TemporaryDirectory directory;
    put_bytes(directory / "net", good.weights);
    SavedTraining training(9);
    load(training.model(), directory / "net");
    int accepted = 0;
    const auto attempt = [&](const std::string& bytes) {
        if (bytes == good.state) return;
        put_bytes(directory / "net.resume", bytes);
        try {
            load_resume(training.model(), training.sgd(), directory / "net");
            ++accepted;
        } catch (const DataError&) {
        }
    };
    const int mutations = number_from("LOCKSTEP_RESUME_MUTATIONS", 3000);
    Vandal vandal(static_cast<std::uint32_t>(number_from("LOCKSTEP_SAVE_SEED", 1)));
    for (int i = 0; i < mutations; ++i) {
        std::string bytes = good.state;
        if (i % 2 == 0) {
            bytes = vandal.damage(bytes);
        } else {
            const std::size_t bit = i < static_cast<int>(16 * bytes.size()) ? static_cast<std::size_t>(i) / 2
                                                                            : vandal.below(8 * bytes.size());
            bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
        }
        attempt(bytes);
    }
    CHECK(accepted == 0);
    put_bytes(directory / "net.resume", good.state);
    CHECK(load_resume(training.model(), training.sgd(), directory / "net").steps == 4);
    if (std::getenv("LOCKSTEP_RESUME_MUTATIONS"))
        std::printf("%d mutations of %zu bytes, %d accepted\n", mutations, good.state.size(), accepted);
}

TEST_CASE("custom fields are restored unchanged") {
    const TemporaryDirectory directory;
    SavedTraining training(3);
    training.step();
    RunState state = training.state();
    state.fields = {{"best", "0.987"}, {"", "empty name"}, {"ünï", "\"quotes\" and\nlines \xe2\x82\xac"}, {"none", ""}};
    save_checkpoint(training.model(), training.sgd(), state, directory / "net");
    const auto run = training.load(directory / "net");
    REQUIRE(run);
    CHECK(run->fields == state.fields);
    state.fields = {{"bytes", "\xff\xfe"}};
    CHECK_THROWS_AS(save_checkpoint(training.model(), training.sgd(), state, directory / "net"), InvalidArgument);
    CHECK_THROWS_WITH(save_checkpoint(training.model(), training.sgd(), state, directory / "net"), contains("UTF-8"));
    CHECK(training.load(directory / "net"));
    CHECK(directory.names() == std::set<std::string>{"net", "net.resume"});
}

TEST_CASE("an impossible state is not saved") {
    const TemporaryDirectory directory;
    SavedTraining training(3);
    for (const RunState& state :
         {RunState{.epoch = ~std::uint64_t{0}}, RunState{.batch = -1, .batch_size = 4}, RunState{.batch = 1},
          RunState{.batch_size = -4}, RunState{.steps = std::uint64_t{1} << 63}}) {
        CHECK_THROWS_AS(save_checkpoint(training.model(), training.sgd(), state, directory / "net"), InvalidArgument);
        CHECK_THROWS_AS(save_resume(training.model(), training.sgd(), state, directory / "net"), InvalidArgument);
    }
    CHECK(directory.names().empty());
}

TEST_CASE("a checkpoint that is a symbolic link is saved to its target and found there, with its state") {
    const TemporaryDirectory directory;
    std::filesystem::create_directory(directory / "runs");
    std::filesystem::create_symlink("runs/7", directory / "latest");
    SavedTraining training(3);
    training.to(2);
    training.save(directory / "latest");
    CHECK(std::filesystem::is_symlink(directory / "latest"));
    CHECK(directory.names() == std::set<std::string>{"latest", "runs"});
    CHECK(resume_path(directory / "latest") == directory / "runs/7.resume");
    for (const char* name : {"latest", "runs/7"}) {
        SavedTraining other(3);
        const auto run = other.load(directory / name);
        REQUIRE(run);
        CHECK(run->steps == 2);
    }
    // A symbolic link to a state elsewhere remains.
    std::filesystem::create_directory(directory / "states");
    std::filesystem::rename(directory / "runs/7.resume", directory / "states/7");
    std::filesystem::create_symlink("../states/7", directory / "runs/7.resume");
    training.step();
    training.save(directory / "latest");
    CHECK(std::filesystem::is_symlink(directory / "runs/7.resume"));
    CHECK(std::filesystem::is_regular_file(directory / "states/7"));
    CHECK(SavedTraining(3).load(directory / "latest")->steps == 3);
}

TEST_CASE("a checkpoint that only its owner may read stays so, and its state is no more accessible") {
    const TemporaryDirectory directory;
    const auto mode = [&](const char* name) {
        return static_cast<unsigned>(std::filesystem::status(directory / name).permissions());
    };
    SavedTraining training(3);
    save(training.model(), directory / "net");
    std::filesystem::permissions(directory / "net", std::filesystem::perms(0600));
    training.step();
    training.save(directory / "net");
    CHECK(mode("net") == 0600);
    CHECK(mode("net.resume") == 0600);
    std::filesystem::permissions(directory / "net.resume", std::filesystem::perms(0640));
    training.save(directory / "net");
    CHECK(mode("net") == 0600);
    CHECK(mode("net.resume") == 0640);
}

TEST_CASE("a path where a checkpoint cannot be saved is rejected in advance") {
    const TemporaryDirectory directory;
    for (const char* name : {"one.resume", "two.resume.next", "three"})
        std::filesystem::create_directories(directory / name / "x");
    for (const char* name : {"one", "two", "three"}) {
        CAPTURE(name);
        CHECK_THROWS_AS(CheckpointLock(directory / name), InvalidArgument);
        CHECK_THROWS_WITH(CheckpointLock(directory / name), contains("it is a directory"));
    }
    SavedTraining training(3);
    const auto names = directory.names();
    for (const char* name : {"one", "two"}) CHECK_THROWS_AS(training.save(directory / name), Error);
    CHECK(directory.names() == names);
    const CheckpointLock held(directory / "four");
    training.save(directory / "four");  // this process holds it
    CHECK(training.load(directory / "four"));
}

TEST_CASE("momentum is restored to its slices if the first bucket has another size") {
    const TemporaryDirectory directory;
    const auto net = directory / "net";
    const Devices three{Device::cpu(0), Device::cpu(1), Device::cpu(2)};
    const DataParallelOptions options{.shards = 3,
                                      .reduction = ReductionMode::slice_wise,
                                      .seed = 2,
                                      .bucket_bytes = 20'000,
                                      .first_bucket_bytes = 3000};
    manual_seed(1);
    const Wide start;
    const Tensor x = Tensor::randn({9, 40}), y = Tensor::randn({9, 30});
    const auto train = [&](DataParallel<Wide>& model, SGD& sgd, int steps) {
        for (int i = 0; i < steps; ++i) model.step(sgd, x, y, mse_loss);
        model.synchronize();
    };
    DataParallel whole(Wide(start), three, options);
    SGD whole_sgd(whole, SavedTraining::rates);
    train(whole, whole_sgd, 6);
    {
        DataParallel model(Wide(start), three, options);
        SGD sgd(model, SavedTraining::rates);
        train(model, sgd, 3);
        save_checkpoint(model, sgd, {.steps = 3}, net);
    }
    for (const bool same_cut : {true, false}) {
        DataParallelOptions other = options;
        if (!same_cut) other.first_bucket_bytes = 0;
        DataParallel model(Wide{}, three, other);
        SGD sgd(model, {});
        REQUIRE(load_checkpoint(model, sgd, net));
        train(model, sgd, 3);
        CHECK(model->first.weight->to_vector<float>() == whole->first.weight->to_vector<float>());
        CHECK(model->second.weight->to_vector<float>() == whole->second.weight->to_vector<float>());
    }
}
