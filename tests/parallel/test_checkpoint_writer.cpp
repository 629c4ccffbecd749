// Checkpoints that are written while training continues: their content, the calls that wait for them, and the meaning
// of their failures.
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <limits>
#include <mutex>
#include <optional>

#include "lockstep/ops/adam.h"
#include "lockstep/parallel/checkpoint_writer.h"
#include "lockstep/parallel/data/files/file_lock.h"
#include "lockstep/runtime/error.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/checkpoints.h"
#include "lockstep/tests/fixtures/environment.h"
#include "lockstep/tests/fixtures/files.h"
#include "lockstep/tests/fixtures/messages.h"
#include "lockstep/tests/fixtures/waiting.h"

using namespace lockstep;
using namespace lockstep::test;

namespace {

/// Blocks all writers of `path` in this process.
class Held {
public:
    explicit Held(const std::filesystem::path& path)
        : lock_(internal::FileLock::acquire(path)), guard_(lock_->writing()) {}
    void let_go() { guard_.unlock(); }

private:
    std::shared_ptr<internal::FileLock> lock_;
    std::unique_lock<std::mutex> guard_;
};

struct Normal {
    Conv2d conv{1, 4, 3, {.bias = false}};
    BatchNorm2d norm{4};
    Linear out{4 * 2 * 2, 3};
    LOCKSTEP_MEMBERS(conv, norm, out)
    Tensor forward(const Tensor& x) { return out(norm(conv(x)).flatten(1)); }
};

std::string bytes_of(const std::filesystem::path& file) {
    return get_bytes(file) + get_bytes(file.string() + ".resume");
}

void save(CheckpointWriter& writer, SavedTraining& training, const std::filesystem::path& file) {
    writer.save(training.model(), training.sgd(), training.state(), file);
}

}  // namespace

TEST_CASE("a file holds the state at its save, and later steps do not wait for it") {
    const TemporaryDirectory directory;
    SavedTraining training(3);
    training.to(5);
    CheckpointWriter writer;
    Held disk(directory / "net");
    save(writer, training, directory / "net");
    training.to(12);
    const std::vector<float> later = training.weights();  // waits for the steps
    CHECK_FALSE(std::filesystem::exists(directory / "net"));
    CHECK(writer.finished().empty());
    disk.let_go();
    writer.wait();
    const auto finished = writer.finished();
    REQUIRE(finished.size() == 1);
    CHECK(finished[0].checkpoint == directory / "net");
    CHECK(finished[0].error.empty());
    CHECK(writer.finished().empty());

    SavedTraining other(3);
    other.to(5);
    other.save(directory / "same");
    CHECK((bytes_of(directory / "net") == bytes_of(directory / "same")));
    CHECK(steps_loaded(directory) == 5);
    other.to(12);
    CHECK((other.weights() == later));
}

TEST_CASE("the host does not wait for the steps before a save either") {
    if (lockstep::test::serial()) return;
    const TemporaryDirectory directory;
    SavedTraining training(3);
    training.step();
    training.model().synchronize();
    lockstep::test::Gate gate;
    Stream& stream = Stream::of(Device::cpu(0));
    stream.run("held", {}, [&](const ExecContext&) { gate.pass(); });
    training.step();
    CheckpointWriter writer;
    save(writer, training, directory / "net");  // returns, although no step has been made
    training.step();
    CHECK_FALSE(std::filesystem::exists(directory / "net"));
    gate.open();
    writer.wait();
    CHECK(steps_loaded(directory) == 2);
}

TEST_CASE("the next save waits until the last one is written") {
    const TemporaryDirectory directory;
    SavedTraining training(3);
    CheckpointWriter writer;
    for (int i = 1; i <= 6; ++i) {
        training.step();
        save(writer, training, directory / ("net" + std::to_string(i)));
    }
    writer.wait();
    CHECK(writer.finished().size() == 6);
    SavedTraining other(3);
    for (int i = 1; i <= 6; ++i) {
        other.step();
        other.save(directory / "same");
        CHECK((bytes_of(directory / ("net" + std::to_string(i))) == bytes_of(directory / "same")));
    }
}

