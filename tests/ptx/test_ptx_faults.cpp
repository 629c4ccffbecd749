// Planted faults: the interpreter finds each of them in every schedule, names its kind and its place, and finds nothing
// in the right form of the same kernel.
#include "lockstep/tests/ptx/fixture.h"

using namespace lockstep::ptx;

namespace {

const std::string& text() {
    static const std::string compiled = compiled_text(PTX_FILES, "faults");
    return compiled;
}

/// Runs in every schedule, each in a new program, and checks that there is one fault, of that kind and with those
/// words.
template <class Run>
void check_found(FaultKind kind, const std::string& words, Run run) {
    for (const Schedule& schedule : schedules) {
        Program program(text());
        const Report report = run(program, schedule);
        INFO(name_of(kind) << ", " << words << ", " << schedule.name);
        CHECK(report.faults.size() == 1);
        for (const Fault& each : report.faults) {
            CHECK(each.kind == kind);
            CHECK(each.message.find(words) != std::string::npos);
            CHECK(each.message.find("faults.cu:") != std::string::npos);
            INFO(each.message);
            CHECK(each.message.rfind(std::string(name_of(kind)) + ": ", 0) == 0);
        }
    }
}

template <class Run>
void check_right(Run run) {
    for (const Schedule& schedule : schedules) {
        Program program(text());
        INFO(schedule.name);
        for (const Fault& each : run(program, schedule).faults) FAIL_CHECK(each.message);
    }
}

}  // namespace

TEST_CASE("out of bounds") {
    const auto at = [](int first) {
        return [=](Program& p, const Schedule& s) {
            return p.run("in_bounds", sized(1, 32, s), p.array<float>(64), first);
        };
    };
    check_right(at(32));
    check_found(FaultKind::out_of_bounds, "write of 4 bytes at 0x", at(33));
    check_found(FaultKind::out_of_bounds, " which no allocation holds", at(-1));
    const auto shared = [](int first) {
        return [=](Program& p, const Schedule& s) {
            return p.run("shared_index", sized(1, 32, s), p.array<float>(64), first);
        };
    };
    check_right(shared(32));
    check_found(FaultKind::out_of_bounds, " of 256 in shared memory", shared(40));
}

TEST_CASE("misaligned access") {
    const auto at = [](int first) {
        return [=](Program& p, const Schedule& s) {
            return p.run("vector_at", sized(1, 1, s), p.array<float>(64), first);
        };
    };
    check_right(at(4));
    check_found(FaultKind::misaligned, "write of 16 bytes", at(1));
}

TEST_CASE("uninitialised memory") {
    const auto shared = [](int n) {
        return
            [=](Program& p, const Schedule& s) { return p.run("set_up_to", sized(1, 256, s), p.array<float>(256), n); };
    };
    check_right(shared(256));
    const auto local = [](int n) {
        return [=](Program& p, const Schedule& s) {
            return p.run("local_up_to", sized(1, 2, s), p.array<float>(64), n, 3);
        };
    };
    check_right(local(5));
    const auto global = [](Fill fill) {
        return [=](Program& p, const Schedule& s) {
            return p.run("copy", sized(1, 32, s), p.array<float>(32, fill), p.array<float>(32));
        };
    };
    check_right(global(Fill::set));
    check_found(FaultKind::unset, "read of shared memory that nothing was written to", shared(255));
    check_found(FaultKind::unset, "read of local memory that nothing was written to", local(4));
    check_found(FaultKind::unset, "read of global memory that nothing was written to", global(Fill::unset));
}

TEST_CASE("an uninitialised register") {
    Program program(
        ".version 8.0\n.target sm_80\n.address_size 64\n.entry copies(.param .u64 to) {\n.reg .b32 %r<4>;\n.reg .b64 "
        "%rd<3>;\n"
        "ld.param.u64 %rd1, [to];\nmov.u32 %r2, %r1;\nadd.s32 %r3, %r2, 1;\nst.global.u32 [%rd1], %r3;\nret; }\n"
        ".entry branches() {\n.reg .pred %p<2>;\n@%p1 bra done;\ndone: ret; }\n"
        ".entry unused() {\n.reg .b32 %r<4>;\nadd.s32 %r2, %r1, 1;\nret; }\n");
    const auto message = [&](const Report& report) {
        return report.faults.empty() ? std::string() : report.faults[0].message;
    };
    CHECK(message(program.run("copies", sized(1, 1), program.array<int>(1)))
              .find("depends on an unset one;  (PTX line 10)") != std::string::npos);
    CHECK(message(program.run("branches", sized(1, 1))).find("a condition depends on an unset value") !=
          std::string::npos);
    CHECK(message(program.run("unused", sized(1, 1))).empty());  // registers of padding are copied like that
}

