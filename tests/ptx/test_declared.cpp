// Memory that operations declare to access, as the CUDA stand-in and the interpreter see it.
#include "lockstep/tests/catch.h"
#include "lockstep/tests/cuda_standin/standin.h"
#include "lockstep/tests/gpu/kernels.h"
#include "lockstep/tests/ops/cuda_kernel_call.h"

using namespace lockstep;
using namespace lockstep::test;

TEST_CASE("an access that a launch has not declared is found") {
    constexpr std::int64_t count = 1000;
    const OnDevice<int> from(std::vector<int>(count, 7)), to(std::vector<int>(count, 0));
    const auto mistakes = [&](std::int64_t declared) {
        Stream& stream = Stream::of(gpu);
        stream.run("add_one", {}, [&](const ExecContext& context) {
            launch_add_one(static_cast<cudaStream_t>(context.native), to.data(), from.data(), count, declared);
        });
        stream.synchronize();
        return take_mistakes();
    };
    standin::reset_counters();
    CHECK(mistakes(count).empty());
    CHECK(to.fetch() == std::vector<int>(count, 8));
    CHECK(standin::counters().devices[0].launches.at("add_one") == 1);

    const auto found = mistakes(count - 1);
    REQUIRE(found.size() == 1);
    INFO(found[0]);
    CHECK(found[0].find("add_one: undeclared access: read of 4 bytes that the launch has not declared") !=
          std::string::npos);
    CHECK(found[0].find("3996 bytes from -3996 are declared as read") != std::string::npos);
    CHECK(found[0].find("kernels.cu:") != std::string::npos);
}
