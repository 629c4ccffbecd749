// Checkpoint and resume: a run that was interrupted or killed continues, bit-identical to an uninterrupted one.
//
//     resume [STEPS]    STEPS: number of steps, including those before a resume; default 200
#include <lockstep/lockstep.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <string>

namespace ls = lockstep;

struct Net {
    ls::Linear fc1{16, 64}, fc2{64, 1};
    ls::Dropout drop{0.2};
    LOCKSTEP_MEMBERS(fc1, fc2, drop)
    ls::Tensor forward(const ls::Tensor& x) { return fc2(drop(ls::relu(fc1(x)))); }  // (N, 16) -> (N, 1)
};

int main(int argc, char** argv) try {
    const std::uint64_t steps = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 200;
    if (steps == 0) throw ls::InvalidArgument("STEPS is " + std::string(argv[1]) + "; expected a number above 0");
    const std::filesystem::path file = "resume.safetensors";
    ls::manual_seed(1);
    const ls::Tensor x = ls::Tensor::randn({1000, 16});
    const ls::Tensor y = ls::mean(ls::square(x), {1}, true);

    ls::DataParallel model(Net{}, ls::Devices::visible(), {.shards = 2});  // the same bits on any number of devices
    ls::Adam adam(model, {.lr = 0.01});
    ls::Loader batches(model, ls::TensorDataset(x, y), {.batch_size = 32, .shuffle = true, .seed = 1});

    ls::RunState run{.batch_size = 32, .seed = 1};  // epoch, batch, and custom fields
    if (std::filesystem::exists(file))
        if (const auto saved = ls::load_checkpoint(model, adam, file)) run = *saved;
    std::printf("%s at epoch %llu, step %llu\n", run.steps > 0 ? "resumed" : "started",
                static_cast<unsigned long long>(run.epoch + 1), static_cast<unsigned long long>(run.steps));

    const ls::StopSignals signals;  // SIGINT and SIGTERM now end training between two steps
    for (bool ends = false; !ends;) {
        for (auto& [input, target] : batches.epoch(run.epoch, run.batch)) {
            ends = run.steps >= steps || model.should_stop(signals);
            if (ends) break;
            model.step(adam, input, target, ls::mse_loss);
            ++run.steps, ++run.batch;
        }
        if (!ends) ++run.epoch, run.batch = 0;
        ls::save_checkpoint(model, adam, run, file);  // atomic: if killed in the middle, the previous one remains
    }
    std::printf("saved %s after %llu steps\n", file.c_str(), static_cast<unsigned long long>(run.steps));
    return 0;
} catch (const std::exception& error) {
    std::fprintf(stderr, "resume: %s\n", error.what());
    return 1;
}
