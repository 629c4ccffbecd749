// Each module includes only modules above it in the table of docs/architecture.md, files of parallel/ have no circular
// dependencies, and public headers include no private headers and none of other libraries.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>

#include "lockstep/tests/catch.h"
#include "lockstep/tests/headers/layering.h"

using namespace lockstep::test;

namespace {

const Includes& tree() {
    static const Includes includes = read_includes(LOCKSTEP_SOURCE_DIR);
    return includes;
}

/// The tree with one additional include.
Includes with(const std::string& file, const std::string& header) {
    Includes includes = tree();
    includes[file].insert(header);
    return includes;
}

using Lines = std::vector<std::string>;

}  // namespace

TEST_CASE("every module includes only modules that it may depend on") {
    REQUIRE(tree().size() > 300);
    CHECK(forbidden_arrows(tree()) == Lines());
}

TEST_CASE("a planted dependency is found") {
    CHECK(forbidden_arrows(with("parallel/comm/store/store.cpp", "parallel/engine/in_flight.h")) ==
          Lines{"parallel/comm/store/store.cpp includes parallel/engine/in_flight.h: parallel/comm may not depend on "
                "parallel/engine"});
    CHECK(forbidden_arrows(with("ops/loss.cpp", "parallel/engine.h")) ==
          Lines{"ops/loss.cpp includes parallel/engine.h: ops may not depend on parallel"});
    CHECK(forbidden_arrows(with("parallel/schedule/schedule.h", "parallel/reduce/ranks.h")).size() == 1);
    CHECK(forbidden_arrows(with("parallel/engine/join.cpp", "parallel/engine.h")).size() == 1);
    CHECK(forbidden_arrows(with("samples/apps/mnist.cpp", "parallel/data/files/file.h")) ==
          Lines{"samples/apps/mnist.cpp includes parallel/data/files/file.h, which is private"});
    CHECK(forbidden_arrows(with("samples/resume.cpp", "runtime/tensor.h")) ==
          Lines{"samples/resume.cpp includes runtime/tensor.h: samples may not depend on runtime"});
    CHECK(forbidden_arrows(with("samples/resume.cpp", "samples/apps/mnist_nets.h")).size() == 1);
    CHECK(forbidden_arrows(with("samples/data/digits.cpp", "samples/apps/mnist_nets.h")).size() == 1);
    CHECK(forbidden_arrows(with("parallel/data/idx.cpp", "samples/data/digits.h")).size() == 1);
    CHECK(forbidden_arrows(with("bench/host.cpp", "parallel/engine/join.h")).size() == 1);
    CHECK(forbidden_arrows(with("ops/loss.cpp", "lockstep.h")).size() == 1);
    CHECK(forbidden_arrows(with("ops/loss.cpp", "tests/catch.h")) ==
          Lines{"ops/loss.cpp includes tests/catch.h: ops may not depend on tests"});
    CHECK(forbidden_arrows(with("ops/loss.cpp", "../parallel/engine.h")).size() == 1);
    CHECK(forbidden_arrows(with("ops/loss.cpp", "<map>")).empty());
}

TEST_CASE("public headers include no private headers and none of other libraries") {
    REQUIRE(public_headers(tree()).size() > 80);
    for (const std::string& header : public_headers(tree())) {
        INFO(header);
        CHECK(dragged_in(tree(), header) == Lines());
    }
}

TEST_CASE("programs in the source tree get the umbrella header that is installed") {
    const Includes view = read_includes(LOCKSTEP_SOURCE_DIR, {"cmake/include/lockstep"});
    CHECK(view.at("cmake/include/lockstep/lockstep.h") == std::set<std::string>{"parallel/lockstep.h"});
    const std::set<std::string>& all = tree().at("parallel/lockstep.h");
    for (const char* header : {"ops/asgd.h", "ops/lamb.h", "ops/lbfgs.h", "parallel/runner.h", "runtime/tensor.h"})
        CHECK(all.contains(header));
}

