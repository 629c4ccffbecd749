// Names of devices, visible devices, and all messages about invisible ones.
#include "lockstep/runtime/device.h"

#include <dlfcn.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lockstep/parallel/data/image_file.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/cpu_topology.h"
#include "lockstep/runtime/versions.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/shell.h"

using namespace lockstep;

namespace {

/// Message of the exception that the call throws, or an empty string.
template <class F>
std::string refusal(F call) {
    try {
        call();
    } catch (const InvalidArgument& error) {
        return error.what();
    }
    return {};
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

struct ProgramRun {
    int status = -1;
    std::string output;
};

/// Runs lockstep-info in a separate environment: a process reads its environment once.
ProgramRun info(const std::string& environment, const std::string& arguments) {
    const std::string command = "env -u CUDA_VISIBLE_DEVICES -u LOCKSTEP_CPU_DEVICES -u LOCKSTEP_CPU_ISA " +
                                environment + " " + test::shell_word(LOCKSTEP_INFO) + " " + arguments + " 2>&1";
    ProgramRun run;
    FILE* pipe = popen(command.c_str(), "r");
    REQUIRE(pipe != nullptr);
    std::array<char, 4096> part{};
    while (const std::size_t bytes = std::fread(part.data(), 1, part.size(), pipe))
        run.output.append(part.data(), bytes);
    const int status = pclose(pipe);
    run.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    return run;
}

nlohmann::json report(const std::string& environment) {
    const ProgramRun run = info(environment, "--json");
    INFO(run.output);
    REQUIRE(run.status == 0);
    return nlohmann::json::parse(run.output);
}

int cpu_devices(const nlohmann::json& report) {
    int count = 0;
    for (const auto& device : report["devices"])
        count += device["device"].get<std::string>().starts_with("cpu:") ? 1 : 0;
    return count;
}

}  // namespace

TEST_CASE("devices are parsed and printed") {
    CHECK(Device::parse("cpu:3") == Device::cpu(3));
    CHECK(Device::parse("cuda:12") == Device::cuda(12));
    CHECK(Device::parse("cpu") == Device::cpu(0));
    CHECK(Device::parse("cuda") == Device::cuda(0));
    CHECK(Device::parse("host") == Device::host());
    for (const Device device : {Device::cpu(0), Device::cuda(7), Device::host()})
        CHECK(Device::parse(device.str()) == device);
    for (const char* bad :
         {"", "gpu:0", "cuda:", "cuda:-1", "cuda:+1", "cuda:1x", "cpu: 0", "CPU:0", "cpu:99999999999", "host:0"}) {
        INFO(bad);
        CHECK(contains(refusal([&] { Device::parse(bad); }), "unknown device '" + std::string(bad) + "'"));
    }
}

TEST_CASE("lists of devices are checked") {
    REQUIRE(device_count(DeviceKind::cpu) >= 2);
    const Devices two = Devices::parse("cpu:1,cpu:0");
    CHECK(two.size() == 2);
    CHECK(two[0] == Device::cpu(1));
    CHECK(two.str() == "cpu:1,cpu:0");
    CHECK(two.kind() == DeviceKind::cpu);
    CHECK(Devices::parse("all").str() == Devices::visible().str());

    CHECK(contains(refusal([] { Devices({}); }), "the list of devices is empty"));
    CHECK(contains(refusal([] { Devices::parse(""); }), "the list of devices is empty"));
    CHECK(contains(refusal([] { Devices::parse("cpu:0,"); }), "unknown device ''"));
    CHECK(contains(refusal([] { Devices::parse("cpu:0,cpu:1,cpu:0"); }), "cpu:0 is listed twice"));
    CHECK(contains(refusal([] { Devices({Device::cpu(0), Device::cuda(0)}); }), "mixed kinds"));
    CHECK(contains(refusal([] { Devices({Device::host()}); }), "the host cannot be used for training"));
    CHECK(contains(refusal([] { Devices::parse("cpu:0,host"); }), "the host cannot be used for training"));
    const std::string absent = refusal([] { Devices::parse("cpu:64"); });
    CHECK(contains(absent, "device cpu:64 does not exist or is not visible"));
    CHECK(contains(absent, "cpu:0, cpu:1"));
    CHECK(contains(absent, "LOCKSTEP_CPU_DEVICES"));
}

TEST_CASE("an unavailable CUDA device is rejected with the reason") {
    const int gpus = device_count(DeviceKind::cuda);
    CHECK(cuda_absence_reason().empty() == (gpus > 0));
    const std::string text = refusal([&] { require_visible(Device::cuda(gpus)); });
    CHECK(contains(text, Device::cuda(gpus).str() + " does not exist or is not visible"));
    CHECK(contains(text, gpus > 0 ? "CUDA_VISIBLE_DEVICES" : cuda_absence_reason()));
    CHECK_NOTHROW(require_visible(Device::host()));
    CHECK_NOTHROW(require_visible(Device::cpu(0)));
}

TEST_CASE("devices report their properties") {
    const DeviceInfo device = device_info(Device::cpu(0));
    CHECK_FALSE(device.name.empty());
    CHECK(device.units >= 1);
    CHECK(device.total_memory > device.free_memory);
    CHECK(device.free_memory > 0);
    CHECK(device.cache_bytes > 0);
    CHECK_THROWS_AS(device_info(Device::cpu(1000)), InvalidArgument);
    CHECK(peer_access(Device::cpu(0), Device::cpu(1)));
    CHECK(peer_access(Device::cpu(0), Device::host()));
    CHECK_THROWS_AS(peer_access(Device::cpu(0), Device::cpu(1000)), InvalidArgument);
}

TEST_CASE("CUDA_VISIBLE_DEVICES selects virtual devices if there is no driver") {
    using List = std::vector<int>;
    const auto visible = [](const char* value) { return visible_cpu_devices(4, value, false); };
    const List all = {0, 1, 2, 3};
    CHECK(visible("1,0") == List{1, 0});
    CHECK(visible("3") == List{3});
    CHECK(visible(" 2 , 1") == List{2, 1});
    SECTION("as in the driver, the list ends at the first number that does not exist") {
        CHECK(visible("2,4,1") == List{2});
        CHECK(visible("2,-1,1") == List{2});
        CHECK(visible("4").empty());
        CHECK(visible("-2").empty());
    }
    SECTION("anything but a list of numbers, or no GPU, concerns GPUs only") {
        for (const char* value :
             {"", "-1", "-1,0", "GPU-8f3a,GPU-11", "0,GPU-8f3a", "MIG-1", "0,,1", "0,1,", "none", " "}) {
            INFO(value);
            CHECK(visible(value) == all);
        }
        CHECK(visible(nullptr) == all);
    }
    SECTION("with a driver it never selects virtual devices") { CHECK(visible_cpu_devices(4, "1,0", true) == all); }
    SECTION("a duplicate device is rejected") {
        CHECK(contains(refusal([&] { visible("0,1,0"); }), "CUDA_VISIBLE_DEVICES=0,1,0 lists device 0 twice"));
    }
}

TEST_CASE("lockstep-info: the environment selects devices") {
    CHECK(cpu_devices(report("")) == 2);
    const auto five = report("LOCKSTEP_CPU_DEVICES=5");
    CHECK(cpu_devices(five) == 5);
    for (const auto& device : five["devices"])
        if (device.contains("cores")) CHECK(device["cores"] == std::max(usable_cores() / 5, 1));
    CHECK(cpu_devices(report("CUDA_VISIBLE_DEVICES=-1 LOCKSTEP_CPU_DEVICES=3")) == 3);
    CHECK(cpu_devices(report("CUDA_VISIBLE_DEVICES= LOCKSTEP_CPU_DEVICES=3")) == 3);
    const bool driver = device_count(DeviceKind::cuda) > 0 || dlopen("libcuda.so.1", RTLD_LAZY) != nullptr;
    CHECK(cpu_devices(report("CUDA_VISIBLE_DEVICES=2,0 LOCKSTEP_CPU_DEVICES=3")) == (driver ? 3 : 2));
    if (driver) return;
    const ProgramRun none = info("CUDA_VISIBLE_DEVICES=3 LOCKSTEP_CPU_DEVICES=3", "");
    CHECK(none.status == 0);
    CHECK_FALSE(contains(none.output, "cpu:"));
}

TEST_CASE("lockstep-info: malformed environment and flags end with status 2") {
    for (const char* value : {"0", "65", "two", "1.5", "-1"}) {
        const ProgramRun run = info("LOCKSTEP_CPU_DEVICES=" + std::string(value), "");
        INFO(run.output);
        CHECK(run.status == 2);
        CHECK(contains(run.output,
                       "LOCKSTEP_CPU_DEVICES=" + std::string(value) + " is invalid; expected an integer from 1 to 64"));
    }
    const ProgramRun isa = info("LOCKSTEP_CPU_ISA=avx9", "");
    CHECK(isa.status == 2);
    CHECK(contains(isa.output, "LOCKSTEP_CPU_ISA is 'avx9'"));
    const ProgramRun flag = info("", "--jsno");
    CHECK(flag.status == 2);
    CHECK(contains(flag.output, "--jsno"));
    CHECK(info("", "--help").status == 0);
}

TEST_CASE("lockstep-info: text and JSON agree") {
    const ProgramRun text = info("LOCKSTEP_CPU_ISA=generic", "");
    const auto json = report("LOCKSTEP_CPU_ISA=generic");
    REQUIRE(text.status == 0);
    for (const auto& device : json["devices"]) {
        CHECK(contains(text.output, device["device"].get<std::string>()));
        CHECK(contains(text.output, device["name"].get<std::string>()));
    }
    CHECK(json["peer_access"]["cpu:0"]["cpu:1"] == true);
    CHECK(json["instruction_set"]["used"] == "generic");
    CHECK(contains(text.output, "used     generic"));
    REQUIRE(json["versions"].size() == library_versions().size());
    for (const auto& [name, version] : library_versions()) {
        CHECK(json["versions"][name] == version);
        CHECK(contains(text.output, version));
    }
    for (const ImageFormat& format : image_formats()) {
        CHECK(json["image_formats"][format.name] == format.built_in);
        CHECK(contains(text.output, format.name));
        CHECK(contains(text.output, format.build_hint) != format.built_in);
    }
}

TEST_CASE("LOCKSTEP_BACKENDS excludes backends by name, and rejects names that it does not know") {
    for (const char* permitted : {"none", "gloo", "mpi,nccl,gloo"}) {
        const auto json = report("LOCKSTEP_BACKENDS=" + std::string(permitted));
        CHECK(json["cuda_absence_reason"] == "LOCKSTEP_BACKENDS does not list cuda; add it");
        CHECK_FALSE(json["versions"].contains("cudnn"));
    }
    for (const char* permitted : {"", "cuda", "gloo,cuda"})
        CHECK(report("LOCKSTEP_BACKENDS=" + std::string(permitted))["cuda_absence_reason"] == cuda_absence_reason());
    for (const char* wrong : {"pigeons", "gloo,", ",gloo", "gloo;mpi", "CUDA", "none,gloo", "shm"}) {
        INFO(wrong);
        const ProgramRun run = info("'LOCKSTEP_BACKENDS=" + std::string(wrong) + "'", "");
        CHECK(run.status == 2);
        CHECK(contains(run.output, "LOCKSTEP_BACKENDS=" + std::string(wrong) +
                                       " is invalid; expected none, or some of cuda, gloo, mpi, nccl, with commas"));
    }
}

TEST_CASE("versions are those of the libraries in use") {
    std::vector<std::string> names;
    for (const auto& [name, version] : library_versions()) {
        names.push_back(name);
        CHECK_FALSE(version.empty());
    }
    REQUIRE(names.size() >= 5);
    names.resize(5);
    CHECK(names == std::vector<std::string>{"lockstep", "compiler", "fmt", "oneDNN", "zlib"});
}
