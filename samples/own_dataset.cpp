// A custom dataset, augmentation, and a part that is held out for validation.
#include <lockstep/lockstep.h>

#include <cstdint>
#include <cstdio>
#include <exception>
#include <tuple>
#include <vector>

namespace ls = lockstep;

/// Images with horizontal (class 0) or vertical (class 1) stripes, drawn here; your class would read a file. `get` is
/// called by several threads at once; its optional second argument gives each row its own random numbers in each epoch.
struct Stripes {
    std::int64_t size() const { return 640; }
    std::tuple<ls::Tensor, ls::Tensor> get(std::int64_t row, ls::RowContext& random) const {
        const std::int64_t label = row % 2, phase = random.integer(4);
        std::vector<std::uint8_t> pixels;
        for (std::int64_t y = 0; y < 20; ++y)
            for (std::int64_t x = 0; x < 20; ++x)
                pixels.push_back(
                    static_cast<std::uint8_t>(random.integer(128) + ((label ? x : y) + phase) / 2 % 2 * 64));
        return {ls::Tensor::from(pixels, {20, 20}), ls::Tensor::scalar(static_cast<double>(label), ls::DType::i64)};
    }
};

struct Net {
    ls::Conv2d conv{1, 8, 3};
    ls::Linear fc{8 * 7 * 7, 2};
    LOCKSTEP_MEMBERS(conv, fc)
    ls::Tensor forward(const ls::Tensor& x) { return fc(ls::max_pool2d(ls::relu(conv(x)), 2).flatten(1)); }
};

int main() try {
    ls::manual_seed(1);
    const auto parts = ls::random_split(Stripes(), {0.8, 0.2}, 1);
    const ls::Normalize normalize({0.4}, {0.2});  // mean and standard deviation of each channel
    const ls::Transformed augmented(
        parts[0], ls::Compose(ls::ToTensor(), ls::RandomCrop(16, 16), ls::RandomHorizontalFlip(), normalize));
    const ls::Transformed plain(parts[1], ls::Compose(ls::ToTensor(), ls::CenterCrop(16, 16), normalize));

    ls::DataParallel model(Net{});
    ls::Adam adam(model, {.lr = 0.003});
    ls::Loader train(model, augmented, {.batch_size = 32, .shuffle = true, .seed = 1, .workers = 2});
    ls::Loader validation(model, plain, {.batch_size = 32});
    for (int epoch = 1; epoch <= 6; ++epoch) {
        for (auto& [images, labels] : train.epoch(epoch)) model.step(adam, images, labels, ls::cross_entropy);
        std::printf("epoch %d: accuracy %.4f on %lld validation images\n", epoch, ls::accuracy(model, validation),
                    static_cast<long long>(plain.size()));
    }
    return 0;
} catch (const std::exception& error) {
    std::fprintf(stderr, "own_dataset: %s\n", error.what());
    return 1;
}
