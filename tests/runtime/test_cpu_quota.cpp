// The CPU quota of control groups, read from trees that look like those of real machines.
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

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
