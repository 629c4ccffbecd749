// Invalid numbers in a state with a valid checksum.
#include <cmath>
#include <nlohmann/json.hpp>

#include "lockstep/ops/lr_schedules.h"
#include "lockstep/parallel/data/atomic_file.h"
#include "lockstep/parallel/data/files/sealed_file.h"
#include "lockstep/parallel/data/safetensors.h"
#include "lockstep/parallel/loader.h"
#include "lockstep/parallel/run_hooks.h"
#include "lockstep/runtime/error.h"
#include "lockstep/tests/fixtures/checkpoints.h"
#include "lockstep/tests/fixtures/files.h"
#include "lockstep/tests/fixtures/messages.h"

using namespace lockstep;
using namespace lockstep::test;
using nlohmann::json;

namespace {

/// The state of `checkpoint`, changed and sealed again.
template <class Change>
void change_state(const std::filesystem::path& checkpoint, Change change) {
    const std::filesystem::path path = resume_path(checkpoint);
    const SafetensorsFile file(path);
    json state = json::parse(file.metadata().at("lockstep"));
    change(state);
    std::vector<std::vector<std::byte>> bytes;
    bytes.reserve(file.entries().size());
    std::vector<SafetensorsTensor> tensors;
    for (const SafetensorsEntry& entry : file.entries()) {
        file.read(entry.name, bytes.emplace_back(entry.bytes));
        tensors.push_back({entry.name, entry.dtype, entry.shape, bytes.back().data()});
    }
    AtomicFile sealed(path);
    internal::write_sealed(sealed, path, tensors, {{"lockstep", state.dump()}});
    sealed.commit();
}

/// All positions of numbers in it.
void find_numbers(const json& value, const json::json_pointer& at, std::vector<json::json_pointer>& found) {
    if (value.is_number()) found.push_back(at);
    if (value.is_structured())
        for (const auto& [name, inner] : value.items())
            find_numbers(inner, value.is_array() ? at / static_cast<std::size_t>(std::stoul(name)) : at / name, found);
}

}  // namespace

TEST_CASE("every impossible number in a state is rejected, and nothing is loaded") {
    const SavedFiles good = saved_after(4);
    const TemporaryDirectory directory;
    const auto net = directory / "net";
    const auto put = [&](const auto& change) {
        put_bytes(net, good.weights);
        put_bytes(directory / "net.resume", good.state);
        change_state(net, change);
    };
    put([](json&) {});
    CHECK(steps_loaded(directory) == 4);

    std::vector<json::json_pointer> numbers;
    put([&](json& state) { find_numbers(state, json::json_pointer(), numbers); });
    CHECK(numbers.size() >= 12);
    SavedTraining training(9);
    const auto before = training.weights();
    const double lr = training.sgd().lr();
    for (const json::json_pointer& at : numbers) {
        for (const json& value : {json(nullptr), json("1"), json::array(), json::object({{"a", 1}})}) {
            CAPTURE(at.to_string(), value.dump());
            put([&](json& state) { state[at] = value; });
            CHECK_THROWS_AS(training.load(net), DataError);
            CHECK_THROWS_WITH(training.load(net), contains("net.resume"));
        }
        const std::string name = at.to_string();
        if (name.starts_with("/optimizer/groups")) continue;
        for (const json& value : {json(-1), json(1.5), json(1e300), json(-0.0), json(true)}) {
            CAPTURE(name, value.dump());
            put([&](json& state) { state[at] = value; });
            CHECK_THROWS_AS(training.load(net), DataError);
            CHECK_THROWS_WITH(training.load(net), contains(value.dump()) && contains(at.back()));
        }
        if (name == "/seed") continue;
        for (const json& value : {json(~std::uint64_t{0}), json((std::uint64_t{1} << 62) + 1)}) {
            CAPTURE(name, value.dump());
            put([&](json& state) { state[at] = value; });
            CHECK_THROWS_AS(training.load(net), DataError);
        }
    }
    put([](json& state) {
        state["batch"] = std::int64_t{1} << 40;
        state["batch_size"] = std::int64_t{1} << 40;
    });
    CHECK_THROWS_AS(training.load(net), DataError);
    CHECK_THROWS_WITH(training.load(net), contains("out of range"));
    CHECK((training.weights() == before));
    CHECK(training.sgd().lr() == lr);
}

