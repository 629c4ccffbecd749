// Environment variables: a malformed one is an error that names it, in this process and everywhere it is read.
#include "lockstep/runtime/internal/process.h"

#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>

#include "lockstep/ops/functional.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/tensor.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/messages.h"
#include "lockstep/tests/fixtures/shell.h"

using namespace lockstep;
using lockstep::test::contains;
using lockstep::test::message_of;

namespace {

struct ProgramRun {
    int status = -1;
    std::string output;
};

/// Runs the hidden case below in a separate process: a process reads its environment once.
ProgramRun child(const std::string& setting) {
    std::array<char, 4096> part{};
    const ssize_t length = readlink("/proc/self/exe", part.data(), part.size() - 1);
    REQUIRE(length > 0);
    const std::string self(part.data(), static_cast<std::size_t>(length));
    FILE* pipe = popen(
        ("env " + test::shell_word(setting) + " " + test::shell_word(self) + " '[.child][#test_environment]' 2>&1")
            .c_str(),
        "r");
    REQUIRE(pipe != nullptr);
    ProgramRun run;
    while (const std::size_t bytes = std::fread(part.data(), 1, part.size(), pipe))
        run.output.append(part.data(), bytes);
    const int status = pclose(pipe);
    run.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    return run;
}

}  // namespace

TEST_CASE("work on a device, twice", "[.child]") {
    for (int attempt = 0; attempt < 2; ++attempt) {
        try {
            const Tensor x = Tensor::full({1, 16, 4, 4}, 1, DType::f32, Device::cpu(0));
            const Tensor y = relu(conv2d(x, Tensor::full({16, 16, 1, 1}, 1, DType::f32, Device::cpu(0))));
            std::cout << "value " << y.select(0, 0).select(0, 0).select(0, 0).select(0, 0).item() << '\n';
        } catch (const InvalidArgument& error) {
            std::cout << "refused: " << error.what() << '\n';
        }
    }
}

TEST_CASE("flags, integers and words are read strictly") {
    constexpr const char* name = "LOCKSTEP_TEST_VARIABLE";
    const auto set = [&](const char* value) { setenv(name, value, 1); };
    unsetenv(name);
    CHECK_FALSE(environment::flag(name));
    CHECK_FALSE(environment::integer(name, 0, 9).has_value());
    set("");
    CHECK_FALSE(environment::flag(name));
    CHECK_FALSE(environment::integer(name, 0, 9).has_value());
    set("0");
    CHECK_FALSE(environment::flag(name));
    set("1");
    CHECK(environment::flag(name));
    for (const char* bad : {"yes", "true", "2", "-1", " 1", "1 ", "+1", "01x", "1.0", "99999999999999999999"}) {
        set(bad);
        const std::string text = message_of<InvalidArgument>([&] { environment::flag(name); });
        CHECK(contains(text, std::string(name) + "=" + bad));
    }
    set("-5");
    CHECK(environment::integer(name, -5, 5) == -5);
    set("6");
    CHECK(contains(message_of<InvalidArgument>([&] { environment::integer(name, -5, 5); }), "from -5 to 5"));
    unsetenv(name);
    const auto word = [&] { return environment::one_of(name, {"left", "right"}); };
    CHECK_FALSE(word().has_value());
    set("");
    CHECK_FALSE(word().has_value());
    set("right");
    CHECK(word() == 1);
    set("Right");
    CHECK(contains(message_of<InvalidArgument>(word),
                   std::string(name) + "=Right is invalid; expected one of left, right"));
    unsetenv(name);
}

TEST_CASE("well-formed variables work") {
    for (const char* setting : {"LOCKSTEP_CHECK_ORDER=1", "LOCKSTEP_CHECK_ORDER=", "LOCKSTEP_CPU_SERIAL=1",
                                "LOCKSTEP_CPU_DEVICES=1", "LOCKSTEP_INJECT_DELAYS=100", "LOCKSTEP_CPU_ISA=generic",
                                "LOCKSTEP_CONV=direct", "LOCKSTEP_CONV=auto", "LOCKSTEP_CONV=benchmark"}) {
        const ProgramRun run = child(setting);
        INFO(setting << ": " << run.output);
        CHECK(run.status == 0);
        CHECK(contains(run.output, "value 16\nvalue 16"));
    }
}

TEST_CASE("malformed variables are rejected every time and crash nothing") {
    for (const char* setting : {"LOCKSTEP_CHECK_ORDER=yes", "LOCKSTEP_CPU_SERIAL=on", "LOCKSTEP_CPU_DEVICES=0",
                                "LOCKSTEP_CPU_DEVICES=two", "LOCKSTEP_CPU_DEVICES=65", "LOCKSTEP_INJECT_DELAYS=fast",
                                "LOCKSTEP_INJECT_DELAYS=-1", "LOCKSTEP_CPU_ISA=sse9", "LOCKSTEP_CONV=fast"}) {
        const ProgramRun run = child(setting);
        INFO(setting << ": " << run.output);
        CHECK(run.status == 0);
        const auto first = run.output.find("refused: ");
        CHECK(first != std::string::npos);
        CHECK(run.output.find("refused: ", first + 1) != std::string::npos);
        CHECK_FALSE(contains(run.output, "value "));
        const std::string text(setting);
        CHECK(contains(run.output, text.substr(0, text.find('='))));
        CHECK(contains(run.output, text.substr(text.find('=') + 1)));
    }
}
