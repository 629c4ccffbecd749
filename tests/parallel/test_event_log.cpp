// The log of a run: the content of its event file and of its JSON lines, including after a resume and on a full disk.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "lockstep/parallel/data/image_file.h"
#include "lockstep/parallel/event_log.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/log.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/files.h"
#include "lockstep/tests/fixtures/messages.h"
#include "lockstep/tests/fixtures/waiting.h"

using namespace lockstep;
using namespace lockstep::test;
using nlohmann::json;

namespace {

std::vector<std::string> event_files(const TemporaryDirectory& place) {
    std::vector<std::string> files;
    for (const std::string& name : place.names())
        if (name.starts_with("events.out.tfevents.")) files.push_back(name);
    return files;
}

std::vector<ProtobufFields> events_of(const TemporaryDirectory& place, std::size_t file = 0) {
    std::vector<ProtobufFields> events;
    for (const std::string& record : read_records(get_bytes(place / event_files(place).at(file))))
        events.emplace_back(record);
    return events;
}

std::vector<json> lines_of(const TemporaryDirectory& place) {
    std::vector<json> lines;
    std::istringstream text(get_bytes(place / "log.jsonl"));
    for (std::string line; std::getline(text, line);) lines.push_back(json::parse(line));
    return lines;
}

/// The only value of the event's summary.
ProtobufFields value_of(const ProtobufFields& event) { return event.message(5).message(1); }

HostImage decoded(const TemporaryDirectory& place, const std::string& bytes) {
    put_bytes(place / "picture.png", bytes);
    return read_image(place / "picture.png");
}

}  // namespace

TEST_CASE("the checksum is CRC-32C") {
    // RFC 3720: the checksum of 32 bytes of zeros is 8a9136aa.
    const std::uint32_t crc = bitwise_masked_crc(std::string(32, '\0')) - 0xa282ead8U;
    CHECK(((crc >> 17) | (crc << 15)) == 0x8a9136aaU);
}

TEST_CASE("numbers are written to the event file and, one line per step, to the JSON lines") {
    const TemporaryDirectory place;
    const double before = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
    {
        EventLog log(place.path());
        log.scalars(0, {{"loss", 0.75}, {"epoch", 3}});
        log.scalar("rate", 1e-5, 300);
        log.scalar("loss", std::nan(""), 301);
    }
    const std::vector<ProtobufFields> events = events_of(place);
    REQUIRE(events.size() == 5);
    CHECK(events[0].bytes.at(3).at(0) == "brain.Event:2");
    CHECK(events[1].message(7).numbers.at(1).at(0) == 1);  // a session starts
    for (const ProtobufFields& event : events) {
        CHECK(event.reals.at(1).at(0) >= before);
        CHECK(event.reals.at(1).at(0) < before + 60);
    }
    CHECK(events[2].numbers.at(2).at(0) == 0);
    const ProtobufFields summary = events[2].message(5);
    REQUIRE(summary.bytes.at(1).size() == 2);
    CHECK(summary.message(1, 0).bytes.at(1).at(0) == "loss");
    CHECK(summary.message(1, 0).reals.at(2).at(0) == 0.75);
    CHECK(summary.message(1, 1).bytes.at(1).at(0) == "epoch");
    CHECK(summary.message(1, 1).reals.at(2).at(0) == 3);
    CHECK(events[3].numbers.at(2).at(0) == 300);
    CHECK(value_of(events[3]).reals.at(2).at(0) == 1e-5F);
    CHECK(std::isnan(value_of(events[4]).reals.at(2).at(0)));

    CHECK(get_bytes(place / "log.jsonl") == R"({"step":0,"loss":0.75,"epoch":3})"
                                            "\n"
                                            R"({"step":300,"rate":1e-05})"
                                            "\n"
                                            R"({"step":301,"loss":null})"
                                            "\n");
}

