#include "lockstep/ops/cpu/conv/conv_trials.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <memory>
#include <new>

#include "lockstep/ops/cpu/conv/conv_engine.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/kernels.h"
#include "lockstep/runtime/round_up.h"
#include "lockstep/runtime/stream.h"

namespace lockstep::cpu {
namespace {

struct Free {
    void operator()(void* memory) const { std::free(memory); }
};

/// Memory aligned to 64 bytes and filled with `value`, because zeros and denormal numbers may take a different time.
std::unique_ptr<float, Free> filled(std::size_t bytes, float value) {
    const std::size_t whole = round_up(std::max<std::size_t>(bytes, 1), 64);
    auto* memory = static_cast<float*>(std::aligned_alloc(64, whole));
    if (memory == nullptr) throw std::bad_alloc();
    std::fill_n(memory, whole / sizeof(float), value);
    return std::unique_ptr<float, Free>(memory);
}

/// The three passes of one algorithm, with separate memory.
class Passes {
public:
    Passes(const ConvShape& shape, int threads, const std::string& way)
        : engine_(shape, threads, allowed_isa(), way),
          x_(filled(engine_.src_layout().get_size(), 0.5F)),
          dx_(filled(engine_.src_layout().get_size(), 0)),
          y_(filled(engine_.dst_layout().get_size(), 0)),
          dy_(filled(engine_.dst_layout().get_size(), 0.25F)),
          w_(filled(weight_bytes(shape), 0.01F)),
          dw_(filled(weight_bytes(shape), 0)),
          bias_(filled(static_cast<std::size_t>(shape.k) * sizeof(float), 0)),
          scratch_(filled(engine_.scratch_bytes(), 0)) {}

    double seconds() const {
        const auto begin = std::chrono::steady_clock::now();
        engine_.forward(x_.get(), w_.get(), bias_.get(), false, y_.get(), scratch_.get());
        engine_.backward_data(dy_.get(), w_.get(), nullptr, dx_.get(), scratch_.get());
        engine_.backward_weights(x_.get(), dy_.get(), dw_.get(), bias_.get(), scratch_.get());
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    }

private:
    static std::size_t weight_bytes(const ConvShape& s) {
        return static_cast<std::size_t>(s.weights()) * sizeof(float);
    }
    ConvEngine engine_;
    std::unique_ptr<float, Free> x_, dx_, y_, dy_, w_, dw_, bias_, scratch_;
};

/// Result of `fastest_algorithm`, run on the threads of `device` like kernels.
std::string fastest_on(Device device, const ConvShape& shape, int threads, const std::vector<std::string>& ways) {
    struct Outcome {
        std::string way;
        std::exception_ptr failure;
    };
    const auto outcome = std::make_shared<Outcome>();
    Stream& stream = Stream::of(device);
    const auto work = [outcome, shape, threads, ways](const ExecContext&) {
        try {
            std::unique_ptr<Passes> passes;
            std::string made;
            outcome->way = fastest_algorithm(ways, [&](const std::string& way) {
                if (made != way || !passes) {
                    passes.reset();  // one at a time, to save memory
                    passes = std::make_unique<Passes>(shape, threads, way);
                    made = way;
                }
                return passes->seconds();
            });
        } catch (...) {
            outcome->failure = std::current_exception();
        }
    };
    stream.run("trials of a convolution", {}, work, threads);
    Event done(device);
    stream.record(done);
    done.synchronize();
    if (outcome->failure) std::rethrow_exception(outcome->failure);
    if (outcome->way.empty()) stream.synchronize();  // skipped because earlier work failed
    if (outcome->way.empty())
        throw DeviceError("trials of a convolution: all algorithms failed; expected at least one to run");
    return outcome->way;
}

}  // namespace

std::string benchmarked_algorithm(const ConvShape& s, int threads, Device device) {
    ConvShape shape = s;
    shape.bias = true;
    const std::vector<std::string> ways = ConvEngine::algorithms(shape);
    if (ways.size() == 1) return ways.front();
    const std::string question = fmt::format("conv2d f32 {}, on cpu {} with {} {}", text_of(s), isa_name(allowed_isa()),
                                             threads, threads == 1 ? "thread" : "threads");
    return AlgorithmChoices::current().choose(question, ways, [&] { return fastest_on(device, shape, threads, ways); });
}

}  // namespace lockstep::cpu
