// The program of the README, as it stands there: it must compile. The test runs it where a small data set lies.
// The layout is the README's.
// clang-format off
#include <lockstep/lockstep.h>
namespace ls = lockstep;

struct Net {
    ls::Conv2d  conv1{1, 32, 3}, conv2{32, 64, 3};
    ls::Dropout2d drop1{0.25f}, drop2{0.5f};
    ls::Linear  fc1{9216, 128}, fc2{128, 10};
    LOCKSTEP_MEMBERS(conv1, conv2, drop1, drop2, fc1, fc2)

    ls::Tensor forward(ls::Tensor x) {                          // (N, 1, 28, 28) -> (N, 10)
        x = ls::relu(conv2(ls::relu(conv1(x))));
        x = drop1(ls::max_pool2d(x, 2)).flatten(1);
        return ls::log_softmax(fc2(drop2(ls::relu(fc1(x)))), 1);
    }
};

int main() {
    ls::DataParallel model(Net{}, ls::Devices::visible());       // one replica per device, one host thread
    ls::SGD sgd(model, {.lr = 0.01, .momentum = 0.5});
    ls::Loader train(model, ls::Mnist("data/mnist"), {.batch_size = 64, .shuffle = true, .seed = 1});

    for (int epoch = 0; epoch < 5; ++epoch)
        for (auto& [images, labels] : train.epoch(epoch))        // sharded tensors, already on the model's devices
            model.step(sgd, images, labels, ls::nll_loss);       // forward, backward, reduce, update
    ls::save(model, "mnist.safetensors");                        // PyTorch's names and layouts
}
