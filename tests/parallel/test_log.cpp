// Messages about what the library decides: levels, handlers, LOCKSTEP_LOG, and what is reported.
#include <cstdlib>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/ops/layers.h"
#include "lockstep/ops/loss.h"
#include "lockstep/ops/sgd.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/log.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/messages.h"

using namespace lockstep;

namespace {

struct Net {
    Linear fc{3, 2};
    LOCKSTEP_MEMBERS(fc)
    Tensor forward(const Tensor& x) { return fc(x); }
};

/// All messages of a level and above while it exists.
class Messages {
public:
    explicit Messages(LogLevel level)
        : handler_(set_log_handler([this](LogLevel of, const std::string& text) {
              const std::scoped_lock lock(mutex_);
              all_.emplace_back(of, text);
          })),
          level_(log_level()) {
        set_log_level(level);
    }
    ~Messages() {
        set_log_level(level_);
        set_log_handler(handler_);
    }
    Messages(const Messages&) = delete;
    Messages& operator=(const Messages&) = delete;

    int count(LogLevel level, const std::string& part) const {
        const std::scoped_lock lock(mutex_);
        int found = 0;
        for (const auto& [of, text] : all_) found += of == level && text.find(part) != std::string::npos ? 1 : 0;
        return found;
    }
    std::size_t size() const {
        const std::scoped_lock lock(mutex_);
        return all_.size();
    }

private:
    mutable std::mutex mutex_;
    std::vector<std::pair<LogLevel, std::string>> all_;
    LogHandler handler_;
    LogLevel level_;
};

void train(int steps, std::int64_t rows = 4) {
    DataParallel<Net> model(Net{}, {Device::cpu(0), Device::cpu(1)});
    SGD sgd(model, {.lr = 0.1});
    for (int i = 0; i < steps; ++i) (void)model.step(sgd, Tensor::zeros({rows, 3}), Tensor::zeros({rows, 2}), mse_loss);
    model.synchronize();
}

}  // namespace

TEST_CASE("by default only warnings are written") {
    const Messages messages(LogLevel::warning);
    CHECK(!logs(LogLevel::info));
    CHECK(logs(LogLevel::warning));
    CHECK(!logs(LogLevel::off));
    train(2);
    CHECK(messages.size() == 0);
    bool composed = false;
    log_message(LogLevel::info, [&] {
        composed = true;
        return std::string();
    });
    CHECK(!composed);
    warn("careful");
    CHECK(messages.count(LogLevel::warning, "careful") == 1);
}

TEST_CASE("info says what a wrapper consists of, and debug what is traced and allocated") {
    {
        const Messages messages(LogLevel::info);
        train(2);
        CHECK(messages.count(LogLevel::info, "rank 0 of 1: devices cpu:0, cpu:1, 2 shards, 8 parameters") == 1);
        CHECK(messages.size() == 1);
    }
    const Messages messages(LogLevel::debug);
    train(3);
    CHECK(messages.count(LogLevel::debug,
                         "traced forward and backward of a shard with inputs [f32 (2, 3), f32 (2, 2)]: ") == 1);
    CHECK(messages.count(LogLevel::debug, "2 parameters with gradients") == 1);
    CHECK(messages.count(LogLevel::debug, "traced a program again: forward and loss are unchanged") > 0);
    CHECK(messages.count(LogLevel::debug, "buckets for the gradients of 2 parameters: 1") == 1);
    const Tensor large = Tensor::zeros({3, 1000003}, DType::f32, Device::cpu(1));
    CHECK(messages.count(LogLevel::debug, "cpu:1: allocated ") > 0);
    // A batch of another size is another program.
    train(1, 8);
    CHECK(messages.count(LogLevel::debug, "[f32 (4, 3), f32 (4, 2)]") == 1);
}

TEST_CASE("off drops warnings, and an exception from the handler reaches only the caller of warn") {
    {
        const Messages messages(LogLevel::off);
        warn("not written");
        CHECK(messages.size() == 0);
    }
    const Messages messages(LogLevel::debug);
    const LogHandler before = set_log_handler(
        [](LogLevel, const std::string& text) { throw std::runtime_error("from the handler: " + text); });
    CHECK(test::message_of<std::runtime_error>([] { warn("x"); }) == "from the handler: x");
    CHECK_NOTHROW(write_log(LogLevel::warning, "a message that the handler refuses"));
    CHECK_NOTHROW(train(1));
    set_log_handler(before);
}

TEST_CASE("LOCKSTEP_LOG is the level at the start, and another word is an error", "[.environment]") {
    const char* const word = std::getenv("LOCKSTEP_LOG");
    REQUIRE(word != nullptr);
    if (std::string(word) == "loud") {
        CHECK(test::message_of<InvalidArgument>([] { (void)log_level(); }) ==
              "environment variable LOCKSTEP_LOG=loud is invalid; expected one of debug, info, warning, off");
        CHECK_THROWS_AS(train(1), InvalidArgument);
        set_log_level(LogLevel::info);
        CHECK(log_level() == LogLevel::info);
    } else {
        CHECK(std::string(word) == "debug");
        CHECK(log_level() == LogLevel::debug);
    }
}
