// Devices work at the same time, and the host waits for nothing but what is read.
#include <atomic>

#include "lockstep/tests/catch.h"
#include "lockstep/tests/parallel/touched_training.h"

using namespace touched_training;
using test_operations::Gate;

TEST_CASE("an operation of one device ends only when one of the other has begun, and the other way round") {
    for (const bool in_backward : {false, true})
        for (const int waits : {0, 1}) {
            Setting s;
            (void)s.step().item();  // traced and placed
            Gate begun;
            const auto meet = [&begun, waits](int shard) {
                if (shard == waits)
                    begun.pass();
                else
                    begun.open();
            };
            (in_backward ? test_operations::hook().backward : test_operations::hook().forward) = meet;
            CHECK_NOTHROW(s.step().item());
        }
}

TEST_CASE("a rendezvous: both are in their operation at the same time") {
    Setting s;
    (void)s.step().item();
    Gate here[2];
    test_operations::hook().forward = [&here](int shard) {
        here[shard].open();
        here[1 - shard].pass();
    };
    CHECK_NOTHROW(s.step().item());
}

TEST_CASE("a step returns while its operations are blocked") {
    Setting s;
    (void)s.step().item();
    const auto before = s.model.engine().steps_done();
    Gate release;
    std::atomic<int> finished = 0;
    test_operations::hook().forward = [&](int) {
        release.pass();
        ++finished;
    };
    const ls::StepLoss first = s.step();
    const ls::StepLoss second = s.step();  // two may be in flight
    CHECK(finished == 0);
    release.open();
    (void)second.item();
    (void)first.item();
    CHECK(finished == 4);
    CHECK(s.model.engine().steps_done() == before + 2);
}

TEST_CASE("the longer form returns while its operations are blocked") {
    Setting s;
    (void)s.model(s.x);
    s.model.synchronize();
    Gate release;
    std::atomic<int> finished = 0;
    test_operations::hook().forward = [&](int) {
        release.pass();
        ++finished;
    };
    const ls::Tensor output = s.model(s.x);
    ls::sum(output).backward();
    CHECK(finished == 0);
    release.open();
    (void)output.to_vector<float>();
    CHECK(finished == 2);
}