TEST_CASE("images and masks are PNG", "[.images]") {
    const TemporaryDirectory place;
    std::vector<std::uint8_t> rgb(2 * 3 * 3), grey(6);
    for (std::size_t i = 0; i < rgb.size(); ++i) rgb[i] = static_cast<std::uint8_t>(13 * i);
    for (std::size_t i = 0; i < grey.size(); ++i) grey[i] = static_cast<std::uint8_t>(40 * i);
    {
        EventLog log(place.path());
        log.image("colours", Tensor::from(rgb, {2, 3, 3}), 7);
        log.image("grey", Tensor::from(grey, {3, 2}), 8);
        log.mask("classes", Tensor::from(std::vector<std::int64_t>{0, 1, 2, 3, 8, -100}, {2, 3}), 9);
        // A view with strides: the first two channels as a picture with alpha.
        log.image("view", Tensor::from(rgb, {2, 3, 3}).slice(2, 0, 2), 10);
    }
    const std::vector<ProtobufFields> events = events_of(place);
    REQUIRE(events.size() == 6);
    const auto image = [&](std::size_t index) { return value_of(events.at(index)).message(4); };
    const auto shape = [](const ProtobufFields& fields) {
        return std::vector<std::uint64_t>{fields.numbers.at(1).at(0), fields.numbers.at(2).at(0),
                                          fields.numbers.at(3).at(0)};
    };
    CHECK(value_of(events[2]).bytes.at(1).at(0) == "colours");
    CHECK(shape(image(2)) == std::vector<std::uint64_t>{2, 3, 3});  // height, width, channels
    const HostImage colours = decoded(place, image(2).bytes.at(4).at(0));
    CHECK(colours.width == 3);
    CHECK(colours.height == 2);
    CHECK(colours.pixels == rgb);
    CHECK(shape(image(3)) == std::vector<std::uint64_t>{3, 2, 1});
    CHECK(decoded(place, image(3).bytes.at(4).at(0)).pixels == grey);
    // PASCAL VOC: background, aeroplane, bicycle, bird, cat, and ignored pixels.
    CHECK(decoded(place, image(4).bytes.at(4).at(0)).pixels ==
          std::vector<std::uint8_t>{0, 0, 0, 128, 0, 0, 0, 128, 0, 128, 128, 0, 64, 0, 0, 255, 255, 255});
    const HostImage view = decoded(place, image(5).bytes.at(4).at(0));
    for (std::size_t i = 0; i < 6; ++i)
        for (std::size_t c = 0; c < 2; ++c) CHECK(view.pixels[2 * i + c] == rgb[3 * i + c]);
}

TEST_CASE("a histogram has the counts of torch's, and non-finite values separately") {
    const TemporaryDirectory place;
    const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
    std::vector<float> values{0, 0, 1, -1, 2.5F, -3e-13F, 1e-12F, nan, inf, -inf, nan, 3e30F};
    for (int i = 0; i < 500; ++i)
        values.push_back(std::sin(static_cast<float>(i)) * std::pow(1.3F, static_cast<float>(i % 50)));
    {
        EventLog log(place.path());
        log.histogram("weights", Tensor::from(values, {static_cast<std::int64_t>(values.size())}), 4);
        log.histogram("nothing", Tensor::full({2, 2}, nan), 5);
        log.histogram("integers", Tensor::from(std::vector<std::int64_t>{3, 3, 5}, {3}), 6);
        log.histogram("half", Tensor::full({3}, 0.5, DType::bf16), 7);
    }
    const std::vector<ProtobufFields> events = events_of(place);
    REQUIRE(events.size() == 7);
    const ProtobufFields histogram = value_of(events[2]).message(5);
    double sum = 0, squares = 0;
    double low = inf, high = -inf, finite = 0;
    for (const float value : values) {
        if (!std::isfinite(value)) continue;
        ++finite;
        sum += value;
        squares += static_cast<double>(value) * value;
        low = std::min<double>(low, value);
        high = std::max<double>(high, value);
    }
    CHECK(histogram.reals.at(1).at(0) == low);
    CHECK(histogram.reals.at(2).at(0) == high);
    CHECK(histogram.reals.at(3).at(0) == finite);
    CHECK(histogram.reals.at(4).at(0) == Approx(sum));
    CHECK(histogram.reals.at(5).at(0) == Approx(squares));
    const std::vector<double> limits = histogram.packed(6), counts = histogram.packed(7);
    REQUIRE(limits.size() == counts.size());
    CHECK(counts.at(0) == 0);
    CHECK(counts.at(1) > 0);
    double all = 0;
    for (std::size_t i = 1; i < limits.size(); ++i) {
        double wanted = 0;
        const bool last = i + 1 == limits.size();  // it contains 3e30
        for (const float value : values)
            wanted += std::isfinite(value) && value >= limits[i - 1] && (value < limits[i] || last) ? 1 : 0;
        CHECK(counts[i] == wanted);
        all += counts[i];
        // A tenth wider than its neighbour nearer to 0, from 1e-12 on.
        if (limits[i - 1] > 0) CHECK(limits[i] == Approx(1.1 * limits[i - 1]).epsilon(1e-9));
        if (limits[i - 1] == 0) CHECK(limits[i] == 1e-12);
    }
    CHECK(all == finite);

    CHECK(value_of(events[3]).bytes.at(1).at(0) == "weights/not_finite");
    CHECK(value_of(events[3]).reals.at(2).at(0) == 4);
    CHECK(value_of(events[4]).bytes.at(1).at(0) == "nothing/not_finite");
    const std::vector<json> lines = lines_of(place);
    REQUIRE(lines.size() == 2);
    CHECK(lines[0] == json({{"step", 4}, {"histogram", "weights"}, {"finite", 508}, {"nan", 2}, {"inf", 2}}));
    CHECK(lines[1] == json({{"step", 5}, {"histogram", "nothing"}, {"finite", 0}, {"nan", 4}, {"inf", 0}}));
    const ProtobufFields integers = value_of(events[5]).message(5);
    CHECK(integers.reals.at(1).at(0) == 3);
    CHECK(integers.reals.at(2).at(0) == 5);
    CHECK(integers.reals.at(4).at(0) == 11);
    CHECK(value_of(events[6]).message(5).reals.at(4).at(0) == 1.5);
}

