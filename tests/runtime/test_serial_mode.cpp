// Serial mode under AddressSanitizer: work that accesses undeclared device memory ends the program with a report. These
// tests start this program again with one of the hidden cases below.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "lockstep/runtime/cpu/serial_mode.h"
#include "lockstep/runtime/memory.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/processes.h"

using namespace lockstep;

namespace {

constexpr int reported = 42;

struct Blocks {
    Stream& stream = Stream::of(Device::cpu(0));
    std::shared_ptr<Buffer> a = Buffer::allocate(stream, 1024, "tests"), b = Buffer::allocate(stream, 1024, "tests");
    std::shared_ptr<Buffer> peer = Buffer::allocate(Stream::of(Device::cpu(1)), 1024, "tests");
    Access part(const std::shared_ptr<Buffer>& buffer, Access::Mode mode, std::size_t bytes = 512) const {
        return {buffer->data(), bytes, buffer->device(), mode};
    }
    /// Declares the first 512 bytes of `a` as written and of `b` and `peer` as read; writes and reads one byte each.
    void work(std::size_t written, std::size_t read, std::size_t read_of_peer) const {
        const Access declared[] = {part(a, Access::Mode::write), part(b, Access::Mode::read),
                                   part(peer, Access::Mode::peer_read)};
        stream.run("planted", declared,
                   [=, to = a->data(), from = b->data(), other = peer->data()](const ExecContext&) {
                       static_cast<volatile char*>(to)[written] = static_cast<volatile char*>(from)[read];
                       static_cast<volatile char*>(to)[0] = static_cast<volatile char*>(other)[read_of_peer];
                   });
    }
};

struct Outcome {
    int status;
    std::string text;
};

Outcome run_case(const std::string& name) {
    const std::filesystem::path output =
        std::filesystem::temp_directory_path() / ("lockstep-serial-mode-" + std::to_string(::getpid()));
    test::ChildProcess child;
    child.command = {"/bin/sh", "-c", "exec \"$0\" \"$1\" 2>&1", std::filesystem::read_symlink("/proc/self/exe"), name};
    child.environment = {{"LOCKSTEP_CPU_SERIAL", "1"},
                         {"ASAN_OPTIONS", "detect_leaks=0:exitcode=" + std::to_string(reported)}};
    child.output = output;
    const int status = test::run_child(child);
    std::ifstream file(output);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    std::filesystem::remove(output);
    return {status, text};
}

}  // namespace

TEST_CASE("child: all accesses are declared", "[.child]") {
    Blocks blocks;
    blocks.work(0, 0, 0);
    blocks.work(511, 511, 511);
    blocks.stream.fill(blocks.a->data(), 1, 1024);
    blocks.stream.copy(blocks.a->data(), Device::cpu(0), blocks.peer->data(), Device::cpu(1), 1024);
    blocks.stream.copy_2d(blocks.a->data(), 16, Device::cpu(0), blocks.peer->data(), 64, Device::cpu(1), 16, 16);
    blocks.stream.synchronize();
    static_cast<char*>(blocks.b->data())[1000] = 1;  // between pieces of work all memory is accessible
}
TEST_CASE("child: an undeclared write", "[.child]") { Blocks().work(512, 0, 0); }
TEST_CASE("child: an undeclared read", "[.child]") { Blocks().work(0, 512, 0); }
TEST_CASE("child: an undeclared read of a peer's memory", "[.child]") { Blocks().work(0, 0, 1000); }

TEST_CASE("work that declares all its accesses runs in serial mode") {
    const Outcome outcome = run_case("child: all accesses are declared");
    INFO(outcome.text);
    CHECK(outcome.status == 0);
}

TEST_CASE("undeclared accesses are reported", "[.poison]") {
    if (!poison::available) {
        std::printf("skipped: undeclared accesses are reported only by builds with AddressSanitizer\n");
        return;
    }
    for (const char* const name :
         {"child: an undeclared write", "child: an undeclared read", "child: an undeclared read of a peer's memory"}) {
        const Outcome outcome = run_case(name);
        INFO(name << "\n" << outcome.text);
        CHECK(outcome.status == reported);
        CHECK(outcome.text.find("use-after-poison") != std::string::npos);
    }
}