TEST_CASE("state on several devices is gathered, with buffers and Adam's moments") {
    const TemporaryDirectory directory;
    const auto train = [&](bool behind) {
        manual_seed(2);
        DataParallel model(Normal{}, {Device::cpu(0), Device::cpu(1)}, {.shards = 4, .seed = 2});
        Adam adam(model, {.lr = 0.01});
        std::vector<float> values;
        for (int i = 0; i < 16 * 16; ++i) values.push_back(static_cast<float>(i % 13) / 13);
        const Tensor x = Tensor::from(values, {16, 1, 4, 4}), y = Tensor::full({16, 3}, 0.5);
        CheckpointWriter writer;
        for (std::uint64_t step = 1; step <= 9; ++step) {
            model.step(adam, x, y, mse_loss);
            const auto file = directory / ((behind ? "behind" : "at once") + std::to_string(step));
            if (step % 3 == 0 && behind) writer.save(model, adam, {.steps = step}, file);
            if (step % 3 == 0 && !behind) save_checkpoint(model, adam, {.steps = step}, file);
        }
        writer.wait();
    };
    train(true);
    train(false);
    for (const char* step : {"3", "6", "9"})
        CHECK((bytes_of(directory / ("behind" + std::string(step))) ==
               bytes_of(directory / ("at once" + std::string(step)))));
}

TEST_CASE("each failed save is a warning, training continues, and the last failure is thrown at the end") {
    const TemporaryDirectory directory;
    SavedTraining training(3);
    training.to(2);
    training.save(directory / "net");
    const std::string before = bytes_of(directory / "net");
    const Warnings warnings;
    CheckpointWriter writer;
    {
        const FileSizeLimit full(600);
        for (int i = 0; i < 2; ++i) {
            training.step();
            save(writer, training, directory / "net");
        }
        CHECK_THAT(message_of<DataError>([&] { writer.wait(); }),
                   contains("net.resume.next: offset") && contains("writing failed"));
    }
    CHECK_NOTHROW(writer.wait());  // thrown once
    REQUIRE(warnings.texts().size() == 2);
    CHECK_THAT(warnings.texts()[0], contains("the checkpoint of step 3 was not saved, training continues: ") &&
                                        contains("writing failed: File too large"));
    CHECK_THAT(warnings.texts()[1], contains(" of step 4"));
    const auto finished = writer.finished();
    REQUIRE(finished.size() == 2);
    CHECK_THAT(finished[1].error, contains("writing failed"));
    CHECK((bytes_of(directory / "net") == before));
    CHECK(directory.names() == std::set<std::string>{"net", "net.resume"});
    training.step();
    SavedTraining straight(3);
    straight.to(5);
    CHECK((training.weights() == straight.weights()));
    {
        const FileSizeLimit full(600);
        save(writer, training, directory / "net");
        save(writer, training, directory / "nowhere/net");
        CHECK(!writer.finished().empty());  // the first one, for which the second has waited
    }
    save(writer, training, directory / "net");
    CHECK_NOTHROW(writer.wait());  // a newer one exists
    CHECK(steps_loaded(directory) == 5);
    CHECK_THAT(warnings.texts().back(), contains("expected a writable directory"));
}

TEST_CASE("a warning handler that throws in the writer's thread ends neither the process nor the writer") {
    const TemporaryDirectory directory;
    SavedTraining training(3);
    training.to(2);
    const LogHandler before =
        set_log_handler([](LogLevel, const std::string& text) { throw std::runtime_error(text); });
    CheckpointWriter writer;
    {
        const FileSizeLimit full(100);
        save(writer, training, directory / "net");
        CHECK_THAT(message_of<DataError>([&] { writer.wait(); }), contains("writing failed"));
    }
    save(writer, training, directory / "net");
    CHECK_NOTHROW(writer.wait());
    CHECK(std::filesystem::exists(directory / "net"));
    set_log_handler(before);
}

