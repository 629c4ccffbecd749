// PyTorch's MNIST example: a convolutional network on handwritten digits, data-parallel on every device.
#include <CLI/CLI.hpp>
#include <chrono>
#include <string>

#include "lockstep/parallel/lockstep.h"
#include "lockstep/samples/program/train.h"

namespace ls = lockstep;

namespace {

/// The network of PyTorch's examples.
struct Cnn {
    ls::Conv2d conv1{1, 32, 3}, conv2{32, 64, 3};
    ls::Dropout2d drop1{0.25}, drop2{0.5};
    ls::Linear fc1{9216, 128}, fc2{128, 10};
    LOCKSTEP_MEMBERS(conv1, conv2, drop1, drop2, fc1, fc2)

    ls::Tensor forward(ls::Tensor x) {  // (N, 1, 28, 28) -> (N, 10)
        x = ls::relu(conv2(ls::relu(conv1(x))));
        x = drop1(ls::max_pool2d(x, 2)).flatten(1);
        return ls::log_softmax(fc2(drop2(ls::relu(fc1(x)))), 1);
    }

    static constexpr double mean = 0, stddev = 1;  // pixels in 0..1
};

/// The older, smaller one.
struct Small {
    ls::Conv2d conv1{1, 10, 5}, conv2{10, 20, 5};
    ls::Dropout2d conv2_drop{0.5};
    ls::Dropout drop{0.5};
    ls::Linear fc1{320, 50}, fc2{50, 10};
    LOCKSTEP_MEMBERS(conv1, conv2, conv2_drop, drop, fc1, fc2)

    ls::Tensor forward(ls::Tensor x) {  // (N, 1, 28, 28) -> (N, 10)
        x = ls::relu(ls::max_pool2d(conv1(x), 2));
        x = ls::relu(ls::max_pool2d(conv2_drop(conv2(x)), 2)).flatten(1);
        return ls::log_softmax(fc2(drop(ls::relu(fc1(x)))), 1);
    }

    static constexpr double mean = 0.1307, stddev = 0.3081;
};

template <class Net>
void train(const program::Options& options, std::chrono::steady_clock::time_point began) {
    const ls::Devices devices = options.chosen_devices();
    const ls::Mnist training(options.data, {.train = true, .mean = Net::mean, .stddev = Net::stddev});
    const ls::Mnist test(options.data, {.train = false, .mean = Net::mean, .stddev = Net::stddev});
    ls::manual_seed(options.seed);
    ls::DataParallel model(Net{}, devices, options.engine_options());
    const std::int64_t batch = options.global_batch_size(devices);
    ls::Loader batches(model, training,
                       {.batch_size = batch, .shuffle = true, .seed = options.seed, .workers = options.workers});
    ls::Loader test_batches(model, test,
                            {.batch_size = std::max<std::int64_t>(batch, 250), .workers = options.workers});
    program::train(
        "mnist", options, model, batches, ls::nll_loss, [&] { return ls::accuracy(model, test_batches); }, began);
}

}  // namespace

int main(int argc, char** argv) {
    const auto began = std::chrono::steady_clock::now();
    program::Options options;
    options.data = "data/digits";
    std::string net = "cnn";
    const auto add_flags = [&](CLI::App& app) {
        app.add_option("--net", net, "cnn: conv 32-64, linear 128; small: conv 10-20, linear 50")
            ->type_name("cnn|small")
            ->check(CLI::IsMember({"cnn", "small"}).description(""))
            ->capture_default_str();
    };
    return program::run(
        {"mnist", "Train PyTorch's MNIST network on IDX files (make-digits draws some).", true, add_flags}, options,
        argc, argv, [&] { net == "cnn" ? train<Cnn>(options, began) : train<Small>(options, began); });
}
