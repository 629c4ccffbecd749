// Ends the process in the way that its argument names while a model is trained. Status 7 is the expected one.
#include <atomic>
#include <cstdlib>
#include <optional>
#include <string>
#include <thread>

#include "lockstep/parallel/lockstep.h"

namespace ls = lockstep;

namespace {

struct Net {
    ls::Conv2d first{1, 8, 3}, second{8, 16, 3};
    ls::Linear last{16 * 8 * 8, 10};
    LOCKSTEP_MEMBERS(first, second, last)
    ls::Tensor forward(const ls::Tensor& x) const {
        return ls::log_softmax(last(ls::relu(second(ls::relu(first(x)))).flatten(1)), 1);
    }
};

std::atomic<int> readers_to_end{0};

struct Rows {
    std::int64_t size() const { return 256; }
    std::tuple<ls::Tensor, ls::Tensor> get(std::int64_t row) const {
        if (row > 100 && readers_to_end > 0 && readers_to_end.fetch_sub(1) > 0) std::exit(7);
        return {ls::Tensor::full({1, 12, 12}, static_cast<double>(row) / 256),
                ls::Tensor::full({}, static_cast<double>(row % 10), ls::DType::i64)};
    }
};

struct Training {
    ls::DataParallel<Net> model{Net{}, {ls::Device::cpu(0), ls::Device::cpu(1)}};
    ls::SGD sgd{model, {.lr = 0.01}};
    ls::Loader<Rows> loader{model, Rows{}, {.batch_size = 16, .workers = 2}};

    void epoch(std::uint64_t number) {
        for (auto& [images, labels] : loader.epoch(number)) model.step(sgd, images, labels, ls::nll_loss);
    }
};

std::optional<Training> of_the_process;

/// Trains until the process ends.
void train_on(Training& training, std::atomic<bool>& begun) {
    for (std::uint64_t epoch = 0;; ++epoch) {
        training.epoch(epoch);
        begun = true;
    }
}

void await(const std::atomic<bool>& begun) {
    while (!begun) std::this_thread::yield();
}

}  // namespace

int main(int count, char** arguments) {
    const std::string way = count > 1 ? arguments[1] : "";
    std::atomic<bool> begun{false};
    const bool kept = way.starts_with("static ");
    const std::string how = kept ? way.substr(7) : way;
    std::optional<Training> local;
    Training& training = kept ? of_the_process.emplace() : local.emplace();
    if (how == "exit of another thread") {
        std::thread([&] {
            await(begun);
            std::exit(7);
        }).detach();
        train_on(training, begun);
    } else if (how == "exit while another thread trains") {
        std::thread([&] { train_on(training, begun); }).detach();
        await(begun);
        std::exit(7);
    } else if (how == "quick_exit") {
        std::thread([&] {
            await(begun);
            std::quick_exit(7);
        }).detach();
        train_on(training, begun);
    } else if (how == "return") {
        auto epoch = training.loader.epoch(0);
        auto batch = epoch.begin();
        auto& [images, labels] = *batch;
        for (int i = 0; i < 5; ++i) training.model.step(training.sgd, images, labels, ls::nll_loss);
        return 7;
    } else if (how == "exit of a reader" || how == "exit of both readers") {
        training.epoch(0);
        readers_to_end = how == "exit of a reader" ? 1 : 2;
        train_on(training, begun);
    }
    return 1;
}
