// PyTorch's MNIST example: a convolutional network on handwritten digits, data-parallel on every device.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "lockstep/parallel/lockstep.h"
#include "lockstep/samples/apps/mnist_nets.h"
#include "lockstep/samples/apps/program/ranks_agree.h"
#include "lockstep/samples/apps/program/strategy.h"
#include "lockstep/samples/apps/program/train.h"

namespace ls = lockstep;

namespace {

template <class Net>
std::optional<program::Stop> train(const program::Options& options, std::chrono::steady_clock::time_point began) {
    const ls::Mnist training(options.data, {.train = true, .mean = Net::mean, .stddev = Net::stddev});
    const ls::Mnist test(options.data, {.train = false, .mean = Net::mean, .stddev = Net::stddev});
    if (options.group)
        program::require_ranks_agree(*options.group, {fmt::format("{} rows to train on", training.size()),
                                                      fmt::format("{} rows to test on", test.size())});
    ls::manual_seed(options.seed);
    const std::int64_t batch = options.global_batch_size(options.chosen_devices());
    return program::with_model(options, Net{}, [&](auto& model) {
        ls::Loader batches(model, training,
                           {.batch_size = batch, .shuffle = true, .seed = options.seed, .workers = options.workers});
        ls::Loader test_batches(model, test,
                                {.batch_size = std::max<std::int64_t>(batch, 250), .workers = options.workers});
        ls::SGD sgd(model, program::sgd_options(options));
        std::map<std::string, std::string> facts{{"dataset", program::describe_data(training)}};
        if (options.follows_score()) facts["test-dataset"] = program::describe_data(test);
        return program::train("mnist", options, model, batches, ls::nll_loss,
                              {.optimizer = sgd,
                               .evaluate = [&] { return ls::accuracy(model, test_batches); },
                               .facts = std::move(facts)},
                              began);
    });
}

}  // namespace

int main(int argc, char** argv) {
    const auto began = std::chrono::steady_clock::now();
    program::Options options;
    options.data = "data/digits";
    std::string net = "cnn";
    const auto add_flags = [&](CLI::App& app) {
        app.add_option("--net", net, "conv 32-64 and linear 128, or conv 10-20 and linear 50")
            ->type_name("cnn|small")
            ->check(CLI::IsMember({"cnn", "small"}).description(""))
            ->capture_default_str();
    };
    return program::run(
        {"mnist", "Train PyTorch's MNIST network on IDX files, such as those of make-digits.",
         "directory with IDX files under MNIST's names", add_flags},
        options, argc, argv,
        [&] { return net == "cnn" ? train<mnist::Cnn>(options, began) : train<mnist::Small>(options, began); });
}
