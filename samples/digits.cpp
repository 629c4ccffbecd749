// PyTorch's MNIST example: a convolutional network on handwritten digits.
//
//     digits [DIR]    DIR: directory with MNIST's four IDX files; default data/digits, where make-digits draws some
#include <lockstep/lockstep.h>

#include <cstdio>
#include <exception>
#include <utility>

namespace ls = lockstep;

struct Net {
    ls::Conv2d conv1{1, 10, 5}, conv2{10, 20, 5};
    ls::Dropout2d drop1{0.5};
    ls::Dropout drop2{0.5};
    ls::Linear fc1{320, 50}, fc2{50, 10};
    LOCKSTEP_MEMBERS(conv1, conv2, drop1, drop2, fc1, fc2)

    ls::Tensor forward(ls::Tensor x) {                     // (N, 1, 28, 28)
        x = ls::relu(ls::max_pool2d(conv1(x), 2));         // (N, 10, 12, 12)
        x = ls::relu(ls::max_pool2d(drop1(conv2(x)), 2));  // (N, 20, 4, 4)
        x = drop2(ls::relu(fc1(x.flatten(1))));            // (N, 50)
        return ls::log_softmax(fc2(x), 1);                 // (N, 10)
    }
};

int main(int argc, char** argv) try {
    const char* directory = argc > 1 ? argv[1] : "data/digits";
    const double mean = 0.1307, stddev = 0.3081;  // statistics of MNIST's pixels
    ls::manual_seed(1);
    ls::DataParallel model(Net{});
    ls::SGD sgd(model, {.lr = 0.01, .momentum = 0.9});
    ls::Loader train(model, ls::Mnist(directory, {.train = true, .mean = mean, .stddev = stddev}),
                     {.batch_size = 64, .shuffle = true, .seed = 1});
    ls::Loader test(model, ls::Mnist(directory, {.train = false, .mean = mean, .stddev = stddev}), {.batch_size = 500});

    for (int epoch = 1; epoch <= 3; ++epoch) {
        for (auto& [images, labels] : train.epoch(epoch)) model.step(sgd, images, labels, ls::nll_loss);
        std::printf("epoch %d: accuracy %.4f\n", epoch, ls::accuracy(model, test));  // in evaluation mode
    }
    ls::save(model, "digits.safetensors");  // names and layouts of PyTorch's state_dict
    std::puts("saved digits.safetensors");
    return 0;
} catch (const std::exception& error) {
    std::fprintf(stderr, "digits: %s\n", error.what());
    return 1;
}