TEST_CASE("a schedule catches up with its run, but not with a number that no run reaches") {
    const TemporaryDirectory directory;
    const auto net = directory / "net";
    const auto rate_after = [&](std::uint64_t epoch, std::uint64_t steps, ScheduleBy by) {
        const SavedFiles good = saved_after(4);
        put_bytes(net, good.weights);
        put_bytes(directory / "net.resume", good.state);
        change_state(net, [&](json& state) {
            state["epoch"] = epoch;
            state["steps"] = steps;
            state["batch"] = 0;
        });
        DataParallel model(Mlp<4, 8, 3>(), {Device::cpu(0)});
        SGD sgd(model, SavedTraining::rates);
        Loader loader(model, TensorDataset(Tensor::zeros({5, 4}), Tensor::zeros({5, 3})), {.batch_size = 5});
        Runner runner(model, sgd, loader, mse_loss, {.epochs = 1});
        runner.resume_from(load_checkpoint(model, sgd, net).value());
        sgd.set_lr(1);
        StepLR schedule(sgd, 2, 0.5);
        runner.add(FollowSchedule(schedule, by));
        runner.run();
        return sgd.lr();
    };
    CHECK(rate_after(5, 5, ScheduleBy::epoch) == 0.25);
    CHECK(rate_after(5, 5, ScheduleBy::step) == 1);  // no step follows
    for (const int power : {27, 40, 62}) {
        const std::uint64_t many = std::uint64_t{1} << power;
        CAPTURE(many);
        CHECK_THROWS_AS(rate_after(many, 5, ScheduleBy::epoch), DataError);
        CHECK_THROWS_WITH(rate_after(many, 5, ScheduleBy::epoch),
                          contains("FollowSchedule 'schedule': the run has made " + std::to_string(many) +
                                   " epochs and the schedule 0 steps; expected at most 100000000 steps to catch up"));
        CHECK_THROWS_WITH(rate_after(0, many, ScheduleBy::step),
                          contains("the run has made " + std::to_string(many) + " steps and the schedule 0 steps"));
    }
}

TEST_CASE("fields hold numbers exactly, in any locale, and as earlier versions wrote them") {
    const auto read = [](const std::string& text) {
        RunState run;
        run.fields["a"] = text;
        return *number_in(run, "a");
    };
    for (const double value : {0.0, -0.0, 1.5, -0.1, 1e-320, 1.7976931348623157e308, 65536.0, HUGE_VAL, -HUGE_VAL}) {
        CHECK(read(field_of(value)) == value);
        CHECK(std::signbit(read(field_of(value))) == std::signbit(value));
    }
    CHECK(std::isnan(read(field_of(std::nan("")))));
    CHECK(field_of(1.5) == "0x1.8p+0");
    CHECK(field_of(-0.25) == "-0x1p-2");
    CHECK(read("0x1.8p-1") == 0.75);
    CHECK(read("0x1,8p-1") == 0.75);  // under de_DE
    CHECK(read("-0x1,8p+3") == -12);
    CHECK(read("0,5") == 0.5);
    CHECK(read("inf") == HUGE_VAL);
    CHECK(read("-inf") == -HUGE_VAL);
    for (const std::string text :
         {"", "x", "-", "0x", "--1", "0x-1p0", "1.5 ", " 1.5", "1.5x", "1,2,3", "0x1.8p-1p", "1e999"}) {
        CAPTURE(text);
        CHECK_THROWS_AS(read(text), DataError);
        CHECK_THROWS_WITH(read(text), contains("the checkpoint's field 'a' is '" + text + "'"));
    }
    CHECK_FALSE(number_in(RunState{}, "a").has_value());
}
