// Where the time of a training step goes: the kernels of one shard of the MNIST network, record by record, beside the
// whole step. Each record runs alone on the calling thread, with the threads it was made for.
#include <omp.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/ops/loss.h"
#include "lockstep/parallel/lockstep.h"
#include "lockstep/parallel/program/shard_program.h"
#include "lockstep/runtime/internal/operand.h"
#include "lockstep/samples/mnist_nets.h"

namespace ls = lockstep;

namespace {

double seconds_since(std::chrono::steady_clock::time_point begin) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// The program of one shard with memory of its own for every operand.
class ShardBench {
public:
    ShardBench(std::int64_t rows, int threads)
        : stream_(ls::Stream::of(ls::Device::cpu(0))),
          store_(ls::named_tensors(net_), {ls::Device::cpu(0)}),
          program_(trace(rows, threads)) {
        for (const ls::Record& record : program_.records)
            for (const auto* side : {&record.in, &record.out})
                for (const ls::Operand& operand : *side) place(operand);
        for (const ls::Operand& input : program_.inputs) {
            place(input);
            std::fill_n(static_cast<char*>(address(input)), input.buffer->bytes(), char{0});
        }
        auto* pixels = static_cast<float*>(address(program_.inputs[0]));
        for (std::int64_t i = 0; i < rows * 28 * 28; ++i) pixels[i] = static_cast<float>(i % 251) / 251.0F;
        stream_.synchronize();
    }

    /// Seconds of each record in one pass.
    std::vector<double> run() {
        const ls::Launch launch{ls::Device::cpu(0), nullptr};
        std::vector<double> seconds;
        for (const ls::Record& record : program_.records) {
            std::vector<void*> in, out;
            for (const ls::Operand& operand : record.in) in.push_back(address(operand));
            for (const ls::Operand& operand : record.out) out.push_back(address(operand));
            std::shared_ptr<ls::Buffer> scratch;
            if (const std::size_t bytes = record.kernel->scratch_bytes(); bytes > 0)
                scratch = ls::Buffer::allocate(stream_, bytes, "scratch");
            omp_set_num_threads(record.kernel->threads);
            const auto begin = std::chrono::steady_clock::now();
            record.kernel->run({launch, in.data(), out.data(), scratch ? scratch->data() : nullptr, &step_, &status_,
                                &agreed_, record.ordinal, 0, 0, 1});
            seconds.push_back(seconds_since(begin));
        }
        return seconds;
    }

    const std::vector<ls::Record>& records() const { return program_.records; }

private:
    ls::ShardProgram trace(std::int64_t rows, int threads) {
        ls::ShardProgramRequest request;
        request.prototype = ls::Device::cpu(0);
        request.threads = threads;
        request.pass = ls::Pass::step;
        request.inputs = {ls::TensorMeta::contiguous(ls::DType::f32, {rows, 1, 28, 28}, true),
                          ls::TensorMeta::contiguous(ls::DType::i64, {rows}, true)};
        request.input_wants_gradient = {false, false};
        request.store = &store_;
        return ls::trace_shard(request, [&](const std::vector<ls::Tensor>& inputs) {
            ls::ModelResult result;
            result.loss = ls::nll_loss(net_.forward(inputs[0]), inputs[1]).terms();
            return result;
        });
    }

    void place(const ls::Operand& operand) {
        if (!operand.buffer || !operand.buffer->is_symbolic()) return;
        auto& memory = places_[operand.buffer->trace_id()];
        if (!memory) memory = ls::Buffer::allocate(stream_, operand.buffer->bytes(), "activations");
    }

    void* address(ls::Operand operand) const {
        if (!operand.buffer) return nullptr;
        if (operand.buffer->is_symbolic()) operand.buffer = places_.at(operand.buffer->trace_id());
        return ls::first_element(operand);
    }

    mnist::Cnn net_;
    ls::Stream& stream_;
    ls::ParameterStore store_;
    ls::ShardProgram program_;
    std::map<int, std::shared_ptr<ls::Buffer>> places_;
    ls::StepState step_;
    ls::StatusWord status_, agreed_;
};

/// Seconds of one whole step on cpu:0: until it is done, and until the host has enqueued it.
struct StepTime {
    double whole, host;
};

std::string shapes_of(const ls::Record& record) {
    std::string text;
    const auto append = [&](const std::vector<ls::Operand>& operands) {
        for (const ls::Operand& operand : operands) {
            text += ' ';
            text += operand.buffer ? operand.meta.shape.str() : std::string("-");
        }
    };
    append(record.in);
    text += " ->";
    append(record.out);
    return text;
}

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

void measure(std::int64_t rows, int threads, int repetitions) {
    ShardBench shard(rows, threads);
    ls::DataParallel model(mnist::Cnn(), {ls::Device::cpu(0)}, {.threads_per_shard = threads});
    ls::SGD sgd(model, {.lr = 0.01, .momentum = 0.5});
    const ls::Tensor images = ls::Tensor::rand({rows, 1, 28, 28});
    const ls::Tensor labels = ls::Tensor::zeros({rows}, ls::DType::i64);
    const auto step = [&] {
        const auto begin = std::chrono::steady_clock::now();
        model.step(sgd, images, labels, ls::nll_loss);
        const double host = seconds_since(begin);
        model.synchronize();
        return StepTime{seconds_since(begin), host};
    };
    shard.run();
    step();
    std::vector<std::vector<double>> kernels(shard.records().size());
    std::vector<double> whole, host, sums;
    for (int repetition = 0; repetition < repetitions; ++repetition) {
        const std::vector<double> pass = shard.run();
        double sum = 0;
        for (std::size_t i = 0; i < pass.size(); ++i) {
            kernels[i].push_back(pass[i]);
            sum += pass[i];
        }
        sums.push_back(sum);
        const StepTime time = step();
        whole.push_back(time.whole);
        host.push_back(time.host);
    }
    std::printf("%lld rows, %d threads\n      us  share  operation\n", static_cast<long long>(rows), threads);
    const double sum = median(sums);
    for (std::size_t i = 0; i < kernels.size(); ++i) {
        const double seconds = median(kernels[i]);
        std::printf("%8.1f  %4.1f%%  %s%s\n", 1e6 * seconds, 100 * seconds / sum,
                    std::string(shard.records()[i].operation->name()).c_str(), shapes_of(shard.records()[i]).c_str());
    }
    std::printf("%8.1f         all of them\n%8.1f         a whole step, reduction and update with it\n", 1e6 * sum,
                1e6 * median(whole));
    std::printf("%8.1f         of it until the host had enqueued everything\n\n", 1e6 * median(host));
}

}  // namespace

int main(int argc, char** argv) {
    CLI::App app("Time of each operation in a training step of the MNIST network, on the CPU.");
    std::vector<std::int64_t> rows{64};
    std::vector<int> threads{1, 2};
    int repetitions = 21;
    app.add_option("--rows", rows, "rows of the shard")->check(CLI::PositiveNumber)->capture_default_str();
    app.add_option("--threads", threads, "CPU threads of a kernel")->check(CLI::PositiveNumber)->capture_default_str();
    app.add_option("--repetitions", repetitions, "of each")->check(CLI::PositiveNumber)->capture_default_str();
    CLI11_PARSE(app, argc, argv);
    try {
        for (const std::int64_t count : rows)
            for (const int t : threads) measure(count, t, repetitions);
        return 0;
    } catch (const std::exception& error) {
        std::fprintf(stderr, "kernels-bench: %s\n", error.what());
        return 1;
    }
}