TEST_CASE("a full disk, a read-only directory and a path that is a device are reported") {
    const TemporaryDirectory directory;
    SavedTraining training(3);
    training.step();
    const Warnings warnings;
    CheckpointWriter writer;
    save(writer, training, "/dev/full");
    CHECK_THAT(message_of<InvalidArgument>([&] { writer.wait(); }), contains("/dev/full"));
    if (::geteuid() != 0) {
        WARN("skipped: the directory belongs to another user");
        return;
    }
    std::filesystem::create_directory(directory / "closed");
    std::filesystem::permissions(directory / "closed", std::filesystem::perms::owner_all);
    const bool outer = ::chmod(directory.path().c_str(), 0755) == 0;
    REQUIRE((outer && ::seteuid(65534) == 0));
    save(writer, training, directory / "closed/net");
    const std::string message = message_of<InvalidArgument>([&] { writer.wait(); });
    REQUIRE(::seteuid(0) == 0);
    CHECK_THAT(message, contains("closed/net") && contains("Permission denied"));
    CHECK(warnings.texts().size() == 2);
}

TEST_CASE("changes of a refused step are not saved") {
    const TemporaryDirectory directory;
    SavedTraining training(3);
    training.to(2);
    const Warnings warnings;
    CheckpointWriter writer;
    const Tensor bad = Tensor::full({5, 4}, std::numeric_limits<float>::quiet_NaN()), y = Tensor::zeros({5, 3});
    training.model().step(training.sgd(), bad, y, mse_loss);
    save(writer, training, directory / "net");
    CHECK_NOTHROW(writer.wait());
    CHECK(writer.finished().at(0).error == "an earlier step was refused");
    CHECK(directory.names().empty());
    CHECK_THROWS_AS(training.model().synchronize(), StepError);
    save(writer, training, directory / "net");  // the state before that step
    writer.wait();
    CHECK(steps_loaded(directory) == 2);
    CHECK(warnings.texts().empty());
}

TEST_CASE("unsavable state is rejected at once, and one snapshot can be written to several places") {
    const TemporaryDirectory directory;
    SavedTraining training(3), other(4);
    training.step();
    CheckpointWriter writer;
    CHECK(message_of<InvalidArgument>([&] {
              writer.save(training.model(), other.sgd(), training.state(), directory / "net");
          }) == "save: the optimizer belongs to another model; expected this model's optimizer");
    CHECK_THAT(message_of<InvalidArgument>(
                   [&] { writer.save(training.model(), training.sgd(), {.batch = -1}, directory / "net"); }),
               contains("batch is -1"));
    CHECK(directory.names().empty());
    writer.save(training.model(), training.sgd(), training.state(),
                std::vector<std::filesystem::path>{directory / "net", directory / "best"});
    writer.wait();
    CHECK((bytes_of(directory / "net") == bytes_of(directory / "best")));
    CHECK(steps_loaded(directory) == 1);
}

TEST_CASE("a forked child leaves the writer to its parent") {
    const TemporaryDirectory directory;
    std::optional<CheckpointWriter> writer(std::in_place);
    SavedTraining training(3);
    training.to(2);
    Held disk(directory / "net");
    save(*writer, training, directory / "net");
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        const std::string refused = message_of<InvalidArgument>([&] { save(*writer, training, directory / "net"); });
        writer->wait();
        const bool nothing = writer->finished().empty();
        writer.reset();
        ::_exit(nothing && refused.find("before this process was forked") != std::string::npos ? 0 : 1);
    }
    int status = -1;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK(status == 0);
    disk.let_go();
    writer->wait();
    CHECK(steps_loaded(directory) == 2);
}

TEST_CASE("a destroyed writer has written everything it was given") {
    const TemporaryDirectory directory;
    {
        SavedTraining training(3);
        training.to(4);
        CheckpointWriter writer;
        save(writer, training, directory / "net");
        CheckpointWriter moved(std::move(writer));
    }
    CHECK(steps_loaded(directory) == 4);
}
