// The log of steps: records of steps on real devices, and results computed from spans made by hand.
#include <algorithm>
#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "lockstep/parallel/step_trace.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/step_log.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/eight_devices.h"
#include "lockstep/tests/fixtures/files.h"
#include "lockstep/tests/fixtures/training.h"

namespace ls = lockstep;
using namespace lockstep::test;
using ls::LoggedStep;
using ls::SpanKind;
using ls::StepSpan;
using ls::StepSplit;

namespace {

double now() {
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

StepSpan span(SpanKind kind, const char* stream, double begin, double end, bool collective = false) {
    return {kind, collective, stream, "", begin, end};
}

double end_of_backward(const LoggedStep& step, const std::string& stream) {
    double end = 0;
    for (const StepSpan& one : step.spans)
        if (one.stream == stream && one.kind == SpanKind::backward) end = std::max(end, one.end);
    return end;
}

const StepSpan& call_hook_backward(const LoggedStep& step, const std::string& stream) {
    return *std::find_if(step.spans.begin(), step.spans.end(),
                         [&](const StepSpan& one) { return one.stream == stream && one.name == "call_hook_backward"; });
}

/// On the first device.
double begin_of(const LoggedStep& step) {
    const auto first = std::find_if(step.spans.begin(), step.spans.end(),
                                    [](const StepSpan& one) { return one.stream == "cpu:0/compute0"; });
    return first->begin;
}

bool equal(double found, double expected) { return std::abs(found - expected) < 1e-9; }

}  // namespace

TEST_CASE("nothing is logged before logging is enabled or after it is disabled") {
    HookedTraining s;
    s.steps(2);
    CHECK(s.model.engine().step_log().empty());
    s.model.engine().log_steps(4);
    CHECK(s.model.engine().step_log().empty());
    s.steps(1);
    CHECK(s.model.engine().step_log().size() == 1);
    s.model.engine().log_steps(0);
    s.steps(1);
    CHECK(s.model.engine().step_log().empty());
    CHECK_THROWS_AS(s.model.engine().log_steps(-1), ls::InvalidArgument);
}

TEST_CASE("the last steps are kept in order, with spans within the time of their calls") {
    HookedTraining s;
    s.model.engine().log_steps(3);
    s.steps(4);
    const double before = now();
    s.steps(2);
    const double after = now();
    const auto steps = s.model.engine().step_log();
    REQUIRE(steps.size() == 3);
    for (std::size_t i = 0; i < steps.size(); ++i) {
        CHECK(steps[i].number == 3 + i);
        REQUIRE(!steps[i].spans.empty());
        CHECK(steps[i].arrivals.empty());
        CHECK(steps[i].slowest_rank == -1);
        for (const StepSpan& one : steps[i].spans) {
            CHECK(one.begin <= one.end);
            CHECK(!one.collective);
            // The accuracy of an event's time is the time until the host sees it.
            if (i > 0) CHECK((one.begin > before - 1 && one.end < after + 1));
        }
    }
    CHECK(ls::split_steps(steps).size() == 2);
}

TEST_CASE("spans of a stream do not overlap, and each kind is on its stream") {
    HookedTraining s;
    s.model.engine().log_steps(8);
    s.steps(8);
    std::map<std::string, double> reached;
    for (const LoggedStep& step : s.model.engine().step_log()) {
        std::map<SpanKind, int> kinds;
        std::map<std::pair<std::string, SpanKind>, std::pair<double, double>> range;
        for (const StepSpan& one : step.spans) {
            ++kinds[one.kind];
            if (const bool computing = one.stream.find("/compute") != std::string::npos)
                CHECK(computing ==
                      (one.kind == SpanKind::input || one.kind == SpanKind::forward || one.kind == SpanKind::backward));
            else
                CHECK((one.kind == SpanKind::communication || one.kind == SpanKind::update ||
                       one.kind == SpanKind::commit));
            if (one.kind == SpanKind::update) CHECK(one.name == "sgd_update");
            const auto [where, fresh] = range.try_emplace({one.stream, one.kind}, one.begin, one.end);
            if (!fresh)
                where->second = {std::min(where->second.first, one.begin), std::max(where->second.second, one.end)};
        }
        CHECK(kinds[SpanKind::input] == 4);    // x and y for two shards
        CHECK(kinds[SpanKind::forward] >= 4);  // linear and call_hook, each on two devices
        CHECK(kinds[SpanKind::backward] >= 2);
        CHECK(kinds[SpanKind::communication] >= 2);  // a sum, and the copy of the updated values
        CHECK(kinds[SpanKind::update] == 1);
        for (const char* lane : {"cpu:0/compute0", "cpu:1/compute0"}) {
            CHECK(range.at({lane, SpanKind::input}).second <= range.at({lane, SpanKind::forward}).first);
            CHECK(range.at({lane, SpanKind::forward}).second <= range.at({lane, SpanKind::backward}).first);
        }
        // Per stream in order of time; a stream's spans of one phase are enqueued in order.
        for (const char* lane : {"cpu:0/compute0", "cpu:1/compute0"})
            for (const StepSpan& one : step.spans)
                if (one.stream == lane) {
                    CHECK(one.begin >= reached[lane]);
                    reached[lane] = one.end;
                }
    }
}

TEST_CASE("the manual step: a step lasts from the first forward to the update") {
    HookedTraining s;
    s.model.engine().log_steps(8);
    for (int step = 0; step < 3; ++step) {
        s.sgd.zero_grad();
        for (int part = 0; part <= step; ++part) ls::sum(s.model(s.x)).backward();
        {
            const ls::NoGrad no_grad;
            (void)s.model(s.x);  // not a part of a step
        }
        s.sgd.step();
    }
    const auto steps = s.model.engine().step_log();
    REQUIRE(steps.size() == 3);
    for (std::size_t i = 0; i < steps.size(); ++i) {
        std::map<SpanKind, std::size_t> kinds;
        for (const StepSpan& one : steps[i].spans) ++kinds[one.kind];
        CHECK(steps[i].number == i);
        CHECK(kinds[SpanKind::input] == 2 * (i + 1));
        CHECK(kinds[SpanKind::forward] % (i + 1) == 0);
        CHECK(kinds[SpanKind::forward] / (i + 1) >= 4);
        CHECK(kinds[SpanKind::backward] / (i + 1) >= 2);
        CHECK(kinds[SpanKind::update] == 1);
    }
    CHECK(ls::split_steps(steps).size() == 2);
    CHECK(ls::split_steps(steps)[0].backward > 0);
}

TEST_CASE("a slow device is visible in backward, and the other one waits for it") {
    HookedTraining s;
    s.steps(2);
    s.model.engine().log_steps(4);
    kernel_hook().backward = [](int shard) {
        if (shard == 1) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    };
    s.steps(4);
    const auto steps = s.model.engine().step_log();
    const auto splits = ls::split_steps(steps);
    REQUIRE(splits.size() == 3);
    for (std::size_t i = 0; i < splits.size(); ++i) {
        const StepSplit& split = splits[i];
        CHECK(split.backward >= 10);  // mean of two streams, one of which sleeps
        CHECK(split.step >= 20);
        // While the other device sleeps, from the end of this device's backward to its next step. A busy machine may
        // delay the first device as long.
        const StepSpan sleep = call_hook_backward(steps[i], "cpu:1/compute0");
        const double begin = std::max(sleep.begin, end_of_backward(steps[i], "cpu:0/compute0")),
                     end = std::min(sleep.end, begin_of(steps[i + 1]));
        CHECK(sleep.end - sleep.begin >= 20);
        CHECK(split.slowest >= (end - begin) / 2 - 1e-6);
        CHECK(equal(
            split.input + split.forward + split.backward + split.slowest + split.exposed + split.update + split.rest,
            split.step));
    }
}

TEST_CASE("one stream: communication is exposed while nothing computes") {
    const auto step_at = [](std::uint64_t number, double t) {
        LoggedStep step;
        step.number = number;
        step.spans = {
            span(SpanKind::input, "c", t + 0, t + 1),         span(SpanKind::forward, "c", t + 1, t + 4),
            span(SpanKind::backward, "c", t + 4, t + 6),      span(SpanKind::backward, "c", t + 6, t + 9),
            span(SpanKind::communication, "x", t + 5, t + 8), span(SpanKind::communication, "x", t + 8, t + 12),
            span(SpanKind::update, "u", t + 11.5, t + 13)};
        return step;
    };
    // The next step begins 15 after this one: nothing happens in the 2 ms after the update.
    const auto splits = ls::split_steps({step_at(0, 100), step_at(1, 115), step_at(3, 130)});
    REQUIRE(splits.size() == 1);  // step 2 is missing, so the end of step 1 is unknown
    const StepSplit& split = splits[0];
    CHECK(equal(split.step, 15));
    CHECK(equal(split.forward, 3));
    CHECK(equal(split.backward, 5));
    CHECK(equal(split.communication, 7));
    CHECK(equal(split.overlap, 4));
    CHECK(equal(split.exposed, 3));  // 9 to 12
    CHECK(equal(split.updating, 1.5));
    CHECK(equal(split.update, 1));  // 12 to 13: the half before that was hidden by communication
    CHECK(equal(split.slowest, 0));
    CHECK(equal(split.input, 3));  // 1 of copying, 2 of waiting
    CHECK(equal(split.rest, 0));
}

TEST_CASE("time in a collective counts as waiting for the slowest rank until that rank arrives") {
    LoggedStep step;
    step.spans = {span(SpanKind::forward, "c", 0, 2), span(SpanKind::communication, "x", 2, 5, true),
                  span(SpanKind::backward, "c", 6, 8), span(SpanKind::communication, "x", 7, 9, true)};
    step.arrivals = {{2, 4.5, 1}, {7, 7, 0}};
    LoggedStep next;
    next.number = 1;
    next.spans = {span(SpanKind::forward, "c", 10, 11)};
    const auto splits = ls::split_steps({step, next});
    REQUIRE(splits.size() == 1);
    CHECK(equal(splits[0].slowest, 2.5));
    CHECK(equal(splits[0].in_collectives, 2.5));
    CHECK(equal(splits[0].exposed, 0.5 + 1));
    CHECK(equal(splits[0].rest, 1));   // 5 to 6
    CHECK(equal(splits[0].input, 1));  // 9 to 10
    CHECK(equal(splits[0].overlap, 1));
}

TEST_CASE("two streams: figures are means over both, and one waits for the other") {
    LoggedStep step;
    step.spans = {span(SpanKind::forward, "a", 0, 2), span(SpanKind::forward, "b", 0, 3),
                  span(SpanKind::backward, "a", 3, 5), span(SpanKind::backward, "b", 3, 6),
                  span(SpanKind::communication, "m", 5.5, 7)};
    LoggedStep next;
    next.number = 1;
    next.spans = {span(SpanKind::forward, "a", 7, 8), span(SpanKind::forward, "b", 7.5, 8)};
    const auto splits = ls::split_steps({step, next});
    REQUIRE(splits.size() == 1);
    CHECK(equal(splits[0].step, (7 + 7.5) / 2));
    CHECK(equal(splits[0].forward, 2.5));
    CHECK(equal(splits[0].backward, 2.5));
    // a waits from 2 to 3 and from 5 to 6 for b; b from 7 to 7.5 for a, which is a step ahead.
    CHECK(equal(splits[0].slowest, (2 + 0.5) / 2));
    CHECK(equal(splits[0].exposed, (1 + 1) / 2.0));
    CHECK(equal(splits[0].overlap, 0.5));
}

TEST_CASE("a trace has the spans of every stream, its steps, and the ranks that were waited for") {
    LoggedStep first{
        7,
        {span(SpanKind::forward, "cpu:0/compute0", 10, 12), span(SpanKind::backward, "cpu:1/compute0", 11, 15)},
        {},
        -1,
        0};
    first.spans[0].name = "conv2d";
    first.spans[1].name = "\"quoted\" \xff";
    LoggedStep second{
        8, {span(SpanKind::communication, "cpu:0/communication", 20, 24, true)}, {{20.5, 21.25, 3}}, 3, 0.75};
    const TemporaryDirectory place;
    ls::write_trace(place / "trace.json", {ls::trace_events({first, second}, 2), ls::trace_events({}, 5), ""});
    const nlohmann::json events = nlohmann::json::parse(get_bytes(place / "trace.json"))["traceEvents"];
    std::map<int, std::string> tracks;
    std::map<std::string, nlohmann::json> spans;
    for (const nlohmann::json& event : events) {
        if (event["name"] == "thread_name" && event["pid"] == 2) tracks[event["tid"]] = event["args"]["name"];
        if (event["ph"] == "X") spans[event["name"]] = event;
    }
    CHECK(spans.size() == 5);
    const auto is = [&](const std::string& name, const std::string& track, const std::string& category, double begin,
                        double length, int step) {
        INFO(name);
        REQUIRE(spans.contains(name));
        const nlohmann::json& event = spans[name];
        CHECK(event["pid"] == 2);
        CHECK(tracks[event["tid"]] == track);
        CHECK(event["cat"] == category);
        CHECK(equal(event["ts"], begin));
        CHECK(equal(event["dur"], length));
        CHECK(event["args"]["step"] == step);
    };
    is("conv2d", "cpu:0/compute0", "forward", 10'000, 2'000, 7);
    is("\"quoted\" \xef\xbf\xbd", "cpu:1/compute0", "backward", 11'000, 4'000, 7);
    is("step 7", "steps", "step", 10'000, 5'000, 7);
    is("", "cpu:0/communication", "communication", 20'000, 4'000, 8);
    is("step 8", "steps", "step", 20'000, 4'000, 8);
    CHECK(spans[""]["args"]["last rank"] == 3);
    CHECK(equal(spans[""]["args"]["waited ms"], 0.75));
    CHECK_THROWS_AS(ls::write_trace(place / "none" / "trace.json", {}), ls::InvalidArgument);
}

TEST_CASE("the trace of a training run has its operations") {
    HookedTraining s;
    s.model.engine().log_steps(2);
    s.steps(3);
    const nlohmann::json events = nlohmann::json::parse("[" + ls::trace_events(s.model.engine().step_log()) + "]");
    const auto count = [&](const std::string& name) {
        return std::count_if(events.begin(), events.end(),
                             [&](const nlohmann::json& event) { return event["name"] == name && event["ph"] == "X"; });
    };
    CHECK(count("call_hook_backward") > 0);
    CHECK(count("step 1") == 1);
    CHECK(count("step 2") == 1);
    CHECK(count("step 0") == 0);
}
