// A rank under mpirun with devices of the CUDA stand-in, whose memory MPI can read like the host's: performs every
// operation on them, trains, and writes down all errors.
//   mpi-gpu-rank FOLDER
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <string>
#include <thread>

#include "lockstep/tests/cuda_standin/mpi_knows_gpus.h"
#include "lockstep/tests/cuda_standin/ranks_training.h"
#include "lockstep/tests/cuda_standin/standin.h"
#include "lockstep/tests/fixtures/waiting.h"
#include "lockstep/tests/parallel/comm/group_exercise.h"

using namespace lockstep;
using namespace lockstep::test;

namespace {

void append(Lines& to, const Lines& more) { to.insert(to.end(), more.begin(), more.end()); }

Tensor on_gpu(float value) { return Tensor::full({1000}, value, DType::f32, Device::cuda(0)); }

/// Number of device pairs between which `call` makes copies.
template <class Call>
std::size_t copies(Call&& call) {
    Stream::of(Device::cuda(0)).synchronize();
    standin::reset_counters();
    call();
    return standin::counters().pairs.size();
}

/// Tests which operations on GPU memory MPI performs itself.
Lines who_moves(ProcessGroup& group, bool cuda_aware) {
    const int other = 1 - group.rank();
    const Tensor x = on_gpu(static_cast<float>(group.rank())), y = on_gpu(9);
    const Tensor both = Tensor::empty({2, 1000}, DType::f32, Device::cuda(0));
    Lines lines;
    const auto expect = [&](bool moved_by_mpi, const char* what, std::size_t copied) {
        if ((copied == 0) != moved_by_mpi)
            lines.push_back(std::string(what) + ": " + std::to_string(copied) + " copies");
    };
    expect(cuda_aware, "all_gather", copies([&] { group.all_gather(both, x); }));
    expect(cuda_aware, "broadcast", copies([&] { group.broadcast(y, 0); }));
    expect(cuda_aware, "message",
           copies([&] { group.rank() == 0 ? group.send(x, other) : static_cast<void>(group.recv(y, other)); }));
    expect(false, "all_reduce", copies([&] { group.all_reduce(x); }));
    return lines;
}

/// One rank uses GPU memory, the other one host memory.
Lines mixed(ProcessGroup& group) {
    const Device device = group.rank() == 0 ? Device::cuda(0) : Device::host();
    const auto own = static_cast<float>(group.rank() + 1);
    const Tensor x = Tensor::full({500}, own, DType::f32, device), all = Tensor::empty({2, 500}, DType::f32, device);
    Lines lines;
    const auto expect = [&](const char* what, const Tensor& tensor, float first, float last) {
        const std::vector<float> values = tensor.to_vector<float>();
        if (values.front() != first || values.back() != last) lines.push_back(std::string("mixed: ") + what);
    };
    group.all_gather(all, x);
    expect("all_gather", all, 1, 2);
    const Tensor copy = x.clone();
    group.broadcast(copy, 1);
    expect("broadcast", copy, 2, 2);
    group.rank() == 0 ? group.send(x, 1) : static_cast<void>(group.recv(x, 0));
    expect("message", x, 1, 1);
    group.all_reduce(x);
    expect("all_reduce", x, 2, 2);
    // Inputs in one kind of memory, outputs in the other.
    const Tensor out = Tensor::empty({2, 500}, DType::f32, group.rank() == 0 ? Device::host() : Device::cuda(0));
    group.all_gather(out, x);
    expect("from one kind to the other", out, 2, 2);
    return lines;
}

/// Another part of the program that frees memory all the time: CUDA then waits until the GPU is idle, and blocks all
/// other calls for it meanwhile.
class Neighbour {
public:
    ~Neighbour() {
        stopped_ = true;
        thread_.join();
    }

private:
    std::atomic<bool> stopped_{false};
    std::thread thread_{[this] {
        while (!stopped_) {
            void* memory = nullptr;
            if (cudaMalloc(&memory, 256) == cudaSuccess) (void)cudaFree(memory);
            std::this_thread::sleep_for(std::chrono::microseconds(200));
        }
    }};
};

/// Steps concurrent with a neighbour.
Lines next_to_another_group(ProcessGroup& group) {
    standin::set_delays(static_cast<std::uint64_t>(group.rank()) + 1, 100);
    Lines lines;
    {
        const Neighbour neighbour;
        lines = same_bits<test::Normed>(group, {.shards = 4, .bucket_bytes = 8192});
        append(lines, same_bits<test::Synced>(group, {.shards = 4, .bucket_bytes = 40000}));
    }
    standin::set_delays(0, 0);
    return lines;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 2) return 2;
    const std::string told = std::getenv("LOCKSTEP_MPI_CUDA_AWARE");
    ::alarm(static_cast<unsigned>(lockstep::test::hang.count()));  // ends a rank that hangs
    if (told == "1") let_mpi_know_gpus();
    std::ofstream out(std::string(argv[1]) + "/rank" + std::getenv("OMPI_COMM_WORLD_RANK"));
    try {
        ProcessGroup group({.backend = "mpi"});
        Lines lines = exercise_group(group, Device::cuda(0));
        append(lines, exercise_group_messages(group, Device::cuda(0)));
        append(lines, who_moves(group, told == "1"));
        append(lines, mixed(group));
        append(lines, same_bits<test::Normed>(group, {.shards = 8, .bucket_bytes = 4096}));
        append(lines, next_to_another_group(group));
        for (const standin::Mistake& mistake : standin::take_mistakes()) lines.push_back(mistake.message);
        for (const std::string& line : lines) out << line << '\n';
        out << "done\n";
    } catch (const std::exception& error) {
        out << error.what() << '\n';
        return 1;
    }
    return 0;
}
