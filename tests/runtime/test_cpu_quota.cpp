// The CPU quota of control groups, read from trees that look like those of real machines.
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/runtime/cpu/cpu_quota.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/files.h"

using namespace lockstep;

namespace {

class Machine {
public:
    Machine& file(const std::string& name, const std::string& text) {
        const std::filesystem::path path = root_ / name;
        std::filesystem::create_directories(path.parent_path());
        std::ofstream(path) << text;
        return *this;
    }
    std::optional<double> quota() const { return cpu_quota(root_.path()); }

private:
    test::TemporaryDirectory root_;
};

const char* const version_2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
const char* const version_1 =
    "31 23 0:27 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n"
    "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n"
    "33 31 0:30 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n";

}  // namespace

TEST_CASE("cpu quota: version 2, of the process's group and its ancestors") {
    Machine machine;
    machine.file("proc/self/mountinfo", version_2).file("proc/self/cgroup", "0::/system.slice/job.service\n");
    CHECK_FALSE(machine.quota());
    machine.file("sys/fs/cgroup/system.slice/job.service/cpu.max", "max 100000\n");
    CHECK_FALSE(machine.quota());
    machine.file("sys/fs/cgroup/system.slice/cpu.max", "400000 100000\n");
    CHECK(machine.quota() == 4.0);
    machine.file("sys/fs/cgroup/system.slice/job.service/cpu.max", "50000 20000\n");
    CHECK(machine.quota() == 2.5);
    machine.file("sys/fs/cgroup/cpu.max", "150000 100000\n");
    CHECK(machine.quota() == 1.5);
}

TEST_CASE("cpu quota: the smallest limit of nested groups counts, wherever it is") {
    constexpr const char *none = "max 100000\n", *half = "50000 100000\n", *one_and_a_half = "150000 100000\n";
    struct Limits {
        const char *top, *middle, *own;  ///< empty: no such file
        std::optional<double> quota;
    };
    for (const Limits& limits : std::vector<Limits>{{none, none, none, {}},
                                                    {"", "", none, {}},
                                                    {none, none, half, 0.5},
                                                    {half, one_and_a_half, none, 0.5},
                                                    {one_and_a_half, half, none, 0.5},
                                                    {one_and_a_half, none, half, 0.5},
                                                    {half, none, one_and_a_half, 0.5},
                                                    {none, one_and_a_half, none, 1.5},
                                                    {"", half, "", 0.5},
                                                    {"max", one_and_a_half, "300000 100000", 1.5},
                                                    {"1000000 1000000\n", "1 1000\n", none, 0.001}}) {
        CAPTURE(limits.top, limits.middle, limits.own);
        Machine machine;
        machine.file("proc/self/mountinfo", version_2).file("proc/self/cgroup", "0::/slice/job\n");
        for (const auto& [group, text] :
             {std::pair("", limits.top), {"slice/", limits.middle}, {"slice/job/", limits.own}})
            if (*text != 0) machine.file(std::string("sys/fs/cgroup/") + group + "cpu.max", text);
        CHECK(machine.quota() == limits.quota);
    }
}

TEST_CASE("cpu quota: version 2 in a container") {
    SECTION("with its own namespace") {
        Machine machine;
        machine.file("proc/self/mountinfo", version_2).file("proc/self/cgroup", "0::/\n");
        machine.file("sys/fs/cgroup/cpu.max", "200000 100000");
        CHECK(machine.quota() == 2.0);
    }
    SECTION("with the host's names, of which it sees only its part") {
        Machine machine;
        machine.file("proc/self/mountinfo", "30 23 0:26 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw\n");
        machine.file("proc/self/cgroup", "0::/docker/abc/inner\n");
        machine.file("sys/fs/cgroup/cpu.max", "300000 100000\n");
        machine.file("sys/fs/cgroup/inner/cpu.max", "max 100000\n");
        CHECK(machine.quota() == 3.0);
    }
    SECTION("with a backslash in the name of its part, as units of systemd have") {
        Machine machine;
        machine.file("proc/self/mountinfo", "30 23 0:26 /a.slice/b\\134x2dc /sys/fs/cgroup ro - cgroup2 cgroup rw\n");
        machine.file("proc/self/cgroup", "0::/a.slice/b\\x2dc/inner\n");
        machine.file("sys/fs/cgroup/cpu.max", "max 100000\n");
        machine.file("sys/fs/cgroup/inner/cpu.max", "70000 100000\n");
        CHECK(machine.quota() == 0.7);
    }
    SECTION("mounted in a directory with a blank in its name") {
        Machine machine;
        machine.file("proc/self/mountinfo", "30 23 0:26 / /sys/my\\040groups ro - cgroup2 cgroup rw\n");
        machine.file("proc/self/cgroup", "0::/job\n");
        machine.file("sys/my groups/job/cpu.max", "120000 100000\n");
        CHECK(machine.quota() == 1.2);
    }
}

