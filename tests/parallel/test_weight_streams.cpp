// Weights in memory, in streams and in open files.
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstddef>
#include <span>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/ops/layers.h"
#include "lockstep/ops/loss.h"
#include "lockstep/ops/sgd.h"
#include "lockstep/parallel/checkpoint.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/runtime/error.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/eight_devices.h"
#include "lockstep/tests/fixtures/files.h"
#include "lockstep/tests/fixtures/messages.h"

using namespace lockstep;
using namespace lockstep::test;

namespace {

struct Net {
    Linear body{3, 4};
    BatchNorm2d norm{2};
    Linear head{4, 200};
    LOCKSTEP_MEMBERS(body, norm, head)
    Tensor forward(const Tensor& x) const { return head(body(x)); }
};

auto values(Net& net) {
    std::vector<std::vector<double>> all;
    for (const NamedTensor& named : named_tensors(net))
        all.push_back(named.member->tensor().to(DType::f64).to_vector<double>());
    return all;
}

/// Both ends of a pipe.
struct Pipe {
    std::array<int, 2> ends{};
    Pipe() { REQUIRE(::pipe2(ends.data(), O_CLOEXEC) == 0); }
    ~Pipe() {
        close_reader();
        close_writer();
    }
    Pipe(const Pipe&) = delete;
    Pipe& operator=(const Pipe&) = delete;
    void close_reader() { close_one(ends[0]); }
    void close_writer() { close_one(ends[1]); }
    static void close_one(int& end) {
        if (end >= 0) ::close(end);
        end = -1;
    }
};

std::string text_of(std::span<const std::byte> bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

TEST_CASE("weights in memory are the bytes of the file") {
    Net net;
    const TemporaryDirectory folder;
    save(net, folder / "net");
    const std::vector<std::byte> bytes = save_to_memory(net);
    CHECK(text_of(bytes) == get_bytes(folder / "net"));
    std::ostringstream out;
    out << "before";
    save(net, out);
    CHECK(out.str() == "before" + text_of(bytes));

    Net other;
    CHECK(values(other) != values(net));
    load(other, bytes);
    CHECK(values(other) == values(net));
    Net from_stream;
    std::istringstream in(out.str());
    in.seekg(6);
    load(from_stream, in);
    CHECK(values(from_stream) == values(net));
}

TEST_CASE("weights go through pipes and files at any position") {
    Net net;
    const std::vector<std::byte> bytes = save_to_memory(net);
    const TemporaryDirectory folder;
    const int file = ::open((folder / "archive").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    REQUIRE(file >= 0);
    REQUIRE(::write(file, "head", 4) == 4);
    save(net, FileDescriptor{file});
    CHECK(get_bytes(folder / "archive") == "head" + text_of(bytes));
    REQUIRE(::lseek(file, 4, SEEK_SET) == 4);
    Net from_file;
    load(from_file, FileDescriptor{file});
    CHECK(values(from_file) == values(net));
    ::close(file);

    Pipe pipe;
    REQUIRE(::fcntl(pipe.ends[1], F_SETPIPE_SZ, 4096) > 0);  // smaller than the weights
    std::thread writer([&] {
        save(net, FileDescriptor{pipe.ends[1]});
        pipe.close_writer();
    });
    Net from_pipe;
    load(from_pipe, FileDescriptor{pipe.ends[0]});
    writer.join();
    CHECK(values(from_pipe) == values(net));
}

TEST_CASE("weights in memory: wrappers, options and files of torch.save") {
    DataParallel model(Net{}, cpu_devices(2));
    Net copy = *model;
    SGD sgd(model, {.lr = 0.1});
    const std::vector<std::byte> start = save_to_memory(model);
    model.step(sgd, Tensor::ones({4, 3}), Tensor::zeros({4, 200}), mse_loss);
    CHECK(text_of(save_to_memory(model)) != text_of(start));
    load(model, start);
    CHECK(values(*model) == values(copy));
    model.engine().verify_replicas();

    Net other;
    const auto before = values(other);
    load(other, start, {.filter = [](const std::string& name) { return name.starts_with("body."); }});
    const auto after = values(other);
    CHECK(after[0] == values(copy)[0]);
    CHECK(after.back() == before.back());

    const std::string torch = get_bytes(std::filesystem::path(PTH_FILES) / "net.pth");
    std::istringstream stream(torch);
    const std::string from_torch = message_of<DataError>([&] { load(other, stream); });
    CHECK_THAT(from_torch, contains("stream does not fit the model: missing "));
    CHECK(values(other) == after);
}

TEST_CASE("weights in memory: damaged bytes and failing streams are refused, and nothing is loaded") {
    Net net;
    const auto before = values(net);
    const Net source;
    Net copy = source;
    std::vector<std::byte> bytes = save_to_memory(copy);
    const auto refusal = [&](std::span<const std::byte> given) {
        const std::string message = message_of<DataError>([&] { load(net, given); });
        CHECK(values(net) == before);
        return message;
    };
    CHECK_THAT(refusal({}), contains("memory: offset 0: the file is empty"));
    for (const std::size_t size : {std::size_t{1}, std::size_t{7}, std::size_t{8}, std::size_t{40}, bytes.size() - 1})
        CHECK_THAT(refusal(std::span(bytes).first(size)), contains("memory: "));
    bytes.push_back({});
    CHECK_THAT(refusal(bytes), contains("memory: "));
    const std::string index = R"({"weight_map": {"body.weight": "part"}})";
    CHECK_THAT(refusal(std::as_bytes(std::span(index))), contains("JSON text"));

    std::istringstream closed;
    closed.setstate(std::ios::badbit);
    CHECK_THAT(message_of<DataError>([&] { load(net, closed); }), contains("cannot be read"));
    std::ostringstream full;
    full.setstate(std::ios::badbit);
    CHECK_THAT(message_of<DataError>([&] { save(net, full); }), contains("failed after 0 bytes"));
    CHECK_THAT(message_of<DataError>([&] { load(net, FileDescriptor{-1}); }),
               contains("descriptor -1 failed: Bad file"));
    CHECK_THAT(message_of<DataError>([&] { save(net, FileDescriptor{-1}); }), contains("after 0 bytes: Bad file"));
}

TEST_CASE("weights: a closed reader and a file limit are errors and do not end the process") {
    Net net;
    Pipe pipe;
    pipe.close_reader();
    CHECK_THAT(message_of<DataError>([&] { save(net, FileDescriptor{pipe.ends[1]}); }), contains("Broken pipe"));
    std::array<int, 2> sockets{};
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets.data()) == 0);
    ::close(sockets[0]);
    CHECK_THAT(message_of<DataError>([&] { save(net, FileDescriptor{sockets[1]}); }), contains("Broken pipe"));
    ::close(sockets[1]);
    sigset_t pending;
    ::sigpending(&pending);
    CHECK(sigismember(&pending, SIGPIPE) == 0);

    const TemporaryDirectory folder;
    const int file = ::open((folder / "limited").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    REQUIRE(file >= 0);
    {
        const FileSizeLimit limit(1000);
        CHECK_THAT(message_of<DataError>([&] { save(net, FileDescriptor{file}); }),
                   contains("after 1000 bytes: File too large"));
    }
    ::close(file);
}
