#include "lockstep/ops/cuda/conv_trials.h"

#include <optional>

#include "lockstep/runtime/cuda/stream_memory.h"
#include "lockstep/runtime/internal/kernels.h"
#include "lockstep/runtime/stream.h"

namespace lockstep::cuda {

namespace {

/// Seconds that the stream's device needed for the work of `enqueue`.
double seconds_of(Device device, std::size_t bytes, const std::function<void(cudnnHandle_t, char*)>& enqueue) {
    Event begin(device, true), end(device, true);
    Stream& stream = Stream::of(device);
    const auto on_stream = [&](const std::function<void(cudaStream_t)>& work) {
        stream.run("trials of a convolution", {},
                   [&](const ExecContext& context) { work(static_cast<cudaStream_t>(context.native)); });
    };
    std::optional<StreamMemory> memory;
    on_stream([&](cudaStream_t native) {
        memory.emplace(native, bytes);
        check(cudaMemsetAsync(memory->data(), 0, bytes, native), "cudaMemsetAsync");
    });
    stream.record(begin);
    on_stream([&](cudaStream_t native) {
        Libraries& libraries = libraries_of(device);
        const std::scoped_lock lock(libraries.mutex);
        check(cudnnSetStream(libraries.dnn, native), "cudnnSetStream");
        enqueue(libraries.dnn, static_cast<char*>(memory->data()));
    });
    stream.record(end);
    on_stream([&](cudaStream_t) { memory.reset(); });
    end.synchronize();
    return Event::elapsed_ms(begin, end) / 1000;
}

}  // namespace

std::size_t benchmarked_algorithm(
    Device device, const std::string& question, const std::vector<std::string>& ways, std::size_t bytes,
    const std::function<void(cudnnHandle_t handle, std::size_t way, char* memory)>& enqueue) {
    const auto place = [&](const std::string& name) {
        return static_cast<std::size_t>(std::find(ways.begin(), ways.end(), name) - ways.begin());
    };
    return place(AlgorithmChoices::current().choose(question, ways, [&] {
        return fastest_algorithm(ways, [&](const std::string& name) {
            return seconds_of(device, bytes,
                              [&](cudnnHandle_t handle, char* memory) { enqueue(handle, place(name), memory); });
        });
    }));
}

}  // namespace lockstep::cuda