TEST_CASE("cpu quota: version 1, and both at once") {
    Machine machine;
    machine.file("proc/self/mountinfo", version_1);
    machine.file("proc/self/cgroup", "5:cpuset:/\n4:cpu,cpuacct:/slurm/job_7\n1:name=systemd:/slurm\n");
    machine.file("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
    machine.file("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
    CHECK_FALSE(machine.quota());
    machine.file("sys/fs/cgroup/cpu,cpuacct/slurm/job_7/cpu.cfs_quota_us", "350000\n");
    machine.file("sys/fs/cgroup/cpu,cpuacct/slurm/job_7/cpu.cfs_period_us", "100000\n");
    CHECK(machine.quota() == 3.5);
    machine.file("sys/fs/cgroup/cpu,cpuacct/slurm/cpu.cfs_quota_us", "50000\n");
    machine.file("sys/fs/cgroup/cpu,cpuacct/slurm/cpu.cfs_period_us", "100000\n");
    CHECK(machine.quota() == 0.5);
}

TEST_CASE("cpu quota: version 1 needs both files, and a parent may be tighter") {
    struct Group {
        const char *quota, *period;  ///< empty: no such file
    };
    struct Limits {
        Group parent, own;
        std::optional<double> quota;
    };
    for (const Limits& limits : std::vector<Limits>{{{"-1\n", "100000\n"}, {"-1\n", "100000\n"}, {}},
                                                    {{"-1\n", "100000\n"}, {"150000\n", "100000\n"}, 1.5},
                                                    {{"50000\n", "100000\n"}, {"150000\n", "100000\n"}, 0.5},
                                                    {{"50000\n", "100000\n"}, {"-1\n", "100000\n"}, 0.5},
                                                    {{"25000", "50000"}, {"", ""}, 0.5},
                                                    {{"200000\n", ""}, {"", "100000\n"}, {}},
                                                    {{"", ""}, {"150000 100000\n", "100000\n"}, {}}}) {
        CAPTURE(limits.parent.quota, limits.parent.period, limits.own.quota, limits.own.period);
        Machine machine;
        machine.file("proc/self/mountinfo", version_1).file("proc/self/cgroup", "4:cpu,cpuacct:/slurm/job\n");
        for (const auto& [group, files] : {std::pair("slurm/", limits.parent), {"slurm/job/", limits.own}})
            for (const auto& [name, text] :
                 {std::pair("cpu.cfs_quota_us", files.quota), {"cpu.cfs_period_us", files.period}})
                if (*text != 0) machine.file(std::string("sys/fs/cgroup/cpu,cpuacct/") + group + name, text);
        CHECK(machine.quota() == limits.quota);
    }
    // Both versions are mounted, and each has a limit.
    for (const bool first_is_tighter : {true, false}) {
        Machine machine;
        machine.file("proc/self/mountinfo", std::string(version_1) + version_2);
        machine.file("proc/self/cgroup", "4:cpu,cpuacct:/job\n0::/job\n");
        machine.file("sys/fs/cgroup/job/cpu.max", first_is_tighter ? "300000 100000" : "150000 100000");
        machine.file("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", first_is_tighter ? "150000" : "-1");
        machine.file("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us", "100000");
        CHECK(machine.quota() == 1.5);
    }
}

TEST_CASE("cpu quota: threads are limited to the quota, rounded up, and to at least one") {
    struct Limit {
        std::optional<double> quota;
        int cores, threads;
    };
    for (const Limit& limit : std::vector<Limit>{{{}, 8, 8},
                                                 {0.001, 8, 1},
                                                 {0.5, 8, 1},
                                                 {1.0, 8, 1},
                                                 {1.5, 8, 2},
                                                 {2.0, 8, 2},
                                                 {7.01, 8, 8},
                                                 {16.0, 8, 8},
                                                 {1e300, 8, 8},
                                                 {0.5, 1, 1}}) {
        CAPTURE(limit.quota.value_or(-1), limit.cores);
        CHECK(cores_within(limit.quota, limit.cores) == limit.threads);
    }
}

TEST_CASE("cpu quota: malformed files set no limit") {
    CHECK_FALSE(Machine().quota());
    for (const char* text : {"", "max", "100000", "0 100000", "-5 100000", "100000 0", "100000 x", "x 100000",
                             "99999999999999999999 100000"}) {
        Machine machine;
        machine.file("proc/self/mountinfo", std::string("torn line\n") + version_2);
        machine.file("proc/self/cgroup", "nonsense\n0::/\n").file("sys/fs/cgroup/cpu.max", text);
        INFO(text);
        CHECK_FALSE(machine.quota());
    }
}