TEST_CASE("a planted include is found, also an indirect one") {
    const Includes planted = read_includes(LOCKSTEP_SOURCE_DIR, {"tests/headers"});
    CHECK(dragged_in(planted, "tests/headers/planted_onednn.h") == Lines{"<dnnl.hpp>"});
    CHECK(dragged_in(planted, "tests/headers/planted_private.h") == Lines{"tests/headers/private.h"});
    for (const char* header : {"<fmt/format.h>", "<cuda_runtime_api.h>", "<mpi.h>", "<execution>", "ops/cpu/gemm.h"})
        CHECK(dragged_in(with("runtime/shape.h", header), "lockstep.h") == Lines{header});
}

TEST_CASE("tests that share a program define no names with external linkage") {
    int tests = 0;
    for (const auto& entry :
         std::filesystem::recursive_directory_iterator(std::filesystem::path(LOCKSTEP_SOURCE_DIR) / "tests")) {
        if (entry.path().extension() != ".cpp" || !entry.path().filename().string().starts_with("test_")) continue;
        std::ifstream file(entry.path());
        const std::string text(std::istreambuf_iterator<char>(file), {});
        INFO(entry.path());
        CHECK(shared_names(text) == Lines());
        ++tests;
    }
    CHECK(tests > 150);
}

TEST_CASE("a planted name with external linkage is found") {
    CHECK(
        shared_names("#include <map>\nnamespace {\nstruct Net {\n};\n}  // namespace\nTEST_CASE(\"x\") {}\n").empty());
    CHECK(shared_names("struct Net {\n};\n") == Lines{"1: struct Net {"});
    CHECK(shared_names("namespace lockstep {\nvoid f() {\n}\n}  // namespace lockstep\n") == Lines{"2: void f() {"});
    CHECK(shared_names("namespace {\n}  // namespace\ntemplate <class T>\nint g() {\n").size() == 2);
}

TEST_CASE("no two files of the library define a type of one name") {
    std::map<std::string, std::string> sources;
    for (const char* folder : {"runtime", "ops", "parallel"}) {
        const std::filesystem::path top(LOCKSTEP_SOURCE_DIR);
        for (const auto& entry : std::filesystem::recursive_directory_iterator(top / folder)) {
            const std::string ending = entry.path().extension();
            if (ending != ".h" && ending != ".cpp" && ending != ".cu") continue;
            std::ifstream file(entry.path());
            sources[entry.path().lexically_relative(top)] = std::string(std::istreambuf_iterator<char>(file), {});
        }
    }
    CHECK(sources.size() > 500);
    CHECK(repeated_types(sources) == Lines());
}

TEST_CASE("a planted type of an existing name is found") {
    const std::string one = "namespace lockstep {\nstruct Net : Base {\n};\n}  // namespace lockstep\n",
                      hidden =
                          "namespace lockstep {\nnamespace {\nclass Net final {\n};\n}  // namespace\n"
                          "struct Net::Impl {\n};\n}  // namespace lockstep\n",
                      elsewhere =
                          "namespace lockstep {\nnamespace shm {\nstruct Net {\n};\n}  // namespace shm\n"
                          "class Net;\n}  // namespace lockstep\n",
                      same = "namespace lockstep {\nenum class Net : int { a, b };\n}  // namespace lockstep\n";
    CHECK(repeated_types({{"a.h", one}, {"b.h", hidden}, {"c.h", elsewhere}}) == Lines());
    CHECK(repeated_types({{"a.h", one}, {"b.h", same}}) == Lines{"lockstep::Net: a.h, b.h"});
}

TEST_CASE("parallel/ has no circular dependencies") { CHECK(cycles(tree()) == Lines()); }

TEST_CASE("a planted circular dependency is found, with header and source counted as one") {
    // trace_shard.cpp includes shard_program.h.
    CHECK(cycles(with("parallel/program/shard_program.cpp", "parallel/program/trace_shard.h")) != Lines());
    CHECK(cycles(with("parallel/comm/store.h", "parallel/comm/rendezvous.h")) != Lines());
}
