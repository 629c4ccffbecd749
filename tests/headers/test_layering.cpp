// Each room includes only rooms above it in the table of docs/architecture.md, files of parallel/ do not depend on each
// other in a circle, and public headers include no private header and none of another library.
#include "lockstep/tests/catch.h"
#include "lockstep/tests/headers/layering.h"

using namespace lockstep::test;

namespace {

const Includes& tree() {
    static const Includes includes = read_includes(LOCKSTEP_SOURCE_DIR);
    return includes;
}

/// The tree with one more include.
Includes with(const std::string& file, const std::string& header) {
    Includes includes = tree();
    includes[file].insert(header);
    return includes;
}

using Lines = std::vector<std::string>;

}  // namespace

TEST_CASE("every room knows only those that it may") {
    REQUIRE(tree().size() > 300);
    CHECK(forbidden_arrows(tree()) == Lines());
}

TEST_CASE("a planted arrow is found") {
    CHECK(forbidden_arrows(with("parallel/comm/store.cpp", "parallel/engine/in_flight.h")) ==
          Lines{"parallel/comm/store.cpp includes parallel/engine/in_flight.h: parallel/comm may not know "
                "parallel/engine"});
    CHECK(forbidden_arrows(with("ops/loss.cpp", "parallel/engine.h")) ==
          Lines{"ops/loss.cpp includes parallel/engine.h: ops may not know parallel"});
    CHECK(forbidden_arrows(with("parallel/schedule/schedule.h", "parallel/reduce/ranks.h")).size() == 1);
    CHECK(forbidden_arrows(with("parallel/engine/join.cpp", "parallel/engine.h")).size() == 1);
    CHECK(forbidden_arrows(with("samples/mnist.cpp", "parallel/data/files/file.h")) ==
          Lines{"samples/mnist.cpp includes parallel/data/files/file.h, which is private"});
    CHECK(forbidden_arrows(with("bench/host.cpp", "parallel/engine/join.h")).size() == 1);
    CHECK(forbidden_arrows(with("ops/loss.cpp", "lockstep.h")).size() == 1);
    CHECK(forbidden_arrows(with("ops/loss.cpp", "tests/catch.h")) ==
          Lines{"ops/loss.cpp includes tests/catch.h: ops may not know tests"});
    CHECK(forbidden_arrows(with("ops/loss.cpp", "../parallel/engine.h")).size() == 1);
    CHECK(forbidden_arrows(with("ops/loss.cpp", "<map>")).empty());
}

TEST_CASE("public headers drag in neither private headers nor those of other libraries") {
    REQUIRE(public_headers(tree()).size() > 90);
    for (const std::string& header : public_headers(tree())) {
        INFO(header);
        CHECK(dragged_in(tree(), header) == Lines());
    }
}

TEST_CASE("a planted header is found, also behind another one") {
    const Includes planted = read_includes(LOCKSTEP_SOURCE_DIR, {"tests/headers"});
    CHECK(dragged_in(planted, "tests/headers/planted_onednn.h") == Lines{"<dnnl.hpp>"});
    CHECK(dragged_in(planted, "tests/headers/planted_private.h") == Lines{"tests/headers/private.h"});
    for (const char* header : {"<fmt/format.h>", "<cuda_runtime_api.h>", "<mpi.h>", "<execution>", "ops/cpu/gemm.h"})
        CHECK(dragged_in(with("runtime/shape.h", header), "lockstep.h") == Lines{header});
}

TEST_CASE("there are no circles in parallel/") { CHECK(cycles(tree()) == Lines()); }

TEST_CASE("a planted circle is found, header and source taken together") {
    // trace_shard.cpp includes shard_program.h.
    CHECK(cycles(with("parallel/program/shard_program.cpp", "parallel/program/trace_shard.h")) != Lines());
    CHECK(cycles(with("parallel/comm/store.h", "parallel/comm/rendezvous.h")) != Lines());
}