TEST_CASE("a register of which one half is not set") {
    Program program(
        ".version 8.0\n.target sm_80\n.address_size 64\n"
        ".entry halves(.param .u64 to, .param .u32 high) {\n.reg .pred %p<2>;\n.reg .b32 %r<8>;\n.reg .b64 %rd<6>;\n"
        "ld.param.u64 %rd1, [to];\nld.param.u32 %r1, [high];\nmov.u32 %r2, 7;\nmov.b64 %rd2, {%r2, %r3};\n"
        "mov.u64 %rd3, %rd2;\ncvt.u32.u64 %r4, %rd3;\nmov.b64 {%r5, %r6}, %rd3;\nadd.s32 %r4, %r4, %r5;\n"
        "setp.ne.s32 %p1, %r1, 0;\nselp.b32 %r4, %r6, %r4, %p1;\nst.global.u32 [%rd1], %r4;\nret; }\n"
        ".entry whole(.param .u64 to) {\n.reg .b32 %r<4>;\n.reg .b64 %rd<6>;\n"
        "ld.param.u64 %rd1, [to];\nmov.u32 %r2, 7;\nmov.b64 %rd2, {%r2, %r3};\nst.global.u64 [%rd1], %rd2;\nret; }\n");
    int* const y = program.array<int>(2);
    CHECK(program.run("halves", sized(1, 1), y, 0).faults.empty());
    CHECK(y[0] == 14);
    CHECK(program.run("halves", sized(1, 1), y, 1).faults.size() == 1);
    CHECK(program.run("whole", sized(1, 1), y).faults.size() == 1);
}

TEST_CASE("races in shared memory") {
    const auto neighbours = [](int with_barrier) {
        return [=](Program& p, const Schedule& s) {
            return p.run("neighbours", sized(1, 256, s), p.array<float>(256), with_barrier);
        };
    };
    check_right(neighbours(1));
    const auto reuse = [](int with_barrier) {
        return [=](Program& p, const Schedule& s) {
            return p.run("reuse", sized(1, 256, s), p.array<float>(256), with_barrier);
        };
    };
    check_right(reuse(1));
    for (const Schedule& schedule : schedules) {
        INFO(schedule.name);
        Program program(text());
        // Without the barrier some schedules also read what is not yet written.
        for (const auto& report : {neighbours(0)(program, schedule), reuse(0)(program, schedule)}) {
            REQUIRE_FALSE(report.faults.empty());
            CHECK(std::any_of(report.faults.begin(), report.faults.end(), [](const Fault& each) {
                return each.kind == FaultKind::race && each.message.find("race: shared memory is ") == 0 &&
                       each.message.find("faults.cu:") != std::string::npos;
            }));
        }
    }
}

TEST_CASE("races in global memory") {
    const auto add = [](int shared_by) {
        return [=](Program& p, const Schedule& s) {
            return p.run("add_to", sized(1, 64, s), p.array<float>(64), shared_by);
        };
    };
    check_right(add(1));
    const auto apart = [](int by) {
        return [=](Program& p, const Schedule& s) {
            return p.run("across_blocks", sized(2, 256, s), p.array<float>(1024), by);
        };
    };
    check_right(apart(256));
    check_found(FaultKind::race, "(block ", apart(0));
    const auto counted = [](int plain) {
        return [=](Program& p, const Schedule& s) {
            return p.run("counted", sized(4, 64, s), p.array<unsigned>(1), plain);
        };
    };
    check_right(counted(0));
    for (const Schedule& schedule : schedules) {
        INFO(schedule.name);
        Program program(text());
        for (const auto& report : {add(2)(program, schedule), counted(1)(program, schedule)}) {
            REQUIRE_FALSE(report.faults.empty());
            for (const Fault& each : report.faults) CHECK(each.kind == FaultKind::race);
            CHECK(report.faults[0].message.find("global memory is ") != std::string::npos);
        }
    }
}

TEST_CASE("races between the last block or warp and the others") {
    std::vector<float> x(4 * 64);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i);
    for (const Schedule& schedule : schedules) {
        INFO(schedule.name);
        Program program(text());
        unsigned* const stored = program.array<unsigned>(4);
        for (int repetition = 0; repetition < 2; ++repetition) {
            float* const y = program.array<float>(2, Fill::unset);
            program.run_right("last_block", sized(4, 64, schedule), program.copy(x),
                              program.array<float>(4, Fill::unset), stored, y, 0);
            CHECK(y[0] == 63 * 4 + 2 * 64 * (0 + 1 + 2 + 3));
            program.run_right("last_warp", sized(4, 64, schedule), program.array<float>(8, Fill::unset), stored, y + 1,
                              0);
            CHECK(y[1] == 0 + 1 + 2 + 3 + 4 + 5 + 6 + 7);
        }
        const auto is_race = [](const Fault& each) {
            return each.kind == FaultKind::race && each.message.find("race: global memory is ") == 0;
        };
        const auto finds_race = [&](const Report& report) {
            return std::any_of(report.faults.begin(), report.faults.end(), is_race);
        };
        for (const int without : {1, 2, 3, 4}) {
            INFO("block, without step " << without);
            Program faulty(text());
            CHECK(finds_race(faulty.run("last_block", sized(4, 64, schedule), faulty.copy(x), faulty.array<float>(4),
                                        faulty.array<unsigned>(4), faulty.array<float>(1), without)));
        }
        for (const int without : {1, 2, 3, 4}) {
            INFO("warp, without step " << without);
            Program faulty(text());
            CHECK(finds_race(faulty.run("last_warp", sized(4, 64, schedule), faulty.array<float>(8),
                                        faulty.array<unsigned>(1), faulty.array<float>(1), without)));
        }
    }
}