TEST_CASE("text is written for TensorBoard's text plugin, and custom lines to the JSON lines") {
    const TemporaryDirectory place;
    {
        EventLog log(place.path());
        log.text("configuration", "lr = 0.1\n", 2);
        log.json_line(R"({"program": "test"})");
        CHECK_THROWS_AS(log.json_line("[1]"), InvalidArgument);
        CHECK_THROWS_AS(log.json_line("{"), InvalidArgument);
        CHECK_THROWS_AS(log.json_line("{\"name\": \"gr\xfc\"}"), InvalidArgument);
    }
    const ProtobufFields value = value_of(events_of(place).at(2));
    CHECK(value.bytes.at(1).at(0) == "configuration");
    CHECK(value.message(9).message(1).bytes.at(1).at(0) == "text");
    CHECK(value.message(8).numbers.at(1).at(0) == 7);  // DT_STRING
    CHECK(value.message(8).message(2).message(2).numbers.at(1).at(0) == 1);
    CHECK(value.message(8).bytes.at(8).at(0) == "lr = 0.1\n");
    CHECK(get_bytes(place / "log.jsonl") == "{\"program\":\"test\"}\n");
}

TEST_CASE("invalid UTF-8 in tags and text is replaced by U+FFFD, and all that follows stays readable", "[.images]") {
    const std::string bad = "\xef\xbf\xbd";
    // Latin 1, a lone continuation, an overlong '/', a surrogate, beyond U+10FFFF, a cut character; and a valid one
    const std::vector<std::pair<std::string, std::string>> texts = {
        {"gr\xfc\xdf", "gr" + bad + bad},
        {"\x80", bad},
        {"a\xc0\xaf", "a" + bad + bad},
        {"\xed\xa0\x80z", bad + bad + bad + "z"},
        {"\xf4\x90\x80\x80", bad + bad + bad + bad},
        {"\xe2\x82", bad + bad},
        {"\xc3\xbc \xe2\x82\xac \xf0\x9f\x98\x80 \xed\x9f\xbf", "\xc3\xbc \xe2\x82\xac \xf0\x9f\x98\x80 \xed\x9f\xbf"},
        {std::string("nul\0", 4), std::string("nul\0", 4)}};
    for (const auto& [given, written] : texts) {
        CAPTURE(given);
        const TemporaryDirectory place;
        {
            EventLog log(place.path());
            log.scalars(0, {{given, 1.5}});
            log.histogram(given, Tensor::from(std::vector<float>{1, std::numeric_limits<float>::infinity()}, {2}), 1);
            log.text(given, given, 2);
            log.image(given, Tensor::zeros({2, 2}, DType::u8), 3);
            log.scalars(4, {{"after", 2.5}});
        }
        const std::vector<ProtobufFields> events = events_of(place);
        REQUIRE(events.size() == 8);
        for (std::size_t i = 2; i < 7; ++i)
            CHECK(value_of(events[i]).bytes.at(1).at(0) == written + (i == 4 ? "/not_finite" : ""));
        CHECK(value_of(events[5]).message(8).bytes.at(8).at(0) == written);
        CHECK(value_of(events[7]).bytes.at(1).at(0) == "after");
        const std::vector<json> lines = lines_of(place);
        REQUIRE(lines.size() == 3);
        CHECK(lines[0].at(written) == 1.5);
        CHECK(lines[1].at("histogram") == written);
        CHECK(lines[2].at("after") == 2.5);
    }
}

