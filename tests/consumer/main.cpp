// A program outside of Lockstep's build, with one header and one target: trains on several devices and in several
// processes, also with a custom optimizer, saves, loads, and catches an error.
#include <lockstep/lockstep.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "lion.h"

namespace ls = lockstep;

namespace {

struct Net {
    ls::Linear line{2, 1};
    LOCKSTEP_MEMBERS(line)
    ls::Tensor forward(const ls::Tensor& x) { return line(x); }  // (N, 2) -> (N, 1)
};

void require(bool holds, const char* what) {
    if (holds) return;
    std::printf("consumer: %s\n", what);
    std::exit(1);
}

std::vector<float> parameters(Net& net) {
    std::vector<float> all = net.line.weight->to_vector<float>();
    all.push_back((*net.line.bias)->to_vector<float>()[0]);
    return all;
}

/// One step of gradient descent on the mean squared error, by hand.
std::vector<double> step_by_hand(const std::vector<float>& w, const std::vector<float>& x, const std::vector<float>& y,
                                 double lr) {
    std::vector<double> next(w.begin(), w.end());
    for (std::size_t row = 0; row < y.size(); ++row) {
        const double error = double(w[0]) * x[2 * row] + double(w[1]) * x[2 * row + 1] + w[2] - y[row];
        const double factor = lr * 2 * error / double(y.size());
        next[0] -= factor * x[2 * row];
        next[1] -= factor * x[2 * row + 1];
        next[2] -= factor;
    }
    return next;
}

void train_save_and_load() {
    const std::vector<float> x{1, 2, -1, 0.5, 3, -2, 0, 1, 2, 2}, y{1, -2, 0.5, 3, -1};
    const double lr = 0.1;
    ls::DataParallel model(Net{}, ls::Devices::visible());
    ls::SGD sgd(model, {.lr = lr});
    const std::vector<double> expected = step_by_hand(parameters(*model), x, y, lr);
    model.step(sgd, ls::Tensor::from(x, {5, 2}), ls::Tensor::from(y, {5, 1}), ls::mse_loss);
    model.synchronize();
    const std::vector<float> trained = parameters(*model);
    for (std::size_t i = 0; i < trained.size(); ++i)
        require(std::abs(trained[i] - expected[i]) < 1e-5, "a step differs from the one computed by hand");

    ls::save(model, "consumer.safetensors");
    ls::DataParallel again(Net{}, ls::Devices::visible());
    require(parameters(*again) != trained, "a new model has the weights of the trained one");
    ls::load(again, "consumer.safetensors");
    require(parameters(*again) == trained, "the loaded weights differ from the saved ones");
}

/// Four steps with Lion, with a batch in eight shards.
template <class Model>
void train_with_lion(Model& model) {
    Lion lion(model, {.lr = 0.01, .weight_decay = 0.1});
    for (int step = 0; step < 4; ++step) {
        std::vector<float> x, y;
        for (int i = 0; i < 32; ++i) x.push_back(static_cast<float>((7 * i + step) % 11) - 5);
        for (int i = 0; i < 16; ++i) y.push_back(static_cast<float>(i % 3));
        model.step(lion, ls::Tensor::from(x, {16, 2}), ls::Tensor::from(y, {16, 1}), ls::mse_loss);
    }
    model.synchronize();
}

std::vector<float> trained_on(int devices) {
    std::vector<ls::Device> list;
    for (int i = 0; i < devices; ++i) list.push_back(ls::Device::cpu(i));
    ls::manual_seed(4);
    ls::DataParallel model(Net{}, ls::Devices(list), {.shards = 8});
    train_with_lion(model);
    return parameters(*model);
}

/// Counts the steps with reported losses, and ends the run after the tenth.
struct TenSteps : ls::RunHook {
    explicit TenSteps(int& heard) : heard_(heard) {}
    void after_step(ls::Runner& run, const ls::StepReport& step) override {
        require(step.step == heard_, "losses are reported out of order");
        if (++heard_ == 10) run.end();
    }
    int& heard_;
};

void run_with_a_hook_of_its_own() {
    ls::DataParallel model(Net{}, ls::Devices::visible());
    ls::SGD sgd(model, {.lr = 0.01});
    ls::Loader loader(model, ls::TensorDataset(ls::Tensor::zeros({24, 2}), ls::Tensor::zeros({24, 1})),
                      {.batch_size = 8});
    ls::Runner runner(model, sgd, loader, ls::mse_loss, {.epochs = 100});
    int heard = 0;
    runner.add(TenSteps(heard));
    runner.run();
    require(heard >= 10 && heard < 20, "the hook did not end the run");
}

/// One of several processes.
int train_as_rank() {
    ls::ProcessGroup group({.backend = "shm"});
    ls::manual_seed(4);
    ls::DistributedDataParallel model(Net{}, group, {.shards = 8});
    train_with_lion(model);
    require(parameters(*model) == trained_on(1), "Lion is not bit-identical in several processes");
    group.barrier();
    return 0;
}

void train_with_an_optimizer_of_its_own(const char* program) {
    const ls::LaunchResult result = ls::launch({.command = {program, "rank"}, .processes = 2});
    require(result.success(), result.str().c_str());
    const std::vector<float> expected = trained_on(1);
    for (const int devices : {3, 8})
        require(trained_on(devices) == expected, "Lion is not bit-identical on several devices");
}

}  // namespace

int main(int count, char** words) {
    if (count > 1) return train_as_rank();
    setenv("LOCKSTEP_CPU_DEVICES", "8", 1);
    train_with_an_optimizer_of_its_own(words[0]);
    train_save_and_load();
    run_with_a_hook_of_its_own();
    try {
        Net net;
        ls::load(net, "nothing.safetensors");
    } catch (const ls::Error& error) {
        std::puts(error.what());
        return 0;
    }
    require(false, "a missing file was loaded");
}
