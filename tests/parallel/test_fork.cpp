// Permitted actions of a child of fork(): everything before devices are used; after that only to end, and errors for
// the rest.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <thread>

#include "lockstep/ops/sgd.h"
#include "lockstep/parallel/comm/process_group.h"
#include "lockstep/parallel/loader.h"
#include "lockstep/runtime/cpu/cpu_queue.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/eight_devices.h"
#include "lockstep/tests/fixtures/environment.h"
#include "lockstep/tests/fixtures/messages.h"
#include "lockstep/tests/fixtures/nets.h"
#include "lockstep/tests/fixtures/waiting.h"

namespace ls = lockstep;
using namespace lockstep::test;
using ls::Device;
using ls::InvalidArgument;

namespace {

const std::string advice = "; expected fork before devices are used, or exec after it";

/// Output of a child, and its end: "" if it exits with 0 within a minute.
struct Child {
    std::string text, end;
};

/// Runs `body` in a child, which then ends like a program whose main returns: with its static objects.
Child in_child(const std::function<std::string()>& body) {
    int ends[2];
    if (::pipe(ends) != 0) throw std::runtime_error("pipe failed");
    std::fflush(nullptr);
    const pid_t pid = ::fork();
    if (pid == 0) {
        ::close(ends[0]);
        ::alarm(static_cast<unsigned>(ls::test::hang.count()));  // a child that hangs is killed
        std::string text;
        try {
            text = body();
        } catch (const std::exception& error) {
            text = error.what();
        }
        (void)!::write(ends[1], text.data(), text.size());
        ::close(ends[1]);
        std::exit(0);
    }
    ::close(ends[1]);
    Child child;
    char bytes[4096];
    for (ssize_t got = 0; (got = ::read(ends[0], bytes, sizeof bytes)) > 0;)
        child.text.append(bytes, static_cast<std::size_t>(got));
    ::close(ends[0]);
    int status = 0;
    ::waitpid(pid, &status, 0);
    if (WIFSIGNALED(status)) child.end = std::string("killed by ") + ::strsignal(WTERMSIG(status));
    if (WIFEXITED(status) && WEXITSTATUS(status) != 0) child.end = "exit status " + std::to_string(WEXITSTATUS(status));
    return child;
}

std::string train_one_step() {
    ls::manual_seed(1);
    ls::DataParallel<ConvNet> model(ConvNet{}, cpu_devices(2));
    ls::SGD sgd(model, {.lr = 0.1});
    const ConvNetBatch batch = make_batch(6);
    return std::to_string(model.step(sgd, batch.images, batch.labels, ls::nll_loss).item());
}

/// A model and related objects, as in a program that has them as static objects.
struct Program {
    ls::DataParallel<ConvNet> model{ConvNet{}, cpu_devices(2)};
    ls::SGD sgd{model, {.lr = 0.1}};
    ConvNetBatch batch = make_batch(6);
    ls::Tensor on_device = ls::Tensor::full({3}, 7, ls::DType::f32, Device::cpu(1));
    struct Rows {
        std::int64_t size() const { return 64; }
        std::tuple<ls::Tensor> get(std::int64_t row) const { return {ls::Tensor::full({2}, static_cast<double>(row))}; }
    };
    ls::Loader<Rows> loader{model, Rows{}, {.batch_size = 4, .workers = 2}};
};
std::unique_ptr<Program> program;
std::unique_ptr<ls::ProcessGroup> group;

Program& trained_program() {
    program = std::make_unique<Program>();
    program->model.step(program->sgd, program->batch.images, program->batch.labels, ls::nll_loss).item();
    return *program;
}

}  // namespace

// The cases depend on each other, in this order: used devices stay used.

TEST_CASE("children of a process that has used no device train independently") {
    const ls::Tensor made_before = ls::Tensor::rand({600, 600});  // large enough for several threads of the host
    const std::string expected = in_child(train_one_step).text;
    for (int i = 0; i < 3; ++i) {
        const Child child = in_child(train_one_step);
        CHECK(child.end.empty());
        CHECK(child.text == expected);
    }
    CHECK(expected.find("0x") == std::string::npos);
    CHECK(std::atof(expected.c_str()) > 0);
}

TEST_CASE("if the system cannot start a thread, a step throws and the process ends normally") {
    if (lockstep::test::serial()) return;
    const Child child = in_child([] {
        const ConvNet net;
        // The limit applies to users; root has none.
        if (::geteuid() == 0 && ::setuid(65534) != 0) return std::string("skipped: root cannot change to another user");
        rlimit none{0, 0};
        ::setrlimit(RLIMIT_NPROC, &none);
        return message_of<ls::DeviceError>([&] { ls::DataParallel<ConvNet> model(net, cpu_devices(2)); });
    });
    if (child.text.starts_with("skipped")) WARN(child.text);
    CHECK(child.end.empty());
    CHECK((child.text.starts_with("skipped") ||
           child.text == "cpu:0: cannot start a thread (Resource temporarily unavailable); expected a higher process "
                         "limit (ulimit -u, pids.max of the cgroup) or fewer devices"));
}