TEST_CASE("a resumed run has a new file that sorts last, and lines of lost steps are removed") {
    const TemporaryDirectory place;
    for (const int begin : {0, 5, 5, 8}) {
        EventLog log = begin == 0 ? EventLog(place.path()) : EventLog(place.path(), {.resume_step = begin});
        log.json_line(json{{"step", begin}, {"continues", true}}.dump());
        for (int step = begin; step < begin + 7; ++step) log.scalar("loss", step + 0.5, step);
    }
    REQUIRE(event_files(place).size() == 4);
    for (std::size_t file = 0; file < 4; ++file) {
        const std::vector<ProtobufFields> events = events_of(place, file);
        const std::uint64_t begin = std::vector<std::uint64_t>{0, 5, 5, 8}[file];
        CHECK(events.at(1).numbers.at(2).at(0) == begin);  // readers discard older files' data from here on
        CHECK(events.at(1).message(7).numbers.at(1).at(0) == 1);
        CHECK(events.at(2).numbers.at(2).at(0) == begin);
    }
    std::vector<int> steps;
    for (const json& line : lines_of(place))
        if (!line.contains("continues")) steps.push_back(line["step"]);
    CHECK(steps == std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14});

    put_bytes(place / "log.jsonl", get_bytes(place / "log.jsonl") + R"({"step":15,"lo)");
    { const EventLog log(place.path(), {.resume_step = 100}); }
    CHECK(lines_of(place).back()["step"] == 14);
    { const EventLog log(place.path()); }
    CHECK(lines_of(place).empty());
}

TEST_CASE("logged values are in the file after a flush, or after a while without one") {
    const TemporaryDirectory place;
    EventLog log(place.path());
    log.scalar("loss", 1, 0);
    log.flush();
    CHECK(events_of(place).size() == 3);
    CHECK(lines_of(place).size() == 1);
    log.scalar("loss", 1, 1);
    CHECK(comes_true([&] { return lines_of(place).size() == 2; }));
    EventLog moved = std::move(log);
    moved.scalar("loss", 1, 2);
    moved.close();
    moved.scalar("loss", 1, 3);
    CHECK(lines_of(place).size() == 3);
}

TEST_CASE("a full disk is one warning, and files stay readable and grow again when there is room") {
    const TemporaryDirectory place;
    Warnings warnings;
    EventLog log(place.path());
    log.scalar("loss", 1, 0);
    log.flush();
    {
        const FileSizeLimit limit(4096);
        for (int step = 1; step < 5; ++step) {
            log.text("long", std::string(5000, 'x'), step);
            log.scalar(std::string(5000, 'y'), 1, step);
            log.flush();
        }
    }
    REQUIRE(warnings.texts().size() == 1);
    CHECK_THAT(warnings.texts()[0], contains("cannot be written any further: File too large; training continues"));
    log.scalar("loss", 1, 5);
    log.close();
    CHECK(lines_of(place).size() == 2);
    CHECK(events_of(place).size() == 4);
    CHECK(warnings.texts().size() == 1);
}

TEST_CASE("a handler of the log's own warning may write to the log and flush it") {
    const TemporaryDirectory place;
    EventLog log(place.path());
    log.scalar("loss", 1, 0);
    log.flush();
    std::atomic<int> told{0};
    const LogHandler before = set_log_handler([&](LogLevel, const std::string& text) {
        log.text("warning", text, 1);
        log.flush();
        ++told;
    });
    {
        const FileSizeLimit limit(4096);
        log.text("long", std::string(5000, 'x'), 1);
        log.flush();
    }
    log.close();
    set_log_handler(before);
    CHECK(told == 1);
    CHECK(events_of(place).size() == 4);  // as after the full disk above: version, session, loss and the warning
}