TEST_CASE("divergent barriers") {
    const auto for_threads = [](int n) {
        return [=](Program& p, const Schedule& s) {
            return p.run("barrier_for", sized(1, 256, s), p.array<float>(256), n);
        };
    };
    check_right(for_threads(256));
    check_found(FaultKind::barrier, "156 threads have ended without this barrier", for_threads(100));
    Program program(
        ".version 8.0\n.target sm_80\n.address_size 64\n.entry two() {\n.reg .pred %p<2>;\n.reg .b32 %r<2>;\nmov.u32 "
        "%r1, %tid.x;\n"
        "setp.lt.u32 %p1, %r1, 32;\n@%p1 bra other;\nbar.sync 0;\nret;\nother:\nbar.sync 0;\nret; }\n");
    for (const Schedule& schedule : schedules) {
        const Report report = program.run("two", sized(1, 64, schedule));
        REQUIRE(report.faults.size() == 1);
        CHECK(report.faults[0].kind == FaultKind::barrier);
        CHECK(report.faults[0].message.find("waits here while thread ") != std::string::npos);
    }
}

TEST_CASE("shuffles from inactive lanes") {
    const auto with = [](unsigned mask, int from) {
        return [=](Program& p, const Schedule& s) {
            return p.run("shuffle_with", sized(1, 64, s), p.array<float>(64), mask, from);
        };
    };
    check_right(with(0x0000ffff, 7));
    check_found(FaultKind::lanes, "a shuffle reads lane 20, which takes no part", with(0x0000ffff, 20));
    check_found(FaultKind::lanes, "the membermask leaves out its own lane", with(0x0000fffe, 7));
    // The lanes that are named end without the shuffle: before it or after, by the schedule.
    for (const Schedule& schedule : schedules) {
        Program program(text());
        const Report report = with(0xffffffff, 7)(program, schedule);
        REQUIRE(report.faults.size() == 1);
        CHECK(report.faults[0].kind == FaultKind::lanes);
    }
}

TEST_CASE("accesses that the launch did not declare") {
    const auto declared = [](std::size_t read, bool written) {
        return [=](Program& p, const Schedule& s) {
            const float* const from = p.array<float>(64);
            float* const to = p.array<float>(64);
            LaunchOptions options = sized(1, 32, s);
            options.declared = {{from, read * sizeof(float), false}, {to, 32 * sizeof(float), written}};
            return p.run("copy", options, from, to);
        };
    };
    check_right(declared(32, true));
    check_found(FaultKind::undeclared,
                "read of 4 bytes that the launch has not declared; 124 bytes from -124 are declared as read",
                declared(31, true));
    check_found(FaultKind::undeclared, "are declared as read", declared(32, false));
}

TEST_CASE("other faults") {
    const auto divide = [](int by) {
        return [=](Program& p, const Schedule& s) { return p.run("divide", sized(1, 32, s), p.array<int>(32), by); };
    };
    check_right(divide(3));
    check_found(FaultKind::division, "an integer is divided by zero", divide(0));
    const auto trap = [](int at) {
        return [=](Program& p, const Schedule& s) { return p.run("trap_at", sized(1, 32, s), p.array<int>(32), at); };
    };
    check_right(trap(32));
    check_found(FaultKind::trap, "trap", trap(5));
    const auto wait = [](int value) {
        return [=](Program& p, const Schedule& s) {
            LaunchOptions options = sized(1, 32, s);
            options.most_instructions = 20'000;
            return p.run("wait_for", options, p.array<int>(1), value);
        };
    };
    check_right(wait(0));
    check_found(FaultKind::endless, "does not end", wait(1));
    const auto bounded = [](unsigned threads) {
        return [=](Program& p, const Schedule& s) { return p.run("bounded", sized(1, threads, s), p.array<int>(256)); };
    };
    check_right(bounded(64));
    check_found(FaultKind::launch, "the kernel takes 64 threads", bounded(65));
    Program program(text());
    const Kernel& kernel = program.module.kernel("bounded");
    CHECK_THROWS_AS(parameters(kernel, 1), std::invalid_argument);
    CHECK_THROWS_AS(parameters(kernel, nullptr, 2), std::invalid_argument);
    CHECK_THROWS_AS(program.module.kernel("no such kernel"), std::runtime_error);
}