TEST_CASE("a child of a training process gets an error and exits, with its static objects alive") {
    if (lockstep::test::serial()) return;
    Program& parent = trained_program();
    auto epoch = parent.loader.epoch(0);  // its workers are reading
    auto batches = epoch.begin();
    const auto& batch = parent.batch;
    const auto refused = [&](const std::function<void()>& use, const std::string& text) {
        const Child child = in_child([&] { return message_of<InvalidArgument>(use); });
        CHECK(child.text == text);
        CHECK(child.end.empty());
    };
    const std::string before =
        ": this model was created before this process was forked, and is not usable in the child" + advice;
    const std::string in_use = " was in use when this process was forked, and is not usable in the child" + advice;
    refused([&] { parent.model.step(parent.sgd, batch.images, batch.labels, ls::nll_loss); }, "step" + before);
    refused([&] { (void)parent.model(batch.images); }, "forward" + before);
    refused([&] { parent.model.synchronize(); }, "synchronize" + before);
    refused([&] { parent.sgd.step(); }, "optimizer step" + before);
    refused([&] { (void)parent.on_device.to_vector<float>(); }, "copy: cpu:1" + in_use);
    refused([&] { (void)ls::Tensor::zeros({2}, ls::DType::f32, Device::cpu(0)); }, "fill: cpu:0" + in_use);
    refused([&] { ls::DataParallel<ConvNet> model(ConvNet{}, cpu_devices(1)); }, "fill: cpu:0" + in_use);
    refused([&] { ++batches; },
            "Loader: this loader was created before this process was forked, and is not usable in the child" + advice);
    refused([] { ls::synchronize_all(); }, "synchronize: cpu:0" + in_use);
    // Does nothing, with everything alive at the end.
    const Child idle = in_child([] { return std::string("done"); });
    CHECK(idle.text == "done");
    CHECK(idle.end.empty());
    // The child destroys objects of the parent itself.
    const Child destroys = in_child([] {
        program.reset();
        return std::string("done");
    });
    CHECK(destroys.text == "done");
    CHECK(destroys.end.empty());
    // The parent continues.
    CHECK(parent.model.step(parent.sgd, batch.images, batch.labels, ls::nll_loss).item() > 0);
    CHECK(parent.on_device.to_vector<float>() == std::vector<float>(3, 7.f));
}

TEST_CASE("a child computes on host tensors") {
    if (lockstep::test::serial()) return;
    const ls::Tensor before = ls::Tensor::full({500, 400}, 2);
    const double expected = ls::sum(ls::matmul(before, before.transpose(0, 1))).item();  // by several threads
    const Child child = in_child([&] {
        const ls::Tensor own = ls::Tensor::full({500, 400}, 2);
        return std::to_string(ls::sum(ls::matmul(before, own.transpose(0, 1))).item());
    });
    CHECK(child.end.empty());
    CHECK(std::atof(child.text.c_str()) == Approx(expected));
}

TEST_CASE("a child does not affect the process group of its parent") {
    ls::ProcessGroupOptions options;
    const std::filesystem::path file =
        std::filesystem::temp_directory_path() / ("lockstep-fork-" + std::to_string(::getpid()));
    options.rendezvous.init_method = "file://" + file.string();
    options.rendezvous.rank = 0;
    options.rendezvous.world_size = 1;
    group = std::make_unique<ls::ProcessGroup>(options);
    const ls::Tensor value = ls::Tensor::full({2}, 3);
    group->all_reduce_async(value).wait();  // with the thread of the group
    const Child child = in_child([] {
        group.reset();
        return std::string("done");
    });
    CHECK(child.text == "done");
    CHECK(child.end.empty());
    const Child at_exit = in_child([] { return std::string("done"); });
    CHECK(at_exit.end.empty());
    group->all_reduce(value);
    group.reset();
    std::filesystem::remove(file);
}

TEST_CASE("once the last model is destroyed, children may use devices again") {
    if (lockstep::test::serial()) return;
    program.reset();
    CHECK(ls::cpu_worker_count() == 0);
    const Child child = in_child(train_one_step);
    CHECK(child.end.empty());
    CHECK(child.text == in_child(train_one_step).text);
    CHECK(child.text == train_one_step());
}