TEST_CASE("a log that is deleted during a run causes one warning, a renamed log causes no warning") {
    const TemporaryDirectory place;
    const bool renamed = GENERATE(true, false);
    Warnings warnings;
    EventLog log(place / "log");
    log.scalar("loss", 1, 0);
    log.flush();
    CHECK(warnings.texts().empty());
    std::filesystem::rename(place / "log", place / "moved");
    if (!renamed) std::filesystem::remove_all(place / "moved");
    for (int step = 1; step < 4; ++step) {
        log.scalar("loss", 1, step);
        log.flush();
    }
    if (renamed) {
        const std::string lines = get_bytes(place / "moved" / "log.jsonl");
        CHECK(std::count(lines.begin(), lines.end(), '\n') == 4);
        CHECK(warnings.texts().empty());
    } else {
        REQUIRE(warnings.texts().size() == 1);
        CHECK_THAT(warnings.texts()[0], contains("was deleted; training continues, and further entries are lost"));
    }
}

TEST_CASE("an exception from a handler of the log's own warning is dropped, and the text is written to stderr") {
    const TemporaryDirectory place;
    std::atomic<int> told{0};
    const int standard_error = ::dup(2);
    REQUIRE(standard_error >= 0);
    const int file = ::open((place / "err").c_str(), O_WRONLY | O_CREAT, 0600);
    REQUIRE(file >= 0);
    ::dup2(file, 2);
    const LogHandler before = set_log_handler([&](LogLevel, const std::string&) {
        ++told;
        throw std::runtime_error("the handler fails");
    });
    {
        EventLog log(place.path());
        log.scalar("loss", 1, 0);
        log.flush();
        const FileSizeLimit limit(4096);
        log.text("long", std::string(5000, 'x'), 1);
        log.flush();  // the log's thread has written, and warned
        log.scalar("loss", 1, 2);
        log.close();
    }
    set_log_handler(before);
    ::dup2(standard_error, 2);
    ::close(standard_error);
    ::close(file);
    CHECK(told == 1);
    CHECK_THAT(get_bytes(place / "err"),
               contains("lockstep: warning: ") && contains("cannot be written any further: File too large"));
    CHECK(lines_of(place).size() == 2);  // the short lines of the other file
}

TEST_CASE("ranks other than 0 write nothing, nor does a log without a directory") {
    const TemporaryDirectory place;
    EventLog other(place / "sub", {.rank = 1}), none;
    for (EventLog* log : {&other, &none}) {
        log->scalar("loss", 1, 0);
        log->histogram("weights", Tensor::zeros({2}), 0);
        log->flush();
        log->close();
    }
    CHECK(place.names().empty());
}

TEST_CASE("mistakes are thrown by the call, and an unwritable directory at once") {
    const TemporaryDirectory place;
    EventLog log(place / "log");
    const auto refuses = [](auto&& call, const std::string& part) {
        CHECK_THROWS_AS(call(), InvalidArgument);
        CHECK_THROWS_WITH(call(), contains(part));
    };
    refuses([&] { log.scalar("", 1, 0); }, "tag is empty");
    refuses([&] { log.scalar("step", 1, 0); }, "is reserved for the step number");
    refuses([&] { log.image("a", Tensor::zeros({2, 2}), 0); }, "'a' is f32 of shape (2, 2); expected u8");
    refuses([&] { log.image("a", Tensor::zeros({2, 2, 5}, DType::u8), 0); }, "1 to 4 channels");
    refuses([&] { log.image("a", Tensor::zeros({0, 2}, DType::u8), 0); }, "none of them 0");
    refuses([&] { log.mask("a", Tensor::full({2, 2}, 256, DType::i64), 0); }, "class 256");
    refuses([&] { log.mask("a", Tensor::zeros({2, 2}), 0); }, "expected classes");
    refuses([&] { log.histogram("a", Tensor::zeros({0}), 0); }, "has no element");
    put_bytes(place / "file", "");
    refuses([&] { EventLog(place / "file"); }, "expected a writable directory");
    std::filesystem::create_directories(place / "taken/log.jsonl");
    refuses([&] { EventLog(place / "taken"); }, "Is a directory");
}

TEST_CASE("a forked child exits without disturbing its parent's log") {
    const TemporaryDirectory place;
    auto log = std::make_unique<EventLog>(place.path());
    log->flush();
    std::this_thread::sleep_for(std::chrono::milliseconds(100));  // then the log's thread is waiting
    const pid_t child = ::fork();
    if (child == 0) {
        ::alarm(static_cast<unsigned>(hang.count()));
        log->flush();
        log.reset();
        ::_exit(0);
    }
    int status = -1;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK(status == 0);
    log->scalar("loss", 1, 0);
    log.reset();
    CHECK(lines_of(place).size() == 1);
}
