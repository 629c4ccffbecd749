// The order of real training: every wait of a recorded run is removed in turn, and the reports of the ordering checker
// are compared with the transitive closure of the order, computed independently.
#include <fmt/format.h>

#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/layers.h"
#include "lockstep/ops/sgd.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/loader.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/order_checker.h"
#include "lockstep/runtime/random.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/eight_devices.h"
#include "lockstep/tests/reference/order_oracle.h"

using namespace lockstep;

namespace {

/// Every kind of communication that a step has: gradients, statistics of all shards, masks, buffers, the status.
struct Net {
    Linear fc1{4, 6};
    BatchNorm2d norm{6};
    Dropout drop{0.5};
    Linear fc2{6, 3};
    LOCKSTEP_MEMBERS(fc1, norm, drop, fc2)
    Tensor forward(const Tensor& x) {
        const Tensor hidden = norm(fc1(x).reshape({-1, 6, 1, 1})).flatten(1);
        return log_softmax(fc2(drop(relu(hidden))), 1);
    }
};

constexpr std::int64_t rows = 16;

std::pair<Tensor, Tensor> batch_of(std::int64_t count) {
    std::vector<std::int64_t> classes;
    for (std::int64_t i = 0; i < count; ++i) classes.push_back(i % 3);
    return {Tensor::randn({count, 4}), Tensor::from(classes, {count})};
}

struct Rows {
    Tensor features, classes;
    std::int64_t size() const { return features.size(0); }
    std::tuple<Tensor, Tensor> get(std::int64_t row) const {
        return {features.slice(0, row, row + 1).reshape({4}), classes.slice(0, row, row + 1).reshape({})};
    }
};

class Recording {
public:
    Recording() { order_check::start_recording(); }
    ~Recording() {
        if (!taken_) (void)order_check::take_recording();
    }
    Recording(const Recording&) = delete;
    Recording& operator=(const Recording&) = delete;
    std::vector<OrderEntry> take() {
        taken_ = true;
        return order_check::take_recording();
    }

private:
    bool taken_ = false;
};

/// Minimum share of needed waits in a log. The others are implied by a chain of waits through other streams.
constexpr double min_needed = 0.15;

/// Removes every wait in turn.
void check_log(const std::string& title, const std::vector<OrderEntry>& log) {
    const reference::WaitRemoval result = reference::remove_every_wait(log);
    INFO(title << ", " << log.size() << " entries");
    CHECK(result.disagreement == std::string());
    REQUIRE(result.waits > 0);
    CHECK(static_cast<double>(result.needed) >= min_needed * static_cast<double>(result.waits));

    std::map<std::string, int> redundant;
    for (const std::size_t position : result.redundant) {
        std::size_t next = position + 1;  // the stream's work after the wait
        while (next < log.size() &&
               !(log[next].stream == log[position].stream && log[next].kind == OrderEntry::Kind::work))
            ++next;
        ++redundant[fmt::format("{} before {}", log[position].stream_name, next < log.size() ? log[next].what : "end")];
    }
    fmt::print("{}: {} entries, {} of {} waits are needed\n", title, log.size(), result.needed, result.waits);
    for (const auto& [what, count] : redundant) fmt::print("  not needed: {} x {}\n", count, what);
}

struct Setting {
    int devices, shards;
    ReductionMode reduction;
    std::string text() const {
        return fmt::format("{} devices, {} shards, {}", devices, shards,
                           reduction == ReductionMode::root ? "root" : "slice-wise");
    }
    DataParallel<Net> model() const {
        manual_seed(5);
        return DataParallel<Net>(Net{}, test::cpu_devices(devices), {.shards = shards, .reduction = reduction});
    }
};

const std::vector<Setting> settings{{2, 4, ReductionMode::root},
                                    {2, 4, ReductionMode::slice_wise},
                                    {3, 4, ReductionMode::slice_wise},
                                    {3, 8, ReductionMode::root}};

}  // namespace

TEST_CASE("checker and oracle agree on each removed wait of training steps") {
    for (const Setting& setting : settings) {
        Recording recording;
        {
            DataParallel<Net> model = setting.model();
            SGD sgd(model, {.lr = 0.1, .momentum = 0.9});
            const auto [x, y] = batch_of(rows);
            for (int i = 0; i < 2; ++i) model.step(sgd, x, y, nll_loss);
            model.synchronize();
        }
        check_log("steps on " + setting.text(), recording.take());
    }
}

TEST_CASE("checker and oracle agree on each removed wait of steps with shards of two lengths, and of reading a loss") {
    const Setting setting{3, 8, ReductionMode::slice_wise};
    DataParallel<Net> model = setting.model();
    SGD sgd(model, {.lr = 0.1, .momentum = 0.9});
    const auto [x, y] = batch_of(rows);
    const auto [short_x, short_y] = batch_of(20);  // shards of 3 rows, the last of 2
    Recording recording;
    model.step(sgd, x, y, nll_loss);
    CHECK(model.step(sgd, short_x, short_y, nll_loss).item() > 0);
    model.synchronize();
    check_log("two lengths on " + setting.text(), recording.take());
}

TEST_CASE("checker and oracle agree on each removed wait of the manual step") {
    for (const Setting& setting : {settings[1], settings[3]}) {
        DataParallel<Net> model = setting.model();
        SGD sgd(model, {.lr = 0.1, .momentum = 0.9});
        const auto [x, y] = batch_of(rows);
        Recording recording;
        for (int i = 0; i < 2; ++i) {
            sgd.zero_grad();
            const Tensor output = model(x);
            nll_loss(output, y.to(output.device())).value().backward();
            sgd.step();
        }
        model.synchronize();
        check_log("manual step on " + setting.text(), recording.take());
    }
}

TEST_CASE("checker and oracle agree on each removed wait of training from a loader") {
    const Setting setting{2, 4, ReductionMode::root};
    DataParallel<Net> model = setting.model();
    SGD sgd(model, {.lr = 0.1, .momentum = 0.9});
    auto [features, classes] = batch_of(40);  // the last batch has 8 rows
    Loader loader(model, Rows{features, classes}, {.batch_size = rows, .shuffle = true, .seed = 1, .workers = 0});
    Recording recording;
    for (auto& [x, y] : loader.epoch(0)) model.step(sgd, x, y, nll_loss);
    model.synchronize();
    check_log("loader on " + setting.text(), recording.take());
}
